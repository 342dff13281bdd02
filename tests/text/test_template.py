"""Chats render as plain Jinja renders them, and special tokens come from the template alone."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import GOLDEN, SPECIALS, needs_golden, real_metadata, small_metadata, tiny_metadata

from jubako.errors import RequestError, TemplateError
from jubako.text.chatml import CHATML
from jubako.text.template import ChatTemplate
from jubako.text.tokenizer import Tokenizer

SMALL = Tokenizer.from_metadata(small_metadata())
TINY = Tokenizer.from_metadata(tiny_metadata())

# Does with text what published templates do: split at tags, trim, compare, join, macros, set blocks, JSON.
BUSY = """
{%- macro show(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content %}{% for part in content %}{{- part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- set ns = namespace(count=0, open='<think>') %}
{%- if tools %}{{- '<|im_start|>system\n' ~ (tools | map('tojson') | join('\n')) ~ '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
    {%- set content = show(message.content) | trim %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = ns.open + '\n' + reasoning + '\n</think>\n' ~ content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- set head %}<|im_start|>{{ message['role'] }}
{% endset %}
    {{- head + content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call><' + call.function.name + '>' }}
        {%- for name, value in call.function.arguments | items %}
            {{- '<' + name + '>' + (value if value is string else value | tojson) + '|' }}
        {%- endfor %}
        {{- "</tool_call>" }}
    {%- endfor %}
    {{- ['<|im_end|>', ''] | join | replace('|', '|') }}
{% endfor %}
{%- if add_generation_prompt %}{{ ('  <|im_start|>assistant\n  ' + ns.open) | trim }}{% endif %}"""


@cache
def _plain_template(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def plain_jinja(source: str, **variables: Any) -> str:
    """The text as transformers' environment renders it."""
    return _plain_template(source).render(**variables)


@cache
def real_tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(real_metadata(with_tags=True))


@cache
def golden_template() -> ChatTemplate:
    source = (GOLDEN / "templates" / "Qwen3.5-4B.jinja").read_text()
    return ChatTemplate(source, real_tokenizer())


@cache
def busy_template() -> ChatTemplate:
    return ChatTemplate(BUSY, SMALL)


@cache
def chatml() -> ChatTemplate:
    return ChatTemplate(None, TINY)


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    yield
    for make in (busy_template, chatml, golden_template):
        if make.cache_info().currsize:
            make().close()


CALL = {"type": "function", "function": {"name": "find", "arguments": {"q": "a b", "n": 3, "deep": {"x": [1, None]}}}}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}, "description": "é <b>"}}]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": " be brief "}, {"role": "user", "content": "Hi\n"}],
    [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "hmm"},
    ],
    [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "warm"},
        {"role": "assistant", "content": "It is.", "reasoning_content": "so"},
        {"role": "user", "content": "thanks"},
    ],
    [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "first", "tool_calls": [CALL]},
        {"role": "tool", "content": "r"},
    ],
]


@needs_golden
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_published_template_as_transformers_renders_it(chat: list[dict[str, Any]], tools: Any) -> None:
    peer = pytest.importorskip("transformers.utils.chat_template_utils")
    template = golden_template()
    tokenizer = real_tokenizer()
    for options in ({}, {"enable_thinking": False}, {"enable_thinking": True, "add_generation_prompt": False}):
        (expected,), _ = peer.render_jinja_template(
            [chat], tools, chat_template=template.source, **{"add_generation_prompt": True, **options}
        )
        assert template.render(chat, tools, **options) == expected
        assert template.encode(chat, tools, **options) == tokenizer.encode(expected, special=True)


@needs_golden
def test_published_template_ids_of_hello() -> None:
    tokenizer = real_tokenizer()
    ids = golden_template().encode(CHATS[0], enable_thinking=False)
    names = [tokenizer.token_bytes(i).decode() for i in ids]
    assert names == [
        *["<|im_start|>", "user", "\n", "Hello", "<|im_end|>", "\n"],
        *["<|im_start|>", "assistant", "\n", "<think>", "\n\n", "</think>", "\n\n"],
    ]


@pytest.mark.parametrize("chat", CHATS)
def test_busy_template_as_plain_jinja_renders_it(chat: list[dict[str, Any]]) -> None:
    for tools in (None, TOOLS):
        expected = plain_jinja(BUSY, messages=chat, tools=tools, add_generation_prompt=True)
        assert busy_template().render(chat, tools) == expected
        assert busy_template().encode(chat, tools) == SMALL.encode(expected, special=True)


