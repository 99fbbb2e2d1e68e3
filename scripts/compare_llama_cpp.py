#!/usr/bin/env python3
"""Compares GGUF files that girih writes with llama.cpp.

    compare_llama_cpp.py greedy MODEL.gguf GOLDEN.safetensors [--tokens N]
        Loads the model into llama.cpp, continues every prompt of the golden
        file greedily (f32 cache, one thread), and prints how many tokens equal
        the golden ones. Exits 1 if any differs.

    compare_llama_cpp.py types PLAIN.gguf QUANTIZED.gguf
        Lets llama.cpp quantize PLAIN (f32 or f16) to the type of file that
        QUANTIZED says it is, and prints for each tensor both formats, whether
        the bytes are equal, and the root mean square error of each against
        PLAIN. Exits 1 if a format differs.

    compare_llama_cpp.py words MODEL.gguf TEXTS
        Encodes every paragraph of TEXTS and prints the ids as one line of JSON
        each, for a comparison with `girih tokenize`.

A golden file holds p0.input_ids, p0.greedy_f32, p1.input_ids, and so on.
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


def greedy(arguments: argparse.Namespace) -> int:
    prompts = []
    with safe_open(arguments.golden, "numpy") as golden:
        names = set(golden.keys())
        for index in itertools.count():
            if f"p{index}.input_ids" not in names:
                break
            ids = golden.get_tensor(f"p{index}.input_ids").ravel().tolist()
            wanted = golden.get_tensor(f"p{index}.greedy_f32").ravel().tolist()
            prompts.append((ids, wanted[: arguments.tokens]))
    longest = max(len(ids) + len(wanted) for ids, wanted in prompts)
    model = load(arguments.model, n_ctx=longest + 8)
    different = False
    for index, (ids, wanted) in enumerate(prompts):
        tokens = model.generate(ids, top_k=1, temp=0.0, repeat_penalty=1.0)
        got = list(itertools.islice(tokens, len(wanted)))
        equal = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), len(wanted))
        different |= equal < len(wanted)
        print(f"{arguments.model.name} p{index}: {equal} of {len(wanted)} tokens equal")
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
    for text in arguments.texts.read_text(encoding="utf-8").split("\n\n"):
        print(json.dumps(model.tokenize(text.encode(), add_bos=False, special=False)))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("greedy")
    command.add_argument("model", type=Path)
    command.add_argument("golden", type=Path)
    command.add_argument("--tokens", type=int, default=32)
    command.set_defaults(run=greedy)
    command = commands.add_parser("types")
    command.add_argument("plain", type=Path)
    command.add_argument("quantized", type=Path)
    command.set_defaults(run=types)
    command = commands.add_parser("words")
    command.add_argument("model", type=Path)
    command.add_argument("texts", type=Path)
    command.set_defaults(run=words)
    arguments = parser.parse_args()
    quiet()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
