"""Add metering to a parsed template for operations that bypass the jinja2 environment.

jinja2 executes calls, filters, tests, ``+ * ** %`` and output through the environment, which meters
them.  This module wraps all other operations in filters.  The filters' names, such as "+step",
cannot occur in a template:

- ``+step``: charge units at each iteration of a loop and each run of a macro or block;
- ``+made``: charge for a new list, dict, tuple or slice;
- ``+read``: charge for a value before it is compared or hashed;
- ``+walk``: charge for the elements of ``*value`` in a call;
- ``+join``: concatenate values instead of ``~``.
"""

from collections.abc import Callable
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

STEP = 64  # units of one iteration, call or operation

Node = Any  # a jinja2 node, whose fields are not typed


def add_metering(tree: nodes.Template) -> nodes.Template:
    """Return *tree* with filters that charge for the work of the template.

    Raises:
        TemplateSyntaxError: The template has an include, import, extends or autoescape statement.
    """
    metered: nodes.Template = _Metering().visit(tree)
    metered.set_lineno(1)
    return metered


class _Metering(NodeTransformer):
    def __init__(self) -> None:
        self._changes: dict[type, Callable[[Node], Node]] = {
            nodes.For: _meter_loop,
            nodes.Macro: _meter_body,
            nodes.CallBlock: _meter_body,
            nodes.Block: _meter_body,
            nodes.Concat: lambda node: _filter("+join", nodes.List(node.nodes)),
            nodes.List: lambda node: _filter("+made", node),
            nodes.Dict: lambda node: _filter("+made", node),
            nodes.Tuple: lambda node: node if node.ctx == "store" else _filter("+made", node),
            nodes.Pair: _read_key,
            nodes.Getitem: _read_index,
            nodes.Compare: _read_operands,
            nodes.Call: _walk_arguments,
            nodes.Filter: _walk_arguments,
            nodes.Test: _walk_arguments,
            nodes.Include: _refuse,
            nodes.Import: _refuse,
            nodes.FromImport: _refuse,
            nodes.Extends: _refuse,
            nodes.ScopedEvalContextModifier: _refuse,
        }

    def visit(self, node: Node, *args: Any, **kwargs: Any) -> Node:
        """Change the children of *node*, then *node* itself."""
        node = self.generic_visit(node)
        return self._changes.get(type(node), _keep)(node)


def _keep(node: Node) -> Node:
    return node


def _refuse(node: Node) -> Node:
    name = type(node).__name__.lower()
    raise TemplateSyntaxError(f"npurt does not support {name} in a chat template", node.lineno)


def _meter_body(node: Node) -> Node:
    text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    node.body.insert(0, nodes.ExprStmt(_filter("+step", nodes.Const(STEP + text))))
    return node


def _meter_loop(node: Node) -> Node:
    if node.test is not None:  # the test runs for every element, even if the body never does
        node.test = nodes.And(_filter("+step", nodes.Const(STEP)), node.test)
    return _meter_body(node)


def _read_key(node: Node) -> Node:
    node.key = _read(node.key)
    return node


def _read_index(node: Node) -> Node:
    if isinstance(node.arg, nodes.Slice):
        return _filter("+made", node)
    node.arg = _read(node.arg)
    return node


def _read_operands(node: Node) -> Node:
    node.expr = _read(node.expr)
    for operand in node.ops:
        operand.expr = _read(operand.expr)
    return node


def _walk_arguments(node: Node) -> Node:
    if node.dyn_args is not None:
        node.dyn_args = _filter("+walk", node.dyn_args)
    return node


def _read(node: Node) -> Node:
    return node if isinstance(node, nodes.Const) else _filter("+read", node)


def _filter(name: str, node: Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)
