"""The n-gram embedding's kernels against the reference: hashes, injection, steps and prompts, columns taken back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from sizes import config, normal, twin

from jubako.arch import reference
from jubako.arch.config import Config, NgramConfig
from jubako.arch.ngram import hash_multipliers, head_table, ngram_row_ids
from jubako.ops.gpu.columns import Columns, Part, step_table
from jubako.ops.gpu.launch import COLUMNS
from jubako.ops.gpu.ngram import Hash, ngram_inject, ngram_rows

EOS = 7


def sizes() -> Config:
    heads, offsets = head_table(1000, 4)
    ngram = NgramConfig(0, 3, 2, 16, 4, EOS, EOS, hash_multipliers(248_320, 3), heads, offsets)
    return replace(config(), ngram=ngram)


def of_step(ids: list[int], slot: int, position: int, device: torch.device) -> Columns:
    return Columns.of_step(torch.from_numpy(step_table([Part(ids, slot, position, 0, 0)])).to(device), len(ids))


def test_rows_are_those_of_the_formula(rng: np.random.Generator, device: torch.device) -> None:
    network = sizes()
    hash = Hash.of(network, device)
    assert hash is not None
    record = torch.zeros(2, 64, dtype=torch.int32, device=device)
    ids = rng.integers(0, 248_320, 40)
    ids[[3, 10, 11, 20, 25, 31]] = EOS
    expected = ngram_row_ids(network, ids, [])
    prompt = torch.from_numpy(ids[:21].astype(np.int32)).to(device)
    got = [ngram_rows(hash, Columns.of_prompt(prompt, 1, 0), record)]
    ngram_rows(hash, of_step([5, 6, 7], 1, 21, device), record)  # refused again
    for start, end in ((21, 22), (22, 26), (26, 40)):
        got.append(ngram_rows(hash, of_step(ids[start:end].tolist(), 1, start, device), record))
    assert torch.equal(torch.cat(got).cpu().view(40, -1), torch.from_numpy(expected))
    assert record[1, :40].tolist() == ids.tolist() and not record[0].any()


def test_injection_equals_the_reference(rng: np.random.Generator, device: torch.device) -> None:
    streams, hidden, tokens, taps, dilation = 2, 48, 31, 4, 3
    wide, width = streams * hidden, 8
    shapes = ((wide, width), (hidden, width), (wide,), (wide,), (wide,), (wide, taps))
    names = ("key", "value", "norm_key", "norm_query", "norm_conv", "conv")
    leaves = {name: twin(normal(rng, *shape)) for name, shape in zip(names, shapes, strict=True)}
    here = SimpleNamespace(**{name: leaf.to(device) for name, leaf in leaves.items()})
    embedding, x = twin(normal(rng, tokens, width)), twin(normal(rng, tokens, streams, hidden))
    embedding[4] = 0  # no match at all: a gate of exactly one half
    expected, past = x.clone(), torch.zeros((taps - 1) * dilation, wide)
    ring = torch.zeros(2, (taps - 1) * dilation + COLUMNS, wide, device=device)

    def inject(part: slice, columns: Columns) -> torch.Tensor:
        out = x[part].clone().to(device)
        key, value = (embedding[part] @ leaves[name].T for name in ("key", "value"))
        ngram_inject(here, out, key.to(device), value.to(device), ring, columns, dilation, 1e-6)
        return out.cpu()

    for start, end in ((0, 19), (19, 20), (20, 25), (25, 31)):
        part = slice(start, end)
        ids = [0] * (end - start)
        reference.ngram_inject(SimpleNamespace(**leaves), expected[part], embedding[part], past)  # type: ignore[arg-type]
        if start == 0:
            got = inject(part, Columns.of_prompt(torch.zeros(end, dtype=torch.int32, device=device), 1, 0))
        else:
            inject(slice(start, min(start + 3, tokens)), of_step(ids[:3], 1, start, device))  # refused again
            got = inject(part, of_step(ids, 1, start, device))
        assert (got - expected[part]).abs().max() <= 2e-5 * expected[part].abs().max()
