"""/v1/completions and /v1/models."""

import pytest

from npurt.serve.front.served_model import ServedModel
from npurt.serve.interfaces.openai_common import text_logprobs
from tests.llm import tiny
from tests.serve.client import TEMPLATE, Client, asking, served

TEXT = "/v1/completions"


@asking
async def test_an_answer_has_this_form():
    answer = (await Client(" world")(TEXT, {"prompt": "Hello"})).json

    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}
    ]


@asking
async def test_a_token_id_ends_a_text():
    """As in `Llama.generate`, the end token is not part of the text."""
    client = Client(" world, you")
    ids = client.model.tokenizer.encode(" world, you", add_bos=False)
    stop = ["never", ids[2]]

    answer = (await client(TEXT, {"prompt": "Hello", "stop": stop})).json
    events = (await client(TEXT, {"prompt": "Hello", "stop": stop, "stream": True})).events

    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" wor", "stop")
    assert answer["usage"]["completion_tokens"] == 2
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == " wor"


@asking
async def test_echo_puts_the_prompt_before_the_text():
    client = Client(" world")
    body = {"prompt": "Hello", "echo": True}
    events = (await client(TEXT, body | {"stream": True})).events

    assert (await client(TEXT, body)).json["choices"][0]["text"] == "Hello world"
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "Hello world"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("maximum", [0, 9])
@pytest.mark.parametrize("chunk", [1, 3, 64])
@asking
async def test_echo_with_log_probabilities_scores_the_prompt(maximum, chunk):
    """lm-eval-harness expects null for the first token and a log probability for each later one."""
    client = Client(" world", chunk=chunk)
    tokenizer = client.model.tokenizer
    ids = tokenizer.encode("Hello, you")
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": maximum}
    choice = (await client(TEXT, body)).json["choices"][0]
    events = (await client(TEXT, body | {"stream": True})).events[:-1]
    pieces = [each["choices"][0] for each in events]
    found = choice["logprobs"]
    rest = tokenizer.encode(" world", add_bos=False) if maximum else []

    assert choice["text"] == "Hello, you" + (" world" if maximum else "")
    assert choice["finish_reason"] == ("stop" if maximum else "length")
    assert found["tokens"] == [tokenizer.piece(i).decode() for i in ids + rest]
    assert found["token_logprobs"] == [None, *(-i / 8 for i in ids[1:]), *(-0.5 for _ in rest)]
    assert found["top_logprobs"][0] is None
    assert len(found["top_logprobs"]) == len(found["text_offset"]) == len(ids + rest)
    assert found["text_offset"][len(ids) :][:1] == ([len("Hello, you")] if rest else [])
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    for name, whole in found.items():
        streamed = [x for piece in pieces if piece["logprobs"] for x in piece["logprobs"][name]]
        assert streamed == whole


@asking
async def test_a_prompt_may_be_ids():
    client = Client("x")
    ids = served().tokenizer.encode("Hello")
    await client(TEXT, {"prompt": ids})
    await client(TEXT, {"prompt": "Hello"})

    assert client.backend.submitted[0].tokens == client.backend.submitted[1].tokens == ids


@pytest.mark.parametrize("prompt", [["a", "bc"], [[5, 6], [7]]])
@asking
async def test_several_prompts_give_texts_in_order(prompt):
    client = Client()
    choices = (await client(TEXT, {"prompt": prompt, "n": 2, "max_tokens": 3, "seed": 1})).json[
        "choices"
    ]
    ids = [submit.tokens for submit in client.backend.submitted]

    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert ids[0] == ids[1] != ids[2] == ids[3]


WRONG = [
    ({}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [[]]}, "prompt"), ({"prompt": [999999]}, "prompt"), ({"prompt": [-1]}, "prompt"),
    ({"prompt": ["a"] * 9}, "prompt"), ({"prompt": ["a"] * 5, "n": 2}, "prompt"),
    ({"prompt": "a", "best_of": 3}, "best_of"), ({"prompt": "a", "suffix": 3}, "suffix"),
    ({"prompt": "a", "logprobs": 99}, "logprobs"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda v: str(v)[:40])
@asking
async def test_what_is_wrong_is_named(body, param):
    reply = await Client("x")(TEXT, body)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@asking
async def test_log_probabilities_have_the_older_form():
    body = {"prompt": "a", "logprobs": 2}
    client = Client("Hello")
    found = (await client(TEXT, body)).json["choices"][0]["logprobs"]
    events = (await client(TEXT, body | {"stream": True})).events[:-1]
    streamed = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["logprobs"]]

    assert "".join(found["tokens"]) == "Hello"
    assert set(found["token_logprobs"]) == {-0.5}
    assert all(len(top) <= 2 for top in found["top_logprobs"])
    assert found["text_offset"][0] == 0
    assert [o for each in streamed for o in each["text_offset"]] == found["text_offset"]


# --- Filling a gap ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """Return a model with tokens for prefix, suffix and middle."""
    return ServedModel(tiny.coder(tmp_path_factory.mktemp("coder")), "coder", TEMPLATE)


@asking
async def test_a_suffix_stands_after_the_gap(coder):
    client = Client("x", model=coder)
    reply = await client(TEXT, {"prompt": "def f(", "suffix": "): pass"})
    plain = [coder.encode(text, add_bos=False) for text in ("def f(", "): pass")]

    assert reply.json["choices"][0]["text"] == "x"
    found = client.backend.submitted[0].tokens
    head = [coder.tokenizer.bos] if coder.tokenizer.add_bos else []
    assert found == [*head, 300, *plain[0], 301, *plain[1], 302]


@asking
async def test_a_model_that_cannot_fill_in_says_so():
    reply = await Client("x")(TEXT, {"prompt": "a", "suffix": "b"})

    assert reply.status == 400
    assert reply.json["error"]["code"] == "unsupported"


# --- Models -----------------------------------------------------------------------------------


@asking
async def test_models_are_listed_and_described():
    client = Client()
    listed = (await client("/v1/models")).json
    one = (await client("/v1/models/tiny")).json
    unknown = await client("/v1/models/gpt-9")

    assert listed["object"] == "list"
    assert listed["data"] == [one]
    assert (one["id"], one["object"]) == ("tiny", "model")
    assert unknown.status == 404
    assert unknown.json["error"]["code"] == "model_not_found"


def test_offsets_of_many_tokens_take_linear_time():
    likely = [(100, (-0.5, []))] * 20_000
    found = text_logprobs(served(), likely, 3)
    length = len(found["tokens"][0])
    assert found["text_offset"] == [3 + i * length for i in range(len(likely))]