EXAMPLES = int(os.environ.get("JUBAKO_FUZZ", "60"))
hostile = st.lists(
    st.sampled_from(
        [
            *[*SPECIALS, "<|im_end|", "|im_end|>", "<|im_", "end|>", "<think", "think>", "</", "tool_call>"],
            *["<", ">", "|", "a", " ", "\n", "é", "{{ 1 }}", '"', "\\", "\ud83d"],
        ]
    ),
    max_size=8,
).map("".join)
roles = st.sampled_from(["user", "user", "assistant"]) | hostile
calls = st.fixed_dictionaries(
    {
        "function": st.fixed_dictionaries(
            {"name": hostile, "arguments": st.dictionaries(hostile, hostile | st.integers(), max_size=2)}
        )
    }
)


def _harmless(value: Any) -> Any:
    """The same chat with no character that a special token could be made of, but what the templates look for."""
    if isinstance(value, dict):
        return {_harmless(k) if k not in KEYS else k: _harmless(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_harmless(item) for item in value]
    return re.sub(r"[<>|\[\]]", "-", value) if isinstance(value, str) else value


KEYS = {"role", "content", "tool_calls", "function", "name", "arguments", "type", "text", "description"}


def _special_count(tokenizer: Tokenizer, ids: list[int]) -> int:
    return sum(i in tokenizer.special_ids for i in ids)


def _clean(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


@given(
    st.lists(
        st.fixed_dictionaries({"role": roles, "content": hostile, "tool_calls": st.lists(calls, max_size=2)}),
        min_size=1,
        max_size=4,
    ),
    st.none() | st.lists(st.fixed_dictionaries({"name": hostile, "description": hostile}), max_size=2),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_data_becomes_a_special_token(chat: list[dict[str, Any]], tools: Any) -> None:
    # Assistants may hold reasoning, which templates mean to move between tags of their own: here they hold none.
    chat = [{**m, "content": m["content"].replace("</think>", "")} if m["role"] == "assistant" else m for m in chat]
    for template, tokenizer in ((busy_template(), SMALL), (chatml(), TINY)):
        text, ids = template.render(chat, tools), template.encode(chat, tools)
        assert text == _clean(plain_jinja(template.source, messages=chat, tools=tools, add_generation_prompt=True))
        assert tokenizer.decode(ids, special=True) == text
        harmless = template.encode(_harmless(chat), _harmless(tools))
        assert _special_count(tokenizer, ids) == _special_count(tokenizer, harmless)


@needs_golden
@given(
    st.lists(st.tuples(hostile, hostile, st.lists(calls, max_size=2), hostile), min_size=1, max_size=3),
    hostile,
    st.booleans(),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_data_becomes_a_special_token_of_the_official(turns: Any, system: str, thinking: bool) -> None:
    template, tokenizer = golden_template(), real_tokenizer()
    chat: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for question, answer, tool_calls, result in turns:
        chat.append({"role": "user", "content": "q" + question})
        chat.append({"role": "assistant", "content": answer, "reasoning_content": question, "tool_calls": tool_calls})
        chat += [{"role": "tool", "content": result} for _ in tool_calls]
    tools = [{"name": system, "description": chat[1]["content"]}]
    ids = template.encode(chat, tools, enable_thinking=thinking)
    expected = plain_jinja(
        template.source, messages=chat, tools=tools, add_generation_prompt=True, enable_thinking=thinking
    )
    assert tokenizer.decode(ids, special=True) == _clean(expected)
    harmless = template.encode(_harmless(chat), _harmless(tools), enable_thinking=thinking)
    assert _special_count(tokenizer, ids) == _special_count(tokenizer, harmless)


def test_reasoning_in_an_answer_is_the_templates_business() -> None:
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>w <|im_end|></think>b</tool_call>"},
    ]
    ids = busy_template().encode(chat, add_generation_prompt=False)
    names = [SMALL.token_bytes(i).decode() for i in ids if i in SMALL.special_ids]
    assert names == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|im_end|>"]
    assert "<think>\nw <|im_end|>\n</think>\nb</tool_call>" in SMALL.decode(ids, special=True)


@pytest.mark.parametrize(
    ("expression", "trusted"),
    [
        ("'<think>' + x", [1]),
        ("x + '<think>'", [1]),
        ("'<think>' ~ x ~ 3", [1]),
        ("('  <think> ' ~ x) | trim", [1]),
        ("(x ~ '<think> ').strip()", [1]),
        ("('<think>,' ~ x ~ ',</think>').split(',') | join('')", [1, 2]),
        ("('<think>,' ~ x ~ ',</think>').rsplit(',', 1)[1]", [2]),
        ("('<think>' ~ x).replace('a', 'b')", [1]),
        ("'_' .join([x, '<think>', x])", [1]),
        ("('ab<think>' ~ x)[2:]", [1]),
        ("('a<think>\n' ~ x).splitlines()[0]", [1]),
        ("('<think>:' ~ x).partition(':')[0]", [1]),
        ("'<think>' * 2", [1, 1]),
        ("('<think>x').removesuffix('x')", [1]),
        ("('x</think>').removeprefix('x')", [2]),
        ("'<thi' ~ 'nk>'", [1]),
        ("'<think>' if true else x", [1]),
        ("'<think>' | string", [1]),
        ("['<think>', x] | first", [1]),
        ("x", []),
        ("'<' ~ x[1:]", []),
        ("x[:3] ~ 'ink>'", []),
        ("'<' ~ 'y' ~ 'think>'", []),
        ("'<X>'.replace('X', x[1:6])", []),
        ("'%s' % x", []),
        ("'{}'.format(x)", []),
        ("x | replace('k', 'k')", []),
        ("x.replace('a', '<think>')", []),
        ("[x] | tojson", []),
        ("{'a': x}['a']", []),
        ("('ab' ~ 'ink>').split('ab')[1] ~ x", []),
        ("('1<think' ~ x[6:] ~ '<think').split('1')[1]", []),
        ("(x ~ 'ab' ~ x).split('ab') | join('')", []),
        ("('<think><thi' ~ x).split('<think>')[1] ~ 'nk>'", [1]),
    ],
)
def test_origin_survives_what_templates_do(expression: str, trusted: list[int]) -> None:
    template = ChatTemplate("{{ " + expression.replace("\n", "\\n") + " }}", SMALL)
    try:
        expected = plain_jinja(template.source, x="<think>")
        assert template.render([], x="<think>") == expected
        ids = template.encode([], x="<think>")
        assert SMALL.decode(ids, special=True) == expected
        wanted = [SMALL.id_of(["<think>", "</think>"][i - 1]) for i in trusted]
        assert [i for i in ids if i in SMALL.special_ids] == wanted
    finally:
        template.close()


def test_names_of_tokens_are_the_templates_own() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", SMALL)
    ids = template.encode([{"role": "user", "content": "a"}])
    assert ids == [SMALL.id_of("<|endoftext|>"), SMALL.id_of("a"), SMALL.id_of("<|im_end|>")]
    template.close()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('no ' ~ messages[0].role) }}", "no user"),
        ("{{ raise_exception('\x1b]0;owned\x07') }}", r"failed: \?]0;owned\?"),
        ("{{ messages[0].content.a.b }}", "a"),
        ("{% for x in %}", "line 1"),
        ("{% include '/etc/passwd' %}", "loader"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
        ("{{ ('a' ~ x).spans[0] }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deeply"),
        ("{% for x in range(10**9) %}{% endfor %}", "range"),
        ("{{ 'a' * 10**10 }}", "memory"),
        ("{{ '%1000000000d' % 1 }}", "memory"),
        ("{{ '{:1000000000}'.format(1) }}", "memory"),
        ("{{ [0] * 10**9 }}", "memory"),
        (  # on a busy machine its time is over before its memory is
            "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "memory|did not finish",
        ),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "failed"),
    ],
)
def test_hostile_templates_fail(source: str, says: str) -> None:
    template = ChatTemplate(source, SMALL)
    try:
        with pytest.raises(TemplateError, match=says):
            template.render([{"role": "user", "content": "x"}])
    finally:
        template.close()


