"""States kept after a prompt or an answer: in memory by prefix, on disk, and how a prompt finds them."""
