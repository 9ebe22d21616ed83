"""Make tiny random models of many architectures, and transformers' logits of them.

    python tests/data/make/tiny_models.py OUT [NAME ...]

Needs torch, transformers 5.23 and gguf; npurt itself needs none of them.  Each model gets a folder
OUT/NAME: ``NAME-bf16.gguf`` (matrices bfloat16, vectors float32; the tokenizer is that of the tiny
qwen2), ``ids.npy`` and ``hf_f32_prefill.npy``, the logits of one forward pass in float32.  Keys,
names of tensors and layouts are those of llama.cpp's converter (conversion/*.py, gguf-py, MIT).
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, TOKENS, LAYERS = 608, 40, 4
COMMON = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 256, "tie_word_embeddings": True,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
UNTIED = {"tie_word_embeddings": False}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 8,
        "beta_fast": 32.0, "beta_slow": 1.0, "rope_theta": 150000.0}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
        "short_factor": [1 + 0.1 * i for i in range(16)],
        "long_factor": [1 + 0.5 * i for i in range(16)]}  # fmt: skip
MODELS = {  # name: (transformers' model type, llama.cpp's architecture, settings)
    "gemma2": ("gemma2", "gemma2", {
        "sliding_window": 8, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0}),
    "gemma3": ("gemma3_text", "gemma3", {
        "sliding_window": 8, "query_pre_attn_scalar": 32, "num_hidden_layers": 7}),
    "gpt-oss": ("gpt_oss", "gpt-oss", UNTIED | {
        "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2,
        "rope_parameters": YARN | {"truncate": False}}),
    "phi3": ("phi3", "phi3", UNTIED | {"sliding_window": 12, "head_dim": 16}),
    "phi3-longrope": ("phi3", "phi3", UNTIED | {
        "num_attention_heads": 2, "rope_parameters": LONG,
        "original_max_position_embeddings": 32}),
    "granite": ("granite", "granite", {
        "embedding_multiplier": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.05,
        "logits_scaling": 3.0, "head_dim": 16}),
    "smollm3": ("smollm3", "smollm3", {"head_dim": 16}),
    "olmo2": ("olmo2", "olmo2", UNTIED | {"head_dim": 16}),
    "olmo3": ("olmo3", "olmo2", UNTIED | {"sliding_window": 8, "head_dim": 16}),
    "glm4": ("glm4", "glm4", UNTIED),
    "exaone4": ("exaone4", "exaone4", {"sliding_window": 8, "head_dim": 16}),
    "lfm2": ("lfm2", "lfm2", {
        "head_dim": 16, "conv_L_cache": 3, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    "mistral3": ("ministral3", "mistral3", {
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0,
                                   "llama_4_scaling_beta": 0.1}}),
}  # fmt: skip
PERMUTED = ("granite", "smollm3", "mistral3")  # q and k: halves become adjacent pairs


def decoder(kind, settings):
    """Return an untrained model."""
    config = AutoConfig.for_model(kind, **{**COMMON, **settings})
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )


def build(make, kind=""):
    """Return a model with random weights, scaled so that each part affects the logits."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for name, p in model.named_parameters():
            spread = 1.0 if "embed" in name else p.shape[-1] ** -0.5
            if p.ndim == 1:
                base = 0.0 if "bias" in name or "sinks" in name or "gemma" in kind else 1.0
                p.copy_(base + 0.3 * torch.randn(p.shape))
            else:
                p.copy_((spread * torch.randn(p.shape)).to(torch.bfloat16).float())
    return model.eval()


def permuted(array, heads):
    """Return the rows of q or k with the halves of each head interleaved."""
    width = len(array) // heads
    return array.reshape(heads, 2, width // 2, -1).swapaxes(1, 2).reshape(array.shape)


def tensors(name, arch, model, config):
    """Yield names and arrays as the converter writes them."""
    blocks = config.num_hidden_layers
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper().replace("-", "_")], blocks)
    for key, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        stem, dot, suffix = key.rpartition(".")
        suffix = dot + suffix
        if "gemma" in arch and key.endswith("norm.weight"):
            array = array + 1
        if name in PERMUTED and "q_proj" in key:
            array = permuted(array, config.num_attention_heads)
        if name in PERMUTED and "k_proj" in key:
            array = permuted(array, config.num_key_value_heads)
        if "sinks" in key:
            stem, suffix = key, ".weight"
        if ".experts." in key:
            yield from experts(key, array, names)
            continue
        if "conv.conv" in key:
            array = array[:, 0]
        yield names.get_name(stem) + suffix, array


