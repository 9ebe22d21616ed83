"""`Llama` with the interface of llama-cpp-python: completions, chats and embeddings."""

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from npurt.base import late
from npurt.compat.llama_cpp.arguments import (
    DEFAULTS,
    ChatOptions,
    all_stops,
    refuse,
    sampling,
)
from npurt.compat.llama_cpp.calls import FORMAT, Calls, Part, calls_of
from npurt.compat.llama_cpp.completions import Read, TextModel
from npurt.compat.llama_cpp.context import Messages, OpenModel
from npurt.compat.llama_cpp.llama_chat_format import (
    Jinja2ChatFormatter,
    chat_formatter_to_chat_completion_handler,
    registered,
)
from npurt.compat.llama_cpp.results import (
    Logprobs,
    Result,
    called,
    delta_choice,
    delta_of,
    edge_of,
    head,
    message_choice,
    message_of,
    usage,
)
from npurt.errors import PackageError, UnsupportedOp
from npurt.llm.decode.embed import TextEmbedding, as_openai
from npurt.llm.decode.options import top_logprobs_of
from npurt.llm.file.pooling import NUMBERS, Pooling, read_pooling
from npurt.llm.text.named_templates import NAMED
from npurt.runtime.open.arguments import flag


class Llama(TextModel):
    """A model with llama-cpp-python's interface; see `OpenModel` for the arguments.

    A new completion ends an open stream; the next step of the stream raises SettingError.
    """

    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Result: ...

    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> Iterator[Result]: ...

    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: bool, **options: Unpack[ChatOptions]
    ) -> Result | Iterator[Result]: ...

    def create_chat_completion(
        self, messages: Messages, functions: Any = None, function_call: Any = None,
        tools: Sequence[Mapping[str, Any]] | None = None, tool_choice: Any = None,
        temperature: float = 0.2, top_p: float = 0.95, top_k: int = 40, min_p: float = 0.05,
        typical_p: float = 1.0, stream: bool = False, stop: str | Sequence[str] | None = (),
        seed: int | None = None, response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None, presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0, repeat_penalty: float = 1.0, tfs_z: float = 1.0,
        mirostat_mode: int = 0, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1,
        model: str | None = None, logits_processor: Any = None, grammar: Any = None,
        logit_bias: dict[int, float] | None = None, logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Result | Iterator[Result]:  # fmt: skip
        """Answer *messages*; return a chat completion, or an iterator of its chunks.

        If the conversation is too long for the context, its oldest turns are left out, as in
        `npurt.Llama.chat`; llama-cpp-python raises an error.

        Args:
            messages: As for `npurt.Llama.chat`.
            tools: As for `npurt.Llama.chat`.
            tool_choice: A function, ``{"type": "function", "function": {"name": ...}}``, forces a
                call of this function.  ``"required"`` forces a call of one of *tools*.  ``"none"``
                omits *tools* from the prompt.  With ``"auto"`` the model chooses.  None means
                ``"none"`` with the *chat_format* ``"chatml-function-calling"``, and ``"auto"`` with
                others.
            response_format: As for `npurt.Llama.chat`.
            functions, function_call: Older names of *tools* and *tool_choice*.
            logprobs: Whether the result has the log probability of each token.
            top_logprobs: The number of most likely tokens whose log probabilities are added.
            temperature, max_tokens, top_k, top_p, min_p, repeat_penalty, frequency_penalty,
                presence_penalty, logit_bias, logits_processor, stop, stream, seed, model,
                typical_p, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, grammar: As for
                `create_completion`.

        Raises:
            ContextFull: The last turn alone does not fit in the context.
            UnsupportedOp: npurt does not support an option.
        """
        given = {name: value for name, value in locals().items() if name != "self"}
        if handler := self._handler():
            answer: Result | Iterator[Result] = handler(llama=self, **given)
            return answer
        refuse(given, DEFAULTS)  # raise errors about options before errors of the template
        asked = tools is not None or functions is not None
        calls = calls_of(
            tools, tool_choice, functions, function_call, marked=self.chat_format == FORMAT,
            template=self._llm.template.source if asked else "",
        )  # fmt: skip
        if asked and not calls.options:
            calls = replace(calls, special=self._llm.marks_calls())
        ids = self._llm.fit(
            messages,
            lambda kept: self._llm.apply_chat_template(kept, tools=calls.tools, **calls.variables),
            max_tokens,
        )
        return self._answer(ids, calls, all_stops(stop, self.chat_format), given)

    def _handler(self) -> Any:
        """Return the handler that answers chats, or None if the chat template answers them."""
        if self.chat_handler is not None:
            return self.chat_handler
        if self.chat_format is None and "tokenizer.chat_template" not in self._metadata:
            return chat_formatter_to_chat_completion_handler(
                Jinja2ChatFormatter(
                    NAMED["llama2"], eos_token=self._piece(self.token_eos()),
                    bos_token=self._piece(self.token_bos()),
                )
            )  # fmt: skip
        return None if self.chat_format is None else registered(self.chat_format)

    def _answer(
        self,
        ids: list[int],
        calls: Calls,
        stops: Sequence[str],
        given: Mapping[str, Any],
        criteria: Any = None,
    ) -> Result | Iterator[Result]:
        """Return a chat completion of the prompt *ids*, or its chunks.

        Args:
            given: Arguments of `create_chat_completion`.
            criteria: Stopping criteria of the chat format: functions that end the completion by
                returning true.
        """
        options = sampling(given) | {"stopping_criteria": criteria}
        if calls.options:
            options |= {"grammar": None, "response_format": None, **calls.options}
        request = self._request(given["temperature"], given["seed"], **options)
        logprobs = given["logprobs"]
        alone = logprobs is None or logprobs is False
        top = top_logprobs_of(logprobs, None if alone else given["top_logprobs"])
        sampler = self._sampler(request, ids)
        text = self._generation(
            ids, sampler, stops, given["max_tokens"], top, special=calls.special
        )
        timing = self._llm.generator
        parts = calls.read(
            self._remembered(text), lambda: timing.timing.finish in ("length", "context")
        )
        read = None if top is None else Logprobs(self._piece).of_chat
        name = self._name(given["model"])
        if flag("stream", given["stream"]):
            common = head("chatcmpl", "chat.completion.chunk", name)
            return self._chat_chunks(common, parts, read, calls=calls.possible)
        with self._llm.lock:
            common = head("chatcmpl", "chat.completion", name)
            message = message_of(common["id"], parts)
            finish = called(self._finish()) if "tool_calls" in message else self._finish()
            choice = message_choice(message, finish, read and read(self._llm.timing))
            return common | {"choices": [choice], "usage": usage(self._llm.timing)}

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `create_chat_completion` as objects of the package openai.

        Raises:
            UnsupportedOp: The package openai is not installed, or cannot be loaded.
        """
        try:
            with late.imports():
                types = importlib.import_module("openai.types.chat")
        except PackageError as error:
            raise UnsupportedOp(error.what, remedy=error.remedy) from error
        result = self.create_chat_completion(*args, **kwargs)
        if isinstance(result, dict):
            return types.ChatCompletion(**result)
        return (types.ChatCompletionChunk(**chunk) for chunk in result)

    def _chat_chunks(
        self, common: Result, parts: Iterable[Part], read: Read | None, *, calls: bool
    ) -> Iterator[Result]:
        yield common | {"choices": [delta_choice(edge_of("assistant", calls=calls))]}
        calling = False
        for part in parts:
            calling |= not isinstance(part, str)
            logprobs = read and read(self._llm.timing)
            yield common | {"choices": [delta_choice(delta_of(common["id"], part), None, logprobs)]}
        logprobs = read and read(self._llm.timing)
        finish = called(self._finish()) if calling else self._finish()
        yield common | {"choices": [delta_choice(edge_of(None, calls=calls), finish, logprobs)]}

    # --- Embeddings -----------------------------------------------------------------------------

    def pooling_type(self) -> int:
        """Return the number of the pooling; 0 if neither the caller nor the file names one."""
        pooling = self._pooling or read_pooling(self._metadata) or Pooling.NONE
        return next(number for number, each in NUMBERS.items() if each is pooling)

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Result:
        """Return the embeddings of one or several texts in the format of OpenAI's API.

        Raises:
            LayoutError: A text is not a str, or has no tokens.
        """
        texts = input if isinstance(input, list) else [input]
        made = self._embeddings(texts, normalize=False, truncate=True)
        return as_openai(made, self._name(model))

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Return the embedding of a text as a list of floats, or of several texts as a list.

        Without pooling, the embedding of a text is a list of floats for each token.

        Args:
            normalize: Scale each embedding to length 1.
            truncate: Truncate texts that are longer than the context.
            return_count: Also return the number of tokens.

        Raises:
            ContextFull: A text is longer than the context.  ContextFull is a ValueError.
            LayoutError: A text is not a str, or has no tokens.
        """
        texts = [input] if isinstance(input, str) else input
        made = self._embeddings(texts, normalize=normalize, truncate=truncate)
        vectors = [embedding.values.tolist() for embedding in made]
        found = vectors[0] if isinstance(input, str) else vectors
        counted = flag("return_count", return_count)
        return (found, sum(embedding.tokens for embedding in made)) if counted else found

    def _embeddings(
        self, texts: Sequence[str], *, normalize: bool, truncate: bool
    ) -> list[TextEmbedding]:
        pooling = NUMBERS[self.pooling_type()].value
        return self._llm.embedder.each(texts, normalize, pooling=pooling, truncate=truncate)


def _name_methods() -> None:
    """Set the qualified names of methods, so that errors about arguments name `Llama`."""
    for part in (OpenModel, TextModel):
        for name, method in vars(part).items():
            if inspect.isfunction(method):
                method.__qualname__ = f"Llama.{name}"


_name_methods()
