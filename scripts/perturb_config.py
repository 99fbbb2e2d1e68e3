#!/usr/bin/env python3
"""Check that girih refuses a changed configuration, or computes what transformers computes with it.

    scripts/perturb_config.py tests/fixtures/llama32_tied --girih target/release/girih --count 200

makes `--count` variants of the folder's `config.json`. Each differs in one key: half of them change, null or
remove a key that the file has, half add one that some configuration class of transformers has. For each
variant, one of these must hold:

    refused   `girih inspect` refuses it
    equal     transformers loads it with all weights, and `girih verify` passes against its outputs in f32
    unjudged  transformers takes no such value of a key that archs/*.toml lists as harmless (or null for one
              that it refuses), and girih's outputs are those of the unchanged folder; or the key is one of
              ACCEPTED

Where transformers takes no integer for a number, the same number as a float counts.

All others are WRONG: they are printed, and the exit status is 1. Needs torch, transformers and safetensors.
"""

import argparse
import collections
import copy
import importlib
import json
import pkgutil
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

import make_golden

REMOVED = object()
"""The value of a key that is removed."""

TOKENS = 40
"""Tokens of the prompt: more than the window of each fixture."""

TOLERANCE = 1e-4
"""The largest error of a logit, relative to their root mean square. The derived bound of a variant whose
attention scores are large permits more than a key may change."""

ROOT = Path(__file__).resolve().parent.parent

FURTHER = {
    "layer_types": [["full_attention"], ["sliding_attention"] * 3, [], "full_attention"],
    "sliding_window": [1, 8, 4096],
    "use_sliding_window": [True, False],
    "max_window_layers": [0, 1],
    "partial_rotary_factor": [0.5, 1.0],
    "no_rope_layers": [[0, 1, 1], [1, 1, 1]],
    "logit_scale": [0.0625, 1.0],
    "attention_multiplier": [0.1],
    "embedding_multiplier": [12.0],
    "residual_multiplier": [0.22],
    "logits_scaling": [8.0],
    "attention_bias": [True, False, 0],
    "mlp_bias": [True, False],
    "head_dim": [8, 16, 32, None],
    "hidden_act": ["gelu", "silu", "gelu_new", "relu"],
    "num_key_value_heads": [1, 2, 4, None],
    "rope_theta": [10000.0, 5000, None],
    "rope_scaling": [
        None,
        {},
        {"rope_type": "linear", "factor": 2.0},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0},
        {"rope_type": "default", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0},
    ],
    "rope_parameters": [
        None,
        {},
        {"rope_type": "default", "rope_theta": 5000.0},
        {"rope_type": "linear", "factor": 2.0},
        {"full_attention": {"rope_type": "linear", "factor": 2.0}},
        {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ],
    "original_max_position_embeddings": [64],
    "tie_word_embeddings": [True, False],
    "query_pre_attn_scalar": [64],
    "final_logit_softcapping": [5.0],
    "attn_logit_softcapping": [5.0],
    "use_bidirectional_attention": [True, False],
    "model_type": ["mistral", "qwen2"],
    "quantization_config": [{"quant_method": "fp8"}],
    "text_config": [{"hidden_size": 32}],
    "pretraining_tp": [1, 2],
    "position_embedding_type": ["absolute", "relative_key"],
    "is_decoder": [True, False],
    "temperature": [0.7, 1.0],
    "max_length": [20],
    "repetition_penalty": [1.5],
    "layer_norm_eps": [1e-3],
}
"""Keys that have changed the numbers of some model, with values to try."""

ACCEPTED = {
    "Gemma2ForCausalLM sliding_window": "null is no window, as in Mistral; this class fails with it",
    "Gemma3ForCausalLM sliding_window": "null is no window, as in Mistral; this class fails with it",
    "Gemma3ForConditionalGeneration sliding_window": "null is no window, as in Mistral; this class fails with it",
    "MinistralForCausalLM sliding_window": "null is no window, as in Mistral; this class fails with it",
    "Gemma2ForCausalLM query_pre_attn_scalar": "this class takes integers only",
    "Gemma3ForCausalLM query_pre_attn_scalar": "this class takes integers only",
    "Gemma3ForConditionalGeneration query_pre_attn_scalar": "this class takes integers only",
    "Qwen2ForCausalLM head_dim": "null counts as absent; this class computes with it",
    "Exaone4ForCausalLM layer_types": "without a window all layers are full; this class divides by zero",
}
"""Keys for which girih takes more values than a class of transformers does."""

Variant = tuple[tuple[str, ...], Any]
"""The path of a key and its new value."""


