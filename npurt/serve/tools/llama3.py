"""Calls that are all of the text: Llama 3's JSON, and its lists of calls in Python's syntax.

Source: the chat templates of Llama 3.1 and 3.2: ``{"name": ..., "parameters": {...}}``, after
``<|python_tag|>`` or without it; ``[f(a=1), g(b="x")]``.
"""

import ast
from collections.abc import Sequence

from npurt.serve.tools.calls import Call, Schemas, call_of, objects, written


class Llama3:
    """See `Format`."""

    start = "<|python_tag|>"
    end = ""
    bare = "{"
    markup: tuple[str, ...] = ("<|python_tag|>",)

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*, of functions that there are."""
        calls = [call_of(value, "parameters", "arguments") for value in objects(body, ";")]
        return _known(calls, schemas)


class Pythonic:
    """See `Format`."""

    start = "<|python_tag|>"
    end = ""
    bare = "["
    markup: tuple[str, ...] = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*, of functions that there are."""
        try:
            tree = ast.parse(body.strip(), mode="eval").body
            if not isinstance(tree, ast.List) or not tree.elts:
                raise ValueError("no list")
            return _known([_python_call(each) for each in tree.elts], schemas)
        except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
            raise ValueError("no list of calls") from error


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with names of arguments")
    arguments = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    if any(each.arg is None for each in node.keywords):
        raise ValueError("arguments without names")
    return Call(ast.unparse(node.func), written(arguments))


def _known(calls: Sequence[Call], schemas: Schemas) -> Sequence[Call]:
    """Return *calls*; a text that only looks like calls names no function that there is."""
    if any(call.name not in schemas for call in calls):
        raise ValueError("a function that nobody has named")
    return calls
