"""Budgets of a CPU's memory: parts add up, experts come before a context that nobody asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from jubako.arch.network import Network
from jubako.arch.weights import load_network
from jubako.errors import MachineError, RequestError
from jubako.files import open_model
from jubako.place import budget
from jubako.place.budget import cpu_budget
from jubako.place.resident import dense_bytes, expert_layers, routed
from jubako.place.sizes import parse_size

GB = 10**9


@pytest.fixture
def network(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    """Small, in a process of 50 MB, with experts of 2 GB and dense weights of 1 GB by their own account."""
    network = load_network(open_model([tiny / "tiny-mixed.gguf"]))
    monkeypatch.setattr(budget, "PROCESS", 0)
    monkeypatch.setattr(budget, "dense_bytes", lambda _: GB)
    monkeypatch.setattr(budget, "routed", lambda _: [Counted(2 * GB // len(expert_layers(network)))])
    monkeypatch.setattr("psutil.Process", lambda: Counted(0))
    return network


class Counted:
    """Has a size."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def memory_info(self) -> Counted:
        return self

    rss = 50_000_000


@pytest.mark.parametrize("ram", [2 * GB, 3 * GB, 30 * GB])
@pytest.mark.parametrize("context", [None, 100])
def test_parts_add_up(network: Network, ram: int, context: int | None) -> None:
    plan = cpu_budget(network, ram, context, 8, 2)
    assert plan.process + plan.dense + plan.states + plan.work + plan.experts == plan.total == ram
    assert min(plan.states, plan.work, plan.experts) > 0
    assert plan.context == 100 if context else 0 < plan.context <= network.config.context_length


def test_experts_come_first(network: Network) -> None:
    """With room for all of them a chunk is short and the context what is left; without, chunks are long."""
    roomy, tight = cpu_budget(network, 30 * GB, None, 8, 1), cpu_budget(network, 2 * GB, None, 8, 1)
    assert roomy.chunk == 512 and roomy.experts >= 2 * GB
    assert roomy.context == network.config.context_length
    assert tight.chunk > 512 and tight.experts > 0.5 * GB


def test_what_does_not_fit_is_named(network: Network) -> None:
    with pytest.raises(MachineError, match=r"ram is 0\.90 GB; the process takes 0\.05 GB, dense weights 1\.00 GB"):
        cpu_budget(network, 9 * GB // 10, None, 8, 2)
    with pytest.raises(MachineError, match=r"a context of 99999999 tokens takes .* ask for a smaller context"):
        cpu_budget(network, 2 * GB, 99_999_999, 8, 2)


def test_dense_weights_are_what_is_neither_expert_nor_table(tiny: Path) -> None:
    network = load_network(open_model([tiny / "tiny-bf16.gguf", tiny / "tiny-mtp.gguf"]))
    files = open_model([tiny / "tiny-bf16.gguf", tiny / "tiny-mtp.gguf"])
    named = {name: tensor.nbytes for name, tensor in files.tensors.items() if name not in network.unused}
    experts = sum(t.nbytes for e in expert_layers(network) for t in routed(e))
    tables = named["per_layer_token_embd.weight"] + (
        0 if network.embed is network.output else named["token_embd.weight"]
    )
    assert dense_bytes(network) == sum(named.values()) - experts - tables


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24G", 24 * GB),
        ("512 MB", 512_000_000),
        ("1.5GiB", 3 << 29),
        ("4096", 4096),
        ("2k", 2000),
        (" 1 tib ", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "12 apples", "1e9", "1GG", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(RequestError, match=r"--ram is .*; a size like 24G"):
        parse_size(text, "--ram")
