"""Call every public function and method with invalid values.

A call may accept the value, but it must not raise a foreign error: each error is one of npurt's
tree, with a remedy.  IndexError is allowed for ``[]``, because it ends an iteration.
"""

import inspect
import itertools
import os

import numpy as np
import pytest

import npurt
from npurt.compat import llama_cpp, mlx_lm
from npurt.compat.mlx_lm import sample_utils
from npurt.compat.mlx_lm.models import cache
from npurt.errors import NpurtError
from npurt.llm.decode.llama import INTERNALS
from tests.llm import tiny

HUGE = 10**5000  # a number that Python refuses to print
WRONG = (
    None, b"x", "x", "", "\ud800", 1.5, float("nan"), float("inf"), -1, 0, 2**70, -HUGE, HUGE, True,
    [], [None], ["x"], [1.5], [HUGE], [[]], [b"x"], {}, {"a": 1}, {1, 2}, (1, 2, 3), object(),
    [object()], [[1.0], [1.0, 2.0]], np.zeros((2, 3)), np.full(3, np.nan),
    np.array([None, 1], object), np.zeros(0), np.zeros((0, 3), np.float32), np.array("x"),
    np.array([1j]), np.zeros((1,) * 20), 1j,
    bytearray(b"ab"), np.float16(3), range(3), slice(1, 2), ..., NotImplemented,
)  # fmt: skip
PATH = str(tiny.path())
TEXT = {"type": "text", "text": "x"}
MESSAGES = [{"role": "user", "content": "x"}]
ROWS = np.ones((4, 64), np.float32)
COLUMNS = np.ascontiguousarray(ROWS.T)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a separate folder, without a network: some values are names of files or models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))


def shown(value):
    """Return a value as text, also one that Python refuses to print."""
    try:
        return f"{value!r:.40}"
    except ValueError:
        return f"{type(value).__name__} of too many digits"


def used(result):
    """Use the result of a call: exhaust an iterator, close a model."""
    if inspect.isgenerator(result) or hasattr(result, "__next__"):
        list(itertools.islice(result, 2))
    elif isinstance(result, npurt.Llama | npurt.GGUF | llama_cpp.Llama):
        result.close()


def trouble(call, *given, also=(), **named):
    """Return the problem of the way in which a call ends, or None."""
    try:
        used(call(*given, **named))
    except NpurtError as error:
        return None if error.remedy and error.what else f"no remedy: {error!r}"
    except also:
        return None
    except Exception as error:  # noqa: BLE001  # any other is what is looked for
        last = error.__traceback__
        while last.tb_next:
            last = last.tb_next
        place = f"{os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}"
        return f"{type(error).__name__} at {place}: {error!s:.80}"
    return None


def refused(call, *given, also=(), skip=(), before=lambda: None, **named):
    """Call with each argument wrong in turn, and fail with all problems.

    Args:
        given, named: Valid values.
        also: Other allowed errors.
        skip: Names of arguments that are not tried.
        before: Called before each call.
    """
    before()
    used(call(*given, **named))
    found = {}
    for place in [*range(len(given)), *(name for name in named if name not in skip)]:
        for value in WRONG:
            before()
            if isinstance(place, int):
                changed = [*given[:place], value, *given[place + 1 :]]
                why = trouble(call, *changed, also=also, **named)
            else:
                why = trouble(call, *given, also=also, **named | {place: value})
            if why:
                found.setdefault((place, why), f"{shown(value)}")
    assert not found, "\n".join(f"{place}={value}: {why}" for (place, why), value in found.items())


def defaults(function, **changed):
    """Return the arguments of a function by name: their defaults, except for *changed*."""
    parameters = inspect.signature(function).parameters.values()
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    named = {p.name: p.default for p in parameters
             if p.kind not in kinds and p.default is not inspect.Parameter.empty}  # fmt: skip
    return named | changed


FUNCTIONS = ("logits_processor", "stopping_criteria")  # their errors are the caller's


# --- Arrays ---------------------------------------------------------------------------------------


def test_matmul_and_pack():
    w = npurt.pack(COLUMNS, "q8_0", device="cpu")
    out = np.zeros((4, 4), np.float32)
    refused(npurt.matmul, ROWS, COLUMNS, out=out, device="cpu", verify="off")
    refused(npurt.matmul, ROWS, w, device="cpu")
    refused(npurt.pack, COLUMNS, dtype="q8_0", device="cpu")
    for value in WRONG:
        for call in (lambda v: v @ w, lambda v: w @ v, lambda v: w == v, lambda v: w * v):
            why = trouble(call, value, also=TypeError)  # Python's error for operands
            assert why is None, f"{shown(value)}: {why}"


def test_devices_and_reports():
    refused(npurt.open_device, name="cpu", threads=1)
    refused(npurt.report, device="cpu")


