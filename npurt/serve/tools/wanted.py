"""Read the tools of a request, and whether the model may, must or must not call them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npurt.errors import NpurtError
from npurt.llm.decode.calls.format import CallFormat, FunctionCall, Schemas, call_of, objects
from npurt.llm.decode.calls.strict import Functions
from npurt.llm.decode.grammar.grammar import Grammar, grammar_of
from npurt.llm.decode.grammar.lark import ANY_ARGUMENTS, one_call, parameters
from npurt.serve.http import limits
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields


@dataclass(slots=True)
class Tools:
    """The tools that the model may call.

    Attributes:
        listed: The tools in the form that chat templates expect.
        schemas: The schema of each function's parameters by its name.
        forced: Names of functions, one of which must be called; empty: the model decides.
        several: Whether more than one call is allowed.
        strict: Names of functions whose calls must match their schemas.
    """

    listed: Sequence[Mapping[str, Any]] = ()
    schemas: Schemas = field(default_factory=dict)
    forced: Sequence[str] = ()
    several: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def checked(self) -> Functions:
        """The schema of each function for a grammar; any arguments if it is not strict."""
        return {
            name: schema if name in self.strict else ANY_ARGUMENTS
            for name, schema in self.schemas.items()
        }

    def check(self, names: Iterable[str]) -> None:
        """Check that a grammar can force calls of the functions *names* to match their schemas.

        Raises:
            HttpError: A schema is invalid or too large; the error names the function.
        """
        for name in names:
            try:
                Grammar.from_json_schema(parameters(self.schemas[name]))
            except NpurtError as error:
                raise wrong(
                    f"the parameters of the tool {name} cannot be followed: {error.what}",
                    error.remedy, "tools",
                ) from error  # fmt: skip
        try:
            grammar_of(None, self.response_format())
        except NpurtError as error:
            raise wrong(
                f"the tools cannot be followed together: {error.what}",
                "send fewer tools, or tools with simpler parameters", "tools",
            ) from error  # fmt: skip

    def response_format(self) -> dict[str, Any] | None:
        """Return the response format of one call of a forced function; None if none is forced."""
        if not self.forced:
            return None
        return one_call({name: self.schemas[name] for name in self.forced})


class Forced(CallFormat):
    """The format of a completion that a grammar forces to be one call in JSON; see `CallFormat`."""

    start = "\0"  # no completion contains this marker
    end = ""
    bare = "{"
    markup: tuple[str, ...] = ()

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the call in *body*."""
        return [call_of(value, "arguments") for value in objects(body)]


def tools_of(fields: Fields) -> Tools:
    """Return the tools in *fields*, in OpenAI's form, without tools that are not functions.

    Raises:
        HttpError: A tool or the choice of tools is invalid, or the schemas are too large.
    """
    listed, schemas, strict = [], {}, set()
    for tool in fields.objects("tools"):
        if tool.text("type", "function") != "function":
            continue
        function = tool.inner("function")
        name = function.required_text("name")
        if not name or len(name) > limits.TOOL_NAME:
            raise function.wrong("name", f"a name of up to {limits.TOOL_NAME} characters")
        schemas[name] = function.inner("parameters").values
        if function.flag("strict"):
            strict.add(name)
        listed.append(tool.values)
    if limits.exceeds(schemas, limits.SCHEMA):
        raise wrong(f"schemas of tools have more than {limits.SCHEMA} characters",
                    "send fewer tools", "tools")  # fmt: skip
    several = fields.flag("parallel_tool_calls", True)
    choice = fields.values.get("tool_choice")
    if choice is None or choice == "auto":
        return Tools(listed, schemas, (), several, frozenset(strict))
    if choice == "none":
        return Tools()
    if choice == "required":
        forced = list(schemas)
    else:
        chosen = fields.inner("tool_choice")
        function = chosen.inner("function") if chosen.has("function") else chosen
        forced = [function.required_text("name")]
    if not schemas or any(name not in schemas for name in forced):
        raise fields.wrong("tool_choice", "auto, none, required, or one of tools")
    return Tools(listed, schemas, forced, several)


def flat_tools(fields: Fields, usual: str | None, kind: str, schema: str) -> list[dict[str, Any]]:
    """Convert tools without the inner object "function" to OpenAI's form.

    Args:
        fields: The request's fields.
        usual: The type of a tool without the field "type".
        kind: The type of functions.  Tools of other types are left out: the original server of the
            interface would run them.
        schema: The field with the schema of the parameters.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.required_text("name"),
                "description": tool.text("description", ""),
                "parameters": tool.inner(schema).values,
                **({"strict": True} if tool.flag("strict") else {}),
            },
        }
        for tool in fields.objects("tools")
        if tool.text("type", usual) == kind
    ]


def reader_format(tools: Tools, usual: CallFormat) -> CallFormat | None:
    """Return the format of calls in the completion; None if there are no tools."""
    if tools.forced:
        return Forced()
    return usual if tools.listed else None
