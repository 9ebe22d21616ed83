"""Compare npurt with llama.cpp on this machine: same files, same number of threads, in turn.

    python bench/vs_llamacpp.py --peer llama.cpp/build/bin --models models --rounds 5
    python bench/vs_llamacpp.py --peer llama.cpp/build/bin --models models --parallel 1 4 8

The peer's folder has llama-bench, and llama-simple for the first token. In each round both programs
run each test once, so that other load affects both. The peer runs with its repacked kernels and
without, because the faster variant depends on the machine and the model. The ratio of a round is
npurt / llama.cpp, with the variant that has the better median; the table has the median and the
range of the rounds' ratios.

With --parallel, `npurt bench --parallel` and llama-batched-bench evaluate several sequences at
once. llama-batched-bench does not sample and handles no requests, as the peer's server would;
npurt's figures include both. "Times one" is the gain over one sequence in the same process.
"Spread" is the time of the slowest sequence divided by that of the fastest; the peer's sequences
all end in the same step.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

TESTS = ["pp512", "tg128", "rss", "first", "spin"]
TESTS_HELP = """ppN prefill and tgN decode, in tokens/s; rss: peak memory of the process
that ran ppN and tgN; first: seconds from the start of a program to the end of its first token;
spin: tgN while another process spins.  Default: %(default)s"""
VARIANTS = ("", "--repack 0")  # flags of llama-bench
PARALLEL_VARIANTS = ("", "--no-repack")  # flags of llama-batched-bench
PROMPT = "The capital of France is"
FIRST_TOKEN = """
import sys, npurt
with npurt.Llama(sys.argv[1], device="cpu", n_ctx=512, n_threads=int(sys.argv[2])) as llm:
    print(llm.generate(sys.argv[3], max_tokens=1, temperature=0))
"""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Npurt:
    name = "npurt"

    def bench(self, model: Path, threads: int, prompt: int, tokens: int) -> list[str]:
        flags = f"-t {threads} -p {prompt} -n {tokens} -r 1 -dev cpu --json".split()
        return [sys.executable, "-m", "npurt", "bench", "-m", str(model), *flags]

    def rates(self, output: str) -> dict[str, float]:
        return {row["test"]: row["tokens_per_second"] for row in json.loads(output)}

    def parallel(
        self, model: Path, threads: int, texts: list[int], prompt: int, tokens: int
    ) -> list[str]:
        counts = ",".join(map(str, texts))
        return [*self.bench(model, threads, prompt, tokens), "--parallel", counts]

    def rows(self, output: str) -> list[dict[str, float]]:
        return json.loads(output)

    def first(self, model: Path, threads: int) -> list[str]:
        return [sys.executable, "-c", FIRST_TOKEN, str(model), str(threads), PROMPT]


@dataclass(frozen=True)
class LlamaCpp:
    folder: Path
    flags: str

    @property
    def name(self) -> str:
        return f"llama.cpp {self.flags}".strip()

    def bench(self, model: Path, threads: int, prompt: int, tokens: int) -> list[str]:
        flags = f"-t {threads} -p {prompt} -n {tokens} -r 1 -o json {self.flags}".split()
        return [str(self.folder / "llama-bench"), "-m", str(model), *flags]

    def rates(self, output: str) -> dict[str, float]:
        return {
            f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}": row["avg_ts"]
            for row in json.loads(output)
        }

    def parallel(
        self, model: Path, threads: int, texts: list[int], prompt: int, tokens: int
    ) -> list[str]:
        positions, counts = max(texts) * (prompt + tokens), ",".join(map(str, texts))
        flags = (
            f"-t {threads} -c {positions} -npp {prompt} -ntg {tokens} -npl {counts} {self.flags}"
        )
        bench = [str(self.folder / "llama-batched-bench"), "-m", str(model)]
        return [*bench, *flags.split(), "--output-format", "jsonl"]

    def rows(self, output: str) -> list[dict[str, float]]:
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        names = {"parallel": "pl", "pp_tokens_per_s": "speed_pp", "tg_tokens_per_s": "speed_tg"}
        return [{ours: row[theirs] for ours, theirs in names.items()} for row in rows]

    def first(self, model: Path, threads: int) -> list[str]:
        # llama-simple starts fastest of the peer's programs, but has no flag for threads.
        simple = [str(self.folder / "llama-simple"), "-m", str(model), "-n", "1", PROMPT]
        return ["env", f"OMP_THREAD_LIMIT={threads}", *simple]


@dataclass(frozen=True)
class Run:
    """A process's output, seconds and peak memory, and the CPUs that others used meanwhile."""

    output: str
    seconds: float
    rss_mb: float
    others: float


def run(command: list[str]) -> Run:
    """Run a program to its end; exit with its messages if it fails."""
    busy, start = busy_seconds(), time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            output = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode:
            log.seek(0)
            sys.exit(f"{' '.join(command)}\nended with {process.returncode}\n{log.read()[-2000:]}")
    others = busy_seconds() - busy - used.ru_utime - used.ru_stime
    return Run(output, seconds, used.ru_maxrss * 1024 / 1e6, others / seconds)


def busy_seconds() -> float:
    """Return the CPU seconds that all processes have used since the machine started."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / CLOCK_TICKS


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """Run a process that spins on one CPU during the block."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def parallel_round(program: Npurt | LlamaCpp, model: Path, args: argparse.Namespace) -> dict:
    """Evaluate several sequences at once, by number; return a dict like `one_round`."""
    texts = sorted({1, *args.parallel})
    done = run(program.parallel(model, args.threads, texts, args.prompt, args.gen))
    figures, alone = {}, 0.0
    for row in program.rows(done.output):
        count, rate = row["parallel"], row["tg_tokens_per_s"]
        alone = alone or rate
        figures[f"prompts of {count}, tokens/s"] = row["pp_tokens_per_s"]
        figures[f"decode of {count}, tokens/s"] = rate
        if count > 1:
            figures[f"decode of {count}, times one"] = rate / alone
            if "spread" in row:
                figures[f"spread of {count}"] = row["spread"]
    return {"model": model.name, "program": program.name, "figures": figures, "others": done.others}


