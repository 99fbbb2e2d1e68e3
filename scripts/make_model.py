#!/usr/bin/env python3
"""Write a model of real shape with random weights, for measurements of speed and memory.

    scripts/make_model.py llama-3.2-1b models/llama-3.2-1b --tokenizer LLAMA_TOKENIZER_FOLDER

writes a folder with `config.json` in the hub's style, `model.safetensors` in bf16 and, with --tokenizer,
the tokenizer of another model. Needs numpy. Neither speed nor memory depends on the values of weights;
the model's replies are noise. The same shape and seed give the same bytes. random_gguf.py writes larger
models as GGUF, block by block in their format.

Matrices are drawn from normal(0, 0.02), the distribution with which these models were initialised; norm
weights are neutral. Drawing a billion numbers takes more than a minute, so one block is drawn, and every
matrix reads it cyclically from a random offset. The length of the block is a prime number, so no two rows
of a matrix start at the same offset. Equal embeddings would give equal logits and ties in greedy sampling.
"""

import argparse
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

BLOCK_LENGTH = 16_777_213
"""The largest prime number below 2^24."""

SPREAD = 0.02
"""The standard deviation of matrices: `initializer_range` of all shapes."""

COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": SPREAD,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}

# What the text models of Gemma 3 share.
GEMMA3 = COMMON | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000,
    "rope_theta": 1000000,
    "sliding_window_pattern": 6,
}

SHAPES = {
    "llama-3.2-1b": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    },
    "qwen3-0.6b": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gemma-3-1b": GEMMA3
    | {
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "rope_scaling": None,
        "sliding_window": 512,
        "vocab_size": 262144,
    },
    # The text model of Gemma-3-4B.
    "gemma-3-4b": GEMMA3
    | {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_hidden_layers": 34,
        "num_key_value_heads": 4,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
}

NORMS = {
    "llama": ["input_layernorm", "post_attention_layernorm"],
    "qwen3": [
        "input_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "post_attention_layernorm",
    ],
    "gemma3_text": [
        "input_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ],
}
"""The norms of a layer, by `model_type`."""

NEUTRAL_NORM = {"llama": 1.0, "qwen3": 1.0, "gemma3_text": 0.0}
"""The neutral weight of a norm; Gemma stores the distance from one."""


class Tensor(NamedTuple):
    """A tensor to write: a matrix of random values, or a norm's vector of equal values."""

    name: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


def tensors(config: dict) -> Iterator[Tensor]:
    """Yield all tensors of a model in the order of the file."""
    width, ffn = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield Tensor("model.embed_tokens.weight", (config["vocab_size"], width))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for norm in NORMS[config["model_type"]]:
            extent = head if norm.startswith("self_attn") else width
            yield Tensor(f"{prefix}.{norm}.weight", (extent,))
        yield Tensor(f"{prefix}.self_attn.q_proj.weight", (queries, width))
        yield Tensor(f"{prefix}.self_attn.k_proj.weight", (keys, width))
        yield Tensor(f"{prefix}.self_attn.v_proj.weight", (keys, width))
        yield Tensor(f"{prefix}.self_attn.o_proj.weight", (width, queries))
        yield Tensor(f"{prefix}.mlp.gate_proj.weight", (ffn, width))
        yield Tensor(f"{prefix}.mlp.up_proj.weight", (ffn, width))
        yield Tensor(f"{prefix}.mlp.down_proj.weight", (width, ffn))
    yield Tensor("model.norm.weight", (width,))


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 values to bf16, to nearest, ties to even; return the bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def header(layout: list[Tensor]) -> bytes:
    """Return the header of a safetensors file: a length, then JSON, padded so that the data are aligned."""
    entries: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in layout:
        start, end = end, end + 2 * tensor.values
        entries[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_round(file: BinaryIO, block: np.ndarray, start: int, length: int) -> None:
    """Write `length` values of `block` from `start` on, wrapping around at its end."""
    while length > 0:
        piece = block[start : start + length]
        file.write(piece)
        length -= len(piece)
        start = 0


def write_weights(path: Path, config: dict, seed: int) -> int:
    """Write the weights of a model, tensor by tensor; return the number of values."""
    layout = list(tensors(config))
    generator = np.random.default_rng(seed)
    block = bfloat16(generator.standard_normal(BLOCK_LENGTH, dtype=np.float32) * SPREAD)
    neutral = bfloat16(np.float32([NEUTRAL_NORM[config["model_type"]]]))
    with path.open("wb") as file:
        file.write(header(layout))
        for tensor in layout:
            if len(tensor.shape) == 1:
                file.write(np.repeat(neutral, tensor.values))
            else:
                start = int(generator.integers(BLOCK_LENGTH))
                write_round(file, block, start, tensor.values)
    return sum(tensor.values for tensor in layout)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Write a model of real shape with random weights in bf16."
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=Path, help="the output folder; existing files are replaced")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="copy tokenizer.json and tokenizer_config.json from this folder",
    )
    parser.add_argument(
        "--layers", type=int, metavar="N", help="number of layers (default: those of the shape)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    return parser.parse_args()


def main() -> None:
    """Write the model."""
    args = arguments()
    config = SHAPES[args.shape]
    if args.layers is not None:
        config = config | {"num_hidden_layers": args.layers}
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.tokenizer:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(args.tokenizer / name, args.folder / name)
    (args.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parameters = write_weights(args.folder / "model.safetensors", config, args.seed)
    print(f"{args.folder}: {parameters} parameters, {2 * parameters / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
