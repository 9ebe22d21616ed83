"""File names of a split GGUF model: ``NAME-00001-of-00003.gguf`` and so on.

Source of the name format: llama.cpp, llama_split_path (five digits, counted from 1).
"""

import re

_PART = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.I | re.DOTALL)
MAX_PARTS = 512  # an open part holds a file descriptor, of which a process often has 1024


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the split model that has the part *name*, in order.

    If *name* has no part number, or an impossible one, return only *name*.
    """
    match = _PART.fullmatch(name)
    if not match:
        return [name]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MAX_PARTS:
        return [name]
    suffix = name[match.end("count") :]
    names = [f"{match['model']}-{i:05}-of-{count:05}{suffix}" for i in range(1, count + 1)]
    names[number - 1] = name
    return names


def model_name(name: str) -> str:
    """Return *name* without the number of the part."""
    match = _PART.fullmatch(name)
    return f"{match['model']}{name[match.end('count') :]}" if match else name
