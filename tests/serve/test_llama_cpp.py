"""The paths of llama.cpp's own server interface."""

import asyncio

import pytest

from npurt.serve.front.front import ServerSettings
from tests.serve.client import SAY_HI, Client, asking, served
from tests.serve.test_openai_text import coder  # noqa: F401  a fixture

HELLO = {"prompt": "Hello"}


def ids_of(text, **options):
    return served().tokenizer.encode(text, **options)


@asking
async def test_a_completion_has_this_form():
    client = Client(" world")
    answer = (await client("/completion", HELLO)).json
    words = (await client("/completion", HELLO | {"stop": ["or"]})).json
    short = (await client("/completion", HELLO | {"n_predict": 1})).json

    assert (answer["content"], answer["stop"], answer["stop_type"]) == (" world", True, "eos")
    assert answer["tokens_predicted"] == len(ids_of(" world", add_bos=False))
    assert answer["tokens_evaluated"] == len(ids_of("Hello"))
    assert (words["content"], words["stop_type"], words["stopping_word"]) == (" w", "word", "or")
    assert (short["stop_type"], short["tokens_predicted"]) == ("limit", 1)
    assert answer["generation_settings"]["n_predict"] == -1
    assert answer["timings"]["predicted_n"] == answer["tokens_predicted"]


@asking
async def test_a_stream_ends_with_stop_and_without_done():
    events = (await Client(" world")("/completion", HELLO | {"stream": True})).events

    assert "".join(event["content"] for event in events) == " world"
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["stop_type"] == "eos"


@asking
async def test_progress_is_told_while_the_prompt_is_read():
    client = Client("x", settings=ServerSettings(ping=0.01))
    client.engine.go.clear()
    body = HELLO | {"stream": True, "return_progress": True}
    task = asyncio.create_task(client("/completion", body))
    await asyncio.sleep(0.05)
    client.engine.go.set()
    progress = [e["prompt_progress"] for e in (await task).events if "prompt_progress" in e]

    assert progress
    assert progress[0]["total"] == len(ids_of("Hello"))
    assert progress[0]["processed"] == 0


@asking
async def test_a_prompt_may_mix_texts_and_ids():
    client = Client("x")
    await client("/completion", {"prompt": [70, 71, "Hello", 72]})
    assert client.backend.submitted[0].tokens == [70, 71, *ids_of("Hello", add_bos=False), 72]


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        {},
        [],
        [[]],
        [True],
        [99999],
        [[99999], "a"],
        ["a"] * 9,
        {"prompt_string": 1},
        {"prompt_string": "a", "multimodal_data": ["aGk="]},
    ],
)
@asking
async def test_a_prompt_that_is_none_is_refused(prompt):
    assert (await Client("x")("/completion", {"prompt": prompt})).status == 400


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("Hello", 1), (["Hello"], 1), ([70, "Hello"], 1), ({"prompt_string": "Hello"}, 1),
     (["Hello", "you"], 2), ([[70, 71], [72]], 2), ([[70, "Hello"], "you"], 2),
     (["Hello", {"prompt_string": "you", "multimodal_data": []}, [70]], 3)],
)  # fmt: skip
@asking
async def test_several_prompts_have_a_list_of_answers(prompt, count):
    client = Client(" world\n")
    answer = (await client("/completion", {"prompt": prompt})).json
    found = [answer] if count == 1 else answer

    assert isinstance(answer, dict if count == 1 else list)
    assert [each["content"] for each in found] == [" world\n"] * count
    assert [each["index"] for each in found] == list(range(count))
    assert [each["tokens_evaluated"] for each in found] == (
        [len(submit.tokens) for submit in client.backend.submitted]
    )
    events = (await client("/completion", {"prompt": prompt, "stream": True})).events
    for i, each in enumerate(found):
        parts = [event for event in events if event["index"] == i]
        assert "".join(event["content"] for event in parts) == each["content"]
        assert [event["stop"] for event in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1]["prompt"] == each["prompt"]


@asking
async def test_several_completions_of_a_prompt():
    client = Client()
    body = HELLO | {"n_predict": 3, "n_cmpl": 2, "seed": 5}
    first, second = (await client("/completion", body)).json
    other = (await client("/completion", HELLO | {"n_predict": 3, "seed": 6})).json
    assert first["content"] != second["content"] == other["content"]
    assert (await client("/completion", {"prompt": ["a", "b", "c"], "n_cmpl": 3})).status == 400


