#!/usr/bin/env python3
"""Check the GGUF files that `girih quantize` writes of small random models beside those of llama.cpp's converter.

    scripts/written_gguf.py lfm2 qwen3_5_text --count 3 --girih target/debug/girih --gguf FOLDER_OF_CONVERTER

For each family and seed, makes a model as `random_models.py` does, writes it as GGUF with girih in f32, runs `girih verify`
on the golden values of transformers and with `--source`, and compares names, shapes, values and keys with the converter's
file. Prints a line of JSON per model: `state` is right, refused (by girih, by name), unbuilt (transformers does not run it),
or wrong with a sentence; `differs`
lists what the two files have in different ways. Keys of the tokenizer and the file's description are left out. Needs what
`random_models.py` needs, and gguf.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import random_configs
import random_models
import torch
import transformers

LEFT_OUT = ("general.", "tokenizer.", "GGUF.")
"""Starts of keys that say nothing of the model's numbers."""

ROUNDING = 2.0**-8
"""The relative distance of values of bf16, in which the converter's file is, and of those that were not rounded."""

Values = dict[str, Any]


def keys(reader: gguf.GGUFReader) -> Values:
    """Return the keys of a file and their values."""
    found = {}
    for name, field in reader.fields.items():
        if not name.startswith(LEFT_OUT):
            value = field.contents()
            found[name] = round(value, 9) if isinstance(value, float) else value
    return found


def numbers(tensor: gguf.ReaderTensor) -> np.ndarray:
    """Return the values of a tensor in f32."""
    return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).ravel()


def differences(ours: Path, theirs: Path) -> list[str]:
    """Return what two files have in different ways."""
    one, other = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
    lines = []
    own, its = keys(one), keys(other)
    for name in sorted(own.keys() | its.keys()):
        if own.get(name) != its.get(name):
            lines.append(f"{name}: {own.get(name)}, the converter has {its.get(name)}")
    own, its = ({tensor.name: tensor for tensor in reader.tensors} for reader in (one, other))
    for name in sorted(own.keys() | its.keys()):
        if name not in own or name not in its:
            lines.append(f"{name}: only {'the converter' if name in its else 'girih'} has it")
            continue
        shapes = [tuple(int(extent) for extent in side[name].shape) for side in (own, its)]
        if shapes[0] != shapes[1]:
            lines.append(f"{name}: {shapes[0]}, the converter has {shapes[1]}")
        a, b = numbers(own[name]), numbers(its[name])
        if a.size == b.size and not np.allclose(a, b, rtol=ROUNDING, atol=1e-6):
            lines.append(f"{name}: other values")
    return lines


def check(family: str, seed: int, args: argparse.Namespace, folder: Path) -> Values:
    """Make and check one model."""
    draw = np.random.default_rng([seed, *family.encode()])
    config = random_configs.drawn(family, draw)
    random_models.write_model(folder, config, seed, draw)
    line = {"family": family, "seed": seed, "state": "right", "sentence": ""}
    girih = random_models.Girih(args)
    if refusal := girih.refusal(folder):
        return line | {"state": "refused", "sentence": refusal}
    try:
        random_models.write_golden(folder, config, ["f32"], draw)
    except RuntimeError as fault:
        return random_models.unbuilt(family, seed, fault)
    written = folder / "written.gguf"
    ended = girih.run("quantize", folder, written, "--type", "f32", "--quiet")
    if ended.returncode != 0:
        return line | {"state": "refused", "sentence": random_models.one_line(ended.stderr)}
    for part, words in {
        "golden": ["--golden", folder / "golden.safetensors", "--against", "f32", "--json"],
        "source": ["--source", folder, "--json"],
    }.items():
        ended = girih.run("verify", written, *words, *girih.options)
        passed = ended.returncode == 0
        if not passed:
            shown = ended.stderr or ended.stdout
            line |= {"state": "wrong", "sentence": f"{part}: {random_models.one_line(shown)[:600]}"}
            break
    converted = random_models.gguf_of(folder, args.gguf)
    if converted:
        line["differs"] = differences(written, converted)
    return line


def main() -> None:
    """Check the models of the command line."""
    parser = argparse.ArgumentParser(description="Check GGUF files that girih writes.")
    parser.add_argument("families", nargs="+", help="model types of transformers")
    parser.add_argument("--count", type=int, default=1, help="number of models of each family (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model (default: 0)")
    parser.add_argument("--girih", default="girih", help="the program (default: girih)")
    parser.add_argument("--gguf", type=Path, required=True, help="folder of llama.cpp's convert_hf_to_gguf.py")
    args = parser.parse_args()
    args.arch, args.fractions = None, False
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wrong = 0
    for seed in range(args.seed, args.seed + args.count):
        for family in args.families:
            with tempfile.TemporaryDirectory() as folder:
                line = check(family, seed, args, Path(folder))
            wrong += line["state"] == "wrong"
            print(json.dumps(line), flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
