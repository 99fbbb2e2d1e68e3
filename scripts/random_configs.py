"""Random small configurations of the decoder families that transformers has.

`drawn(family, draw)` starts from the default configuration of a family and replaces each key that it knows by a
small random value: sizes, switches, windows, scalings, kinds of layers. A key is known by its name, so a new family
needs lines here only where its sizes depend on each other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 256
CONTEXT = 512

Draw = np.random.Generator
Values = dict[str, Any]

WIDTHS = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_dim", "backbone_hidden_size")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
HEADS = ("num_attention_heads", "n_head", "n_heads", "swa_num_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "num_query_groups", "swa_num_key_value_heads")
HEAD_SIZES = ("head_dim", "kv_channels", "swa_head_dim")
CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "context_length", "model_max_length")
VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size")
INNER = (
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "intermediate_size_mlp",
    "dense_intermediate_size",
    "prefix_dense_intermediate_size",
    "ffn_hidden_size",
    "expert_ffn_hidden_size",
    "shared_intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_experts_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
USED_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers")
WINDOWS = ("sliding_window", "attention_window_size", "sliding_window_size", "attention_chunk_size")
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")

SWITCHES = (
    "tie_word_embeddings",
    "attention_bias",
    "attention_out_bias",
    "mlp_bias",
    "use_bias",
    "bias",
    "qkv_bias",
    "use_qkv_bias",
    "conv_bias",
    "lm_head_bias",
    "use_qk_norm",
    "qk_layernorm",
    "norm_topk_prob",
    "use_parallel_residual",
    "parallel_attn",
    "multi_query",
    "new_decoder_architecture",
    "alibi",
    "use_expert_bias",
    "mup_enabled",
    "use_post_norm",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "do_layer_norm_before",
    "attn_temperature_tuning",
    "attention_k_eq_v",
    "use_sandwich_norm",
    "use_attention_gate",
    "mamba_conv_bias",
    "mamba_proj_bias",
    "use_conv_bias",
    "projectors_bias",
)
"""Flags that differ from their default at random."""

FLIPPED = 0.2
"""How often a flag differs from its default. A model with several flags that no published one has is refused."""

FACTORS = {
    "embedding_multiplier": (0.5, 3.0, 12.0),
    "logits_scaling": (0.5, 2.0, 8.0),
    "residual_multiplier": (0.2, 0.5, 1.0),
    "attention_multiplier": (0.05, 0.2, 0.5),
    "logit_scale": (0.0625, 0.5, 2.0),
    "routed_scaling_factor": (1.0, 1.8, 2.5),
    "router_scaling_factor": (1.0, 1.8, 2.5),
    "moe_routed_scaling_factor": (1.0, 1.8, 2.5),
    "route_scale": (1.0, 1.8, 2.5),
    "attention_value_scale": (0.707, 1.0, 1.3),
    "final_logit_softcapping": (5.0, 15.0, 30.0),
    "attn_logit_softcapping": (2.0, 20.0, 50.0),
    "moe_router_logit_softcapping": (0.0, 2.0),
    "query_pre_attn_scalar": (8, 24, 64),
    "clip_qkv": (None, 1.5),
    "swiglu_limit": (1.5, 7.0),
    "swiglu_alpha": (1.702, 1.2),
    "partial_rotary_factor": (0.25, 0.5),
    "floor_scale": (4, 16),
    "attn_scale": (0.1, 0.3),
}
"""Numbers, each with the values that it may have; a number that is null by default stays null half of the time."""

SMALL = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 8,
    "index_topk_blocks": 2,
    "index_block_size": 8,
    "index_kpool": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_num_heads": 4,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 8,
    "num_mem_blocks": 1,
    "adapter_rank": 8,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "chunk_size": 16,
    "time_step_rank": 8,
    "mamba_dt_rank": 8,
    "num_nextn_predict_layers": 0,
    "num_mtp_layers": 0,
    "o_groups": 2,
    "o_lora_rank": 8,
    "hc_lowrank": 8,
    "ple_embed_dim": 16,
    "ngram_vocab_size_base": 100,
    "split_ngram_parts": 1,
    "gated_norm_rank": 8,
    "router_hidden_size": 16,
    "d_rel": 8,
    "rel_extent": 16,
    "loop_gate_rank": 8,
    "num_centroids": 16,
    "centroid_intermediate_top_k": 4,
    "keep_window_size": 16,
    "rotary_dim": 8,
    "num_kv_shared_layers": 0,
}
"""Sizes that need not vary, because the parts that they belong to do not run yet."""


def pick(draw: Draw, choices: Any) -> Any:
    """Return one of several values, as a plain Python value."""
    choices = list(choices)
    return choices[int(draw.integers(len(choices)))]


class Shape:
    """The sizes that several keys of a configuration share."""

    def __init__(self, draw: Draw, divides: bool) -> None:
        """Draw sizes; with `divides`, the width is heads times head size."""
        self.heads = pick(draw, (2, 3, 4, 6))
        self.kv_heads = pick(draw, [n for n in (1, 2, 3, 4, 6) if self.heads % n == 0])
        self.head_size = pick(draw, (8, 16, 24, 32))
        self.layers = pick(draw, (2, 3, 4, 5))
        self.width = self.heads * self.head_size if divides else pick(draw, (32, 48, 64, 80))
        self.experts = pick(draw, (4, 6, 8))
        self.used = pick(draw, (1, 2, 3))


def inner_size(draw: Draw) -> int:
    """Return a random inner size of a feed-forward part."""
    return 8 * pick(draw, range(3, 16))


def rope(old: Values, draw: Draw, head_size: int, latent_head: bool = False) -> Values:  # noqa: FBT001, FBT002
    """Return a drawn form of the object `rope_parameters`, of latent attention or of another one."""
    if any(isinstance(value, dict) for value in old.values()):
        return {kind: rope(value, draw, head_size) if isinstance(value, dict) else value for kind, value in old.items()}
    if not old:
        return old
    new = {key: value for key, value in old.items() if key in ("rope_type", "rope_theta", "partial_rotary_factor")}
    new["rope_theta"] = pick(draw, (1e3, 1e4, 5e5))
    if "partial_rotary_factor" in new:
        fits = [part for part in (0.25, 0.5, 0.75, 1.0) if int(head_size * part) % 2 == 0 and head_size * part >= 2]
        new["partial_rotary_factor"] = pick(draw, fits)
    kind = new.get("rope_type", "default")
    if kind == "default" and draw.random() < 0.3:
        kind = pick(draw, ("linear", "llama3", "yarn", "dynamic"))
    new["rope_type"] = kind
    if kind in ("linear", "llama3", "yarn", "dynamic"):
        new["factor"] = pick(draw, (2.0, 4.0, 8.0))
    if kind in ("llama3", "yarn"):
        new["original_max_position_embeddings"] = pick(draw, (32, 64))
    if kind == "llama3":
        new |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "yarn":
        new |= {"beta_fast": 32.0, "beta_slow": 1.0} if draw.random() < 0.5 else {"attention_factor": 1.1}
        new |= {"truncate": old["truncate"]} if "truncate" in old else {}
    if kind == "yarn" and latent_head and "attention_factor" not in new and draw.random() < 0.7:
        # The first scale is that of rotated components, the second one that of scores; published ones are equal.
        of_all = pick(draw, (1.0, 0.707))
        new |= {"mscale": pick(draw, (of_all, 1.0)), "mscale_all_dim": of_all}
    if "llama_4_scaling_beta" in old:
        new["llama_4_scaling_beta"] = pick(draw, (0.1, 0.4))
        if "attention_factor" not in new:
            # The published ones are 1; the converter needs the second one and takes the first one for 1.
            new |= {"mscale": 1.0, "mscale_all_dim": pick(draw, (1.0, 0.5))}
    return new


def cut(values: list, draw: Draw, layers: int) -> list:
    """Return a list of one entry per layer, with the words of the default in a random order and each at least
    once where there is room."""
    words = sorted(set(values), key=str)
    chosen = [words[i % len(words)] for i in range(layers)]
    return [chosen[i] for i in draw.permutation(layers)]


def value_of(key: str, old: Any, draw: Draw, shape: Shape, all_layers: int | None) -> Any:  # noqa: PLR0911, PLR0912
    """Return the drawn value of a key; the old one if the key is not known."""
    for keys, value in (
        (WIDTHS, shape.width),
        (LAYERS, shape.layers),
        (HEADS, shape.heads),
        (CONTEXTS, CONTEXT),
        (EXPERTS, shape.experts),
        (USED_EXPERTS, shape.used),
    ):
        if key in keys:
            return value
    if key in VOCABULARIES:
        return old if old is None else VOCABULARY
    if key in KV_HEADS:
        return old if old == 1 else shape.kv_heads
    if key in HEAD_SIZES:
        return shape.head_size
    if key in INNER:
        return old if old in (None, 0) and draw.random() < 0.5 else inner_size(draw)
    if key in SHARED_EXPERTS:
        return pick(draw, (1, 2))
    if key in DENSE_FIRST:
        return pick(draw, range(min(2, shape.layers - 1) + 1))
    if key in WINDOWS:
        return old if not old and draw.random() < 0.7 else pick(draw, (4, 8, 16))
    if key in EPSILONS:
        # A family states the epsilon of one kind of norm; null says that it has not the other.
        return old if old is None else pick(draw, (1e-6, 1e-5, 1e-3))
    if key in SWITCHES and isinstance(old, bool):
        return old != (draw.random() < FLIPPED)
    if key in FACTORS and not isinstance(old, dict):
        return None if old is None and draw.random() < 0.5 else pick(draw, FACTORS[key])
    if key in SMALL and old is not None:
        return SMALL[key]
    if key == "rope_parameters" and isinstance(old, dict):
        return rope(old, draw, shape.head_size)
    if key in ("bos_token_id", "eos_token_id", "pad_token_id") and old is not None:
        return {"bos_token_id": 1, "eos_token_id": 2}.get(key, 0)
    if isinstance(old, list) and old and len(old) == all_layers:
        return cut(old, draw, shape.layers)
    return old


def shrunk(family: str, old: Values, draw: Draw, multiple: bool) -> Values:
    """Return a small random form of the values of a default configuration; with `multiple`, the width is one of the
    number of heads."""
    counts = [old[key] for key in LAYERS if isinstance(old.get(key), int)]
    has_head_size = any(old.get(key) is not None for key in HEAD_SIZES) and family not in DIVIDES
    has_head_size |= family in NEEDS_HEAD_SIZE
    shape = Shape(draw, divides=not has_head_size)
    if multiple:
        shape.width += -shape.width % shape.heads
    new = {key: value_of(key, value, draw, shape, counts[0] if counts else None) for key, value in old.items()}
    if not has_head_size:
        new |= {key: old[key] for key in HEAD_SIZES if key in old and old[key] is None}
    for key in ("n_group", "num_expert_group", "topk_group"):
        if old.get(key) is not None:
            new[key] = 1 if key == "topk_group" else pick(draw, (1, 2))
    if new.get("n_group") == 2 or new.get("num_expert_group") == 2:
        # Groups are chosen by their two best experts.
        new |= {key: pick(draw, (4, 8)) for key in EXPERTS if key in old}
        new |= {key: min(shape.used, 2) for key in USED_EXPERTS if key in old}
    table = new.get("rope_parameters")
    if "rope_theta" in old and isinstance(table, dict) and "rope_theta" in table:
        # The class also keeps the older key.
        new["rope_theta"] = table["rope_theta"]
    if "qk_rope_head_dim" in old:
        latent(new, shape, draw)
        if isinstance(table, dict) and not any(isinstance(value, dict) for value in table.values()):
            new["rope_parameters"] = rope(old["rope_parameters"], draw, shape.head_size, latent_head=True)
    if family in ADJUST:
        ADJUST[family](new, shape, draw)
    return new


Adjustment = Callable[[Values, Shape, Draw], None]


def latent(values: Values, shape: Shape, draw: Draw) -> None:
    """Latent attention has as many KV heads as heads, and `head_dim` is the rotated part."""
    values["num_key_value_heads"] = shape.heads
    values |= {
        "kv_lora_rank": pick(draw, (12, 24, 32)),
        "qk_nope_head_dim": pick(draw, (6, 16)),
        "qk_rope_head_dim": pick(draw, (8, 12)),
        "v_head_dim": pick(draw, (10, 16)),
    }
    if values.get("q_lora_rank") is not None or draw.random() < 0.3:  # noqa: PLR2004
        values["q_lora_rank"] = pick(draw, (None, 20, 24)) if draw.random() < 0.5 else 24
    if "rope_interleave" in values:
        values["rope_interleave"] = bool(draw.random() < 0.6)
    if "qk_head_dim" in values:
        values["qk_head_dim"] = values["qk_nope_head_dim"] + values["qk_rope_head_dim"]
    if values.get("head_dim") is not None:
        values["head_dim"] = values["qk_rope_head_dim"]


def mamba2_heads(values: Values, shape: Shape, draw: Draw) -> None:
    """The heads of Mamba-2 divide its inner size, which is twice the width, and form groups."""
    names = {"mamba_n_heads": "mamba_d_head", "mamba_num_heads": "mamba_head_dim", "num_heads": "head_dim"}
    for heads, size in names.items():
        if heads in values and size in values:
            values |= {heads: 4, size: shape.width // 2}
    if "mamba_d_ssm" in values:
        values["mamba_d_ssm"] = 2 * shape.width
    for key in ("mamba_n_groups", "n_groups"):
        if key in values:
            values[key] = pick(draw, (1, 2))
    for key in ("mamba_d_state", "ssm_state_size", "state_size"):
        if key in values:
            values[key] = pick(draw, (8, 16, 48))
    for key in ("mamba_d_conv", "conv_kernel"):
        if key in values:
            values[key] = pick(draw, (2, 4, 4))
    if draw.random() < FLIPPED:
        values["time_step_limit"] = pick(draw, ([0.0, 0.5], [0.25, 2.0]))


def granitemoehybrid(values: Values, shape: Shape, draw: Draw) -> None:
    """Granite 4 has attention in some layers, which small models rotate, and experts or none."""
    mamba2_heads(values, shape, draw)
    values["layer_types"] = cut(["linear_attention", "full_attention"], draw, shape.layers)
    values["position_embedding_type"] = pick(draw, (None, "nope", "rope"))
    if draw.random() < 0.3:
        values["num_local_experts"] = 0
    if draw.random() < 0.2:
        values["layer_types"] = ["full_attention"] * shape.layers


def bamba(values: Values, shape: Shape, draw: Draw) -> None:
    """Bamba names the layers with attention."""
    mamba2_heads(values, shape, draw)
    values["attn_layer_indices"] = sorted({int(draw.integers(shape.layers)) for _ in range(2)})


def falcon_h1(values: Values, shape: Shape, draw: Draw) -> None:
    """Falcon-H1 has a factor for each part, and sometimes a norm of groups."""
    mamba2_heads(values, shape, draw)
    values |= {"mlp_multipliers": [pick(draw, (0.5, 1.0, 1.5)) for _ in range(2)]}
    values |= {"ssm_multipliers": [pick(draw, (0.5, 1.0, 1.5)) for _ in range(5)]}
    for part in ("key", "attention_in", "attention_out", "ssm_in", "ssm_out", "lm_head"):
        values[f"{part}_multiplier"] = pick(draw, (0.5, 1.0, 1.5))
    values |= {"mamba_rms_norm": bool(draw.integers(2)), "mamba_norm_before_gate": bool(draw.integers(2))}


def nemotron_h(values: Values, shape: Shape, draw: Draw) -> None:
    """A layer of Nemotron-H has one part; experts may run on narrower rows."""
    mamba2_heads(values, shape, draw)
    shape.layers = pick(draw, (4, 5, 6))
    mlps = pick(draw, (["mlp"], ["moe"], ["mlp", "moe"]))
    values["layers_block_type"] = cut(["linear_attention", "full_attention", *mlps], draw, shape.layers)
    values["moe_latent_size"] = pick(draw, (None, 24))
    values.pop("num_hidden_layers", None)


def zamba2(values: Values, shape: Shape, draw: Draw) -> None:
    """The attention of Zamba 2 reads rows twice as wide as the hidden ones, and layers share blocks in turn."""
    mamba2_heads(values, shape, draw)
    values.pop("time_step_limit", None)
    attention = pick(draw, [n for n in (1, 2, 4, 5) if shape.width % n == 0])
    sizes = {"attention_hidden_size": 2 * shape.width, "attention_head_dim": 2 * shape.width // attention}
    values |= {"num_attention_heads": attention, "num_key_value_heads": pick(draw, (1, attention))} | sizes
    values |= {"kv_channels": shape.width // attention, "num_query_groups": attention}
    heads = pick(draw, [n for n in (2, 4) if 2 * shape.width % n == 0])
    values |= {"n_mamba_heads": heads, "mamba_expand": 2, "mamba_ngroups": pick(draw, (1, 2))}
    values["mamba_headdim"] = 2 * shape.width // heads
    # Without tied embeddings, transformers ties no block, either.
    values["tie_word_embeddings"] = draw.random() < 0.9  # noqa: PLR2004
    values["use_shared_attention_adapter"] = bool(draw.integers(2))
    if values["use_shared_attention_adapter"]:
        # The adapters of keys are as wide as those of queries.
        values["num_key_value_heads"] = attention
    values |= {"use_mem_rope": bool(draw.integers(2)), "add_bias_linear": draw.random() < FLIPPED}
    values |= {"num_mem_blocks": pick(draw, (1, 2, 2, 3)), "num_hidden_layers": pick(draw, (4, 5, 6))}
    hybrid = {1, 3} | {int(draw.integers(values["num_hidden_layers"])) for _ in range(2)}
    kinds = ["hybrid" if i in hybrid else "linear_attention" for i in range(values["num_hidden_layers"])]
    values["layers_block_type"] = kinds
    values["time_step_min"] = pick(draw, (0.001, 0.05))
    values.pop("hybrid_layer_ids", None)


def shared_layers(values: Values, shape: Shape, draw: Draw) -> None:
    """Last layers share keys and values with earlier ones, of which there must be one of each kind."""
    kinds = values["layer_types"]
    most = next(n for n in range(shape.layers) if set(kinds[: shape.layers - n]) != set(kinds[: shape.layers - n - 1]))
    values["num_kv_shared_layers"] = pick(draw, (0, most))


def gemma3n(values: Values, shape: Shape, draw: Draw) -> None:
    """Some layers cut their gates, and tables of embeddings per layer may be shorter than that of tokens."""
    shared_layers(values, shape, draw)
    values["activation_sparsity_pattern"] = [pick(draw, (0.0, 0.5, 0.95)) for _ in range(shape.layers)]
    values |= {"vocab_size_per_layer_input": pick(draw, (200, VOCABULARY)), "laurel_rank": pick(draw, (4, 8))}
    values["altup_correct_scale"] = draw.random() < 0.7
    values["intermediate_size"] = [inner_size(draw) for _ in range(shape.layers)]


def gemma4(values: Values, shape: Shape, draw: Draw) -> None:
    """Global layers have larger heads and other KV heads; experts and embeddings per layer are optional."""
    kinds = values["layer_types"]
    kinds[-1] = "full_attention"
    own: Values = {"head_dim": 2 * shape.head_size}
    if draw.random() < 0.5:
        own["num_key_value_heads"] = 1
    values["per_layer_config"] = {f"{i:02}": own for i, kind in enumerate(kinds) if kind == "full_attention"}
    shared_layers(values, shape, draw)
    if "hidden_size_per_layer_input" in values:
        values["hidden_size_per_layer_input"] = pick(draw, (0, 8))
    if "use_double_wide_mlp" in values:
        values["use_double_wide_mlp"] = draw.random() < 0.5
    if "enable_moe_block" in values and draw.random() < 0.3:
        sizes = {"num_experts": shape.experts, "top_k_experts": shape.used, "moe_intermediate_size": inner_size(draw)}
        values |= {"enable_moe_block": True, **sizes}


def two_rope_kinds(values: Values, shape: Shape, draw: Draw) -> None:
    """A table of RoPE for each kind of layer."""
    plain = {"rope_type": "default", "rope_theta": 1e4}
    values["layer_types"] = cut(["full_attention", "sliding_attention"], draw, shape.layers)
    values["rope_parameters"] = {kind: plain for kind in ("full_attention", "sliding_attention")}


def lfm2_layers(values: Values, shape: Shape, draw: Draw) -> None:
    """LFM2 has short convolutions, and attention in some layers."""
    values["layer_types"] = cut(["conv", "full_attention"], draw, shape.layers)
    values.pop("full_attn_idxs", None)


def lfm3(values: Values, shape: Shape, draw: Draw) -> None:
    """LFM3 has short convolutions, sliding windows and full attention, whose frequencies are proportional."""
    values["layer_types"] = cut(["conv", "sliding_attention", "full_attention"], draw, shape.layers)
    values |= {"sliding_window": pick(draw, (4, 8, 16)), "conv_L_cache": pick(draw, (3, 7))}
    values["conv_bias"] = draw.random() < 0.1
    kind = pick(draw, ("default", "proportional", "proportional"))
    table = {"rope_type": kind, "rope_theta": pick(draw, (1e4, 1e6))}
    if kind == "proportional":
        table |= {"partial_rotary_factor": pick(draw, (0.25, 0.5)), "factor": pick(draw, (1.0, 2.0))}
    values["rope_parameters"] = {
        "full_attention": table,
        "sliding_attention": {"rope_type": "default", "rope_theta": pick(draw, (1e3, 1e4))},
    }


def phimoe(values: Values, shape: Shape, draw: Draw) -> None:
    """PhiMoE always chooses two experts, and its longrope states factors of short and long texts."""
    values |= {"num_experts_per_tok": 2, "router_jitter_noise": pick(draw, (0.01, 0.02, 0.05))}
    table = {"rope_type": "default", "rope_theta": pick(draw, (1e3, 1e4))}
    if draw.random() < 0.7:
        # The width is heads times head size.
        pairs = shape.width // shape.heads // 2
        short, long = ([float(x) for x in draw.uniform(1.0, most, pairs)] for most in (1.5, 8.0))
        table |= {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        table |= {"short_mscale": 1.2, "long_mscale": 1.3, "original_max_position_embeddings": 256}
    values["rope_parameters"] = table


def step3p5(values: Values, shape: Shape, draw: Draw) -> None:
    """Windows of Step 3.7 have heads of their own number, and layers have bounds of their own."""
    kinds = cut(["full_attention", "sliding_attention"], draw, shape.layers)
    values |= {"layer_types": kinds, "mlp_layer_types": cut(["dense", "sparse", "sparse"], draw, shape.layers)}
    values |= {"sliding_window": pick(draw, (4, 8, 16)), "share_expert_dim": inner_size(draw)}
    values |= {"num_sliding_attention_heads": shape.kv_heads * pick(draw, (1, 2, 3))}
    values |= {"moe_router_scaling_factor": pick(draw, (1.0, 3.0)), "query_pre_attn_scalar": None}
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        limits = [pick(draw, (None, 0.0, 0.3, 1.5)) for _ in range(shape.layers)]
        values[key] = pick(draw, (None, limits, limits))
    values["gating"] = pick(draw, (True, "per-head"))
    values["mlp_bias"] = draw.random() < 0.1
    values["rope_parameters"] = {
        kind: {
            "rope_type": "default",
            "rope_theta": pick(draw, (1e3, 1e4, 5e5)),
            "partial_rotary_factor": pick(draw, (0.5, 1.0)),
        }
        for kind in ("full_attention", "sliding_attention")
    }
    for key in ("per_layer_config", "mtp_layer_types", "mtp_mlp_layer_types"):
        values.pop(key, None)


def set_to(**fixed: Any) -> Adjustment:
    """Return an adjustment that sets these values."""

    def adjust(values: Values, _shape: Shape, _draw: Draw) -> None:
        values |= fixed

    return adjust


def recurrent_gemma(values: Values, shape: Shape, _draw: Draw) -> None:
    """The recurrent part of RecurrentGemma is as wide as its rows, and its RoPE has no scaling."""
    values["lru_width"] = shape.width
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


def mimo(values: Values, shape: Shape, draw: Draw) -> None:
    """Keys and values of MiMo have heads of different sizes; the heads of some layers share KV heads."""
    values |= {"num_key_value_heads": shape.kv_heads, "v_head_dim": pick(draw, (8, 16))}
    values |= {"num_attention_heads": shape.kv_heads * pick(draw, (2, 4)), "head_dim": pick(draw, (16, 24))}
    for kind in ("full_attention", "sliding_attention"):
        share = 0.5 if values["head_dim"] == 16 else 0.334
        table = {"rope_type": "default", "rope_theta": pick(draw, (1e3, 1e5)), "partial_rotary_factor": share}
        values["rope_parameters"][kind] = table


def dots3_note(values: Values, shape: Shape, draw: Draw) -> None:
    """Windows have heads of other sizes."""
    values["layer_types"] = cut(["indexed_attention", "sliding_attention"], draw, shape.layers)
    own = {"head_dim": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 16}
    windows = [i for i, kind in enumerate(values["layer_types"]) if kind == "sliding_attention"]
    values["per_layer_config"] = {str(i): own for i in windows}


def even_kv_heads(values: Values, _shape: Shape, draw: Draw) -> None:
    """DiffLlama splits its KV heads into halves."""
    values |= {"num_attention_heads": 4, "num_key_value_heads": pick(draw, (2, 4)), "hidden_size": 64}


def dory(values: Values, shape: Shape, _draw: Draw) -> None:
    """The three parts of Dory have all layers together; a file counts attention and feed-forward apart."""
    values |= {"num_hidden_layers": 6, "n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2}
    values["layer_types"] = ["sliding_attention", "mlp", "full_attention", "mlp", "sliding_attention", "mlp"]
    shape.layers = 3


def llama4(values: Values, shape: Shape, draw: Draw) -> None:
    """Llama 4 lists the layers that have experts, and those that have RoPE."""
    values |= {"moe_layers": [i for i in range(shape.layers) if draw.integers(2)], "num_experts_per_tok": 1}
    # The kinds of attention follow from the layers with RoPE.
    values |= {"no_rope_layers": [int(draw.integers(2)) for _ in range(shape.layers)], "layer_types": None}
    values["floor_scale"] = pick(draw, (1, 4, 16))
    if draw.random() < 0.3:
        # What llama.cpp takes without asking.
        values |= {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "attention_bias": False}
        values |= {"attn_temperature_tuning": True, "use_qk_norm": True, "no_rope_layers": None, "moe_layers": None}
        values["interleave_moe_layer_step"] = pick(draw, (1, 2))


def laguna(values: Values, shape: Shape, draw: Draw) -> None:
    """Laguna states the heads of each layer."""
    heads = [shape.kv_heads * pick(draw, (1, 2, 3)) for _ in range(shape.layers)]
    values |= {"num_attention_heads_per_layer": heads, "gating": pick(draw, (True, "per-head", "per-element"))}


def swa_theta(values: Values, shape: Shape, draw: Draw) -> None:
    """Granite's windows state a theta per layer."""
    values["layer_rope_theta"] = [pick(draw, (1e3, 1e4, 5e5)) for _ in range(shape.layers)]


