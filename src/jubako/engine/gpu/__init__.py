"""The network on a GPU: its executor, captured steps, drafts, and what a card must be."""
