"""Leave out the oldest turns of a conversation that is too long for the context."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]

KEPT = ("system", "developer")  # roles of messages that are never left out
# A conversation is shortened if the prompt leaves less than an eighth of the context for the
# answer, until a quarter is free.  So the next few prompts begin with the same tokens.
LEAST, FREE = 8, 4


def turns(messages: Messages) -> list[list[int]]:
    """Return the indices of the messages of each turn, without those of roles in `KEPT`.

    A turn begins with the user's message and has everything up to the user's next message: the
    answer, the calls of tools and their results.
    """
    found: list[list[int]] = []
    before = ""
    for i, message in enumerate(messages):
        role = message.get("role")
        if role in KEPT:
            continue
        if not found or (role == "user" and before != "user"):
            found.append([])
        found[-1].append(i)
        before = str(role)
    return found


def without(messages: Messages, count: int) -> list[Mapping[str, Any]]:
    """Return *messages* without their *count* oldest turns."""
    gone = {i for turn in turns(messages)[:count] for i in turn}
    return [message for i, message in enumerate(messages) if i not in gone]


def fitted(
    messages: Messages,
    render: Callable[[Messages], list[int]],
    n_ctx: int,
    max_tokens: int | None = None,
) -> tuple[int, list[int]]:
    """Return the number of oldest turns that do not fit in the context, and the prompt without.

    The last turn is never left out.  If it is too long alone, return 0 and its prompt.

    Args:
        render: Returns the prompt of messages, as tokens.
        n_ctx: Positions of the context.
        max_tokens: The largest number of tokens of the answer; None or -1: any.
    """
    ids = render(messages)
    answer = n_ctx if max_tokens is None or max_tokens < 0 else max_tokens
    if len(ids) + min(answer, n_ctx // LEAST) <= n_ctx:
        return 0, ids
    most = len(turns(messages)) - 1
    if most < 1:
        return 0, ids
    last = render(without(messages, most))
    if len(last) > n_ctx:
        return 0, last
    room = n_ctx - min(answer, n_ctx // FREE)
    counts = range(1, most)
    fewest = bisect_left(counts, True, key=lambda n: len(render(without(messages, n))) <= room)
    if fewest == len(counts):
        return most, last
    return counts[fewest], render(without(messages, counts[fewest]))
