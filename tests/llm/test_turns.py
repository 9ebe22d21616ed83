"""Test that a conversation that outgrows the context goes on without its oldest turns."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.compat.llama_cpp import Llama as LlamaCpp
from npurt.compat.llama_cpp.llama_chat_format import ChatFormatterResponse, register_chat_format
from npurt.errors import ContextFull
from npurt.llm.text.turns import fitted, turns, without
from tests.llm import tiny

N_CTX = 256
MODEL = tiny.path("llama3", "q8_0")
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def long(count=20):
    """Return a system message and *count* turns."""
    told = [
        each for i in range(count) for each in (user(f"question {i}"), assistant(f"answer {i}"))
    ]
    return [SYSTEM, *told[:-1]]


def test_a_turn_keeps_calls_beside_their_results():
    asked = [user("a"), CALL, {"role": "tool", "content": "1"}, assistant("b"), user("c")]

    assert turns([SYSTEM, *asked]) == [[1, 2, 3, 4], [5]]
    assert without([SYSTEM, *asked], 1) == [SYSTEM, user("c")]


def test_messages_before_the_first_question_belong_to_the_first_turn():
    greeting = [assistant("hello"), user("a"), user("b"), assistant("c"), SYSTEM, user("d")]

    assert turns(greeting) == [[0], [1, 2, 3], [5]]
    assert without(greeting, 2) == [SYSTEM, user("d")]


MESSAGE = st.builds(
    lambda role, size: {"role": role, "content": "x" * size},
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.integers(0, 30),
)


@given(st.lists(MESSAGE, min_size=1), st.integers(8, 200), st.none() | st.integers(-1, 100))
def test_no_more_is_left_out_than_needed(messages, n_ctx, most):
    def render(kept):
        return [0] * sum(1 + len(each["content"]) for each in kept)

    count, ids = fitted(messages, render, n_ctx, most)

    last = len(turns(messages)) - 1
    if count == 0 and last > 0 and len(ids) > n_ctx:  # the last turn alone is too long
        assert ids == render(without(messages, last))
        return
    kept = without(messages, count)
    assert ids == render(kept)
    assert len(ids) <= n_ctx or last < 1
    assert [m for m in kept if m["role"] == "system"] == [
        m for m in messages if m["role"] == "system"
    ]
    assert count == 0 or count < len(turns(messages))
    space = n_ctx if most in (None, -1) else most
    if count and count < len(turns(messages)) - 1:
        assert len(ids) <= n_ctx - min(space, n_ctx // 4)
    if count:  # one turn less would leave too little space for the answer
        assert len(render(without(messages, count - 1))) > n_ctx - min(space, n_ctx // 4)
        assert len(render(messages)) + min(space, n_ctx // 8) > n_ctx
    elif len(turns(messages)) > 1:
        assert len(ids) + min(space, n_ctx // 8) <= n_ctx


@pytest.fixture
def registered():
    def formatter(messages, **_):
        return ChatFormatterResponse("".join(f"{m['role']}: {m['content']}\n" for m in messages))

    register_chat_format("plain")(formatter)
    yield "plain"
    from npurt.compat.llama_cpp.llama_chat_format import LlamaChatCompletionHandlerRegistry

    LlamaChatCompletionHandlerRegistry().unregister_chat_handler("plain")


def chatting(kind):
    """Return an open model of an interface, and a function that asks it."""
    options = {"temperature": 0, "max_tokens": 8}
    if kind == "Llama":
        llm = npurt.Llama(MODEL, n_ctx=N_CTX, progress=False)
        return llm, lambda messages: llm.chat(messages, **options)
    if kind == "Engine":
        engine = npurt.Engine(MODEL, n_ctx=N_CTX, progress=False, max_sequences=2)
        return engine, lambda messages: engine.chat(messages, **options).text()
    chat_format = None if kind == "llama.cpp" else "plain"
    llm = LlamaCpp(str(MODEL), n_ctx=N_CTX, verbose=False, chat_format=chat_format)

    def ask(messages):
        (choice,) = llm.create_chat_completion(messages, **options)["choices"]
        return choice["message"]["content"]

    return llm, ask


@pytest.mark.parametrize("kind", ["Llama", "Engine", "llama.cpp", "a format"])
def test_a_long_conversation_is_answered_and_says_so_once(kind, registered):
    llm, ask = chatting(kind)
    messages = long()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            whole = ask(messages)
            again = ask([*messages, assistant(whole or ""), user("And now?")])
            kept = next(n for n in range(1, 20) if ask(without(messages, n)) == whole and n > 1)
            with pytest.raises(ContextFull):
                ask([SYSTEM, user("word " * 300)])
        finally:
            llm.close()

    assert isinstance(again, str)
    assert kept > 1
    (warning,) = [each for each in said if "oldest turns" in str(each.message)]
    assert kind == "a format" or warning.filename == __file__


def test_the_prompt_of_a_chat_can_still_be_refused():
    with npurt.Llama(MODEL, n_ctx=N_CTX, progress=False) as llm, pytest.raises(ContextFull):
        llm.generate(llm.apply_chat_template(long(60)))
