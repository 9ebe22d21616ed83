"""Read a request's sampling, length and constraint fields, as OpenAI and llama.cpp name them."""

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Any

from npurt.errors import GrammarError, NpurtError, brief
from npurt.llm.decode.grammar.grammar import Grammar, grammar_of
from npurt.llm.decode.grammar.lark import lark_of_regex, quoted
from npurt.serve.front.front import SEEDS, SamplingParams
from npurt.serve.http import limits
from npurt.serve.http.bodies import INTEGERS, NUMBERS
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields

# Fields that change the output, each with the value that has no effect.  Sources: llama.cpp,
# tools/server/README.md; vLLM, docs/serving/openai_compatible_server (extra parameters).
UNSUPPORTED: dict[str, Any] = {
    "allowed_token_ids": [], "bad_words": [], "include_stop_str_in_output": False,
    "length_penalty": 1.0, "post_sampling_probs": False, "skip_special_tokens": True,
    "truncate_prompt_tokens": None, "use_beam_search": False,
}  # fmt: skip


def sampling(fields: Fields) -> dict[str, Any]:
    """Return the sampling settings in *fields*, without missing ones."""
    found: dict[str, Any] = {}
    for name in NUMBERS:
        found[name] = fields.number(name)
    for name in INTEGERS:
        found[name] = fields.integer(name)
    seed = fields.integer("seed")
    found["seed"] = None if seed is None or seed == -1 else seed % SEEDS
    found["dry_sequence_breakers"] = fields.items("dry_sequence_breakers") or None
    found["logit_bias"] = biases(fields)[0] or None
    return {name: value for name, value in found.items() if value is not None}


def biases(fields: Fields) -> tuple[dict[int, float], dict[str, float]]:
    """Return the biases in ``logit_bias`` by token id, and those by text.

    The field is OpenAI's object, or llama.cpp's list of pairs, where the bias false bans a token.
    In llama.cpp's form, the bias of a text is that of each of its tokens.

    Raises:
        HttpError: The field is neither.
    """
    given = fields.values.get("logit_bias")
    found: dict[int, float] = {}
    texts: dict[str, float] = {}
    if given is None:
        return found, texts
    pairs = list(given.items()) if isinstance(given, dict) else given
    error = fields.wrong("logit_bias", "an object of numbers by token id or text")
    if len(pairs) > limits.BIASES:
        raise error
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise error
        token, bias = pair
        if isinstance(given, dict) and token.isascii() and token.isdecimal() and len(token) < 10:
            token = int(token)
        bias = float("-inf") if bias is False else bias
        if not _is_number(bias, int | float) or (abs(bias) > 1e6 and bias != float("-inf")):
            raise error
        if isinstance(token, str) and 0 < len(token) <= limits.BIASED_TEXT:
            texts[token] = float(bias)
        elif _is_number(token, int) and token >= 0:
            found[token] = float(bias)
        else:
            raise error
    return found, texts


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def scales(fields: Fields, name: str = "lora") -> dict[int, float] | None:
    """Return the scales of LoRA adapters by their numbers in a field; None without the field."""
    if not fields.has(name):
        return None
    found = fields.objects(name)
    return {each.integer("id") or 0: each.number("scale") or 0.0 for each in found}


def stops(fields: Fields, name: str = "stop") -> tuple[list[str], list[int]]:
    """Return the stop strings and the stop token ids in the field *name*."""
    given = fields.values.get(name)
    several = [given] if isinstance(given, str) else fields.items(name)
    texts = [text for text in several if isinstance(text, str)]
    ids = [int(token) for token in several if not isinstance(token, str)]
    return [text for text in texts if text], ids  # some clients send "" for no stop string


