"""Agent libraries as clients: langchain-openai and pydantic-ai."""

import asyncio
import json

import openai
import pydantic_ai
import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.serve.live import serving
from tests.serve.test_clients import Answer, client_of
from tests.serve.test_tools import HERMES

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Bern"}}\n</tool_call>'


def get_time(city: str) -> str:
    """Return the time in a city."""
    return f"noon in {city}"


def ids(text):
    from npurt.serve.front.served_model import ServedModel

    return ServedModel(tiny.path("llama3", "q8_0")).tokenizer.encode(text, add_bos=False)


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A server that generates a function call with seed 0 and an answer with seed 1."""
    texts = [ids(CALL), ids("It is noon.")]
    folder = tmp_path_factory.mktemp("caller")
    with serving(folder, template=HERMES, texts=texts, n_ctx=512) as server:
        yield server


@pytest.fixture
def chain():
    """Return a function that makes a langchain model for a server."""
    with openai.DefaultHttpxClient() as pool:  # langchain's own client would never be closed

        def made(server, kind=ChatOpenAI, **options):
            options = {"max_retries": 0, "timeout": HANG_SECONDS, "model": "any", **options}
            return kind(base_url=f"{server.url}/v1", api_key="none", http_client=pool, **options)

        yield made


def agent(client, **options):
    model = OpenAIChatModel("any", provider=OpenAIProvider(openai_client=client))
    return pydantic_ai.Agent(model, **options)


def with_agent(server, work, **options):
    """Return the result of the coroutine *work*(agent)."""

    async def run():
        async with client_of(server, openai.AsyncOpenAI) as client:
            return await work(agent(client, **options))

    return asyncio.run(run())


# --- langchain-openai -----------------------------------------------------------------------------


def test_langchain_chats_and_streams(chain, real):
    asked = chain(real, max_tokens=12, seed=7, stream_usage=True)
    whole = asked.invoke("hi")
    chunks = list(asked.stream("hi"))

    assert whole.content
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    used = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert used[-1]["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert whole.response_metadata["model_name"] == "tiny"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_structured_output(chain, real, method):
    asked = chain(real, max_tokens=200).with_structured_output(Answer, method=method)
    assert isinstance(asked.invoke("hi"), Answer)


def test_langchain_calls_tools_and_sends_their_results(chain, caller):
    asked = chain(caller, seed=0).bind_tools([convert_to_openai_tool(get_time)])
    called = asked.invoke("What time is it in Bern?")
    streamed = None
    for chunk in asked.stream("What time is it in Bern?"):
        streamed = chunk if streamed is None else streamed + chunk
    (call,) = called.tool_calls
    answer = chain(caller, seed=1).invoke([
        ("user", "What time is it in Bern?"), called,
        {"role": "tool", "tool_call_id": call["id"], "content": get_time(**call["args"])},
    ])  # fmt: skip

    assert (call["name"], call["args"]) == ("get_time", {"city": "Bern"})
    assert [(each["name"], each["args"]) for each in streamed.tool_calls] == [
        ("get_time", {"city": "Bern"})
    ]
    assert answer.content == "It is noon."


def test_langchain_raises_openais_errors(chain, real):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chain(real, temperature=-1.0).invoke("hi")
    with pytest.raises(openai.BadRequestError) as caught:
        chain(real).invoke("word " * 2000)
    assert "context" in str(caught.value)


def test_langchain_times_out_and_frees_the_server(chain, tmp_path):
    with serving(tmp_path, step_seconds=0.05, n_ctx=512) as server:
        with pytest.raises(openai.APITimeoutError):
            chain(server, timeout=0.5, max_tokens=400).invoke("hi")
        assert server.settles("llamacpp:requests_processing", 0)


def test_langchain_reads_embeddings(chain, tmp_path):
    with serving(
        tmp_path, engine="npurt.serve.engine", settings={"embeddings": True},
        embeddings=True, n_ctx=64,
    ) as server:  # fmt: skip
        # the client sends texts instead of ids
        asked = chain(server, OpenAIEmbeddings, check_embedding_ctx_length=False)
        first, second = asked.embed_documents(["the cat", "the dog"])
        assert asked.embed_query("the cat") == pytest.approx(first)
        assert first != second


# --- pydantic-ai ----------------------------------------------------------------------------------


def test_pydantic_ai_chats_and_streams(real):
    async def work(asked):
        whole = await asked.run("hi")
        async with asked.run_stream("hi") as stream:
            return whole, [piece async for piece in stream.stream_text(delta=True)]

    whole, pieces = with_agent(real, work, model_settings={"max_tokens": 12, "seed": 7})
    assert whole.output == "".join(pieces)
    assert whole.usage.output_tokens > 0


@pytest.mark.parametrize("kind", [Answer, pydantic_ai.NativeOutput(Answer)], ids=["call", "schema"])
def test_pydantic_ai_gets_structured_output(real, kind):
    result = with_agent(
        real, lambda asked: asked.run("hi"), output_type=kind, model_settings={"max_tokens": 200}
    )
    assert isinstance(result.output, Answer)


def test_pydantic_ais_agent_calls_a_tool_and_answers(caller):
    result = with_agent(
        caller,
        lambda asked: asked.run("What time is it in Bern?"),
        tools=[get_time],
        model_settings=lambda context: {"seed": context.run_step - 1},
    )
    parts = [part for message in result.all_messages() for part in message.parts]

    assert result.output == "It is noon."
    assert [part.content for part in parts if part.part_kind == "tool-return"] == ["noon in Bern"]


def test_pydantic_ai_maps_errors(real):
    with pytest.raises(ModelHTTPError) as caught:
        with_agent(real, lambda asked: asked.run("hi"), model_settings={"temperature": -1.0})
    assert caught.value.status_code == 400
    assert "temperature" in json.dumps(caught.value.body)


def test_pydantic_ai_waits_when_the_queue_is_full(tmp_path):
    with serving(tmp_path, sequences=1, step_seconds=0.01) as server:

        async def run():
            async with client_of(server, openai.AsyncOpenAI) as impatient:
                asked = agent(impatient, model_settings={"max_tokens": 40})
                done = await asyncio.gather(
                    *(asked.run("hi") for _ in range(8)), return_exceptions=True
                )
                refused = [each for each in done if isinstance(each, ModelHTTPError)]
                assert refused
                assert {each.status_code for each in refused} == {429}
                patient = agent(
                    impatient.with_options(max_retries=10), model_settings={"max_tokens": 9}
                )
                return await asyncio.gather(*(patient.run("hi") for _ in range(8)))

        assert len(asyncio.run(run())) == 8


def test_a_cancelled_agent_frees_the_server(tmp_path):
    with serving(tmp_path, step_seconds=0.05, n_ctx=512) as server:

        async def work(asked):
            task = asyncio.create_task(asked.run("hi"))
            await asyncio.to_thread(server.settles, "llamacpp:requests_processing", 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with_agent(server, work, model_settings={"max_tokens": 400})
        assert server.settles("llamacpp:requests_processing", 0)
