"""`jubako chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib

from rich.console import Console

from ..core import SamplingParams
from ..engine.draft import DraftOptions
from ..engine.model import Model
from ..errors import JubakoError
from .stream import figures, stream_answer

HELP = """/think   let the model think before it answers, or stop that
/reset   forget the conversation
/history show it
/help    this list
/quit    leave (also Ctrl-D); Ctrl-C stops an answer"""


class Chat:
    """The loop. Owns the messages and one session, so that each turn reads only what is new."""

    def __init__(
        self,
        model: Model,
        params: SamplingParams,
        max_tokens: int,
        think: bool,
        system: str | None,
        drafts: DraftOptions,
    ) -> None:
        self.model, self.params, self.max_tokens, self.think, self.drafts = model, params, max_tokens, think, drafts
        self.first = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.first)
        self.session = model.session()
        self.console = Console(stderr=True)

    def loop(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() editing and history)
        self.console.print("Type a message; /help lists the commands.", style="dim")
        while True:
            try:
                text = input("> ").strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self.console.print("(Ctrl-D or /quit leaves)", style="dim")
                continue
            if text == "/quit":
                return
            if text.startswith("/"):
                self.command(text)
            elif text:
                self.answer(text)

    def command(self, text: str) -> None:
        """One of the typed commands."""
        if text == "/think":
            self.think = not self.think
            self.console.print(f"thinking is {'on' if self.think else 'off'}", style="dim")
        elif text == "/reset":
            self.messages = list(self.first)
            self.session.reset()
            self.console.print("the conversation is forgotten", style="dim")
        elif text == "/history":
            for message in self.messages:
                self.console.print(f"{message['role']}: {message['content']}", markup=False, highlight=False)
        else:
            self.console.print(HELP, style="dim", markup=False, highlight=False)

    def answer(self, text: str) -> None:
        """One turn. A turn that does not fit is refused and leaves the conversation as it was."""
        messages = [*self.messages, {"role": "user", "content": text}]
        try:
            ids = self.model.encode_chat(messages, enable_thinking=self.think)
            reply, stats = stream_answer(self.model, ids, self.params, self.max_tokens, self.session, self.drafts)
        except JubakoError as error:
            self.console.print(f"{error} (/reset starts anew)", style="yellow", markup=False)
            return
        self.messages = [*messages, {"role": "assistant", "content": reply}]
        self.console.print(figures(stats), style="dim", highlight=False, soft_wrap=True)