def wanted(fields: Fields, salt: str, *lengths: str) -> SamplingParams:
    """Return the options in *fields*.

    Args:
        fields: The request's fields.
        salt: The salt of the prefix cache.
        lengths: Field names of the limit on tokens; the first one with a value is used.
    """
    maximum = None
    for name in lengths:
        if fields.has(name):
            maximum = fields.integer(name)
            break
    for name, neutral in UNSUPPORTED.items():
        if (given := fields.values.get(name)) not in (None, neutral):
            raise wrong(f"npurt does not support {name} = {brief(given)}", f"leave {name} out",
                        name, "unsupported")  # fmt: skip
    texts, ids = stops(fields)
    ids += fields.items("stop_token_ids")
    limit = fields.integer("t_max_predict_ms")
    return SamplingParams(
        sampling=sampling(fields),
        biased_texts=biases(fields)[1],
        scales=scales(fields),
        max_tokens=None if maximum == -1 else maximum,
        stops=texts,
        stop_ids=ids,
        choices=fields.integer("n") or 1,
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens") or 0,
        salt=salt,
        predict_ms=limit if limit and limit > 0 else None,
    )


def _asked(fields: Fields) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the constraints that *fields* set, by the name of the field.

    Each is a function that returns options of `SamplingParams`: response_format, grammar or lark.
    """
    given: dict[str, Callable[[], dict[str, Any]]] = {}
    form = fields.inner("response_format")
    if form.text("type", "text") != "text":
        given["response_format"] = lambda: {"response_format": form.values}
    if fields.text("grammar"):
        given["grammar"] = lambda: {"grammar": fields.text("grammar")}
    structured = fields.inner("structured_outputs")
    if structured.has("structural_tag"):
        raise wrong("npurt does not support structural_tag", "leave it out",
                    structured.name("structural_tag"), "unsupported")  # fmt: skip
    for kind, names in NAMES_OF_CONSTRAINTS.items():
        for source, name in [(fields, name) for name in names] + [(structured, kind)]:
            if source.has(name) and source.values[name] is not False:
                given[source.name(name)] = functools.partial(KINDS[kind], source.values[name])
    return given


def _of_schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def _of_regex(text: str) -> dict[str, Any]:
    Grammar.from_regex(text)  # checks the text
    return {"lark": lark_of_regex(text)}


def _of_choice(texts: Any) -> dict[str, Any]:
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise GrammarError("the choice is no list of texts", remedy="send at least one text")
    return {"lark": f"start: {' | '.join(map(quoted, texts))}\n"}


# Names of a constraint in other servers; the keys are its names in vLLM's structured_outputs.
NAMES_OF_CONSTRAINTS = {
    "json": ("json_schema", "guided_json"),
    "regex": ("guided_regex",),
    "choice": ("guided_choice",),
    "grammar": ("guided_grammar",),
    "json_object": (),
}
KINDS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "json": _of_schema,
    "regex": _of_regex,
    "choice": _of_choice,
    "grammar": lambda text: {"grammar": text},
    "json_object": lambda _: {"response_format": {"type": "json_object"}},
}
SIZED = (  # fields whose size is limited
    "response_format", "grammar", "structured_outputs", *sum(NAMES_OF_CONSTRAINTS.values(), ())
)  # fmt: skip


async def constrain(fields: Fields, wanted: SamplingParams) -> None:
    """Set the constraint in *wanted* from the fields of OpenAI, llama.cpp and vLLM.

    Raises:
        HttpError: The constraint is invalid or too large, or there are several.
    """
    for name in SIZED:
        if fields.has(name) and limits.exceeds(fields.values[name], limits.SCHEMA):
            raise wrong(f"{name} has more than {limits.SCHEMA} characters", "send a smaller one",
                        name)  # fmt: skip
    given = _asked(fields)
    if len(given) > 1:
        raise wrong(f"both {' and '.join(given)} are set", "leave all but one out", max(given))
    if not given:
        return
    ((param, make),) = given.items()

    def checked() -> dict[str, Any]:
        found = make()
        if "lark" in found:
            Grammar.from_lark(found["lark"])
        else:
            grammar_of(found.get("grammar"), found.get("response_format"))
        return found

    try:
        # In a thread, because compiling a grammar may take a second.
        for name, value in (await asyncio.to_thread(checked)).items():
            setattr(wanted, name, value)
    except NpurtError as error:
        raise wrong(error.what, error.remedy, param) from error
