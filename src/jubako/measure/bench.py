"""How fast a model reads prompts and decodes at given depths, against what memory allows in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..arch.weights import load_network
from ..engine.model import Model, load
from ..engine.session import Session
from ..errors import RequestError
from ..files import open_model
from ..place.plan import Wish
from .bandwidth import private_memory, read_bandwidth, use_isa
from .drafts import DraftRates, measure_drafts
from .fill import fill_caches
from .predicted import Predictor
from .traffic import Traffic, traffic

WARM_TOKENS = 8  # decoded before anything is timed
Note = Callable[[str], None]


@dataclass(frozen=True)
class Rates:
    """One depth. Speeds in tokens/s are medians; `decode_runs` and `prefill_runs` are all of them, in order.

    bytes_per_token   what a decode step moves there: weights, state, cache
    bandwidth_share   of the read bandwidth measured between the runs
    filled            "read": the context was read like a prompt; "random": its caches hold random rows, much quicker
    predicted_*       what `jubako plan` says of the same; None where it says nothing, as of prompts at a depth
    """

    depth: int
    prefill: float
    decode: float
    prefill_runs: list[float]
    decode_runs: list[float]
    bytes_per_token: int
    bandwidth_share: float
    filled: str
    predicted_prefill: float | None = None
    predicted_decode: float | None = None


@dataclass(frozen=True)
class Report:
    """A whole benchmark. Seconds, bytes, bytes/s, tokens/s."""

    files: list[str]
    name: str
    device: str
    isa: str
    threads: int
    kv_bits: int
    prompt: int
    tokens: int
    load_seconds: float
    file_bytes: int
    private_bytes: int | None  # memory of the process that is no file, after the run
    read_bandwidth: float
    traffic: Traffic
    rates: list[Rates] = field(default_factory=list)
    drafts: list[DraftRates] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return asdict(self)


def bench(
    paths: Sequence[Path],
    depths: Sequence[int] = (0,),
    prompt: int = 512,
    tokens: int = 64,
    repeat: int = 3,
    device: str = "auto",
    threads: int | None = None,
    kv_bits: int = 8,
    ram: int | None = None,
    gpus: tuple[int, ...] | None = None,
    vram: int | None = None,
    fill: str = "random",
    isa: str | None = None,
    drafts: int | None = None,
    temperature: float = 0.7,
    note: Note = lambda text: None,
) -> Report:
    """Load the files and measure. At each depth, `repeat` times: read bandwidth, `tokens`
    decode steps and a prompt of `prompt` tokens, all random.

    At depth 0 every repetition starts an empty session; elsewhere they follow each other from that depth on.
    ram: bytes of memory to keep to. fill: how the context is filled before, "random" or "read" (see Rates). isa:
    instruction set, else the best. drafts: measure so many a step on real text too, at `temperature`,
    and as many as pay. note: told what is being done.
    """
    if fill not in ("random", "read"):
        raise RequestError(f"fill is {fill!r}; it can be random or read")
    if min(prompt, tokens, repeat) < 1 or not depths or min(depths) < 0:
        raise RequestError("prompt, tokens and repeat must be at least 1, depths at least 0")
    if isa is not None:
        use_isa(isa)
    context = None if ram is None else _tokens(max(depths), prompt, tokens, repeat)
    predictor = None
    if device != "reference":
        note("asking the plan")
        cards = gpus if device != "cpu" else ()
        wish = Wish(context, vram, ram, gpus=cards, kv_bits=kv_bits, threads=threads)
        predictor = Predictor.here(load_network(open_model(list(paths))), paths[0], wish)
    note(f"loading {paths[0].name}")
    started = time.perf_counter()
    model = load(
        paths, device, threads=threads, kv_bits=kv_bits, context=context, sequences=1, ram=ram, gpus=gpus, vram=vram
    )
    load_seconds = time.perf_counter() - started
    if predictor is not None and (predictor.plan.device == "cuda") != bool(getattr(model.executor, "video_bytes", 0)):
        predictor = None  # it runs elsewhere than planned
    generator = np.random.default_rng(0)
    native = _native(device)
    bandwidths: list[float] = []
    rates = []
    for depth in depths:
        rate, samples = _measure(model, depth, prompt, tokens, repeat, kv_bits, fill, generator, note)
        if predictor is not None:
            rate = replace(
                rate,
                predicted_prefill=None if depth else predictor.prefill(prompt),
                predicted_decode=predictor.decode(depth),
            )
        rates.append(rate)
        bandwidths += samples
    gains = []
    if drafts is not None:
        gains += measure_drafts(model, drafts, True, temperature=temperature, tokens=tokens, repeat=repeat, note=note)
        gains += measure_drafts(model, None, temperature=temperature, tokens=tokens, repeat=repeat, note=note)
    return Report(
        files=[str(path) for path in paths],
        name=model.config.name,
        device="reference" if device == "reference" else "cpu",
        isa=native[0],
        threads=native[1],
        kv_bits=kv_bits,
        prompt=prompt,
        tokens=tokens,
        load_seconds=load_seconds,
        file_bytes=sum(path.stat().st_size for path in paths if path.is_file()),
        private_bytes=private_memory(),
        read_bandwidth=median(bandwidths),
        traffic=traffic(model.network, 0, kv_bits),
        rates=rates,
        drafts=gains,
    )


def _tokens(depth: int, prompt: int, tokens: int, repeat: int) -> int:
    """Of context that the runs at a depth need."""
    return depth + 2 * WARM_TOKENS + (prompt + tokens) * (repeat if depth else 1)


def _measure(
    model: Model,
    depth: int,
    prompt: int,
    tokens: int,
    repeat: int,
    kv_bits: int,
    fill: str,
    generator: np.random.Generator,
    note: Note,
) -> tuple[Rates, list[float]]:
    """The rates at one depth, and the bandwidths seen between its runs."""

    def draw(count: int) -> list[int]:
        return [int(id) for id in generator.integers(0, model.config.vocabulary, count)]

    context = _tokens(depth, prompt, tokens, repeat)
    if context > model.config.context_length:
        raise RequestError(
            f"depth {depth} with its runs needs {context} tokens; the model takes {model.config.context_length}"
        )
    session = model.session(context)
    filled = "read"
    if depth:
        note(f"depth {depth}: filling the context")
        filled = _fill(session, depth, fill, draw)
    else:
        note("warming up")
        session.prefill(draw(WARM_TOKENS))
        for id in draw(WARM_TOKENS):
            session.decode(id)
    bandwidths: list[float] = []
    prefill_runs: list[float] = []
    decode_runs: list[float] = []
    for run in range(repeat):
        note(f"depth {depth}: run {run + 1} of {repeat}")
        bandwidths.append(read_bandwidth())
        for runs, work, count in ((decode_runs, _decode, tokens), (prefill_runs, _prefill, prompt)):
            if depth == 0:
                session.reset()
            runs.append(count / _timed(work, session, draw(count)))
    moved = traffic(model.network, depth, kv_bits).total
    decode = median(decode_runs)
    share = decode * moved / median(bandwidths)
    rate = Rates(depth, median(prefill_runs), decode, prefill_runs, decode_runs, moved, share, filled)
    return rate, bandwidths


def _fill(session: Session, depth: int, fill: str, draw: Callable[[int], list[int]]) -> str:
    """Bring the session to `depth` tokens; how that was done. The last tokens are read either way."""
    start = depth - WARM_TOKENS
    if fill == "random" and start > 0 and fill_caches(session, draw(start)):
        session.prefill(draw(WARM_TOKENS))
        return "random"
    session.prefill(draw(depth))
    return "read"


def _prefill(session: Session, ids: list[int]) -> None:
    session.prefill(ids)


def _decode(session: Session, ids: list[int]) -> None:
    for id in ids:
        session.decode(id)


def _timed(work: Callable[[Session, list[int]], None], session: Session, ids: list[int]) -> float:
    """Seconds it takes."""
    started = time.perf_counter()
    work(session, ids)
    return time.perf_counter() - started


def _native(device: str) -> tuple[str, int]:
    """Instruction set and threads of the kernels; the reference runs on torch."""
    if device == "reference":
        import torch

        return "torch", torch.get_num_threads()
    import jubako._cpu as _cpu

    return _cpu.isa(), _cpu.threads()
