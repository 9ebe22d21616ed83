r"""Convert GBNF, llama.cpp's format of grammars, to Lark in linear time.

A rule that is not recursive becomes a terminal of Lark, because llguidance matches terminals with
an automaton, which is twenty times as fast as its parser.  A terminal matches greedily.  So a
grammar without recursion is one terminal, and the conversion is exact.  The conversion of a
recursive grammar does not match texts in which a terminal must end early: ``zab``, if a rule
``[a-z]+`` is followed by ``"ab"``.

``<[ID]>`` and ``<think>`` match one token, by its id or its text, and ``!`` before them any other
token.  The Lark has the numbers of these tokens in a list, because ids depend on the model.

Sources: llama.cpp grammars/README.md and src/llama-grammar.cpp, MIT: the syntax, which line feeds
end a rule, escapes, ``.`` as any character, and that the last definition of a rule is used;
llguidance docs/syntax.md, MIT: names of terminals are in capitals.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from npurt.errors import GrammarError

MAX_DEPTH = 100  # levels of nested groups and repetitions; Python and Rust recurse for each level
PART = re.compile(
    r"""(?P<space> (?: [ \t] | \#[^\r\n]*+ )++ )
      | (?P<line> \r\n? | \n )
      | (?P<is> ::= )
      | (?P<name> [\w-]++ )
      | (?P<token> !?< (?: \[ \d{1,9} \] | [^<>"\[\s][^<>"\s]*+ ) > )
      | (?P<text> "(?: [^"\\] | \\. )*+" )
      | (?P<set> \[ (?: [^\]\\] | \\. )*+ \] )
      | (?P<times> [*+?] | \{ \s*+ \d{1,9} \s*+ (?: , \s*+ (?: \d{1,9} \s*+ )? )? \} )
      | (?P<mark> [.|()] )""",
    re.VERBOSE | re.DOTALL,
)
ONE = r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\]"
CHARACTER = re.compile(ONE, re.DOTALL)
RANGE = re.compile(f"({ONE})(?:-({ONE}))?", re.DOTALL)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
ANY = r"/[\x{0}-\x{10FFFF}]/"
Token = int | str  # a token's id, or its text
TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(slots=True)
class Symbol:
    """A terminal or a rule with its number of repetitions.

    Attributes:
        what: A terminal in Lark, or the number of a rule.
        minimum: The smallest number of repetitions.
        maximum: The largest number of repetitions; None means no limit.
    """

    what: str | int
    minimum: int = 1
    maximum: int | None = 1


@dataclass(slots=True)
class GrammarRule:
    """A rule of the grammar, or a group in parentheses.

    Attributes:
        name: The rule's name; empty for a group.
        options: The alternatives, each a list of symbols; empty until the rule is defined.
        depth: The levels of nested groups in the rule.
    """

    name: str
    options: list[list[Symbol]] = field(default_factory=list)
    depth: int = 0

    def add(self, symbol: Symbol, depth: int) -> None:
        """Append *symbol* to the last alternative; it has *depth* levels of nested groups."""
        self.options[-1].append(symbol)
        self.depth = max(self.depth, depth)


def lark_of(text: str, max_rules: int) -> tuple[str, list[Token]]:
    """Return the GBNF grammar *text* converted to Lark, and the tokens that it names.

    ``<[@N]>`` in the Lark stands for token N of the list, and ``<[^@N]>`` for any other token.

    Raises:
        GrammarError: *text* is not GBNF, has more than *max_rules* rules, or matches no text.
    """
    reader = _Reader(text, max_rules)
    rules = reader.rules()
    references = [
        [[s for s in option if isinstance(s.what, int)] for option in rule.options]
        for rule in rules
    ]
    ending = _reached([[_numbers(s for s in o if s.minimum) for o in each] for each in references])
    if 0 not in ending:
        raise GrammarError(
            "the GBNF matches no text: each alternative of its rule root is infinitely recursive",
            remedy="add an alternative without recursion",
        )
    fixed = _reached([
        # Only terminals of text become terminals of Lark; a rule with a token needs itself.
        [_numbers(s for o in each for s in o) | ({i} if _has_token(rules[i]) else set())]
        for i, each in enumerate(references)
    ])  # fmt: skip
    names = [f"R{i}" if i in fixed else f"r{i}" for i in range(len(rules))]
    lines = [
        f"{name}: {_options(rule, rules, names)}\n"
        for rule, name in zip(rules, names, strict=True)
        if rule.name
    ]
    return f"start: {names[0]}\n" + "".join(lines), list(reader.tokens)


class _Reader:
    """Parses the rules of a grammar.  Rule 0 is ``root``."""

    def __init__(self, text: str, max_rules: int) -> None:
        self._text = text
        self._max_rules = max_rules
        self._numbers = {"root": 0}
        self._rules = [GrammarRule("root")]
        self.tokens: dict[Token, int] = {}  # the tokens that the grammar names, with their numbers

    def rules(self) -> list[GrammarRule]:
        """Return the list of rules and groups; a rule's number is its index."""
        parts = self._parts()
        for kind, part, at in parts:
            if kind == "line":
                continue
            if kind != "name" or next(parts, ("",))[0] != "is":
                raise self._wrong("a rule does not begin with a name and ::=", at)
            number = self._number(part)
            self._rules[number] = self._rule(part, parts)
        for rule in self._rules:
            if not rule.options:
                raise _wrong(f"there is no rule {rule.name}")
        return self._rules

    def _parts(self) -> Iterator[tuple[str, str, int]]:
        """Yield kind, text and offset of each lexical token except space."""
        at = 0
        while at < len(self._text):
            found = PART.match(self._text, at)
            if found is None:
                raise self._wrong(
                    "a character is out of place, or a quote or bracket is not closed", at
                )
            if found.lastgroup != "space":
                yield str(found.lastgroup), found[0], at
            at = found.end()

    def _rule(self, name: str, parts: Iterator[tuple[str, str, int]]) -> GrammarRule:
        """Parse the alternatives of a rule up to the end of its last line."""
        stack = [GrammarRule(name, [[]])]
        before = "|"  # the previous token; a line feed after "|" does not end the rule
        for kind, part, at in parts:
            top = stack[-1]
            if kind == "line":
                if before != "|" and len(stack) == 1:
                    break
                continue
            if part == "(":
                stack.append(GrammarRule("", [[]]))
            elif part == ")" and len(stack) > 1:
                self._add_group(stack[-2], stack.pop(), at)
            elif part == "|":
                top.options.append([])
            elif kind == "times":
                self._repeat(top, part, at)
            elif kind in ("name", "text", "set", "token") or part == ".":
                top.add(Symbol(self._what(kind, part, at)), 0)
            else:
                raise self._wrong(f"{part} is out of place", at)
            before = part
        if len(stack) > 1:
            raise _wrong(f"a bracket of the rule {name} is not closed")
        return stack[0]

    def _what(self, kind: str, part: str, at: int) -> str | int:
        if kind == "name":
            return self._number(part)
        if kind == "text":
            characters = CHARACTER.findall(part[1:-1])
            text = "".join(chr(self._character(each, at)) for each in characters)
            return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")  # Lark's escape
        if kind == "token":
            name = part.removeprefix("!")
            token: Token = int(name[2:-2]) if name[1] == "[" else name
            number = self.tokens.setdefault(token, len(self.tokens))
            return f"<[{'^' * part.startswith('!')}@{number}]>"
        return ANY if part == "." else self._set(part[1:-1], at)

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            if len(self._numbers) == self._max_rules:
                raise _wrong(f"it has more than {self._max_rules} rules")
            self._numbers[name] = len(self._rules)
            self._rules.append(GrammarRule(name))
        return self._numbers[name]

    def _add_group(self, around: GrammarRule, group: GrammarRule, at: int) -> None:
        if group.depth == MAX_DEPTH:
            raise self._wrong("it is nested too deeply", at)
        around.add(Symbol(len(self._rules)), group.depth + 1)
        self._rules.append(group)

    def _repeat(self, rule: GrammarRule, part: str, at: int) -> None:
        """Set the repetitions of the last symbol of *rule* to *part*, such as ``{2,3}``."""
        option = rule.options[-1]
        if not option:
            raise self._wrong(f"nothing is before {part}", at)
        if (option[-1].minimum, option[-1].maximum) != (1, 1):
            self._add_group(rule, GrammarRule("", [[option.pop()]], rule.depth), at)
        if part in TIMES:
            minimum, maximum = TIMES[part]
        else:
            first, comma, last = part[1:-1].partition(",")
            minimum = int(first)
            maximum = int(last) if last.strip() else None if comma else minimum
        if maximum is not None and maximum < minimum:
            raise self._wrong(f"{part} has the larger number first", at)
        option[-1].minimum, option[-1].maximum = minimum, maximum

    def _set(self, inside: str, at: int) -> str:
        negated = inside.startswith("^")
        members = ""
        for first, last in RANGE.findall(inside[negated:]):
            minimum = self._character(first, at)
            maximum = self._character(last or first, at)
            if maximum < minimum:
                raise self._wrong(f"{first}-{last} has the larger character first", at)
            members += f"\\x{{{minimum:X}}}-\\x{{{maximum:X}}}"
        if not members:
            raise self._wrong("a set of characters is empty", at)
        return f"/[{'^' * negated}{members}]/"

    def _character(self, part: str, at: int) -> int:
        if not part.startswith("\\"):
            return ord(part)
        if part[1] in ESCAPES:
            return ord(ESCAPES[part[1]])
        number = int(part[2:] or "-1", 16)
        if not 0 <= number <= 0x10FFFF or 0xD800 <= number < 0xE000:
            raise self._wrong(f"{part} is no character", at)
        return number

    def _wrong(self, what: str, at: int) -> GrammarError:
        line = self._text.count("\n", 0, at) + 1
        return _wrong(f"{what}, in line {line} at {self._text[at : at + 20]!r}")


