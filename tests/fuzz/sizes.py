"""Draw numbers that often cause errors: limits of types and blocks, and factors that overflow."""

STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FAR = (
    *((1 << bits) + off for bits in (31, 32, 63, 64) for off in (-1, 0, 1, 32)),
    (1 << 64) - 32, (1 << 32) - 32, 0xFFFF_FFFF_0000_0000, (1 << 61) + 1, (1 << 62),
)  # fmt: skip


def near(rng, value):
    """Return *value* or a number close to it."""
    step = rng.choice(STEPS)
    return max(0, rng.choice((value - step, value - 1, value, value, value + 1, value + step)))


def limit(rng, max_bits=20):
    """Return a number of at most *max_bits* bits near a power of two, or near three times one."""
    bits = rng.randrange(max_bits + 1)
    return near(rng, rng.choice((1, 1, 1, 3)) << bits >> rng.choice((0, 0, 1)))


def multiple(rng, max_bits=20):
    """Return a multiple of a block's size."""
    step = rng.choice(STEPS)
    return step * max(1, limit(rng, max(1, max_bits - step.bit_length())))


def large(rng):
    """Return a large multiple of 16 that is still valid as the side of a matrix."""
    top = 1 << rng.randrange(15, 21)
    return (top + rng.choice((0, 16, -16, rng.randrange(top)))) // 16 * 16


def anything(rng, now=0):
    """Return an unsigned number of 64 bits: a limit, a huge number, or one close to *now*."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice(FAR) % (1 << 64)
    if kind == 1:
        return near(rng, now) % (1 << 64)
    if kind == 2:
        return rng.getrandbits(rng.randrange(1, 65))
    return limit(rng, 24)


def factors(rng):
    """Return two numbers with a large product, close to a power of two or above it."""
    top = 1 << rng.randrange(15, 21)
    product = top + rng.choice((0, 1, -1, rng.randrange(top)))
    first = 1 << rng.randrange(1, 12)
    first += rng.choice((0, rng.randrange(first)))
    return first, max(1, product // first)
