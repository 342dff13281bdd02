"""What ./start does with its arguments: a command of jubako, a prompt for `run`, a chat, or the server and its page."""

from __future__ import annotations

import sys

from . import COMMANDS, main, program

_PAGE = ("--open", "--log-level", "warning")
_OF_A_CHAT = (
    "-n",
    "--max",
    "--think",
    "--no-think",
    "--system",
    "--temp",
    "--top",
    "--min",
    "--seed",
)  # no serve options


def arguments(given: list[str]) -> list[str]:
    """The jubako command line that ./start means."""
    if given and (given[0] in COMMANDS or given[0] in ("-h", "--help")):
        return given
    if has_prompt(given):
        return ["run", *given]
    if any(word.startswith(_OF_A_CHAT) for word in given):
        return ["chat", *given]
    return ["serve", *_PAGE, *given]


def has_prompt(given: list[str]) -> bool:
    """Whether a bare word that is no model file stands among the options.

    Options that take a value take the word after them.
    """
    flags = {"--raw", "--think", "--no-think", "--log-prompts", "--open"}
    words = iter(given)
    for word in words:
        if not word.startswith("-"):
            if not word.endswith((".gguf", ".safetensors")):
                return True
            continue
        attached = "=" in word or (len(word) > 2 and not word.startswith("--"))  # --top-k=20, -n5
        if word not in flags and not attached:
            next(words, None)
    return False


if __name__ == "__main__":
    program.name = "./start"
    main(arguments(sys.argv[1:]))