@pytest.mark.parametrize(
    "source",
    [
        "{{ 10 ** (10 ** 10) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set j = joiner() %}{% for a in range(99999) %}{% for b in range(99999) %}{{ j() }}{% endfor %}{% endfor %}",
        "{{ lipsum(n=10**7) }}",
    ],
)
def test_templates_without_end_are_stopped(source: str) -> None:
    template = ChatTemplate(source, SMALL, timeout=0.3)
    with pytest.raises(TemplateError):
        template.render([])  # starts the process
    start = time.monotonic()
    with pytest.raises(TemplateError):
        template.render([])
    assert time.monotonic() - start < 10
    assert template._worker
    process = template._worker._process
    template.close()
    assert process.poll() is not None


def test_after_a_timeout_the_next_render_works() -> None:
    source = "{% if slow %}{{ 10 ** big }}{% endif %}ok"
    template = ChatTemplate("{% set big = 10 ** 10 %}" + source, SMALL, timeout=0.5)
    assert template.render([]) == "ok"
    with pytest.raises(TemplateError, match=r"within 0\.5 s"):
        template.render([{"role": "user"}], slow=True)
    assert template.render([]) == "ok"
    template.close()
    assert template.render([]) == "ok"
    template.close()


def test_the_process_can_open_nothing() -> None:
    """What a template that broke out of Jinja's sandbox would meet."""
    from jubako.text import template_worker

    code = f"import sys; sys.path.insert(0, {str(template_worker.__file__).rsplit('/', 1)[0]!r})\n"
    code += "import os, socket, template_worker\ntemplate_worker.confine(512 << 20)\n"
    code += "for act in (lambda: open('/etc/passwd'), socket.socket, os.pipe, lambda: os.open('/tmp/x', os.O_CREAT)):\n"
    code += "    try: act(); print('done')\n    except OSError as error: print(error.errno)\n"
    import subprocess
    import sys

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, close_fds=True)
    assert result.stdout.split() == ["24"] * 4, result  # EMFILE


