"""Published measurements on this chip: those that were used to fit the cost model, and others.

Sources, as read in November 2026:
    happyme531    github.com/happyme531/rknpu2_matmul_open
    marfrit       github.com/marfrit/rk-llama.cpp, docs/rknpu2-campaign-results.md
    npu-notes     github.com/gregordinary/rockchip-npu-notes, perf/
    rknpu-submit  github.com/gregordinary/rknpu-submit, README.md
    RockNPU       github.com/darkautism/RockNPU
    RKLLM         github.com/airockchip/rknn-llm, benchmark.md of 1.3.0
    rk-llama      github.com/invisiofficial/rk-llama.cpp, ggml/src/ggml-rknpu2/README.md
    ork-driver    github.com/oRKLLM/ork-driver, AGENTS.md
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """A measured product ``[M, K] @ [K, N]``.

    Attributes:
        ms: Milliseconds.
        tile: Largest rows, columns and K of a task; None means npurt's cut.
        whole: Whether K is not cut.
        cores: Number of cores at work; all share the memory.
        host: How often the host reads each result; 0 if the time excludes packing and reading.
        threads: Number of host threads that pack and read.
        jobs: Number of submits; None means one.
        left_out: Whether the product was not used to fit the model.
    """

    source: str
    format: str
    m: int
    k: int
    n: int
    ms: float
    driver: str = "rknpu"
    mhz: float = 1000
    tile: tuple[int, int, int] | None = None
    whole: bool = False
    cores: int = 3
    host: int = 0
    threads: int = 1
    jobs: int = 1
    left_out: bool = False

    @property
    def name(self) -> str:
        """Return a name for test reports."""
        return f"{self.source} {self.format} {self.m}x{self.k}x{self.n} at {self.mhz} MHz"


@dataclass(frozen=True)
class Run:
    """A measured run of *tokens* tokens of a language model, with all its work.

    Attributes:
        rate: Tokens a second.
    """

    source: str
    model: str
    scheme: str
    tokens: int
    rate: float
    driver: str = "rknpu"
    mhz: float = 1000
    left_out: bool = True

    @property
    def ms(self) -> float:
        """Return the milliseconds of the run."""
        return 1e3 * self.tokens / self.rate

    @property
    def name(self) -> str:
        """Return a name for test reports."""
        return f"{self.source} {self.model} {self.scheme} {self.tokens} at {self.mhz} MHz"


def ms_of(gops: float, m: int, k: int, n: int) -> float:
    """Return the milliseconds of a product from its published rate; a MAC is two operations."""
    return 2 * m * k * n / gops / 1e6


LARGE = 512, 3840, 4096
TILE = 256, 256, 384  # of npu-notes and rknpu-submit; a product has 320 tasks
PRODUCTS = [
    # Products of one int4 row, limited by memory bandwidth.  The times include the submit.
    Product("happyme531", "int4", 1, 2048, 2048, 0.123, whole=True, left_out=True),
    Product("happyme531", "int4", 1, 8192, 2048, 0.325, whole=True),
    Product("happyme531", "int4", 1, 2048, 16384, 0.587, whole=True),
    Product("happyme531", "int4", 1, 4096, 4096, 0.315, whole=True, left_out=True),
    # Products of many rows, limited by the MAC array.  The times are of librknnrt's run alone.  Its
    # cut of K is not known, but its rate is that of tasks with all 4096.
    Product("happyme531", "int8", 128, 1024, 8192, 1.19, cores=1),
    Product("marfrit", "int8", 4096, 4096, 4096, ms_of(690, 4096, 4096, 4096), whole=True, cores=1),
    Product(
        "marfrit, three contexts", "int8", 4096, 4096, 3 * 4096,
        ms_of(1830, 4096, 4096, 3 * 4096), whole=True, left_out=True,
    ),
    # Different clocks, with rocket.  The times are of the wait alone.
    Product("RockNPU", "fp16", 256, 512, 128, 0.399, "rocket", 200, cores=1),
    Product("RockNPU", "fp16", 256, 512, 128, 0.180, "rocket", 600, cores=1, left_out=True),
    Product("RockNPU", "fp16", 256, 512, 128, 0.125, "rocket", 700, cores=1, left_out=True),
    # Small products, which measure the cost of a submit.
    Product("npu-notes, submit floor", "fp16", 8, 64, 32, 0.0515, "rocket", 600, cores=1),
    Product("npu-notes", "fp16", 64, 256, 512, 0.109, "rocket", 600, cores=1, left_out=True),
    Product("rknpu-submit", "fp16", 64, 256, 256, 0.121, cores=1),
    # Many tasks.  In the first, a thread only waits.  In the others, threads also pack and read.
    Product("npu-notes, wait", "fp16", *LARGE, 84, "rocket", 600, TILE, cores=1),
    Product("rknpu-submit, chained", "fp16", *LARGE, 38, tile=TILE, cores=1, host=1, threads=5),
    Product(
        "rknpu-submit, a submit a task", "fp16", *LARGE, 72, tile=TILE, cores=1, host=1, threads=5,
        jobs=320, left_out=True,
    ),
    Product(
        "rknpu-submit, three cores", "fp16", *LARGE, 26.9, tile=TILE, host=1, threads=5,
        left_out=True,
    ),
    Product(
        "npu-notes", "fp16", *LARGE, ms_of(461, *LARGE), "rocket", 600, TILE, host=1, threads=5,
    ),
    Product(
        "npu-notes", "int8", *LARGE, ms_of(386, *LARGE), "rocket", 600, (256, 256, 768), host=5,
        threads=5, left_out=True,
    ),
    Product(
        "npu-notes", "int4", *LARGE, ms_of(413, *LARGE), "rocket", 600, (256, 256, 480), host=8,
        threads=5, left_out=True,
    ),
    Product(
        "npu-notes, one thread", "fp16", *LARGE, ms_of(75.3, *LARGE), "rocket", 600, TILE, cores=1,
        host=10, left_out=True,
    ),
    Product(
        "npu-notes, one thread", "fp16", *LARGE, ms_of(56.5, *LARGE), "rocket", 200, TILE, cores=1,
        host=10, left_out=True,
    ),
    # W4A8 as two passes of int4; the host adds the partial sums.
    Product("happyme531", "int4", 256, 11008, 4096, 4.0, tile=(256, 4096, 2048), host=6, threads=4,
        left_out=True),
]  # fmt: skip

# Layers, width, feed-forward width, rows of q, rows of k and of v, vocabulary: from config.json.
MODELS = {
    "Qwen2-0.5B": (24, 896, 4864, 896, 128, 151936),
    "Qwen2.5-1.5B": (28, 1536, 8960, 1536, 256, 151936),
    "Qwen3-0.6B": (28, 1024, 3072, 2048, 1024, 151936),
    "Qwen3-1.7B": (28, 2048, 6144, 2048, 1024, 151936),
    "TinyLlama-1.1B": (22, 2048, 5632, 2048, 256, 32000),
    "Phi3-3.8B": (32, 3072, 8192, 3072, 3072, 32064),
    "Gemma3-1B": (26, 1152, 6912, 1024, 256, 262144),
    "Llama-3.2-3B": (28, 3072, 8192, 3072, 1024, 128256),
    "Ministral-3-3B": (26, 3072, 9216, 4096, 1024, 131072),
    "Ministral-3-8B": (34, 4096, 14336, 4096, 1024, 131072),
}
LANGUAGE = [
    # Decoding.  Two runs of the closed runtime, whose submits are larger than npurt's, set the low
    # end.
    Run("RKLLM", "Qwen2-0.5B", "int8", 1, 41.6, left_out=False),
    Run("RKLLM", "Phi3-3.8B", "int8", 1, 7.5, left_out=False),
    Run("RKLLM", "TinyLlama-1.1B", "int8", 1, 24.4),
    Run("RKLLM", "Qwen2.5-1.5B", "int8", 1, 16.7),
    Run("RKLLM", "Qwen3-0.6B", "int8", 1, 32.9),
    Run("ork-driver, librkllmrt", "Qwen3-1.7B", "int8", 1, 11.7),
    Run("rk-llama", "Gemma3-1B", "int8", 1, 16.5),
    Run("rk-llama", "Gemma3-1B", "fp16", 1, 10.8),
    Run("rk-llama", "Ministral-3-3B", "int8", 1, 6.9),
    # Prefill.
    Run("RKLLM", "Qwen2-0.5B", "int8", 128, 877),
    Run("RKLLM", "TinyLlama-1.1B", "int8", 128, 525),
    Run("RKLLM", "Qwen2.5-1.5B", "int8", 128, 338),
    Run("RKLLM", "Qwen3-0.6B", "int8", 128, 643),
    Run("ork-driver, librkllmrt", "Qwen3-1.7B", "int8", 64, 187),
    Run("rk-llama", "Gemma3-1B", "int8", 512, 379),
    Run("rk-llama", "Gemma3-1B", "fp16", 512, 250),
    Run("rk-llama", "Ministral-3-3B", "int8", 512, 121),
    Run("rknpu-submit", "Llama-3.2-3B", "fp16", 512, 67.6),
    Run("npu-notes", "Llama-3.2-3B", "fp16", 512, 61.8, "rocket", 600),
    Run("npu-notes", "Ministral-3-8B", "fp16", 512, 27.4, "rocket", 600),
]
