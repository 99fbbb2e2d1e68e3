#!/usr/bin/env python3
"""Write a model's folder as mlx-lm quantizes it, and the same numbers as a plain model.

    scripts/mlx_model.py MODEL OUT PLAIN --bits 4 --group 64 --type bfloat16

Each matrix of MODEL (a folder of one `model.safetensors`) whose columns are whole groups is quantized by `mlx.core.quantize`,
embeddings included. OUT has its words, scales and biases, and `quantization` in `config.json`. PLAIN has `scale * q + bias` in
float32, computed here from the words of OUT, so that `make_golden.py PLAIN` writes what girih must compute from OUT. With
`--other MODULE=BITS`, a module has other bits, as in mixes of mlx-lm; with 0 it stays as it is. Needs mlx and numpy.
"""

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write a model as MLX quantizes it, and its numbers.")
    parser.add_argument("model", type=Path, help="a folder")
    parser.add_argument("out", type=Path, help="the folder of the quantized model")
    parser.add_argument("plain", type=Path, help="the folder of the same numbers in float32")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--type", choices=["float16", "bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--other", action="append", default=[], help="MODULE=BITS")
    return parser.parse_args()


def numbers(words: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int) -> np.ndarray:
    """The values of a matrix: each row of words is a string of bits, the lowest of each integer first."""
    string = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    codes = string.reshape(*words.shape[:-1], -1, bits) @ (1 << np.arange(bits))
    groups = codes.reshape(*scales.shape, -1).astype(np.float32)
    return (scales[..., None] * groups + biases[..., None]).reshape(codes.shape)


def main() -> None:
    """Write both folders."""
    args = arguments()
    other = {name: int(bits) for name, bits in (text.split("=") for text in args.other)}
    dtype = getattr(mx, args.type)
    quantized, plain = {}, {}
    quantization: dict[str, object] = {"group_size": args.group, "bits": args.bits}
    for name, tensor in mx.load(str(args.model / "model.safetensors")).items():
        module = name.removesuffix(".weight")
        bits = other.get(module, args.bits)
        tensor = tensor.astype(dtype)
        if tensor.ndim != 2 or tensor.shape[-1] % args.group or bits == 0:
            quantized[name], plain[name] = tensor, tensor.astype(mx.float32)
            if bits == 0:
                quantization[module] = False
            continue
        if bits != args.bits:
            quantization[module] = {"group_size": args.group, "bits": bits}
        parts = mx.quantize(tensor, group_size=args.group, bits=bits)
        for part, value in zip(["weight", "scales", "biases"], parts, strict=True):
            quantized[f"{module}.{part}"] = value
        words, scales, biases = (np.array(part.astype(mx.float32) if part.dtype != mx.uint32 else part) for part in parts)
        plain[name] = mx.array(numbers(words, scales, biases, bits))
    for folder, tensors in [(args.out, quantized), (args.plain, plain)]:
        folder.mkdir(parents=True)
        mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
        config = json.loads((args.model / "config.json").read_text())
        if folder == args.out:
            config |= {"quantization": quantization, "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        for path in args.model.iterdir():
            if path.name.startswith(("tokenizer", "special_tokens", "generation_config")):
                shutil.copy(path, folder)


if __name__ == "__main__":
    main()
