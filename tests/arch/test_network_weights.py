"""From names to fields: every spelling seen in published files gives the same network, every gap is named."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint import write_checkpoint

from jubako.arch.reference import Reference, basics
from jubako.arch.tensor import Tensor
from jubako.arch.weights import Attention, load_network
from jubako.errors import FileFormatError, MissingTensorError
from jubako.files import ModelFiles, StoredTensor, open_model
from jubako.quant import block_type, decode, encode

EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


@pytest.fixture(scope="module")
def files(tiny: Path) -> ModelFiles:
    return open_model([tiny / "tiny-bf16.gguf", tiny / "tiny-mtp.gguf"])


@pytest.fixture(scope="module")
def ids(golden: Mapping[str, np.ndarray]) -> np.ndarray:
    return golden["2.ids"]


@pytest.fixture(scope="module")
def expected(files: ModelFiles, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    reference = Reference(load_network(files))
    return reference.logits(ids), reference.draft_logits(ids)


def stored(name: str, values: torch.Tensor | np.ndarray, kind: str = "F32") -> StoredTensor:
    values = np.ascontiguousarray(values, dtype=np.float32)
    return StoredTensor(name, block_type(kind), values.shape, encode(kind, values), Path("made.gguf"), 0)


def with_tensors(files: ModelFiles, *added: StoredTensor, without: str = "") -> ModelFiles:
    """The files with tensors added or replaced, and without those whose whole name matches a pattern."""
    kept = {name: t for name, t in files.tensors.items() if not (without and re.fullmatch(without, name))}
    return replace(files, tensors=kept | {t.name: t for t in added})


def assert_same(
    files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor], exact: bool = True
) -> None:
    network = load_network(files)
    assert network.unused == []
    reference = Reference(network)
    for actual, wanted in zip((reference.logits(ids), reference.draft_logits(ids)), expected, strict=True):
        assert float((actual - wanted).abs().max()) <= (0 if exact else 1e-5) * float(wanted.abs().max())


def test_fused_gate_and_up(files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    fused = []
    for layer in range(5):
        gate, up = (files.tensors[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up"))
        data = np.concatenate([gate.data, up.data], axis=1)
        fused.append(replace(gate, name=f"blk.{layer}.ffn_gate_up_exps.weight", shape=(12, 128, 256), data=data))
    changed = with_tensors(files, *fused, without=r".*ffn_(gate|up)_exps.weight")
    assert not load_network(changed).layers[0].experts.up.data.flags.owndata  # a view, not a copy
    assert_same(changed, ids, expected)


def test_norms_per_stream_and_flat_gates(
    files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor]
) -> None:
    changed = []
    for name, tensor in files.tensors.items():
        if tensor.shape == (1024,):
            changed.append(replace(tensor, shape=(4, 256), data=tensor.data.reshape(4, -1)))
        elif name.endswith("gate_inp_shexp.weight"):
            shape = (256,) if len(tensor.shape) == 2 else (1, 256)
            changed.append(replace(tensor, shape=shape, data=tensor.data.reshape(*shape[:-1], -1)))
        elif "conv1d" in name:
            shape = (tensor.shape[0], 1, 4)
            changed.append(replace(tensor, shape=shape, data=tensor.data.reshape(*shape[:-1], -1)))
    assert len(changed) > 20
    assert_same(with_tensors(files, *changed), ids, expected)


def test_padded_down_experts(files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    padded = []
    for name, tensor in files.tensors.items():
        if name.endswith(("ffn_down_exps.weight", "ffn_down_shexp.weight")):
            wide = torch.nn.functional.pad(tensor.float32(), (0, 32))
            wide[..., 64:] = 7.0  # whatever lies there meets zeros
            padded.append(stored(name, wide, "BF16"))
    changed = with_tensors(files, *padded)
    assert load_network(changed).layers[0].experts.down.shape == (12, 256, 96)
    assert_same(changed, ids, expected)


def test_other_draft_spellings(files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    nextn = "blk.4.nextn."
    joined = files.tensors[nextn + "eh_proj.weight"]
    names = ("fc_embd.weight", "fc_hidden.weight")
    halves = [Tensor.of(joined).column_range(start, start + 256) for start in (0, 256)]
    changed = [replace(half, name=nextn + name) for half, name in zip(halves, names, strict=True)]
    for part in ("norm", "down", "up"):
        tensor = files.tensors[f"{nextn}hc_head_{part}.weight"]
        changed.append(replace(tensor, name=f"{nextn}hc_{part}.weight"))
    assert_same(with_tensors(files, *changed, without=r".*(eh_proj|hc_head_.*)\.weight"), ids, expected)


def test_output_falls_back_to_the_embedding(files: ModelFiles) -> None:
    network = load_network(with_tensors(files, without="output.weight"))
    assert network.output is network.embed


def test_scaled_blocks(files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Side factors as NVFP4 files have them: half the weights, twice the factor; per expert powers of two."""
    added: list[StoredTensor] = []
    factors = 2.0 ** np.arange(-6, 6, dtype=np.float32)
    for name, tensor in files.tensors.items():
        if name.endswith(tuple(f"{part}.weight" for part in EXPERTS)):
            added.append(stored(name, tensor.float32() / torch.from_numpy(factors)[:, None, None], "BF16"))
            added.append(stored(name.replace(".weight", ".scale"), factors))
        elif name.endswith(("attn_q.weight", "ffn_up_shexp.weight", "hc_attn_down.weight", "eh_proj.weight")):
            added.append(stored(name, tensor.float32() / 2, "BF16"))
            added.append(stored(name.replace(".weight", ".scale"), np.array([2.0])))
    added.append(stored("token_embd.weight", files.tensors["token_embd.weight"].float32() * 4, "BF16"))
    added.append(stored("token_embd.scale", np.array([0.25])))
    assert_same(with_tensors(files, *added), ids, expected)
    inputs = stored("blk.0.attn_qkv.input_scale", np.array([3.0]))
    assert load_network(with_tensors(files, inputs)).unused == [inputs.name]
    with pytest.raises(FileFormatError, match=r"blk.0.ffn_up_exps.scale has 5 factors"):
        load_network(with_tensors(files, stored("blk.0.ffn_up_exps.scale", np.ones(5))))


