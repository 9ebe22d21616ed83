"""Strict functions: a call that the model begins follows its schema, whatever the logits are."""

import json
import random

import jsonschema
import numpy as np
import pytest

from npurt.llm.decode.calls.coder import Coder
from npurt.llm.decode.calls.format import CallPart, add_part
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.calls.llama3 import Llama3, Pythonic
from npurt.llm.decode.calls.mistral import Mistral
from npurt.llm.decode.calls.reading import BEGIN, END, Reader
from npurt.llm.decode.calls.strict import Markers, grammar
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.grammar.library import limits, llguidance
from npurt.llm.decode.grammar.vocabulary import vocabulary_of_bytes
from tests.serve.client import SAY_HI, TEMPLATE, Client, asking, served

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
        "unit": {"enum": ["c", "f"]},
        "place": {"$ref": "#/$defs/place"},
        "deep": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "null"}},
                        "required": ["x"], "additionalProperties": False}},
}  # fmt: skip
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = {"weather": WEATHER, "now": NOTHING, "loose": {"additionalProperties": True}}
TEXT = Markers(lambda text: None)


def matcher(lark):
    return llguidance().LLMatcher(
        vocabulary_of_bytes(), Grammar.from_lark(lark).lark, log_level=0, limits=limits()
    )


def lark(kind, thought=None, within=False):
    return grammar(kind().rules(FUNCTIONS, TEXT), TEXT, thought, within=within)


def accepted(kind, text, **options):
    """Return the part of *text* that the grammar accepts, and whether it may end there."""
    found = matcher(lark(kind, **options))
    data = text.encode()
    count = found.validate_tokens(list(data))
    found.consume_tokens(list(data[:count]))
    return data[:count].decode("utf-8", "ignore"), found.is_accepting()


TAG = b"</parameter>"


def drawn(found, seed, maximum=600):
    """Return random bytes that the grammar accepts, preferring bytes that close an element."""
    draw, data = random.Random(seed), bytearray()
    while len(data) < maximum:
        mask = np.unpackbits(np.frombuffer(found.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(mask[:257]).tolist()
        if found.is_accepting() and (256 in allowed or not allowed):
            return bytes(data)
        begun = max(size for size in range(len(TAG)) if data.endswith(TAG[:size]))
        likes = [[TAG[begun]] if begun else [], list(b'"}])<' if draw.random() < 0.5 else b"")]
        liked = next(
            filter(None, ([byte for byte in like if byte in allowed] for like in likes)), 0
        )
        byte = draw.choice(liked or [byte for byte in allowed if byte < 256])
        found.consume_tokens([byte])
        data.append(byte)
    return None


BEGINS = [
    (Hermes, "Well. <tool_call>"),
    (Hermes, '<tool_call>\n{"name": "weather", "arguments": '),
    (Coder, "Well. <tool_call>"),
    (Coder, "<tool_call>\n<function=weather>\n"),
    (Llama3, '{"name": "weather", "parameters":'),
    (Llama3, "Well. <|python_tag|>"),
    (Pythonic, "[weather("),
    (Pythonic, "Well. <|python_tag|>"),
    (Mistral, "Well.[TOOL_CALLS]"),
    (Mistral, "[TOOL_CALLS]weather[ARGS]"),
]


@pytest.mark.parametrize(("kind", "begin"), BEGINS)
def test_whatever_follows_the_begin_of_a_call_is_a_call(kind, begin):
    text_of = lark(kind)
    ended = 0
    for seed in range(8):
        found = matcher(text_of)
        found.consume_tokens(list(begin.encode()))
        data = drawn(found, seed)
        if data is None:
            continue
        ended += 1
        reader = Reader(kind(), FUNCTIONS)
        text = begin + data.decode()
        calls = []
        for part in [*reader.push(text), *reader.finish()]:
            if isinstance(part, CallPart):
                add_part(calls, part)
        assert calls, text
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), FUNCTIONS[call.name])
    assert ended >= 3  # the other calls did not end within the limit


@pytest.mark.parametrize("kind", [Hermes, Coder, Llama3, Pythonic, Mistral])
@pytest.mark.parametrize("text", ["", "Hello.", "a < b <tool {x} [1]", '[1, "x"]', '{"answer": 1}'])
def test_a_text_without_a_call_is_free(kind, text):
    assert accepted(kind, text) == (text, True)


