"""A loaded model: its weights on the devices, and the executor of its graph."""

import contextlib
import functools
import hashlib
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Self

import numpy as np

from npurt.device.device import F32, Packed
from npurt.device.segment import KV_DTYPES
from npurt.device.verify import Sampler
from npurt.errors import LayoutError, SettingError, UnsupportedOp, brief
from npurt.graph import ops
from npurt.graph.cost import weight_bytes
from npurt.graph.tensor import Dim, Kind, Tensor
from npurt.llm.arch import forward
from npurt.llm.arch.architecture import EMBEDDING
from npurt.llm.arch.decoder import Decoder, output, residual
from npurt.llm.arch.encoder import Encoder
from npurt.llm.arch.weights import FileWeights
from npurt.llm.session.background import Background
from npurt.llm.session.devices import Devices
from npurt.llm.session.lock import Lock
from npurt.llm.session.progress import Progress
from npurt.llm.session.setup import Setup
from npurt.llm.state.state import layout
from npurt.llm.text.tokenizer import Tokenizer
from npurt.runtime.execute.executor import Executor
from npurt.runtime.execute.offload import Offload
from npurt.runtime.execute.placement import Placed
from npurt.runtime.open.arguments import require_path
from npurt.runtime.open.devices import is_cpu
from npurt.runtime.report.ledger import Ledger, Report, Row
from npurt.runtime.report.trace import written_to

PRODUCTS = ops.MatMul | ops.ExpertMatMul
SAMPLE = 512  # bytes of each tensor that are hashed to identify a model