def muse_glimmer_theta(values: Values, shape: Shape, draw: Draw) -> None:
    """Muse Glimmer states a theta per layer: that of the model, or 0 for a layer without RoPE."""
    base = values["rope_parameters"]["rope_theta"]
    values["layer_rope_theta"] = [pick(draw, (0, base)) for _ in range(shape.layers)]


def ernie_experts(values: Values, shape: Shape, draw: Draw) -> None:
    """The layers with experts are a range."""
    values |= {"moe_layer_start_index": pick(draw, (0, 1)), "moe_layer_end_index": shape.layers - 1}


def sparse_layers(values: Values, shape: Shape, draw: Draw) -> None:
    """Some layers have no experts."""
    values["decoder_sparse_step"] = pick(draw, (1, 1, 2))
    values["mlp_only_layers"] = [i for i in range(shape.layers) if draw.random() < 0.2]


def delta_rule(values: Values, shape: Shape, draw: Draw) -> None:
    """Heads of values share those of keys, and layers of both kinds are in any order."""
    keys = pick(draw, (1, 2, 3))
    values |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * pick(draw, (1, 2, 3))}
    values |= {"linear_key_head_dim": pick(draw, (8, 16, 24, 32)), "linear_value_head_dim": pick(draw, (8, 16, 40, 64))}
    values["linear_conv_kernel_dim"] = pick(draw, (2, 3, 4, 5))
    values["layer_types"] = cut(["full_attention", "linear_attention"], draw, shape.layers)
    if "decoder_sparse_step" in values:
        sparse_layers(values, shape, draw)