def leaves(config: dict, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """List the keys of a configuration, those of objects by their path."""
    found = []
    for key, value in config.items():
        found.append(((*path, key), value))
        if isinstance(value, dict):
            found += leaves(value, (*path, key))
    return found


def others(value: Any) -> list[Any]:
    """Return values other than `value`, most of its own type."""
    match value:
        case bool():
            return [not value, None, int(value), str(value)]
        case int() | float():
            return [value * 2, value + 1, value - 1, 0, -value, None, str(value), [value], float(value) + 0.5]
        case str():
            return [value + "x", "silu", "gelu", "", None, 1, True]
        case list():
            return [[], value[:-1], value[::-1], value + value[:1], None, "x", 1]
        case dict():
            return [{}, None, [], "x", 1]
        case _:
            return [1, 16, 0.5, True, "x", [1], {"a": 1}]


def changes(config: dict) -> list[Variant]:
    """List the variants that change, null or remove a key of the file."""
    words = sorted({value for _, value in leaves(config) if isinstance(value, str)})
    listed: list[Variant] = []
    for path, value in leaves(config):
        new = [other for other in others(value) if other != value or type(other) is not type(value)]
        if isinstance(value, str):
            new += [word for word in words if word != value][:2]
        if len(path) == 1:
            new += [other for other in FURTHER.get(path[0], []) if other != value]
        listed += [(path, other) for other in [*new, REMOVED]]
    return listed


def attributes() -> dict[str, list[Any]]:
    """Return the attributes of all configuration classes of transformers, with their defaults."""
    found: dict[str, list[Any]] = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        try:
            module = importlib.import_module(f"transformers.models.{package.name}.configuration_{package.name}")
        except Exception:  # a model that needs packages that are not installed
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, transformers.PretrainedConfig):
                for name, field in getattr(kind, "__dataclass_fields__", {}).items():
                    default = field.default if isinstance(field.default, (bool, int, float, str)) else None
                    if default not in found.setdefault(name, []):
                        found[name].append(default)
    return found


def additions(config: dict) -> list[Variant]:
    """List the variants that add a key; to the text part of a model of several parts, too."""
    if "text_config" in config:
        inside = [(("text_config", *path), value) for path, value in additions(config["text_config"])]
        alone = {key: value for key, value in config.items() if key != "text_config"}
        return inside + [variant for variant in additions(alone) if variant[0][0] != "text_config"]
    listed: list[Variant] = []
    for name, defaults in sorted(attributes().items()):
        values = [other for default in defaults for other in others(default)[:3] if other is not None]
        listed += [((name,), value) for value in values if name not in config]
    for name, values in FURTHER.items():
        # Several times, as each has many fewer than the classes together.
        listed += [((name,), value) for value in values if name not in config] * 20
    scalings = [key for key in ("rope_scaling", "rope_parameters") if isinstance(config.get(key), dict)]
    inner = {"partial_rotary_factor": 0.5, "rope_theta": 77.0, "attention_factor": 2.0, "type": "yarn", "mscale": 1.0}
    listed += [((key, name), value) for key in scalings for name, value in inner.items()] * 20
    return listed


def changed(config: dict, variant: Variant) -> dict:
    """Return the configuration with one key changed."""
    config = copy.deepcopy(config)
    (*parents, key), value = variant
    inner = config
    for parent in parents:
        inner = inner[parent]
    if value is REMOVED:
        del inner[key]
    else:
        inner[key] = value
    return config


def harmless() -> tuple[set[str], set[str]]:
    """Return the keys that some description lists as harmless, and those that are harmless as null."""
    keys: set[str] = set()
    refused: set[str] = set()
    for path in (ROOT / "archs").glob("*.toml"):
        description = tomllib.loads(path.read_text())
        keys |= set(description.get("hf", {})) | set(description.get("harmless", {}))
        refused |= set(description.get("refuse", {}))
    # A description may move the keys of the one that it is based on below an object.
    return keys, refused | {f"text_config.{key}" for key in refused}


@torch.inference_mode()
def golden(folder: Path, kind: str, prompt: list[int]) -> dict[str, torch.Tensor] | str:
    """Return the outputs of transformers for the prompt, or why there are none; `kind` is the model's class."""
    encoder = kind.endswith("Model")
    if kind.endswith("ForConditionalGeneration"):
        loader = getattr(transformers, kind)
    else:
        loader = transformers.AutoModel if encoder else transformers.AutoModelForCausalLM
    try:
        model, info = loader.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, return_dict=True
        )
        lacking = {name for name in info["missing_keys"] if not name.startswith("pooler.")}
        if lacking or info["mismatched_keys"] or info.get("error_msgs"):
            return f"transformers makes up weights: {sorted(lacking)[:2]} {list(info['mismatched_keys'])[:2]}"
        model = model.eval()
        tensors = {"p0.input_ids": torch.tensor(prompt, dtype=torch.int32)}
        if encoder:
            tensors["p0.token_type_ids"] = make_golden.token_types(prompt).to(torch.int32)
            tensors |= make_golden.batch_tensors(model, [prompt])
            outputs = make_golden.encoder_tensors(model, prompt)
        else:
            outputs = make_golden.prompt_tensors(model, prompt, steps=2, cached=False)
        tensors |= {f"p0.{name}_f32": tensor.contiguous() for name, tensor in outputs.items()}
    except Exception as error:
        return f"transformers fails: {type(error).__name__}: {str(error).strip()[:300]!r}"
    finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    return tensors if finite else "transformers gives NaN"


