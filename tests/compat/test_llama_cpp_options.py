"""Options of llama-cpp-python have the same effect in npurt, or are rejected by name."""

import json
import re
import threading

import numpy as np
import pytest

from npurt.compat.llama_cpp import (
    Llama,
    LlamaGrammar,
    StoppingCriteriaList,
)
from npurt.compat.llama_cpp.arguments import DEFAULTS, MODEL_DEFAULTS
from npurt.errors import GrammarError, LayoutError, SettingError, UnsupportedOp
from npurt.llm.decode import stops
from tests.compat.questions import GREEDY, MESSAGES, PATH, PROMPT, RECORDED

RECORDED_NAMES = {n: {p[0] for p in ps} for n, ps in RECORDED["methods"].items()}
MACHINE = {  # arguments that do not change the generated text
    "flash_attn": True, "main_gpu": 1, "n_gpu_layers": -1, "n_threads_batch": 1, "n_ubatch": 1,
    "no_perf": True, "numa": True, "offload_kqv": False, "op_offload": True, "split_mode": 2,
    "swa_full": True, "tensor_split": [1.0], "use_mlock": True, "use_mmap": False,
}  # fmt: skip


def test_arguments_of_machines_and_defaults_change_nothing():
    with Llama(PATH, verbose=False, n_batch=2048, **MACHINE, **MODEL_DEFAULTS) as model:
        options = {n: v for n, v in DEFAULTS.items() if n in RECORDED_NAMES["create_completion"]}
        result = model(PROMPT, max_tokens=1, mirostat_tau=5.0, **options | {"logprobs": None})
        assert result["usage"]["completion_tokens"] <= 1


@pytest.mark.parametrize("name", sorted(MODEL_DEFAULTS))
def test_a_model_is_not_opened_with_what_npurt_does_not_have(name):
    with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
        Llama(PATH, **{name: "other"})


CALLS = {"create_completion": (PROMPT,), "create_chat_completion": ([],), "generate": ([1],),
         "sample": ()}  # fmt: skip


REFUSED = [(m, n) for m in CALLS for n in sorted(DEFAULTS) if n in RECORDED_NAMES[m]]


@pytest.mark.parametrize(("method", "name"), REFUSED)
def test_options_that_npurt_does_not_have_are_refused(llm, method, name):
    with pytest.raises(UnsupportedOp, match=f"does not have {name}="):
        getattr(llm, method)(*CALLS[method], **{name: "other"})


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
WILD = {"temperature": 4.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 60}


def test_a_grammar_decides_what_is_written(llm, tmp_path):
    file = tmp_path / "a.gbnf"
    file.write_text('root ::= [a-c]{3} "é"', "utf-8")
    for grammar in (LlamaGrammar.from_string(file.read_text("utf-8"), verbose=False),
                    LlamaGrammar.from_file(file), LlamaGrammar.from_file(str(file))):  # fmt: skip
        text = llm(PROMPT, grammar=grammar, seed=3, **WILD)["choices"][0]["text"]
        assert re.fullmatch("[a-c]{3}é", text)
    ids = list(llm.generate(llm.tokenize(b"hi"), grammar=grammar, temp=4.0, top_k=0, min_p=0.0))
    assert re.fullmatch("[a-c]{3}é", llm.detokenize(ids).decode())
    with pytest.raises(GrammarError, match="GBNF"):
        LlamaGrammar.from_string("root ::= (")
    with pytest.raises(GrammarError, match="GBNF"):
        llm(PROMPT, grammar="root ::= (")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_of_its_format(llm, stream):
    """A JSON schema can be given as in llama-cpp-python or as in OpenAI's interface."""
    for options in (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"grammar": LlamaGrammar.from_json_schema(json.dumps(SCHEMA))},
    ):
        given = llm.create_chat_completion(MESSAGES, stream=stream, **options, **WILD)
        if stream:
            text = "".join(c["choices"][0]["delta"].get("content", "") for c in given)
        else:
            text = given["choices"][0]["message"]["content"]
            assert given["choices"][0]["finish_reason"] == "stop"
        assert json.loads(text) in ({"a": 1}, {"a": 22})


def test_single_tokens_have_no_grammar(llm):
    llm.reset()
    llm.eval([1, 5])
    with pytest.raises(UnsupportedOp, match="grammar="):
        llm.sample(grammar=LlamaGrammar.from_string('root ::= "a"'))


def test_log_probabilities_have_the_shape_of_completions(llm, own):
    done = llm(PROMPT, max_tokens=5, logprobs=2, temperature=0.0)["choices"][0]
    own.generate(PROMPT, max_tokens=5, logprobs=2, **GREEDY)
    exact = own.timing.logprobs
    given = done["logprobs"]

    assert list(given) == ["tokens", "text_offset", "token_logprobs", "top_logprobs"]
    assert given["token_logprobs"] == [each.logprob for each in exact]
    assert given["tokens"] == [
        own.tokenizer.piece(each.token).decode(errors="replace") for each in exact
    ]
    assert given["text_offset"][0] == len(PROMPT)
    sizes = [len(token) for token in given["tokens"]]
    assert np.diff(given["text_offset"]).tolist() == sizes[:-1]
    for token, value, top in zip(*(given[n] for n in list(given) if n != "text_offset"),
                                 strict=True):  # fmt: skip
        assert top[token] == value == max(top.values())  # greedy decoding takes the likeliest token
    zero = llm(PROMPT, max_tokens=2, logprobs=0, temperature=0.0)["choices"][0]["logprobs"]
    assert [len(top) for top in zero["top_logprobs"]] == [1, 1]
    chunks = list(llm(PROMPT, max_tokens=5, logprobs=2, temperature=0.0, stream=True))
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, values in given.items():
        assert [value for part in parts for value in part[name]] == values


