"""Python functions as tools, in the form that transformers accepts."""

import json
from typing import Any, Literal

import pytest

from npurt.compat.mlx_lm import generate, load
from npurt.compat.mlx_lm.functions import as_schema
from npurt.errors import SettingError
from tests.llm import tiny

MESSAGES = [{"role": "user", "content": "Hello"}]


def multiply(a: float, b: Literal[1, 2], c: list[int] | None = None, d: int | str = 0, e: Any = 0):
    """Multiply two numbers.

    And more.

    Args:
        a: The first number: it may
            be negative.
        b (int): The second number.

    Returns:
        The product.
    """


def test_a_function_is_a_tool_with_the_schema_of_its_hints_and_docstring():
    assert as_schema(multiply) == {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two numbers. And more.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "number", "description": "The first number: it may be negative."},
                    "b": {"type": "integer", "enum": [1, 2], "description": "The second number."},
                    "c": {"type": "array", "items": {"type": "integer"}, "nullable": True},
                    "d": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                    "e": {},
                },
                "required": ["a", "b"],
            },
        },
    }


def test_functions_are_tools_of_a_template_that_reads_them():
    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"
    model, tokenizer = load(
        tiny.path(), tokenizer_config={"chat_template": template}, progress=False
    )
    with model:
        text = tokenizer.apply_chat_template(MESSAGES, [multiply, GIVEN], tokenize=False)
        assert text == json.dumps(as_schema(multiply)) + json.dumps(GIVEN) + "Hello"
        for wrong, said in (
            (lambda x: x, "no docstring"),
            (untyped, "its argument x is None"),
            (odd, "its argument x is <class 'bytes'>"),
            (lost, "Missing"),
        ):
            with pytest.raises(SettingError, match=said) as caught:
                tokenizer.apply_chat_template(MESSAGES, [wrong])
            assert caught.value.remedy
        assert not tokenizer.has_tool_calling  # the vocabulary has no tool-call tokens
        assert tokenizer.tool_call_start is tokenizer.tool_call_end is None


@pytest.mark.parametrize("tokenize", [True, False])
def test_a_prompt_leaves_out_the_oldest_turns_that_do_not_fit(tokenize):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    model, tokenizer = load(
        tiny.path(), tokenizer_config={"chat_template": template}, progress=False, n_ctx=64
    )
    talk = [{"role": "system", "content": "S"}]
    for i in range(30):
        talk += [{"role": "user", "content": f"q{i}q"}, {"role": "assistant", "content": "a"}]
    talk += [{"role": "user", "content": "last"}]
    with model:
        with pytest.warns(UserWarning, match="its oldest turns"):
            prompt = tokenizer.apply_chat_template(
                talk, tokenize=tokenize, add_generation_prompt=True
            )
        text = tokenizer.decode(prompt) if tokenize else prompt
        assert "q0q" not in text
        assert "S q" in text
        assert text.endswith("q29q a last ")
        generate(model, tokenizer, prompt, max_tokens=1)
        whole = tokenizer.apply_chat_template(talk, tokenize=False)
        assert "q0q" in whole  # not the prompt of an answer


GIVEN = {"type": "function", "function": {"name": "given"}}


def untyped(x):
    """Say nothing."""


def odd(x: bytes):
    """Say nothing."""


def lost(x: "Missing"):  # noqa: F821  a name that is not there
    """Say nothing."""
