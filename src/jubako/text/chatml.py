"""The template for files that have none: ChatML, with tool calls in the form that the Qwen family is trained on."""

CHATML = r"""
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part.text is defined -%}
                {{- part.text -}}
            {%- else -%}
                {{- raise_exception('this model reads text only, a message holds a part of another kind') -}}
            {%- endif -%}
        {%- endfor -%}
    {%- elif content is not none and content is defined -%}
        {{- raise_exception('the content of a message is neither text nor a list of parts') -}}
    {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if loop.first and tools -%}
        {{- '<|im_start|>system\n' -}}
        {%- if message.role == 'system' -%}
            {{- text(message.content) + '\n\n' -}}
        {%- endif -%}
        {{- 'You can call these functions:\n<tools>' -}}
        {%- for tool in tools -%}
            {{- '\n' + tool | tojson -}}
        {%- endfor -%}
        {{- '\n</tools>\nTo call one, reply with:\n<tool_call>\n<function=NAME>\n' -}}
        {{- '<parameter=ARGUMENT>\nvalue\n</parameter>\n</function>\n</tool_call><|im_end|>\n' -}}
    {%- endif -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' -%}
            {{- '<|im_start|>user' -}}
        {%- endif -%}
        {{- '\n<tool_response>\n' + text(message.content) + '\n</tool_response>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}
            {{- '<|im_end|>\n' -}}
        {%- endif -%}
    {%- elif not (loop.first and tools and message.role == 'system') -%}
        {{- '<|im_start|>' + message.role + '\n' + text(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set call = call.function or call -%}
            {{- '\n<tool_call>\n<function=' + call.name + '>\n' -}}
            {%- for name, value in (call.arguments or {}) | items -%}
                {{- '<parameter=' + name + '>\n' -}}
                {{- value if value is string else value | tojson -}}
                {{- '\n</parameter>\n' -}}
            {%- endfor -%}
            {{- '</function>\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' -}}
    {%- if enable_thinking is defined -%}
        {{- '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' -}}
    {%- endif -%}
{%- endif -%}
"""
