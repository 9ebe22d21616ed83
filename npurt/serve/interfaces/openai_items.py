"""The output items of /v1/responses, with the stream events that build each item."""

from abc import abstractmethod
from typing import Any, Protocol

from npurt.llm.decode.calls.format import CallPart, FunctionCall
from npurt.llm.decode.calls.reading import Part, Said, Thought
from npurt.serve.interfaces.openai_common import new_id

Events = list[tuple[str, dict[str, Any]]]


class Item(Protocol):
    """An output item; *closed* is whether its final events were sent."""

    closed: bool

    def takes(self, part: Part) -> bool:
        """Return whether *part* continues this item."""

    def begin(self) -> Events:
        """Return the item's first events."""

    def add(self, part: Part) -> Events:
        """Append *part* to the item; return the events of *part*."""

    def end(self) -> Events:
        """Return the item's final events."""

    def whole(self) -> dict[str, Any]:
        """Return the item's object in its current state."""


class _Text:
    """An item whose content is one text."""

    kind: type[Part]  # the parts that this item consists of
    delta = ""  # name of the event with new text
    done = ""  # name of the event with the whole text

    def __init__(self, prefix: str) -> None:
        self.closed = False
        self.id = new_id(prefix).replace("-", "_")
        self.text = ""

    def takes(self, part: Part) -> bool:
        """Return whether *part* continues this item."""
        return isinstance(part, self.kind)

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return the text as a content part."""

    @abstractmethod
    def item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item's object with *content*."""

    def begin(self) -> Events:
        """Return the item's first events."""
        return [
            ("response.output_item.added", {"item": self.item([])}),
            ("response.content_part.added", {**self._place(), "part": self.content()}),
        ]

    def add(self, part: Part) -> Events:
        """Append *part* to the item; return the events of *part*."""
        assert isinstance(part, Said | Thought)
        self.text += part.text
        return [(self.delta, {**self._place(), "delta": part.text, **self.extra()})]

    def end(self) -> Events:
        """Return the item's final events."""
        return [
            (self.done, {**self._place(), "text": self.text, **self.extra()}),
            ("response.content_part.done", {**self._place(), "part": self.content()}),
            ("response.output_item.done", {"item": self.whole()}),
        ]

    def extra(self) -> dict[str, Any]:
        """Return additional fields of the events *delta* and *done*."""
        return {}

    def whole(self) -> dict[str, Any]:
        """Return the item's object in its current state."""
        return self.item([self.content()])

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": 0}

    @property
    def status(self) -> str:
        """The item's status: completed or in progress."""
        return "completed" if self.closed else "in_progress"


class TextItem(_Text):
    """A piece of the model's answer."""

    kind = Said
    delta, done = "response.output_text.delta", "response.output_text.done"

    def __init__(self) -> None:
        super().__init__("msg")

    def content(self) -> dict[str, Any]:
        """Return the text as a content part."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item's object with *content*."""
        return {
            "id": self.id, "type": "message", "role": "assistant", "status": self.status,
            "content": content,
        }  # fmt: skip

    def extra(self) -> dict[str, Any]:
        """Return additional fields of the events *delta* and *done*."""
        return {"logprobs": []}


class ThoughtItem(_Text):
    """The model's reasoning before the answer."""

    kind = Thought
    delta, done = "response.reasoning_text.delta", "response.reasoning_text.done"

    def __init__(self) -> None:
        super().__init__("rs")

    def content(self) -> dict[str, Any]:
        """Return the text as a content part."""
        return {"type": "reasoning_text", "text": self.text}

    def item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item's object with *content*."""
        return {
            "id": self.id, "type": "reasoning", "summary": [], "content": content,
            "status": self.status,
        }  # fmt: skip


class CallItem:
    """A function call."""

    def __init__(self, part: CallPart) -> None:
        self.closed = False
        self._number = part.number
        self._id = new_id("fc").replace("-", "_")
        self._call_id = new_id("call").replace("-", "_")
        self._call = FunctionCall(part.name, "")

    def takes(self, part: Part) -> bool:
        """Return whether *part* continues this call."""
        return isinstance(part, CallPart) and part.number == self._number

    def begin(self) -> Events:
        """Return the item's first event, without arguments."""
        return [("response.output_item.added", {"item": self.whole()})]

    def add(self, part: Part) -> Events:
        """Append *part* to the arguments; return its event."""
        assert isinstance(part, CallPart)
        if not part.arguments:
            return []
        self._call.arguments += part.arguments
        delta = {"item_id": self._id, "delta": part.arguments}
        return [("response.function_call_arguments.delta", delta)]

    def end(self) -> Events:
        """Return the item's final events."""
        call = self._call
        done = {"item_id": self._id, "name": call.name, "arguments": call.arguments}
        return [
            ("response.function_call_arguments.done", done),
            ("response.output_item.done", {"item": self.whole()}),
        ]

    def whole(self) -> dict[str, Any]:
        """Return the item's object in its current state."""
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._call.name,
            "arguments": self._call.arguments,
            "status": "completed" if self.closed else "in_progress",
        }


def new_item(part: Part) -> Item:
    """Return a new item for *part*, without the content of *part*."""
    if isinstance(part, CallPart):
        return CallItem(part)
    return TextItem() if isinstance(part, Said) else ThoughtItem()
