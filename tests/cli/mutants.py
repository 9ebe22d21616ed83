"""Open damaged copies of a model, generate from them, and print one line per result.

    python mutants.py SOURCE FOLDER KIND SEED COUNT

The tests run this in its own process: if it crashes, the lines end early. The process may use 3 GB
of memory and 20 seconds per file; the system ends it if it exceeds a limit.
"""

import random
import resource
import signal
import sys
import traceback
from pathlib import Path

import npurt

MEMORY = 3 << 30
SECONDS = 20
HEADER = 16_000  # bytes: metadata and the table of tensors of the tiny models


def truncated(data, chance):
    """Truncate the file, with probability 1/2 inside the header, else anywhere."""
    return data[: chance.randrange(HEADER if chance.random() < 0.5 else len(data))]


def bytes_changed(data, chance):
    """Change a few bytes, three times in four in the header."""
    changed = bytearray(data)
    end = HEADER if chance.random() < 0.75 else len(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        changed[chance.randrange(end)] = chance.choice(
            [0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)]
        )
    return bytes(changed)


def grown(data, chance):
    """Insert a few random bytes into the header."""
    at = chance.randrange(HEADER)
    return data[:at] + chance.randbytes(chance.choice([1, 4, 8, 32])) + data[at:]


def swapped(data, chance):
    """Swap two ranges of the header, or delete one if they overlap."""
    size = chance.choice([1, 4, 8, 64, 1000])
    a, b = sorted(chance.sample(range(0, HEADER - size, 4), 2))
    if b - a < size:
        return data[:a] + data[b:]
    return (
        data[:a] + data[b : b + size] + data[a + size : b] + data[a : a + size] + data[b + size :]
    )


def fate(path):
    """Return the outcome of opening one file and generating from it."""
    try:
        with npurt.Llama(path, n_ctx=32, progress=False) as llm:
            llm.generate([1, 2, 3], max_tokens=2, temperature=0)
        return "ran"
    except npurt.NpurtError as error:
        return "refused" if error.remedy else "refused without a remedy"
    except Exception:  # noqa: BLE001  what else it may be is the question
        return traceback.format_exc().replace("\n", " | ")


def main():
    source, folder, kind, seed, count = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    data = Path(source).read_bytes()
    path = Path(folder) / f"{kind}.gguf"
    for i in range(int(count)):
        path.write_bytes(globals()[kind](data, random.Random(f"{seed} {i}")))
        signal.alarm(SECONDS)
        sys.stdout.write(f"{i} {fate(path)}\n")
        sys.stdout.flush()
        # a traceback may still hold the file's mapping, so the file is not overwritten
        path.unlink()


if __name__ == "__main__":
    main()