@asking
async def test_the_tokens_and_the_seed_of_an_answer_are_returned():
    client = Client()
    body = HELLO | {"n_predict": 9}
    answer = (await client("/completion", body | {"return_tokens": True})).json
    seed = answer["generation_settings"]["seed"]
    again = (await client("/completion", body | {"seed": seed, "stream": True})).events

    assert 0 <= seed < 1 << 32
    assert client.model.tokenizer.decode(answer["tokens"]) == answer["content"]
    assert [token for event in again for token in event["tokens"]] == answer["tokens"]
    assert "".join(event["content"] for event in again) == answer["content"]
    assert (await client("/completion", body)).json["tokens"] == []


@asking
async def test_an_answer_says_whether_it_has_a_line_break():
    for text, expected in (("a\nb", True), ("ab", False)):
        assert (await Client(text)("/completion", HELLO)).json["has_new_line"] is expected


@asking
async def test_timings_come_with_each_event():
    events = (
        await Client(" world")("/completion", HELLO | {"stream": True, "timings_per_token": True})
    ).events
    counts = [event["timings"]["predicted_n"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] == 1


@asking
async def test_a_bias_of_a_text_is_that_of_its_tokens():
    client = Client("x")
    tokens = set(ids_of("Hello", add_bos=False))
    for given in ([["Hello", -0.5]], {"Hello": -0.5}):
        assert (await client("/completion", HELLO | {"logit_bias": given})).status == 200
        found = client.backend.submitted[-1].sampling["logit_bias"]
        assert found == dict.fromkeys(tokens, -0.5)
    digit = ids_of("7", add_bos=False)[0]
    for given, expected in (
        ([["7", False]], {digit: float("-inf")}),  # a text: only keys of an object may be ids
        ({"7": 1.5}, {7: 1.5}),
        ([[digit, 1], ["7", 2]], {digit: 3.0}),
    ):
        assert (await client("/completion", HELLO | {"logit_bias": given})).status == 200
        assert client.backend.submitted[-1].sampling["logit_bias"] == expected
    for wrong in ([["", 1]], [["x" * 1001, 1]], [[-1, 1]], [["a", "b"]], {"a": True}):
        assert (await client("/completion", HELLO | {"logit_bias": wrong})).status == 400


@asking
async def test_chances_of_tokens():
    answer = (await Client("Hi")("/completion", HELLO | {"n_probs": 2})).json
    first = answer["completion_probabilities"][0]

    assert first["logprob"] == -0.5
    assert len(first["top_logprobs"]) == 2
    assert bytes(first["bytes"]).decode() == first["token"]


@asking
async def test_a_schema_reaches_the_engine():
    client = Client("{}")
    await client("/completion", HELLO | {"json_schema": {"type": "object"}})
    form = client.backend.submitted[0].response_format
    assert form == {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


@asking
async def test_infill_puts_the_gap_between_two_texts(coder):  # noqa: F811
    client = Client("x", model=coder)
    body = {"input_prefix": "a = ", "prompt": "b", "input_suffix": "\n",
            "input_extra": [{"filename": "f.py", "text": "c"}]}  # fmt: skip
    assert (await client("/infill", body)).json["content"] == "x"

    tokens = client.backend.submitted[0].tokens
    before, after = tokens[tokens.index(300) + 1 : tokens.index(301)], tokens[-2:]
    assert before == coder.encode("f.py\nc\na = b", add_bos=False)
    assert after == [*coder.encode("\n", add_bos=False), 302]


@asking
async def test_tokens_and_texts():
    client = Client()
    ids = ids_of("Hé", add_bos=False)
    pieces = (await client("/tokenize", {"content": "Hé", "with_pieces": True})).json["tokens"]
    found = [p["piece"] if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces]

    assert (await client("/tokenize", {"content": "Hé"})).json == {"tokens": ids}
    assert (await client("/tokenize", {"content": "Hé", "add_special": True})).json["tokens"] == (
        ids_of("Hé")
    )
    assert (await client("/detokenize", {"tokens": ids})).json == {"content": "Hé"}
    assert [p["id"] for p in pieces] == ids
    assert b"".join(bytes(each) for each in found).decode() == "Hé"
    for wrong in ([True], [99999], "x", [1.5]):
        assert (await client("/detokenize", {"tokens": wrong})).status == 400


@asking
async def test_a_template_is_applied():
    prompt = (await Client()("/apply-template", SAY_HI)).json["prompt"]
    assert prompt.endswith("<user>hi[THINK]<assistant>")


@asking
async def test_properties_name_no_folder():
    client = Client(sequences=3, settings=ServerSettings({"temperature": 0.25}))
    found = (await client("/props")).json

    assert found["total_slots"] == 3
    assert found["default_generation_settings"]["n_ctx"] == 256
    assert found["default_generation_settings"]["params"]["temperature"] == 0.25
    assert "/" not in found["model_path"]
    assert "<{{ m.role }}>" in found["chat_template"]
