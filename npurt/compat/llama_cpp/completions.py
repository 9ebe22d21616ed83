"""The methods of llama-cpp-python's `Llama` that sample tokens and complete prompts."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Unpack, overload

from npurt.compat.llama_cpp.arguments import (
    TextOptions,
    limit,
    missing,
    refuse,
    sampling,
)
from npurt.compat.llama_cpp.context import OpenModel, Prompt
from npurt.compat.llama_cpp.results import (
    FINISH,
    Logprobs,
    Result,
    head,
    text_choice,
    usage,
)
from npurt.compat.sampling import LastSampler
from npurt.errors import SettingError, UnsupportedOp, brief
from npurt.llm.decode.generate import Generation, Timing
from npurt.llm.decode.logprobs import logprobs_of_prompt
from npurt.llm.decode.options import GenerationRequest, top_logprobs_of
from npurt.llm.decode.stops import stop_texts
from npurt.llm.text.fill_in import FillIn
from npurt.runtime.open.arguments import flag, integer

Read = Callable[[Timing], Result]  # returns the log probabilities of tokens since the last call


class TextModel(OpenModel):
    """A model that completes prompts; arguments as for `OpenModel`."""

    # --- Single tokens --------------------------------------------------------------------------

    def sample(
        self, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, typical_p: float = 1.0,
        temp: float = 0.80, repeat_penalty: float = 1.0, frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0, tfs_z: float = 1.0, mirostat_mode: int = 0,
        mirostat_eta: float = 0.1, mirostat_tau: float = 5.0, penalize_nl: bool = True,
        logits_processor: Any = None, grammar: Any = None, idx: int | None = None,
    ) -> int:  # fmt: skip
        """Sample a token from the logits that `eval` computed.

        Args:
            idx: The index of the token whose logits are used; None uses the last token.
            top_k, temp, logits_processor, grammar and others: As for `generate`.

        Raises:
            SettingError: `eval` has computed no logits.
            UnsupportedOp: npurt does not support an option, or has no logits of the token *idx*.
        """
        refuse({"grammar": grammar}, {"grammar": None})
        request = self._request(temp, None, **sampling(locals()))
        history, scores = self._llm.history, self._scores()
        if not len(scores) or not history:
            raise SettingError("no logits are available to sample", remedy="call eval() first")
        at = len(history) if idx is None else integer("idx", idx, 0) + 1
        first = len(history) - len(scores) + 1
        if not first <= at <= len(history):
            raise missing(f"idx={brief(idx)}", f"use an idx of {first - 1} to {len(history) - 1}")
        return self._sampler(request, history).sample(scores[at - first], history[:at])

    def generate(
        self, tokens: Sequence[int], top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05,
        typical_p: float = 1.0, temp: float = 0.80, repeat_penalty: float = 1.0,
        reset: bool = True, frequency_penalty: float = 0.0, presence_penalty: float = 0.0,
        tfs_z: float = 1.0, mirostat_mode: int = 0, mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1, penalize_nl: bool = True, logits_processor: Any = None,
        stopping_criteria: Any = None, grammar: Any = None,
    ) -> Iterator[int]:  # fmt: skip
        """Return an iterator of the tokens that follow *tokens*, including the end token.

        Args:
            tokens: The prompt.
            reset: True replaces the context by the prompt; False appends the prompt to the context.
            temp: 0 selects the most likely token at each step.
            top_k, top_p, min_p, typical_p, repeat_penalty, frequency_penalty, presence_penalty,
                logits_processor, stopping_criteria, grammar: As for `create_completion`.
            penalize_nl, mirostat_tau, mirostat_eta: No effect.
            tfs_z, mirostat_mode: Refused unless the value has no effect.

        Raises:
            UnsupportedOp: npurt does not support an option.
        """
        request = self._request(temp, None, **sampling(locals()))
        ids = self._llm.model.valid(tokens)
        prompt = ids if flag("reset", reset) else [*self._llm.history, *ids]
        sampler = self._sampler(request, prompt)
        return self._tokens(self._generation(prompt, sampler, (), None), sampler)

    def _beginning(self) -> list[int]:
        """Return the prompt for an empty text: BOS, or no token if the model has no BOS."""
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
        *,
        special: bool = False,
    ) -> Generation:
        self._rows = []  # the logits of `eval` do not belong to the new last token
        self._recall(prompt)
        return Generation(
            self._llm.generator, prompt, sampler, stop_texts(stop), limit(max_tokens),
            top_logprobs=top_logprobs, special=special,
        )  # fmt: skip

    def _request(self, temperature: float, seed: int | None, **options: Any) -> GenerationRequest:
        """Return a request.

        As in llama-cpp-python, *seed* also sets the seed of later completions.
        """
        if seed is not None:
            self.set_seed(seed)
        elif self._seed is not None:
            self._seed = random.Random(self._seed).getrandbits(32)
        options["top_k"] = max(0, integer("top_k", options["top_k"]))
        options |= {"temperature": temperature, "repeat_last_n": self.last_n_tokens_size}
        return GenerationRequest.of(options, self._seed)

    def _sampler(self, request: GenerationRequest, prompt: Sequence[int]) -> LastSampler:
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
            prompt: Text or token ids.
            max_tokens: The maximum number of tokens; None, 0 or less for no limit.
            temperature: 0 selects the most likely token at each step.
            top_k, top_p, min_p, typical_p, repeat_penalty: See
                `npurt.llm.decode.sampler.Sampling`.
            frequency_penalty: Subtracted from a token's logit for each occurrence of the token in
                the last tokens, including the prompt.
            presence_penalty: Subtracted once if the token occurs in the last tokens.
            logit_bias: Token id -> number added to the token's logit.
            logits_processor: One or several functions of ids and logits that return logits.
            stopping_criteria: One or several functions of ids and logits; the completion ends when
                one returns true.
            echo: Return the prompt before the completion.
            stop: Texts that end the completion and are not part of it.
            stream: Return chunks.
            seed: The seed of this completion; by default it is derived from the model's seed.
            model: The model's name in the result.
            logprobs: The number of most likely tokens whose log probabilities before sampling
                are added for each token of the result; with *echo* also for the tokens of the
                prompt except the first.
            grammar: A `LlamaGrammar`, or GBNF text.
            suffix: The text after the completion: the model fills in the text between *prompt* and
                *suffix*.
            tfs_z, mirostat_mode: Refused unless the value has no effect.
            mirostat_tau, mirostat_eta: No effect.

        Raises:
            ContextFull: The prompt does not fit in the context.
            LayoutError: The prompt is neither text nor token ids.
            SettingError: An option has an invalid value.
            UnsupportedOp: npurt does not support an option, or the model cannot fill in text.
        """
        request = self._request(temperature, seed, **sampling(locals()))
        if suffix is not None:
            ids, begin = self._around(prompt, suffix), str(prompt)
        elif isinstance(prompt, str):
            ids, begin = self._llm.tokenize(prompt) or self._beginning(), prompt
        else:
            ids = self._llm.model.valid(prompt)
            begin = self.detokenize(ids).decode(errors="replace")
        top, echo = top_logprobs_of(logprobs, None), flag("echo", echo)
        sampler = self._sampler(request, ids)
        pieces = self._remembered(self._generation(ids, sampler, stop, max_tokens, top))
        likely = None if top is None else Logprobs(self._piece, 0 if echo else len(begin))
        if echo and likely and suffix is not None:
            raise missing("logprobs with echo and suffix", "omit one of the three options")
        if echo:
            pieces = self._echoed(begin, ids, likely, pieces, top)
        read = likely.of_completion if likely else None
        common = head("cmpl", "text_completion", self._name(model))
        if flag("stream", stream):
            return self._chunks(common, pieces, read)
        with self._llm.lock:  # a completion in another thread would end this completion
            text = "".join(pieces)
            choice = text_choice(text, self._finish(), read and read(self._llm.timing))
            return common | {"choices": [choice], "usage": usage(self._llm.timing)}

    __call__ = create_completion

    def _around(self, prompt: Prompt, suffix: str) -> list[int]:
        """Return the token ids of a prompt for infilling between *prompt* and *suffix*."""
        if not isinstance(prompt, str) or not isinstance(suffix, str):
            raise SettingError(
                f"suffix is {brief(suffix)} and the prompt {brief(prompt)}",
                remedy="pass text for both, or omit suffix",
            )
        marks = FillIn.of(self._tokenizer, self._metadata)
        if marks is None:
            raise UnsupportedOp(
                f"{self.model_path} has no tokens for prefix, suffix and middle",
                remedy="omit suffix, or use a model such as Qwen2.5-Coder",
            )
        return marks.around(self._tokenizer, prompt, suffix, suffix_first=self.spm_infill)

    def _echoed(
        self, begin: str, ids: list[int], likely: Logprobs | None, pieces: Iterable[str],
        top: int | None,
    ) -> Iterator[str]:  # fmt: skip
        """Yield *begin*, then *pieces*; pass log probabilities of the prompt *ids* to *likely*."""
        if likely:
            found = logprobs_of_prompt(self._llm.context, ids, top or 0)
            shown = [(ids[0], None), *((each.token, each) for each in found)]
            if ids[0] == self._tokenizer.bos:
                shown = [(token, None) for token, _ in shown[1:2]] + shown[2:]
            likely.begin(shown)
        yield begin
        yield from pieces

    def _chunks(
        self, common: Result, pieces: Iterable[str], read: Read | None
    ) -> Iterator[Result]:  # fmt: skip
        for piece in pieces:
            logprobs = read and read(self._llm.timing)
            yield common | {"choices": [text_choice(piece, None, logprobs)]}
        logprobs = read and read(self._llm.timing)
        yield common | {"choices": [text_choice("", self._finish(), logprobs)]}

    def _piece(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")

    def _finish(self) -> str:
        return FINISH[self._llm.timing.finish]

    def _name(self, model: Any) -> str:
        """Return the model's name in results: *model*, or by default the path of the file.

        Raises:
            SettingError: *model* is no str.
        """
        if not isinstance(model, str | None):
            raise SettingError(f"model is {brief(model)}", remedy="model must be a text")
        return model or self.model_path
