"""Chat templates by name, for files without a chat template or with a wrong one.

npurt's authors wrote these Jinja sources.  Each template renders the same prompts as the
chat_template of the model named in its comment; tests/llm/test_chat_names.py compares them with
the models' templates.
"""

from npurt.base import late
from npurt.errors import ModelFormatError, SettingError, brief

# The beginning of templates for formats without system turns: the system message precedes the text
# of the first user turn.  User and assistant turns must alternate.
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

# The end of a template: the markup that begins the model's answer, if add_generation_prompt is set.
_ANSWER = "{%- if add_generation_prompt -%}{{ START }}{%- endif -%}"


def _answer(start: str) -> str:
    return _ANSWER.replace("START", repr(start))


NAMED = {
    # teknium/OpenHermes-2.5-Mistral-7B.
    "chatml": "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    + _END
    + _answer("<|im_start|>assistant\n"),
    # google/gemma-3-4b-it; the templates of Gemma 1 and 2 differ only in refusing system messages.
    "gemma": "{{ bos_token }}"
    + _TURNS
    + "{{ '<start_of_turn>' + ('model\\n' if turn.role == 'assistant' else 'user\\n') }}"
    "{%- if system is not none and loop.first -%}{{ system + '\\n\\n' }}{%- endif -%}"
    "{{ turn.content | trim + '<end_of_turn>\\n' }}" + _END + _answer("<start_of_turn>model\n"),
    # meta-llama/Llama-2-7b-chat-hf; the first turn is trimmed together with the system message.
    "llama2": _TURNS + "{%- if turn.role == 'user' -%}"
    "{%- set before = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n'"
    " if system is not none and loop.first else '' -%}"
    "{{ bos_token + '[INST] ' + (before + turn.content) | trim + ' [/INST]' }}"
    "{%- else -%}{{ ' ' + turn.content | trim + ' ' + eos_token }}{%- endif -%}" + _END,
    # meta-llama/Meta-Llama-3-8B-Instruct.
    "llama3": "{{ bos_token }}{%- for message in messages -%}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    "{{ message.content | trim + '<|eot_id|>' }}"
    + _END
    + _answer("<|start_header_id|>assistant<|end_header_id|>\n\n"),
    # mistralai/Mistral-7B-Instruct-v0.2 as released, which refuses system messages; this template
    # places them as the model's later template does.
    "mistral": "{{ bos_token }}" + _TURNS + "{%- if turn.role == 'user' -%}"
    "{{ '[INST] ' }}"
    "{%- if system is not none and loop.first -%}{{ system + '\\n\\n' }}{%- endif -%}"
    "{{ turn.content + ' [/INST]' }}"
    "{%- else -%}{{ turn.content + eos_token }}{%- endif -%}" + _END,
    # microsoft/Phi-3.5-mini-instruct.  The template of Phi-3-mini-4k-instruct begins with BOS; here
    # the file's metadata decide whether BOS is added.
    "phi3": "{%- for message in messages -%}"
    "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
    + _END
    + _answer("<|assistant|>\n")
    + "{%- if not add_generation_prompt -%}{{ eos_token }}{%- endif -%}",
    # HuggingFaceH4/zephyr-7b-beta.
    "zephyr": "{%- for message in messages -%}"
    "{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}"
    + _END
    + _answer("<|assistant|>\n"),
}


def source(template: str) -> str:
    """Return the Jinja source of *template*, which is a name in `NAMED` or Jinja source.

    Raises:
        SettingError: *template* is neither a name in `NAMED` nor valid Jinja source.
    """
    if not isinstance(template, str):
        raise SettingError(
            f"chat_template is {brief(template)}", remedy="pass Jinja source or a name, as a str"
        )
    if "{" in template:
        with late.imports():
            from npurt.llm.text.chat import ChatTemplate  # importing jinja2 takes 40 ms

        try:
            ChatTemplate(template, bos=None, eos=None)
        except ModelFormatError as error:
            raise SettingError(
                f"chat_template does not work: {error.what.partition(': ')[2]}",
                remedy="leave it out for the model's own template, or name one of "
                f"{', '.join(NAMED)}",
            ) from error
        return template
    if template not in NAMED:
        import difflib

        close = difflib.get_close_matches(template, NAMED, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise SettingError(
            f"there is no chat template {template[:60]!r}{meant}",
            remedy=f"use one of {', '.join(NAMED)}, or Jinja source, which contains {{",
        )
    return NAMED[template]
