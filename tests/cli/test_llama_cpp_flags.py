"""Tests of llama.cpp's flags: each is accepted, accepted with a note, or refused with a reason."""

import contextlib
import functools

import pytest

from npurt.cli import parser
from npurt.cli.arguments import llama_cpp
from tests.cli.conftest import assert_usage
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")


def words(text):
    return text.split()


# The names in tools/cli/README.md of llama.cpp (September 2026), except for -h and --version.
CLI = words("""
-cl --cache-list --completion-bash -t --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range
--cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch
--prio-batch --poll-batch -c --ctx-size -n --predict --n-predict -b --batch-size -ub --ubatch-size
--keep --swa-full -fa --flash-attn -p --prompt --perf --no-perf -f --file -bf --binary-file -e
--escape --no-escape --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale
--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -kvo
--kv-offload -nkvo --no-kv-offload --repack -nr --no-repack --no-host -ctk --cache-type-k -ctv
--cache-type-v -dt --defrag-thold --rpc --mlock --mmap --no-mmap -dio --direct-io -ndio
--no-direct-io -lm --load-mode --numa -dev --device --list-devices -ot --override-tensor -cmoe
--cpu-moe -ncmoe --n-cpu-moe -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split
-mg --main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx --check-tensors --override-kv
--op-offload --no-op-offload --lora --lora-scaled --control-vector --control-vector-scaled
--control-vector-layer-range -m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff
--hf-file -hft --hf-token --log-disable --log-file --log-colors -v --verbose --log-verbose
--offline -lv --verbosity --log-verbosity --log-prefix --no-log-prefix --log-timestamps
--no-log-timestamps --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd
--cache-type-v-draft --samplers -s --seed --sampler-seq --sampling-seq --ignore-eos --temp
--temperature --top-k --top-p --min-p --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold
--typical --typical-p --repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty
--dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker
--adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr
--mirostat-ent -l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file -bs
--backend-sampling --context-shift --no-context-shift -r --reverse-prompt -sp --special --warmup
--no-warmup -mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj --no-mmproj-auto
--mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image-min-tokens --image-max-tokens
-ctxcp --ctx-checkpoints --swa-checkpoints -cram --cache-ram --chat-template-kwargs --jinja
--no-jinja --reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget
--reasoning-budget-message --reasoning-preserve --no-reasoning-preserve --chat-template
--chat-template-file --skip-chat-parsing --no-skip-chat-parsing --log-prompts-dir --spec-draft-hf
-hfd -hfrd --hf-repo-draft --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd
--threads-batch-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd
--cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio --prio-draft
--spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft
--spec-draft-poll-batch --poll-batch-draft --spec-draft-override-tensor -otd
--override-tensor-draft --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe
--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-draft-n-max --spec-draft-n-min
--spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min
--spec-draft-backend-sampling --no-spec-draft-backend-sampling --spec-draft-device -devd
--device-draft --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-model
-md --model-draft --spec-type --spec-ngram-mod-n-min --spec-ngram-mod-n-max
--spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m
--spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m
--spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m
--spec-ngram-map-k4v-min-hits --draft --draft-n --draft-max --draft-min --draft-n-min
--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default
--spec-default
""")
CHAT = words("""
--verbose-prompt --display-prompt --no-display-prompt -co --color -sys --system-prompt
--show-timings --no-show-timings -sysf --system-prompt-file -cnv --conversation -no-cnv
--no-conversation -st --single-turn -mli --multiline-input --image --audio --video -o --output
--output-file --simple-io
""")
SERVER = words("""
-lzm --lazy-mode --moe-cache-mib -ncffn --n-cpu-ffn --log-jsonl --no-log-jsonl -lcs
--lookup-cache-static -lcd --lookup-cache-dynamic --kv-unified-per-slot -cms
--checkpoint-min-step -kvu --kv-unified -no-kvu --no-kv-unified --cache-idle-slots
--no-cache-idle-slots --spm-infill --pooling -np --parallel -cb --cont-batching -nocb
--no-cont-batching --mtmd-batch-max-tokens --video-fps --video-timestamp-interval
--video-ffmpeg-dir -a --alias --tags --embd-normalize --host --port --reuse-port --path
--cors-origins --cors-methods --cors-headers --cors-credentials --no-cors-credentials --api-prefix
--ui-config --webui-config --ui-config-file --webui-config-file --ui-mcp-proxy --webui-mcp-proxy
--no-ui-mcp-proxy --no-webui-mcp-proxy --tools --tools-runtime --mcp-servers-config
--mcp-servers-json -ag --agent -no-ag --no-agent --ui --webui --no-ui --no-webui --embedding
--embeddings --rerank --reranking --api-key --api-key-file --ssl-key-file --ssl-cert-file -to
--timeout --sse-ping-interval --threads-http --cache-prompt --no-cache-prompt --cache-reuse
--metrics --props --slots --no-slots --slot-save-path --media-path --models-dir --models-preset
--models-max --models-autoload --no-models-autoload --prefill-assistant --no-prefill-assistant
-sps --slot-prompt-similarity --lora-init-without-apply --sleep-idle-seconds --spec-synth-len
--spec-synth-rates --spec-draft-sampling --spec-ngram-size-n --spec-ngram-size-m
--spec-ngram-min-hits --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default
--fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default
""")
# Flags of prompts in llama-cli, which llama-server does not have.
PROMPTS = {"-p", "--prompt", "-f", "--file", "-bf", "--binary-file"}


