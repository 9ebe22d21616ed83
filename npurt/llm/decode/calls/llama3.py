"""Llama 3's calls, which are the whole completion: JSON, or a list of calls in Python's syntax.

Source: the chat templates of Llama 3.1 and 3.2: ``{"name": ..., "parameters": {...}}`` or
``[f(a=1), g(b="x")]``, each after ``<|python_tag|>`` or without it.
"""

import ast
import keyword
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from npurt.errors import GrammarError
from npurt.llm.decode.calls import strict
from npurt.llm.decode.calls.format import (
    CallFormat,
    FunctionCall,
    Growth,
    Schemas,
    call_of,
    objects,
    written,
)
from npurt.llm.decode.calls.growing import json_growth
from npurt.llm.decode.calls.strict import Functions, Markers


class Llama3(CallFormat):
    """Llama 3's format of calls in JSON; see `CallFormat`."""

    start = "<|python_tag|>"
    end = ""
    bare = ""  # an object without the marker is found as any call in JSON is
    markup: tuple[str, ...] = ("<|python_tag|>",)

    def growth(self, text: str, at: int) -> Growth | None:
        """Return the growth of the next call; see `CallFormat`."""
        return json_growth(text, at)

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return the Lark rules of an answer; see `CallFormat`.

        An object that begins with a function's name must be a call of this function.
        """
        heads = "".join(
            f"head_{i}[lazy]: SPACE {strict.spaced(strict.head(name, 'parameters'))}\n"
            for i, name in enumerate(functions)
        )
        firsts = [f'head_{i} SPACE arguments_{i} SPACE "}}"' for i in range(len(functions))]
        return (
            "answer: (first | begin SPACE object) more | TEXT\n"
            'more: (SPACE ";" SPACE object)*\n'
            f"{markers.up_to('begin', self.start)}{heads}{strict.either('first', firsts)}"
            f"{strict.objects(functions, 'parameters')}"
        )

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the calls in *body*, if *schemas* has all their functions."""
        calls = [call_of(value, "parameters", "arguments") for value in objects(body, ";")]
        return _known(calls, schemas)


class Pythonic(CallFormat):
    """Llama 3's format of calls in Python's syntax; see `CallFormat`."""

    start = "<|python_tag|>"
    end = ""
    bare = "["
    markup: tuple[str, ...] = ("<|python_tag|>",)

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return the Lark rules of an answer: a list that begins with a call contains calls only.

        Arguments are JSON values; `parse` accepts these and Python's literals.
        """
        names = [strict.spaced([name, "("]) for name in functions]
        heads = "".join(f'head_{i}[lazy]: SPACE "[" SPACE {name}\n' for i, name in enumerate(names))
        firsts = [f"head_{i} parameters_{i}" for i in range(len(names))]
        calls = [f"{name} parameters_{i}" for i, name in enumerate(names)]
        keywords = "".join(_keywords(f"p{i}", each) for i, each in enumerate(functions.values()))
        return (
            'answer: (first | begin SPACE "[" SPACE call) more | TEXT\n'
            'more: (SPACE "," SPACE call)* SPACE "]"\n'
            f"{markers.up_to('begin', self.start)}{heads}{strict.either('first', firsts)}"
            f"{strict.either('call', calls)}{keywords}"
            + strict.either("parameters", [f'SPACE p{i} SPACE ")"' for i in range(len(names))])
        )

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the calls in *body*, if *schemas* has all their functions."""
        try:
            with warnings.catch_warnings():  # ignore warnings about backslashes in strings
                warnings.simplefilter("ignore")
                tree = ast.parse(body.strip(), mode="eval").body
            if not isinstance(tree, ast.List) or not tree.elts:
                raise ValueError("no list")
            return _known([_python_call(each) for each in tree.elts], schemas)
        except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
            raise ValueError("no list of calls") from error


def _keywords(rule: str, schema: Mapping[str, Any]) -> str:
    """Return *rule*, which matches the arguments of a call, and the rules that it uses.

    The properties are in the order of *schema*.  Each property has two rules: one as the first
    argument of a call, and one as a later argument, which begins with a comma.

    Raises:
        GrammarError: The name of a property is not a valid name in Python.
    """
    found = strict.properties(schema)
    if found is None:
        any_one = f'/[A-Za-z_][A-Za-z0-9_]*/ SPACE "=" SPACE {strict.value({})}'
        return f'{rule}: ({rule}_any (SPACE "," SPACE {rule}_any)*)?\n{rule}_any: {any_one}\n'
    lines = [f"{rule}: {rule}_first_0\n"]
    for i, (name, value, required) in enumerate(found):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise GrammarError(
                f"the parameter {name!r:.60} of a strict function is no name in Python",
                remedy="rename it, or leave strict out: this model writes calls in Python",
            )
        lines.append(f"{rule}_{i}: {strict.spaced([name, '='])} SPACE {strict.value(value)}\n")
        for place, comma in (("first", ""), ("next", 'SPACE "," SPACE ')):
            skip = "" if required else f" | {rule}_{place}_{i + 1}"
            lines.append(f"{rule}_{place}_{i}: {comma}{rule}_{i} {rule}_next_{i + 1}{skip}\n")
    lines += [f'{rule}_{place}_{len(found)}: ""\n' for place in ("first", "next")]
    return "".join(lines)


def _python_call(node: ast.expr) -> FunctionCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with names of arguments")
    arguments = {
        str(each.arg): ast.literal_eval(_JsonNames().visit(each.value)) for each in node.keywords
    }
    if any(each.arg is None for each in node.keywords):
        raise ValueError("arguments without names")
    return FunctionCall(ast.unparse(node.func), written(arguments))


class _JsonNames(ast.NodeTransformer):
    """Replaces JSON's true, false and null, which models write in Python's syntax as well."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the constant if *node* is true, false or null, else *node*."""
        values = {"true": True, "false": False, "null": None}
        return ast.Constant(values[node.id]) if node.id in values else node


def _known(calls: Sequence[FunctionCall], schemas: Schemas) -> Sequence[FunctionCall]:
    """Return *calls*.

    Raises:
        ValueError: A call's function is not in *schemas*: the text is an answer, not a call.
    """
    if any(call.name not in schemas for call in calls):
        raise ValueError("a function that nobody has named")
    return calls
