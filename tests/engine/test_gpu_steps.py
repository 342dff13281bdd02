"""What lies around a GPU step's kernels: tables, drafts that become columns, streams that wait for the draft layer.

A simple function stands in for the network: the next token depends on a token's id and position. So everything that
has to reach the right column, part and slot shows in the text.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import torch
from measure.networks import narrow

pytest.importorskip("triton")

import jubako.engine.gpu.executor as executor_module
import jubako.engine.gpu.graph as graph_module
import jubako.engine.gpu.step as step_module
from jubako.arch.weights import load_network
from jubako.core import Request, SamplingParams
from jubako.engine.answer import Answer
from jubako.engine.depth import Costs
from jubako.engine.draft import DraftOptions, Speculation, verify
from jubako.engine.executor import DraftWish
from jubako.engine.gpu.draft import Drafts
from jubako.engine.gpu.executor import GpuExecutor
from jubako.engine.gpu.graph import Graphs, Work
from jubako.errors import JubakoError, MachineError
from jubako.files import open_model
from jubako.measure.synth import synth
from jubako.ops.gpu.carry import kept_streams
from jubako.ops.gpu.columns import COUNT, FIRST, PART_SLOT, SLOT, Columns, Part, step_table
from jubako.ops.gpu.draft_accept import agreeing
from jubako.ops.gpu.draft_table import Following
from jubako.ops.gpu.ops import GpuOps
from jubako.ops.gpu.sequence import GpuState

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 320
BROKEN = 300  # a token after which numbers break down


def after(ids: torch.Tensor, positions: torch.Tensor, coarse: bool = False) -> torch.Tensor:
    """The network: logits [T, V] after tokens at positions. The draft layer's differ at every third position."""
    seeds = (ids.long() * 7919 + positions.long() * 104_729) % 1_000_003
    if coarse:
        seeds += (positions % 3 == 0).long()
    tokens = torch.arange(VOCABULARY, device=ids.device)
    logits = ((seeds[:, None] * 31 + tokens[None] * (seeds[:, None] % 977 + 13)) % 4093).float() / 256
    logits[:, BROKEN] = -1
    logits[ids == BROKEN, 5] = torch.nan
    return logits


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> GpuExecutor:
    path = tmp_path_factory.mktemp("steps") / "net.gguf"
    synth(path, narrow(layers=2, draft=True, vocab=VOCABULARY, experts=4, hyper_rank=32, ngram_rows=200))
    network = load_network(open_model([path]))
    return GpuExecutor(network, DEVICE, kv_bits=16, context=256, tokens=1024, sequences=4)