def test_tensors():
    tensor = npurt.QTensor.quantize(ROWS, "q4_0")
    refused(npurt.QTensor, tensor.blocks, "q4_0")
    refused(npurt.QTensor.from_bytes, tensor.blocks.tobytes(), "q4_0", (4, 64))
    refused(npurt.QTensor.quantize, ROWS, "q4_0")
    refused(tensor.with_sum_axis, 1)
    refused(tensor.__getitem__, 0, also=IndexError)
    refused(lambda *i: tensor[i], slice(0, 2), slice(None), also=IndexError)


def test_files():
    refused(npurt.GGUF, PATH)
    with npurt.GGUF(PATH) as file:
        refused(file.__getitem__, "output_norm.weight")
        refused(file.get, "output_norm.weight")
        refused(file.__contains__, "output_norm.weight")
        refused(file.release, "output_norm.weight")
        refused(file.encoded, "general.architecture")


# --- npurt.Llama ----------------------------------------------------------------------------------


def test_a_model_is_opened():
    right = {"n_ctx": 64, "n_batch": 8, "n_threads": 1, "device": "cpu", "progress": False}
    refused(npurt.Llama, **defaults(npurt.Llama, path=PATH, **right))


def test_a_model_of_a_hub():
    for name in ("repo_id", "filename", "revision"):
        for value in WRONG:
            named = {"repo_id": "a/b", name: value}
            for call in (npurt.Llama.from_pretrained, llama_cpp.Llama.from_pretrained):
                if name != "revision" or call is npurt.Llama.from_pretrained:
                    assert trouble(call, **named) is None, f"{name}={shown(value)}"


@pytest.fixture(scope="module")
def llm():
    with npurt.Llama(PATH, "cpu", n_ctx=64, n_threads=1, chat_template="chatml") as opened:
        yield opened


@pytest.mark.parametrize("name", ["detokenize", "eval", "eval_last", "token_embeddings"])
def test_methods_that_take_ids(llm, name):
    refused(getattr(llm, name), [1, 2], before=llm.reset)


def test_a_context_that_computes_no_logits(llm):
    refused(llm.context.read, [1, 2], before=llm.reset)


@pytest.mark.filterwarnings("ignore:.* is now Llama.token_embeddings")
def test_text_options(llm):
    refused(llm.tokenize, "hi")
    refused(llm.embed, ["a"], before=llm.reset, **defaults(llm.embed))


def test_rerank(llm):
    """This model is no reranker, which is a separate error."""
    for value in WRONG:
        for call in (lambda v: llm.rerank(v, ["a"]), lambda v: llm.rerank("a", v)):
            assert trouble(call, value) is None, shown(value)


@pytest.mark.parametrize("name", ["t.json", None, 1, b"x", "", "\ud800", 1.5, [], object()])
def test_trace(llm, name):
    def traced():
        with llm.trace(name):
            llm.reset()

    assert trouble(traced) is None


@pytest.mark.parametrize("stream", [False, True])
def test_generate(llm, stream):
    named = defaults(llm.generate, prompt=[1, 2], max_tokens=2, stream=stream)
    refused(llm.generate, skip=FUNCTIONS, before=llm.reset, **named)


def test_chat(llm):
    named = {"tools": None, "response_format": None, "enable_thinking": None, "stream": False}
    refused(llm.chat, MESSAGES, max_tokens=1, before=llm.reset, skip=("max_tokens",), **named)
    refused(llm.apply_chat_template, MESSAGES, tools=None, add_generation_prompt=True)


@pytest.mark.parametrize(
    "around",
    [
        lambda value: {"messages": [{"role": value, "content": "x"}]},
        lambda value: {"messages": [{"role": "user", "content": value}]},
        lambda value: {"messages": [{"role": "user", "content": [value]}]},
        lambda value: {"messages": [{"role": "user", "content": [{"type": value}]}]},
        lambda value: {"messages": [{"role": "user", "content": [TEXT | {"text": value}]}]},
        lambda value: {"messages": MESSAGES, "tools": [{"type": "function", "function": value}]},
        lambda value: {"messages": MESSAGES, "response_format": {"type": value}},
        lambda value: {"messages": MESSAGES,
                       "response_format": {"type": "json_object", "schema": value}},
    ],
)  # fmt: skip
def test_parts_of_messages(llm, around):
    found = {}
    for value in WRONG:
        llm.reset()
        if why := trouble(llm.chat, **around(value), max_tokens=1):
            found[why] = f"{shown(value)}"
    assert not found


def test_states(llm):
    llm.reset()
    llm.eval([1, 2, 3])
    snapshot = llm.snapshot()
    for call, right in ((llm.rewind, 0), (llm.rollback, 0), (llm.restore, snapshot),
                        (llm.save_state, "s.bin"), (llm.load_state, "s.bin")):  # fmt: skip
        refused(call, right)
    for name in ("seed", "context_shift"):
        for value in WRONG:
            assert trouble(setattr, llm, name, value) is None, f"{name}={shown(value)}"