def test_scale_of_fused_experts_goes_to_both(files: ModelFiles) -> None:
    values = torch.randn(12, 128, 256)
    fused = [stored("blk.0.ffn_gate_up_exps.weight", values), stored("blk.0.ffn_gate_up_exps.scale", np.arange(12.0))]
    experts = load_network(with_tensors(files, *fused, without=r"blk\.0\.ffn_(gate|up)_exps.weight")).layers[0].experts
    assert torch.equal(experts.gate.expert(3), values[3, :64] * 3)
    assert torch.equal(experts.up.expert(11), values[11, 64:] * 11)
    assert torch.equal(experts.up.float32(), values[:, 64:] * torch.arange(12.0)[:, None, None])


def test_files_stripped_of_indexers_run_dense(
    files: ModelFiles, golden: Mapping[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        network = load_network(with_tensors(files, without=r".*\.indexer\..*"))
    assert caplog.text.count("no indexer tensors") == 2
    mixer = network.layers[3].mixer
    assert isinstance(mixer, Attention) and mixer.indexer is None and mixer.ratio == 0
    ids = golden["1.ids"][:120]
    dense, sparse = Reference(network).logits(ids), Reference(load_network(files)).logits(ids)
    budget = 64 + 3
    assert torch.allclose(dense[:budget], sparse[:budget], atol=1e-4)
    assert not torch.allclose(dense[budget:], sparse[budget:], atol=1e-2)


def test_block_size_zero_leaves_indexers_unused(files: ModelFiles, golden: Mapping[str, np.ndarray]) -> None:
    zeros = replace(files, metadata=files.metadata | {"qwen4exp.attention.compress_ratios": [0] * 5})
    network = load_network(zeros)
    assert network.unused == sorted(name for name in files.tensors if ".indexer." in name)
    stripped = load_network(with_tensors(files, without=r".*\.indexer\..*"))
    ids = golden["1.ids"][:120]
    assert torch.equal(Reference(network).logits(ids), Reference(stripped).logits(ids))
    restored = load_network(zeros, compress_ratio=4)
    assert restored.unused == []
    assert torch.equal(Reference(restored).logits(ids), Reference(load_network(files)).logits(ids))


class TestDraftLayer:
    def test_own_embedding_and_output(self, files: ModelFiles, ids: np.ndarray) -> None:
        own = [
            replace(files.tensors["token_embd.weight"], name="blk.4.nextn.embed_tokens.weight"),
            stored("blk.4.nextn.shared_head_head.weight", files.tensors["output.weight"].float32() * 2, "BF16"),
        ]
        draft = Reference(load_network(with_tensors(files, *own))).draft_logits(ids)
        assert torch.equal(draft, Reference(load_network(files)).draft_logits(ids) * 2)

    def test_spare_head_is_used_for_drafts_only(
        self, files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        head = stored("output_draft.weight", files.tensors["output.weight"].float32(), "Q4_0")
        network = load_network(with_tensors(files, head))
        assert network.unused == [] and network.draft is not None and network.draft.output is not None
        assert network.draft.output.type.name == "Q4_0" and network.output.type.name == "BF16"
        assert torch.equal(Reference(network).logits(ids), expected[0])
        assert not torch.equal(Reference(network).draft_logits(ids), expected[1])

    def test_head_of_fewer_rows_stays_unused(self, files: ModelFiles, caplog: pytest.LogCaptureFixture) -> None:
        head = stored("blk.4.nextn.shared_head_head.weight", np.zeros((100, 256)))
        network = load_network(with_tensors(files, head))
        assert network.unused == [head.name] and network.draft is not None and network.draft.output is None
        assert head.name in caplog.text

    def test_announced_but_absent(self, files: ModelFiles, caplog: pytest.LogCaptureFixture) -> None:
        network = load_network(with_tensors(files, without=r"blk\.4\..*"))
        assert network.draft is None and "draft layer" in caplog.text

    def test_none(self, tiny: Path) -> None:
        network = load_network(open_model(tiny / "tiny-bf16.gguf"))
        assert network.draft is None and network.unused == []


def test_every_missing_tensor_is_named(files: ModelFiles) -> None:
    optional = {"output.weight"}
    for name in sorted(files.tensors.keys() - optional):
        with pytest.raises(MissingTensorError, match=re.escape(name)):
            load_network(with_tensors(files, without=re.escape(name)))


def test_all_missing_tensors_are_named_together(files: ModelFiles) -> None:
    with pytest.raises(MissingTensorError) as error:
        load_network(with_tensors(files, without=r"(blk\.1\..*|output_hc_up.weight)"))
    for name in ("blk.1.attn_qkv.weight", "blk.1.ssm_a", "blk.1.ple_key.weight", "output_hc_up.weight"):
        assert name in str(error.value)
    assert "tiny-bf16.gguf" in str(error.value)


def test_every_wrong_shape_is_named(files: ModelFiles) -> None:
    """One row, one element or one expert too many; a matrix lying on its side."""
    for name, tensor in files.tensors.items():
        longer = np.concatenate([tensor.data, tensor.data[:4]])
        bad = [
            (longer, (tensor.shape[0] + (4 if len(tensor.shape) > 1 else 4 // tensor.type.bytes), *tensor.shape[1:]))
        ]
        if len(tensor.shape) == 2 and 1 not in tensor.shape and tensor.shape[0] != tensor.shape[1]:
            bad.append((tensor.data.reshape(tensor.shape[1], -1), tensor.shape[::-1]))
        for data, shape in bad:
            if name in ("token_embd.weight", "per_layer_token_embd.weight") and shape[1:] == tensor.shape[1:]:
                continue  # the vocabulary is what the embedding says; more table rows are padding
            with pytest.raises(FileFormatError, match=r"(has shape|rows|eos_token_id)"):
                load_network(with_tensors(files, replace(tensor, shape=shape, data=data)))


def test_table_smaller_than_its_heads(files: ModelFiles) -> None:
    table = Tensor.of(files.tensors["per_layer_token_embd.weight"]).row_range(0, 4263)
    with pytest.raises(FileFormatError, match=r"per_layer_token_embd.weight has 4263 rows.*4264"):
        load_network(with_tensors(files, table))


def test_unknown_tensors_are_reported(files: ModelFiles) -> None:
    unknown = [stored(name, np.ones(3)) for name in ("rope_freqs.weight", "blk.0.mystery", "blk.9.attn_q.weight")]
    assert load_network(with_tensors(files, *unknown)).unused == sorted(t.name for t in unknown)


def test_mixed_block_types(tiny: Path, golden: Mapping[str, np.ndarray]) -> None:
    network = load_network(open_model(tiny / "tiny-mixed.gguf"))
    assert network.unused == []
    kinds = {network.layers[0].experts.gate.type.name, network.layers[0].experts.down.type.name}
    assert "BF16" not in kinds
    logits, saved = Reference(network).logits(golden["2.ids"]), torch.from_numpy(golden["2.logits"])
    assert torch.cosine_similarity(logits, saved).min() > 0.5


class TestSafetensors:
    @pytest.mark.parametrize(("root", "fused", "shards"), [("model.", False, 4), ("model.language_model.", True, 1)])
    def test_equals_the_gguf(
        self, files: ModelFiles, ids: np.ndarray, expected: tuple[torch.Tensor, torch.Tensor],
        tmp_path: Path, root: str, fused: bool, shards: int,
    ) -> None:  # fmt: skip
        assert_same(open_model(write_checkpoint(files, tmp_path, root, fused, shards)), ids, expected, exact=False)

    def test_bytes_are_those_of_the_gguf(self, files: ModelFiles, tiny_checkpoint: Path) -> None:
        ours, theirs = load_network(open_model(tiny_checkpoint)), load_network(files)
        for layer in range(4):
            for part in ("gate", "up", "down", "router", "shared_router"):
                a, b = (getattr(network.layers[layer].experts, part) for network in (ours, theirs))
                assert torch.equal(a.float32(), b.float32()), part
        for part in ("qkv", "gate", "conv", "out", "alpha", "beta", "dt_bias", "norm"):
            a, b = (getattr(network.layers[0].mixer, part) for network in (ours, theirs))
            assert torch.equal(a.float32(), b.float32()), part

    def test_missing_tensors_are_named_as_in_the_checkpoint(self, tiny_checkpoint: Path) -> None:
        files = open_model(tiny_checkpoint)
        trunk = [name for name in files.tensors if ".layers." not in name or re.search(r"layers\.[013]\.", name)]
        needed = [name for name in trunk if name != "lm_head.weight" and "ple_embedding" not in name]
        needed = [
            name for name in needed if ".experts." not in name or name.startswith("model.layers.3.mlp.experts.7.")
        ]
        for name in [*needed, "model.layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight"]:
            with pytest.raises(MissingTensorError, match=re.escape(name)):
                load_network(with_tensors(files, without=re.escape(name)))

    def test_unknown_tensors_are_reported(self, tiny_checkpoint: Path) -> None:
        vision = stored("model.visual.patch_embed.proj.weight", np.ones((2, 3)))
        assert load_network(with_tensors(open_model(tiny_checkpoint), vision)).unused == [vision.name]

    def test_parts_that_do_not_fit_together(self, tiny_checkpoint: Path) -> None:
        files = open_model(tiny_checkpoint)
        name = "model.layers.0.mlp.experts.3.up_proj.weight"
        with pytest.raises(FileFormatError, match=re.escape(name)):
            load_network(with_tensors(files, stored(name, np.ones((64, 256)))))
        name = "model.layers.0.linear_attn.in_proj_z.weight"
        with pytest.raises(FileFormatError, match=re.escape(name)):
            load_network(with_tensors(files, stored(name, np.ones((191, 256)))))


class TestDecoding:
    def test_memory_of_decoded_weights_is_bounded(self) -> None:
        cache = basics.DecodedWeights(limit=10_000)
        tensors = [stored(str(i), np.full((4, 256), i)) for i in range(8)]
        for tensor in tensors * 2:
            assert float(cache.get(tensor)[0, 0]) == float(tensor.name)
            assert cache.held <= 10_000 and cache.held == sum(values.nbytes for _, values in cache.entries.values())

    def test_large_matrices_go_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        weight, x = Tensor.of(stored("w", torch.randn(37, 64), "Q8_0")), torch.randn(3, 64)
        whole = basics.linear(weight, x)
        monkeypatch.setattr(basics, "PIECE", 64 * 5)
        assert torch.allclose(basics.linear(weight, x), whole, atol=1e-5)

    def test_rows_and_ranges(self) -> None:
        values = torch.randn(9, 128)
        tensor = Tensor.of(stored("w", values, "Q8_0"))
        whole = torch.from_numpy(decode("Q8_0", tensor.data))
        assert torch.equal(tensor.rows(np.array([7, 0, 7])), whole[[7, 0, 7]])
        assert torch.equal(tensor.column_range(32, 96).float32(), whole[:, 32:96])
        assert torch.equal(tensor.row_range(2, 5).float32(), whole[2:5])
        with pytest.raises(AssertionError, match="split a block"):
            tensor.column_range(16, 64)


def test_halves_of_the_joined_projection_may_not_share_a_block(files: ModelFiles) -> None:
    joined = stored("blk.4.nextn.eh_proj.weight", np.zeros((256, 512)), "Q8_0")
    odd = replace(joined, type=replace(block_type("Q8_0"), weights=512, bytes=544))
    with pytest.raises(FileFormatError, match="straddle"):
        load_network(with_tensors(files, odd))
