"""Pre-tokenizer rules, which split text into words before byte-pair merges.

The file's ``tokenizer.ggml.pre`` names the rule.  A wrong rule degrades the output without an
error, so npurt refuses an unknown name.
Sources: names and flags from llama.cpp's src/llama-vocab.cpp; patterns from the models'
tokenizer.json (facts only), in Oniguruma's syntax.
"""

from dataclasses import dataclass

from npurt.errors import ModelFormatError

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _modern(digits: str, letters: str = r"\p{L}") -> str:
    """Return the pattern of Llama 3 and similar models.

    A word is letters after at most one other character; *digits* is the pattern for digits.
    """
    return (
        rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_BREAKS}"
    )


def _cased(digits: str, ending: str = "") -> str:
    """Return the pattern of o200k, which ends a word before upper case that follows lower case.

    The pattern comes from the models' tokenizer.json; llama.cpp's lacks combining marks and
    non-ASCII letters.
    """
    before = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        f"{before}{upper}*{lower}+{ending}|{before}{upper}+{lower}*{ending}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BREAKS}"
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """A pre-tokenizer rule.

    Attributes:
        patterns: Patterns applied in order: each pattern splits the pieces from the pattern before
            it, and its matches become separate pieces.
        ignore_merges: A word that equals a token is encoded as this token without merges.
        add_bos: The default of ``tokenizer.ggml.add_bos_token``.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3 = Rule((_modern(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_LLAMA3_REGEX_ONLY = Rule(_LLAMA3.patterns)
_QWEN2 = Rule((_modern(r"\p{N}"),))
_QWEN35 = Rule((_modern(r"\p{N}", r"\p{L}\p{M}"),))
_DIGITS_APART = Rule((r"\p{N}", _GPT2))
_GPT2_ONLY = Rule((_GPT2,))
_O200K = Rule((_cased(r"\p{N}{1,3}", f"{_ENGLISH}?"),))
_TEKKEN = Rule((_cased(r"\p{N}"),), ignore_merges=True, add_bos=True)
_DEFAULT = Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

RULES = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "lfm2": _LLAMA3,
    "smaug-bpe": _LLAMA3_REGEX_ONLY,
    "dbrx": _LLAMA3_REGEX_ONLY,
    "glm4": _LLAMA3_REGEX_ONLY,
    "chatglm-bpe": _LLAMA3_REGEX_ONLY,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "stablelm2": _QWEN2,
    "qwen35": _QWEN35,
    "smollm": _DIGITS_APART,
    "starcoder": _DIGITS_APART,
    "refact": _DIGITS_APART,
    "command-r": _DIGITS_APART,
    "codeshell": _DIGITS_APART,
    "exaone": _DIGITS_APART,
    "gpt-2": _GPT2_ONLY,
    "phi-2": _GPT2_ONLY,
    "olmo": _GPT2_ONLY,
    "exaone4": _GPT2_ONLY,
    "granite-docling": _GPT2_ONLY,
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "tekken": _TEKKEN,
    "default": _DEFAULT,
}


def rule(name: str) -> Rule:
    """Return the rule *name*; raise ModelFormatError if npurt does not know it."""
    if name not in RULES:
        raise ModelFormatError(
            f"npurt does not know the pre-tokenizer {name!r}",
            remedy=f"use a model with one of {', '.join(RULES)}",
        )
    return RULES[name]