def test_answers_of_chat(llm):
    refused(llm.parse_answer, "Hello")
    refused(llm.parse_answer, "Hello", tools=[{"type": "function", "function": {"name": "f"}}])


def test_no_method_is_left_out(llm):
    """New methods of `npurt.Llama` must be tested here, too."""
    tried = {"detokenize", "eval", "eval_last", "token_embeddings", "embed", "tokenize",
             "generate", "chat", "apply_chat_template", "rewind", "rollback", "restore",
             "save_state", "load_state", "from_pretrained", "rerank", "trace",
             "parse_answer"}  # fmt: skip
    without = {"close", "report", "reset", "snapshot"}
    names = {name for name in dir(llm) if not name.startswith("_") and callable(getattr(llm, name))}
    assert names - set(INTERNALS) - tried - without - KNOWN_OTHERS == set()


KNOWN_OTHERS = {"device", "template", "tokenizer", "contexts"}


# --- npurt.compat ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(12))
def test_a_model_of_llama_cpp_is_opened(part):
    right = {"model_path": PATH, "n_ctx": 64, "n_threads": 1, "verbose": False}
    named = defaults(llama_cpp.Llama, **right)
    refused(llama_cpp.Llama, skip=[n for i, n in enumerate(named) if i % 12 != part], **named)


@pytest.fixture(scope="module")
def old():
    with llama_cpp.Llama(PATH, n_ctx=64, n_threads=1, verbose=False, chat_format="chatml") as model:
        yield model


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("__call__", {"prompt": "x", "max_tokens": 2}),
        ("create_completion", {"prompt": "x", "max_tokens": 2, "stream": True}),
        ("create_chat_completion", {"messages": MESSAGES, "max_tokens": 2}),
        ("generate", {"tokens": [1, 2]}),
        ("eval", {"tokens": [1, 2]}),
        ("tokenize", {"text": b"x"}),
        ("detokenize", {"tokens": [1, 2]}),
        ("create_embedding", {"input": "x"}),
        ("embed", {"input": "x"}),
        ("set_seed", {"seed": 1}),
        ("set_cache", {"cache": None}),
        ("logits_to_logprobs", {"logits": np.zeros(5)}),
        ("longest_token_prefix", {"a": [1], "b": [1]}),
    ],
)
def test_methods_of_llama_cpp(old, name, right):
    method = getattr(old, name)
    refused(method, skip=FUNCTIONS, before=old.reset, **defaults(method, **right))


def test_states_and_samples_of_llama_cpp(old):
    old.reset()
    old.eval([1, 2])
    refused(old.load_state, old.save_state())
    refused(old.sample, skip=FUNCTIONS, **defaults(old.sample))


def test_grammars_and_tokenizers_of_llama_cpp(old):
    tokenizer, grammar = old.tokenizer(), llama_cpp.LlamaGrammar
    calls = (tokenizer.encode, tokenizer.decode, tokenizer.tokenize, tokenizer.detokenize,
             grammar.from_string, grammar.from_json_schema)  # fmt: skip
    for call in calls:
        for value in WRONG:
            assert trouble(call, value) is None, f"{call.__name__}({shown(value)})"
    for value in WRONG:
        assert trouble(grammar.from_file, value, also=OSError) is None, f"{shown(value)}"


def test_mlx_lm():
    refused(mlx_lm.load, path_or_hf_repo=PATH, return_config=False)
    model, tokenizer = mlx_lm.load(PATH)
    with model:
        for call in (mlx_lm.generate, mlx_lm.stream_generate):
            right = {"model": model, "tokenizer": tokenizer, "prompt": "x", "max_tokens": 2}
            refused(call, **defaults(call, **right))
        refused(tokenizer.encode, "x", add_special_tokens=True)
        refused(tokenizer.decode, [1], skip_special_tokens=False)
        for value in WRONG:
            for call in (cache.can_trim_prompt_cache, cache.load_prompt_cache):
                assert trouble(call, value) is None, f"{call.__name__}({shown(value)})"
            for call in (cache.trim_prompt_cache, cache.save_prompt_cache):
                assert trouble(call, value, value) is None, f"{call.__name__}({shown(value)})"
    refused(sample_utils.make_sampler, **defaults(sample_utils.make_sampler))
    make = sample_utils.make_logits_processors
    refused(make, **defaults(make))


def test_a_number_for_a_path_is_no_descriptor_that_is_closed():
    """``open(1)`` is standard output, and ends with the file object."""
    for number in (True, 1, 2):
        with pytest.raises(NpurtError):
            llama_cpp.LlamaGrammar.from_file(number)
        os.fstat(int(number))  # the descriptor is still open
