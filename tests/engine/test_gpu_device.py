"""What a user is told when the GPU can't be used, and how much context is given room."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import jubako
from jubako.arch.weights import Network, load_network
from jubako.engine import model
from jubako.engine.gpu import device as gpu_device
from jubako.errors import MachineError
from jubako.files import open_model
from jubako.measure.like import like
from jubako.place.known import find


@pytest.fixture
def network(tiny: Path) -> Network:
    return load_network(open_model([tiny / "tiny-bf16.gguf"]))


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A torch that was built for CUDA and finds one card; each test breaks something."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card")
    return monkeypatch


def test_a_torch_without_gpus(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(MachineError, match="built for CPUs only; use device cpu, or install one"):
        jubako.load(tiny / "tiny-bf16.gguf", device="cuda")


def test_a_driver_that_is_too_old(with_cuda: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update your GPU")

    with_cuda.setattr(torch.cuda, "init", init)
    with pytest.raises(MachineError) as raised:
        gpu_device.open_gpu()
    assert str(raised.value) == (
        "no GPU can be used: The NVIDIA driver on your system is too old (found version 11040); "
        "use device cpu, or mend the driver"
    )


@pytest.mark.parametrize(
    "said", ["Triton Error [CUDA]: device kernel image is invalid", "CUDA error: out of memory\nmore"]
)
def test_a_driver_that_refuses_kernels_or_pinned_memory(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    """It opens the card, and fails at the first weights. Whoever did not insist on the card gets the CPU."""

    def load(*arguments: object, **options: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(gpu_device, "open_gpus", load)
    monkeypatch.setattr(model, "may_have_gpu", lambda: True)
    monkeypatch.setattr(model, "SMALL", 0)
    reason, advice = said.splitlines()[0], "use device cpu, or see that its driver is new and memory is free"
    wanted = f"the GPU can't be used: {reason}; {advice}"
    with pytest.raises(MachineError) as raised:
        jubako.load(tiny / "tiny-bf16.gguf", device="cuda")
    assert str(raised.value) == wanted
    assert type(jubako.load(tiny / "tiny-bf16.gguf", context=64).executor).__name__ == "CpuExecutor"
    assert wanted in caplog.text
    said = "index 5 is out of range"
    with pytest.raises(RuntimeError, match="out of range"):
        jubako.load(tiny / "tiny-bf16.gguf", device="cuda")


def test_no_card_and_an_old_card(with_cuda: pytest.MonkeyPatch) -> None:
    with_cuda.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    with pytest.raises(MachineError, match=r"Card\) has compute capability 6\.1; 7\.0 is the oldest"):
        gpu_device.open_gpu()
    with_cuda.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(MachineError, match="no GPU that torch can see"):
        gpu_device.open_gpu()


def test_too_little_memory_says_what_fits(with_cuda: pytest.MonkeyPatch, network: Network) -> None:
    needed = gpu_device.card_bytes(network) + gpu_device.state_bytes(network, 8, 2, 640)
    with_cuda.setattr(torch.cuda, "mem_get_info", lambda device: (needed + gpu_device.RESERVE, 1 << 40))
    with_cuda.setattr(gpu_device, "usable_memory", lambda: 1 << 10)
    with pytest.raises(
        MachineError, match="main memory have room for 640 tokens beside the weights; 704 were asked for"
    ):
        gpu_device.gpu_executor(network, 8, 704)
    with_cuda.setattr(torch.cuda, "mem_get_info", lambda device: (gpu_device.RESERVE, 1 << 40))
    plan = SimpleNamespace(short="9 GB of video memory are needed and 0 may be used", cards=())
    with_cuda.setattr("jubako.place.here.plan_here", lambda *wish: plan)
    with pytest.raises(MachineError, match="9 GB of video memory are needed and 0 may be used; or use device cpu"):
        gpu_device.gpu_executor(network, 8, None)


def test_a_context_that_needs_main_memory(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens in video memory as it holds; none where main memory lacks room for the others."""
    assert gpu_device.near_that_fit(network, 8, 2, 4096, 1 << 40) == 0, "one attention layer alone gains nothing"
    network = like(find("UD-IQ3_XXS"))
    room = gpu_device.state_bytes(network, 8, 2, 3008)
    near = gpu_device.near_that_fit(network, 8, 2, 4096, room)
    assert 64 <= near < 3000 and near % 64 == 0
    assert gpu_device.laid_out(network, 8, 2, 4096, near).nbytes() <= room
    assert gpu_device.laid_out(network, 8, 2, 4096, near + 64).nbytes() > room
    assert gpu_device.near_that_fit(network, 8, 2, 4096, room // 100) == 0
    monkeypatch.setattr(gpu_device, "usable_memory", lambda: 1 << 10)
    assert gpu_device.near_that_fit(network, 8, 2, 4096, room) == 0


def test_auto_goes_on_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(gpu_device, "_NODES", ("/dev/null",))
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(model, "SMALL", 0)
    opened = jubako.load(tiny / "tiny-bf16.gguf", context=64)
    assert type(opened.executor).__name__ == "CpuExecutor"


def test_auto_leaves_tiny_models_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    monkeypatch.setattr(model, "may_have_gpu", lambda: True)
    monkeypatch.setattr(model, "gpu_executor", lambda *arguments: pytest.fail("a GPU was looked for"))
    opened = jubako.load(tiny / "tiny-bf16.gguf", context=64)
    assert type(opened.executor).__name__ == "CpuExecutor"


class Taken:
    """Something large that a reading has taken."""


def test_running_out_of_memory_names_the_card_and_gives_back(with_cuda: pytest.MonkeyPatch) -> None:
    """What the frames of the error hold is gone before free memory is looked at, though the error lives on."""
    from jubako.engine.gpu.memory import too_little

    held: list[weakref.ref[Taken]] = []

    def read() -> None:
        taken = Taken()
        held.append(weakref.ref(taken))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def free(device: torch.device) -> tuple[int, int]:
        assert held[0]() is None
        return 5 * 10**8, 24 * 10**9

    with_cuda.setattr(torch.cuda, "empty_cache", lambda: None)
    with_cuda.setattr(torch.cuda, "mem_get_info", free)
    with pytest.raises(MachineError) as raised:
        try:
            read()
        except torch.cuda.OutOfMemoryError as error:
            raise too_little([torch.device("cuda")], "reading 4096 tokens at once", error) from error
    assert str(raised.value).startswith(
        "reading 4096 tokens at once does not fit: 0.5 of Card's 24.0 GB are free; ask for a smaller context"
    )


def test_a_model_that_runs_out_of_memory_says_what_would_fit(with_cuda: pytest.MonkeyPatch, network: Network) -> None:
    """In the middle of loading; the advice counts what is free then."""
    from jubako.engine.gpu import executor

    def lay_out(*arguments: object, **options: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    needed = gpu_device.card_bytes(network) + gpu_device.state_bytes(network, 8, 2, 640)
    with_cuda.setattr(executor, "lay_out", lay_out)
    with_cuda.setattr(torch.cuda, "empty_cache", lambda: None)
    with_cuda.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    with_cuda.setattr(torch.cuda, "mem_get_info", lambda device: (needed + gpu_device.RESERVE, 24 * 10**9))
    with pytest.raises(MachineError, match=r"the model with 4096 tokens of context does not fit: .* 640 tokens would"):
        executor.GpuExecutor(network, torch.device("cuda"), context=4096)
    with_cuda.setattr(torch.cuda, "mem_get_info", lambda device: (gpu_device.RESERVE, 24 * 10**9))
    with pytest.raises(MachineError, match=r"the weights alone take 0\.0 GB; ask for a smaller file, or the CPU"):
        executor.GpuExecutor(network, torch.device("cuda"), context=4096)


class Short:
    """An executor whose card has room for chunks of so many tokens; it halves them as `GpuExecutor` does."""

    def __init__(self, room: int) -> None:
        self.room, self.context, self.piece, self.chunk = room, 100_000, 8192, 8192
        self.boxes: list[object] = []
        self.read: list[int] = []

    def prepare(self, prompts: tuple[int, ...]) -> None:
        if prompts[0] > self.room:
            self.chunk = max(512, self.chunk // 2)
            raise MachineError("reading so many tokens at once does not fit")
        self.read += prompts


def test_a_chunk_that_is_too_long_for_the_card_does_not_end_the_start() -> None:
    executor = Short(3000)
    gpu_device.make_ready(executor)  # type: ignore[arg-type]
    assert executor.read == [2048, 512, 1024]
    with pytest.raises(MachineError, match="does not fit"):
        gpu_device.make_ready(Short(100))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "environment", "told"),
    [
        (1, {}, ["expandable_segments:True"]),
        (2, {}, ["expandable_segments:False"]),
        (1, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, []),
        (0, {}, []),
    ],
)
def test_memory_grows_in_one_piece_on_a_card_alone(
    monkeypatch: pytest.MonkeyPatch, count: int, environment: dict[str, str], told: list[str]
) -> None:
    from jubako.engine.gpu.memory import grow_at_the_end

    heard: list[str] = []
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", heard.append)
    grow_at_the_end([torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")])
    assert heard == told