class Judge:
    """Compares girih with transformers on variants of one folder."""

    def __init__(self, source: Path, config: str, girih: Path, folder: Path, seed: int) -> None:
        self.girih, self.folder = girih, folder
        self.config = json.loads((source / config).read_text())
        shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
        self.kind = self.config["architectures"][0]
        generator = random.Random(seed)
        sizes = self.config.get("text_config", self.config)
        self.prompt = [generator.randrange(3, sizes["vocab_size"]) for _ in range(TOKENS)]
        self.harmless = harmless()
        (folder / "config.json").write_text(json.dumps(self.config))
        self.unchanged = golden(folder, self.kind, self.prompt)
        if isinstance(self.unchanged, str):
            raise SystemExit(f"{source}: {self.unchanged}")

    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        """Run girih."""
        limits = ["--threads", "1", "--context", "64", "--quiet"]
        return subprocess.run([self.girih, *arguments, *limits], capture_output=True, text=True, timeout=120)

    def passes(self, outputs: dict[str, torch.Tensor]) -> str | None:
        """Return None if girih's outputs are these, or what differs."""
        file = self.folder / "golden.safetensors"
        save_file(outputs, file)
        verified = self.call("verify", str(self.folder), "--golden", str(file), "--json")
        if verified.returncode != 0:
            return (verified.stdout + verified.stderr).strip()[-300:]
        logits = outputs.get("p0.logits_f32")
        if logits is None:
            return None  # an encoder
        error = json.loads(verified.stdout)["prompts"][0]["logits_max_abs"]
        allowed = TOLERANCE * logits.double().square().mean().sqrt().item()
        return None if error <= allowed else f"a logit differs by {error:.1e}; {allowed:.1e} is allowed"

    def judge(self, variant: Variant) -> tuple[str, str]:
        """Return the class of a variant, and the reason."""
        (self.folder / "config.json").write_text(json.dumps(changed(self.config, variant)))
        inspected = self.call("inspect", str(self.folder))
        if inspected.returncode == 101:
            return "WRONG", f"girih panics: {inspected.stderr[-300:]}"
        if inspected.returncode != 0:
            return "refused", inspected.stderr.strip()
        outputs = golden(self.folder, self.kind, self.prompt)
        if not isinstance(outputs, str):
            differs = self.passes(outputs)
            return ("WRONG", f"the outputs differ: {differs}") if differs else ("equal", "")
        reason = ACCEPTED.get(f"{self.kind} {variant[0][-1]}")
        if reason:
            return "unjudged", f"{reason} ({outputs})"
        differs = self.passes(self.unchanged)
        full = variant[0]
        paths = [full, full[1:]] if full[0] == "text_config" else [full]
        starts = {".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}
        known = self.harmless[0] if variant[1] is not None else self.harmless[0] | self.harmless[1]
        if not differs and starts & known:
            return "unjudged", outputs
        if type(variant[1]) is int and ("expected float" in outputs or "match any type" in outputs):
            return self.judge_as_float(variant)
        return "WRONG", f"girih accepts, but {outputs}"

    def judge_as_float(self, variant: Variant) -> tuple[str, str]:
        """Judge girih's outputs with an integer against those of transformers with a float."""
        path, value = variant
        file = self.folder / "config.json"
        file.write_text(json.dumps(changed(self.config, (path, float(value)))))
        outputs = golden(self.folder, self.kind, self.prompt)
        file.write_text(json.dumps(changed(self.config, variant)))
        differs = outputs if isinstance(outputs, str) else self.passes(outputs)
        return ("WRONG", f"as a float: {differs}") if differs else ("equal", "")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Check girih against transformers on changed configurations of small models."
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="folders of models")
    parser.add_argument("--config", default="config.json", help="the file of the folder to change (default: config.json)")
    parser.add_argument("--girih", type=Path, required=True, help="the program")
    parser.add_argument("--count", type=int, default=200, help="variants per model (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice (default: 0)")
    parser.add_argument("--verbose", action="store_true", help="print every variant")
    return parser.parse_args()


def main() -> None:
    """Judge all variants of all models."""
    args = arguments()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    is_wrong = False
    for source in args.models:
        with tempfile.TemporaryDirectory() as folder:
            judge = Judge(source, args.config, args.girih.resolve(), Path(folder), args.seed)
            generator = random.Random(args.seed)
            own, new = changes(judge.config), additions(judge.config)
            half = min(len(own), (args.count + 1) // 2)
            chosen = generator.sample(own, half) + generator.sample(new, args.count - half)
            counts: collections.Counter[str] = collections.Counter()
            for variant in chosen:
                verdict, reason = judge.judge(variant)
                counts[verdict] += 1
                is_wrong |= verdict == "WRONG"
                if args.verbose or verdict in ("WRONG", "unjudged"):
                    value = "removed" if variant[1] is REMOVED else json.dumps(variant[1])
                    print(f"  {verdict}: {'.'.join(variant[0])} = {value}: {reason}", flush=True)
            parts = ", ".join(f"{counts[name]} {name}" for name in ("refused", "equal", "unjudged", "WRONG"))
            print(f"{source}: {len(chosen)} variants: {parts}", flush=True)
    sys.exit(1 if is_wrong else 0)


if __name__ == "__main__":
    main()
