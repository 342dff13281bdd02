"""Published models: where they are, how large, and which blocks they are made of as far as that is known.

Sizes are those that their publishers list, in bytes (to the precision they give). The block types come from their
headers where those were seen; how a set mixes its experts' types layer by layer is not, so `measure.like` chooses the
mix of two types that gives the listed size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import RequestError

UNSLOTH = "unsloth/Qwen3.8-Flash-Next-GGUF"
ISTA = "ISTA-DASLab/Qwen3.8-Flash-Next-GSQ-RCO-GGUF"


@dataclass(frozen=True)
class Known:
    """One published set.

    size     of all its files, without the draft layer's; 0 where nobody lists it
    pattern  of its files in the repository
    draft    pattern of the draft layer's file there; "" without one
    types    block type by group, as `synth --types` takes them
    upper    group and type of which the set has as many layers as its size asks for
    layers   other types in single layers, by tensor name pattern
    """

    name: str
    repository: str
    pattern: str
    size: int
    types: dict[str, str]
    upper: tuple[str, str] | None = None
    layers: dict[str, str] = field(default_factory=dict)
    draft: str = ""
    draft_size: int = 0
    experts: int = 512


def _unsloth(name: str, size: float, gate_up: str, down: str, upper: tuple[str, str] | None, **layers: str) -> Known:
    return Known(
        name,
        UNSLOTH,
        f"*{name}-*.gguf",
        int(size),
        {"gate_up": gate_up, "down": down, "ngram": "IQ4_NL"},
        upper,
        layers,
        draft="MTP/mtp-Qwen3.8-Flash-Next-shared-Q8_0.gguf",
        draft_size=2_600_000_000,
    )


MODELS = (
    _unsloth("UD-IQ1_M", 68.0e9, "IQ1_M", "Q2_0", ("down", "IQ4_NL")),
    _unsloth("UD-Q2_0", 70.6e9, "Q2_0", "Q2_0", ("down", "IQ4_NL")),
    _unsloth("UD-IQ2_XS", 75.8e9, "IQ2_XS", "Q2_0", ("down", "IQ4_NL")),
    _unsloth("UD-Q2_K_XL", 79.6e9, "Q2_K", "Q2_0", ("down", "IQ4_NL")),
    _unsloth("UD-IQ3_XXS", 83.6e9, "IQ2_S", "IQ4_NL", ("gate_up", "IQ3_XXS")),
    _unsloth("UD-Q3_K_XL", 89.5e9, "IQ3_XXS", "IQ4_NL", ("gate_up", "Q3_K")),
    _unsloth("UD-IQ4_XS", 93.7e9, "IQ3_S", "IQ4_NL", ("gate_up", "IQ4_XS")),
    Known(
        "UD-Q4_K_XL",
        UNSLOTH,
        "*UD-Q4_K_XL-*.gguf",
        111_334_654_784,
        {"gate_up": "Q4_K", "down": "Q5_1", "ngram": "IQ4_NL"},
        layers={
            "blk.2.ffn_gate_exps.weight": "Q5_K",
            "blk.2.ffn_up_exps.weight": "Q5_K",
            **{f"blk.{layer}.ffn_down_exps.weight": "Q8_0" for layer in (2, 4, 30, 46, 47)},
        },
        draft="MTP/mtp-Qwen3.8-Flash-Next-shared-Q8_0.gguf",
        draft_size=2_600_000_000,
    ),
    Known(
        "GSQ-RCO-IQ2_XS",
        ISTA,
        "IQ2_XS/*.gguf",
        0,
        {"gate_up": "IQ2_XS", "down": "Q2_0", "ngram": "IQ4_NL", "router": "BF16", "small": "BF16"},
    ),
    Known(
        "GSQ-RCO-Q2_0",
        ISTA,
        "Q2_0/*.gguf",
        0,
        {"gate_up": "Q2_0", "down": "Q2_0", "ngram": "IQ4_NL", "router": "BF16", "small": "BF16"},
    ),
)


def find(name: str) -> Known:
    """The published model of that name, in any case, or the only one that the name is the end of.

    Raises RequestError, which lists the names.
    """
    wanted = name.lower()
    exact = [model for model in MODELS if model.name.lower() == wanted]
    ends = [model for model in MODELS if model.name.lower().endswith(wanted)]
    found = exact or ends
    if len(found) != 1 or not wanted:
        names = ", ".join(model.name for model in MODELS)
        raise RequestError(f"no published model is called {name!r:.60}; known are {names}")
    return found[0]
