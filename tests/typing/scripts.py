"""Code as users write it, with the resulting types: `make lint` checks it with mypy and pyright.

A comment that ignores an error is an error itself if there is none.  test_scripts runs all
functions except the mistakes.
"""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import npurt
from npurt.compat import llama_cpp, mlx_lm

F32 = npt.NDArray[np.float32]


def products(a: F32, b: F32, device: str) -> F32:
    w = npurt.pack(b, "q4_0", device=device)
    assert_type(w, npurt.PackedWeight)
    y = npurt.matmul(a, w)
    assert_type(y, F32)
    assert_type(npurt.matmul(a, b), F32)
    assert_type(npurt.matmul(a, w, out=y), F32)
    assert_type(npurt.matmul([[1, 2] * 16], w, verify="always"), F32)
    by_operator: F32 = a @ w
    by_name: F32 = np.dot(a, w) + np.einsum("mk,kn->mn", a, w) + by_operator
    assert_type(w.T @ b, F32)
    assert_type([1.0, 2.0] * 16 @ w, F32)
    assert_type(w.shape, tuple[int, int])
    assert_type(w.dtype, str)
    assert_type(len(w), int)
    assert_type(w[:, 2:4], npurt.PackedWeight)
    assert_type(w.T, npurt.PackedWeight)
    assert_type(w.dequantize(), F32)
    assert_type(npurt.pack(w, device="rknpu:sim"), npurt.PackedWeight)
    assert_type(copy.deepcopy(w), npurt.PackedWeight)
    print(by_name.shape, pickle.loads(pickle.dumps(w)), npurt.report().table())
    return a @ w


def exact_sums(a: npt.NDArray[np.int8], b: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    assert_type(npurt.matmul(a, b), npt.NDArray[np.int32])
    out = np.empty((4, 4), np.int32)
    npurt.matmul(a, b, out=out)
    return npurt.matmul(a, b, device="rknpu:sim")


def a_matrix_of_a_file(path: Path, x: F32) -> F32:
    with npurt.GGUF(path) as file:
        w = file["blk.0.attn_q.weight"]
        assert_type(w, npurt.QTensor)
        assert_type(w.T, npurt.QTensor)
        assert_type(w[2:4], npurt.QTensor)
        assert_type(w.shape, tuple[int, ...])
        assert_type(npurt.matmul(x, w.T), F32)
        assert_type(x @ w.T, F32)
        assert_type(w @ x, F32)
        return x @ w.T


def text(path: str) -> str:
    with npurt.Llama(path, device="auto", n_ctx=256) as llm:
        assert_type(llm, npurt.Llama)
        assert_type(llm.generate("def quicksort(", max_tokens=4), str)
        assert_type(llm.generate("Hello", max_tokens=16, stop=["\n"], stream=False), str)
        assert_type(llm.generate([1, 2, 3], temperature=0, stream=True), Iterator[str])
        for piece in llm.generate("Once", stream=True, top_k=40, seed=1, max_tokens=4):
            assert_type(piece, str)
            print(piece.upper(), end="", flush=True)
        ids = llm.tokenize("Hello")
        assert_type(ids, list[int])
        assert_type(llm.detokenize(ids), str)
        assert_type(llm.eval(ids), F32)
        assert_type(llm.token_embeddings(ids), F32)
        assert_type(llm.generate(ids, stop=None, seed=-1, max_tokens=-1), str)
        assert_type(llm.generate(ids, n=3, max_tokens=2), str | list[str])
        assert_type(llm.generate(ids, n=1, echo=True, max_tokens=2), str)
        return llm.generate("The end", max_tokens=8).strip()


def conversation(llm: npurt.Llama, stream: bool) -> list[str]:
    messages = [{"role": "system", "content": "Be brief."}]
    messages.append({"role": "user", "content": "What is an NPU?"})
    assert_type(llm.chat(messages, max_tokens=4), str)
    assert_type(llm.chat(messages, stream=True, temperature=0.2), Iterator[str])
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert_type(llm.chat(parts, stop=None, seed=-1, max_tokens=4, tools=None), str)
    assert_type(llm.chat(messages, max_tokens=4, style="brief"), str)
    assert_type(llm.chat(messages, stream=True, max_tokens=4, style="brief"), Iterator[str])
    grammar = npurt.Grammar.from_regex("yes|no")
    assert_type(llm.chat(messages, grammar=grammar, max_tokens=4), str)
    assert_type(llm.chat(messages, response_format={"type": "json_object"}, max_tokens=4), str)
    assert_type(llm.chat(messages, n=2, max_tokens=4), str | list[str])
    answer = llm.chat(messages, stream=stream, max_tokens=4, enable_thinking=None)
    assert_type(answer, str | Iterator[str])
    return [answer] if isinstance(answer, str) else list(answer)


def script_for_llama_cpp(path: str) -> str:
    with llama_cpp.Llama(model_path=path, n_gpu_layers=-1, n_ctx=128, verbose=False) as llm:
        done = llm("Q: What is an NPU? A: ", max_tokens=4, stop=["Q:"], echo=True)
        assert_type(done, dict[str, Any])
        assert_type(llm.create_completion("Once", max_tokens=4, temperature=0.0), dict[str, Any])
        for chunk in llm("Once", max_tokens=4, stream=True):
            assert_type(chunk, dict[str, Any])
        messages = [{"role": "user", "content": "Hello"}]
        assert_type(llm.create_chat_completion(messages, max_tokens=4), dict[str, Any])
        assert_type(llm.detokenize(llm.tokenize(b"Hello")), bytes)
        text: str = done["choices"][0]["text"]
        return text


def devices() -> None:
    for found in npurt.devices():
        print(found.device, found.found, found.detail)
    with npurt.open_device("cpu", threads=2) as device:
        print(device.caps.name)
    try:
        npurt.pack(np.ones((64, 8)), device="gpu")
    except npurt.DeviceNotFound as error:
        assert_type(error.remedy, str)


def embeddings(llm: npurt.Llama) -> float:
    assert_type(llm.embed("Hello", normalize=False), F32)
    assert_type(llm.embed(["Hello", "you"], pooling="last", truncate=True), F32)
    assert_type(llm.embed(["Hello", "you"], pooling="none"), list[F32])
    return float(llm.embed("Hello") @ llm.embed("you"))


def mistakes(llm: npurt.Llama, a: F32, w: npurt.PackedWeight) -> None:
    llm.generate("Hello", max_token=5)  # type: ignore[call-overload]
    llm.chat([{"role": "user"}], temperature="hot")  # type: ignore[call-overload]
    llm.chat([{"role": "user"}], tools="weather")  # type: ignore[arg-type]
    llm.generate("Hello", stream=True).strip()  # type: ignore[attr-defined]
    npurt.matmul(a, w, divice="cpu")  # type: ignore[call-overload]
    npurt.pack(a, dtype=8)  # type: ignore[arg-type]


def script_for_mlx_lm(path: str) -> str:
    model, tokenizer = mlx_lm.load(path, n_ctx=128)
    assert_type(model, npurt.Llama)
    _, _, config = mlx_lm.load(path, return_config=True, n_ctx=128)
    assert_type(config, dict[str, Any])
    ids: list[int] = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
    for response in mlx_lm.stream_generate(model, tokenizer, ids, max_tokens=4):
        assert_type(response, mlx_lm.GenerationResponse)
        print(response.text, response.logprobs.shape)
    return mlx_lm.generate(model, tokenizer, prompt="Hello", max_tokens=4)
