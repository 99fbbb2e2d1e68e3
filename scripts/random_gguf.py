#!/usr/bin/env python3
"""Write a GGUF of real shape with random blocks, for measurements of speed and memory.

    scripts/random_gguf.py qwen3-30b-a3b models/qwen3-30b-a3b.gguf --format q4_k_m --layers 12

Blocks of a format are written directly, so no file in bf16 is needed. Needs numpy. Neither speed nor memory depends
on the values of weights; the model's replies are noise. Codes are random bits; scales are such that the values of a
matrix have the standard deviation of `initializer_range`. The same shape, format and seed give the same bytes.

The layout is that of GGUF 3 (`docs/gguf.md` of ggml), the blocks those of `ggml-common.h`, and the formats of
each tensor in `q4_k_m` those of `llama-quant.cpp`. There is no tokenizer (`tokenizer.ggml.model` is `none`), unless one is copied.
"""

import argparse
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

SPREAD = 0.02
"""The standard deviation of matrices: `initializer_range` of all shapes."""

ALIGNMENT = 32
PIECE = 1 << 16
"""Blocks that are drawn; a tensor repeats them from a random offset."""

Draw = np.random.Generator

GRANITE_ATTENTION = 5
"""Of ten layers of Granite-4.0-H-1B, the one with attention."""

GEMMA4_FULL = 4
"""Of five layers of Gemma-4-E2B, the one without a window."""

GEMMA4_SHARED = 20
"""The layers of Gemma-4-E2B that read the keys and values of earlier ones."""

LFM2_ATTENTION = (2, 5, 8, 10, 12, 14)
"""The layers of LFM2-1.2B with attention."""

PROPORTIONAL = np.array([1.0] * 64 + [1e30] * 192, dtype="<f4")
"""The factors of Gemma 4's proportional rotation: a quarter of 512 components is rotated."""


def halves(draw: Draw, blocks: int, scale: float) -> np.ndarray:
    """Return scales around a number in half precision, as bytes."""
    values = scale * draw.uniform(0.75, 1.25, size=(blocks, 1))
    return values.astype("<f2").view(np.uint8)


def codes(draw: Draw, blocks: int, size: int) -> np.ndarray:
    """Return random bytes."""
    return draw.integers(256, size=(blocks, size), dtype=np.uint8)


def q8_0(draw: Draw, blocks: int) -> np.ndarray:
    """Return blocks of a scale and 32 bytes; the bytes' root mean square is 74."""
    return np.hstack([halves(draw, blocks, SPREAD / 74), codes(draw, blocks, 32)])


def q4_0(draw: Draw, blocks: int) -> np.ndarray:
    """Return blocks of a scale and 32 codes from -8 to 7; the codes' root mean square is 4.6."""
    return np.hstack([halves(draw, blocks, SPREAD / 4.6), codes(draw, blocks, 16)])


def q4_k(draw: Draw, blocks: int) -> np.ndarray:
    """Return blocks of 256 codes from 0 to 15, whose mean 7.5 the minima take away on average.

    With scales and minima of six random bits, the root mean square of a value is 258.
    """
    scale = SPREAD / 258
    parts = [halves(draw, blocks, scale), halves(draw, blocks, 7.5 * scale)]
    return np.hstack([*parts, codes(draw, blocks, 12), codes(draw, blocks, 128)])


def q6_k(draw: Draw, blocks: int) -> np.ndarray:
    """Return blocks of 256 codes from -32 to 31 (root mean square 18.5) with scales of a byte (74)."""
    return np.hstack([codes(draw, blocks, 192), codes(draw, blocks, 16), halves(draw, blocks, SPREAD / (74 * 18.5))])


def mxfp4(draw: Draw, blocks: int) -> np.ndarray:
    """Return blocks of an exponent and 32 codes of E2M1; the codes' root mean square is 2.9."""
    middle = 127 + round(math.log2(SPREAD / 2.9))
    exponents = draw.integers(middle - 1, middle + 2, size=(blocks, 1), dtype=np.uint8)
    return np.hstack([exponents, codes(draw, blocks, 16)])


