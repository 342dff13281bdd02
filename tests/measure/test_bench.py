"""The benchmark's sums, on the tiny model with the reference as its engine."""

import json
from pathlib import Path

import numpy as np
import pytest
from measure.networks import narrow

from jubako.arch.weights import load_network
from jubako.cli.bench import bench as command
from jubako.cli.bench import parse_depths
from jubako.engine.model import load
from jubako.errors import RequestError
from jubako.files import open_model
from jubako.measure import bench as bench_module
from jubako.measure.bench import bench
from jubako.measure.fill import fill_caches
from jubako.measure.synth import synth
from jubako.measure.traffic import expert_bytes, traffic


def test_bytes_a_token_reads(tmp_path: Path) -> None:
    config = narrow(draft=True)
    plan = synth(tmp_path / "a.gguf", config)
    network = load_network(open_model([tmp_path / "a.gguf"]))
    cost = traffic(network)
    trunk = [tensor for tensor in plan if not tensor.name.startswith("blk.4.")]
    experts = sum(tensor.nbytes for tensor in trunk if "_exps" in tensor.name)
    tables = {"token_embd.weight": config.vocabulary, "per_layer_token_embd.weight": 2048 + 512}
    dense = sum(tensor.nbytes for tensor in trunk if "_exps" not in tensor.name and tensor.name not in tables)
    assert cost.dense == dense
    assert cost.experts == experts * config.experts_used // config.experts
    assert expert_bytes(network.layers[0].experts) * 4 * config.experts == experts
    assert cost.rows == 512 // 32 * 34 + 16 * 34  # an embedding row, 16 rows of 32
    state = 6 * 32 * 32 + 3 * (2 * 2 + 6) * 32
    assert cost.state == 2 * 3 * 4 * state and cost.cache == 0
    assert cost.total == cost.weights + cost.state


def test_cache_bytes_stop_growing_at_the_budget(tmp_path: Path) -> None:
    synth(tmp_path / "a.gguf", narrow())
    network = load_network(open_model([tmp_path / "a.gguf"]))
    record = 2 * 2 * 64 * 36 // 32
    assert traffic(network, 10).cache == 10 * record
    assert traffic(network, 4000).cache == (64 + 3) * record + 1000 * 32 * 4
    assert traffic(network, 10, kv_bits=16).cache == 10 * (2 * 2 * 64 * 2 + 16)


@pytest.fixture
def steady_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "read_bandwidth", lambda: 1e9)


def test_report(tiny: Path, steady_bandwidth: None, tmp_path: Path) -> None:
    report = bench([tiny / "tiny-mixed.gguf"], [0, 20], prompt=6, tokens=3, repeat=3, device="reference")
    assert [rate.depth for rate in report.rates] == [0, 20]
    for rate in report.rates:
        assert len(rate.decode_runs) == len(rate.prefill_runs) == 3
        assert rate.decode == sorted(rate.decode_runs)[1] and rate.prefill == sorted(rate.prefill_runs)[1]
        assert rate.bandwidth_share == pytest.approx(rate.decode * rate.bytes_per_token / 1e9)
        assert rate.filled == "read"
    assert report.rates[1].bytes_per_token > report.rates[0].bytes_per_token
    assert report.read_bandwidth == 1e9 and report.isa == "torch"
    assert json.loads(json.dumps(report.as_json()))["rates"][0]["depth"] == 0


def test_command_writes_table_and_json(
    tiny: Path,
    steady_bandwidth: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out = tmp_path / "bench.json"
    limits = (None, None, None)
    command([tiny / "tiny-mixed.gguf"], "0,8", 4, 2, 1, "reference", None, 8, *limits, "random", None, None, 0.7, out)
    shown = capsys.readouterr().out
    assert "decode tok/s" in shown and "1.0 GB/s" in shown
    assert [rate["depth"] for rate in json.loads(out.read_text())["rates"]] == [0, 8]


def test_depths() -> None:
    assert parse_depths("0, 4096,64k") == [0, 4096, 65536]
    with pytest.raises(RequestError, match="-1"):
        parse_depths("-1")


def test_impossible_requests(tiny: Path) -> None:
    with pytest.raises(RequestError, match="8192"):
        bench([tiny / "tiny-mixed.gguf"], [8192], device="reference")
    with pytest.raises(RequestError, match="fill"):
        bench([tiny / "tiny-mixed.gguf"], fill="zero")
    with pytest.raises(RequestError, match="at least 1"):
        bench([tiny / "tiny-mixed.gguf"], tokens=0)


def test_random_caches_count_as_read(tmp_path: Path) -> None:
    pytest.importorskip("jubako._cpu")
    synth(tmp_path / "a.gguf", narrow())
    model = load(tmp_path / "a.gguf", "cpu", threads=1)
    session = model.session(400)
    session.prefill([1, 2, 3])
    assert fill_caches(session, [5] * 300)
    assert session.length == 303
    logits = session.decode(4)
    assert np.isfinite(logits).all() and 1.0 < logits.std() < 5.0
    attention = session.state.layers[3]
    assert attention.length == 304
    assert np.abs(attention.key(200)).mean() == pytest.approx(0.8, abs=0.2)
    with pytest.raises(RequestError):
        fill_caches(session, [1] * 100)


def test_the_reference_reads_instead(tiny: Path) -> None:
    session = load(tiny / "tiny-mixed.gguf", "reference").session(50)
    assert not fill_caches(session, [1, 2])
    assert session.length == 0
