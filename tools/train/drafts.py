"""How many drafts of depth 3 are accepted, greedily, on held-out prose, code and dialogue: by the float32 reference.

    python -m tools.train.drafts MODEL.gguf .ship/corpus

The model continues a prompt; at every round it drafts three tokens and keeps those that it would have written itself.
Reported: kept drafts over drafts made, per depth (of all rounds) and together.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from random import Random

import torch

import jubako
from jubako.arch.reference import AttentionCache, Reference

from .dialogues import TASKS
from .evaluate import SEED, prompt_of
from .prepare import filler
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="+", help="the trunk, then the draft layer's file")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--length", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = jubako.load(options.model, device="reference")
    reference = Reference(model.network)
    assert model.tokenizer is not None
    pool = [text for kind in ("prose", "code", "docs") for text in texts(options.corpus, f"{kind}.held")]
    for kind in ("prose", "code", "docs", "dialogue"):
        r, total = Random(SEED), [0] * (DEPTH + 1)
        for _ in range(options.prompts):
            if kind == "dialogue":
                task = r.choice(["name", "json", "call", "talk"])
                prompt = prompt_of(TASKS[task][0](r, partial(filler, pool)), r.random() < 0.5)
                ids, length = model.tokenizer.encode(prompt, special=True), 24
            else:
                text = r.choice(texts(options.corpus, f"{kind}.held"))
                start = r.randrange(max(1, len(text) - 1500))
                ids, length = model.tokenizer.encode(text[start : start + 1000]), options.length
            total = [a + b for a, b in zip(total, accepted(reference, ids, length), strict=True)]
        rounds = total[DEPTH]
        shares = " ".join(f"{count / rounds:.3f}" for count in total[:DEPTH])
        print(
            f"{kind}: {sum(total[:DEPTH]) / (DEPTH * rounds):.3f} of drafts kept; by depth {shares}; {rounds} rounds",
            flush=True,
        )


if __name__ == "__main__":
    main()