def bf16(draw: Draw, blocks: int) -> np.ndarray:
    """Return values from a normal distribution."""
    values = (draw.standard_normal((blocks, 1), dtype=np.float32) * SPREAD).view(np.uint32)
    return (values >> 16).astype("<u2").view(np.uint8)


def f16(draw: Draw, blocks: int) -> np.ndarray:
    """Return values from a normal distribution."""
    return (draw.standard_normal((blocks, 1), dtype=np.float32) * SPREAD).astype("<f2").view(np.uint8)


def f32(draw: Draw, blocks: int) -> np.ndarray:
    """Return values around 1, for norms and biases."""
    return (1 + 0.1 * draw.standard_normal((blocks, 1), dtype=np.float32)).astype("<f4").view(np.uint8)


def negative(draw: Draw, blocks: int) -> np.ndarray:
    """Return values around -1, for the exponents of decays."""
    return (-1 + 0.1 * draw.standard_normal((blocks, 1), dtype=np.float32)).astype("<f4").view(np.uint8)


class Format(NamedTuple):
    """A format of GGUF: its number, the values of a block, its bytes, and how blocks are drawn."""

    number: int
    values: int
    size: int
    blocks: Callable[[Draw, int], np.ndarray]


FORMATS = {
    "f32": Format(0, 1, 4, f32),
    "f16": Format(1, 1, 2, f16),
    "negative": Format(0, 1, 4, negative),
    "q4_0": Format(2, 32, 18, q4_0),
    "q8_0": Format(8, 32, 34, q8_0),
    "q4_k": Format(12, 256, 144, q4_k),
    "q6_k": Format(14, 256, 210, q6_k),
    "bf16": Format(30, 1, 2, bf16),
    "mxfp4": Format(39, 32, 17, mxfp4),
}

FILE_TYPES = {"f16": 1, "q4_0": 2, "q4_k_m": 15, "bf16": 32, "mxfp4": 38}
"""`general.file_type` of each recipe (`enum llama_ftype`)."""


class Tensor(NamedTuple):
    """A tensor: its name, its extents with the innermost one first, and its role in a recipe."""

    name: str
    extents: tuple[int, ...]
    role: str

    @property
    def values(self) -> int:
        """The number of values."""
        return math.prod(self.extents)


class Shape(NamedTuple):
    """A model: the name of its architecture, its keys, and its tensors."""

    arch: str
    keys: dict[str, Any]
    tensors: Callable[[int], Iterator[Tensor]]
    recipe: str

    @property
    def layers_key(self) -> str:
        """The key of the number of layers."""
        return "vision.block_count" if self.arch == "clip" else "block_count"


def table(name: str, rows: int, width: int, role: str) -> Tensor:
    """Return a matrix."""
    return Tensor(f"{name}.weight", (width, rows), role)


def vector(name: str, size: int) -> Tensor:
    """Return a vector in f32."""
    return Tensor(name, (size,), "vector")


