"""Chat templates by name, for files that have none or a wrong one.

Each is npurt's own Jinja source for the published format that its comment names.
"""

import difflib

from npurt.errors import SettingError

# A system message goes in front of the first user turn, and turns alternate: these formats have no
# turn of its own for it.
_TURNS = """\
{%- set system = messages[0].content if messages[0].role == 'system' else none -%}
{%- set turns = messages if system is none else messages[1:] -%}
{%- if not turns -%}{{ raise_exception('there must be a user message') }}{%- endif -%}
{%- for turn in turns -%}
{%- if turn.role != ('assistant' if loop.index0 % 2 else 'user') -%}
{{ raise_exception('user and assistant messages must alternate, with the user first') }}
{%- endif -%}
"""
_END = "{%- endfor -%}"

# What begins the model's answer comes last, unless the caller wants none.
_ANSWER = "{%- if add_generation_prompt -%}{{ START }}{%- endif -%}"


def _answer(start: str) -> str:
    return _ANSWER.replace("START", repr(start))


NAMED = {
    # OpenAI, openai-python v0.28, chatml.md.
    "chatml": "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    + _END
    + _answer("<|im_start|>assistant\n"),
    # Google, "Gemma formatting and system instructions" (ai.google.dev), Gemma 1 to 3.
    "gemma": "{{ bos_token }}"
    + _TURNS
    + "{{ '<start_of_turn>' + ('model\\n' if turn.role == 'assistant' else 'user\\n') }}"
    "{%- if system is not none and loop.first -%}{{ system + '\\n\\n' }}{%- endif -%}"
    "{{ turn.content | trim + '<end_of_turn>\\n' }}" + _END + _answer("<start_of_turn>model\n"),
    # Meta, llama-models, models/llama2/MODEL_CARD.md and "Llama 2 prompt format" (llama.com).
    "llama2": _TURNS + "{%- if turn.role == 'user' -%}"
    "{{ bos_token + '[INST] ' }}"
    "{%- if system is not none and loop.first -%}"
    "{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}"
    "{%- endif -%}"
    "{{ turn.content | trim + ' [/INST]' }}"
    "{%- else -%}{{ ' ' + turn.content | trim + ' ' + eos_token }}{%- endif -%}" + _END,
    # Meta, llama-models, models/llama3/MODEL_CARD.md and "Llama 3 prompt format" (llama.com).
    "llama3": "{{ bos_token }}{%- for message in messages -%}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    "{{ message.content | trim + '<|eot_id|>' }}"
    + _END
    + _answer("<|start_header_id|>assistant<|end_header_id|>\n\n"),
    # Mistral AI, model card of Mistral-7B-Instruct-v0.2; with a system message as mistral-common's
    # first tokenizers place it.
    "mistral": "{{ bos_token }}" + _TURNS + "{%- if turn.role == 'user' -%}"
    "{{ '[INST] ' }}"
    "{%- if system is not none and loop.first -%}{{ system + '\\n\\n' }}{%- endif -%}"
    "{{ turn.content + ' [/INST]' }}"
    "{%- else -%}{{ turn.content + eos_token }}{%- endif -%}" + _END,
    # Microsoft, model card of Phi-3-mini-4k-instruct.
    "phi3": "{%- for message in messages -%}"
    "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
    + _END
    + _answer("<|assistant|>\n"),
    # Hugging Face, model card of zephyr-7b-beta.
    "zephyr": "{%- for message in messages -%}"
    "{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}"
    + _END
    + _answer("<|assistant|>\n"),
}


def source(template: str) -> str:
    """Return the Jinja source of *template*: a name of `NAMED`, or a source itself.

    Raises:
        SettingError: It is no such name, and no Jinja either, because it has no ``{``.
    """
    if not isinstance(template, str):
        raise SettingError(
            f"chat_template is {template!r:.60}", remedy="pass Jinja source or a name, as a str"
        )
    if "{" in template:
        return template
    if template not in NAMED:
        close = difflib.get_close_matches(template, NAMED, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise SettingError(
            f"there is no chat template {template[:60]!r}{meant}",
            remedy=f"use one of {', '.join(NAMED)}, or Jinja source, which has a {{ in it",
        )
    return NAMED[template]