def kimi_linear(values: Values, shape: Shape, draw: Draw) -> None:
    """Heads of Kimi Delta Attention have one size."""
    values |= {"linear_head_dim": pick(draw, (8, 16, 24)), "linear_num_heads": pick(draw, (1, 2, 3))}
    values["linear_conv_kernel_dim"] = pick(draw, (2, 3, 4))
    values["layer_types"] = cut(["full_attention", "linear_attention"], draw, shape.layers)
    mlp_kinds(values, shape, draw)


def olmo_hybrid(values: Values, shape: Shape, draw: Draw) -> None:
    """Published models of OLMo Hybrid do not rotate. transformers saves the convolution of queries, keys and values in
    three equal parts, so these have equal sizes."""
    delta_rule(values, shape, draw)
    values["linear_num_value_heads"] = values["linear_num_key_heads"]
    values["linear_value_head_dim"] = values["linear_key_head_dim"]
    values["linear_allow_neg_eigval"] = bool(draw.integers(2))
    if draw.random() < 0.5:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": None}


def exaone4(values: Values, shape: Shape, draw: Draw) -> None:
    """Small models of EXAONE 4 have no window, large ones have both kinds of layers."""
    no_window(values, shape, draw)
    if values["sliding_window"] is None:
        values["sliding_window_pattern"] = None


