#!/usr/bin/env python3
"""Measure what the type of the KV cache changes: of scores, and of a model.

    kv_types.py scores
        Prints the error of scores of random queries and keys with heads of 64 and 128 values, relative to the root mean
        square of the scores: keys as they are and with two channels ten times as large, rounded with and without being
        turned by a Hadamard matrix. Needs numpy.

    kv_types.py model FOLDER TEXT [--girih PROGRAM] [--gguf FILE]
        Rounds keys and values of a Llama model in torch, with and without turning them, and runs girih and, with FILE, llama.cpp with
        each type.
        Prints perplexities over windows of the text, and the mean Kullback-Leibler divergence from f32: of all windows in
        torch, of the first one in girih and llama.cpp (package llama-cpp-python). Needs torch and
        transformers. `train_llama.py` makes such a model, and its text.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np

GROUP = 32
"""Values with one scale."""

GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2}
"""Numbers of types in ggml.h."""


def hadamard(size: int) -> np.ndarray:
    """Return the orthonormal matrix."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(size)


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """Return numbers as a type holds them; its blocks lie in the last dimension."""
    if kind == "f32":
        return x
    if kind == "f16":
        return x.astype(np.float16).astype(np.float64)
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    at = np.abs(groups).argmax(-1, keepdims=True)
    extreme = np.take_along_axis(groups, at, -1)
    scale = np.abs(extreme) / 127 if kind == "q8_0" else extreme / -8
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    held = scale.astype(np.float16).astype(np.float64)
    codes = np.rint(groups * inverse) if kind == "q8_0" else np.minimum(np.floor(groups * inverse + 8.5), 15) - 8
    return (codes * held).reshape(x.shape)


def turned(x: np.ndarray, kind: str) -> np.ndarray:
    """Return numbers as a type holds them if they are turned before and back after."""
    matrix = hadamard(x.shape[-1] & -x.shape[-1])
    blocks = x.reshape(*x.shape[:-1], -1, len(matrix))
    held = rounded((blocks @ matrix).reshape(x.shape), kind).reshape(blocks.shape)
    return (held @ matrix).reshape(x.shape)


WAYS = [("q8_0", rounded), ("q8_0", turned), ("q4_0", rounded), ("q4_0", turned)]


def scores() -> None:
    """Print the errors of scores."""
    random = np.random.default_rng(1)
    print("| head | keys | " + " | ".join(f"{kind}{', turned' * (how is turned)}" for kind, how in WAYS) + " |")
    print("|--:|---|" + "--:|" * len(WAYS))
    for size in (64, 128):
        for name, factor in (("as they are", 1), ("two channels ×10", 10)):
            keys, queries = random.standard_normal((2, 4096, size))
            keys[:, [5, size // 2 + 3]] *= factor
            exact = (queries * keys).sum(-1)
            errors = [((queries * how(keys, kind)).sum(-1) - exact).std() / exact.std() for kind, how in WAYS]
            print(f"| {size} | {name} | " + " | ".join(f"{100 * error:.2f} %" for error in errors) + " |")


def log_softmax(rows: np.ndarray) -> np.ndarray:
    """Return logarithms of probabilities."""
    rows = rows - rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def emulated(folder: Path, windows: np.ndarray) -> dict:
    """Return the logarithms of probabilities of all windows for each way, by torch."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    update, found = transformers.DynamicCache.update, {}
    for kind, how in [("f32", rounded), ("f16", rounded), *WAYS]:

        def rounding(self, keys, values, *rest, kind=kind, how=how, **named):  # noqa: ANN001, ANN002, ANN003, ANN202
            both = (torch.from_numpy(how(x.double().numpy(), kind)).float() for x in (keys, values))
            return update(self, *both, *rest, **named)

        transformers.DynamicCache.update = rounding
        with torch.no_grad():
            logits = [model(torch.from_numpy(row[None]), use_cache=True).logits[0].double() for row in windows]
        found[kind, how is turned] = log_softmax(np.stack([rows.numpy() for rows in logits]))
    transformers.DynamicCache.update = update
    return found


def figures(found: np.ndarray, exact: np.ndarray, windows: np.ndarray) -> tuple[float, float]:
    """Return the perplexity and the mean divergence."""
    own = np.take_along_axis(found[:, :-1], windows[:, 1:, None], -1)
    return math.exp(-own.mean()), float((np.exp(exact) * (exact - found)).sum(-1).mean())


def by_girih(args: argparse.Namespace, kind: str) -> tuple[float, np.ndarray]:
    """Return girih's perplexity, and its logarithms of probabilities of the first window."""
    from peers import girih_logits  # noqa: PLC0415

    options = ["--kv", kind, "--act-precision", "f32"]
    command = [args.girih, "perplexity", args.folder, args.text, "--window", str(args.positions), "--json", "--quiet"]
    answer = subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout
    return json.loads(answer)["perplexity"], log_softmax(girih_logits(args, args.folder, args.text, options))


def model(args: argparse.Namespace) -> None:
    """Print the figures of a model."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    ids = np.array(AutoTokenizer.from_pretrained(args.folder)(args.text.read_text(encoding="utf-8"))["input_ids"])
    windows = ids[: len(ids) // args.positions * args.positions].reshape(-1, args.positions)
    found = emulated(args.folder, windows)
    print(f"{len(windows)} windows of {args.positions} tokens")
    print("| program | KV cache | perplexity | mean KL from f32 |")
    print("|---|---|--:|--:|")
    for (kind, is_turned), rows in found.items():
        perplexity, far = figures(rows, found["f32", False], windows)
        print(f"| torch | {kind}{', turned' * is_turned} | {perplexity:.4f} | {far:.2e} |")
    exact = found["f32", False][0]
    for kind in GGML_TYPES if args.girih else ():
        perplexity, rows = by_girih(args, kind)
        far = float((np.exp(exact) * (exact - rows)).sum(-1).mean())
        print(f"| girih | {kind} | {perplexity:.4f} | {far:.2e} |", flush=True)
    if args.gguf:
        from peers import llama_logits  # noqa: PLC0415

        for kind, number in GGML_TYPES.items():
            rows = llama_logits(args.gguf, windows[0].tolist(), 1, type_k=number, type_v=number, flash_attn=True)
            rows = log_softmax(rows.astype(np.float64))
            far = float((np.exp(exact) * (exact - rows)).sum(-1).mean())
            print(f"| llama.cpp | {kind} | – | {far:.2e} |", flush=True)


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description="Measure what the type of the KV cache changes.")
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("scores", help="errors of scores")
    of_model = commands.add_parser("model", help="figures of a model")
    of_model.add_argument("folder", type=Path)
    of_model.add_argument("text", type=Path)
    of_model.add_argument("--girih", help="the program")
    of_model.add_argument("--gguf", type=Path, help="the same model for llama.cpp")
    of_model.add_argument("--positions", type=int, default=512, help="tokens of a window")
    args = parser.parse_args()
    if args.command == "scores":
        scores()
    else:
        model(args)


if __name__ == "__main__":
    sys.exit(main())
