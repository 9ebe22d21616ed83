"""Fuzz JSON from users: rows for `bench --compare`, and the measurements of a machine."""

import json
import tempfile
from pathlib import Path

from npurt.cli.verbs import bench
from tests.fuzz import jsons

RUNS = 1500
ROW = {"model": "m", "test": "pp512", "tokens_per_second": 12.5, "size": 1, "parameters": 2}
TEXTS = ("", "[", "[]", "{}", "null", '[{"model": "m"}]', "\ufeff[]", '[{"model":"m","test":"t",'
         '"tokens_per_second":NaN}]', "[" + "9" * 5000 + "]", "1e999")  # fmt: skip


def mutate(rng):
    if rng.random() < 0.1:
        return rng.choice((*TEXTS, {"deep": "list"}, {"deep": "dict"}))
    rows = [ROW | {"test": test, "tokens_per_second": 10.0 ** rng.randrange(-5, 5)}
            for test in ("pp512", "tg128")]  # fmt: skip
    number = rng.choice(("1" + "0" * 400, "-0.0", "1e-320", "1e308", "Infinity", "true", '"7"'))
    text = json.dumps(jsons.changed(rng, rows, rng.choice((1, 1, 2, 5))))
    return text.replace("12.5", number) if rng.random() < 0.3 else text


def run(value):
    text = value if isinstance(value, str) else jsons.deep(value["deep"], 10**5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(text, errors="surrogatepass")
        before = bench.rows_of(str(path))
        said = bench.compare([ROW, ROW | {"test": "tg128"}, ROW | {"model": "n"}], before)
        assert said.count("\n") == 2
        return "compared"
