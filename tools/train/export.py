"""From trained weights to files: GGUF in 16 bit or quantised, and the error that quantising makes.

python -m tools.train.export weights.safetensors… small.gguf [--types bf16] [--part trunk]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from jubako.arch.config import Config
from jubako.files import GgufWriter
from jubako.measure.geometry import metadata
from jubako.quant import block_type, encode

from .geometry import small_config
from .vocabulary import load

SMALL = ("*norm*", "*conv1d*", "*ssm_dt*", "*ssm_a", "*ssm_alpha*", "*ssm_beta*", "*inject*", "*ffn_gate_inp*")
TYPES = {
    "bf16": {"*": "BF16"},
    "f32": {"*": "F32"},
    "drafts": {"*_exps.*": "Q5_0", "*": "Q8_0"},
    "shipped": {
        "*_exps.*": "Q5_0",
        "per_layer_token_embd*": "IQ4_NL",
        "output.weight": "Q8_0",
        "*attn_qkv*": "Q8_0",
        "*ssm_out*": "Q8_0",
        "*attn_output*": "Q8_0",
        "*": "Q5_1",
    },
}


def type_of(name: str, choice: str) -> str:
    """The block type of a tensor; norms, convolutions, gates and routers stay float32."""
    if any(fnmatchcase(name, pattern) for pattern in SMALL):
        return "F32"
    return next(kind for pattern, kind in TYPES[choice].items() if fnmatchcase(name, pattern))


def write_gguf(path: Path, config: Config, weights: dict[str, Tensor], vocabulary: dict[str, Any], choice: str) -> None:
    """`weights` by GGUF name as the training network holds them (ssm_a as its logarithm)."""
    with GgufWriter(path) as writer:
        for key, value in (metadata(config) | vocabulary).items():
            writer.add(key, value)
        for name, weight in weights.items():
            writer.declare(name, type_of(name, choice), tuple(weight.shape))
        for name, weight in weights.items():
            values = weight.detach().float()
            values = -values.exp() if name.endswith("ssm_a") else values
            writer.write(name, encode(block_type(type_of(name, choice)), values.contiguous().numpy()))


def part_of(config: Config, weights: dict[str, Tensor], part: str) -> tuple[Config, dict[str, Tensor]]:
    """The "trunk" or the "draft" layer of all weights, as two files are published; llama.cpp reads only the first."""
    draft = {name: weight for name, weight in weights.items() if name.startswith(f"blk.{config.layers}.")}
    if part == "draft":
        return config, draft
    ratios = config.compress_ratios[: config.layers]
    kept = {name: weight for name, weight in weights.items() if name not in draft}
    return replace(config, draft_layers=0, compress_ratios=ratios), kept


def load_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The float32 weights of a checkpoint in several safetensors files; those of later files replace earlier ones."""
    return {name: tensor.float() for path in paths for name, tensor in load_file(path).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=Path, default=Path(".ship/vocabulary.json"))
    parser.add_argument("--types", choices=list(TYPES), default="shipped")
    parser.add_argument("--part", choices=["all", "trunk", "draft"], default="all")
    arguments = parser.parse_args()
    config, weights = small_config(), load_weights(arguments.weights)
    vocabulary = load(arguments.vocabulary)
    if arguments.part != "all":
        config, weights = part_of(config, weights, arguments.part)
    if arguments.part == "draft":
        vocabulary = {}
    write_gguf(arguments.out, config, weights, vocabulary, arguments.types)
