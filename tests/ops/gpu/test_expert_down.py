"""The down products of all uses in one launch: the bits of one launch for them and one for their sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu_weights import activations, both, slots

from jubako.ops.gpu.expert_down import Cut, adds_up, sum_down
from jubako.ops.gpu.expert_step import down, usual_cut
from jubako.ops.gpu.experts import Experts, Parts, Routed, add_up, coarse

HIDDEN, COUNT, CHOSEN, TOKENS = 128, 5, 3, 3


def layer(device: torch.device, kind: str, shared: str = "Q8_0", size: int = 96) -> Experts:
    routed, one = (slots("Q4_0", name, count, size, HIDDEN, device)[0] for name, count in ((kind, COUNT), (shared, 1)))
    return Experts((both("F32", COUNT + 1, HIDDEN, device)[0],), routed, one)


def routed(device: torch.device) -> Routed:
    rng = np.random.default_rng(3)
    ids = np.stack([rng.permutation(COUNT)[:CHOSEN] for _ in range(TOKENS)]).astype(np.int32)
    weights, share = rng.dirichlet(np.ones(CHOSEN), TOKENS).astype(np.float32), rng.standard_normal(TOKENS)
    return Routed(*(torch.from_numpy(a).to(device) for a in (ids, weights, share.astype(np.float32))))


@pytest.mark.parametrize(("kind", "size"), [("IQ4_NL", 96), ("Q8_0", 96), ("IQ4_NL", 384), ("Q4_K", 640)])
def test_bits_however_it_is_cut(device: torch.device, kind: str, size: int) -> None:
    """With factors and an expert that is absent. A last block or four are all that a row has in its unit."""
    mine, to = layer(device, kind, size=size), routed(device)
    table, scales = mine.routed.table.clone(), torch.rand(COUNT, 3, device=device)
    table[int(to.ids[1, 1])] = -1
    mine = replace(mine, routed=replace(mine.routed, table=table, scales=scales))
    values = np.zeros((TOKENS * CHOSEN + TOKENS, -(-size // 256) * 256), np.float32)
    values[:, :size] = activations(len(values), size)
    hidden = coarse(torch.from_numpy(values).to(device))
    parts = Parts(down(mine, hidden, to, usual_cut(TOKENS)), to)
    want = add_up(parts, torch.empty(TOKENS, HIDDEN, device=device))
    for cut in (Cut(rows=64, ahead=1), Cut(rows=64, ahead=9)):
        assert torch.equal(sum_down(mine, hidden, to, cut=cut), want), cut


def test_plain_numbers_are_left_to_others(device: torch.device) -> None:
    assert adds_up(layer(device, "Q4_0"))
    assert not adds_up(layer(device, "F16")) and not adds_up(layer(device, "Q4_0", "BF16"))
