"""Synthetic files: they load, run sanely, repeat exactly, and route as they promise."""

from pathlib import Path

import numpy as np
import pytest
import torch
from measure.networks import narrow

from jubako.arch import reference
from jubako.arch.weights import load_network
from jubako.errors import RequestError
from jubako.files import open_model
from jubako.measure.geometry import metadata, network_config, table_rows
from jubako.measure.random_blocks import TYPES
from jubako.measure.synth import fill, synth
from jubako.measure.tensor_plan import BlockTypes, plan_tensors
from jubako.quant import decode


def test_published_geometry() -> None:
    config = network_config(draft=True)
    assert config.ngram is not None
    assert config.ngram.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert config.ngram.head_sizes[:3] == (20000003, 20000023, 20000033) and config.ngram.head_offsets[-1] == 300001275
    assert config.ngram.eos == 248044 and config.ngram.image_token == 248056
    assert table_rows(config) == 320001536
    plan = plan_tensors(config, BlockTypes.parse("ngram=IQ4_NL"))
    assert sum(not tensor.name.startswith("blk.48.") for tensor in plan) == 1224
    assert sum(tensor.name.startswith("blk.48.") for tensor in plan) == 32
    sizes = {tensor.name: tensor.nbytes for tensor in plan}
    assert sizes["per_layer_token_embd.weight"] == 28_800_138_240
    assert sizes["blk.0.ffn_gate_exps.weight"] == 321_126_400
    assert len({tensor.name for tensor in plan}) == len(plan)
    assert metadata(config)["qwen4exp.block_count"] == 49


@pytest.mark.parametrize("draft", [False, True])
def test_file_loads_as_planned_and_runs_sanely(tmp_path: Path, draft: bool) -> None:
    config = narrow(draft=draft)
    plan = synth(tmp_path / "a.gguf", config)
    network = load_network(open_model([tmp_path / "a.gguf"]))
    assert network.config == config and network.unused == []
    assert (network.draft is not None) == draft
    ids = np.random.default_rng(0).integers(0, config.vocabulary, 96)
    run = reference.Reference(network)
    logits = run.logits(ids)
    assert torch.isfinite(logits).all()
    assert 1.0 < logits.std() < 5.0
    assert len(logits.argmax(1).unique()) > 48
    if draft:
        assert 1.0 < run.draft_logits(ids).std() < 5.0
    named = {tensor.name: tensor for tensor in plan}
    name = "blk.1.ffn_down_exps.weight"
    stored = open_model([tmp_path / "a.gguf"]).tensors[name]
    assert (stored.data == fill(named[name])).all()


@pytest.mark.parametrize("kind", [name for name in TYPES if name != "PQ2_0"])
def test_every_type_gives_a_running_network(tmp_path: Path, kind: str) -> None:
    config = narrow(layers=2)
    synth(tmp_path / "a.gguf", config, BlockTypes.parse(f"gate_up={kind},dense={'Q8_0' if kind == 'NVFP4' else kind}"))
    network = load_network(open_model([tmp_path / "a.gguf"]))
    assert network.layers[0].experts.gate.type.name == kind
    logits = reference.Reference(network).logits([5, 6, 7, 8])
    assert torch.isfinite(logits).all() and 1.0 < logits.std() < 5.0


def test_same_bytes_from_any_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jubako.measure.synth.CHUNK", 1 << 14)
    done: list[int] = []
    plan = synth(tmp_path / "a.gguf", narrow(), threads=1)
    synth(tmp_path / "b.gguf", narrow(), threads=3, progress=done.append)
    synth(tmp_path / "c.gguf", narrow(), seed=2)
    first, second, third = (tmp_path.joinpath(name).read_bytes() for name in ("a.gguf", "b.gguf", "c.gguf"))
    assert first == second and first != third and len(first) == len(third)
    assert sum(done) == sum(tensor.nbytes for tensor in plan)


