"""The draft layer's kernels against the CPU's draft layer: prompts, tokens caught up with, and drafts further ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from measure.networks import narrow

pytest.importorskip("triton")

from jubako.arch.weights import load_network
from jubako.engine import draft_layer
from jubako.engine.cpu import CpuExecutor
from jubako.engine.executor import DraftWish
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.logits import Row
from jubako.files import open_model
from jubako.measure.synth import synth
from jubako.measure.tensor_plan import BlockTypes
from jubako.ops.gpu.columns import FIRST, IDS, POSITION, SLOT, step_table

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
PROMPT = 20  # tokens that are read as a prompt's are
VOCABULARY, HIDDEN = 320, 256


# the interpreter takes half a minute for a pass
@pytest.mark.parametrize("carried, refused", [(3, 0), (1, 0), (3, 1), (2, 3)] if CUDA else [(3, 1)])
def test_drafts_come_from_the_cpus_logits(tmp_path: Path, carried: int, refused: int) -> None:
    """Two sequences, of which one catches up with several tokens; streams are random, as nobody asks the trunk.

    Behind a step there are columns between theirs that were refused: of the idle slot.
    """
    rng, path = np.random.default_rng(5), tmp_path / "net.gguf"
    config = narrow(
        layers=2, experts=4, hidden=HIDDEN, heads=2, kv_heads=1, vocab=VOCABULARY, ngram_rows=200, draft=True
    )
    synth(path, config, BlockTypes.parse("Q4_0,ngram=F32"))  # whose layout takes the interpreter few programs
    network = load_network(open_model([path]))
    cpu, gpu = CpuExecutor(network, threads=1, kv_bits=16), GpuExecutor(network, DEVICE, kv_bits=16, context=128)
    drafts = gpu._drafts
    assert drafts is not None
    lengths = [PROMPT + 1 + carried, 1]
    texts = [rng.integers(0, VOCABULARY, length + 1).tolist() for length in lengths]
    wide = [rng.standard_normal((length, 4, HIDDEN)).astype(np.float32) for length in lengths]
    ours, theirs = [gpu.new_state(128) for _ in texts], [cpu.new_state(128) for _ in texts]

    for state, text, streams, length in zip(ours, texts, wide, lengths, strict=True):
        state.reserve(length + 3)
        state.position = length
        if length > PROMPT:
            on_device = torch.tensor(text[:PROMPT], dtype=torch.int32, device=DEVICE)
            drafts.read_prompt(state, text[:PROMPT], on_device, torch.from_numpy(streams[:PROMPT]).to(DEVICE))
            assert state.draft_position == PROMPT - 1 and state.carried == [text[PROMPT - 1]]
        for position in range(length):
            gpu.ops.pool.carry[state.slot, position % 64] = torch.from_numpy(streams[position].reshape(-1))
        state.carried = text[state.draft_position : length]
    drafts.read(ours[0])  # all but the last carried token, as before a step that leaves no room
    assert ours[0].draft_position == lengths[0] - 1
    ours[0].draft_position -= carried - 1
    ours[0].carried = texts[0][lengths[0] - carried : lengths[0]]

    wanted: list[list[np.ndarray]] = [[], []]
    for state, text, streams, seen in zip(theirs, texts, wide, wanted, strict=True):
        state.reserve(len(text) + 3)
        state.position = len(streams)
        draft_layer.read(cpu.ops, state, text[1:-1], streams[:-1])
        state.carry[0], state.carry_ids = streams[-1], [text[-2]]

        def pick(row: Row, seen: list[np.ndarray] = seen) -> int:
            seen.append(row.logits.copy())
            return 7

        draft_layer.propose(cpu.ops, [DraftWish(text[-1], state, 2, pick)])

    parts = drafts.catch_up_table([DraftWish(text[-1], s, 2) for text, s in zip(texts, ours, strict=True)])
    gpu.desk.write(draft=with_refused(step_table(parts), carried, refused, gpu.ops.pool.idle_slot))
    found = []
    with torch.inference_mode():
        for turn in range(2 if CUDA else 1):
            if turn == 0:
                drafts._catch_up(carried + refused + 1, 2)
                drafts._ahead(2, 1)
            else:
                drafts._further(2)
            found.append(gpu.desk.logits[-2:].cpu().numpy().copy())
            gpu.desk.choose([7, 7])
    for turn, rows in enumerate(found):
        for part, row in enumerate(rows):
            want = wanted[part][turn]
            assert np.abs(row - want).max() <= 8e-3 * np.abs(want).max(), (turn, part)
    assert gpu.desk.drafts[: len(found), :2].tolist() == [[int(row.argmax()) for row in rows] for rows in found]


def with_refused(table: np.ndarray, first: int, count: int, idle: int) -> np.ndarray:
    """A table of two parts with so many columns of nobody between them, as `leave_accepted` has it."""
    table = table.copy()
    columns = table[[IDS, SLOT, POSITION]]
    table[[IDS, SLOT, POSITION]] = np.insert(columns, [first] * count, [[7], [idle], [0]], axis=1)[:, : table.shape[1]]
    table[FIRST, 1] += count
    return table
