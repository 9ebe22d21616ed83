"""An engine without a model: each token is a function of prompt, seed and position.

``python -m tests.serve.fake_engine SOCKET`` runs it as a process; options of `Open` select the
faults that it simulates.
"""

import hashlib
import os
import pathlib
import signal
import socket
import sys
import threading
import time

from npurt.errors import NpurtError, SettingError
from npurt.llm.file.mapped import MappedGGUF
from npurt.serve.engine.protocol import MODEL, SequenceEvent
from npurt.serve.engine.worker import work

VOCABULARY = range(40, 120)  # ids of tokens with a few characters in the tiny vocabularies


def drawn(submit, done):
    """Return the token that follows *done*; it is the same in every process."""
    state = (list(submit.tokens[: submit.prompt]), submit.sampling.get("seed"), list(done))
    digest = hashlib.sha256(repr(state).encode()).digest()
    return VOCABULARY[digest[0] % len(VOCABULARY)]


def script(ids):
    """Return a function that generates *ids* and then ends, for every request."""
    return lambda submit, done: ids[len(done)] if len(done) < len(ids) else None


def by_seed(texts):
    """Return a function that generates text number *seed*, or random tokens for other seeds."""

    def say(submit, done):
        seed = submit.sampling.get("seed")
        return (script(texts[seed]) if seed in range(len(texts)) else drawn)(submit, done)

    return say


class Running:
    def __init__(self, submit):
        self.submit = submit
        self.done = list(submit.tokens[submit.prompt :])
        self.read = 0


class FakeBackend:
    """A fake backend that runs *sequences* at once.

    A step decodes one token of each, or prefills *chunk* tokens of a prompt.
    *say* is called with a `Submit` and the tokens so far; it returns the next token, or None at the
    end.
    """

    device = "fake"

    def __init__(self, say=drawn, *, sequences=4, n_ctx=256, chunk=64):
        self.say, self.sequences, self.n_ctx, self.chunk = say, sequences, n_ctx, chunk
        self.all = {}  # open sequences by id, oldest first
        self.submitted = []
        self.cancelled = []
        self.steps = 0

    def submit(self, submit):
        if submit.sampling.get("seed") == 666:
            raise SettingError("the fake refuses seed 666", remedy="take another")
        self.submitted.append(submit)
        self.all[submit.id] = Running(submit)

    def cancel(self, sequence):
        self.cancelled.append(sequence)
        self.all.pop(sequence, None)

    @property
    def busy(self):
        return bool(self.all)

    @property
    def running(self):
        return list(self.all.values())[: self.sequences]

    def step(self):
        self.steps += 1
        events = [self.advance(each) for each in self.running]
        for event in events:
            if event.finish:
                del self.all[event.id]
        return events

    def advance(self, running):
        submit, done = running.submit, running.done
        if running.read < submit.prompt:
            before, running.read = running.read, min(submit.prompt, running.read + self.chunk)
            ids = submit.tokens[max(1, before) : running.read] if submit.prompt_logprobs else ()
            scores = [(-i / 8, [(i, -i / 8)]) for i in ids]
            return SequenceEvent(submit.id, read=running.read, prompt_logprobs=scores)
        if submit.max_tokens is not None and len(done) >= submit.max_tokens:
            return SequenceEvent(submit.id, finish="length")
        if submit.prompt + len(done) > self.n_ctx:
            return SequenceEvent(submit.id, finish="context")
        token = self.say(submit, done)
        if submit.sampling.get("seed") == 777 and len(done) == 2:
            error = ("the fake fails at its third token", "take another seed")
            return SequenceEvent(submit.id, finish="failed", error=error)
        if token is None:
            return SequenceEvent(submit.id, finish="end", read=running.read)
        if token in submit.stop_ids:
            return SequenceEvent(submit.id, finish="stop", read=running.read)
        done.append(token)
        logprobs = ()
        if submit.top_logprobs is not None:
            top = [(token + i, -0.5 - i) for i in range(submit.top_logprobs)]
            logprobs = [(-0.5, top)]
        return SequenceEvent(submit.id, [token], logprobs=logprobs, read=running.read)

    def stats(self):
        return {
            "steps": self.steps,
            "running": len(self.running),
            "verified": 7.0,
            "device_restarts": 2.0,
        }

    def close(self):
        pass


class Troubled(FakeBackend):
    """A fake backend with the faults that the options of `Open` select.

    It fails at step *die_at* or hangs at step *stick_at*; a step takes *step_seconds*; *texts* are
    the ids to generate.  A sequence with the seed *deadly* ends the process at its token
    *deadly_at* by *deadly_signal*; with signal 0, the process closes the socket and hangs.
    """

    def __init__(
        self, *, die_at=None, stick_at=None, step_seconds=0.0, texts=(), deadly=None, deadly_at=0,
        deadly_signal=signal.SIGSEGV, **options
    ):  # fmt: skip
        super().__init__(by_seed(texts), **options)
        self.die_at, self.stick_at, self.step_seconds = die_at, stick_at, step_seconds
        self.deadly, self.deadly_at, self.deadly_signal = deadly, deadly_at, deadly_signal

    def step(self):
        if self.steps == self.die_at:
            os._exit(3)
        if self.steps == self.stick_at:
            time.sleep(1e6)
        time.sleep(self.step_seconds)
        for text in self.running:
            if text.submit.sampling.get("seed") == self.deadly and len(text.done) == self.deadly_at:
                if self.deadly_signal:
                    signal.pthread_kill(threading.get_ident(), self.deadly_signal)
                socket.socket(fileno=int(sys.argv[1])).shutdown(socket.SHUT_RDWR)
                time.sleep(1e6)
        return super().step()


def open_fake(path, options):
    """Open the fake model that *options* describe; the path selects a failure."""
    options = dict(options)
    name = os.path.basename(path)
    options.pop("max_sequences", None)  # only the front uses this option, to limit its queue
    time.sleep(options.pop("open_seconds", 0.0))
    for stuck in sorted(pathlib.Path(options.pop("stuck_opens", "/nonexistent")).glob("*"))[:1]:
        stuck.unlink()  # the folder has one file for each process that must hang while opening
        time.sleep(1e6)
    if name == "broken.gguf" or options.pop("broken", False):
        raise NpurtError(f"{name} is broken", remedy="take another file")
    if name == "mute.gguf":
        os._exit(4)
    return Troubled(**options)


class Stepping:
    """A backend for `worker.work`: a thread steps the fake backend while it has sequences."""

    def __init__(self, path, options, emit):
        self.fake = open_fake(path, options)
        self.n_ctx, self.sequences = self.fake.n_ctx, self.fake.sequences
        self.device, self.emit = self.fake.device, emit
        self.identity = {}
        if os.path.exists(path):
            with MappedGGUF(path) as file:
                self.identity[MODEL] = file.identity
        self.changed = threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.fake.busy)
                events = self.fake.step()
            self.emit(events)

    def submit(self, submit):
        with self.changed:
            self.fake.submit(submit)
            self.changed.notify()

    def cancel(self, sequence):
        with self.changed:
            self.fake.cancel(sequence)

    def stats(self):
        with self.changed:
            return self.fake.stats()

    def close(self):
        os._exit(0)


if __name__ == "__main__":
    work(socket.socket(fileno=int(sys.argv[1])), Stepping)
