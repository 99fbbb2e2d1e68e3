#!/usr/bin/env python3
"""Compare GGUF files that girih writes with llama.cpp.

    compare_llama_cpp.py greedy MODEL.gguf GOLDEN.safetensors [--tokens N] [--tie M]
        Loads the model into llama.cpp (f32 cache, one thread), runs every prompt
        of the golden file with its greedy continuation, and prints the number of
        steps at which llama.cpp's most likely token is the golden one. Exits 1 if
        a token differs, unless the golden logits of the two most likely tokens
        differ by less than M: llama.cpp reads GELU from an f16 table, which moves
        logits by up to that much.

    compare_llama_cpp.py types PLAIN.gguf QUANTIZED.gguf
        Quantizes PLAIN (f32 or f16) with llama.cpp to the file type of
        QUANTIZED, and prints for each tensor both formats, whether the bytes are
        equal, and the root mean square error of each relative to PLAIN. Exits 1
        if a format differs.

    compare_llama_cpp.py logits PLAIN.gguf GOLDEN.safetensors --girih PROGRAM [--type T]...
        For each file type, girih and llama.cpp quantize PLAIN and run the
        result. Prints the differences of both programs' logits from the golden
        ones (root mean square and maximum). With quantized weights, llama.cpp
        rounds activations to 8 bits, as girih does by default.

    compare_llama_cpp.py words MODEL.gguf STRINGS.jsonl
        Encodes every "text" of STRINGS with the vocabulary of the file, and
        prints how many give the recorded "ids". Exits 1 if any differs.

A golden file holds p0.input_ids, p0.greedy_f32, p0.margin_f32, p1.input_ids,
and so on.
Needs the packages llama-cpp-python, gguf, numpy and safetensors.
"""

import argparse
import ctypes
import itertools
import json
import subprocess
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
    """Silence llama.cpp except for its errors."""

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
    """Yield each prompt's ids, golden continuation and margins."""
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


# File types with llama.cpp's numbers; None where llama.cpp does not write the type.
FILE_TYPES = {
    "q8_0": 7, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q4_k_s": 14, "q4_k_m": 15,
    "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "mxfp4": None, "q4nx": None, "int4": None, "int8": None,
}

# What a recipe calls the integers of IEBIN.
IEBIN_TYPES = {"int4": "q4_0", "int8": "q8_0"}


def girih_quantize(program: Path, source: Path, out: Path, name: str) -> Path:
    """Quantize SOURCE with girih, all matrices alike for IEBIN; return the file or folder."""
    command = [program, "quantize", source, out, "--type", name, "--quiet"]
    if name in IEBIN_TYPES:
        out, recipe = out.with_suffix(""), out.with_suffix(".toml")
        recipe.write_text(f"[[rule]]\ntensors = '*'\ntype = '{IEBIN_TYPES[name]}'\n")
        command = [program, "quantize", source, out, "--type", "iebin", "--recipe", recipe, "--quiet"]
    elif name == "q4nx":
        out = out.with_suffix("")
        command[3] = out
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def quantize(plain: Path, path: Path, file_type: int) -> bool:
    """Quantize PLAIN with llama.cpp; return whether it succeeded."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = file_type
    parameters.nthread = 1
    code = llama_cpp.llama_model_quantize(str(plain).encode(), str(path).encode(), ctypes.byref(parameters))
    return code == 0


def logit_errors(path: Path, golden: Path) -> tuple[float, float]:
    """Return the rms and the maximum of the differences between llama.cpp's and the golden logits."""
    with safe_open(golden, "numpy") as file:
        names = sorted(name for name in file.keys() if name.endswith("logits_f32"))
        wanted = [(file.get_tensor(name.replace("logits_f32", "input_ids")).tolist(), file.get_tensor(name))
                  for name in names]
    model = load(path, n_ctx=max(len(ids) for ids, _ in wanted), logits_all=True)
    differences = []
    for ids, logits in wanted:
        model.reset()
        model.eval(ids)
        differences.append((model.scores[: len(ids)] - logits).ravel())
    all_ = np.concatenate(differences)
    return float(np.sqrt(np.mean(all_**2))), float(np.abs(all_).max())


def girih_errors(program: Path, model: Path, golden: Path) -> tuple[float, float]:
    """Return the same for girih's logits."""
    command = [program, "diagnose", model, "--golden", golden, "--json", "--quiet"]
    prompts_ = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["prompts"]
    rows = [next(row for row in prompt if row["layer"] == "logits") for prompt in prompts_]
    with safe_open(golden, "numpy") as file:
        sizes = [file.get_tensor(f"p{index}.logits_f32").size for index in range(len(rows))]
    squares = sum(row["rms"] ** 2 * size for row, size in zip(rows, sizes))
    return float(np.sqrt(squares / sum(sizes))), max(row["max_abs"] for row in rows)


def logits(arguments: argparse.Namespace) -> int:
    print(f"{'type':8}{'girih rms':>12}{'girih max':>12}{'llama.cpp rms':>16}{'llama.cpp max':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.type or FILE_TYPES:
            ours, theirs = Path(folder, f"girih-{name}.gguf"), Path(folder, f"llama-{name}.gguf")
            ours = girih_quantize(arguments.girih, arguments.source or arguments.plain, ours, name)
            row = "{:12.4f}{:12.4f}".format(*girih_errors(arguments.girih, ours, arguments.golden))
            number = FILE_TYPES[name]
            if number is not None and quantize(arguments.plain, theirs, number):
                row += "{:16.4f}{:16.4f}".format(*logit_errors(theirs, arguments.golden))
            else:
                row += f"{'-':>16}{'-':>16}"
            print(f"{name:8}{row}")
    return 0


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
        if not quantize(arguments.plain, path, file_type):
            print("llama.cpp cannot quantize this file", file=sys.stderr)
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
        print("formats differ, or the tensor is in one file only:", ", ".join(different))
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
    command = commands.add_parser("logits")
    command.add_argument("plain", type=Path)
    command.add_argument("golden", type=Path)
    command.add_argument("--girih", type=Path, required=True)
    command.add_argument("--source", type=Path, help="the model that girih quantizes instead of PLAIN (int4 and int8 need safetensors)")
    command.add_argument("--type", action="append", choices=FILE_TYPES)
    command.set_defaults(run=logits)
    command = commands.add_parser("words")
    command.add_argument("model", type=Path)
    command.add_argument("strings", type=Path)
    command.set_defaults(run=words)
    arguments = parser.parse_args()
    quiet()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
