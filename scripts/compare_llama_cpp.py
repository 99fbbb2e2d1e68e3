#!/usr/bin/env python3
"""Compares GGUF files that girih writes with llama.cpp.

    compare_llama_cpp.py greedy MODEL.gguf GOLDEN.safetensors [--tokens N] [--tie M]
        Loads the model into llama.cpp (f32 cache, one thread), gives it every
        prompt of the golden file with its greedy continuation, and prints at
        how many steps llama.cpp's likeliest token is the golden one. Exits 1
        if it is not, unless the golden logits of the two likeliest tokens are
        within M of each other: llama.cpp takes GELU from a table of halves,
        which moves logits by that much.

    compare_llama_cpp.py types PLAIN.gguf QUANTIZED.gguf
        Lets llama.cpp quantize PLAIN (f32 or f16) to the type of file that
        QUANTIZED says it is, and prints for each tensor both formats, whether
        the bytes are equal, and the root mean square error of each against
        PLAIN. Exits 1 if a format differs.

    compare_llama_cpp.py words MODEL.gguf STRINGS.jsonl
        Encodes every "text" of STRINGS with the vocabulary of the file, and
        prints how many give the recorded "ids". Exits 1 if any does not.

A golden file holds p0.input_ids, p0.greedy_f32, p0.margin_f32, p1.input_ids,
and so on.
Needs the packages llama-cpp-python, gguf, numpy and safetensors.
"""

import argparse
import ctypes
import itertools
import json
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf.quants import dequantize
from safetensors import safe_open

GGML_TYPE_F32 = 0


def quiet() -> None:
    """Lets only llama.cpp's errors through."""

    @llama_cpp.llama_log_callback
    def log(level, text, _):
        if level == 4:  # GGML_LOG_LEVEL_ERROR
            sys.stderr.write(text.decode(errors="replace"))

    quiet.callback = log  # llama.cpp keeps the pointer
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))


def load(path: Path, **options) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        str(path),
        n_threads=1,
        n_threads_batch=1,
        type_k=GGML_TYPE_F32,
        type_v=GGML_TYPE_F32,
        flash_attn=False,
        verbose=False,
        **options,
    )


def prompts(path: Path, tokens: int):
    """Every prompt: its ids, the golden continuation, and the margins."""
    with safe_open(path, "numpy") as golden:
        names = set(golden.keys())
        for index in itertools.count():
            if f"p{index}.input_ids" not in names:
                return
            numbers = [golden.get_tensor(f"p{index}.{name}").ravel() for name in
                       ("input_ids", "greedy_f32", "margin_f32")]
            ids, wanted, margins = (list_.tolist() for list_ in numbers)
            yield ids, wanted[:tokens], margins[:tokens]


def greedy(arguments: argparse.Namespace) -> int:
    golden = list(prompts(arguments.golden, arguments.tokens))
    longest = max(len(ids) + len(wanted) for ids, wanted, _ in golden)
    model = load(arguments.model, n_ctx=longest, logits_all=True)
    different = False
    for index, (ids, wanted, margins) in enumerate(golden):
        model.reset()
        model.eval(ids + wanted[:-1])
        got = np.argmax(model.scores[len(ids) - 1 : len(ids) - 1 + len(wanted)], axis=-1)
        wrong = [step for step in range(len(wanted)) if got[step] != wanted[step]]
        ties = [step for step in wrong if margins[step] < arguments.tie]
        different |= len(wrong) > len(ties)
        notes = [f"step {step} {'is a tie' if step in ties else 'DIFFERS'}, margin {margins[step]:.1e}"
                 for step in wrong[:5]]
        print(f"{arguments.model.name} p{index}: {len(wanted) - len(wrong)} of {len(wanted)} tokens equal",
              *notes, sep="; ")
    return int(different)


def read(path: Path) -> tuple[dict, int]:
    reader = gguf.GGUFReader(path)
    file_type = int(reader.fields["general.file_type"].contents())
    return {tensor.name: tensor for tensor in reader.tensors}, file_type


def error(tensor, plain: np.ndarray) -> float:
    values = dequantize(tensor.data, tensor.tensor_type).ravel()
    return float(np.sqrt(np.mean((values.astype(np.float64) - plain) ** 2)))


def types(arguments: argparse.Namespace) -> int:
    plain, _ = read(arguments.plain)
    ours, file_type = read(arguments.quantized)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llama_cpp.gguf")
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = file_type
        parameters.nthread = 1
        code = llama_cpp.llama_model_quantize(
            str(arguments.plain).encode(), str(path).encode(), ctypes.byref(parameters)
        )
        if code != 0:
            print("llama.cpp refuses to quantize this file", file=sys.stderr)
            return 1
        theirs, _ = read(path)
        return table(plain, ours, theirs)


def table(plain: dict, ours: dict, theirs: dict) -> int:
    different = sorted(ours.keys() ^ theirs.keys())
    print(f"{'tensor':32}{'girih':>8}{'llama.cpp':>11}  {'bytes':8}{'rms girih':>12}{'rms llama.cpp':>15}")
    for name in (name for name in ours if name in theirs):
        mine, other = ours[name], theirs[name]
        if mine.tensor_type != other.tensor_type:
            different.append(name)
        exact = dequantize(plain[name].data, plain[name].tensor_type).ravel().astype(np.float64)
        equal = "equal" if np.array_equal(mine.data, other.data) else "differ"
        print(
            f"{name:32}{mine.tensor_type.name:>8}{other.tensor_type.name:>11}  {equal:8}"
            f"{error(mine, exact):12.3e}{error(other, exact):15.3e}"
        )
    if different:
        print("of another format, or in one file only:", ", ".join(different))
    return int(bool(different))


def words(arguments: argparse.Namespace) -> int:
    model = load(arguments.model, vocab_only=True)
    lines = arguments.strings.read_text(encoding="utf-8").split("\n")
    recorded = [json.loads(line) for line in lines if line]
    wrong = []
    for entry in recorded:
        got = model.tokenize(entry["text"].encode(), add_bos=False, special=True)
        if got != entry["ids"]:
            wrong.append(f"{entry['text'][:60]!r}: {got[:12]} instead of {entry['ids'][:12]}")
    print(f"{arguments.model.name}: {len(recorded) - len(wrong)} of {len(recorded)} strings equal",
          *wrong[:5], sep="\n  ")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("greedy")
    command.add_argument("model", type=Path)
    command.add_argument("golden", type=Path)
    command.add_argument("--tokens", type=int, default=32)
    command.add_argument("--tie", type=float, default=1e-3)
    command.set_defaults(run=greedy)
    command = commands.add_parser("types")
    command.add_argument("plain", type=Path)
    command.add_argument("quantized", type=Path)
    command.set_defaults(run=types)
    command = commands.add_parser("words")
    command.add_argument("model", type=Path)
    command.add_argument("strings", type=Path)
    command.set_defaults(run=words)
    arguments = parser.parse_args()
    quiet()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
