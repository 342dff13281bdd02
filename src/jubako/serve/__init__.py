"""The server: HTTP dialects in one process, the engine in another, a socket between them (`protocol.py`)."""
