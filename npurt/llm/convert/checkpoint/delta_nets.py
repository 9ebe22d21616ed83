"""Convert the gated delta nets of Qwen3-Next and Qwen3.5: names, keys and the order of heads.

In the checkpoint, the v heads of one k head are adjacent.  For Qwen3.5, GGUF has the first v head
of every k head, then the second v head of every k head, and so on.  For Qwen3-Next, GGUF keeps the
order of heads; but q, k, v and z, which the checkpoint has in one matrix grouped by k head, become
separate tensors.
Sources: transformers models/qwen3_next, models/qwen3_5, Apache-2.0; llama.cpp conversion/qwen.py,
MIT.
"""

from typing import Any

import numpy as np

from npurt.llm.arch.blocks import joined_rows
from npurt.llm.convert.checkpoint.orders import Order, Orders
from npurt.llm.convert.checkpoint.settings import CheckpointSettings
from npurt.llm.file.config import DeltaHeads

NAMES = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
SECTIONS = [11, 11, 10]  # default numbers of frequencies for time, image rows and image columns


def delta_keys(settings: CheckpointSettings) -> dict[str, Any]:
    """Return the metadata keys of the delta nets, with the list of the layers that have one."""
    net = _net(settings)
    interval = settings.integer("full_attention_interval", 4)
    kinds = settings.get("layer_types", [])
    if "full_attention" in kinds:
        interval = kinds.index("full_attention") + 1
    wanted = ["linear_attention" if (i + 1) % interval else "full_attention"
              for i in range(settings.layers)]  # fmt: skip
    settings.require("layer_types", None, wanted)
    return {
        "ssm.conv_kernel": net.kernel_size,
        "ssm.state_size": net.width,
        "ssm.group_count": net.k_heads,
        "ssm.time_step_rank": net.heads,
        "ssm.inner_size": net.heads * net.width,
        "full_attention_interval": interval,
        "attention.recurrent_layers": np.array([kind == "linear_attention" for kind in wanted]),
    }


def sections(settings: CheckpointSettings) -> dict[str, Any]:
    """Return the metadata key of the M-RoPE sections, which have no effect on text."""
    given = (settings.get("rope_parameters") or {}).get("mrope_section", SECTIONS)
    return {"rope.dimension_sections": np.array([*given, 0][:4], np.int32)}


def tiled_heads(settings: CheckpointSettings) -> Orders:
    """Return the orders of rows and columns in a Qwen3.5 model."""
    net = _net(settings)
    heads = np.arange(net.heads).reshape(net.k_heads, -1).T.reshape(-1)
    inner = net.heads * net.width
    values = np.arange(inner).reshape(net.heads, net.width)[heads].reshape(-1)
    keys = net.channels - inner
    each, channels = Order(net.heads, heads), np.append(np.arange(keys), keys + values)
    return {
        **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"), each),
        **dict.fromkeys(("attn_qkv", "ssm_conv1d"), Order(net.channels, channels)),
        "attn_gate": Order(inner, values),
        "ssm_out": Order(inner, values, axis=1),
    }


def grouped_heads(settings: CheckpointSettings) -> Orders:
    """Return the orders of rows in a Qwen3-Next model."""
    net = _net(settings)
    rows = joined_rows(net)
    total = net.channels + net.heads * net.width
    return {name: Order(total, rows[name]) for name in ("attn_qkv", "attn_gate")}


def _net(settings: CheckpointSettings) -> DeltaHeads:
    width = settings.integer("linear_key_head_dim")
    settings.require("linear_value_head_dim", width)
    heads, k_heads = (settings.integer(f"linear_num_{part}_heads") for part in ("value", "key"))
    return DeltaHeads(heads, k_heads, width, settings.integer("linear_conv_kernel_dim"))
