"""How many tokens keys and values are kept for, and where: the newest in video memory, the others in RAM.

a token                               in video memory   in RAM
  keys and values, near               all layers
  keys and values, far                one layer         all layers      prompts bring one layer at a time
  pooled index keys, near and far     all layers
"""

from __future__ import annotations

from dataclasses import dataclass

from .census import Census
from .plan import Wish
from .shares import PAGE, context_of

LEAST_NEAR = 64 * PAGE  # tokens in video memory, at least, where the others lie in RAM


@dataclass(frozen=True)
class KeysValues:
    """tokens: of all sequences, at most `context` of one; near: those in video memory; vram, ram: bytes."""

    context: int
    tokens: int
    near: int
    vram: int
    ram: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Token:
    """Bytes of a token: keys and values in all layers and in one, pooled index keys in all."""

    cells: int
    layer: int
    pooled: int

    @classmethod
    def of(cls, census: Census, kv_bits: int) -> Token:
        cells = census.cell_bytes(kv_bits, card=True)
        layers = sum(ratio is not None for ratio in census.ratios)
        return cls(cells, cells // max(layers, 1), census.kv_token_bytes(kv_bits, card=True) - cells)

    def vram(self, tokens: int, near: int) -> int:
        """Bytes of video memory for so many tokens."""
        return tokens * self.pooled + near * self.cells + (tokens - near) * self.layer

    def near(self, tokens: int, vram: int) -> int:
        """Tokens that may be near if there are so many in so many bytes; negative if not even none may."""
        if tokens * (self.cells + self.pooled) <= vram:
            return tokens
        return (vram - tokens * (self.layer + self.pooled)) // (self.cells - self.layer) // PAGE * PAGE

    def needs(self, tokens: int, ram: int) -> int:
        """Bytes of video memory without which so many tokens can't be kept."""
        alone = tokens * (self.cells + self.pooled)
        least = tokens * (self.layer + self.pooled) + LEAST_NEAR * (self.cells - self.layer)
        return min(alone, max(least, alone - self._spared(ram)))

    def most(self, vram: int, ram: int) -> int:
        """The most tokens for which video memory and RAM have room."""
        alone = vram // (self.cells + self.pooled)
        held = (vram - LEAST_NEAR * (self.cells - self.layer)) // (self.layer + self.pooled)
        spilled = (vram + self._spared(ram)) // (self.cells + self.pooled)
        return max(alone, min(held, spilled) // PAGE * PAGE)

    def _spared(self, ram: int) -> int:
        """Bytes of video memory that RAM spares. A page more, as what is near is counted in whole ones."""
        return max(ram - PAGE * self.cells, 0) * (self.cells - self.layer) // self.cells


def keep(census: Census, wish: Wish, share: int, room: int, ram: int) -> KeysValues:
    """share: bytes of video memory to give, up to `room` where more is asked for; ram: bytes of it for what is far."""
    token = Token.of(census, wish.kv_bits)
    vram = share
    if wish.context is not None:
        vram = min(max(share, token.needs(min(wish.context, census.config.context_length), ram)), max(share, room))
    context, notes = context_of(census, wish, token.most(vram, ram), "VRAM")
    tokens = max(context, min(wish.sequences * context, token.most(share, ram)))
    near = token.near(tokens, vram)
    return KeysValues(context, tokens, near, token.vram(tokens, near), (tokens - near) * token.cells, notes)