@functools.cache
def parser_of(verb):
    [verbs] = [each for each in parser([verb])._actions if isinstance(each.choices, dict)]
    return verbs.choices[verb]


def known(verb):
    """Return the dict of the flags of *verb*: name -> action."""
    return parser_of(verb)._option_string_actions


@pytest.mark.parametrize(
    ("verb", "names"),
    [("run", {*CLI, *CHAT}), ("chat", {*CLI, *CHAT} - PROMPTS),
     ("serve", {*CLI, *SERVER} - PROMPTS)],
)  # fmt: skip
def test_every_flag_of_llama_cpp_is_known(verb, names):
    assert sorted(names - known(verb).keys()) == []


def test_no_flag_is_in_the_table_twice():
    names = [name for flag in llama_cpp.FLAGS for name in flag.names]
    assert len(names) == len(set(names))
    for flag in llama_cpp.FLAGS:
        assert flag.said
        assert len(flag.said) < 160


@pytest.mark.parametrize("flag", llama_cpp.FLAGS, ids=lambda flag: flag.names[0])
def test_a_flag_is_noted_or_refused_with_the_words_of_the_table(flag, capsys):
    values = ["1"] * (flag.values if flag.values != "?" else 0)
    refused = flag.refused and "1" not in flag.harmless
    for name in flag.names:
        if not isinstance(known("serve").get(name), llama_cpp._Foreign):
            continue
        with pytest.raises(SystemExit) if refused else contextlib.nullcontext():
            parser_of("serve").parse_args(["-m", "x", name, *values])
        said = f"{name}: {flag.said}" if refused else f"{name} changes nothing: {flag.said}"
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("written", ["--mirostat 0", "--keep 0", "--prio 0", "-sm none",
                                     "--dynatemp-range 0.0", "--reasoning-budget -1"])  # fmt: skip
def test_a_value_that_asks_for_nothing_else_is_accepted_silently(written, capsys):
    parser_of("run").parse_args(["-m", "x", "-p", "x", *written.split()])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("written", "name", "value"),
    [("--predict 5", "n_predict", 5), ("--model-draft d", "draft", "d"),
     ("--spec-draft-n-max 4", "draft_max", 4), ("-r END", "stop", ["END"])],
)  # fmt: skip
def test_other_names_of_npurts_own_flags(written, name, value):
    given = parser_of("run").parse_args(["-m", "x", "-p", "x", *written.split()])
    assert getattr(given, name) == value


def test_a_model_url_is_a_model():
    assert parser_of("run").parse_args(["-mu", "https://x/a.gguf"]).model == "https://x/a.gguf"


def test_a_large_batch_is_512_with_a_note(npurt, capsys):
    given = parser_of("serve").parse_args(["-m", "x", "-b", "2048"])
    assert given.batch_size == 512
    assert "-b 2048: npurt evaluates at most 512 tokens at once" in capsys.readouterr().err
    assert_usage(npurt("serve", "-m", MODEL, "-b", 0), "-b must be 1 or more")


def test_the_flags_are_no_part_of_the_help(npurt):
    text = npurt("serve", "--help").out
    assert "--mirostat" not in text
    assert "--api-key-file" in text
    assert "--context-shift" not in text


@pytest.mark.parametrize("verb", ["serve", "embed", "perplexity"])
def test_context_shift_is_offered_only_where_it_works(npurt, verb):
    file = ("-f", "x") if verb == "perplexity" else ()
    assert_usage(npurt(verb, "-m", "x", *file, "--context-shift"), "use a larger -c")
