"""Run the packets of the hand-scheduled pass in dsp/kernels/delta_loops.h on symbols.

`Machine` runs the assembly, as the preprocessor makes it, on symbols in place of numbers: a row of
the state is a tree such as ("update", ("asr", ("state", 4), "shift0"), "d0", ("k", 2)).  All
instructions of a packet read before any of them writes, and loops are taken, as on the DSP.
`expected` returns what delta_passes.h computes; for any order of the instructions, the two must
be equal.

To change the pass: change its packets, and the number at the top of delta_loops.h if it changes.
tests/hexagon/test_delta_loops.py names what is wrong.  The assembler refuses a packet that does not
fit the DSP (hvx_base.h says what fits).
"""

import re
from collections import Counter

from tools.build import zig
from tools.build.hexagon import DSP, IDL, job

HEADER = DSP / "kernels/delta_loops.h"
PAIRS = 32  # of rows, in a pair of vectors along k
SEGMENT_PAIRS = 16  # that are added up in 32 bits
VECTOR = 128  # bytes
JUNK = ("junk",)  # in a register that nothing was written to


def assembly(folder):
    """Return the lines of assembly of `pass_two_blocks`, as the compiler reads them."""
    source, out = folder / "pass.c", folder / "pass.i"
    source.write_text('#include "kernels/delta_loops.h"\n')
    flags = job(source, "v68", (), (DSP, IDL)).flags
    unused = "-Wno-unused-command-line-argument"
    zig.zig("cc", *flags, unused, "-E", "-P", source, "-o", out)
    body = out.read_text().partition("pass_two_blocks(")[2].partition("__asm__ volatile(")[2]
    text = "".join(re.findall(r'"([^"]*)"', body.partition("[from]" + ' "+r"')[0]))
    return [line for line in text.split("\\n") if line]


class Packet:
    """Instructions that run together, and the loop that ends with them: 0, 1 or None."""

    def __init__(self, line):
        inside, end = re.fullmatch(r"\{ (.*) \}(?::endloop([01]))?", line).groups()
        self.instructions = inside.split("; ")
        self.end = None if end is None else int(end)


def packets(lines):
    """Return the packets, and the index of the one after the label."""
    label = lines.index("1:")
    return [Packet(line) for line in lines if line != "1:"], label


class Machine:
    """The registers, the memory of the state, and the pointers; all but pointers are symbols.

    Attributes:
        stored: What was written, by number of the vector in the state.
        held: Registers by name; those of operands by the name of the operand.
    """

    def __init__(self, blocks, first_block, parts):
        self.held = {name: Counter() for name in ("u0", "u1", "w0", "w1")}
        self.held |= {name: frozenset() for name in ("greatest0", "greatest1", "least0", "least1")}
        self.stored = {}
        self.at = {"from": 2 * first_block, "to": 2 * first_block, "kq": 0, "word": 0}
        self.steps = {"#1": 1, "m0": None}
        self.past = 2 * blocks - 3  # vectors
        self.segments = 2 * parts
        self.loops = {}

    def run(self, program, label):
        """Run all packets from the first on."""
        at = 0
        while at < len(program):
            packet = program[at]
            self.step(packet.instructions, label)
            at += 1
            if packet.end is not None:
                start, left = self.loops[packet.end]
                self.loops[packet.end] = start, left - 1
                at = start if left > 1 else at

    def step(self, instructions, label=0):
        """Run the instructions of a packet together."""
        now = {}  # vectors that are loaded for this packet alone
        for text in instructions:
            load = re.fullmatch(r"(v\d+)\.tmp = vmem\(%\[from\]\+\+(\S+)\)", text)
            if load:
                now[load[1]] = self._load(self._move("from", load[2]))
        written = {}
        for text in instructions:
            for name, value in self._do(text, now, label):
                assert name not in written, f"{instructions} writes {name} twice"
                written[name] = value
        for name, value in written.items():
            if name[0] == "store":
                self.stored[name[1]] = value
            else:
                self.held[name] = value

    def _load(self, index):
        return self.stored.get(index, ("state", index))

    def _move(self, pointer, step):
        """Return where a pointer is, and move it."""
        before = self.at[pointer]
        self.at[pointer] += self.steps[step]
        return before

    def _do(self, text, now, label):
        for pattern, method in PATTERNS:
            match = re.fullmatch(pattern, text)
            if match:
                return list(method(self, now, label, *match.groups()))
        raise AssertionError(f"what is {text}?")

    def _read(self, name, now=()):
        return now[name] if name in now else self.held.get(name, JUNK)

    # --- instructions: each yields what it writes -----------------------------------------------

    def _nothing(self, now, label):
        return ()

    def _loop(self, now, label, number, count):
        self.loops[int(number)] = label, self.segments if count == "%[segments]" else int(count[1:])
        return ()

    def _set_past(self, now, label):
        self.steps["m0"] = self.past
        return ()

    def _shift(self, now, label, to, of, by):
        yield to, ("asr", self._read(of, now), by)

    def _add(self, now, label, second, first, d, k):
        for half, name in enumerate((f"v{first}", f"v{second}")):
            yield name, ("update", self._read(name), d, self._read(k), half)

    def _round(self, now, label, to, second, first):
        yield to, ("h", self._read(first), self._read(second))

    def _dot(self, now, label, to, h, word):
        before = self._read(to)
        assert isinstance(before, Counter), f"{to} is not a sum"
        yield to, before + Counter([(self._read(h), self._read(word))])

    def _store(self, now, label, step, of):
        yield ("store", self._move("to", step)), self._read(of)

    def _extreme(self, now, label, to, _, h):
        yield to, self.held[to] | {self._read(h)}

    def _words(self, now, label, high, low):
        pair = self.at["kq"]
        self.at["kq"] += 1
        yield f"r{low}", ("k now", pair)
        yield f"r{high}", ("q now", pair)

    def _word(self, now, label, to):
        self.at["word"] += 1
        yield to, ("k before", self.at["word"] - 1)

    def _clear(self, now, label, to):
        yield to, Counter()

    def _total(self, now, label, to, of):
        yield to, self.held[to] + Counter([frozenset(self._read(of).items())])


