"""What the server costs over the bare engine, and how it bears many clients.

python tools/bench_server.py overhead MODEL.gguf      throughput and time to the first token, engine against server
python tools/bench_server.py load --minutes 10        32 clients at once on the small model
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

PROMPT = list(range(100, 164))


@contextmanager
def server(files: list[str], *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """A running server: its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        words = ["serve", *files, "--port", str(port), "--sessions", folder, "--log-level", "error", *options]
        process = subprocess.Popen([sys.executable, "-m", "jubako.cli", *words])
        try:
            while True:
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                if process.poll() is not None:
                    sys.exit("the server did not start")
                time.sleep(0.05)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def bare(path: str, tokens: int, threads: int | None) -> None:
    """Child process: for each line on standard input one answer of the scheduler alone; its figures as JSON."""
    from jubako.core import Finished, Request, Tokens
    from jubako.engine.model import load
    from jubako.engine.scheduler import Scheduler

    scheduler = Scheduler(load(path, threads=threads), sequences=8, drafts=0)
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        first = last = 0.0
        scheduler.submit(Request(str(number), (number, *PROMPT), max_tokens=tokens))
        ended = False
        while not ended:
            for _, event in scheduler.step():
                if isinstance(event, Tokens):
                    last = time.perf_counter()
                    first = first or last
                ended = ended or isinstance(event, Finished)
        print(json.dumps({"first": first - began, "rate": (tokens - 1) / (last - first)}), flush=True)


def served(client: httpx.Client, url: str, number: int, tokens: int) -> dict[str, float]:
    """The same answer over HTTP, as its client sees it."""
    body = {"prompt": [number, *PROMPT], "max_tokens": tokens, "temperature": 0, "stream": True}
    body["logit_bias"] = {}
    began = time.perf_counter()
    first = last = 0.0
    with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and '"finish_reason":null' in line:
                last = time.perf_counter()
                first = first or last
    return {"first": first - began, "rate": (tokens - 1) / (last - first)}


def overhead(path: str, tokens: int, rounds: int, threads: int | None) -> None:
    """Alternate between the engine alone and the server, so that whatever else goes on meets both.

    Times by the clock need a quiet machine; those by processor time do not.
    """
    limit = [] if threads is None else ["--threads", str(threads)]
    command = [sys.executable, __file__, "bare", path, "--tokens", str(tokens), *limit]
    alone = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert alone.stdin and alone.stdout
    runs: list[dict[str, float]] = []
    with server([path], "--drafts", "0", *limit) as (url, process), httpx.Client(timeout=300) as client:
        engine = next(child for child in process.children() if "jubako.serve.engine" in child.cmdline())
        watched = {"alone": psutil.Process(alone.pid), "engine": engine, "server": process}
        for number in range(rounds + 1):
            before = {name: busy(one) for name, one in watched.items()}
            print(number, file=alone.stdin, flush=True)
            bare_run = json.loads(alone.stdout.readline())
            through = served(client, url, number, tokens)
            run = {name: 1000 * (busy(one) - before[name]) / tokens for name, one in watched.items()}
            run |= {"bare rate": bare_run["rate"], "rate": through["rate"], "ratio": through["rate"] / bare_run["rate"]}
            run |= {"bare first": 1000 * bare_run["first"], "first": 1000 * through["first"]}
            run["later"] = run["first"] - run["bare first"]
            runs += [run] if number else []  # the first reads the file
            print({name: round(value, 2) for name, value in run.items()}, file=sys.stderr)
    alone.stdin.close()
    alone.wait()
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print(f"load average {os.getloadavg()[0]:.1f}, {tokens} tokens, medians of {rounds} pairs")
    print(f"engine alone   {middle['bare rate']:.2f} tok/s, first token {middle['bare first']:.1f} ms")
    print(f"through server {middle['rate']:.2f} tok/s, first token {middle['first']:.1f} ms")
    print(f"throughput {100 * (1 - middle['ratio']):.2f} % less, first token {middle['later']:.2f} ms later")
    print(
        f"processor time per token: engine alone {middle['alone']:.2f} ms; "
        f"served {middle['engine']:.2f} ms and {middle['server']:.2f} ms of the server"
    )


