"""The examples in mlx-lm's README and repository run after changing one import.

Source of the calls: PyPI, mlx_lm-0.32.2-py3-none-any.whl, README, and ml-explore/mlx-lm on GitHub,
mlx_lm/examples.  test_mlx_lm.py tests the details.
"""

import json

import numpy as np
import pytest

from npurt.compat.mlx_lm import BatchResponse, batch_generate, generate, load, stream_generate
from npurt.compat.mlx_lm.models.cache import make_prompt_cache
from npurt.errors import LayoutError, SettingError, UnsupportedOp
from tests.compat.questions import MESSAGES
from tests.llm import gguf_files as raw
from tests.llm import tiny

QUESTIONS = ("Why is the sky blue?", "What time is it?", "How tall is Mt Everest?")


def ask(tokenizer, question, **options):
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)


def test_a_real_model_is_asked_and_streams(real_model):
    model, tokenizer = load(real_model("smollm2-135m"), progress=False)
    with model:
        prompt = ask(tokenizer, "Write a story about Einstein")
        text = generate(model, tokenizer, prompt=prompt, max_tokens=12)
        responses = list(stream_generate(model, tokenizer, prompt, max_tokens=12))
        assert "".join(response.text for response in responses) == text
        assert text.isascii()
        assert tokenizer("Hello world").input_ids == tokenizer.encode("Hello world")
        assert tokenizer.decode(tokenizer.convert_tokens_to_ids(["Hello", "Ġworld"])) == (
            "Hello world"
        )
        assert not tokenizer.has_thinking


# --- Batches --------------------------------------------------------------------------------------


def test_a_batch_has_the_texts_that_single_prompts_have(pair, capsys):
    model, tokenizer = pair
    prompts = [ask(tokenizer, question) for question in QUESTIONS]
    wanted = [generate(model, tokenizer, prompt, max_tokens=5) for prompt in prompts]
    result = batch_generate(
        model, tokenizer, prompts, verbose=True, max_tokens=5, completion_batch_size=8,
        return_token_ids=True, return_logprobs=True,
    )  # fmt: skip

    assert isinstance(result, BatchResponse)
    assert result.texts == wanted
    assert result.caches is None
    assert [tokenizer.decode(ids) for ids in result.token_ids] == wanted
    responses = list(stream_generate(model, tokenizer, prompts[0], max_tokens=5))
    assert result.token_ids[0] == [each.token for each in responses]
    assert result.logprobs[0] == [float(each.logprobs[each.token]) for each in responses]
    assert result.stats.prompt_tokens == sum(map(len, prompts))
    assert result.stats.generation_tokens == 15
    assert result.stats.prompt_tps > 0 < result.stats.generation_tps
    assert "3 of 3 texts" in capsys.readouterr().out


def test_a_batch_goes_on_from_caches_and_leaves_them_alone(pair):
    model, tokenizer = pair
    prompts = [ask(tokenizer, question) for question in QUESTIONS[:2]]
    first = batch_generate(model, tokenizer, prompts, max_tokens=[3, 4], return_prompt_caches=True)
    before = [cache[0].tokens for cache in first.caches]
    follow = [[5, 9], [7]]
    result = batch_generate(model, tokenizer, follow, first.caches, max_tokens=4)

    assert [cache[0].tokens for cache in first.caches] == before
    for prompt, cache, text in zip(follow, first.caches, result.texts, strict=True):
        assert generate(model, tokenizer, prompt, max_tokens=4, prompt_cache=cache) == text
    assert (first.token_ids, first.logprobs) == (None, None)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"max_tokens": [1]}, SettingError, "2 prompts"),
        ({"prompt_caches": []}, SettingError, "0 prompt caches"),
        ({"max_kv_size": 4}, UnsupportedOp, "max_kv_size"),
    ],
)
def test_a_batch_that_makes_no_sense_is_refused(pair, options, error, said):
    with pytest.raises(error, match=said):
        batch_generate(*pair, [[1, 5], [1, 6]], **options)


# --- Tokenizers -----------------------------------------------------------------------------------


