"""The CPU engine against the official network's saved results, and against the reference on quantised files."""

from pathlib import Path

import numpy as np
import pytest
import torch

import jubako

TINY = Path(__file__).parents[1] / "data" / "tiny"
GOLDEN = np.load(TINY / "reference.npz")
PROMPTS = range(3)


def kl_divergence(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(reference ‖ logits) in nats for each position."""
    p, q = torch.log_softmax(reference.double(), -1), torch.log_softmax(logits.double(), -1)
    return (p.exp() * (p - q)).sum(-1)


@pytest.fixture(scope="module")
def exact() -> jubako.Model:
    """Unquantised weights, 16-bit keys and values."""
    return jubako.load(TINY / "tiny-bf16.gguf", device="cpu", kv_bits=16)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_the_official_ones(exact: jubako.Model, prompt: int) -> None:
    want = GOLDEN[f"{prompt}.greedy"].tolist()
    got = list(exact.generate(GOLDEN[f"{prompt}.ids"], max_tokens=len(want), temperature=0.0))
    assert got == want


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_and_first_choices_are_the_official_ones(exact: jubako.Model, prompt: int) -> None:
    logits = exact.logits(GOLDEN[f"{prompt}.ids"]).numpy()
    want = GOLDEN[f"{prompt}.logits"]
    assert np.array_equal(logits.argmax(-1), GOLDEN[f"{prompt}.argmax"])
    assert np.abs(logits[-len(want) :] - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("kv_bits", [8, 16])
@pytest.mark.parametrize("name", ["tiny-mixed.gguf", "tiny-q8_0.gguf"])
def test_quantised_files_stay_close_to_the_reference(name: str, kv_bits: int, tiny_files: dict[str, Path]) -> None:
    path = tiny_files[name]
    model = jubako.load(path, device="cpu", kv_bits=kv_bits)
    reference = jubako.load(path, device="reference")
    for prompt in PROMPTS:
        ids = GOLDEN[f"{prompt}.ids"]
        got, want = model.logits(ids), reference.logits(ids)
        assert kl_divergence(got, want).mean() <= 1e-4
        top = want.topk(2).values
        sure = top[:, 0] - top[:, 1] > 0.05
        assert sure.any()
        assert torch.equal(got.argmax(-1)[sure], want.argmax(-1)[sure])


def test_bits_do_not_depend_on_chunks_threads_or_width(tiny_files: dict[str, Path]) -> None:
    """One pass, token by token, other chunk borders, one thread: the same logits to the bit."""
    ids = GOLDEN["1.ids"].tolist()[:150]
    model = jubako.load(tiny_files["tiny-mixed.gguf"], device="cpu")
    whole = model.session(context=200).logits(ids)
    session = model.session(context=200)
    single = np.stack([session.decode(id) for id in ids])
    session = model.session(context=200)
    cut = np.concatenate([session.logits(part) for part in (ids[:1], ids[1:38], ids[38:101], ids[101:])])
    alone = jubako.load(tiny_files["tiny-mixed.gguf"], device="cpu", threads=1).session(context=200).logits(ids)
    assert np.array_equal(whole, single)
    assert np.array_equal(whole, cut)
    assert np.array_equal(whole, alone)