def falcon(values: Values, _shape: Shape, _draw: Draw) -> None:
    """Falcon's new form has two norms before its parallel parts."""
    if values["new_decoder_architecture"]:
        values |= {"num_ln_in_parallel_attn": 2, "parallel_attn": True}


def mistral4(values: Values, _shape: Shape, _draw: Draw) -> None:
    """Half of a head of Mistral 4 is rotated."""
    values |= {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "qk_head_dim": 16, "head_dim": 16}
    values["rope_parameters"]["partial_rotary_factor"] = 0.5


def deepseek_v2(values: Values, shape: Shape, draw: Draw) -> None:
    """Groups of experts, which are chosen by their best expert only if the configuration says so."""
    groups = pick(draw, (None, 1, 2))
    used = 2 if shape.used > 1 else 1
    values |= {"n_group": groups, "topk_group": groups and 1, "num_experts_per_tok": used, "norm_topk_prob": False}
    values |= {"topk_method": pick(draw, ("greedy", "group_limited_greedy" if groups else "greedy"))}
    values |= {"n_routed_experts": pick(draw, (4, 8))}


def mlp_kinds(values: Values, shape: Shape, draw: Draw) -> None:
    """Each layer is dense or has experts, and at least one has them."""
    kinds = [pick(draw, ("dense", "sparse")) for _ in range(shape.layers - 1)]
    values["mlp_layer_types"] = [*kinds, "sparse"]


