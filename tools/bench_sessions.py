"""Resume times and batched decoding: `python tools/bench_sessions.py MODEL [DRAFT_LAYER …] [--tokens 16384]`.

Prints, for a prompt of so many tokens: seconds to the first token when it is read (where that takes no hours), resumed
from memory, and resumed from disk by a new engine; then tokens/s of one and of eight answers at once, without drafts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import jubako
from jubako.core import Finished, Request, Tokens
from jubako.engine.saved.store import SessionStore
from jubako.engine.scheduler import Scheduler
from jubako.engine.session import Session
from jubako.measure.fill import fill_caches

SEQUENCES = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=16384, help="of the prompt that is resumed")
    parser.add_argument("--fill", action="store_true", help="do not read the prompt: fill its caches with random rows")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--answer", type=int, default=48, help="tokens of each answer that is timed")
    options = parser.parse_args()
    model = jubako.load(options.model, context=options.tokens + 512, sequences=max(SEQUENCES))
    rng = np.random.default_rng(0)
    ids = tuple(rng.integers(1, model.config.vocabulary - 300, options.tokens).tolist())
    with tempfile.TemporaryDirectory() as directory:
        resuming(model, ids, options.repeat, options.fill, Path(directory))
    batching(model, options.repeat, options.answer)


def resuming(model: jubako.Model, ids: tuple[int, ...], repeat: int, fill: bool, directory: Path) -> None:
    """Seconds to the first token after `ids`, the last of which is always read."""
    scheduler = Scheduler(model, sequences=1, store=SessionStore(directory))
    if fill:
        filled(scheduler, model, ids[:-1])
    else:
        print(f"read: {first_token(scheduler, Request('read', ids, keep=(len(ids) - 1,))):.3f} s")
    memory = [first_token(scheduler, Request("memory", ids)) for _ in range(repeat)]
    print(f"resumed from memory: {1000 * median(memory):.1f} ms, best {1000 * min(memory):.1f} ({len(ids)} tokens)")
    scheduler.close()
    disk = []
    for _ in range(repeat):
        started = time.perf_counter()
        again = Scheduler(model, sequences=1, store=SessionStore(directory))
        first_token(again, Request("disk", ids))
        disk.append(time.perf_counter() - started)
        again.close()
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(f"from disk by a new engine: {1000 * median(disk):.1f} ms, best {1000 * min(disk):.1f} ({size / 1e6:.0f} MB)")


def filled(scheduler: Scheduler, model: jubako.Model, ids: tuple[int, ...]) -> None:
    """Leave a checkpoint after `ids` whose caches hold random rows, as if they had been read."""
    session = Session(model.executor, model.context, 512)
    session.state = state = scheduler._room.idle[0]
    state.reserve(len(ids))
    fill_caches(session, list(ids))
    for layer in (*state.layers, *([state.ngram] if state.ngram else [])):
        if hasattr(layer, "position"):
            layer.position = len(ids)
    scheduler._recall.save(state, np.array(ids, np.int32), durable=True)
    state.reset()


def first_token(scheduler: Scheduler, request: Request) -> float:
    """Seconds until the first token; the rest of the answer is not waited for."""
    started = time.perf_counter()
    scheduler.submit(request)
    while True:
        if any(isinstance(event, Tokens) for _, event in scheduler.step()):
            seconds = time.perf_counter() - started
            scheduler.cancel(request.id)
            scheduler.step()
            return seconds


def batching(model: jubako.Model, repeat: int, answer: int) -> None:
    """Tokens/s of all answers together, from the first step in which all of them decode."""
    rates: dict[int, list[float]] = {sequences: [] for sequences in SEQUENCES}
    for seed in range(repeat):  # in turn, so that a busy machine is busy for all
        for sequences in SEQUENCES:
            rates[sequences].append(decode_rate(model, sequences, answer, seed))
    for sequences in SEQUENCES:
        rate, best = median(rates[sequences]), max(rates[sequences])
        times, best_times = rate / median(rates[1]), best / max(rates[1])
        print(f"{sequences} at once: {rate:.1f} tokens/s ({times:.2f} times one), best {best:.1f} ({best_times:.2f})")


def decode_rate(model: jubako.Model, sequences: int, answer: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(model, drafts=0)
    for i in range(sequences):
        prompt = tuple(rng.integers(1, model.config.vocabulary - 300, 64).tolist())
        scheduler.submit(Request(str(i), prompt, max_tokens=model.context // 2))
    begun: set[str] = set()
    while len(begun) < sequences:
        begun |= {id for id, event in scheduler.step() if isinstance(event, Tokens)}
    tokens, started = 0, time.perf_counter()
    while tokens < answer * sequences:
        for _, event in scheduler.step():
            assert not isinstance(event, Finished)
            tokens += len(event.tokens) if isinstance(event, Tokens) else 0
    seconds = time.perf_counter() - started
    scheduler.close()
    return tokens / seconds


if __name__ == "__main__":
    main()