@pytest.mark.parametrize(
    ("kind", "text", "upto"),
    [
        (Hermes, 'a <tool_call>{"name": "other"', 'a <tool_call>{"name": "'),
        (Hermes, '<tool_call>{"name": "now", "arguments": {"x"', '<tool_call>{"name": "now", '
         '"arguments": {'),
        (Hermes, '<tool_call>{"name": "loose", "arguments": {"x": [1]}}</tool_call>.', None),
        (Coder, "<tool_call><function=weather><parameter=days>", "<tool_call><function=weather>"
         "<parameter="),
        (Coder, "<tool_call>\n<function=loose>\n<parameter=q>\nx\n</parameter>\n</function>\n"
         "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", None),
        (Llama3, '{"name": "weather", "parameters": {"days"', '{"name": "weather", "parameters": '
         '{"'),
        (Llama3, '{"name": "now", "parameters": {}}; {"name": "loose", "parameters": {}}', None),
        (Llama3, '{"name": "unknown", "parameters": 5', None),
        (Pythonic, "[weather(days=", "[weather("),
        (Pythonic, '[weather(city="x", days=3, unit="c"), loose(a=[1, true], b={}), now()]', None),
        (Mistral, '[TOOL_CALLS][{"name": "now", "arguments": {}}]', None),
        (Mistral, "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now{}", None),
        (Mistral, "[TOOL_CALLS]other", "[TOOL_CALLS]"),
    ],
)  # fmt: skip
def test_grammars_of_calls(kind, text, upto):
    found, over = accepted(kind, text)
    assert found == (text if upto is None else upto)
    assert over == (upto is None)


def test_thoughts_may_name_the_marker_of_a_call():
    for within, text in ((False, "<think>a <tool_call> b"), (True, "a <tool_call> b")):
        options = {"thought": (BEGIN, END), "within": within}
        assert accepted(Hermes, text, **options) == (text, True)
        more = text + "</think>\n<tool_call>"
        assert accepted(Hermes, more + "b", **options) == (more, False)
    assert accepted(Hermes, "Yes", thought=(BEGIN, END)) == ("Yes", True)


def test_a_marker_may_be_a_token():
    tokenizer = served().tokenizer
    token = min(tokenizer.control - tokenizer.eog - {tokenizer.bos})
    markers = Markers({"<|python_tag|>": token}.get)
    rules = Llama3().rules({"now": NOTHING}, markers)
    text = Constraint(Grammar.from_lark(grammar(rules, markers, None, within=False)), tokenizer, 0)
    history = tokenizer.encode("Well.", add_bos=False)
    assert text.allowed(history)[[token, *tokenizer.eog]].all()
    call = tokenizer.encode('{"name": "now", "parameters": {}}', add_bos=False)
    assert text.fits([*history, token], call) == len(call)
    assert not text.allowed([*history, token])[[token, *tokenizer.eog, history[0]]].any()
    assert not text.allowed([*history, token, *call[:-1]])[list(tokenizer.eog)].any()


# --- Over HTTP --------------------------------------------------------------------------------

TOOLS = [
    {"type": "function", "function": {"name": "weather", "strict": True, "parameters": WEATHER}},
    {"type": "function", "function": {"name": "loose"}},
]
FLAT = {"name": "weather", "strict": True}
ASKED = [
    (CHAT, SAY_HI | {"tools": TOOLS}),
    ("/v1/responses", {"input": "hi", "tools": [
        {"type": "function", **FLAT, "parameters": WEATHER}]}),
    ("/v1/messages", SAY_HI | {"max_tokens": 5, "tools": [{**FLAT, "input_schema": WEATHER}]}),
    ("/api/chat", SAY_HI | {"tools": TOOLS}),
]  # fmt: skip


def client(template=TEMPLATE + "{# <tool_call> #}"):
    return Client("x", model=served("llama3", template), n_ctx=4096)


@pytest.mark.parametrize(("path", "body"), ASKED)
@asking
async def test_strict_functions_give_the_engine_a_grammar(path, body):
    asked = client()
    assert (await asked(path, body)).status == 200
    submit = asked.backend.submitted[0]
    assert '"<tool_call>"' in submit.lark


@pytest.mark.parametrize(
    "change",
    [
        {"tools": TOOLS[1:]},
        {"tool_choice": "none"},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
    ],
)
@asking
async def test_without_a_strict_function_to_choose_the_text_is_free(change):
    asked = client()
    assert (await asked(CHAT, SAY_HI | {"tools": TOOLS} | change)).status == 200
    assert asked.backend.submitted[0].lark is None


@asking
async def test_a_schema_that_cannot_be_kept_is_refused():
    wrong = {"name": "f", "strict": True, "parameters": {"type": 5}}
    reply = await client()(CHAT, SAY_HI | {"tools": [{"type": "function", "function": wrong}]})
    assert (reply.status, reply.json["error"]["param"]) == (400, "tools")
    pythonic = TEMPLATE + "{# func_name1(params_name1 #}"
    wrong["parameters"] = {"properties": {"no-name": {}}}
    body = SAY_HI | {"tools": [{"type": "function", "function": wrong}]}
    reply = await client(pythonic)(CHAT, body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "tools")