def _reached(needs: Sequence[Sequence[set[int]]]) -> set[int]:
    """Return the rules with an alternative that uses only rules of the result, without recursion.

    Args:
        needs: For each rule the list of its alternatives, each as the set of rules that it uses.
    """
    missing = [[len(option) for option in options] for options in needs]
    users = defaultdict(list)
    for rule, options in enumerate(needs):
        for i, option in enumerate(options):
            for needed in option:
                users[needed].append((rule, i))
    reached = {rule for rule, counts in enumerate(missing) if 0 in counts}
    rest = list(reached)
    while rest:
        for rule, i in users[rest.pop()]:
            missing[rule][i] -= 1
            if not missing[rule][i] and rule not in reached:
                reached.add(rule)
                rest.append(rule)
    return reached


def _has_token(rule: GrammarRule) -> bool:
    return any(str(symbol.what).startswith("<[") for option in rule.options for symbol in option)


def _numbers(symbols: Iterator[Symbol]) -> set[int]:
    return {symbol.what for symbol in symbols if isinstance(symbol.what, int)}


def _options(rule: GrammarRule, rules: Sequence[GrammarRule], names: Sequence[str]) -> str:
    return " | ".join(
        " ".join(_symbol(symbol, rules, names) for symbol in option) or '""'
        for option in rule.options
    )


def _symbol(symbol: Symbol, rules: Sequence[GrammarRule], names: Sequence[str]) -> str:
    what = symbol.what
    if isinstance(what, int):
        group = not rules[what].name
        what = f"({_options(rules[what], rules, names)})" if group else names[what]
    if symbol.maximum == 0:
        return '""'
    if (symbol.minimum, symbol.maximum) == (1, 1):
        return what
    maximum = "" if symbol.maximum is None else symbol.maximum
    return f"({what}){{{symbol.minimum},{maximum}}}"


def _wrong(what: str) -> GrammarError:
    return GrammarError(
        f"the grammar is not GBNF: {what:.300}",
        remedy="write rules as NAME ::= TEXTS | OTHERS; llama.cpp's grammars/README.md has the "
        "syntax, and npurt.Grammar.from_lark reads Lark",
    )