def axk1(values: Values, shape: Shape, draw: Draw) -> None:
    """Queries always have a latent."""
    mlp_kinds(values, shape, draw)
    values["q_lora_rank"] = values["q_lora_rank"] or 20


def indexer(values: Values, shape: Shape, draw: Draw) -> None:
    """Queries have a latent, of which the indexer makes its own; some layers of GLM share the choice before them."""
    mlp_kinds(values, shape, draw)
    values["q_lora_rank"] = values["q_lora_rank"] or 20
    values |= {"index_topk": pick(draw, (4, 8, 16, 64)), "index_n_heads": pick(draw, (2, 3, 4))}
    values |= {"index_head_dim": pick(draw, (16, 24)), "mlp_bias": False}
    if "indexer_types" in values:
        values["indexer_types"] = ["full"] + [pick(draw, ("full", "shared")) for _ in range(shape.layers - 1)]


def hy_v4(values: Values, shape: Shape, draw: Draw) -> None:
    """The first layer has an indexer of its own."""
    values["indexer_types"] = ["full"] + [pick(draw, ("full", "shared")) for _ in range(shape.layers - 1)]


def no_window(values: Values, shape: Shape, draw: Draw) -> None:
    """Published models have no window, although their class has one by default."""
    values |= {"sliding_window": None, "layer_types": ["full_attention"] * shape.layers}
    if draw.random() < 0.2:
        values |= {"sliding_window": 8, "layer_types": cut(["full_attention", "sliding_attention"], draw, shape.layers)}


