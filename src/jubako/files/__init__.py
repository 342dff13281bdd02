"""Model files: reading, writing and assembling GGUF and safetensors. Knows bytes and names, not networks."""

from .gguf import GgufFile, read_gguf
from .gguf_writer import GgufWriter
from .model import ModelFiles, open_model
from .tensors import StoredTensor

__all__ = ["GgufFile", "GgufWriter", "ModelFiles", "StoredTensor", "open_model", "read_gguf"]
