"""How many drafts of depth 3 are accepted, greedily, on held-out prose, code, documents and dialogue.

    python -m tools.train.drafts TRUNK.gguf DRAFTS.gguf .ship/corpus [--prompts 150] [--reference]

The model continues a prompt; at every round the draft layer guesses three tokens, and those are kept that the model
would have written itself. Reported: kept drafts over drafts made, per depth (of all rounds) and together, and the
standard error over prompts. Through the CPU engine, or much slower by the float32 reference.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import torch

import jubako
from jubako.arch.reference import AttentionCache, Reference
from jubako.engine.model import Model

from .dialogues import TASKS
from .evaluate import SEED, prompt_of
from .prepare import KINDS, filler
from .vocabulary import texts

DEPTH = 3


def accepted(reference: Reference, ids: list[int], length: int) -> list[int]:
    """Rounds in which depth 1, 2, 3 was kept while `length` tokens were written, then the number of rounds.

    The greedy text is written first; drafting is then replayed along it, the draft layer's own cache holding the
    trunk's streams for all tokens before the round.
    """
    state = reference.new_state()
    streams = reference.residual(ids, state)
    line, wide = list(ids), [streams]
    for _ in range(length + DEPTH):
        line.append(int(reference.head(wide[-1][-1:])[0].argmax()))
        wide.append(reference.residual(line[-1:], state))
    streams = torch.cat(wide)
    kept, at = [0] * DEPTH + [0], len(ids) - 1
    drafts = reference.new_state()
    reference.draft(line[1 : at + 1], streams[:at], drafts)
    while at < len(ids) - 1 + length:
        # the token after `at` is known; draft the ones after it
        kept[DEPTH] += 1
        cache = drafts.draft
        assert isinstance(cache, AttentionCache)
        token, current, good = line[at + 1], streams[at : at + 1], 0
        saved = [cache.keys, cache.values, cache.pooled, cache.unpooled], drafts.draft_position
        for depth in range(DEPTH):
            logits, current = reference.draft([token], current, drafts)
            token = int(logits[0].argmax())
            if token != line[at + 2 + depth]:
                break
            good += 1
            kept[depth] += 1
        (cache.keys, cache.values, cache.pooled, cache.unpooled), drafts.draft_position = saved
        step = good + 1
        reference.draft(line[at + 1 : at + 1 + step], streams[at : at + step], drafts)
        at += step
    return kept


def by_reference(reference: Reference, ids: list[int], length: int) -> list[int]:
    """Drafts kept at each depth, then drafts made at each depth."""
    *kept, rounds = accepted(reference, ids, length)
    return [*kept, *[rounds] * DEPTH]


def by_engine(model: Model, ids: list[int], length: int) -> list[int]:
    """The same through the engine; its last round may be shorter."""
    answer = model.generate(ids, max_tokens=length + DEPTH, stop_ids=(), drafts=DEPTH, fixed_drafts=True)
    for _ in answer:
        pass
    kept, made = ([*counts, *[0] * DEPTH][:DEPTH] for counts in (answer.stats.accepted, answer.stats.drafted))
    return [*kept, *made]


def prompts(model: Model, corpus: Path, kind: str, count: int, length: int) -> Iterator[tuple[list[int], int]]:
    """Beginnings of one kind, and how many tokens to write after each."""
    assert model.tokenizer is not None
    r = Random(SEED)
    held = {name: texts(corpus, f"{name}.held") for name in KINDS}
    pool = [text for documents in held.values() for text in documents]
    for _ in range(count):
        if kind == "dialogue":
            task = r.choice(["name", "json", "call", "talk"])
            prompt = prompt_of(TASKS[task][0](r, partial(filler, pool)), r.random() < 0.5)
            yield model.tokenizer.encode(prompt, special=True), 24
        else:
            text = r.choice(held[kind])
            start = r.randrange(max(1, len(text) - 1500))
            yield model.tokenizer.encode(text[start : start + 1000]), length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="+", help="the trunk, then the draft layer's file")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--prompts", type=int, default=150)
    parser.add_argument("--length", type=int, default=96)
    parser.add_argument("--reference", action="store_true", help="by the float32 reference")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.reference:
        model = jubako.load(options.model, device="reference")
        count: Callable[[list[int], int], list[int]] = partial(by_reference, Reference(model.network))
    else:
        model = jubako.load(options.model, device="cpu", threads=1, kv_bits=16)
        count = partial(by_engine, model)
    for kind in (*KINDS, "dialogue"):
        beginnings = prompts(model, options.corpus, kind, options.prompts, options.length)
        counts = np.array([count(*beginning) for beginning in beginnings])
        kept, made = counts[:, :DEPTH], counts[:, DEPTH:]
        share = kept.sum() / made.sum()
        error = np.sqrt(((kept - share * made).sum(1) ** 2).sum()) / made.sum()  # of a ratio of sums over prompts
        depths = " ".join(f"{value:.3f}" for value in kept.sum(0) / made.sum(0))
        print(f"{kind}: {share:.3f} ± {error:.3f} of {made.sum()} drafts kept; by depth {depths}", flush=True)


if __name__ == "__main__":
    main()
