"""llama.cpp's flags that npurt does not have: accepted with a note, or refused with a reason.

Flags that npurt has under the same name are in `options` and `sampling`.  Names, and the number of
values that a flag takes, are those of llama.cpp's tools/cli/README.md and tools/server/README.md
(September 2026), MIT.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of llama.cpp.

    Attributes:
        names: All names.
        said: What npurt does instead, or the reason for the refusal.
        values: The number of values: 0, 1, 2, or "?" for an optional one.
        harmless: Values that are accepted silently, because they are npurt's behaviour anyway.
        refused: The flag is refused; otherwise it changes nothing.
    """

    names: tuple[str, ...]
    said: str
    values: int | str
    harmless: tuple[str, ...]
    refused: bool


def _note(names: str, said: str, values: int | str = 0) -> Flag:
    """Return a flag that changes nothing."""
    return Flag(tuple(names.split()), said, values, (), refused=False)


def _no(names: str, said: str, values: int | str = 1, harmless: str = "") -> Flag:
    """Return a flag that is refused, except with one of the *harmless* values."""
    return Flag(tuple(names.split()), said, values, tuple(harmless.split()), refused=True)


# Other names of npurt's own flags: llama.cpp's name -> npurt's.
ALIASES = {
    "-hfr": "-hf", "-mu": "-m", "--model-url": "-m", "--predict": "-n",
    "--model-draft": "-md", "--spec-draft-model": "-md", "--spec-draft-hf": "-hfd",
    "-hfrd": "-hfd", "--spec-draft-n-max": "--draft-max", "--draft-n": "--draft-max",
    "--spec-draft-device": "-devd", "-r": "--stop", "--reverse-prompt": "--stop",
    "--no-ui": "--no-page", "--no-webui": "--no-page", "-to": "--timeout",
    "--server-base": "--url",
}  # fmt: skip

_ROTARY = (
    "npurt uses the file's rotary settings; set rope_scaling in config.json before npurt convert"
)
_CPUS = "choose CPUs with taskset -c 0-3 npurt ..., and the number of threads with -t"
_NICE = "set the priority with nice -n 5 npurt ..."
_POLL = "threads poll for work as long as a run lasts"
_PLACED = "the device of -dev gets the weights that fit; npurt plan -m FILE shows which"
_ONE = "a model runs on one device and the CPU; name it with -dev"
_COPIED = "weights are copied out of the file once"
_IMAGES = "npurt runs text models only"
_SAMPLERS = (
    "npurt has temperature, top-k, top-p, min-p, typical, XTC, DRY and penalties, in the order of "
    "docs/sampling.md"
)
_LOG = "npurt prints warnings and errors to standard error"
_DRAFT_LENGTH = "npurt measures draft and model, and chooses the length of each draft"
_DRAFT_CPU = "a draft model uses the threads of -t"
_NGRAM = "repetitions of the context are drafted by -md lookup, which has no settings"
_CHECKPOINTS = "npurt keeps the states of prefixes that requests share while there is memory"
_FILE = "write $(cat FILE) instead: {}"
_PROXY = "put nginx or Caddy in front of the server (docs/server-setup.md)"
_TOOLS = "the server runs no tools; clients run them, and give the results to the model"
_PAGE = "the page at / keeps its settings in the browser; --no-page turns it off"
_THOUGHTS = 'set it in a request: chat_template_kwargs, such as {"enable_thinking": false}'
_HUB = "npurt names no models of its own for llama.cpp; use -hf {}"