def experts(key, array, names):
    """Yield the stacks of gpt-oss: gate and up interleaved, [E, in, out] in the checkpoint."""
    block = key.split(".mlp.")[0]
    suffix = ".bias" if key.endswith("_bias") else ".weight"
    array = array if suffix == ".bias" else array.swapaxes(-1, -2)
    if "down_proj" in key:
        yield names.get_name(f"{block}.mlp.experts.down_proj") + suffix, array
        return
    yield names.get_name(f"{block}.mlp.experts.gate_proj") + suffix, array[:, 0::2]
    yield names.get_name(f"{block}.mlp.experts.up_proj") + suffix, array[:, 1::2]


def metadata(writer, name, arch, config, vocabulary):
    """Write the keys that the converter writes."""
    for key, field in gguf.GGUFReader(vocabulary).fields.items():
        if key.startswith("tokenizer."):
            value, kinds = field.contents(), field.types
            writer.add_key_value(key, value, kinds[0], *(kinds[-1:] if len(kinds) > 1 else ()))
    heads, rope = config.num_attention_heads, config.rope_parameters
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    flat = rope.get("full_attention", rope)
    conv = [kind == "conv" for kind in getattr(config, "layer_types", None) or []]
    kv = config.num_key_value_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv([0 if c else kv for c in conv] if any(conv) else kv)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    writer.add_rope_freq_base(flat["rope_theta"])
    writer.add_rope_dimension_count(int(width * flat.get("partial_rotary_factor", 1.0)))
    if flat["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(flat["factor"])
        writer.add_rope_scaling_orig_ctx_len(flat["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(flat["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(flat["beta_slow"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    extra(writer, name, arch, config, flat)


def extra(writer, name, arch, config, rope):
    """Write the keys of one architecture."""
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch == "gpt-oss":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if arch == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch == "exaone4":
        writer.add_sliding_window_pattern([t == "sliding_attention" for t in config.layer_types])
    if arch == "lfm2":
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if arch == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if name == "phi3-longrope":
        original = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(original)) ** 0.5)
        for length in ("short", "long"):
            factors = np.array(rope[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def write_tensors(writer, named):
    """Write the file: matrices in bfloat16, convolutions, biases and vectors in float32."""
    for key, array in named:
        if array.ndim > 1 and "conv" not in key and not key.endswith(".bias"):
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16
            data = bits.astype(np.uint16).view(np.uint8)
            writer.add_tensor(key, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(key, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name, out, vocabulary):
    """Write the folder of one model."""
    kind, arch, settings = MODELS[name]
    model = build(lambda: decoder(kind, settings), kind)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(1).integers(3, 600, TOKENS)
    with torch.no_grad():
        logits = model(torch.tensor(ids[None])).logits[0].numpy()
    writer = gguf.GGUFWriter(folder / f"{name}-bf16.gguf", arch)
    metadata(writer, name, arch, model.config, vocabulary)
    write_tensors(writer, tensors(name, arch, model, model.config))
    np.save(folder / "ids.npy", ids.astype(np.int32))
    np.save(folder / "hf_f32_prefill.npy", logits.astype(np.float32))
    size = sum(file.stat().st_size for file in folder.iterdir())
    sys.stdout.write(f"{name}: logits {logits.shape}, std {logits.std():.2f}, {size} bytes\n")


if __name__ == "__main__":
    data = Path(__file__).parents[1]
    for model_name in sys.argv[2:] or MODELS:
        make(model_name, Path(sys.argv[1]), data / "models/qwen2/qwen2-f32.gguf")