def qwen3_moe(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Qwen3-30B-A3B."""
    width, vocabulary, experts, inner = 2048, 151936, 128, 768
    yield table("token_embd", vocabulary, width, "embedding")
    yield vector("output_norm.weight", width)
    yield table("output", vocabulary, width, "head")
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        yield vector(f"{block}.attn_q_norm.weight", 128)
        yield vector(f"{block}.attn_k_norm.weight", 128)
        yield table(f"{block}.attn_q", 4096, width, "matrix")
        yield table(f"{block}.attn_k", 512, width, "matrix")
        yield table(f"{block}.attn_v", 512, width, "more bits")
        yield table(f"{block}.attn_output", width, 4096, "matrix")
        yield vector(f"{block}.ffn_norm.weight", width)
        yield Tensor(f"{block}.ffn_gate_inp.weight", (width, experts), "vector")
        yield Tensor(f"{block}.ffn_gate_exps.weight", (width, inner, experts), "expert")
        yield Tensor(f"{block}.ffn_up_exps.weight", (width, inner, experts), "expert")
        yield Tensor(f"{block}.ffn_down_exps.weight", (inner, width, experts), "expert more bits")


def gpt_oss(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of gpt-oss-20b."""
    width, vocabulary, experts, queries, keys = 2880, 201088, 32, 4096, 512
    yield table("token_embd", vocabulary, width, "embedding")
    yield vector("output_norm.weight", width)
    yield table("output", vocabulary, width, "head")
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        for part, rows, columns in (
            ("attn_q", queries, width),
            ("attn_k", keys, width),
            ("attn_v", keys, width),
            ("attn_output", width, queries),
        ):
            yield table(f"{block}.{part}", rows, columns, "matrix")
            yield vector(f"{block}.{part}.bias", rows)
        yield vector(f"{block}.attn_sinks.weight", 64)
        yield vector(f"{block}.post_attention_norm.weight", width)
        yield Tensor(f"{block}.ffn_gate_inp.weight", (width, experts), "vector")
        yield vector(f"{block}.ffn_gate_inp.bias", experts)
        for part in ("gate", "up", "down"):
            yield Tensor(f"{block}.ffn_{part}_exps.weight", (width, width, experts), "expert")
            yield Tensor(f"{block}.ffn_{part}_exps.bias", (width, experts), "vector")


def phi4_mini(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Phi-4-mini."""
    width, vocabulary, inner = 3072, 200064, 8192
    yield table("token_embd", vocabulary, width, "head")
    yield vector("output_norm.weight", width)
    yield vector("rope_factors_long.weight", 48)
    yield vector("rope_factors_short.weight", 48)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        yield table(f"{block}.attn_qkv", width + 2 * 1024, width, "matrix")
        yield table(f"{block}.attn_output", width, width, "matrix")
        yield vector(f"{block}.ffn_norm.weight", width)
        yield table(f"{block}.ffn_up", 2 * inner, width, "matrix")
        yield table(f"{block}.ffn_down", width, inner, "more bits")


def gated(block: str, width: int, inner: int) -> Iterator[Tensor]:
    """Yield a gated feed-forward part."""
    yield table(f"{block}.ffn_gate", inner, width, "matrix")
    yield table(f"{block}.ffn_up", inner, width, "matrix")
    yield table(f"{block}.ffn_down", width, inner, "more bits")


def attention(block: str, width: int, queries: int, keys: int, results: int) -> Iterator[Tensor]:
    """Yield the matrices of attention: the rows of queries, of keys and of values, and the heads' results."""
    yield table(f"{block}.attn_q", queries, width, "matrix")
    yield table(f"{block}.attn_k", keys, width, "matrix")
    yield table(f"{block}.attn_v", keys, width, "more bits")
    yield table(f"{block}.attn_output", width, results, "matrix")


def qwen35(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Qwen3.5-2B: three layers with the gated delta rule, then one with attention."""
    width, inner, heads = 2048, 2048, 16
    yield table("token_embd", 248320, width, "head")
    yield vector("output_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        yield vector(f"{block}.post_attention_norm.weight", width)
        if layer % 4 == 3:
            yield from attention(block, width, 2 * 8 * 256, 2 * 256, 8 * 256)
            yield vector(f"{block}.attn_q_norm.weight", 256)
            yield vector(f"{block}.attn_k_norm.weight", 256)
        else:
            yield table(f"{block}.attn_qkv", 3 * inner, width, "matrix")
            yield table(f"{block}.attn_gate", inner, width, "matrix")
            yield Tensor(f"{block}.ssm_conv1d.weight", (4, 3 * inner), "vector")
            yield vector(f"{block}.ssm_dt.bias", heads)
            yield Tensor(f"{block}.ssm_a", (heads,), "negative")
            yield table(f"{block}.ssm_beta", heads, width, "matrix")
            yield table(f"{block}.ssm_alpha", heads, width, "matrix")
            yield vector(f"{block}.ssm_norm.weight", 128)
            yield table(f"{block}.ssm_out", width, inner, "matrix")
        yield from gated(block, width, 6144)


def llama31_8b(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Llama-3.1-8B, without factors for long contexts."""
    width, vocabulary = 4096, 128256
    yield table("token_embd", vocabulary, width, "matrix")
    yield vector("output_norm.weight", width)
    yield table("output", vocabulary, width, "head")
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        yield from attention(block, width, width, 1024, width)
        yield vector(f"{block}.ffn_norm.weight", width)
        yield from gated(block, width, 14336)


def llama32_1b(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Llama-3.2-1B, without factors for long contexts."""
    width = 2048
    yield table("token_embd", 128256, width, "head")
    yield vector("output_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        yield from attention(block, width, width, 512, width)
        yield vector(f"{block}.ffn_norm.weight", width)
        yield from gated(block, width, 8192)


def scan(block: str, width: int, inner: int, state: int, heads: int) -> Iterator[Tensor]:
    """Yield a mixer of Mamba-2 with one group."""
    convolved = inner + 2 * state
    yield table(f"{block}.ssm_in", inner + convolved + heads, width, "matrix")
    yield Tensor(f"{block}.ssm_conv1d.weight", (4, convolved), "vector")
    yield vector(f"{block}.ssm_conv1d.bias", convolved)
    yield vector(f"{block}.ssm_dt.bias", heads)
    yield Tensor(f"{block}.ssm_a", (1, heads), "negative")
    yield Tensor(f"{block}.ssm_d", (1, heads), "vector")
    yield Tensor(f"{block}.ssm_norm.weight", (inner, 1), "vector")
    yield table(f"{block}.ssm_out", width, inner, "matrix")


def mamba2(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Mamba2-1.3B."""
    width = 2048
    yield table("token_embd", 50288, width, "head")
    yield vector("output_norm.weight", width)
    for layer in range(layers):
        yield vector(f"blk.{layer}.attn_norm.weight", width)
        yield from scan(f"blk.{layer}", width, 4096, 128, 64)


def granite_h(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Granite-4.0-H-1B: Mamba-2, and attention in every tenth layer."""
    width = 1536
    yield table("token_embd", 100352, width, "head")
    yield vector("output_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        if layer % 10 == GRANITE_ATTENTION:
            yield from attention(block, width, width, 4 * 128, width)
        else:
            yield from scan(block, width, 3072, 128, 48)
        yield vector(f"{block}.ffn_norm.weight", width)
        yield from gated(block, width, 4096)


def gemma4_e2b(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Gemma-4-E2B: embeddings per layer, and no keys of their own in the last 20 of 35 layers."""
    width, each, heads = 1536, 256, 8
    yield table("token_embd", 262144, width, "head")
    yield vector("output_norm.weight", width)
    yield table("per_layer_token_embd", 262144, each * layers, "embedding")
    yield table("per_layer_model_proj", each * layers, width, "matrix")
    yield vector("per_layer_proj_norm.weight", each)
    yield Tensor("rope_freqs.weight", (256,), "proportional")
    for layer in range(layers):
        block, size, shared = f"blk.{layer}", 256 if gemma4_is_local(layer) else 512, gemma4_is_shared(layer, layers)
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
            yield vector(f"{block}.{norm}.weight", width)
        yield table(f"{block}.attn_q", heads * size, width, "matrix")
        yield vector(f"{block}.attn_q_norm.weight", size)
        if not shared:
            yield table(f"{block}.attn_k", size, width, "matrix")
            yield table(f"{block}.attn_v", size, width, "more bits")
            yield vector(f"{block}.attn_k_norm.weight", size)
        yield table(f"{block}.attn_output", width, heads * size, "matrix")
        yield vector(f"{block}.layer_output_scale.weight", 1)
        yield table(f"{block}.inp_gate", each, width, "matrix")
        yield table(f"{block}.proj", width, each, "matrix")
        yield from gated(block, width, 12288 if shared else 6144)


def gemma4_is_local(layer: int) -> bool:
    """Return whether a layer of Gemma-4-E2B has a window: four do, then one does not."""
    return layer % 5 != GEMMA4_FULL


def gemma4_is_shared(layer: int, layers: int) -> bool:
    """Return whether a layer of Gemma-4-E2B reads the keys and values of an earlier one."""
    return layer >= layers - GEMMA4_SHARED


def deepseek_v2_lite(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of DeepSeek-V2-Lite."""
    width, latent, rotated, heads, size, experts, inner = 2048, 512, 64, 16, 128, 64, 1408
    yield table("token_embd", 102400, width, "embedding")
    yield vector("output_norm.weight", width)
    yield table("output", 102400, width, "head")
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        yield vector(f"{block}.attn_kv_a_norm.weight", latent)
        yield table(f"{block}.attn_q", heads * (size + rotated), width, "matrix")
        yield table(f"{block}.attn_kv_a_mqa", latent + rotated, width, "matrix")
        yield Tensor(f"{block}.attn_k_b.weight", (size, latent, heads), "by head")
        yield Tensor(f"{block}.attn_v_b.weight", (latent, size, heads), "by head")
        yield table(f"{block}.attn_output", width, heads * size, "matrix")
        yield vector(f"{block}.ffn_norm.weight", width)
        if layer == 0:
            yield from gated(block, width, 10944)
            continue
        yield Tensor(f"{block}.ffn_gate_inp.weight", (width, experts), "vector")
        for part, extents in (("gate", (width, inner)), ("up", (width, inner)), ("down", (inner, width))):
            more = " more bits" if part == "down" else ""
            yield Tensor(f"{block}.ffn_{part}_exps.weight", (*extents, experts), "expert" + more)
        for part, rows, columns in (("gate", 2 * inner, width), ("up", 2 * inner, width), ("down", width, 2 * inner)):
            yield table(f"{block}.ffn_{part}_shexp", rows, columns, "more bits" if part == "down" else "matrix")


def lfm2(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of LFM2-1.2B: attention in six of 16 layers, short convolutions in the others."""
    width = 2048
    yield table("token_embd", 65536, width, "head")
    yield vector("token_embd_norm.weight", width)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield vector(f"{block}.attn_norm.weight", width)
        if layer in LFM2_ATTENTION:
            yield from attention(block, width, width, 512, width)
            yield vector(f"{block}.attn_q_norm.weight", 64)
            yield vector(f"{block}.attn_k_norm.weight", 64)
        else:
            yield Tensor(f"{block}.shortconv.conv.weight", (3, width), "vector")
            yield table(f"{block}.shortconv.in_proj", 3 * width, width, "matrix")
            yield table(f"{block}.shortconv.out_proj", width, width, "matrix")
        yield vector(f"{block}.ffn_norm.weight", width)
        yield from gated(block, width, 8192)


def siglip(layers: int) -> Iterator[Tensor]:
    """Yield the tensors of Gemma 3's projector file: SigLIP's tower, a norm and a projection."""
    width, inner, patch = 1152, 4304, 14
    yield table("mm.input_projection", width, 2560, "matrix")
    yield vector("mm.soft_emb_norm.weight", width)
    yield Tensor("v.patch_embd.weight", (patch, patch, 3, width), "vector")
    yield vector("v.patch_embd.bias", width)
    yield Tensor("v.position_embd.weight", (width, 4096), "vector")
    for layer in range(layers):
        block = f"v.blk.{layer}"
        products = {"attn_q": width, "attn_k": width, "attn_v": width, "attn_out": width, "ffn_up": inner}
        for name, rows in products.items():
            yield table(f"{block}.{name}", rows, width, "matrix")
            yield vector(f"{block}.{name}.bias", rows)
        yield table(f"{block}.ffn_down", width, inner, "matrix")
        yield vector(f"{block}.ffn_down.bias", width)
        for norm in ("ln1", "ln2"):
            yield vector(f"{block}.{norm}.weight", width)
            yield vector(f"{block}.{norm}.bias", width)
    yield vector("v.post_ln.weight", width)
    yield vector("v.post_ln.bias", width)


SHAPES = {
    # The projector file beside the text model of Gemma-3-4B.
    "gemma-3-4b-tower": Shape(
        "clip",
        {
            "has_vision_encoder": True,
            "projector_type": "gemma3",
            "use_gelu": True,
            "vision.block_count": 27,
            "vision.projection_dim": 2560,
            "vision.image_size": 896,
            "vision.patch_size": 14,
            "vision.embedding_length": 1152,
            "vision.feed_forward_length": 4304,
            "vision.attention.head_count": 16,
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.image_mean": [0.5, 0.5, 0.5],
            "vision.image_std": [0.5, 0.5, 0.5],
        },
        siglip,
        "f16",
    ),
    "qwen3.5-2b": Shape(
        "qwen35",
        {
            "block_count": 24,
            "context_length": 262144,
            "embedding_length": 2048,
            "feed_forward_length": 6144,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e7,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": 4,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 16,
            "ssm.inner_size": 2048,
            "vocab_size": 248320,
        },
        qwen35,
        "q4_k_m",
    ),
    "llama-3.1-8b": Shape(
        "llama",
        {
            "block_count": 32,
            "context_length": 131072,
            "embedding_length": 4096,
            "feed_forward_length": 14336,
            "attention.head_count": 32,
            "attention.head_count_kv": 8,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 500000.0,
            "rope.dimension_count": 128,
            "vocab_size": 128256,
        },
        llama31_8b,
        "q4_0",
    ),
    "llama-3.2-1b": Shape(
        "llama",
        {
            "block_count": 16,
            "context_length": 131072,
            "embedding_length": 2048,
            "feed_forward_length": 8192,
            "attention.head_count": 32,
            "attention.head_count_kv": 8,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 500000.0,
            "rope.dimension_count": 64,
            "vocab_size": 128256,
        },
        llama32_1b,
        "q4_0",
    ),
    "mamba2-1.3b": Shape(
        "mamba2",
        {
            "block_count": 48,
            "context_length": 1048576,
            "embedding_length": 2048,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 1,
            "ssm.time_step_rank": 64,
            "ssm.inner_size": 4096,
            "vocab_size": 50288,
        },
        mamba2,
        "q4_k_m",
    ),
    "granite-4.0-h-1b": Shape(
        "granitehybrid",
        {
            "block_count": 40,
            "context_length": 131072,
            "embedding_length": 1536,
            "feed_forward_length": 4096,
            "attention.head_count": 12,
            "attention.head_count_kv": lambda layers: [
                4 * (layer % 10 == GRANITE_ATTENTION) for layer in range(layers)
            ],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.scale": 1 / 128,
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "logit_scale": 6.0,
            "rope.scaling.finetuned": False,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 128,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 1,
            "ssm.time_step_rank": 48,
            "ssm.inner_size": 3072,
            "vocab_size": 100352,
        },
        granite_h,
        "q4_k_m",
    ),
    "gemma-4-e2b": Shape(
        "gemma4",
        {
            "block_count": 35,
            "context_length": 131072,
            "embedding_length": 1536,
            "embedding_length_per_layer_input": 256,
            "feed_forward_length": lambda layers: [
                12288 if gemma4_is_shared(layer, layers) else 6144 for layer in range(layers)
            ],
            "attention.head_count": 8,
            "attention.head_count_kv": 1,
            "attention.key_length": 512,
            "attention.value_length": 512,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.shared_kv_layers": GEMMA4_SHARED,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": lambda layers: [gemma4_is_local(layer) for layer in range(layers)],
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "rope.dimension_count": 512,
            "rope.dimension_count_swa": 256,
            "final_logit_softcapping": 30.0,
            "vocab_size": 262144,
        },
        gemma4_e2b,
        "q4_k_m",
    ),
    "deepseek-v2-lite": Shape(
        "deepseek2",
        {
            "block_count": 27,
            "context_length": 163840,
            "embedding_length": 2048,
            "feed_forward_length": 10944,
            "leading_dense_block_count": 1,
            "attention.head_count": 16,
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": 512,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": 64,
            "rope.freq_base": 10000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 40.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_log_multiplier": 0.0707,
            "expert_count": 64,
            "expert_used_count": 6,
            "expert_shared_count": 2,
            "expert_feed_forward_length": 1408,
            "expert_gating_func": 1,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": False,
            "vocab_size": 102400,
        },
        deepseek_v2_lite,
        "q4_0",
    ),
    "lfm2-1.2b": Shape(
        "lfm2",
        {
            "block_count": 16,
            "context_length": 128000,
            "embedding_length": 2048,
            "feed_forward_length": 8192,
            "attention.head_count": 32,
            "attention.head_count_kv": lambda layers: [8 * (layer in LFM2_ATTENTION) for layer in range(layers)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
            "shortconv.l_cache": 3,
            "vocab_size": 65536,
        },
        lfm2,
        "q4_k_m",
    ),
    "qwen3-30b-a3b": Shape(
        "qwen3moe",
        {
            "block_count": 48,
            "context_length": 40960,
            "embedding_length": 2048,
            "feed_forward_length": 6144,
            "attention.head_count": 32,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
            "vocab_size": 151936,
        },
        qwen3_moe,
        "q4_k_m",
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss",
        {
            "block_count": 24,
            "context_length": 131072,
            "embedding_length": 2880,
            "feed_forward_length": 2880,
            "attention.head_count": 64,
            "attention.head_count_kv": 8,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.sliding_window": 128,
            "rope.freq_base": 150000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
            "expert_count": 32,
            "expert_used_count": 4,
            "expert_feed_forward_length": 2880,
            "vocab_size": 201088,
        },
        gpt_oss,
        "mxfp4",
    ),
    "phi-4-mini": Shape(
        "phi3",
        {
            "block_count": 32,
            "context_length": 131072,
            "embedding_length": 3072,
            "feed_forward_length": 8192,
            "attention.head_count": 24,
            "attention.head_count_kv": 8,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.sliding_window": 262144,
            "rope.dimension_count": 96,
            "rope.freq_base": 10000.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(32) / math.log(4096)),
            "vocab_size": 200064,
        },
        phi4_mini,
        "q4_k_m",
    ),
}


def format_of(tensor: Tensor, recipe: str, layers: int) -> str:
    """Return the name of a tensor's format in a recipe."""
    if tensor.role in ("vector", "negative", "proportional"):
        return "negative" if tensor.role == "negative" else "f32"
    if tensor.role == "by head":
        return "q8_0" if recipe == "q4_k_m" else recipe
    if recipe == "mxfp4":
        return "mxfp4" if tensor.role.startswith("expert") else "q8_0"
    if recipe == "q4_k_m":
        layer = int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else 0
        eighth = layers // 8
        more = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
        return "q6_k" if tensor.role == "head" or (tensor.role.endswith("more bits") and more) else "q4_k"
    # llama.cpp has the head of a model in Q4_0 in Q6_K, too.
    return "q6_k" if recipe == "q4_0" and tensor.role == "head" else recipe


def text(value: str) -> bytes:
    """Return a string of GGUF."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, value: Any) -> bytes:
    """Return a key with its type and value: a string, a flag, a 32-bit integer or float, or a list of flags, integers or floats."""
    match value:
        case str():
            return text(key) + struct.pack("<I", 8) + text(value)
        case bool():
            return text(key) + struct.pack("<I?", 7, value)
        case [bool(), *_]:
            return text(key) + struct.pack(f"<IIQ{len(value)}?", 9, 7, len(value), *value)
        case [float(), *_]:
            return text(key) + struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case list():
            return text(key) + struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
        case int():
            return text(key) + struct.pack("<II", 4, value)
        case _:
            return text(key) + struct.pack("<If", 6, value)


def tokenizer_of(path: Path) -> list[bytes]:
    """Return the entries of the tokenizer of another GGUF. Needs gguf."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    return [b"".join(part.tobytes() for part in fields[key].parts) for key in fields if key.startswith("tokenizer.")]


def header(
    shape: Shape, layout: list[tuple[Tensor, Format]], recipe: str, layers: int, tokenizer: list[bytes]
) -> bytes:
    """Return everything before the data, padded."""
    keys = {"general.architecture": shape.arch, "general.file_type": FILE_TYPES[recipe]}
    if not tokenizer:
        keys["tokenizer.ggml.model"] = "none"
    for key, value in (shape.keys | {shape.layers_key: layers}).items():
        keys[f"{shape.arch}.{key}"] = value(layers) if callable(value) else value
    result = b"GGUF" + struct.pack("<IQQ", 3, len(layout), len(keys) + len(tokenizer))
    result += b"".join([*(entry(key, value) for key, value in keys.items()), *tokenizer])
    offset = 0
    for tensor, stored in layout:
        extents = struct.pack(f"<I{len(tensor.extents)}Q", len(tensor.extents), *tensor.extents)
        result += text(tensor.name) + extents + struct.pack("<IQ", stored.number, offset)
        size = tensor.values // stored.values * stored.size
        offset += size + -size % ALIGNMENT
    return result + b"\0" * (-len(result) % ALIGNMENT)


def write_blocks(file: BinaryIO, drawn: np.ndarray, start: int, blocks: int) -> None:
    """Write blocks from `start` on, wrapping around at the end of the drawn ones."""
    size = blocks * drawn.shape[1]
    while blocks > 0:
        piece = drawn[start : start + blocks]
        file.write(np.ascontiguousarray(piece))
        blocks -= len(piece)
        start = 0
    file.write(b"\0" * (-size % ALIGNMENT))


def write(path: Path, shape: Shape, recipe: str, layers: int, seed: int, tokenizer: list[bytes]) -> int:
    """Write the file; return its size in bytes."""
    draw = np.random.default_rng(seed)
    tensors = list(shape.tensors(layers))
    layout = [(tensor, FORMATS[format_of(tensor, recipe, layers)]) for tensor in tensors]
    uneven = [tensor.name for tensor, stored in layout if tensor.extents[0] % stored.values]
    if uneven:
        raise SystemExit(f"{uneven[0]} has rows that are no multiple of a block of {recipe}; use another format")
    drawn = {stored: stored.blocks(draw, PIECE) for stored in dict.fromkeys(stored for _, stored in layout)}
    with path.open("wb") as file:
        file.write(header(shape, layout, recipe, layers, tokenizer))
        for tensor, stored in layout:
            if tensor.role == "proportional":
                file.write(PROPORTIONAL.tobytes())
                continue
            write_blocks(file, drawn[stored], int(draw.integers(PIECE)), tensor.values // stored.values)
    return path.stat().st_size


def main() -> None:
    """Write the model of the command line."""
    parser = argparse.ArgumentParser(description="Write a GGUF of real shape with random blocks.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, help="the output file; an existing one is replaced")
    parser.add_argument("--format", choices=FILE_TYPES, help="the recipe (default: that of the published file)")
    parser.add_argument("--layers", type=int, metavar="N", help="number of layers (default: those of the shape)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random blocks (default: 0)")
    parser.add_argument("--tokenizer", type=Path, metavar="GGUF", help="a file whose tokenizer to copy, as OpenVINO GenAI needs one")
    args = parser.parse_args()
    tokenizer = tokenizer_of(args.tokenizer) if args.tokenizer else []
    shape = SHAPES[args.shape]
    recipe, layers = args.format or shape.recipe, args.layers or shape.keys[shape.layers_key]
    size = write(args.out, shape, recipe, layers, args.seed, tokenizer)
    print(f"{args.out}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
