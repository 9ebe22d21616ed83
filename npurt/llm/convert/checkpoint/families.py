"""The model families that `npurt convert` supports: tensor names, and rules for the metadata.

Tensor names in checkpoints come from transformers' classes; tensor names and keys in GGUF come from
llama.cpp.  Sources: transformers 5.23 models/*/modeling_*.py, Apache-2.0 (names); llama.cpp
gguf-py/gguf/constants.py and conversion/*.py, MIT (names, keys, permuted rows).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.arch.families.gemma import LARGEST, LOCAL_BASE
from npurt.llm.convert.checkpoint import delta_nets, encoders
from npurt.llm.convert.checkpoint.orders import Orders, permuted, unchanged
from npurt.llm.convert.checkpoint.settings import CheckpointSettings

Keys = dict[str, Any]
GELU = ("gelu_pytorch_tanh",)

TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS_AFTER = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_NORMS_AROUND = _LAYER | {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate_up_proj": "ffn_up",  # the rows of the gate are first
}
_GEMMA = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT_OSS = _LAYER | {  # `fused_experts` converts the experts
    "self_attn.sinks": "attn_sinks",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}
_FUSED = _LAYER | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
_EXPERTS = _LAYER | {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.*.gate_proj": "ffn_gate_exps",  # * stands for the index of the expert
    "mlp.experts.*.up_proj": "ffn_up_exps",
    "mlp.experts.*.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_HYBRID = _EXPERTS | delta_nets.NAMES | {"post_attention_layernorm": "post_attention_norm"}
_MIXTRAL = _LAYER | {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.*.w3": "ffn_up_exps",
    "block_sparse_moe.experts.*.w2": "ffn_down_exps",
}
_CONVOLUTIONS = {
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
}


def _nothing(settings: CheckpointSettings) -> Keys:
    del settings
    return {}


def _width(settings: CheckpointSettings) -> int:
    return settings.integer("intermediate_size")


def _width_if_any(settings: CheckpointSettings) -> int:
    return _width(settings) if settings.get("intermediate_size") else 0


def _lfm2_width(settings: CheckpointSettings) -> int:
    """Return the width of the feed-forward blocks; config.json has the width before adjustment.

    Source: transformers models/lfm2, Lfm2Config (names) and Lfm2MLP (arithmetic), Apache-2.0.
    """
    name = "intermediate_size" if settings.get("block_ff_dim") is None else "block_ff_dim"
    width = settings.integer(name)
    if not settings.get("block_auto_adjust_ff_dim", True):
        return width
    scaled = int(settings.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = settings.integer("block_multiple_of", 256)
    return -(-scaled // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Family:
    """The conversion rules of one model family.

    Attributes:
        arch: The name of the architecture in GGUF.
        names: Name in a layer of the checkpoint -> name in a block of the GGUF file.
        top: Name in the checkpoint -> name in GGUF, for tensors outside layers.
        is_encoder: The model is an encoder; see `encoders`.
        windows: GGUF can express attention windows for this architecture.
        activations: The allowed names of the activation in config.json.
        added_one: GGUF stores the weights of norms plus 1.
        orders: Returns the orders of rows and columns that differ in GGUF.
        fused_experts: Each projection of all experts is one tensor; see `fused_experts`.
        methods: Quantisation methods whose codes are copied without requantisation.
        rotary: YaRN settings that `extra` converts.
        extra: Returns the additional keys of this family, without the prefix of the architecture.
        width: Returns the width of the dense feed-forward blocks; 0 if the model has none.
    """

    arch: str
    names: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    is_encoder: bool = False
    windows: bool = False
    activations: tuple[str, ...] = ("silu", "swish")
    added_one: bool = False
    orders: Callable[[CheckpointSettings], Orders] = unchanged
    fused_experts: bool = False
    methods: tuple[str, ...] = ()
    rotary: tuple[str, ...] = ()
    extra: Callable[[CheckpointSettings], Keys] = _nothing
    width: Callable[[CheckpointSettings], int] = _width


def _qwen2(settings: CheckpointSettings) -> Keys:
    settings.require("use_sliding_window", None, False)
    return {}


def _experts(settings: CheckpointSettings) -> Keys:
    settings.require("use_sliding_window", None, False)
    settings.require("decoder_sparse_step", None, 1)
    settings.require("mlp_only_layers", None, [])
    keys: Keys = {
        "expert_count": settings.integer(
            "num_experts" if settings.get("num_experts") else "num_local_experts"
        ),
        "expert_used_count": settings.integer("num_experts_per_tok"),
        "expert_feed_forward_length": settings.integer("moe_intermediate_size"),
    }
    shared = settings.get("shared_expert_intermediate_size")
    if shared is None:  # Qwen3: llama.cpp always normalises the expert weights
        settings.require("norm_topk_prob", True)
    else:  # Qwen2 does not normalise the expert weights; Qwen3-Next normalises their sum to 1
        settings.require("norm_topk_prob", None, settings.get("linear_num_key_heads") is not None)
        keys["expert_shared_feed_forward_length"] = settings.integer(
            "shared_expert_intermediate_size"
        )
    return keys


def _qwen3_next(settings: CheckpointSettings) -> Keys:
    return _experts(settings) | delta_nets.delta_keys(settings)


def _qwen3_5(settings: CheckpointSettings) -> Keys:
    settings.require("attn_output_gate", None, True)
    return delta_nets.delta_keys(settings) | delta_nets.sections(settings)


def _qwen3_5_moe(settings: CheckpointSettings) -> Keys:
    return _experts(settings) | _qwen3_5(settings)


def _mixtral(settings: CheckpointSettings) -> Keys:
    return {
        "expert_count": settings.integer("num_local_experts"),
        "expert_used_count": settings.integer("num_experts_per_tok"),
    }


def _granite(settings: CheckpointSettings) -> Keys:
    return {
        "embedding_scale": settings.number("embedding_multiplier"),
        "residual_scale": settings.number("residual_multiplier"),
        "attention.scale": settings.number("attention_multiplier"),
        "logit_scale": settings.number("logits_scaling"),
    }


def _smollm3(settings: CheckpointSettings) -> Keys:
    settings.require("use_sliding_window", None, False)
    every_fourth = [int((i + 1) % 4 != 0) for i in range(settings.layers)]
    settings.require("no_rope_layers", None, every_fourth)
    return {}


def _sliding(settings: CheckpointSettings) -> Keys:
    window = settings.get("sliding_window")
    return {"attention.sliding_window": int(window)} if window else {}


def _every_fourth_global(settings: CheckpointSettings) -> Keys:
    keys = _sliding(settings)
    if keys:
        wanted = ["full_attention" if i % 4 == 3 else "sliding_attention"
                  for i in range(settings.layers)]  # fmt: skip
        settings.require("layer_types", wanted)
        keys["attention.sliding_window_pattern"] = np.array(
            [kind == "sliding_attention" for kind in wanted]
        )
    return keys


def _lfm2(settings: CheckpointSettings) -> Keys:
    kinds = settings.get("layer_types")
    if kinds is None:
        full = set(settings.get("full_attn_idxs") or [])
        kinds = ["full_attention" if i in full else "conv" for i in range(settings.layers)]
    heads = settings.integer("num_key_value_heads")
    settings.require("conv_bias", None, False)
    return {
        "shortconv.l_cache": settings.integer("conv_L_cache"),
        "attention.head_count_kv": np.array(
            [heads if kind == "full_attention" else 0 for kind in kinds], np.int32
        ),
    }


def _gemma(settings: CheckpointSettings) -> Keys:
    settings.require("use_bidirectional_attention", None, False)
    return {}


def _gemma2(settings: CheckpointSettings) -> Keys:
    _require_slides(settings, 2)
    _require_scale(settings, LARGEST["gemma2"])
    return _sliding(settings) | {
        "attn_logit_softcapping": settings.number("attn_logit_softcapping"),
        "final_logit_softcapping": settings.number("final_logit_softcapping"),
    }


def _gemma3(settings: CheckpointSettings) -> Keys:
    settings.require("attn_logit_softcapping", None)
    settings.require("use_bidirectional_attention", None, False)
    settings.require("sliding_window_pattern", None, 6)
    _require_slides(settings, 6)
    _require_scale(settings, LARGEST["gemma3"])
    keys = _sliding(settings)
    if settings.get("final_logit_softcapping") is not None:
        keys["final_logit_softcapping"] = settings.number("final_logit_softcapping")
    local = settings.get("rope_parameters") or {}
    base = local.get("sliding_attention", {}).get("rope_theta") or settings.number(
        "rope_local_base_freq", LOCAL_BASE
    )
    return keys if base == LOCAL_BASE else keys | {"rope.freq_base_swa": float(base)}


def _require_slides(settings: CheckpointSettings, period: int) -> None:
    """Require full attention in every *period*-th layer and a window in the others.

    GGUF has no list of sliding-window layers for this architecture.
    """
    wanted = ["full_attention" if (i + 1) % period == 0 else "sliding_attention"
              for i in range(settings.layers)]  # fmt: skip
    settings.require("layer_types", None, wanted)


def _require_scale(settings: CheckpointSettings, largest: int) -> None:
    """Raise an error unless the attention scale follows from the dimensions of the model.

    Args:
        largest: The number of layers of the model that scales by width / heads instead of by the
            head width.
    """
    each = settings.integer("hidden_size") // settings.integer("num_attention_heads")
    wanted = each if settings.layers == largest else settings.integer("head_dim", each)
    settings.require("query_pre_attn_scalar", wanted, *([None] if wanted == 256 else []))


def _gpt_oss(settings: CheckpointSettings) -> Keys:
    settings.require("swiglu_alpha", None, 1.702)
    settings.require("swiglu_limit", None, 7.0)
    _require_slides(settings, 2)
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if rope.get("truncate", True):
        raise ModelFormatError(
            "config.json: truncate of the rotary settings is not false, which GGUF cannot express "
            "for gpt-oss",
            remedy="use the released config.json of gpt-oss, or a released GGUF file",
        )
    return _sliding(settings) | {
        "expert_count": settings.integer("num_local_experts"),
        "expert_used_count": settings.integer(
            "num_experts_per_tok" if settings.get("num_experts_per_tok") else "experts_per_token"
        ),
        "expert_feed_forward_length": settings.integer("intermediate_size"),
    }


def _ministral3(settings: CheckpointSettings) -> Keys:
    settings.require("sliding_window", None)
    rope = (settings.get("rope_parameters") or {}) | (settings.get("rope_scaling") or {})
    slope, all_dim = rope.get("llama_4_scaling_beta"), rope.get("mscale_all_dim")
    if rope.get("rope_type", rope.get("type")) != "yarn":
        return {}
    if not all_dim or rope.get("mscale", all_dim) != all_dim:
        raise ModelFormatError(
            f"config.json: mscale is {rope.get('mscale')!r:.20}, mscale_all_dim {all_dim!r:.20}: "
            "GGUF has one factor for both",
            remedy="use the released config.json of the model",
        )
    keys: Keys = {"rope.scaling.yarn_log_multiplier": float(all_dim)}
    return keys | ({"attention.temperature_scale": float(slope)} if slope else {})


# model_type in config.json -> family.
FAMILIES = {
    "llama": Family("llama", orders=permuted),
    "mistral": Family("llama", orders=permuted),
    "mixtral": Family("llama", _MIXTRAL, orders=permuted, extra=_mixtral),
    "qwen2": Family("qwen2", extra=_qwen2),
    "qwen2_moe": Family("qwen2moe", _EXPERTS, extra=_experts),
    "qwen3": Family("qwen3", extra=_qwen2),
    "qwen3_moe": Family("qwen3moe", _EXPERTS, extra=_experts),
    "qwen3_next": Family("qwen3next", _HYBRID, added_one=True, orders=delta_nets.grouped_heads,
                         extra=_qwen3_next, width=_width_if_any),
    "qwen3_5_text": Family("qwen35", _HYBRID, added_one=True, orders=delta_nets.tiled_heads,
                           extra=_qwen3_5),
    "qwen3_5_moe_text": Family("qwen35moe", _HYBRID, added_one=True,
                               orders=delta_nets.tiled_heads, extra=_qwen3_5_moe,
                               width=_width_if_any),
    "granite": Family("granite", orders=permuted, extra=_granite),
    "smollm3": Family("smollm3", orders=permuted, extra=_smollm3),
    "olmo2": Family("olmo2", _NORMS_AFTER),
    "olmo3": Family("olmo2", _NORMS_AFTER, windows=True, extra=_every_fourth_global),
    "glm4": Family("glm4", _NORMS_AROUND),
    "exaone4": Family("exaone4", _NORMS_AFTER, windows=True, extra=_every_fourth_global),
    "phi3": Family("phi3", _FUSED, windows=True, extra=_sliding),
    "lfm2": Family("lfm2", _CONVOLUTIONS, extra=_lfm2, width=_lfm2_width),
    "gemma": Family("gemma", activations=GELU, added_one=True, extra=_gemma),
    "gemma2": Family("gemma2", _GEMMA, windows=True, activations=GELU, added_one=True,
                     extra=_gemma2),
    "gemma3_text": Family("gemma3", _GEMMA, windows=True, activations=GELU, added_one=True,
                          extra=_gemma3),
    "gpt_oss": Family("gpt-oss", _GPT_OSS, windows=True, fused_experts=True, methods=("mxfp4",),
                      rotary=("truncate",), extra=_gpt_oss),
    "bert": Family("bert", encoders.BERT, top=encoders.TOP, is_encoder=True, activations=("gelu",)),
    "nomic_bert": Family("nomic-bert", encoders.NOMIC, top=encoders.TOP, is_encoder=True,
                         activations=("silu", "swish", "swiglu"), extra=encoders.nomic_keys),
    "ministral3": Family("mistral3", orders=permuted, rotary=("mscale", "mscale_all_dim"),
                         extra=_ministral3),
}  # fmt: skip
