"""Dataclasses as JSON and back, every value checked against its annotation.

A dataclass becomes [class name, value, value …] in the order of its fields; tuples, lists and frozensets become lists,
bytes a string of their code points. What does not fit its annotation raises ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]


def dumps(message: Any) -> bytes:
    """The JSON of a dataclass."""
    return json.dumps(_plain(message), separators=(",", ":")).encode()


def loads(data: bytes, kind: Any) -> Any:
    """The object of type `kind` (a dataclass or a union of them) that `data` spells. Raises ValueError."""
    try:
        return _reader(kind)(json.loads(data))
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None


def _plain(value: Any) -> Any:
    kind = type(value)
    if is_dataclass(kind):
        return [kind.__name__, *(_plain(getattr(value, name)) for name in _names(kind))]
    if isinstance(value, (list, tuple, frozenset)):
        items = list(value)
        return items if all(type(item) is int for item in items) else [_plain(item) for item in items]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _reader(kind: Any) -> Reader:
    """What turns plain data into a value of type `kind`, or raises ValueError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_reader(kind)
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _pair_reader(arguments)
    if origin in (tuple, list, frozenset):
        return _sequence_reader(origin, arguments[0])
    if kind is Any or origin is dict or kind is dict:
        return lambda value: value
    return _scalar_reader(kind)


def _scalar_reader(kind: Any) -> Reader:
    accepted = {float: (float, int), bytes: (str,)}.get(kind, (kind,))

    def read(value: Any) -> Any:
        if type(value) not in accepted:
            _refuse(value, kind)
        return value.encode("latin-1") if kind is bytes else float(value) if kind is float else value

    return read


def _sequence_reader(build: Any, item: Any) -> Reader:
    read_item = _reader(item)

    def read(value: Any) -> Any:
        if type(value) is not list:
            _refuse(value, build)
        if item is int and all(type(number) is int for number in value):
            return build(value)
        return build([read_item(part) for part in value])

    return read


def _pair_reader(items: tuple[Any, ...]) -> Reader:
    readers = [_reader(item) for item in items]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            _refuse(value, tuple)
        return tuple(reader(part) for reader, part in zip(readers, value, strict=True))

    return read


def _union_reader(kinds: tuple[type, ...]) -> Reader:
    named: dict[str, Reader] = {kind.__name__: _reader(kind) for kind in kinds if is_dataclass(kind)}
    others = [_reader(kind) for kind in kinds if not is_dataclass(kind) and kind is not NoneType]

    def read(value: Any) -> Any:
        if value is None and NoneType in kinds:
            return None
        if type(value) is list and value and type(value[0]) is str and value[0] in named:
            return named[value[0]](value)
        for reader in others:
            return reader(value)
        _refuse(value, kinds)

    return read


def _dataclass_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = [_reader(hints[name]) for name in _names(kind)]

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers) + 1 or value[0] != kind.__name__:
            _refuse(value, kind)
        return kind(*[reader(part) for reader, part in zip(readers, value[1:], strict=True)])

    return read


def _refuse(value: Any, kind: Any) -> None:
    raise ValueError(f"{value!r:.60} is no {getattr(kind, '__name__', kind)}")
