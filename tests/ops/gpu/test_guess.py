"""What a draft hands on to the next, and to the step that verifies it."""

from __future__ import annotations

import torch

from jubako.ops.gpu.columns import COUNT, IDS, PENDING, POSITION, SLOT, Columns, Part, step_table
from jubako.ops.gpu.draft_table import DRAFTED, take, take_new
from jubako.ops.gpu.guess import Choice, last_rows
from jubako.ops.gpu.prepare import Prepared
from jubako.ops.gpu.route import largest_of
from jubako.ops.gpu.state import AttentionMemory


def memory_of(ratio: int, device: torch.device) -> AttentionMemory:
    nothing = torch.empty(0, device=device)
    return AttentionMemory(nothing, nothing, nothing, nothing, nothing, ratio)


def table_of(parts: list[Part], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(step_table(parts)).to(device)


def in_main_memory(parts: list[Part], number: int, device: torch.device) -> torch.Tensor:
    """A step's table as the host leaves it, and its number."""
    table = torch.zeros(10, 16, dtype=torch.int32, pin_memory=device.type == "cuda")
    table[:9], table[9, 0] = torch.from_numpy(step_table(parts)), number
    return table


def likeliest(tokens: list[int], device: torch.device) -> torch.Tensor:
    """What the head's logits say where these are the likeliest; -1: no finite number is."""
    logits = torch.zeros(len(tokens), 5000, device=device)
    for row, token in zip(logits, tokens, strict=True):
        row[token] = 1.0 if token >= 0 else torch.nan
    return largest_of(logits)


def test_later_drafts_see_the_first_ones_blocks_and_those_finished_since(device: torch.device) -> None:
    """Two sequences, one with fewer blocks than the budget of three; their last sure tokens stand at 22 and 9."""
    table = table_of([Part([2], 0, 22, 0, 0), Part([3], 1, 9, 0, 0)], device)
    blocks = torch.tensor([[0, 4, 2], [0, 1, -1]], dtype=torch.int32, device=device)
    counts = torch.tensor([3, 2], dtype=torch.int32, device=device)
    choice, memory, q = Choice(3, 4, device), memory_of(4, device), torch.empty(3, device=device)
    first = choice.first(lambda *_: (blocks, counts))
    assert first(q, memory, Columns.of_step(table, 2)) == (blocks, counts)
    drafts, found = torch.zeros(15, 16, dtype=torch.int32, device=device), []
    for _ in range(5):  # a block is complete with its last token
        choice.following(table, drafts, likeliest([5, 6], device)).follow()
        chosen, many = choice.again(q, memory, Columns.of_step(table, 2))
        found.append([chosen[part, : many[part]].tolist() for part in range(2)])
    assert [lines[0] for lines in found] == [[0, 4, 2, 5]] * 4 + [[0, 4, 2, 5, 6]]
    assert [lines[1] for lines in found] == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_drafts_become_the_next_pass_and_the_columns_after_the_sure_ones(device: torch.device) -> None:
    left = DRAFTED
    parts = [Part([7, left, left, left], 0, 10, 1, 1), Part([8], 1, 3, 0, 0), Part([9, left], 2, 5, 0, 0)]
    table = table_of([Part([4, 7], 0, 8, 0, 0), Part([8], 1, 2, 0, 0), Part([9], 2, 4, 0, 0)], device)
    drafts = torch.zeros(15, 16, dtype=torch.int32, device=device)
    choice = Choice(0, 0, device)
    for turn, tokens in enumerate(([11, 21, 31], [12, 4500, 32], [-1, 23, 33])):
        choice.following(table, drafts, likeliest(tokens, device)).follow()
        assert drafts[turn, :3].tolist() == tokens
        assert table[IDS, :3].tolist() == [max(token, 0) for token in tokens]
        assert table[POSITION, :3].tolist() == [10 + turn, 3 + turn, 5 + turn]
        assert table[SLOT, :3].tolist() == [0, 1, 2] and table[COUNT, :4].tolist() == [1, 1, 1, 0]
        assert table[PENDING, 0] == turn + 1
    step, taken = torch.zeros(9, 16, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    written = in_main_memory(parts, 1, device)
    take_new(written, step, taken, drafts)
    assert step[IDS, :8].tolist() == [7, 11, 12, 0, 8, 9, 31, 0]
    assert torch.equal(step[1:].cpu(), torch.from_numpy(step_table(parts))[1:]) and taken.tolist() == [1]


def test_a_steps_table_is_taken_once(device: torch.device) -> None:
    """Another step by the same table goes on from where the one before it left that."""
    step, taken = torch.zeros(9, 16, dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    drafts = torch.full((15, 16), 77, dtype=torch.int32, device=device)
    written = in_main_memory([Part([3, 4], 1, 6, 2, 1)], 5, device)
    take_new(written, step, taken, drafts)
    assert step[IDS, :3].tolist() == [3, 4, 0] and step[POSITION, :2].tolist() == [6, 7] and taken.tolist() == [5]
    step[POSITION] += 2
    take_new(written, step, taken, drafts)
    assert step[POSITION, :2].tolist() == [8, 9]
    written[-1, 0] += 1
    take_new(written, step, taken, drafts)
    assert step[POSITION, :2].tolist() == [6, 7] and taken.tolist() == [6]


def test_a_table_is_taken_from_main_memory(device: torch.device) -> None:
    source = torch.arange(9 * 16, dtype=torch.int32).view(9, 16)
    source = source.pin_memory() if device.type == "cuda" else source
    table = torch.zeros(9, 16, dtype=torch.int32, device=device)
    take(source, table)
    assert torch.equal(table.cpu(), source)


def test_only_the_last_column_of_a_part_goes_on(device: torch.device) -> None:
    parts = [Part([1, 2, 3], 2, 20, 0, 0), Part([4], 0, 7, 0, 0)]
    columns = Columns.of_step(table_of(parts, device), 4)
    ready = Prepared(
        torch.rand(4, 3, 32, device=device), torch.rand(4, 96, device=device), torch.rand(4, 2, 32).to(device)
    )
    streams, inject = torch.rand(4, 4, 256, device=device), torch.rand(4, 4, device=device)
    to = torch.zeros(2, 4, 256, device=device)
    last, taken, weights = last_rows(columns, 2, ready, streams, inject, to)
    assert last.positions.tolist() == [22, 7] and last.slots.tolist() == [2, 0]
    rows = [2, 3]
    assert ready.index is not None and taken.index is not None
    assert torch.equal(to, streams[rows]) and torch.equal(weights, inject[rows])
    assert torch.equal(taken.queries, ready.queries[rows]) and torch.equal(taken.gate, ready.gate[rows])
    assert torch.equal(taken.index, ready.index[rows])
