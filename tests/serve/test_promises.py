"""Fields that promise something about the output are followed, or refused by name."""

import json
import time

import pytest

from npurt.llm.decode.grammar.grammar import Grammar
from tests.llm.test_bounded import allowed
from tests.serve.client import SAY_HI, TEMPLATE, Client, asking, served

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORM = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
CHAT = "/v1/chat/completions"
PATHS = [
    (CHAT, SAY_HI),
    ("/v1/completions", {"prompt": "hi"}),
    ("/completion", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", SAY_HI | {"max_tokens": 5}),
]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize(
    "field",
    [
        {"json_schema": SCHEMA},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
@asking
async def test_a_schema_by_any_name_reaches_the_engine(path, body, field):
    asked = Client("x")
    assert (await asked(path, body | field)).status == 200
    assert asked.backend.submitted[0].response_format == FORM


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ({"guided_choice": ["yes", "no"]}, "no", "maybe"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes", "y\n"),
        ({"guided_regex": "[0-9]{3}"}, "123", "12a"),
        ({"structured_outputs": {"regex": "a/b"}}, "a/b", "a-b"),
    ],
)
@asking
async def test_choices_and_expressions_are_grammars(field, inside, outside):
    asked = Client("x")
    assert (await asked(CHAT, SAY_HI | field)).status == 200
    lark = asked.backend.submitted[0].lark
    assert is_whole(lark, inside)
    assert not is_whole(lark, outside)


def is_whole(lark, text):
    from npurt.llm.decode.grammar.library import limits, llguidance
    from npurt.llm.decode.grammar.vocabulary import vocabulary_of_bytes

    matcher = llguidance().LLMatcher(
        vocabulary_of_bytes(), Grammar.from_lark(lark).lark, log_level=0, limits=limits()
    )
    count = matcher.validate_tokens(list(text.encode()))
    matcher.consume_tokens(list(text.encode()[:count]))
    return count == len(text.encode()) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "\ud800"}, "guided_regex"),
        ({"guided_choice": ["\ud800"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs.regex"),
        ({"json_schema": {"type": 5}}, "json_schema"),
        ({"structured_outputs": {"json": {"type": 5}}}, "structured_outputs.json"),
        ({"guided_grammar": "nonsense ::"}, "guided_grammar"),
        ({"json_schema": SCHEMA, "grammar": 'root ::= "a"'}, "json_schema"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"bad_words": ["no"]}, "bad_words"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
@asking
async def test_a_field_that_cannot_be_followed_is_refused_by_name(field, param):
    reply = await Client("x")(CHAT, SAY_HI | field)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@asking
async def test_fields_whose_value_has_no_effect_are_accepted():
    neutral = {"use_beam_search": False, "length_penalty": 1, "bad_words": [],
               "skip_special_tokens": True, "allowed_token_ids": None}  # fmt: skip
    assert (await Client("x")(CHAT, SAY_HI | neutral)).status == 200


@asking
async def test_a_token_id_of_vllm_ends_a_completion():
    asked = Client("a b c d")
    await asked(CHAT, SAY_HI | {"stop": [5, "x"], "stop_token_ids": [7]})
    assert asked.backend.submitted[-1].stop_ids == [5, 7]


@asking
async def test_a_final_message_is_continued():
    asked = Client("x")
    talk = [*SAY_HI["messages"], {"role": "assistant", "content": "It is"}]
    body = {"messages": talk, "continue_final_message": True, "add_generation_prompt": False}
    assert (await asked(CHAT, body)).status == 200
    assert asked.prompt.endswith("<assistant>It is")
    assert (await asked("/apply-template", body)).json["prompt"].endswith("<assistant>It is")


@asking
async def test_a_prompt_may_have_no_start_of_an_answer():
    asked = Client("x")
    assert (await asked(CHAT, SAY_HI | {"add_generation_prompt": False})).status == 200
    assert asked.prompt.endswith("<user>hi[THINK]")


@asking
async def test_a_completion_ends_when_its_time_is_over():
    asked = Client("a b c d e f g h i j k l m n o p" * 20, n_ctx=2000)
    step = asked.backend.step

    def slowly():
        time.sleep(0.01)
        return step()

    asked.backend.step = slowly
    for stream in (False, True):
        body = SAY_HI | {"t_max_predict_ms": 60, "stream": stream}
        reply = await asked(CHAT, body)
        last = reply.events[-2] if stream else reply.json
        assert last["choices"][0]["finish_reason"] == "length"
        assert not asked.backend.busy


@asking
async def test_a_response_has_the_fields_that_are_asked_for():
    fields = ["content", "generation_settings/n_predict", "timings/none", "none"]
    body = {"prompt": "hi", "n_predict": 3, "response_fields": fields}
    reply = (await Client("x")("/completion", body)).json
    assert reply == {"content": "x", "generation_settings/n_predict": 3}


@asking
async def test_an_answer_of_a_form_has_no_calls():
    text = '{"name": "f", "arguments": {"n": 1}}'
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    asked = Client(text, model=served("llama3", TEMPLATE + "{# <tool_call> #}"), n_ctx=1024)
    body = SAY_HI | {"tools": tools, "response_format": {"type": "json_object"}}
    message = (await asked(CHAT, body)).json["choices"][0]["message"]
    assert message["content"] == text
    assert "tool_calls" not in message


# --- Too long ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), PATHS)
@asking
async def test_a_prompt_that_is_too_long_is_told_as_clients_know_it(path, body, stream):
    long = json.loads(json.dumps(body).replace('"hi"', json.dumps("long " * 300)))
    reply = await Client("x")(path, long | {"stream": stream})
    error = reply.json["error"]

    assert reply.status == 400
    assert "prompt is too long:" in error["message"]
    assert "exceeds the available context size" in error["message"]
    assert "This model's maximum context length is 256 tokens" in error["message"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 256
    assert error["n_prompt_tokens"] > 256
    assert error.get("code") in ("context_length_exceeded", 400, None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, SAY_HI | {"response_format": FORM}),
        ("/api/chat", SAY_HI | {"format": SCHEMA}),
        ("/v1/responses", {"input": "hi", "text": {"format": {"type": "json_schema", "name": "x",
                                                             "schema": SCHEMA}}}),
    ],
)  # fmt: skip
@asking
async def test_every_interface_passes_the_schema_that_the_engine_bounds(path, body):
    asked = Client("x")
    assert (await asked(path, body)).status == 200
    form = asked.backend.submitted[0].response_format["json_schema"]["schema"]
    assert allowed(form, '{"n": 12345678901234567') == '{"n": 1234567890123456'
    assert allowed(form, '{"n": 1, "x"') == '{"n": 1'