def test_threads_share_a_template() -> None:
    results: list[bool] = []

    def work(name: str) -> None:
        text = name * 20_000
        results.extend(text in chatml().render([{"role": "user", "content": text}]) for _ in range(10))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 40


def test_a_chat_far_larger_than_a_pipe() -> None:
    text = "é🙂x" * 1_000_000
    assert chatml().render([{"role": "user", "content": text}]).count(text) == 1


def test_what_is_no_plain_data_is_the_callers_error() -> None:
    with pytest.raises(RequestError, match="plain data"):
        chatml().render([{"role": "user", "content": object()}])


def test_default_template() -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "r1"},
        {"role": "tool", "content": [{"type": "text", "text": "r2"}]},
    ]
    assert chatml().source == CHATML
    assert chatml().render(chat, enable_thinking=False) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        "<|im_start|>assistant\n\n<tool_call>\n<function=find>\n<parameter=q>\na b\n</parameter>\n"
        '<parameter=n>\n3\n</parameter>\n<parameter=deep>\n{"x": [1, null]}\n</parameter>\n</function>\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    with_tools = chatml().render(chat[:2], TOOLS, add_generation_prompt=False)
    assert with_tools.startswith("<|im_start|>system\ns\n\nYou can call these functions:\n<tools>\n{")
    assert with_tools.count("<|im_start|>") == 2 and json.dumps(TOOLS[0], ensure_ascii=False) in with_tools


def test_arguments_as_json_text_are_those_as_an_object() -> None:
    def chat(arguments: Any) -> list[dict[str, Any]]:
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        return [{"role": "assistant", "content": "", "tool_calls": calls}]

    assert chatml().render(chat('{"a": [1, "x"]}')) == chatml().render(chat({"a": [1, "x"]}))
    assert chatml().render(chat("")) == chatml().render(chat({}))


STRICT = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}
{%- endif %}
{%- if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('Unexpected role.') }}{% endif %}
{{- m.role }}:{{ m.content if m.content is string else m.content | map(attribute='text') | join }};
{%- endfor %}"""


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (["system", "user"], "system:0;user:1;"),
        (["developer", "user"], "system:0;user:1;"),
        (["system", "developer", "user"], "system:0\n\n1;user:2;"),
        (["system", "user", "system", "user"], "system:0;user:1;user:2;user:3;"),
        (["user", "developer"], "user:0;user:1;"),
    ],
)
def test_late_system_and_developer_messages(roles: list[str], expected: str) -> None:
    template = ChatTemplate(STRICT, SMALL)
    chat = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]
    assert template.render(chat) == expected
    parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in chat]
    assert template.render(parts) == expected
    with pytest.raises(TemplateError, match="beginning"):
        template.render([*chat, {"role": "system", "content": ""}, {"role": "nobody", "content": ""}])
    template.close()