def busy(process: psutil.Process) -> float:
    """Processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass
class Record:
    """What the clients saw: answers by client, seconds each took, what went wrong."""

    counts: list[int]
    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def talk(url: str, number: int, deadline: float, record: Record) -> None:
    """One client: asks again and again in different ways, now and then leaves in the middle."""
    chance = random.Random(number)
    words = ["cat", "river", "lacquer", "moon", "Paris", "bread", "seven", "why", "blue", "story"]
    async with httpx.AsyncClient(timeout=300) as client:
        while time.monotonic() < deadline:
            text = " ".join(chance.choices(words, k=chance.randint(3, 300)))
            body: dict[str, Any] = {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": chance.randint(1, 80),
            }
            body |= {"stream": chance.random() < 0.7, "temperature": 1, "seed": chance.randint(0, 9)}
            began = time.monotonic()
            try:
                if body["stream"] and chance.random() < 0.2:
                    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                        async for _ in answer.aiter_lines():
                            break
                    continue
                answer = await client.post(f"{url}/v1/chat/completions", json=body)
                good = answer.text.endswith("data: [DONE]\n\n") if body["stream"] else "usage" in answer.json()
                if answer.status_code != 200 or not good or '"error"' in answer.text[-400:]:
                    record.errors.append(f"{answer.status_code} {answer.text[-300:]}")
            except Exception as error:
                record.errors.append(repr(error))
            record.counts[number] += 1
            record.waits.append(time.monotonic() - began)


async def watch(process: psutil.Process, deadline: float, memory: list[tuple[float, float]]) -> None:
    """Memory of the server and of its engine, in MB, every ten seconds."""
    while time.monotonic() < deadline:
        engines = [child for child in process.children() if "jubako.serve.engine" in child.cmdline()]
        memory.append((process.memory_info().rss / 1e6, engines[0].memory_info().rss / 1e6))
        await asyncio.sleep(10)


async def load(clients: int, minutes: float) -> None:
    """Many clients for some minutes; what they got, and what it cost."""
    with server([], "--prefix-gb", "0.2", "--sessions-gb", "0") as (url, process):
        deadline = time.monotonic() + 60 * minutes
        record = Record([0] * clients)
        memory: list[tuple[float, float]] = []
        talks = [talk(url, number, deadline, record) for number in range(clients)]
        await asyncio.gather(watch(process, deadline, memory), *talks)
        status = httpx.get(f"{url}/v1/status").json()
    counts, waits, errors = record.counts, sorted(record.waits), record.errors
    third = max(1, len(memory) // 3)
    print(f"{clients} clients, {minutes:g} minutes, load average {os.getloadavg()[1]:.1f}: {sum(counts)} answers")
    print(f"errors: {len(errors)} {errors[:3]}")
    print(f"answers per client: {min(counts)} to {max(counts)}")
    print(f"seconds per answer: median {waits[len(waits) // 2]:.2f}, longest {waits[-1]:.2f}")
    for place, name in enumerate(("server", "engine")):
        parts = [statistics.mean(m[place] for m in part) for part in (memory[third : 2 * third], memory[-third:])]
        print(f"memory of the {name}: {parts[0]:.1f} MB in the second third, {parts[1]:.1f} in the last")
    print(f"tokens: {json.dumps(status.get('totals'))}, requests: {json.dumps(status['requests'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "load", "bare"))
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of the engine; by default one per core")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    if given.what == "load":
        asyncio.run(load(given.clients, given.minutes))
    elif given.what == "bare":
        bare(given.model, given.tokens, given.threads)
    else:
        overhead(given.model, given.tokens, given.rounds, given.threads)


if __name__ == "__main__":
    main()
