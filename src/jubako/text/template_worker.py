"""The process that renders a chat template: a program of its own, started by `template.py` by its path.

A template comes with a downloaded file and is code. Jinja's sandbox keeps it from Python's internals; this process
keeps it from everything else: no file or socket can be opened in it (no descriptors left), it may not grow beyond its
memory limit, and the parent kills it when it takes too long. It imports the standard library and jinja2, nothing of
Jubako.

Where text came from is tracked the safe way round. What the template itself spells becomes `Literal` strings, which
know which of their characters are the template's; plain `str`, as everything from messages is, is not the template's.
Operations that `Literal` does not know give plain strings: an exotic one loses a special token, none ever invents
one.

Protocol, both ways: 4 bytes length (big endian), then JSON. First the setup {source, globals: {name: text}, memory in
bytes, seconds of computing}, answered by {}; then one request after another, the template's variables, each answered
by {text, spans: [[start, end], …]} or {error}.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
import jinja2.debug  # loaded lazily by jinja2 otherwise, and nothing can be opened later
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

Spans = tuple[tuple[int, int], ...]


class Literal(str):
    """Text that knows which spans (start, end) of it were spelled by the template."""

    spans: Spans

    def __new__(cls, text: str = "", spans: Spans = ()) -> Literal:
        self = super().__new__(cls, text)
        self.spans = spans
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Any:
        return _joined((self, other)) if _is_text(other) else NotImplemented

    def __radd__(self, other: str) -> Any:
        return _joined((other, self)) if _is_text(other) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return (
            _joined([self] * count)
            if isinstance(count, int) and len(self) * count < 1 << 20
            else str.__mul__(self, count)
        )

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._cut(start, max(start, stop)) if step == 1 else str.__getitem__(self, key)
        index = range(len(self))[key]
        return self._cut(index, index + 1)

    def _cut(self, start: int, stop: int) -> Literal:
        spans = ((max(a, start) - start, min(b, stop) - start) for a, b in self.spans if a < stop and b > start)
        return Literal(str.__getitem__(self, slice(start, stop)), tuple(spans))

    def lstrip(self, chars: str | None = None) -> Any:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> Any:
        return self._cut(0, len(str.rstrip(self, chars)))

    def strip(self, chars: str | None = None) -> Any:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> Any:
        return self._cut(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str) -> Any:
        return self._cut(0, len(self) - (len(suffix) if self.endswith(suffix) else 0))

    def join(self, parts: Iterable[str]) -> Any:
        parts = list(parts)
        return _joined([text for part in parts for text in (self, part)][1:])

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> Any:
        return self._pieces(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> Any:
        return self._pieces(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> Any:
        return self._pieces(str.splitlines(self, keepends))

    def partition(self, sep: str) -> Any:
        return tuple(self._pieces(str.partition(self, sep)))

    def rpartition(self, sep: str) -> Any:
        return tuple(self._pieces(str.rpartition(self, sep)))

    def replace(self, old: str, new: str, count: Any = -1) -> Any:
        if not old:
            return str.replace(self, old, new, count)
        pieces = self._pieces(str.split(self, old, count), old)
        return _joined([text for piece in pieces for text in (new, piece)][1:])

    def _pieces(self, texts: Iterable[str], separator: str | None = None) -> list[Literal]:
        """The same strings with their spans, in order; between them `separator`, or what none of them begins with."""
        pieces, start = [], 0
        for text in texts:
            start = start if separator else self.find(text, start)
            pieces.append(self._cut(start, start + len(text)))
            start += len(text) + len(separator or "")
        return pieces


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not hasattr(value, "__html__")


def _joined(parts: Iterable[str]) -> Literal:
    """The concatenation; spans that touch become one."""
    parts = list(parts)
    spans: list[tuple[int, int]] = []
    position = 0
    for part in parts:
        for start, end in part.spans if isinstance(part, Literal) else ():
            if spans and spans[-1][1] == position + start:
                spans[-1] = (spans[-1][0], position + end)
            else:
                spans.append((position + start, position + end))
        position += len(part)
    return Literal("".join(parts), tuple(spans))


class LiteralCodeGenerator(CodeGenerator):
    """Compiles the strings that a template spells to `Literal` objects, kept in the environment."""

    def _literal(self, text: str) -> str:
        literals: list[Literal] = self.environment.literals  # type: ignore[attr-defined]
        literals.append(Literal(text, ((0, len(text)),) if text else ()))
        return f"environment.literals[{len(literals) - 1}]"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(self._literal(value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(self._literal(node.data))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(map(str, group)))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")))")


class Generation(jinja2.ext.Extension):
    """`{% generation %}` … `{% endgeneration %}` marks what a model says, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class LiteralEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment chat templates are written for (that of transformers), with `Literal` strings."""

    code_generator_class = LiteralCodeGenerator
    concat = staticmethod(_joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])
        self.literals: list[Literal] = []
        self.filters["tojson"] = _tojson
        self.filters["join"] = _join
        self.globals.update(raise_exception=_raise, strftime_now=_strftime_now)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr != "spans" and super().is_safe_attribute(obj, attr, value)


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    text: str = Literal(d, getattr(d, "spans", ())).join(map(str, value))
    return text


def render(template: jinja2.Template, variables: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request."""
    context = template.new_context(variables)
    text = _joined(template.root_render_func(context))
    # Half surrogates can't be sent. One character for one: the spans must not move.
    return {"text": re.sub("[\ud800-\udfff]", "\ufffd", text), "spans": text.spans}


def explain(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.message} (line {error.lineno})"
    message = str(error)[:2000]
    return message if isinstance(error, jinja2.TemplateError) and message else f"{type(error).__name__}: {message}"


def confine(memory: int) -> None:
    """From here on this process can open nothing, write no file, start no process, and hold `memory` bytes."""
    time.tzset()  # reads the time zone's file
    _strftime_now("%A %c")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def limit_cpu(seconds: int) -> None:
    """Ends this process after so much computing from now on, should nobody be left to kill it."""
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


def compiled(source: str, texts: dict[str, str]) -> jinja2.Template:
    """The template, with global variables whose text counts as the template's own."""
    trusted = {name: Literal(text, ((0, len(text)),)) for name, text in texts.items()}
    return LiteralEnvironment().from_string(source, trusted)


def main() -> None:
    requests = receive(sys.stdin.buffer)
    setup = next(requests)
    compiled("{{ 'a\\n' | wordwrap ~ 1.5 }}", {}).render()  # imports what jinja2 imports late
    confine(setup["memory"])
    send(sys.stdout.buffer, {})
    template: jinja2.Template | None = None
    for variables in requests:
        limit_cpu(setup["seconds"])
        try:
            template = template or compiled(setup["source"], setup["globals"])
            answer = render(template, variables)
        except Exception as error:
            answer = {"error": explain(error)}
        send(sys.stdout.buffer, answer)


if __name__ == "__main__":
    main()
