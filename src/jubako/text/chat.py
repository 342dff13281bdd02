"""A conversation in neutral form to all that the engine and the reading of its answer need.

Each dialect turns its request into a `Conversation`; `ChatPreparer` renders it through the model's own template. What
is asked of one answer (effort, budget, forced calls, a form) never changes the prompt before its last turn, so that
the engine's saved states stay good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..core import Constraint, ThinkingBudget
from ..errors import RequestError, TemplateError
from .answer import AnswerParser, Marks, new_call_id
from .answer_form import Form, constraint_of
from .call_schema import Tool
from .messages import plain_messages, with_one_system
from .template import ChatTemplate
from .tokenizer import Tokenizer

# Tokens of thinking for each effort; None: no limit. "none" switches thinking off.
EFFORTS = {"minimal": 512, "low": 2048, "medium": 8192, "high": None, "xhigh": None, "max": None}
_THINKING = ("enable_thinking", "thinking")  # what templates call the switch
_OWN = ("messages", "tools", "add_generation_prompt", *_THINKING)  # variables that are not for clients to set
_AFTER_THINKING = "\n</think>\n\n"  # how a thought that was cut off is ended


@dataclass(frozen=True)
class Thinking:
    """enabled None: as the model does by itself. effort: one of EFFORTS or "none"; budget: tokens, before effort."""

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None


@dataclass(frozen=True)
class Conversation:
    """What a dialect asks for.

    messages       in the neutral form of `text.messages`
    tool_choice    "auto", "none", "required", or "named:NAME"
    allowed        names of the tools that the answer may call, all of them shown; None: any
    parallel       whether one answer may hold several calls
    form           a Constraint of kind and source only: what the content must look like
    continue_last  the last message is the assistant's and is continued, its tokens as given
    variables      further variables of the chat template
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool] = ()
    tool_choice: str = "auto"
    allowed: Sequence[str] | None = None
    parallel: bool = True
    thinking: Thinking = field(default_factory=Thinking)
    form: Constraint | None = None
    continue_last: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """The prompt and the other fields of a `core.Request`, and how to read the answer."""

    prompt: tuple[int, ...]
    keep: tuple[int, ...]  # where turns begin
    stop_ids: frozenset[int]
    thinking_open: bool
    thinking: ThinkingBudget | None
    constraint: Constraint | None
    logit_bias: tuple[tuple[int, float], ...]
    tools: tuple[Tool, ...]  # that the answer may call
    form: Form

    def parser(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), call_id: Callable[[], str] = new_call_id
    ) -> AnswerParser:
        """A parser for one answer; each of several answers needs its own."""
        return AnswerParser(
            tokenizer,
            thinking_open=self.thinking_open,
            tools=self.tools,
            stop=stop,
            ordered=self.form.ordered,
            single=self.form.single,
            think_calls=self.form.think_calls,
            call_id=call_id,
        )


