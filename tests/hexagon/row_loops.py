"""Run the packets of the hand-scheduled loops in dsp/kernels/row_loops.h on symbols.

`Machine` runs packets on symbols in place of numbers: a register holds a tree such as
("low", ("w", 0, 3)), the low nibbles of vector 3 of tile 0.  All instructions of a packet read
before any of them writes, as on the DSP.  `expected` says in a few lines what an accumulator must
hold after some steps; whatever the order of the instructions, the two must be equal.

To change a loop: change its packets, and the table at the top of row_loops.h where counts change.
tests/hexagon/test_row_loops.py names the first accumulator that is wrong.  The assembler refuses a
packet that does not fit the DSP (hvx_base.h says what fits), and test_kernels.py counts packets.
"""

import re
from collections import Counter

from tools.build.hexagon import DSP

HEADER = DSP / "kernels/row_loops.h"
TILES = 4
X_WORDS = 16  # words of four codes of x in a step
ZERO = ("zero",)
JUNK = ("junk",)  # the value of a register before the first step

# Vectors of codes of a step, vectors of a tile in it, and whether scales have offsets.
LOOPS = {
    "q4": (8, 9, False),
    "q4_offset": (8, 10, True),
    "q8": (16, 17, False),
    "q8_offset": (16, 18, True),
}


def table():
    """Return {loop: (instructions, packets)} of a step, as the top of the header says."""
    rows = re.findall(r"^ \*   (q\w+) +(\d+) +(\d+) ", HEADER.read_text(), flags=re.M)
    return {name: (int(instructions), int(packets)) for name, instructions, packets in rows}


def packets(name, text=None):
    """Return the packets of a loop: those before it, those of a step, and those after the last.

    A packet is a list of instructions; an instruction is a name and its numbers.
    """
    text = HEADER.read_text() if text is None else text
    body = re.search(rf"\bvoid {name}_loop\(.*?__asm__ volatile\((.*?): OPERANDS", text, re.S)[1]
    before, rest = body.split('"1:\\n"')
    found = [[], [], []]
    for line in before.splitlines():
        found[0] += _packet(line)
    part = 1
    for line in rest.splitlines():
        found[part] += _packet(line)
        part = 2 if "LAST" in line else part
    return found


def _packet(line):
    match = re.match(r"\s*(?:PACKET|LAST)(\d)\((.*)\)$", line)
    if not match:
        return []
    instructions = [
        (name, *(int(n) for n in numbers.split(",") if n))
        for name, numbers in re.findall(r"([A-Z_]+)(?:\(([\d, ]*)\))?", match[2])
    ]
    assert len(instructions) == int(match[1]), line
    return [instructions]


class Machine:
    """The registers, as symbols, and the positions of the pointers."""

    def __init__(self):
        self.v = {}
        self.r = {}
        self.acc = {}
        self.at = Counter()  # loads so far, by pointer

    def run(self, packet):
        """Run the instructions of a packet together."""
        written = {}
        for name, *numbers in packet:
            for register, value in getattr(self, "_" + name.lower())(*numbers):
                assert register not in written, f"{packet} writes {register} twice"
                written[register] = value
        for (bank, number), value in written.items():
            getattr(self, bank)[number] = value

    def _vector(self, number):
        return self.v.get(number, JUNK)

    def _next(self, pointer):
        self.at[pointer] += 1
        return self.at[pointer] - 1

    def _start(self, tile):
        yield ("acc", tile), Counter()

    def _clear(self, to):
        yield ("v", to), ZERO

    def _loop(self):
        return ()

    def _narrow_by(self, bits):
        yield ("r", 6), bits

    def _x(self, high, low):
        pair = self._next("x")
        yield ("r", low), ("x", 2 * pair)
        yield ("r", high), ("x", 2 * pair + 1)

    def _record(self):
        yield ("r", 24), ("scale of x", self._next("record"))

    def _record_sums(self):
        step = self._next("record")
        yield ("r", 24), ("scale of x", step)
        yield ("r", 25), ("sums of x", step)

    def _zero(self, to):
        yield ("v", to), ("zero point", self._next("zero"))

    def _zero_word(self):
        yield ("r", 7), ("zero point", self.at["zero"])

    def _zero_next(self):
        self._next("zero")
        return ()

    def _splat(self, to):
        yield ("v", to), self.r[7]

    def _load(self, to, tile):
        yield ("v", to), ("w", tile, self._next(tile))

    def _low(self, to, of):
        yield ("v", to), ("low", self._vector(of))

    def _high(self, to, of):
        yield ("v", to), ("high", self._vector(of))

    def _start_a(self, to):
        yield ("v", to), ("dot", "start of A")

    def _start_b(self, to):
        yield ("v", to), ("dot", "start of B")

    def _first(self, to, w, x):
        yield ("v", to), ("dot", "0", (self._vector(w), self.r.get(x)))

    def _dot(self, to, w, x):
        before = self._vector(to)
        if before[0] != "dot":  # an accumulator that belongs to no tile
            before = ("dot", "junk")
        products = sorted([*before[2:], (self._vector(w), self.r.get(x))], key=repr)
        yield ("v", to), ("dot", before[1], *products)

    def _shuffle(self, to, b, a):
        yield ("v", to), ("h", self._vector(a), self._vector(b), 0)

    def _narrow(self, to, b, a):
        yield ("v", to), ("h", self._vector(a), self._vector(b), self.r[6])

    def _centre(self, to, of, zero):
        yield ("v", to), ("centred", self._vector(of), self._vector(zero))

    def _scale(self, to, of):
        vector = self._vector(of)
        yield ("v", to), ZERO if vector == ZERO else ("scale", vector, self.r.get(24))

    def _product(self, to, h, scale):
        vector = self._vector(scale)
        yield ("v", to), ZERO if vector == ZERO else ("product", self._vector(h), vector)

    def _offset(self, to, of):
        vector = self._vector(of)
        if vector != ZERO:
            yield ("v", to), ("with offset", self._vector(to), vector, self.r.get(25))

    def _sum(self, tile, of):
        vector = self._vector(of)
        if vector != ZERO:
            yield ("acc", tile), self.acc[tile] + Counter([vector])


def run(parts, steps):
    """Return the accumulators of the four tiles after a row of *steps* steps."""
    machine = Machine()
    before, step, after = parts
    for packet in before + step * steps + after:
        machine.run(packet)
    return machine.acc


def expected(name, tile, step):
    """Return what *step* adds to the accumulator of *tile*, by product.h."""
    codes, vectors, offsets = LOOPS[name]

    def w(i):
        return ("w", tile, vectors * step + i)

    def x(i):
        return ("x", X_WORDS * step + i)

    def dot(start, first, last):
        if codes == 8:  # vector i holds the codes of two words of x
            pairs = [(("low", w(i)), x(2 * i)) for i in range(first, last)]
            pairs += [(("high", w(i)), x(2 * i + 1)) for i in range(first, last)]
        else:
            pairs = [(w(i), x(i)) for i in range(first, last)]
        return ("dot", start, *sorted(pairs, key=repr))

    half = codes // 2
    starts = ("0", "0") if codes == 8 else ("start of A", "start of B")
    a, b = dot(starts[0], 0, half), dot(starts[1], half, codes)
    h = ("centred", ("h", a, b, 0 if codes == 8 else 4), ("zero point", step))
    product = ("product", h, ("scale", w(codes), ("scale of x", step)))
    return ("with offset", product, w(codes + 1), ("sums of x", step)) if offsets else product
