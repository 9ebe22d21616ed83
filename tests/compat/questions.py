"""Models and prompts that the tests of `npurt.compat.llama_cpp` share."""

import json
from pathlib import Path

from tests.llm import tiny

PATH = str(tiny.path())
PROMPT = "Name the planets"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
]
GREEDY = {"temperature": 0.0}
RECORDED = json.loads((Path(__file__).parents[1] / "data/compat/llama_cpp_python.json").read_text())
