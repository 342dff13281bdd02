"""Quantised forms of the tiny network."""

import sys
from pathlib import Path

import pytest

from jubako.files import GgufWriter, read_gguf
from jubako.quant import encode
from jubako.quant.types import block_type

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file


@pytest.fixture(scope="session")
def tiny_files(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Paths by name: the mixed file as it lies there, and one with every matrix in Q8_0."""
    path = tmp_path_factory.mktemp("tiny") / "tiny-q8_0.gguf"
    source = read_gguf(tiny / "tiny-bf16.gguf")
    kinds = {
        name: block_type("Q8_0") if tensor.type.name == "BF16" and tensor.shape[-1] % 32 == 0 else tensor.type
        for name, tensor in source.tensors.items()
    }
    with GgufWriter(path) as writer:
        for key, value in source.metadata.items():
            writer.add(key, value)
        for name, tensor in source.tensors.items():
            writer.declare(name, kinds[name], tensor.shape)
        for name, tensor in source.tensors.items():
            same = kinds[name] == tensor.type
            writer.write(name, tensor.data if same else encode(kinds[name], tensor.float32().numpy()))
    return {"tiny-mixed.gguf": tiny / "tiny-mixed.gguf", "tiny-q8_0.gguf": path}