def one_round(program: Npurt | LlamaCpp, model: Path, args: argparse.Namespace) -> dict:
    """Run each test once; return figures, and the CPUs that others used in the first."""
    threads, tests = args.threads, args.tests
    sizes = {test[:2]: int(test[2:]) for test in tests if re.fullmatch(r"(pp|tg)\d+", test)}
    tokens = sizes.get("tg", 0)
    done = run(program.bench(model, threads, sizes.get("pp", 0), tokens))
    rates = program.rates(done.output)
    figures = {f"{test}, tokens/s": rate for test, rate in rates.items()}
    if "rss" in tests:
        figures["peak memory, MB"] = done.rss_mb
    if "first" in tests:
        figures["first token, s"] = run(program.first(model, threads)).seconds
    if "spin" in tests:
        with spinning():
            beside = run(program.bench(model, threads, 0, tokens))
        rate = program.rates(beside.output)[f"tg{tokens}"]
        figures["decode beside a spinning process, tokens/s"] = rate
        figures["decode kept, %"] = 100 * rate / rates[f"tg{tokens}"]
    return {"model": model.name, "program": program.name, "figures": figures, "others": done.others}


def table(rounds: list[dict[str, Any]]) -> str:
    """Return a markdown table: medians, and the ratios of npurt to the better llama.cpp variant."""
    values = defaultdict(lambda: defaultdict(list))  # (model, figure) -> program -> values
    for each in rounds:
        for figure, value in each["figures"].items():
            values[each["model"], figure][each["program"]].append(value)
    names = list(dict.fromkeys(each["program"] for each in rounds))
    lines = [f"| model | figure | {' | '.join(names)} | ratio |", "|---" * (3 + len(names)) + "|"]
    for (model, figure), of in values.items():
        medians = [f"{statistics.median(of[name]):.4g}" if of[name] else "" for name in names]
        lines.append(f"| {' | '.join([model, figure, *medians, ratio(figure, of)])} |")
    return "\n".join(lines)


def ratio(figure: str, of: dict[str, list[float]]) -> str:
    """Return median and range, over the rounds, of npurt divided by the best peer."""
    peers = [values for name, values in of.items() if name != Npurt.name and values]
    if not peers or not of[Npurt.name]:
        return ""
    best = (min if figure.endswith((", s", ", MB")) else max)(peers, key=statistics.median)
    ratios = [a / b for a, b in zip(of[Npurt.name], best, strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare npurt with llama.cpp.")
    parser.add_argument("--peer", type=Path, help="llama.cpp's binaries; default: npurt alone")
    parser.add_argument("--peer-flags", nargs="+", metavar="FLAGS",
                        help="variants of the peer: flags for its benchmark, quoted, and ''"
                        " for none; default: with its repacked kernels and without")  # fmt: skip
    parser.add_argument("--peer-alone", action="store_true", help="do not measure npurt")
    parser.add_argument("--models", type=Path, default=Path("models"), help="a folder or a file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="TEST", help=TESTS_HELP)
    parser.add_argument("--parallel", nargs="+", type=int, metavar="N",
                        help="instead of --tests: run N sequences at once, and one")  # fmt: skip
    parser.add_argument("--prompt", type=int, default=512, help="of --parallel: prompt tokens")
    parser.add_argument("--gen", type=int, default=128, help="of --parallel: generated tokens")
    parser.add_argument("--json", action="store_true", help="print all rounds as JSON")
    args = parser.parse_args()
    unknown = [t for t in args.tests if not re.fullmatch(r"(pp|tg)[1-9]\d*|rss|first|spin", t)]
    if unknown or not any(re.match("pp|tg", test) for test in args.tests):
        parser.error(f"--tests: give ppN or tgN, and any of rss, first, spin; unknown: {unknown}")
    if "spin" in args.tests and not any(test.startswith("tg") for test in args.tests):
        parser.error("--tests: spin needs tgN")
    if args.parallel and min(*args.parallel, args.prompt - 1, args.gen) < 1:
        parser.error("--parallel: give numbers of 1 or more, a --prompt of 2 or more, and --gen")
    name = "llama-batched-bench" if args.parallel else "llama-bench"
    if (args.peer_alone or args.peer) and not (args.peer and (args.peer / name).exists()):
        parser.error(f"--peer: {args.peer} is not a folder with {name} in it")
    args.peer_flags = args.peer_flags or (PARALLEL_VARIANTS if args.parallel else VARIANTS)
    args.models = sorted(args.models.glob("*.gguf")) if args.models.is_dir() else [args.models]
    if not all(path.is_file() for path in args.models) or not args.models:
        parser.error("--models: no model found; run `make models`")
    return args


def main() -> None:
    args = arguments()
    programs = [] if args.peer_alone else [Npurt()]
    programs += [LlamaCpp(args.peer, flags) for flags in args.peer_flags if args.peer]
    rounds = []
    turns = [(m, p) for m in args.models for _ in range(args.rounds) for p in programs]
    measure = parallel_round if args.parallel else one_round
    for model, program in tqdm(turns):
        rounds.append(measure(program, model, args))
    if args.json:
        print(json.dumps(rounds))
        return
    print(table(rounds))
    others = max(each["others"] for each in rounds)
    print(f"\n{args.threads} threads, {args.rounds} rounds; others used up to {others:.2f} CPUs.")


if __name__ == "__main__":
    main()
