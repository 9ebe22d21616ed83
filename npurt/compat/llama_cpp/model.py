"""`Llama` with the interface of llama-cpp-python: completions and chats."""

import importlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from npurt.compat.llama_cpp.arguments import (
    ChatOptions,
    TextOptions,
    all_stops,
    limit,
    missing,
    refuse,
    sampling,
)
from npurt.compat.llama_cpp.context import Messages, OpenModel, Prompt
from npurt.compat.llama_cpp.demanded import Demanded, demanded_call
from npurt.compat.llama_cpp.results import (
    FINISH,
    Logprobs,
    Result,
    called,
    delta_choice,
    head,
    message_choice,
    text_choice,
    usage,
)
from npurt.compat.sampling import LastSampler
from npurt.errors import SettingError, UnsupportedOp, brief
from npurt.llm.decode.embed import Embedding, as_openai
from npurt.llm.decode.generate import Generation, Timing
from npurt.llm.decode.options import Request, top_logprobs_of
from npurt.llm.decode.stops import stop_texts
from npurt.llm.file.pooling import NUMBERS, Pooling, read_pooling
from npurt.runtime.open.arguments import flag, integer

Read = Callable[[Timing], Result]  # returns the log probabilities since its last call


class Llama(OpenModel):
    """A model behind llama-cpp-python's interface; see `OpenModel` for its arguments.

    A second completion ends an open stream, whose next step raises SettingError.
    """

    # --- Single tokens --------------------------------------------------------------------------

    def sample(
        self, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, typical_p: float = 1.0,
        temp: float = 0.80, repeat_penalty: float = 1.0, frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0, tfs_z: float = 1.0, mirostat_mode: int = 0,
        mirostat_eta: float = 0.1, mirostat_tau: float = 5.0, penalize_nl: bool = True,
        logits_processor: Any = None, grammar: Any = None, idx: int | None = None,
    ) -> int:  # fmt: skip
        """Return a token that follows what `eval` appended last.

        Raises:
            SettingError: Nothing was appended by `eval`.
            UnsupportedOp: npurt does not have an option.
        """
        if isinstance(idx, int) and idx == self.n_tokens - 1:
            idx = None
        refuse({"grammar": grammar}, {"grammar": None})
        request = self._request(temp, None, **sampling(locals()))
        history = self._llm.history
        if self._row is None or not history:
            raise SettingError("there are no logits to sample from", remedy="call eval() first")
        return self._sampler(request, history).sample(self._row, history)

    def generate(
        self, tokens: Sequence[int], top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05,
        typical_p: float = 1.0, temp: float = 0.80, repeat_penalty: float = 1.0,
        reset: bool = True, frequency_penalty: float = 0.0, presence_penalty: float = 0.0,
        tfs_z: float = 1.0, mirostat_mode: int = 0, mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1, penalize_nl: bool = True, logits_processor: Any = None,
        stopping_criteria: Any = None, grammar: Any = None,
    ) -> Iterator[int]:  # fmt: skip
        """Return an iterator of the tokens that follow *tokens*; the end token is the last.

        Args:
            tokens: The prompt.
            reset: Whether the prompt begins a text, or goes on with that of the context.
            temp: 0 takes the most likely token each time.
            top_k, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty: As
                for `create_completion`; so are logits_processor and stopping_criteria.
            penalize_nl: No effect.
            tfs_z, mirostat_mode: Refused unless they have no effect.
            mirostat_tau, mirostat_eta: No effect.
            grammar: As for `create_completion`.

        Raises:
            UnsupportedOp: npurt does not have an option.
        """
        request = self._request(temp, None, **sampling(locals()))
        ids = self._llm.model.valid(tokens)
        prompt = ids if flag("reset", reset) else [*self._llm.history, *ids]
        sampler = self._sampler(request, prompt)
        return self._tokens(self._generation(prompt, sampler, (), None), sampler)

    def _beginning(self) -> list[int]:
        """Return the prompt that an empty text is: BOS, if there is one."""
        return [] if self._tokenizer.bos is None else [self._tokenizer.bos]

    def _tokens(self, generation: Generation, sampler: LastSampler) -> Iterator[int]:
        yield from generation.tokens()
        if sampler.last in self._tokenizer.eog:
            yield sampler.last

    def _generation(
        self,
        prompt: list[int],
        sampler: LastSampler,
        stop: Any,
        max_tokens: int | None,
        top_logprobs: int | None = None,
    ) -> Generation:
        self._row = None  # what `eval` computed is not after the last token any more
        self._recall(prompt)
        return Generation(
            self._llm.generator, prompt, sampler, stop_texts(stop), limit(max_tokens),
            top_logprobs=top_logprobs,
        )  # fmt: skip

    def _request(self, temperature: float, seed: int | None, **options: Any) -> Request:
        """Return a request; as there, *seed* is that of later completions, too."""
        if seed is not None:
            self.set_seed(seed)
        elif self._seed is not None:
            self._seed = random.Random(self._seed).getrandbits(32)
        options["top_k"] = max(0, integer("top_k", options["top_k"]))
        options |= {"temperature": temperature, "repeat_last_n": self.last_n_tokens_size}
        return Request.of(options, self._seed)

    def _sampler(self, request: Request, prompt: Sequence[int]) -> LastSampler:
        return request.sampler(self._tokenizer, len(prompt), LastSampler)

    # --- Completions ----------------------------------------------------------------------------

    @overload
    def create_completion(
        self,
        prompt: Prompt,
        *,
        stream: Literal[False] = False,
        **options: Unpack[TextOptions],
    ) -> Result: ...

    @overload
    def create_completion(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[TextOptions]
    ) -> Iterator[Result]: ...

    @overload
    def create_completion(
        self, prompt: Prompt, *, stream: bool, **options: Unpack[TextOptions]
    ) -> Result | Iterator[Result]: ...

    def create_completion(
        self, prompt: Prompt, suffix: str | None = None, max_tokens: int | None = 16,
        temperature: float = 0.8, top_p: float = 0.95, min_p: float = 0.05,
        typical_p: float = 1.0, logprobs: int | None = None, echo: bool = False,
        stop: str | Sequence[str] | None = (), frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0, repeat_penalty: float = 1.0, top_k: int = 40,
        stream: bool = False, seed: int | None = None, tfs_z: float = 1.0,
        mirostat_mode: int = 0, mirostat_tau: float = 5.0, mirostat_eta: float = 0.1,
        model: str | None = None, stopping_criteria: Any = None, logits_processor: Any = None,
        grammar: Any = None, logit_bias: dict[int, float] | None = None,
    ) -> Result | Iterator[Result]:  # fmt: skip
        """Continue *prompt*; return a completion, or an iterator of its chunks.

        Args:
            prompt: Text, or token ids.
            max_tokens: The most tokens; None, 0 or less: no limit.
            temperature: 0 takes the most likely token each time.
            top_k, top_p, min_p, typical_p, repeat_penalty: See
                `npurt.llm.decode.sampler.Sampling`.
            frequency_penalty, presence_penalty: What the logit of a token loses for each time that
                it is among the last ones, and once; the prompt counts, too.
            logit_bias: What is added to the logits of tokens, by id.
            logits_processor: A function, or several, of ids and logits; returns logits.
            stopping_criteria: The same; one that returns true ends the text here.
            echo: Begin the text with the prompt.
            stop: Texts that end it and are not part of it.
            stream: Return chunks.
            seed: Of this completion; by default one that follows from that of the model.
            model: The name that the result has.
            logprobs: How many likeliest tokens the result has beside each token, with their log
                probabilities by the model's logits; not with echo.
            grammar: A `LlamaGrammar`, or the text of one in GBNF.
            suffix, tfs_z, mirostat_mode: Refused unless they have no effect.
            mirostat_tau, mirostat_eta: No effect.

        Raises:
            ContextFull: The prompt does not fit.
            LayoutError: The prompt is neither text nor token ids.
            SettingError: An option makes no sense.
            UnsupportedOp: npurt does not have an option.
        """
        request = self._request(temperature, seed, **sampling(locals()))
        if isinstance(prompt, str):
            ids, begin = self._llm.tokenize(prompt) or self._beginning(), prompt
        else:
            ids = self._llm.model.valid(prompt)
            begin = self.detokenize(ids).decode(errors="replace")
        top = top_logprobs_of(logprobs, None)
        echo = flag("echo", echo)
        if echo and top is not None:
            raise missing("logprobs with echo")
        sampler = self._sampler(request, ids)
        pieces = self._remembered(self._generation(ids, sampler, stop, max_tokens, top))
        read = None if top is None else Logprobs(self._piece, len(begin)).of_completion
        if echo:
            pieces = _chain(begin, pieces)
        common = head("cmpl", "text_completion", self._name(model))
        if flag("stream", stream):
            return self._chunks(common, pieces, read)
        with self._llm.lock:  # another thread cannot end it
            text = "".join(pieces)
            choice = text_choice(text, self._finish, read and read(self._llm.timing))
            return common | {"choices": [choice], "usage": usage(self._llm.timing)}

    __call__ = create_completion

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

        Args:
            messages: As for `npurt.Llama.chat`.
            tools: As for `npurt.Llama.chat`: calls are part of the content, as the model writes
                them, unless *tool_choice* demands one.
            tool_choice: The function that is called, ``{"type": "function", "function": {"name":
                ...}}``: the message has *tool_calls*, whose arguments are of its schema.
                ``"required"`` demands the only one of *tools*, ``"none"`` hides them; None and
                ``"auto"`` leave the choice to the model.
            response_format: As for `npurt.Llama.chat`.
            functions, function_call: Refused unless None.
            logprobs: Whether the result has log probabilities, with those of the *top_logprobs*
                likeliest tokens.
            temperature, max_tokens, top_k, top_p, min_p, repeat_penalty, frequency_penalty,
                presence_penalty, logit_bias, logits_processor, stop, stream, seed, model,
                typical_p, tfs_z, mirostat_mode, mirostat_tau, mirostat_eta, grammar: As for
                `create_completion`.

        Raises:
            ContextFull: The prompt does not fit.
            UnsupportedOp: npurt does not have an option.
        """
        given = sampling(locals())
        call = demanded_call(tools, tool_choice)
        if call:
            given |= {"grammar": None, "response_format": call.response_format}
        request = self._request(temperature, seed, **given)
        hidden = isinstance(tool_choice, str) and tool_choice == "none"
        ids = self._llm.apply_chat_template(messages, tools=None if hidden else tools)
        stops = all_stops(stop, self.chat_format)
        alone = logprobs is None or logprobs is False
        top = top_logprobs_of(logprobs, None if alone else top_logprobs)
        sampler = self._sampler(request, ids)
        pieces = self._remembered(self._generation(ids, sampler, stops, max_tokens, top))
        read = None if top is None else Logprobs(self._piece).of_chat
        name = self._name(model)
        if flag("stream", stream):
            common = head("chatcmpl", "chat.completion.chunk", name)
            return self._chat_chunks(common, pieces, read, call)
        with self._llm.lock:
            text = "".join(pieces)
            common = head("chatcmpl", "chat.completion", name)
            part = call.part(common["id"], text) if call else {"content": text}
            finish = called(self._finish) if call else self._finish
            choice = message_choice(part, finish, read and read(self._llm.timing))
            return common | {"choices": [choice], "usage": usage(self._llm.timing)}

    def create_chat_completion_openai_v1(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `create_chat_completion` does as objects of the package openai.

        Raises:
            UnsupportedOp: That package is not installed.
        """
        try:
            types = importlib.import_module("openai.types.chat")
        except ImportError as error:
            raise UnsupportedOp(
                "the package openai is not installed", remedy="run: pip install openai"
            ) from error
        result = self.create_chat_completion(*args, **kwargs)
        if isinstance(result, dict):
            return types.ChatCompletion(**result)
        return (types.ChatCompletionChunk(**chunk) for chunk in result)

    def _chunks(
        self, common: Result, pieces: Iterable[str], read: Read | None
    ) -> Iterator[Result]:  # fmt: skip
        for piece in pieces:
            logprobs = read and read(self._llm.timing)
            yield common | {"choices": [text_choice(piece, None, logprobs)]}
        logprobs = read and read(self._llm.timing)
        yield common | {"choices": [text_choice("", self._finish, logprobs)]}

    def _chat_chunks(
        self, common: Result, pieces: Iterable[str], read: Read | None, call: Demanded | None
    ) -> Iterator[Result]:  # fmt: skip
        yield common | {"choices": [delta_choice({"role": "assistant"})]}
        for piece in pieces:
            logprobs = read and read(self._llm.timing)
            part = call.delta(common["id"], piece) if call else {"content": piece}
            yield common | {"choices": [delta_choice(part, None, logprobs)]}
        logprobs = read and read(self._llm.timing)
        finish = called(self._finish) if call else self._finish
        yield common | {"choices": [delta_choice({}, finish, logprobs)]}

    def _piece(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")

    @property
    def _finish(self) -> str:
        return FINISH[self._llm.timing.finish]

    # --- Embeddings -----------------------------------------------------------------------------

    def pooling_type(self) -> int:
        """Return the number of the pooling; 0 where neither the caller nor the file says one."""
        pooling = self._pooling or read_pooling(self._metadata) or Pooling.NONE
        return next(number for number, each in NUMBERS.items() if each is pooling)

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Result:
        """Return the embeddings of a text, or of several, in the form of OpenAI's API.

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
        """Return the embedding of a text as a list of floats, or a list of these for several texts.

        Without pooling it is a list for each token.

        Args:
            normalize: Scale each embedding to length 1.
            truncate: Cut texts that are longer than the context.
            return_count: Return the number of tokens, too.

        Raises:
            ContextFull: A text is longer than the context; a ValueError.
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
    ) -> list[Embedding]:
        pooling = NUMBERS[self.pooling_type()].value
        return self._llm.embedder.each(texts, normalize, pooling=pooling, truncate=truncate)

    def _name(self, model: Any) -> str:
        """Return what results call the model: what the caller says, or its path.

        Raises:
            SettingError: *model* is no text.
        """
        if not isinstance(model, str | None):
            raise SettingError(f"model is {brief(model)}", remedy="model must be a text")
        return model or self.model_path


def _chain(text: str, pieces: Iterable[str]) -> Iterator[str]:
    yield text
    yield from pieces