@pytest.fixture(autouse=True)
def simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function in place of the trunk's and the draft layer's kernels. Streams say which token they are of."""

    def marked(ids: torch.Tensor, positions: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        streams = torch.zeros(len(ids), *like.shape[-2:], device=ids.device)
        streams[:, :, 0], streams[:, :, 1] = ids[:, None].float(), positions[:, None].float()
        return streams

    def logits(ops: GpuOps, columns: Columns, out: torch.Tensor) -> Generator[bool, None, torch.Tensor]:
        yield True
        out.copy_(after(columns.ids, columns.positions))
        return marked(columns.ids, columns.positions, torch.empty(ops.config.streams, ops.config.hidden))

    def layer(
        self: Drafts, columns: Columns, streams: torch.Tensor, parts: int, choose: Any, after: Following | None = None
    ) -> torch.Tensor:
        """As the draft layer: what the head reads of each part's last column, and streams left for the next pass."""
        if after is not None:
            after.follow()
        if streams is self.ops.pool.carry:
            streams = kept_streams(streams, columns, self.ops.config.streams)
        live = columns.slots < self.ops.pool.idle_slot
        assert torch.equal(streams[live][:, 0, 1].int(), columns.positions[live]), "streams of another token"
        assert columns.parts is not None
        last = (columns.parts[FIRST] + columns.parts[COUNT] - 1)[:parts].clamp(0).long()
        mine = marked(columns.ids[last], columns.positions[last] + 1, streams)
        self._streams[:parts] = mine
        return mine

    def head(self: GpuOps, weight: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(after(x[:, 0, 0], x[:, 0, 1], coarse=True))

    def remember(self: Drafts, columns: Columns, streams: torch.Tensor) -> None:
        assert torch.equal(streams[:, 0, 1].int(), columns.positions), "streams of another token"

    def largest(logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        found = torch.topk(logits, ids.shape[1], sorted=False)
        values[: len(logits)], ids[: len(logits)] = found.values, found.indices.int()

    def run(self: Graphs, key: Any, work: Work) -> None:
        for _ in work() or ():
            pass

    monkeypatch.setattr(graph_module, "find_largest", largest)
    monkeypatch.setattr(Graphs, "run", run)  # what stands in for kernels waits for the device, as no capture may
    monkeypatch.setattr(Graphs, "capture", lambda *_: None)
    monkeypatch.setattr(step_module, "logits", logits)
    monkeypatch.setattr(Drafts, "_layer", layer)
    monkeypatch.setattr(Drafts, "_remember", remember)
    monkeypatch.setattr(GpuOps, "linear", head)


def texts(
    executor: GpuExecutor, starts: list[int], drafts: int, count: int = 24, **params: Any
) -> tuple[list[list[int]], list[Speculation]]:
    """Answers of several sequences together, each to a prompt of one token."""
    runs, written = [], []
    states = [executor.new_state(256) for _ in starts]
    for start, state in zip(starts, states, strict=True):
        answer = Answer(Request("", (start,), SamplingParams(**params), count), 256)
        run = Speculation(answer, state, [], DraftOptions(drafts, fixed=True))
        [rows] = executor.step([([start], state)])
        chosen = run.accept(rows)
        runs.append(run)
        written.append([choice.id for choice in chosen])
    costs = Costs()
    while going := [i for i, run in enumerate(runs) if not run.answer.finish_reason]:
        rows_of_all = verify(executor, costs, [runs[i] for i in going])
        for i, rows in zip(going, rows_of_all, strict=True):
            written[i] += [choice.id for choice in runs[i].accept(rows)]
    for state in states:
        state.close()
    return written, runs


def greedy(start: int, count: int = 24) -> list[int]:
    line = [start]
    for position in range(count):
        line.append(int(after(torch.tensor(line[-1:]), torch.tensor([position])).argmax()))
    return line[1:]


@pytest.mark.parametrize("drafts", [0, 1, 3, 6])
def test_drafts_without_the_host_give_the_text(executor: GpuExecutor, drafts: int) -> None:
    [text], [run] = texts(executor, [11], drafts)
    assert text == greedy(11)
    stats = run.answer.stats
    assert 1 + stats.steps + sum(stats.accepted) == len(text)
    assert drafts == 0 or 0 < sum(stats.accepted) < sum(stats.drafted)


def test_sequences_together_have_their_own_text(executor: GpuExecutor) -> None:
    written, _ = texts(executor, [11, 200, 7], 3)
    assert written == [greedy(11), greedy(200), greedy(7)]


def test_drawn_text_is_the_same_with_drafts(executor: GpuExecutor) -> None:
    """The host draws every draft, and reads all logits."""
    for options in ({"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}):
        plain, _ = texts(executor, [11, 200], 0, 16, seed=3, **options)
        drafted, runs = texts(executor, [11, 200], 3, 16, seed=3, **options)
        assert drafted == plain != [greedy(11, 16), greedy(200, 16)]
        assert sum(sum(run.answer.stats.accepted) for run in runs) > 0


def test_no_more_logits_are_copied_than_the_choice_takes(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(executor.desk), "_rows", lambda *_: pytest.fail("all logits were copied"))
    drawn, _ = texts(executor, [9], 3, 12, temperature=0.7, top_k=20, seed=1)
    monkeypatch.setattr(type(executor.desk), "_largest", lambda *_: pytest.fail("logits were copied"))
    assert texts(executor, [9], 3)[0] == [greedy(9)] != drawn


def test_the_largest_logits_come_with_a_step_where_they_were_asked_for_before(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int]] = []
    find = type(executor.desk).find
    monkeypatch.setattr(type(executor.desk), "find", lambda desk, *rows: (found.append(rows), find(desk, *rows))[1])
    states = [executor.new_state(256) for _ in range(2)]

    def step(asks: tuple[bool, bool]) -> list[Any]:
        found.clear()
        rows = executor.step([([3, 4], states[0]), ([5], states[1])])
        at_once = list(found)
        for (*_, row), asked in zip(rows, asks, strict=True):
            if asked:
                ids, logits = row.largest
                assert np.array_equal(row.logits[ids], logits) and row.logits.argmax() in ids
        return [len(at_once), *found]

    every, first, last = (0, 3), (0, 2), (2, 3)
    assert step((False, True)) == [0, last] and step((True, True)) == [1, every] and step((True, False)) == [1, every]
    assert step((False, False)) == [1, every], "nobody has said yet that they are not wanted any more"
    assert step((True, True)) == [0, first, last]


def test_logits_are_those_of_the_step(executor: GpuExecutor) -> None:
    one, other = executor.new_state(256), executor.new_state(256)
    first, second = executor.step([([3, 4], one), ([5], other)])
    assert np.array_equal(second.array(), after(torch.tensor([5]), torch.tensor([0])).numpy())
    assert np.array_equal(first[1].logits, after(torch.tensor([4]), torch.tensor([1]))[0].numpy())
    assert list(first.likeliest) == np.array(first).argmax(-1).tolist()
    executor.step([([1], one)])
    assert first[0].logits.shape == (VOCABULARY,), "what was read stays"
    late = executor.step([([6], other)])[0]
    executor.step([([7], other)])
    with pytest.raises(AssertionError, match="gone on"):
        late.array()


def test_numbers_that_break_down_end_their_answer_alone(executor: GpuExecutor) -> None:
    good, bad = executor.new_state(256), executor.new_state(256)
    right, wrong = executor.step([([3], good), ([BROKEN], bad)])
    assert right.likeliest[0] >= 0 and wrong.likeliest[0] == -1
    answer = Answer(Request("", (BROKEN,)), 256)
    with pytest.raises(JubakoError, match="position 1 is nan; the network's numbers broke down"):
        answer.choose(wrong[0])
    [after_it] = executor.step([([right.likeliest[0]], good)])
    assert after_it.likeliest[0] >= 0


def test_a_pass_is_waited_for_after_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which had marked what its `fetch` waits for, and never came to it."""
    desk, recorded = graph_module.Desk(torch.device("cpu"), 8), []
    monkeypatch.setattr(graph_module.Desk, "_record", lambda desk: recorded.append(desk))
    table = step_table([Part([1], 0, 0, 0, 0)])
    desk.write(step=table)
    desk.mark()
    desk.fetch()
    assert len(recorded) == 1
    desk.write(step=table)
    desk.mark()
    desk.write(step=table)
    desk.fetch()
    assert len(recorded) == 3


def test_a_thread_that_waits_gently_sleeps_for_less_than_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the shortest of the last ones; then it looks."""
    desk, slept, looks = graph_module.Desk(torch.device("cpu"), 8), [], []
    now = 100.0

    class Pass:
        """Over `lasts` seconds after it was launched."""

        lasts, over = 0.0, 0.0

        def record(self, stream: object) -> None:
            self.over = now + self.lasts

        def query(self) -> bool:
            looks.append(now)
            return now >= self.over

    def go(seconds: float) -> None:
        nonlocal now
        now += seconds

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        go(seconds)

    event = Pass()
    monkeypatch.setattr(graph_module.time, "sleep", sleep)
    monkeypatch.setattr(graph_module.time, "perf_counter", lambda: now)
    monkeypatch.setattr(graph_module._cpu, "pause", go)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    desk._event = event  # type: ignore[assignment]
    desk.wait_gently()
    for lasts in (4e-3, 6e-3, 1e-3):
        event.lasts = lasts
        before = now
        desk.fetch()
        assert lasts <= now - before <= lasts + 2 * graph_module.LOOK or (slept and now - before == slept[-1])
    assert slept == pytest.approx([3e-3, 3e-3], rel=0.01)
    assert 600 < len(looks) < 1500


def test_tables_at_rest_are_nobodys_and_come_back(executor: GpuExecutor) -> None:
    """What a capture runs on, whose tables may already be written."""
    desk, idle = executor.desk, executor.ops.pool.idle_slot
    wanted = step_table([Part([5, 6], 1, 10, 0, 0)])
    desk.write(wanted, step_table([Part([7], 2, 9, 0, 0)]))
    before, written = desk.tables.clone(), desk.caught_up.clone()
    with desk.at_rest(idle):
        for table in (desk.step, desk.draft, desk.caught_up):
            assert set(table[[SLOT, PART_SLOT]].flatten().tolist()) == {idle} and not table[COUNT].any()
        desk.take()
        assert not desk.step[COUNT].any()
    assert torch.equal(desk.tables, before) and torch.equal(desk.caught_up, written)
    desk.take()
    assert desk.step.tolist() == wanted.tolist(), "the table that was still to be taken"


def test_no_graph_of_drafts_is_captured_while_drafts_are_under_way(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture runs its work once before, over the streams and ids that a draft leaves for the next."""
    captured: list[Any] = []
    ran: list[Any] = []

    def capture(self: Graphs, key: Any, work: Work) -> None:
        assert not ran, f"{key} is captured after {ran}"
        captured.append(key)

    def run(self: Graphs, key: Any, work: Work) -> None:
        ran.append(key)
        for _ in work() or ():
            pass

    monkeypatch.setattr(Graphs, "capture", capture)
    monkeypatch.setattr(Graphs, "run", run)
    state = executor.new_state(256)
    executor.step([([3], state)])
    ran.clear()
    [drafts] = executor.draft([DraftWish(4, state, 3)])
    assert len(drafts) == 3 and len(ran) == 2 and set(ran) <= set(captured)
    executor.step([([4], state)])
    ran.clear()
    [drafts] = executor.draft([DraftWish(6, state, 3, lambda row: 5)])
    assert drafts == [5, 5, 5] and len(ran) == 4 and set(ran) <= set(captured)


def test_only_what_asks_nobody_is_captured_with_drafts_behind(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where other cards or the CPU are asked no drafts follow a step."""
    greedy, captured = executor._greedy, list[Any]()
    assert greedy is not None
    monkeypatch.setattr(Graphs, "capture", lambda self, key, work: captured.append(key))
    greedy.capture(1)
    assert not captured
    greedy.capture(3)
    assert captured[:2] == [("drafts behind", 3, 1, 2), ("step", 3, True)]
    captured.clear()
    monkeypatch.setattr(greedy._ahead, "possible", False)
    greedy.capture(3)
    assert not captured


def test_many_carried_tokens_are_read_before_drafting(executor: GpuExecutor) -> None:
    """More sure tokens than a step has columns wait for the draft layer."""
    state = executor.new_state(256)
    for start in range(0, 40, 8):
        executor.step([(list(range(start, start + 8)), state)])
    [wish] = [DraftWish(99, state, 2)]
    [drafts], [logits], _ = executor.speculate([wish])
    assert len(drafts) == 2 and state.draft_position == 40 and state.position == 43
    assert list(logits.likeliest) == after(torch.tensor([99, *drafts]), torch.tensor([40, 41, 42])).argmax(-1).tolist()


def test_a_prompt_that_does_not_fit_is_read_in_smaller_chunks_next_time(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def read_prompt(self: GpuExecutor, ids: list[int], state: Any, last_only: bool) -> np.ndarray:
        if len(ids) > 100:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        read.append(len(ids))
        return np.zeros((1, VOCABULARY), np.float32)

    monkeypatch.setattr(GpuExecutor, "_read_prompt", read_prompt)
    monkeypatch.setattr(executor, "chunk", 200)
    monkeypatch.setattr(executor_module, "LEAST_CHUNK", 50)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**8, 10**9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card")
    state = executor.new_state(256)
    says = (
        r"reading 150 tokens at once does not fit: 0\.1 of Card.s 1\.0 GB are free; the next prompt is read 100 tokens"
    )
    with pytest.raises(MachineError, match=says):
        executor.forward([1] * 150, state, last_only=True)
    assert executor.forward([1] * 150, state, last_only=True).shape == (1, VOCABULARY)
    assert read == [100, 50] and state.position == 150


def counted(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often drafts begin at a host's table, and how often behind a step."""
    counts = {"start": 0, "behind": 0}
    for name in counts:
        verb = getattr(Drafts, name)

        def called(self: Drafts, *args: Any, name: str = name, verb: Any = verb) -> Any:
            counts[name] += 1
            return verb(self, *args)

        monkeypatch.setattr(Drafts, name, called)
    return counts


def test_drafts_are_made_behind_the_step_before(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an answer's second speculative step on, in vain behind its last."""
    counts = counted(executor, monkeypatch)
    written, runs = texts(executor, [11, 200], 3, 24)
    assert written == [greedy(11), greedy(200)]
    few, many = sorted(run.answer.stats.steps for run in runs)
    alone = many - few  # steps of one sequence after the other has ended
    assert counts == {"start": 2 + min(alone, 2), "behind": few - 1 + max(alone - 1, 0)} and few > 3


def test_a_step_behind_drafts_is_launched_whole(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other one in two pieces, of which the first starts sooner."""
    pieces: list[int] = []

    def run(self: Graphs, key: Any, work: Work) -> None:
        pieces.extend([1 + sum(1 for _ in work() or ())] * (key[0] == "step"))

    monkeypatch.setattr(Graphs, "run", run)
    state, token = executor.new_state(256), 17
    executor.step([([3], state)])
    for _ in range(4):
        *_, token = speculated(executor, state, token)
    executor.step([([token], state)])
    assert pieces == [2, 2, 2, 1, 1, 2]


@pytest.mark.parametrize(("spent", "waited"), [(0.004, 0.006), (0.5, 0.0)])
def test_drafting_while_the_host_is_busy_is_not_counted(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch, spent: float, waited: float
) -> None:
    greedy = executor._greedy
    assert greedy is not None
    monkeypatch.setattr(greedy._clock, "seconds", lambda kind: 0.01)
    monkeypatch.setattr(greedy._ahead, "spent", lambda now: spent)
    state, token, said = executor.new_state(256), 17, []
    executor.step([([3], state)])
    for _ in range(3):
        [drafts], [rows], seconds = executor.speculate([DraftWish(token, state, 3)])
        kept = agreeing([token, *drafts], rows.likeliest)
        state.keep(kept)
        token = rows.likeliest[kept - 1]
        said.append(seconds)
    assert said == [0.01, 0.01, pytest.approx(waited)]


@pytest.mark.parametrize("kept", [1, 2])
def test_a_host_that_chooses_otherwise_gets_other_drafts(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """As stop words and limits do; and a token that is not the likeliest."""
    counts, state, text = counted(executor, monkeypatch), executor.new_state(256), [3]
    executor.step([([3], state)])
    token = 17
    for turn in range(4):
        text.append(token)
        [drafts], [rows], _ = executor.speculate([DraftWish(token, state, 3)])
        position = len(text) - 1
        ids = torch.tensor([token, *drafts])
        assert list(rows.likeliest) == after(ids, torch.arange(position, position + 4)).argmax(-1).tolist()
        state.keep(kept)
        text += drafts[: kept - 1]
        token = (rows.likeliest[kept - 1] + 1) % BROKEN
        assert counts == {"start": turn + 1, "behind": turn}


def test_other_work_makes_drafts_anew(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, state, other = counted(executor, monkeypatch), executor.new_state(256), executor.new_state(256)
    executor.step([([3], state), ([9], other)])
    line = [3, 17]

    def speculate() -> None:
        line.extend(speculated(executor, state, line[-1]))

    for turn in range(4):
        speculate()
        assert counts == {"start": min(turn + 1, 2), "behind": turn}
    executor.draft([DraftWish(5, other, 2)])
    speculate()
    assert counts == {"start": 4, "behind": 3}, "drafts of another sequence came in between"
    for _ in range(2):
        speculate()
    assert counts == {"start": 5, "behind": 5}
    executor.step([([1], other)])
    speculate()
    assert counts == {"start": 6, "behind": 5}, "a step came in between"
    assert line[2:] == greedy_from(line[:2], len(line) - 2)


def speculated(executor: GpuExecutor, state: GpuState, token: int) -> list[int]:
    """The tokens after `token` that a greedy step of three drafts gives."""
    [drafts], [rows], _ = executor.speculate([DraftWish(token, state, 3)])
    kept = agreeing([token, *drafts], rows.likeliest)
    state.keep(kept)
    return list(rows.likeliest[:kept])


def test_another_conversation_in_the_same_state_gets_its_own_drafts(
    executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it stands where the one before stood, with the same last token and the same next one."""
    counts, state = counted(executor, monkeypatch), executor.new_state(256)
    executor.step([([3], state)])
    token = 17
    for _ in range(2):
        *_, token = speculated(executor, state, token)
    assert executor._greedy is not None
    [taken] = executor._greedy._ahead._taken
    assert taken.next == token and counts == {"start": 2, "behind": 1}
    state.reset()
    state.carried = list(taken.carried)
    state.position, state.draft_position = taken.position, taken.position - len(taken.carried)
    executor.speculate([DraftWish(token, state, 3)])
    assert counts["start"] == 3


def greedy_from(line: list[int], count: int) -> list[int]:
    line = list(line)
    for _ in range(count):
        line.append(int(after(torch.tensor(line[-1:]), torch.tensor([len(line) - 1])).argmax()))
    return line[-count:]


def test_logits_of_a_step_outlast_the_drafts_behind_it(executor: GpuExecutor) -> None:
    state, token = executor.new_state(256), 17
    executor.step([([3], state)])
    for _ in range(3):
        position = state.position
        [drafts], [rows], _ = executor.speculate([DraftWish(token, state, 3)])
        wanted = after(torch.tensor([token, *drafts]), torch.arange(position, position + 4))
        assert np.array_equal(np.array(rows), wanted.numpy())
        state.keep(1)
        token = rows.likeliest[0]


def test_drafts_that_have_no_room_wait_for_the_host(executor: GpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that sequences were promised are not taken for drafts of a step that may never come."""
    counts, state = counted(executor, monkeypatch), executor.new_state(64)
    executor.step([(list(range(8)), state)])
    for start in range(8, 48, 8):
        executor.step([(list(range(start, start + 8)), state)])
    line, behind = [5], list[tuple[int, bool]]()
    while state.position < 61:
        position, before = state.position, counts["behind"]
        line += speculated(executor, state, line[-1])
        behind.append((position, counts["behind"] > before))
        assert len(state.pages.ids) == 1
    assert behind[-1][0] > 57 and behind == [(at, n > 0 and at <= 57) for n, (at, _) in enumerate(behind)]
