"""What the monitor is told about the tiers of memory."""

from __future__ import annotations

from pathlib import Path

import psutil

from jubako.arch.weights import load_network
from jubako.engine.boxes import Held, boxes, weight_bytes
from jubako.files import open_model


def test_every_used_byte_of_the_files_is_counted_once(tiny: Path) -> None:
    files = open_model([tiny / "tiny-bf16.gguf", tiny / "tiny-mtp.gguf"])
    network = load_network(files)
    sizes = weight_bytes(network)
    named = {name: tensor.nbytes for name, tensor in files.tensors.items() if name not in network.unused}
    experts = sum(size for name, size in named.items() if "_exps." in name)
    assert sizes["experts"] == experts > 0
    assert sum(sizes.values()) == sum(named.values())
    assert sizes["n-gram table"] > 0


def test_a_machine_without_a_card_keeps_weights_in_main_memory(tmp_path: Path) -> None:
    weights = {"dense weights": 5, "experts": 7, "n-gram table": 11}
    ram, ssd = boxes(weights, Held(pages=2, states=3, disk=13), tmp_path / "model.gguf")
    assert ram["bytes"] == psutil.virtual_memory().total
    assert [(part["name"], part["bytes"]) for part in ram["parts"]] == [
        ("dense weights", 5),
        ("experts", 7),
        ("keys and values", 2),
        ("saved states", 3),
    ]
    assert [part["bytes"] for part in ssd["parts"]] == [11, 13]


def test_a_card_holds_weights_and_pages(tmp_path: Path) -> None:
    weights = {"dense weights": 5, "experts": 0, "n-gram table": 0}
    tiers = boxes(weights, Held(pages=2, states=3), tmp_path / "model.gguf", video=99)
    assert [tier["name"] for tier in tiers] == ["VRAM", "RAM", "SSD"]
    assert tiers[0]["bytes"] == 99
    assert [part["name"] for part in tiers[0]["parts"]] == ["dense weights", "keys and values"]
    assert tiers[1]["parts"] == [{"name": "saved states", "bytes": 3}]
    assert tiers[2]["parts"] == []


def test_boxes_say_where_experts_lie(tmp_path: Path) -> None:
    sizes = {"dense weights": 50, "experts": 100, "n-gram table": 7}
    held = Held(pages=30, states=3, far=20)

    def parts(video: int, experts: dict[str, int] | None) -> dict[str, dict[str, int]]:
        tiers = boxes(sizes, held, tmp_path, video, experts)
        return {tier["name"]: {part["name"]: part["bytes"] for part in tier["parts"]} for tier in tiers}

    card = parts(1000, {"VRAM": 12, "RAM": 40, "SSD": 60})
    assert card["VRAM"] == {"dense weights": 50, "experts": 12, "keys and values": 10}
    assert card["RAM"] == {"experts": 40, "keys and values": 20, "saved states": 3}
    assert card["SSD"] == {"n-gram table": 7, "experts": 60}
    assert parts(1000, None)["VRAM"]["experts"] == 100 and "experts" not in parts(1000, None)["RAM"]
    assert parts(0, {"RAM": 40, "SSD": 60})["RAM"]["experts"] == 40