DIVIDES = {"gpt_neox", "persimmon", "helium", "recurrent_gemma"}
"""Families whose width is heads times head size, although their default states a head size."""

NEEDS_HEAD_SIZE = {"ministral", "hunyuan_v1_dense", "hunyuan_v1_moe"}
"""Families whose default states no head size, although they need one."""

ADJUST: dict[str, Adjustment] = {
    "apertus1p5_text": set_to(output_vocab_size=None),
    "bamba": bamba,
    "cohere_compass_text": two_rope_kinds,
    "diffllama": even_kv_heads,
    "axk1": axk1,
    "deepseek_v2": deepseek_v2,
    "deepseek_v32": indexer,
    "dory": dory,
    "glm4_moe_lite": mlp_kinds,
    "glm_moe_dsa": indexer,
    "dots1": no_window,
    "dots3_note_text": dots3_note,
    "ernie4_5_moe": ernie_experts,
    "falcon_h1": falcon_h1,
    "exaone4": exaone4,
    "falcon": falcon,
    "flint": sparse_layers,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    "granite_swa": swa_theta,
    "granitemoe_swa": swa_theta,
    "granitemoehybrid": granitemoehybrid,
    "hy_v4": hy_v4,
    "kimi_linear": kimi_linear,
    "laguna": laguna,
    "lfm2": lfm2_layers,
    "lfm2_moe": lfm2_layers,
    "lfm3": lfm3,
    "llama4_text": llama4,
    "mamba2": mamba2_heads,
    "mimo_v2_flash": mimo,
    "mistral4": mistral4,
    "muse_glimmer_text": muse_glimmer_theta,
    "nemotron_h": nemotron_h,
    "opt": set_to(dropout=0.0),
    "olmo_hybrid": olmo_hybrid,
    "phimoe": phimoe,
    "qwen2_moe": sparse_layers,
    "qwen3_5_moe_text": delta_rule,
    "qwen3_5_text": delta_rule,
    "qwen3_moe": sparse_layers,
    "qwen3_next": delta_rule,
    "recurrent_gemma": recurrent_gemma,
    "qwen4_exp_text": set_to(
        indexer_n_heads=2, indexer_kv_heads=1, indexer_head_dim=16, indexer_budget=16, indexer_compress_ratio=2
    ),
    "step3p5": step3p5,
    "zamba2": zamba2,
    "zaya": set_to(num_experts_per_tok=1),
}
"""What the sizes of a family must obey."""