FLAGS = (
    # Commands
    _no("--list-devices", "npurt devices lists the devices", 0),
    _no("-cl --cache-list", "npurt list lists the models on this machine", 0),
    _no("--completion-bash", "npurt completion bash prints the script", 0),
    # CPU and memory
    _note("-tb --threads-batch", "prompts and single tokens use the threads of -t", 1),
    _no("-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch", _CPUS),
    _note("--cpu-strict --cpu-strict-batch", "threads are bound to the fast cores", 1),
    _no("--prio --prio-batch", _NICE, harmless="0"),
    _note("--poll --poll-batch", _POLL, 1),
    _no("--numa", "choose nodes with numactl npurt ..."),
    _note("-ub --ubatch-size", "-b sets the tokens in one run", 1),
    _note("--no-mlock", "npurt locks no memory"),
    _note("-dio --direct-io -ndio --no-direct-io", _COPIED),
    _note("-lm --load-mode -lzm --lazy-mode", _COPIED, 1),
    _note("--repack -nr --no-repack", "weights are packed once for the kernels of this CPU"),
    _note("--no-host", "there are no host buffers"),
    _note("-kvo --kv-offload -nkvo --no-kv-offload", "keys and values are in the CPU's memory"),
    _note("-dt --defrag-thold", "the pages of the KV cache need no defragmentation", 1),
    _note("-fit --fit", "npurt plan -m FILE prints the memory that a model needs", "?"),
    _note("-fitt --fit-target -fitc --fit-ctx", "npurt plan -m FILE prints the memory that a "
          "model needs", 1),
    _note("--swa-full", "layers with a window keep all positions of the context"),
    _no("--check-tensors", "--verify always checks every product of the device", 0),
    # Devices
    _no("--rpc", "npurt runs on this machine only"),
    _no("-ot --override-tensor -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn --moe-cache-mib", _PLACED,
        harmless="0"),
    _no("-cmoe --cpu-moe", _PLACED, 0),
    _no("-sm --split-mode", _ONE, harmless="none"),
    _no("-ts --tensor-split", _ONE),
    _no("-mg --main-gpu", _ONE, harmless="0"),
    _note("--op-offload --no-op-offload", _PLACED),
    # The model
    _no("--override-kv", "change the key in the file, with gguf_set_metadata.py of llama.cpp"),
    _no("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
        "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", _ROTARY),
    _no("--control-vector --control-vector-scaled", "npurt applies LoRA adapters: --lora FILE"),
    _no("--control-vector-layer-range", "npurt applies LoRA adapters: --lora FILE", 2),
    _no("-dr --docker-repo", "npurt downloads from hubs and URLs: -hf USER/REPO[:QUANT]"),
    _no("-hff --hf-file", "name the file in -hf: USER/REPO/FILE.gguf"),
    _no("-hft --hf-token", "set HF_TOKEN, which other users of the machine do not see"),
    _no("--offline", "set HF_HUB_OFFLINE=1", 0),
    _no("--gpt-oss-20b-default", _HUB.format("ggml-org/gpt-oss-20b-GGUF"), 0),
    _no("--gpt-oss-120b-default", _HUB.format("ggml-org/gpt-oss-120b-GGUF"), 0),
    _no("--embd-gemma-default", "npurt embeds with bert, nomic-bert and decoders; see npurt models",
        0),
    _no("--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec "
        "--fim-qwen-14b-spec --fim-qwen-30b-default",
        "name the model: -hf USER/REPO, and its draft: -hfd USER/REPO", 0),
    _no("--vision-gemma-4b-default --vision-gemma-12b-default", _IMAGES, 0),
    # Prompts and output
    _no("-bf --binary-file", "npurt reads prompts as UTF-8 text: -f FILE"),
    _no("-sysf --system-prompt-file", _FILE.format('-sys "$(cat FILE)"')),
    _no("-e --escape", "npurt takes a prompt as it is; bash writes line feeds as $'a\\nb'", 0),
    _note("--no-escape", "a prompt is taken as it is"),
    _no("--keep", "npurt drops the oldest half of a full context (--context-shift)",
        harmless="0"),
    _note("--perf --no-perf --show-timings --no-show-timings",
          "times are printed after each answer"),
    _note("--display-prompt --no-display-prompt", "the prompt is not printed"),
    _no("-st --single-turn", "npurt run answers once and exits", 0),
    _no("--verbose-prompt", "npurt.Llama(...).template.render shows prompts in Python", 0),
    _no("-sp --special", "markup tokens are not part of the output", 0),
    _no("-o --output --output-file", "redirect the output: npurt ... > FILE"),
    _note("-co --color", "a terminal gets colours and other outputs none", "?"),
    _note("--simple-io", "standard input and output are used"),
    _note("-mli --multiline-input", 'a message of several lines begins and ends with """'),
    _note("--no-context-shift", "a full context ends the output unless --context-shift is given"),
    _no("--context-shift", "sequences share the memory of contexts: use a larger -c", 0),
    _note("--no-jinja", "chat templates are always rendered by Jinja"),
    _no("--chat-template", "npurt serve has it; in Python: npurt.Llama.chat(chat_template=)"),
    _no("--chat-template-file", _FILE.format('npurt serve --chat-template "$(cat FILE)"')),
    _no("--chat-template-kwargs", _THOUGHTS),
    _note("--reasoning-format", "thoughts are returned as reasoning_content", 1),
    _no("-rea --reasoning", _THOUGHTS, "?", harmless="auto"),
    _no("--reasoning-effort", _THOUGHTS, harmless="default"),
    _no("--reasoning-budget --reasoning-budget-message", _THOUGHTS, harmless="-1"),
    _note("--reasoning-preserve --no-reasoning-preserve", "the template chooses the thoughts of "
          "earlier answers"),
    _no("--skip-chat-parsing", "calls and thoughts are always separated from the text", 0),
    _note("--no-skip-chat-parsing", "calls and thoughts are always separated from the text"),
    _note("--prefill-assistant", "an answer continues the last message of the assistant"),
    _no("--no-prefill-assistant", "an answer continues the last message of the assistant", 0),
    _no("-mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device --image --audio --video "
        "--image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --video-fps "
        "--video-timestamp-interval --video-ffmpeg-dir --media-path", _IMAGES),
    _note("--mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload",
          _IMAGES),
    # Logs
    _note("--log-disable --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps "
          "--no-log-jsonl", _LOG),
    _note("--log-colors", _LOG, "?"),
    _no("--log-jsonl", _LOG, 0),
    _no("--log-file", "redirect standard error: npurt ... 2> FILE"),
    _no("--log-prompts-dir", "npurt does not store prompts"),
    _note("-v --verbose --log-verbose", "NPURT_DEBUG=1 shows tracebacks"),
    _note("-lv --verbosity --log-verbosity", "NPURT_DEBUG=1 shows tracebacks", 1),
    # Sampling
    _no("--samplers --sampler-seq --sampling-seq", _SAMPLERS),
    _no("--adaptive-target", _SAMPLERS, harmless="-1 -1.0 -1.00"),
    _no("--adaptive-decay --dynatemp-exp --mirostat-lr --mirostat-ent", _SAMPLERS),
    _no("--dynatemp-range --mirostat", _SAMPLERS, harmless="0 0.0 0.00"),
    _note("-bs --backend-sampling", "top-k and the draw run in C on the CPU"),
    # Drafts
    _no("-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", _NGRAM),
    _no("--spec-type", "-md FILE drafts with a model, -md lookup from the context's repetitions",
        harmless="none"),
    _no("--spec-default", "-md lookup drafts from the context's repetitions", 0),
    _no("--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match "
        "--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits "
        "--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits "
        "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits "
        "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits", _NGRAM),
    _note("--spec-draft-n-min --draft-min --draft-n-min --spec-draft-p-split --draft-p-split "
          "--spec-draft-p-min --draft-p-min --spec-draft-sampling", _DRAFT_LENGTH, 1),
    _no("--spec-synth-len --spec-synth-rates", _DRAFT_LENGTH),
    _note("--spec-draft-backend-sampling --no-spec-draft-backend-sampling", _DRAFT_CPU),
    _note("--spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd "
          "--threads-batch-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-poll "
          "--poll-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft "
          "--spec-draft-poll-batch --poll-batch-draft", _DRAFT_CPU, 1),
    _no("--spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd "
        "--cpu-range-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft", _CPUS),
    _no("--spec-draft-prio --prio-draft --spec-draft-prio-batch --prio-batch-draft", _NICE,
        harmless="0"),
    _no("--spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe "
        "--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft", _PLACED, harmless="0"),
    _no("--spec-draft-cpu-moe -cmoed --cpu-moe-draft", _PLACED, 0),
    _note("--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
          "-devd names the device of a draft model", 1),
    _no("--spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd "
        "--cache-type-v-draft", "a draft model has a KV cache of f16", harmless="f16"),
    # The server
    _note("-cb --cont-batching", "requests are always batched"),
    _no("-nocb --no-cont-batching", "requests are always batched; -np 1 runs one at a time", 0),
    _note("-kvu --kv-unified -no-kvu --no-kv-unified", "sequences share the pages of --kv-bytes"),
    _no("--kv-unified-per-slot", "-c limits each sequence, and --kv-bytes all of them"),
    _note("-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram "
          "--cache-ram", _CHECKPOINTS, 1),
    _note("--cache-idle-slots --no-cache-idle-slots --cache-prompt", _CHECKPOINTS),
    _no("--no-cache-prompt", "cached prefixes never change an answer", 0),
    _note("--cache-reuse", "common prefixes of prompts are evaluated once", 1),
    _no("--spm-infill", "the file's template of fill-in-the-middle is used", 0),
    _no("--pooling", "npurt uses the file's pooling; npurt embed --pooling sets another"),
    _no("--embd-normalize", "embeddings have length 1", harmless="2"),
    _note("--tags", "tags have no effect on requests", 1),
    _no("--reuse-port", "start one server on a port", 0),
    _no("--path", _PROXY),
    _no("--api-prefix", _PROXY),
    _no("--ssl-key-file --ssl-cert-file", _PROXY),
    _no("--api-key", "write the key into a file: --api-key-file FILE; other users of the machine "
        "see command lines"),
    _no("--cors-origins", "name each origin: --cors-origin ORIGIN, which may be repeated"),
    _no("--cors-methods --cors-headers", "origins of --cors-origin may use all of the server"),
    _note("--cors-credentials --no-cors-credentials", "API keys are sent in headers, not cookies"),
    _note("--ui --webui", "the page is served at /"),
    _no("--ui-config --webui-config --ui-config-file --webui-config-file", _PAGE),
    _no("--ui-mcp-proxy --webui-mcp-proxy -ag --agent", _TOOLS, 0),
    _note("--no-ui-mcp-proxy --no-webui-mcp-proxy -no-ag --no-agent", _TOOLS),
    _no("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", _TOOLS),
    _note("--rerank --reranking", "a reranker is recognised by its file"),
    _note("--metrics", "/metrics is always served"),
    _no("--props", "settings change by a restart; requests have their own", 0),
    _note("--slots --no-slots", "/slots is always served"),
    _no("--slot-save-path", "npurt.Llama.save_state saves states in Python"),
    _note("-sps --slot-prompt-similarity", _CHECKPOINTS, 1),
    _no("--lora-init-without-apply", "an adapter of --lora is applied; :0 after its name is a "
        "scale of 0", 0),
    _no("--models-preset", "write options into a file, one a line: npurt serve @FILE"),
    _note("--models-autoload", "models of --models-dir are loaded on their first request"),
    _no("--no-models-autoload", "models of --models-dir are loaded on their first request", 0),
    _no("--sleep-idle-seconds", "--models-dir DIR --idle-seconds N unloads idle models",
        harmless="-1"),
    _note("--sse-ping-interval", "a comment is sent every few seconds while a stream waits", 1),
    _note("--threads-http", "one thread serves all connections", 1),
)  # fmt: skip


class _Foreign(argparse.Action):
    """The action of a `Flag`: it prints a note, or refuses the flag."""

    def __init__(self, option_strings: Sequence[str], dest: str, flag: Flag, **options: Any):
        super().__init__(option_strings, dest, default=argparse.SUPPRESS,
                         help=argparse.SUPPRESS, **options)  # fmt: skip
        self._flag = flag

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Print the note, or end the program with the reason."""
        del namespace
        if values in self._flag.harmless:
            return
        if self._flag.refused:
            parser.error(f"{option_string}: {self._flag.said}")
        print(f"npurt: {option_string} changes nothing: {self._flag.said}", file=sys.stderr)


def add(parser: argparse.ArgumentParser) -> None:
    """Add llama.cpp's flags that *parser* lacks; they are not part of its help."""
    known = parser._option_string_actions
    for name, ours in ALIASES.items():
        if name not in known and ours in known:
            known[name] = known[ours]
    for flag in FLAGS:
        names = [name for name in flag.names if name not in known]
        if not names:
            continue
        many: dict[str, Any] = {"nargs": flag.values} if flag.values != 1 else {}
        parser.add_argument(*names, action=_Foreign, dest=argparse.SUPPRESS, flag=flag, **many)