class ChatPreparer:
    """Prepares conversations for one model. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.marks = Marks.of(tokenizer)
        self._template = template
        self._turn = tokenizer.special_tokens.get("<|im_start|>")

    def prepare(self, conversation: Conversation) -> Prepared:
        """Raises RequestError for what can't be rendered, called or honoured, naming it."""
        tools, may_call = self._tools(conversation)
        messages = plain_messages(conversation.messages)
        begun = messages.pop() if conversation.continue_last else None
        prompt = self._rendered(messages, conversation, begun)
        prefix = begun["content"] if begun else ""
        if begun:
            prompt += self._beginning(begun)
        thinking_open = self._thinks(prompt)
        form = constraint_of(
            conversation.form,
            tools if may_call else (),
            conversation.tool_choice,
            parallel=conversation.parallel,
            masked=conversation.allowed is not None,
            marks=self.marks,
            thinking_open=thinking_open,
            prefix=prefix.encode("utf-8", "replace"),
        )
        barred = self.marks.call if conversation.tools and not may_call else None
        return Prepared(
            prompt=tuple(prompt),
            keep=self._turns(prompt),
            stop_ids=self.tokenizer.eos_ids,
            thinking_open=thinking_open,
            thinking=self._budget(conversation.thinking, form.think_calls and may_call) if thinking_open else None,
            constraint=form.constraint,
            logit_bias=((barred, -1000.0),) if barred is not None else (),
            tools=tuple(tools) if may_call else (),
            form=form,
        )

    def _tools(self, conversation: Conversation) -> tuple[Sequence[Tool], bool]:
        """The tools that the choice is among, and whether the answer may call one."""
        names = [tool.name for tool in conversation.tools]
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise RequestError(f"tools: two of them are called {twice!r:.80}")
        choice, _, wanted = conversation.tool_choice.partition(":")
        if choice not in ("auto", "none", "required", "named"):
            raise RequestError(f"tool_choice is {choice!r:.50}; it can be auto, none, required or a tool's name")
        allowed = names if conversation.allowed is None else conversation.allowed
        if choice in ("required", "named") and not allowed:
            raise RequestError(f"tool_choice is {choice!r}, but there are no tools")
        if choice == "named" and wanted not in names:
            raise RequestError(f"tool_choice names {wanted!r:.80}, which is none of the tools")
        unknown = next((name for name in allowed if name not in names), None)
        if unknown is not None:
            raise RequestError(f"tool_choice allows {unknown!r:.80}, which is none of the tools")
        return [tool for tool in conversation.tools if tool.name in allowed], choice != "none" and bool(allowed)

    def _rendered(
        self, messages: list[dict[str, Any]], conversation: Conversation, begun: Mapping[str, Any] | None
    ) -> list[int]:
        thinking = conversation.thinking
        variables = {key: value for key, value in conversation.variables.items() if key not in _OWN}
        enabled = False if thinking.effort == "none" else thinking.enabled
        if begun:
            enabled = bool(begun.get("reasoning_content"))
        if enabled is not None:
            variables |= dict.fromkeys(_THINKING, enabled)
        tools = [tool.described() for tool in conversation.tools] or None
        try:
            prompt = self._template.encode(with_one_system(messages, self._late_system), tools, True, **variables)
        except TemplateError as error:
            raise RequestError(f"the conversation can't be rendered: {error}") from None
        if enabled is False and self._thinks(prompt):  # a template that can't be told
            prompt += self.tokenizer.encode(_AFTER_THINKING, special=True)
        return prompt

    @cached_property
    def _late_system(self) -> bool:
        """Whether the template keeps a system message that comes late."""
        probe = [("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"), ("system", "late system probe")]
        try:
            return "late system probe" in self._template.render([{"role": r, "content": c} for r, c in probe])
        except TemplateError:
            return False

    def _beginning(self, begun: Mapping[str, Any]) -> list[int]:
        """The tokens of a begun answer: its thinking, closed once there is content, and the content as given."""
        ids: list[int] = []
        if begun.get("tool_calls"):
            raise RequestError("the last message holds calls; only text can be continued")
        if begun.get("reasoning_content"):
            ids += self.tokenizer.encode(begun["reasoning_content"])
            if begun["content"]:
                ids += self.tokenizer.encode(_AFTER_THINKING, special=True)
        return ids + self.tokenizer.encode(begun["content"])

    def _thinks(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends within thinking: of the marks in its last turn an opening one comes last."""
        for id in reversed(prompt):
            if id == self.marks.think:
                return self.marks.end_think is not None
            if id in (self.marks.end_think, self._turn):
                break
        return False

    def _budget(self, thinking: Thinking, may_call: bool) -> ThinkingBudget | None:
        if thinking.effort is not None and thinking.effort not in (*EFFORTS, "none"):
            raise RequestError(f"effort is {thinking.effort!r:.50}; it can be none, {', '.join(EFFORTS)}")
        tokens = thinking.budget if thinking.budget is not None else EFFORTS.get(thinking.effort or "high")
        if tokens is None:
            return None
        ends = [self.marks.end_think, self.marks.call if may_call else None]
        close = self.tokenizer.encode(_AFTER_THINKING, special=True)
        return ThinkingBudget(max(0, tokens), tuple(id for id in ends if id is not None), tuple(close))

    def _turns(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Lengths of the prompt before each of its turns, the one to be written included."""
        if self._turn is not None:
            return tuple(i for i, id in enumerate(prompt) if id == self._turn and i)
        return tuple(i + 1 for i, id in enumerate(prompt) if id in self.tokenizer.eos_ids and i + 1 < len(prompt))
