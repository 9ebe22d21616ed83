"""Make JSON that is almost what a program expects."""

NUMBERS = (0, -1, 1, 2, 1 << 31, 1 << 63, 1 << 64, -(1 << 64), 10**300, 0.5, 1e308, -0.0)
JUNK = (None, True, False, *NUMBERS, "", "0", "-1", "nan", "\x00", "ü" * 200, "x" * 5000, [], {},
        [[]], [None], {"": None}, ["a", 1], "\ud800", "1" * 5000)  # fmt: skip


def deep(kind, levels):
    """Return JSON text of that many levels, more than Python's json module writes."""
    opening, closing = {"list": ("[", "]"), "dict": ('{"a":', "}")}[kind]
    return opening * levels + "0" + closing * levels


def changed(rng, value, times=1):
    """Return a copy of *value* with some parts replaced, left out, doubled or exchanged."""
    for _ in range(times):
        value = _once(rng, value)
    return value


def _once(rng, value):
    inside = isinstance(value, dict | list) and value
    if not inside or rng.random() < 0.1:
        return junk(rng, value)
    if isinstance(value, list):
        i, made = rng.randrange(len(value)), list(value)
        kind = rng.randrange(8)
        if kind == 0:
            del made[i]
        elif kind == 1:
            made.insert(i, rng.choice((*JUNK, *value)))
        else:
            made[i] = _once(rng, value[i])
        return made
    name, made = rng.choice(list(value)), dict(value)
    kind = rng.randrange(8)
    if kind == 0:
        del made[name]
    elif kind == 1:
        made[f"{name}{rng.choice(('', 'x', ' 1'))}"] = rng.choice((*JUNK, *value.values()))
    else:
        made[name] = _once(rng, value[name])
    return made


def junk(rng, value):
    """Return a value other than *value*, often of its type."""
    if isinstance(value, str) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return rng.choice((value[:at], value[at:], value * 2, value[:at] + rng.choice("0 x\n.:/") +
                           value[at + 1 :], value.upper(), f" {value}"))  # fmt: skip
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.6:
        return rng.choice(NUMBERS)
    return rng.choice(JUNK)