class LoadedModel:
    """A loaded model, on which contexts run, one at a time: see `lock`.

    The executor's segments hold the states of all contexts, by sequence.  `Setup.limits` has the
    largest number of sequences.

    Args:
        setup: The description of the model.  Its file must stay open as long as the model.
        devices: Open devices, which must stay open as long as the model.
        checks: Chooses the matrix products to verify.
        strict: See `Llama`.
        progress: Show a progress bar on a terminal.

    Attributes:
        setup, devices, checks, progress: As in the arguments.
        file: The GGUF file.
        config: The configuration in the file's metadata.
        tokenizer: The tokenizer.
        n_ctx: Positions of a context.
        ledger: Records which op ran on which device.
        lock: Held by the thread that uses the model.
        executor: Runs the graph.
        encoder: Evaluates sequences if the model is an encoder; otherwise None.
        decoder: Runs tokens of one or several contexts.

    Raises:
        ModelFormatError: A weight or the vocabulary is damaged.
        NotOffloaded: See *strict*.
    """

    def __init__(
        self, setup: Setup, devices: Devices, checks: Sampler, *, strict: bool, progress: bool
    ) -> None:
        caps = devices.device.caps
        self.setup = setup
        self.file = setup.description.file
        self.config = setup.description.config
        self.n_ctx = setup.limits.positions
        self.devices = devices
        self.ledger = Ledger(f"{caps.name}: {caps.detail}", strict)
        self.lock = Lock()
        self.progress = progress
        self.checks = checks
        self._closed = False
        self._free = list(reversed(range(setup.limits.sequences)))
        self._embedding = self.file[EMBEDDING]
        self._offload: Offload | None = None  # None until `_host` if the device runs graphs
        with contextlib.ExitStack() as opened:
            # The vocabulary is read in parallel: it takes as long as the weights.
            metadata = self.file.metadata
            tokenizer = Background(lambda: Tokenizer.from_gguf(metadata), "npurt vocabulary")
            self.executor = self._compile()
            opened.callback(self.executor.close)
            rows = setup.limits.rows
            causal = self.config.causal
            self._decoder = Decoder(setup.graph, self.executor, rows) if causal else None
            self.encoder = None if causal else Encoder(setup.graph, self.executor)
            self.tokenizer = tokenizer.result()
            opened.pop_all()

    def _compile(self) -> Executor:
        """Compile the graph for the device, or for the host with a device for matrix products."""
        graph, config, devices = self.setup.graph, self.config, self.devices
        weights = FileWeights(self.file, graph)
        total = sum(info.nbytes for info in self.file.tensors.values())
        with Progress("load", total, "B", shown=self.progress) as bar:

            def packed(name: str, nbytes: int) -> None:
                weights.release(name)
                bar.add(nbytes)

            if devices.cpu is not None:
                used = config.experts.top_k / config.experts.count if config.experts else 1.0
                self._offload = Offload(
                    devices.device, devices.cpu, self.ledger, used=used, packed=packed
                )
            return Executor(
                graph.graph,
                self._offload or devices.device,
                devices.other,
                weights,
                self.setup.limits,
                self.ledger,
                # Captured layers and an encoder's result are outputs of the graph already.
                [residual(graph)] if config.causal else [],
                self.checks,
            )

    @functools.cached_property
    def identity(self) -> bytes:
        """32 bytes that identify the model and the type of its cache.

        Only the beginning of each tensor is hashed: training changes every row of a tensor.
        """
        kv = np.dtype(KV_DTYPES[self.setup.limits.kv_dtype])
        digest = hashlib.sha256(repr((self.config, list(layout(self.config, kv, 1)))).encode())
        for name, info in sorted(self.file.tensors.items()):
            digest.update(repr((name, info.shape, info.format.name)).encode())
            digest.update(self.file.beginning(name, SAMPLE))
        for adapter in self.setup.description.adapters:
            digest.update(adapter.digest)
        return digest.digest()

    @property
    def decoder(self) -> Decoder:
        """The decoder, which runs tokens.

        Raises:
            UnsupportedOp: The model is an encoder.
        """
        if self._decoder is None:
            self.setup.description.require_decoder()
        assert self._decoder is not None, "the model is closed"
        return self._decoder

    # --- Sequences ------------------------------------------------------------------------------

    def allocate(self) -> int:
        """Return the number of an unused sequence, and mark it as used until `free`.

        Raises:
            SettingError: All sequences are in use.
        """
        try:
            return self._free.pop()
        except IndexError:
            raise SettingError(
                f"all {self.setup.limits.sequences} sequences of this model are in use",
                remedy="release a context, or open the model with a larger max_sequences",
            ) from None

    def free(self, sequence: int) -> None:
        """Mark *sequence* as unused.  Its states must have been dropped."""
        self._free.append(sequence)

    # --- Token ids ------------------------------------------------------------------------------

    def valid(self, ids: Iterable[int]) -> list[int]:
        """Check *ids*, and return them as a list of ints.

        Raises:
            LayoutError: The ids are not integers, or not in the vocabulary.
        """
        if isinstance(ids, bytes | bytearray):
            raise LayoutError("token ids are integers, not bytes", remedy="pass a text as a str")
        if not isinstance(ids, list) and isinstance(ids, Set | Mapping):
            raise LayoutError(
                f"token ids are {brief(ids)}, which has no order", remedy="pass a list"
            )
        try:
            tokens = [operator.index(i) for i in ids]
        except TypeError as error:
            raise LayoutError(
                f"token ids are integers: {error}", remedy="pass ids from tokenize() of this model"
            ) from error
        n_vocab = self.config.n_vocab
        wrong = [i for i in tokens if not 0 <= i < n_vocab]
        if wrong:
            raise LayoutError(
                f"token id {brief(wrong[0])} is not in the vocabulary of {n_vocab}",
                remedy="pass ids from tokenize() of this model",
            )
        return tokens

    def token_embeddings(self, ids: Sequence[int]) -> F32:
        """Return the embeddings of *ids*, as the input of the first layer, ``[T, D]``.

        Raises:
            LayoutError: An id is not in the vocabulary.
        """
        self.require_open()
        rows = self._embedding[np.asarray(self.valid(ids), np.intp)].dequantize()
        scale = self.config.conventions.embedding_scale
        return rows if scale == 1 else rows * np.float32(scale)

    # --- The output matrix, for drafts ----------------------------------------------------------

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, including the output matrix, excluding the token embeddings.

        On a device that runs graphs, these are the bytes in the file.
        """
        self.require_open()
        if self.devices.cpu is None:
            weights = {op.weight for op in self.setup.graph.graph.ops if isinstance(op, PRODUCTS)}
            return sum(map(weight_bytes, weights))
        return sum(weight.packed.nbytes for weight in self._host().weights.values())

    def output_matrix(self, columns: int) -> Packed:
        """Return the output matrix, ``[V, D]``, truncated to at least *columns* rows.

        See `Packed.first`.
        """
        return self._output(columns).packed

    def head(
        self, op: str, columns: int, norm: F32 | None = None, eps: float | None = None
    ) -> Callable[[F32], F32]:
        """Return a function that computes at least *columns* logits of a stream ``[T, D]``.

        A call overwrites the result of the call before.

        Args:
            op: The name of the matrix product, for reports.
            columns: The smallest number of logits.
            norm: The weight ``[D]`` of the norm before the product; by default the model's output
                norm.
            eps: The epsilon of the norm; by default the epsilon of the model.

        Raises:
            UnsupportedOp: The device runs graphs, and the host has no compiled kernels.
        """
        weight, host, config = self._output(columns), self._host(), self.config
        norm = host.vectors["output_norm.weight"] if norm is None else norm
        eps = config.eps if eps is None else eps
        v, d = Dim("V", weight.packed.n), Dim("D", weight.packed.k)
        matrix = Tensor("output.weight", (v, d), weight.packed.tensor.dtype, Kind.WEIGHT)
        vector = Tensor("norm.weight", (d,), kind=Kind.WEIGHT)
        graph = forward.head(op, matrix, vector, None, eps, config.conventions)
        rows = self.setup.limits.rows
        return host.head(self.checks, graph, weight, {vector.name: norm}, rows)

    def _output(self, columns: int) -> Placed:
        return self._host().weights[output(self.setup.graph).weight.name].first(columns)

    def _host(self) -> Offload:
        """Return the host with its matrices; with a device that runs graphs, only the last one."""
        self.require_open()
        if self._offload is None:
            cpu = self.devices.other
            if not is_cpu(cpu):
                raise UnsupportedOp(
                    f"{self.devices.device.caps.name} runs graphs, and numpy has no kernels for "
                    "the output matrix alone",
                    remedy="to draft with this model, open it on the CPU or on an NPU",
                )
            graph = self.setup.graph
            self._offload = Offload(cpu, cpu, self.ledger)
            self._offload.pack_output(output(graph), FileWeights(self.file, graph))
        return self._offload

    # --- Accounts -------------------------------------------------------------------------------

    def account(self, op: str) -> Row:
        """Return a ledger row for *op*, which the host computes outside the graph."""
        host = self.devices.host.caps.name
        return self.ledger.row(Row(op, "", (), host, host))

    def report(self) -> Report:
        """Return the ledger: the device, time and verification of each op."""
        return self.ledger.report()

    @contextlib.contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Write a trace of the ``with`` body to *path*, for Perfetto or chrome://tracing.

        The file is written at the end, also after an error or Ctrl-C.

        Raises:
            SettingError: *path* is not a path, or the file cannot be written.
        """
        with written_to(require_path(path)) as trace:
            self.ledger.watch(trace)
            try:
                yield
            finally:
                self.ledger.watch(None)

    # --- Closing --------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Raise an error if the model is closed, or its file was overwritten.

        Every evaluation reads the file: token embeddings, and all weights after a device restart.

        Raises:
            ModelFormatError: The file was overwritten.
            SettingError: The model is closed.
        """
        if self._closed:
            raise SettingError("this model is closed", remedy="open the file again with Llama()")
        self.file.require_unchanged()

    def close(self) -> None:
        """Release the weights; file and devices stay open.  A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.ledger.freeze()
        self.executor.close()
        del (
            self.executor,
            self._decoder,
            self.encoder,
            self._offload,
            self._embedding,
        )  # these refer to the file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