def default(family: str) -> transformers.PreTrainedConfig:
    """Return the default configuration of a family."""
    return CONFIG_MAPPING[family]()


def stated(config: transformers.PreTrainedConfig) -> Values:
    """Return the values of a configuration that its class has beyond those of all classes."""
    common = transformers.PreTrainedConfig().to_dict()
    kept = {"tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"}
    left_out = {"model_type", "transformers_version", "torch_dtype"}
    return {
        key: value
        for key, value in config.to_dict().items()
        if (key not in common or key in kept) and key not in left_out
    }


def values_of(family: str, draw: Draw, multiple: bool) -> Values:
    """Return the drawn values of a family, with those of its parts."""
    config = default(family)
    values = shrunk(family, stated(config), draw, multiple)
    for part in config.sub_configs:
        # Models with parts state the sizes of each.
        if isinstance(values.get(part), dict):
            own = getattr(config, part)
            values[part] = shrunk(own.model_type, stated(own), draw, multiple=True) | {"model_type": own.model_type}
    return values


def drawn(family: str, draw: Draw) -> transformers.PreTrainedConfig:
    """Return a random small configuration of a family."""
    seed = int(draw.integers(2**32))
    for multiple in (False, True):
        values = values_of(family, np.random.default_rng(seed), multiple)
        try:
            return CONFIG_MAPPING[family](**values)
        except Exception:  # noqa: BLE001 (classes differ in what they raise)
            # Some classes accept only widths that are multiples of the number of heads.
            if multiple:
                raise
    raise AssertionError


SIZES = {*WIDTHS, *LAYERS, *HEADS, *KV_HEADS, *HEAD_SIZES, *CONTEXTS, *VOCABULARIES, *INNER, *SMALL}
"""Keys whose values say nothing but how large a model is."""
