"""The items of a response, each with the events that build it."""

from abc import abstractmethod
from typing import Any, Protocol

from npurt.serve.interfaces.openai_common import new_id
from npurt.serve.model.reading import Part, Said, Thought
from npurt.serve.tools.calls import Call

Events = list[tuple[str, dict[str, Any]]]


class Item(Protocol):
    """An item; *closed* says whether its end was told."""

    closed: bool

    def takes(self, part: Part) -> bool:
        """Return whether *part* continues it."""

    def begin(self) -> Events:
        """Return the events with which it begins."""

    def add(self, part: Part) -> Events:
        """Take *part*; return its events."""

    def end(self) -> Events:
        """Return the events with which it ends."""

    def whole(self) -> dict[str, Any]:
        """Return the item as it is now."""


class _Text:
    """An item whose content is one text."""

    kind: type[Part]  # what continues it
    delta = ""  # event of new text, and of the whole text
    done = ""

    def __init__(self, prefix: str) -> None:
        self.closed = False
        self.id = new_id(prefix).replace("-", "_")
        self.text = ""

    def takes(self, part: Part) -> bool:
        """Return whether *part* continues it."""
        return isinstance(part, self.kind)

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Return the text as a part."""

    @abstractmethod
    def item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item with this *content*."""

    def begin(self) -> Events:
        """Return the events with which it begins."""
        return [
            ("response.output_item.added", {"item": self.item([])}),
            ("response.content_part.added", {**self._place(), "part": self.content()}),
        ]

    def add(self, part: Part) -> Events:
        """Take *part*; return its events."""
        assert isinstance(part, Said | Thought)
        self.text += part.text
        return [(self.delta, {**self._place(), "delta": part.text, **self.extra()})]

    def end(self) -> Events:
        """Return the events with which it ends."""
        return [
            (self.done, {**self._place(), "text": self.text, **self.extra()}),
            ("response.content_part.done", {**self._place(), "part": self.content()}),
            ("response.output_item.done", {"item": self.whole()}),
        ]

    def extra(self) -> dict[str, Any]:
        """Return the further fields of events of text."""
        return {}

    def whole(self) -> dict[str, Any]:
        """Return the item as it is now."""
        return self.item([self.content()])

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": 0}

    @property
    def status(self) -> str:
        """Whether it goes on."""
        return "completed" if self.closed else "in_progress"


class TextItem(_Text):
    """What the model says."""

    kind = Said
    delta, done = "response.output_text.delta", "response.output_text.done"

    def __init__(self) -> None:
        super().__init__("msg")

    def content(self) -> dict[str, Any]:
        """Return the text as a part."""
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item with this *content*."""
        return {
            "id": self.id, "type": "message", "role": "assistant", "status": self.status,
            "content": content,
        }  # fmt: skip

    def extra(self) -> dict[str, Any]:
        """Return the further fields of events of text."""
        return {"logprobs": []}


class ThoughtItem(_Text):
    """What the model thinks before it answers."""

    kind = Thought
    delta, done = "response.reasoning_text.delta", "response.reasoning_text.done"

    def __init__(self) -> None:
        super().__init__("rs")

    def content(self) -> dict[str, Any]:
        """Return the text as a part."""
        return {"type": "reasoning_text", "text": self.text}

    def item(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the item with this *content*."""
        return {
            "id": self.id, "type": "reasoning", "summary": [], "content": content,
            "status": self.status,
        }  # fmt: skip


class CallItem:
    """A call of a function."""

    def __init__(self, call: Call) -> None:
        self.closed = False
        self._id = new_id("fc").replace("-", "_")
        self._call_id = new_id("call").replace("-", "_")
        self._call = call

    def takes(self, part: Part) -> bool:
        """Return whether *part* continues it: a call comes whole."""
        return False

    def begin(self) -> Events:
        """Return the event with which it begins, without arguments."""
        return [("response.output_item.added", {"item": self.whole() | {"arguments": ""}})]

    def add(self, part: Part) -> Events:
        """Return the event of the arguments."""
        delta = {"item_id": self._id, "delta": self._call.arguments}
        return [("response.function_call_arguments.delta", delta)]

    def end(self) -> Events:
        """Return the events with which it ends."""
        call = self._call
        done = {"item_id": self._id, "name": call.name, "arguments": call.arguments}
        return [
            ("response.function_call_arguments.done", done),
            ("response.output_item.done", {"item": self.whole()}),
        ]

    def whole(self) -> dict[str, Any]:
        """Return the item as it is now."""
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._call.name,
            "arguments": self._call.arguments,
            "status": "completed" if self.closed else "in_progress",
        }


def new_item(part: Part) -> Item:
    """Return the item that *part* begins; it is still to be added."""
    if isinstance(part, Call):
        return CallItem(part)
    return TextItem() if isinstance(part, Said) else ThoughtItem()