V, R, NAME = r"(v\d+)", r"(r\d+)", r"%\[(\w+)\]"
PATTERNS = (
    (r"v\d+\.tmp = vmem\(%\[from\]\+\+\S+\)", Machine._nothing),
    (r"loop([01])\(1[fb],(%\[segments\]|#\d+)\)", Machine._loop),
    (r"m0 = %\[past\]", Machine._set_past),
    (rf"{V}\.w = vasr\({V}\.w,{NAME}\.w\)", Machine._shift),
    (rf"v(\d+):(\d+)\.w \+= vmpy\({NAME}\.h,{R}\.h\)", Machine._add),
    (rf"{V}\.h = vround\({V}\.w,{V}\.w\):sat", Machine._round),
    (rf"{V}\.w \+= vdmpy\({V}\.h,{R}\.h\):sat", Machine._dot),
    (rf"vmem\(%\[to\]\+\+(#1|m0)\) = {V}", Machine._store),
    (rf"{NAME}\.h = vmax\(%\[(greatest\d)\]\.h,{V}\.h\)", Machine._extreme),
    (rf"{NAME}\.h = vmin\(%\[(least\d)\]\.h,{V}\.h\)", Machine._extreme),
    (r"r(\d+):(\d+) = memd\(%\[kq\]\+\+#8\)", Machine._words),
    (rf"{R} = memw\(%\[word\]\+\+#4\)", Machine._word),
    (r"(v\d+) = vxor\(\1,\1\)", Machine._clear),
    (rf"{NAME}\.w \+= vasr\({V}\.w,%\[quarter\]\)", Machine._total),
)


def expected(blocks, first_block, parts):
    """Return the rows that a pass stores and the sums that it computes, by delta_passes.h."""
    stored, found = {}, {}
    for block in range(2):
        sums = {"u": Counter(), "w": Counter()}
        all_h = set()
        for segment in range(2 * parts):
            dots = {"u": Counter(), "w": Counter()}
            for pair in range(segment * SEGMENT_PAIRS, (segment + 1) * SEGMENT_PAIRS):
                at = 2 * (blocks * pair + first_block + block)
                rows = []
                for half in range(2):
                    shifted = ("asr", ("state", at + half), f"shift{block}")
                    rows.append(("update", shifted, f"d{block}", ("k before", pair), half))
                    stored[at + half] = rows[-1]
                h = ("h", *rows)
                all_h.add(h)
                dots["u"][h, ("k now", pair)] += 1
                dots["w"][h, ("q now", pair)] += 1
            for name, of in dots.items():
                sums[name][frozenset(of.items())] += 1
        found |= {f"{name}{block}": total for name, total in sums.items()}
        found |= {f"greatest{block}": frozenset(all_h), f"least{block}": frozenset(all_h)}
    return stored, found
