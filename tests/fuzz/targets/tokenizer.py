"""Fuzz vocabularies: tokens, kinds, scores, merges and roles that are consistent, or almost."""

import re

from npurt.llm.text.tokenizer import Tokenizer
from tests.fuzz import sizes
from tests.llm import gguf_files as raw

RUNS = 800
SECONDS = 20

LETTERS = "ab cĠ▁<>|é\n\U0001f600"
PIECES = ("<0x00>", "<0xFF>", "<0xZZ>", "<0x0a>", "▁", "▁▁", "Ġ", "ĠĠa", "<s>", "</s>", "<unk>",
          "<|im_end|>", "<|eot_id|>", "", " ", "\x00", "\udcff", "a\udc80", "\u0301", "x" * 127,
          "x" * 128, "x" * 129, "x" * 5000, "Ċ", "ÿ", "�")  # fmt: skip
SURROGATE = re.compile("[\ud800-\udfff]")
BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
ALPHABET = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 324))]
RULES = ("qwen2", "llama-bpe", "gpt-2", "smollm", "default", "qwen35", "falcon3", "", "nonsense")
ROLES = ("bos", "unknown", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep", "padding")
NUMBERS = (0.0, -0.0, -1.0, -1e30, 3.4e38, -3.4e38, 1e-45, float("inf"), float("nan"))


def mutate(rng):
    tokens, plain = vocabulary(rng), rng.random() < 0.5
    n = len(tokens)
    made = {
        "model": rng.choice(("gpt2", "llama") * 9 + ("bert", "")),
        "pre": rng.choice(RULES[:6] * 3 + RULES),
        "tokens": tokens,
        "kinds": [kind(rng, token, plain) for token in tokens],
        "scores": [-float(i) if rng.random() < 0.9 else rng.choice(NUMBERS[:-2]) for i in range(n)],
        "merges": merges(rng, tokens),
        "roles": {role: rng.randrange(n) for role in ROLES if n and rng.random() < 0.3},
        "flags": {name: rng.random() < 0.5 for name in ("add_bos_token", "add_eos_token",
                  "add_space_prefix") if rng.random() < 0.4},
        "suppress": [sizes.anything(rng, n) for _ in range(rng.choice((0, 0, 0, 2)))],
        "texts": [text(rng, tokens) for _ in range(4)],
    }  # fmt: skip
    if rng.random() < 0.3:
        spoil(rng, made, n)
    return made


def kind(rng, token, plain):
    """Return the kind of a token; *plain* tokens are bytes or text."""
    usual = 6 if BYTE.fullmatch(token) else 3 if token in ("<s>", "</s>") else 1
    return usual if plain or rng.random() < 0.9 else rng.randrange(7)


def vocabulary(rng):
    """Return tokens: first bytes, then tokens that usually consist of earlier ones."""
    tokens = []
    if rng.random() < 0.7:
        tokens += ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    if rng.random() < 0.7:
        tokens += ALPHABET
    tokens += [letter for letter in LETTERS if rng.random() < 0.9]
    for _ in range(rng.choice((0, 5, 60))):
        parts = rng.choices(tokens or ["a"], k=2)
        tokens.append("".join(parts)[:40])
    tokens += [rng.choice(PIECES) for _ in range(rng.choice((0, 0, 1, 5)))]
    tokens = list(dict.fromkeys(tokens)) if rng.random() < 0.95 else tokens
    return tokens[: rng.choice((0, 1, 2))] if rng.random() < 0.05 else tokens


def merges(rng, tokens):
    """Return pairs of tokens, most of which form a token."""
    known, found = set(tokens), []
    for token in tokens:
        cut = rng.randrange(1, len(token)) if len(token) > 1 else 0
        if cut and token[:cut] in known and token[cut:] in known and " " not in token:
            found.append(f"{token[:cut]} {token[cut:]}")
    rng.shuffle(found)
    return found


def text(rng, tokens):
    """Return a text of tokens and random characters."""
    parts = [
        rng.choice(((rng.choice(tokens) if tokens else ""), rng.choice(PIECES), rng.choice(LETTERS),
                    chr(rng.randrange(0x110000)), str(rng.randrange(10**6))))
        for _ in range(rng.choice((0, 1, 5, 40)))
    ]  # fmt: skip
    return "".join(parts) * rng.choice((1, 1, 1, 50))


def spoil(rng, made, n):
    """Make one part of the vocabulary wrong."""
    kind = rng.choice(("kinds", "scores", "merges", "roles", "tokens", "longer", "twice"))
    if kind == "kinds":
        made["kinds"] = [sizes.anything(rng, 1) % (1 << 31) for _ in range(n)]
    elif kind == "scores" and n:
        made["scores"][rng.randrange(n)] = rng.choice(NUMBERS)
    elif kind == "merges":
        made["merges"].append(
            rng.choice(("", " ", "a", "a b c", "a  b", "zz y", " a", "a ", "a a"))
        )
    elif kind == "roles":
        made["roles"][rng.choice(ROLES)] = sizes.anything(rng, n) % (1 << 32)
    elif kind == "longer":
        name = rng.choice(("kinds", "scores"))
        made[name] = made[name][: rng.randrange(n + 1)] if rng.random() < 0.5 else made[name] * 2
    elif kind == "twice":
        made["merges"] *= 2
    else:
        made["tokens"] = made["tokens"] + made["tokens"][:1]


def metadata(value):
    prefix = "tokenizer.ggml"
    return {
        f"{prefix}.model": value["model"],
        f"{prefix}.pre": value["pre"],
        f"{prefix}.tokens": value["tokens"],
        f"{prefix}.token_type": raw.view("q", value["kinds"]),
        f"{prefix}.scores": raw.view("f", value["scores"]),
        f"{prefix}.merges": value["merges"],
        **{f"{prefix}.{role}_token_id": i for role, i in value["roles"].items()},
        **{f"{prefix}.{name}": flag for name, flag in value["flags"].items()},
        **({f"{prefix}.suppress_tokens": raw.view("Q", value["suppress"])}
           if value["suppress"] else {}),
    }  # fmt: skip


def run(value):
    tokenizer = Tokenizer.from_gguf(metadata(value))
    n = tokenizer.n_vocab
    assert n == len(value["tokens"])
    for number in range(n):
        tokenizer.piece(number)
    for number in sorted(tokenizer.control)[:9]:
        name = value["tokens"][number] or f"[EMPTY_{number}]"
        if not SURROGATE.search(name):
            assert tokenizer.encode(name, add_bos=False) == [number], "markup was not recognised"
    for text in value["texts"]:
        if not SURROGATE.search(text):
            for special in (False, True):
                there_and_back(value, tokenizer, text, special)
    return "encoded"


def there_and_back(value, tokenizer, text, special):
    ids = tokenizer.encode(text, special=special, add_bos=False)
    assert all(0 <= i < tokenizer.n_vocab for i in ids), "an id that is none"
    said = tokenizer.decode(ids)
    stream = tokenizer.stream()
    pieces = [stream.push(i) for i in ids] + [stream.finish()]
    assert "".join(pieces) == said, "a stream ends elsewhere than decode()"
    if not special:
        made = {value["tokens"][i] for i in set(ids) & tokenizer.control}
        odd = {name for name in made if len(name) == 1 or BYTE.fullmatch(name) or name == "<unk>"}
        assert made <= odd | {value["tokens"][value["roles"].get("unknown", 0)]}, "it became markup"
        if is_whole(value) and "▁" not in text:
            assert said == text, f"{text!r} came back as {said!r}"


def is_whole(value):
    """Return whether the vocabulary has all bytes, and each token decodes to its text."""
    kinds = dict(zip(value["tokens"], value["kinds"], strict=False))
    if value["model"] == "gpt2":
        return set(kinds.values()) <= {1, 3} and all(kinds.get(c) == 1 for c in ALPHABET)
    sound = {name: 6 if BYTE.fullmatch(name) else 1 for name in kinds}
    marked = {name for name, kind in kinds.items() if kind == 3}
    every = all(kinds.get(f"<0x{byte:02X}>") == 6 for byte in range(256))
    every = every and kinds.get("▁") == 1  # a space; its bytes mean the sign itself
    return every and all(kinds[name] == sound[name] for name in set(kinds) - marked)


def merged_markup():
    """Keep markup that merges form from plain text."""
    from npurt.llm.text import tokenizer

    tokenizer._letters = lambda vocabulary: {}


PLANTED = {"merged markup": merged_markup}
