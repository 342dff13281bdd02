"""The network: its sizes, the names of its tensors, and the plain float32 reference that specifies it."""