def test_what_is_no_file_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"{tmp_path} is there and is no file"):
        synth(tmp_path, narrow())
    with pytest.raises(RequestError, match="seed is -1"):
        synth(tmp_path / "a.gguf", narrow(), seed=-1)


def _shares(routing: str) -> list[float]:
    """Shares of uses that go to the 32, 64, 128, 256 most used of 512 experts, with random inputs."""
    config = narrow(experts=512)
    tensor = next(tensor for tensor in plan_tensors(config, BlockTypes()) if tensor.draw == "router")
    router = decode("F32", fill(tensor, routing))  # type: ignore[arg-type]
    inputs = np.random.default_rng(0).standard_normal((6000, config.hidden), np.float32)
    chosen = np.argpartition(-(inputs @ router.T), 10, axis=1)[:, :10]
    uses = np.sort(np.bincount(chosen.ravel(), minlength=512))[::-1]
    return [float(uses[:top].sum() / uses.sum()) for top in (32, 64, 128, 256)]


def test_skewed_routing_concentrates_as_promised() -> None:
    assert _shares("skewed") == pytest.approx([0.38, 0.54, 0.73, 0.89], abs=0.02)


def test_flat_routing_is_flat() -> None:
    assert _shares("flat") == pytest.approx([0.09, 0.16, 0.31, 0.57], abs=0.02)


def test_layers_favour_different_experts() -> None:
    plan = [tensor for tensor in plan_tensors(narrow(experts=64), BlockTypes()) if tensor.draw == "router"]
    norms = [np.linalg.norm(decode("F32", fill(tensor, "skewed")), axis=1) for tensor in plan]
    assert len({int(norm.argmax()) for norm in norms}) > 1
    assert norms[0].max() / norms[0].min() == pytest.approx(64**0.24, rel=0.2)


def test_types_by_group_and_pattern() -> None:
    types = BlockTypes.parse("gate_up=q4_k,dense=Q6_K,blk.2.*_exps.weight=Q8_0")
    kinds = {tensor.name: (tensor.type.name, tensor.replaced) for tensor in plan_tensors(narrow(), types)}
    assert kinds["blk.0.ffn_gate_exps.weight"] == ("Q4_K", "")
    assert kinds["blk.2.ffn_gate_exps.weight"] == kinds["blk.2.ffn_down_exps.weight"] == ("Q8_0", "")
    assert kinds["blk.0.attn_qkv.weight"] == ("Q6_K", "")
    assert kinds["blk.0.hc_attn_up.weight"] == ("Q8_0", "Q6_K")
    assert kinds["blk.0.ffn_gate_inp.weight"] == kinds["blk.0.ssm_conv1d.weight"] == ("F32", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [("gate_up=Q9_X", "can't be made"), ("gates=Q8_0", "unknown"), ("ngram=NVFP4", "no whole number of NVFP4 blocks")],
)
def test_types_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plan_tensors(narrow(), BlockTypes.parse(text))


def test_sizes_out_of_range() -> None:
    with pytest.raises(RequestError, match="layers is 1"):
        network_config(layers=1)
    with pytest.raises(RequestError, match="experts is 4"):
        network_config(experts=4)


def test_routing_inside_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations are diverse enough for the shares to hold there too."""
    synth(tmp_path / "a.gguf", narrow(layers=2, experts=512, experts_used=10), routing="skewed")
    network = load_network(open_model([tmp_path / "a.gguf"]))
    chosen: list[torch.Tensor] = []
    route = reference.route

    def recorded(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, weights = route(logits, k)
        chosen.append(ids)
        return ids, weights

    monkeypatch.setattr("jubako.arch.reference.model.route", recorded)
    reference.Reference(network).logits(np.random.default_rng(0).integers(0, 512, 300))
    for ids in chosen:
        uses = np.sort(np.bincount(ids.numpy().ravel(), minlength=512))[::-1]
        shares = [float(uses[:top].sum() / uses.sum()) for top in (32, 64, 128, 256)]
        assert shares == pytest.approx([0.40, 0.57, 0.76, 0.92], abs=0.05)
