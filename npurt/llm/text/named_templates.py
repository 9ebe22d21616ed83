"""Chat templates by name, for files that have none or a wrong one.

Each is npurt's own Jinja source.  It gives the prompts of the chat_template in the
tokenizer_config.json of the model that its comment names; tests/llm/test_chat_names.py has them,
with their sources.
"""

from npurt.errors import ModelFormatError, SettingError, brief

# For formats without a turn of its own for a system message: it goes in front of the first user
# turn.  Turns alternate.
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

# The markup that begins the model's answer comes last, unless the caller wants none.
_ANSWER = "{%- if add_generation_prompt -%}{{ START }}{%- endif -%}"


def _answer(start: str) -> str:
    return _ANSWER.replace("START", repr(start))


NAMED = {
    # teknium/OpenHermes-2.5-Mistral-7B.
    "chatml": "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    + _END
    + _answer("<|im_start|>assistant\n"),
    # google/gemma-3-4b-it; Gemma 1 and 2 are the same without system messages, which they refuse.
    "gemma": "{{ bos_token }}"
    + _TURNS
    + "{{ '<start_of_turn>' + ('model\\n' if turn.role == 'assistant' else 'user\\n') }}"
    "{%- if system is not none and loop.first -%}{{ system + '\\n\\n' }}{%- endif -%}"
    "{{ turn.content | trim + '<end_of_turn>\\n' }}" + _END + _answer("<start_of_turn>model\n"),
    # meta-llama/Llama-2-7b-chat-hf; it trims a first turn together with the system message.
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
    # mistralai/Mistral-7B-Instruct-v0.2 as released, which refuses system messages; they are where
    # its later version has them.
    "mistral": "{{ bos_token }}" + _TURNS + "{%- if turn.role == 'user' -%}"
    "{{ '[INST] ' }}"
    "{%- if system is not none and loop.first -%}{{ system + '\\n\\n' }}{%- endif -%}"
    "{{ turn.content + ' [/INST]' }}"
    "{%- else -%}{{ turn.content + eos_token }}{%- endif -%}" + _END,
    # microsoft/Phi-3.5-mini-instruct; Phi-3-mini-4k-instruct had a BOS first, which files that want
    # one get by their metadata.
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
    """Return the Jinja source of *template*: a name of `NAMED`, or a source itself.

    Raises:
        SettingError: It is neither such a name nor Jinja that works.
    """
    if not isinstance(template, str):
        raise SettingError(
            f"chat_template is {brief(template)}", remedy="pass Jinja source or a name, as a str"
        )
    if "{" in template:
        from npurt.llm.text.chat import ChatTemplate  # with jinja2, which takes 40 ms

        try:
            ChatTemplate(template, bos=None, eos=None)
        except ModelFormatError as error:
            raise SettingError(
                f"chat_template does not work: {error.what.partition(': ')[2]}",
                remedy=f"mend the Jinja source, or use one of {', '.join(NAMED)}",
            ) from error
        return template
    if template not in NAMED:
        import difflib

        close = difflib.get_close_matches(template, NAMED, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise SettingError(
            f"there is no chat template {template[:60]!r}{meant}",
            remedy=f"use one of {', '.join(NAMED)}, or Jinja source, which has a {{ in it",
        )
    return NAMED[template]
