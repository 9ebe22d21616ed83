"""Published client libraries against a server on loopback."""

import asyncio
from typing import Literal

import openai
import pydantic
import pytest

from tests.limits import HANG_SECONDS
from tests.serve.live import serving

HI = [{"role": "user", "content": "hi"}]


def client_of(server, kind=openai.OpenAI, key="none", **options):
    return kind(
        base_url=f"{server.url}/v1", api_key=key, timeout=HANG_SECONDS, max_retries=0, **options
    )


@pytest.fixture(scope="module")
def client(real):
    with client_of(real) as found:
        yield found


def test_a_chat_and_its_stream_have_the_same_text(client):
    asked = {"model": "any", "messages": HI, "max_tokens": 12, "seed": 7,
             "extra_body": {"ignore_eos": True}}  # fmt: skip
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"


def test_the_text_is_that_of_the_library(client):
    import npurt
    from tests.llm import tiny

    with npurt.Llama(tiny.path("llama3", "q8_0"), n_ctx=512) as llm:
        expected = llm.generate("Once upon", max_tokens=16, seed=3, temperature=1.2)
    answer = client.completions.create(
        model="any", prompt="Once upon", max_tokens=16, seed=3, temperature=1.2
    )

    assert answer.choices[0].text == expected


def test_log_probabilities_are_read(client):
    answer = client.chat.completions.create(
        model="any",
        messages=HI,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
        extra_body={"ignore_eos": True},
    )
    content = answer.choices[0].logprobs.content

    assert len(content) == 3
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert all(entry.logprob <= entry.top_logprobs[0].logprob <= 0 for entry in content)


# a model with random weights may write keys without end
class Answer(pydantic.BaseModel, extra="forbid"):
    kind: Literal["cat", "dog"]
    legs: Literal[2, 4]


def test_an_answer_is_parsed(client):
    answer = client.chat.completions.parse(
        model="x", messages=HI, response_format=Answer, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)


@pytest.mark.parametrize("stream", [True, False])
def test_a_forced_call_has_arguments_of_its_schema(client, stream):
    tool = openai.pydantic_function_tool(Answer)
    asked = {"model": "x", "messages": HI, "tools": [tool], "tool_choice": "required"}
    if stream:
        with client.chat.completions.stream(**asked, max_tokens=200) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.parse(**asked, max_tokens=200)
    (call,) = answer.choices[0].message.tool_calls

    assert call.function.name == "Answer"
    assert isinstance(call.function.parsed_arguments, Answer)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_of_the_clients_own_classes(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="x", messages=HI, temperature=-1)
    assert "temperature" in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="x", prompt="word " * 2000)
    assert caught.value.code == "context_length_exceeded"


def test_a_client_retries_when_the_queue_is_full(tmp_path):
    with serving(tmp_path, sequences=1, step_seconds=0.01) as server:

        async def run():
            async with client_of(server, openai.AsyncOpenAI) as client:
                endless = [
                    asyncio.create_task(
                        client.chat.completions.create(model="x", messages=HI, max_tokens=40)
                    )
                    for _ in range(8)
                ]
                done = await asyncio.gather(*endless, return_exceptions=True)
                refused = [each for each in done if isinstance(each, openai.RateLimitError)]
                assert refused
                assert int(refused[0].response.headers["retry-after"]) >= 1
                patient = client.with_options(max_retries=10)
                return await asyncio.gather(*(
                    patient.chat.completions.create(model="x", messages=HI, max_tokens=10)
                    for _ in range(8)
                ))  # fmt: skip

        assert len(asyncio.run(run())) == 8


def test_a_wrong_key_is_an_authentication_error(tmp_path):
    with serving(tmp_path, address={"keys": ["right"]}) as server:
        with client_of(server, key="wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with client_of(server, key="right") as client:
            assert client.models.list().data


def test_a_cancelled_request_frees_the_server(live):
    async def run():
        async with client_of(live, openai.AsyncOpenAI) as client:
            for stream in (False, True):
                task = asyncio.create_task(
                    client.chat.completions.create(model="x", messages=HI, stream=stream)
                )
                await asyncio.sleep(0.05)
                task.cancel()
                result = (await asyncio.gather(task, return_exceptions=True))[0]
                if stream and not isinstance(result, BaseException):
                    await result.close()

    asyncio.run(run())
    assert live.settles("llamacpp:requests_processing", 0)


def test_usage_of_a_text_that_a_stop_text_ended_has_its_cached_tokens(client):
    """The front ends such a completion itself, before the engine's last message about it."""
    asked = {"model": "any", "prompt": "Once upon a time, " * 12, "seed": 7, "max_tokens": 20,
             "extra_body": {"ignore_eos": True}}  # fmt: skip
    whole = client.completions.create(**asked)
    text = whole.choices[0].text
    stopped = client.completions.create(**asked, stop=text[3:5])

    assert stopped.choices[0].text == text[: text.find(text[3:5])]
    assert stopped.usage.completion_tokens < 20
    assert stopped.usage.prompt_tokens_details.cached_tokens > 64
