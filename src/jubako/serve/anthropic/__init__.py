"""The Anthropic dialect: messages, counting of tokens."""