def test_a_vocabulary_is_a_dict(pair, own):
    tokenizer = pair[1]
    vocabulary = tokenizer.get_vocab()

    assert len(vocabulary) == len(tokenizer) == tokenizer.vocab_size
    assert sorted(vocabulary.values()) == list(range(len(tokenizer)))
    ids = tokenizer.encode("Hello")
    texts = tokenizer.convert_ids_to_tokens(ids)
    assert [vocabulary[text] for text in texts] == ids == tokenizer.convert_tokens_to_ids(texts)
    assert tokenizer.convert_tokens_to_ids(texts[0]) == ids[0]
    assert tokenizer.convert_ids_to_tokens(np.int64(ids[0])) == texts[0]
    assert tokenizer.convert_tokens_to_ids("no such token") is None
    vocabulary.clear()
    assert tokenizer.get_vocab()
    with pytest.raises(LayoutError):
        tokenizer.convert_ids_to_tokens(10**6)


def test_a_tokenizer_is_called(pair):
    tokenizer = pair[1]
    ids = [tokenizer.encode(text) for text in ("Hello you", "x")]

    one, two = tokenizer("Hello you"), tokenizer(["Hello you", "x"])
    assert one == {"input_ids": ids[0], "attention_mask": [1] * len(ids[0])}
    assert two["input_ids"] == two.input_ids == ids
    assert [len(mask) for mask in two.attention_mask] == [len(each) for each in ids]
    assert tokenizer("x", add_special_tokens=False).input_ids == ids[1][1:]
    with pytest.raises(UnsupportedOp, match="return_tensors='np'"):
        tokenizer("x", return_tensors="np")


TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{% if tools %}{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """Return a model with tokens for thoughts and tool calls, and a template that uses both."""
    file = tiny.read(tiny.path())
    arrays = {key: content[1] for key, kind, content in file.keys if kind == raw.ARRAY}
    names = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
    changed = {name: list(arrays[name]) for name in names}
    for i, text in enumerate(("<think>", "</think>", "<tool_call>", "</tool_call>"), 600):
        changed[names[0]][i], changed[names[1]][i] = text, 4  # token type 4: user-defined
    keys = [
        (key, kind, (content[0], changed[key]) if key in changed else content)
        for key, kind, content in file.keys
        if key != "tokenizer.chat_template"
    ]
    keys += [
        ("tokenizer.chat_template", raw.STRING, TEMPLATE),
        ("tokenizer.ggml.unknown_token_id", raw.U32, 7),
    ]
    path = tiny.write(file.but(keys=keys), tmp_path_factory.mktemp("thinker"))
    model, tokenizer = load(path, progress=False)
    with model:
        yield tokenizer


def test_a_model_that_thinks_says_so(thinker, pair):
    assert thinker.has_thinking
    assert (thinker.think_start, thinker.think_end) == ("<think>", "</think>")
    assert (thinker.think_start_id, thinker.think_end_id) == (600, 601)
    assert thinker.convert_tokens_to_ids(["<think>", "no such token"]) == [600, 7]
    plain = pair[1]
    assert not plain.has_thinking
    assert (plain.think_start, plain.think_end, plain.think_start_id, plain.think_end_id) == (
        None, None, None, None
    )  # fmt: skip


def test_a_model_that_can_think_does_unless_told_otherwise(thinker):
    assert thinker.has_chat_template
    for options, said in (({}, "True"), ({"enable_thinking": False}, "False")):
        text = thinker.apply_chat_template(MESSAGES, tokenize=False, **options)
        assert text == f"Be brief.Hello{said}"


def test_calls_are_read_from_a_text(thinker, pair):
    call = {"name": "multiply", "arguments": {"a": 2, "b": 3}}
    response = f"Well: {thinker.tool_call_start}\n{json.dumps(call)}\n{thinker.tool_call_end}"
    start = response.find(thinker.tool_call_start) + len(thinker.tool_call_start)
    end = response.find(thinker.tool_call_end)

    assert thinker.tool_parser(response[start:end].strip()) == call
    other = json.dumps({"name": call["name"], "parameters": call["arguments"]})
    assert thinker.tool_parser(other) == call
    assert thinker.tool_parser(f"{other}\n{other}") == [call, call]
    assert pair[1].tool_parser is None
    with pytest.raises(ValueError, match="Expecting value"):
        thinker.tool_parser("no call")


def test_functions_and_their_results_go_on_in_a_cache(pair):
    """The calls of examples/tool_use.py work; the test writes the tool call of the small model."""
    model, tokenizer = pair
    cache = make_prompt_cache(model)
    generate(model, tokenizer, ask(tokenizer, "Multiply 2 and 3."), max_tokens=4,
             prompt_cache=cache)  # fmt: skip
    before = len(cache[0].tokens)
    prompt = ask(tokenizer, "6")
    generate(model, tokenizer, prompt, max_tokens=4, prompt_cache=cache)
    assert len(cache[0].tokens) == before + len(prompt) + 4
