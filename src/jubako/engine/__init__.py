"""The engine: executors (one per device), the forward pass, sessions, generation, and `load`."""
