"""What a draft hands on to the next, and to the step that verifies it."""

from __future__ import annotations

import torch

from jubako.ops.gpu.columns import Columns, Part, step_table
from jubako.ops.gpu.guess import Choice, insert
from jubako.ops.gpu.state import AttentionMemory


def memory_of(ratio: int, device: torch.device) -> AttentionMemory:
    nothing = torch.empty(0, device=device)
    return AttentionMemory(nothing, nothing, nothing, nothing, nothing, ratio)


def test_later_drafts_see_the_first_ones_blocks_and_those_finished_since(device: torch.device) -> None:
    """Two sequences, one with fewer blocks than the budget of three."""
    parts = [Part([1, 2], 0, 21, 0, 0), Part([3], 1, 9, 0, 0)]
    columns = Columns.of_step(torch.from_numpy(step_table(parts)).to(device), 3)
    blocks = torch.tensor([[9, 9, 9], [0, 4, 2], [0, 1, -1]], dtype=torch.int32, device=device)
    counts = torch.tensor([3, 3, 2], dtype=torch.int32, device=device)
    choice, memory, q = Choice(3, device), memory_of(4, device), torch.empty(3, device=device)
    first = choice.first(lambda *_: (blocks, counts))
    assert first(q, memory, columns) == (blocks, counts)
    found = []
    for position in ((23, 10), (24, 11), (27, 12)):  # of the two drafts; a block is complete with its last token
        table = step_table([Part([5], slot, at, 0, 0) for slot, at in enumerate(position)])
        chosen, many = choice.again(q, memory, Columns.of_step(torch.from_numpy(table).to(device), 2))
        found.append([chosen[part, : many[part]].tolist() for part in range(2)])
    assert found == [[[0, 4, 2, 5], [0, 1]], [[0, 4, 2, 5], [0, 1, 2]], [[0, 4, 2, 5, 6], [0, 1, 2]]]


def test_drafts_become_the_columns_after_the_sure_ones(device: torch.device) -> None:
    parts = [Part([7, 0, 0, 0], 0, 10, 1, 1), Part([8], 1, 3, 0, 0), Part([9, 0], 2, 5, 0, 0)]
    table = torch.from_numpy(step_table(parts)).to(device)
    before = table.clone()
    drafts = torch.zeros(15, 16, dtype=torch.int32, device=device)
    drafts[:3, :3] = torch.tensor([[11, 21, 31], [12, 22, 32], [-1, 23, 33]])
    insert(table, drafts)
    assert table[0, :8].tolist() == [7, 11, 12, 0, 8, 9, 31, 0]
    assert torch.equal(table[1:], before[1:])
