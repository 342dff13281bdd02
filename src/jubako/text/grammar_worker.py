"""The process that compiles grammars on trial: a program of its own, started by `grammar_check.py` by its path.

A schema comes from a client. Some hostile ones keep a compiler busy for hours, so each is compiled here first, over an
alphabet of bytes, and the process is killed when it takes too long. It imports nothing of Jubako.

Protocol of `worker.py`. The setup is {memory in bytes, seconds of computing}, answered by {}; then {grammar, prefix in
hexadecimal}, answered by {error, read}: why the grammar can't be compiled or begun ("" when it can), and how many bytes
of the prefix fit.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import llguidance

STAND_INS = (257, 258)


def limits() -> llguidance.LLParserLimits:
    """What a grammar may cost: a tenth of a second for its tables, some milliseconds for a step, 100 MB."""
    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class ByteTokens:
    """A vocabulary of the 256 bytes, an end token, and two more that grammars may name by id (`STAND_INS`)."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", b"<call>", b"</call>")
    special_token_ids = (256, *STAND_INS)
    is_tokenizer_wrapper = True

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def trial(tokens: llguidance.LLTokenizer, grammar: str, prefix: bytes) -> dict[str, Any]:
    """The answer to one request."""
    matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=limits())
    if matcher.is_error():
        return {"error": matcher.get_error(), "read": 0}
    read = matcher.try_consume_tokens(list(prefix))
    if read == len(prefix) and not matcher.is_stopped():
        matcher.compute_bitmask()
    return {"error": matcher.get_error() if matcher.is_error() and read == len(prefix) else "", "read": read}


def limit_cpu(seconds: int) -> None:
    """Ends this process after so much computing from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def receive(stream: BinaryIO) -> Iterator[Any]:
    while len(head := stream.read(4)) == 4:
        yield json.loads(stream.read(int.from_bytes(head, "big")))


def send(stream: BinaryIO, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def main() -> None:
    requests = receive(sys.stdin.buffer)
    setup = next(requests)
    tokens = llguidance.LLTokenizer(ByteTokens(), slices=[])  # type: ignore[arg-type]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    send(sys.stdout.buffer, {})
    for request in requests:
        limit_cpu(setup["seconds"])
        try:
            answer = trial(tokens, request["grammar"], bytes.fromhex(request["prefix"]))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "read": 0}
        send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
