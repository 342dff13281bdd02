"""Tools over files in memory, and a script of what an agent does with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STRING = {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "write_file": {
        "type": "object",
        "properties": {"path": {"enum": ["a.txt", "b.txt"]}, "text": {"type": "string", "maxLength": 30}},
        "required": ["path", "text"],
        "additionalProperties": False,
    },
    "read_file": {
        "type": "object",
        "properties": {"path": {"enum": ["a.txt", "b.txt"]}},
        "required": ["path"],
        "additionalProperties": False,
    },
    "list_files": {"type": "object", "properties": {}, "additionalProperties": False},
}


@dataclass
class Files:
    """What the tools work on; `log` holds each call and its result."""

    files: dict[str, str] = field(default_factory=dict)
    log: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)

    def run(self, name: str, arguments: dict[str, Any]) -> str:
        match name:
            case "write_file":
                self.files[arguments["path"]] = arguments["text"]
                result = f"wrote {len(arguments['text'])} characters"
            case "read_file":
                result = self.files.get(arguments["path"], "no such file")
            case "list_files":
                result = ", ".join(sorted(self.files)) or "no files"
            case _:
                raise AssertionError(name)
        self.log.append((name, arguments, result))
        return result


def turn(number: int) -> str:
    """The tool of a turn; the small model can't choose by itself."""
    return ("write_file", "read_file", "list_files")[number % 3]