def test_log_probabilities_have_the_shape_of_chats(llm):
    options = {"max_tokens": 4, "logprobs": True, "temperature": 0.0}
    choice = llm.create_chat_completion(MESSAGES, top_logprobs=2, **options)["choices"][0]
    content = choice["logprobs"]["content"]

    assert len(content) == 4
    for each in content:
        assert list(each) == ["token", "logprob", "bytes", "top_logprobs"]
        assert len(each["top_logprobs"]) == 2
        # greedy decoding takes the likeliest token
        assert each["top_logprobs"][0]["logprob"] == each["logprob"]
    chunks = llm.create_chat_completion(MESSAGES, top_logprobs=2, stream=True, **options)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [each for part in parts if part for each in part["content"]] == content
    plain = llm.create_chat_completion(MESSAGES, max_tokens=1, top_logprobs=2)["choices"][0]
    assert plain["logprobs"] is None
    for refused in (
        lambda: llm(PROMPT, logprobs=1001),
        lambda: llm.create_chat_completion(MESSAGES, logprobs=1, top_logprobs=1001),
    ):
        with pytest.raises(SettingError, match=r"logprobs is 1001"):
            refused()


def test_logits_all_changes_no_text(llm):
    with Llama(PATH, logits_all=True, verbose=False) as other:
        options = {"max_tokens": 2, "logprobs": 1, "temperature": 0.0}
        given, wanted = other(PROMPT, **options), llm(PROMPT, **options)
    assert given["choices"] == wanted["choices"]


@pytest.mark.parametrize("texts", [None, 5, {"a"}, {"a": 1}, [None], [5.5]], ids=repr)
def test_what_is_no_text_is_not_embedded(llm, texts):
    with pytest.raises(LayoutError):
        llm.embed(texts)
    with pytest.raises(LayoutError):
        llm.create_embedding(texts)


def test_a_list_of_criteria_says_what_one_of_them_returned_wrong(llm):
    criteria = StoppingCriteriaList([lambda ids, scores: np.array([True, False])])
    with pytest.raises(LayoutError, match="criterion returned"):
        llm(PROMPT, stopping_criteria=criteria)


def test_typical_p_is_a_setting_of_completions(llm):
    """In a flat distribution, the most typical token may differ from the likeliest token."""
    options = {"max_tokens": 8, "seed": 5, "temperature": 1.0, "top_k": 0}
    texts = {llm(PROMPT, typical_p=p, **options)["choices"][0]["text"] for p in (1.0, 0.02, 0.02)}

    assert len(texts) == 2


def test_names_that_never_were_are_type_errors(llm):
    with pytest.raises(TypeError, match="max_token"):
        llm(PROMPT, max_token=3)
    for name in ("n_gpu_layer", "f16_kv"):
        with pytest.raises(TypeError, match=rf"^Llama\.__init__\(\) got .* '{name}'"):
            Llama(PATH, **{name: True})
    with pytest.raises(TypeError, match=r"^Llama\.tokenize\(\) missing"):
        llm.tokenize()


def test_formats_have_the_names_of_there():
    with Llama(PATH, chat_format="llama-2", verbose=False) as model:
        assert "[INST]" in model._llm.template.source
    with pytest.raises(SettingError, match="no chat template 'functionary'"):
        Llama(PATH, chat_format="functionary")


@pytest.mark.parametrize(("given", "kept"), [(None, np.float16), (1, np.float16), (0, np.float32)])
def test_the_cache_has_the_type_that_was_asked_for(given, kept):
    with Llama(PATH, type_k=given, type_v=given, verbose=False) as model:
        model.eval([1])
        assert model.save_state().llama_state.arrays[0].dtype == kept
    for wrong in ({"type_k": 8}, {"type_k": 0}, {"type_k": 8, "type_v": 8}):
        with pytest.raises(UnsupportedOp, match="type_k is"):
            Llama(PATH, **wrong)


def test_no_file_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nothing"):
        Llama(str(tmp_path / "nothing.gguf"))


def test_another_thread_cannot_end_a_completion(llm, own, monkeypatch):
    text = own.generate(PROMPT, max_tokens=3, **GREEDY)
    split, refused = stops.split_at_stop, []

    def meanwhile():
        try:
            llm("Other", max_tokens=1)
        except SettingError as error:
            refused.append("another thread" in error.what)

    def between(*arguments):
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()
        return split(*arguments)

    monkeypatch.setattr(stops, "split_at_stop", between)  # called between two steps

    assert llm(PROMPT, max_tokens=3, **GREEDY)["choices"][0]["text"] == text
    assert llm.create_chat_completion(MESSAGES, max_tokens=2)["usage"]["completion_tokens"] <= 2
    assert len(refused) >= 4
    assert all(refused)
