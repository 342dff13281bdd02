"""What ./start does with its arguments: a command of jubako, or a prompt for `run`, or nothing for `chat`."""

from __future__ import annotations

import sys

from . import COMMANDS, main


def arguments(given: list[str], terminal: bool) -> list[str]:
    """The jubako command line that ./start means. `terminal` tells whether a person sits at standard input."""
    if given and (given[0] in COMMANDS or given[0] in ("-h", "--help")):
        return given
    if has_prompt(given) or not terminal:
        return ["run", *given]
    return ["chat", *given]


def has_prompt(given: list[str]) -> bool:
    """Whether a bare word stands among the options. Options that take a value take the word after them."""
    flags = {"--raw", "--think", "--no-think"}
    words = iter(given)
    for word in words:
        if not word.startswith("-"):
            return True
        attached = "=" in word or (len(word) > 2 and not word.startswith("--"))  # --top-k=20, -n5
        if word not in flags and not attached:
            next(words, None)
    return False


if __name__ == "__main__":
    main(arguments(sys.argv[1:], sys.stdin.isatty()))
