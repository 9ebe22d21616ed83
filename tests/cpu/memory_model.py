"""An exhaustive search of the executions of threads that share memory, for small protocols.

A thread is a generator that yields operations and is sent their results.  `Explorer` tries every
order of the atomic operations of all threads, and every value that a load may return.

The memory model is C11's, without fences and with these bounds.  A load returns any value of its
place that is not older than the newest value that the thread knows of.  Release and acquire pass
that knowledge on, and so does a read-modify-write of a released value.  A sequentially consistent
load sees at least the last sequentially consistent store.  A read-modify-write sees the last value.
So a thread may see stores of other threads late and in a different order, as on Arm.  Two cases are
not covered: a load that sees a store which comes after the load in program order of the same run of
the threads, and a store that is ordered before an earlier store of another thread.

A loop that waits for a value is `Await`: the thread continues when it sees such a value, so a late
store alone never makes a thread wait for ever.  A state in which all threads wait is a deadlock.

Plain memory has one value.  If two threads access the same plain place and one access is a write,
the knowledge of the threads must order the accesses.  Otherwise there is a data race, in whichever
order the search tried them.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RELAXED, ACQUIRE, RELEASE, SEQ_CST = "relaxed", "acquire", "release", "seq_cst"


@dataclass(frozen=True, slots=True)
class Load:
    """An atomic load."""

    place: str
    order: str = SEQ_CST


@dataclass(frozen=True, slots=True)
class Store:
    """An atomic store."""

    place: str
    value: Any
    order: str = SEQ_CST


@dataclass(frozen=True, slots=True)
class Change:
    """A sequentially consistent read-modify-write; the result is the value before the change.

    A *change* that returns None is a compare-and-swap that failed: it stores nothing.
    """

    place: str
    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Await:
    """Sequentially consistent loads until *done* is true of the value; the result is the value."""

    place: str
    done: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Read:
    """A read of plain memory."""

    place: str


@dataclass(frozen=True, slots=True)
class Write:
    """A write to plain memory."""

    place: str
    value: Any


@dataclass(frozen=True, slots=True)
class Choose:
    """A free choice: the result is False or True."""


Thread = Generator[Any, Any, Any]

# The knowledge of a thread, one bit for each fact.  For a plain place: its last write, and the last
# read by each thread.  For an atomic place: the second of the values that can still be seen, the
# third, and so on.
View = int


class Wrong(Exception):
    """An error of the protocol; the message has the operations that led to the error."""


class Message(NamedTuple):
    """A stored value, and the knowledge that a thread gets when it acquires the value."""

    value: Any
    view: View


class Place(NamedTuple):
    """An atomic place: the values that a load can still see, oldest first."""

    messages: tuple[Message, ...]
    ordered: int  # index of the last sequentially consistent store


class State(NamedTuple):
    """The state of memory and threads between two operations."""

    atomics: tuple[Place, ...]
    plain: tuple[Any, ...]
    views: tuple[View, ...]  # of each thread
    points: tuple[int, ...]  # index of the point of each thread


@dataclass(slots=True)
class Point:
    """A point in a thread: its next operation, None at the end, and the point after each result."""

    operation: Any
    results: tuple[Any, ...]  # of the operations before this point
    after: dict[Any, int] = field(default_factory=dict)


MAX_VALUES = 16  # values of a place that can be seen at once


class Explorer:
    """A search of all executions of *threads*.

    Args:
        threads: Functions that start the threads.
        atomics: Atomic places and their initial values.
        plain: Plain places and their initial values.
        weak: If False, loads see the last value, as in one memory without caches.
    """

    def __init__(
        self,
        threads: list[Callable[[], Thread]],
        atomics: Mapping[str, Any],
        plain: Mapping[str, Any],
        *,
        weak: bool,
    ) -> None:
        self._threads, self._weak = threads, weak
        self._atomic = {name: i for i, name in enumerate(atomics)}
        self._plain = {name: i for i, name in enumerate(plain)}
        self._points: list[Point] = []
        self._by_frames: dict[Any, int] = {}
        self._start = State(
            tuple(Place((Message(value, 0),), 0) for value in atomics.values()),
            tuple(plain.values()),
            ((1 << len(plain) * (len(threads) + 1)) - 1,) * len(threads),
            tuple(self._point(t, ()) for t in range(len(threads))),
        )
        self._first_bit = len(plain) * (len(threads) + 1)  # of atomic places

    def run(self) -> int:
        """Search all states; return the number of states.

        Raises:
            Wrong: A thread raised AssertionError, or there is a data race or a deadlock.
        """
        path: list[tuple[str, Iterator[tuple[str, State]]]] = []
        try:
            start = self._start
            for thread in range(len(self._threads)):
                start = self._alone(start, thread)
            seen = {start}
            path.append(("", self._next(start)))
            while path:
                for said, state in path[-1][1]:
                    if state not in seen:
                        seen.add(state)
                        path.append((said, self._next(state)))
                        break
                else:
                    path.pop()
        except AssertionError as error:
            steps = "\n".join(said for said, _ in path[1:])
            raise Wrong(f"{error}\nafter\n{steps}") from error
        return len(seen)

    # --- Threads --------------------------------------------------------------------------------

    def _point(self, thread: int, results: tuple[Any, ...]) -> int:
        """Return the point that *results* lead to; equal frames give the same point."""
        generator, operation = self._threads[thread](), None
        try:
            operation = generator.send(None)
            for result in results:
                operation = generator.send(result)
        except StopIteration:
            operation = None
        frames = (thread, *_frames(generator))
        if frames not in self._by_frames:
            self._by_frames[frames] = len(self._points)
            self._points.append(Point(operation, results))
        return self._by_frames[frames]

    def _goes_on(self, state: State, thread: int, result: Any) -> State:
        """Return *state* after *thread* has received *result*, up to its next atomic operation."""
        point = self._points[state.points[thread]]
        if result not in point.after:
            point.after[result] = self._point(thread, (*point.results, result))
        points = _put(state.points, thread, point.after[result])
        return self._alone(state._replace(points=points), thread)

    def _alone(self, state: State, thread: int) -> State:
        """Run the next plain accesses of *thread*; their time does not affect other threads."""
        operation = self._points[state.points[thread]].operation
        if isinstance(operation, Read):
            state = self._access(state, thread, operation, writes=False)
            return self._goes_on(state, thread, state.plain[self._plain[operation.place]])
        if isinstance(operation, Write):
            state = self._access(state, thread, operation, writes=True)
            plain = _put(state.plain, self._plain[operation.place], operation.value)
            return self._goes_on(state._replace(plain=plain), thread, None)
        if operation is None:
            state = state._replace(views=_put(state.views, thread, 0))
            for place in range(len(state.atomics)):
                state = self._forget(state, place)
        return state

    def _next(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield each possible next step: its description, and the state after it."""
        stuck = True
        for thread, at in enumerate(state.points):
            operation = self._points[at].operation
            if operation is None:
                continue
            for result, after in self._results(state, thread, operation):
                stuck = False
                yield f"{thread}: {operation} -> {result}", self._goes_on(after, thread, result)
        assert not (stuck and self._alive(state)), f"{self._alive(state)} wait for each other"

    def _alive(self, state: State) -> list[int]:
        return [t for t, at in enumerate(state.points) if self._points[at].operation is not None]

    # --- Plain memory ---------------------------------------------------------------------------

    def _access(self, state: State, thread: int, operation: Read | Write, *, writes: bool) -> State:
        first = self._plain[operation.place] * (len(self._threads) + 1)
        written, readers = 1 << first, (1 << len(self._threads)) - 1 << first + 1
        needed = written | readers if writes else written
        known = state.views[thread] & needed == needed
        assert known, f"data race of thread {thread}: {operation}"
        return self._tell(state, thread, written if writes else 2 << first + thread)

    def _tell(self, state: State, thread: int, news: View) -> State:
        """Add *news* to the knowledge of *thread*, and remove it from all other knowledge."""
        state = self._rewrite(state, news, lambda view: view & ~news)
        return state._replace(views=_put(state.views, thread, state.views[thread] | news))

    def _rewrite(self, state: State, about: View, rewritten: Callable[[View], View]) -> State:
        """Rewrite all knowledge that has bits of *about*."""
        atomics = tuple(
            place
            if not any(message.view & about for message in place.messages)
            else place._replace(
                messages=tuple(Message(value, rewritten(view)) for value, view in place.messages)
            )
            for place in state.atomics
        )
        return state._replace(atomics=atomics, views=tuple(map(rewritten, state.views)))

    # --- Atomics --------------------------------------------------------------------------------

    def _results(self, state: State, thread: int, operation: Any) -> Iterator[tuple[Any, State]]:
        if isinstance(operation, Choose):
            yield False, state
            yield True, state
            return
        place = self._atomic[operation.place]
        last = state.atomics[place].messages[-1]
        if isinstance(operation, Store):
            view = state.views[thread] if operation.order != RELAXED else 0
            yield None, self._store(state, thread, place, operation.value, view, operation.order)
        elif isinstance(operation, Change):
            value = operation.change(last.value)
            if value is not None:
                view = state.views[thread] | last.view
                after = state._replace(views=_put(state.views, thread, view))
                yield last.value, self._store(after, thread, place, value, view, SEQ_CST)
            for i, message in self._visible(state, thread, place, SEQ_CST):
                if operation.change(message.value) is None:
                    yield message.value, self._load(state, thread, place, i, SEQ_CST)
        else:
            order = operation.order if isinstance(operation, Load) else SEQ_CST
            for i, message in self._visible(state, thread, place, order):
                if isinstance(operation, Load) or operation.done(message.value):
                    yield message.value, self._load(state, thread, place, i, order)

    def _newest(self, view: View, place: int) -> int:
        """Return the index of the newest value of *place* that *view* includes."""
        return (view >> self._first_bit + place * MAX_VALUES & (1 << MAX_VALUES) - 1).bit_length()

    def _up_to(self, place: int, index: int) -> View:
        """Return the knowledge of the value at *index* and of the values before it."""
        return (1 << index) - 1 << self._first_bit + place * MAX_VALUES

    def _visible(
        self, state: State, thread: int, place: int, order: str
    ) -> Iterator[tuple[int, Message]]:
        messages, ordered = state.atomics[place]
        minimum = self._newest(state.views[thread], place)
        if order == SEQ_CST:
            minimum = max(minimum, ordered)
        return ((i, messages[i]) for i in range(minimum, len(messages)))

    def _load(self, state: State, thread: int, place: int, index: int, order: str) -> State:
        view = state.views[thread] | self._up_to(place, index)
        if order != RELAXED:
            view |= state.atomics[place].messages[index].view
        return self._forget(state._replace(views=_put(state.views, thread, view)), place)

    def _store(
        self, state: State, thread: int, place: int, value: Any, told: View, order: str
    ) -> State:
        messages, ordered = state.atomics[place]
        index = len(messages)
        assert index <= MAX_VALUES, "too many values of one place"
        news = self._up_to(place, index)
        known = Message(value, told | news)
        changed = Place((*messages, known), index if order == SEQ_CST else ordered)
        state = State(
            _put(state.atomics, place, changed),
            state.plain,
            _put(state.views, thread, state.views[thread] | news),
            state.points,
        )
        return self._forget(state, place)

    def _forget(self, state: State, place: int) -> State:
        """Drop the values of *place* that no thread can see any more."""
        messages, ordered = state.atomics[place]
        minimum = len(messages) - 1
        if self._weak:
            known = [self._newest(state.views[t], place) for t in self._alive(state)]
            minimum = min(known, default=minimum)
        if not minimum:
            return state
        here = self._up_to(place, MAX_VALUES)
        state = self._rewrite(
            state, here, lambda view: view & ~here | (view & here) >> minimum & here
        )
        kept = Place(state.atomics[place].messages[minimum:], max(ordered - minimum, 0))
        return state._replace(atomics=_put(state.atomics, place, kept))


def _put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _frames(generator: Any) -> Iterator[Any]:
    """Yield the position and variables of a generator; its iterators must be variables."""
    while generator is not None and generator.gi_frame is not None:
        frame = generator.gi_frame
        own = frame.f_locals.keys() - set(frame.f_code.co_freevars)
        yield frame.f_code, frame.f_lasti, *((name, frame.f_locals[name]) for name in sorted(own))
        generator = generator.gi_yieldfrom
