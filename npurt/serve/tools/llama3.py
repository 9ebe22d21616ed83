"""Calls that are all of the text: Llama 3's JSON, and its lists of calls in Python's syntax.

Source: the chat templates of Llama 3.1 and 3.2: ``{"name": ..., "parameters": {...}}``, after
``<|python_tag|>`` or without it; ``[f(a=1), g(b="x")]``.
"""

import ast
import warnings
from collections.abc import Sequence

from npurt.serve.tools.calls import Call, Format, Schemas, call_of, objects, written


class Llama3(Format):
    """See `Format`."""

    start = "<|python_tag|>"
    end = ""
    bare = "{"
    markup: tuple[str, ...] = ("<|python_tag|>",)

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*, of functions that there are."""
        calls = [call_of(value, "parameters", "arguments") for value in objects(body, ";")]
        return _known(calls, schemas)


class Pythonic(Format):
    """See `Format`."""

    start = "<|python_tag|>"
    end = ""
    bare = "["
    markup: tuple[str, ...] = ("<|python_tag|>",)

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*, of functions that there are."""
        try:
            with warnings.catch_warnings():  # of a backslash in a text, as in a regular expression
                warnings.simplefilter("ignore")
                tree = ast.parse(body.strip(), mode="eval").body
            if not isinstance(tree, ast.List) or not tree.elts:
                raise ValueError("no list")
            return _known([_python_call(each) for each in tree.elts], schemas)
        except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
            raise ValueError("no list of calls") from error


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with names of arguments")
    arguments = {
        str(each.arg): ast.literal_eval(_JsonNames().visit(each.value)) for each in node.keywords
    }
    if any(each.arg is None for each in node.keywords):
        raise ValueError("arguments without names")
    return Call(ast.unparse(node.func), written(arguments))


class _JsonNames(ast.NodeTransformer):
    """Makes values of the names that these have in JSON, which models write as well."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the value of *node*, if it is one."""
        values = {"true": True, "false": False, "null": None}
        return ast.Constant(values[node.id]) if node.id in values else node


def _known(calls: Sequence[Call], schemas: Schemas) -> Sequence[Call]:
    """Return *calls*; a text that only looks like calls names no function that there is."""
    if any(call.name not in schemas for call in calls):
        raise ValueError("a function that nobody has named")
    return calls
