#!/usr/bin/env python3
"""Check girih against transformers with many small models of random sizes, of every decoder family.

    scripts/random_models.py llama gemma3_text --count 50 --girih target/release/girih
    scripts/random_models.py --list families.txt --results results.jsonl

For each family and seed, draws a configuration (random_configs.py) and weights, writes the model in a temporary
folder as transformers saves it, and asks girih for it. If girih does not refuse it, makes the golden files of each
precision and runs `girih verify`, and with `--fractions` also `girih diagnose`. Prints one line of JSON per model:

    family, seed   what was drawn
    state          right, refused, wrong, or unbuilt: transformers builds or runs no such model
    sentence       why girih refused it, or what disagrees
    switches       the values of the configuration that differ from the family's default, without sizes
    runs           the runs of a model that was not refused, such as f32 or gguf-bf16, each with its outcome
    gguf_drops     the facts of the model that llama.cpp's converter drops, so that its GGUF is another model
    uncertain      rows whose choice of experts may differ within the errors
    fraction       the largest fraction of the derived bound, with --fractions

The last line on the error output counts the states; the exit code is 1 if a model was wrong. The same seed and
versions give the same models. A model that was wrong is kept with `--keep`. `--configs` writes the `config.json` of a right
model of each family, from which a test of `girih-model` sees that its graph stays the same. `--gguf` names a folder with llama.cpp's
`convert_hf_to_gguf.py`: models that it converts are checked as GGUF, too, except those in `GGUF_DROPS`. Needs torch, transformers, safetensors.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_golden
import numpy as np
import random_configs
import torch
import transformers
from make_fixture import BIAS_SPREAD, GAIN, NORM_SPREAD
from random_configs import VOCABULARY, Draw
from safetensors.torch import load_file, save_file

PROMPT_TOKENS = 40
"""More than most windows."""

LONG_PROMPT_TOKENS = 150
"""The prompt of half of the models that carry values: they cross two ends of blocks of state."""

WITH_STATE = {"bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "olmo_hybrid", "zamba2"} | {
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
}

GREEDY_TOKENS = 4

SAMPLE = ("llama", "gemma3_text", "qwen3_moe", "gpt2", "granite", "lfm2", "mixtral", "cohere")
"""Families of `--sample`: one for each kind of parts."""

Values = dict[str, Any]


def every_fourth_without_rope(values: Values) -> list[int]:
    """Return SmolLM3's `no_rope_layers`: 0 for each fourth layer."""
    return [int((layer + 1) % 4 > 0) for layer in range(values["num_hidden_layers"])]


def alternating_windows(values: Values) -> list[str]:
    """Return the kinds of layers of Gemma 2 and gpt-oss: a window in every other layer, the first included."""
    return [("sliding_attention", "full_attention")[layer % 2] for layer in range(values["num_hidden_layers"])]


def experts_by_step(values: Values) -> list[int]:
    """Return Llama 4's layers with experts, every n-th."""
    step = values["interleave_moe_layer_step"]
    return list(range(step - 1, values["num_hidden_layers"], step))


PLAIN_ROPE = {"rope_parameters.rope_type": "default", "rope_parameters.rope_theta": 10000.0}

def equal_scales(values: Values) -> float | None:
    """Return the scale of rotated components that llama.cpp assumes: that of all components."""
    return values["rope_parameters"].get("mscale_all_dim")


def dense_first(values: Values) -> list[str]:
    """Return the kinds of feed-forward parts by the number of first ones without experts, which is all that a GGUF says."""
    count = len(values["mlp_layer_types"])
    first = min(values["first_k_dense_replace"], count)
    return ["dense"] * first + ["sparse"] * (count - first)


def leading_dense(values: Values) -> list[str]:
    """Return the kinds of feed-forward parts if the ones without experts come first."""
    kinds = values["mlp_layer_types"]
    first = next((at for at, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    return ["dense"] * first + ["sparse"] * (len(kinds) - first)


LATENT = {"rope_interleave": True, "attention_bias": False, "rope_parameters.mscale": equal_scales}

INDEXED = {
    "attention_bias": False,
    "rope_parameters.mscale": equal_scales,
    "mlp_layer_types": lambda values: dense_first(values),
}

PUBLISHED: dict[str, Values] = {
    "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "deepseek_v32": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "glm_moe_dsa": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}
"""Keys that published models of a family have, although transformers does not save them; llama.cpp's converter reads
them."""

def granite_positions(values: Values) -> str | None:
    """Return how a Granite 4 places rows in llama.cpp: without positions beside Mamba-2, else rotated."""
    has_state = "linear_attention" in values["layer_types"]
    return values["position_embedding_type"] if has_state and values["position_embedding_type"] != "rope" else (
        "nope" if has_state else "rope"
    )


def one_kind_of_mlp(values: Values) -> list[str]:
    """Return the layers of a Nemotron-H without dense ones beside experts, which llama.cpp's converter leaves out."""
    kinds = values["layers_block_type"]
    return [kind for kind in kinds if kind != "mlp"] if "moe" in kinds else kinds


GGUF_DROPS: dict[str, Values] = {
    "cohere": {"rope_parameters.rope_type": "default"},
    "cohere2": {"rope_parameters.rope_type": "default"},
    "deepseek_v2": {
        "attention_bias": False,
        "rope_parameters.mscale": equal_scales,
        "topk_method": lambda values: values["topk_method"] if (values["n_group"] or 1) == 1 else "group_limited_greedy",
    },
    "deepseek_v3": LATENT,
    "deepseek_v32": INDEXED,
    "falcon_h1": {
        "attention_bias": False,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")],
        "mamba_norm_before_gate": lambda values: values["mamba_norm_before_gate"] and not values["mamba_rms_norm"],
        "projectors_bias": False,
        "rope_parameters.rope_type": "default",
    },
    "gemma": PLAIN_ROPE,
    "gemma2": {
        **PLAIN_ROPE,
        "query_pre_attn_scalar": lambda values: values["head_dim"],
        "layer_types": alternating_windows,
    },
    "gemma3n_text": {
        "altup_correct_scale": True,
        "vocab_size_per_layer_input": lambda values: values["vocab_size"],
        "rope_parameters.sliding_attention.rope_type": "default",
    },
    "gemma4_text": {"rope_parameters.sliding_attention.rope_type": "default"},
    "gemma4_unified_text": {"rope_parameters.sliding_attention.rope_type": "default"},
    "glm_moe_dsa": {**INDEXED, "indexer_types": lambda values: values["indexer_types"] and ["full"] * len(values["indexer_types"])},
    "gpt_oss": {"rope_parameters.truncate": False, "layer_types": alternating_windows},
    "granitemoehybrid": {
        "position_embedding_type": granite_positions,
        "mamba_proj_bias": False,
        "time_step_limit": [0.0, float("inf")],
    },
    "kimi_linear": {
        "num_expert_group": 1,
        "moe_renormalize": True,
        "linear_num_heads": lambda values: values["num_attention_heads"],
        "mlp_layer_types": leading_dense,
    },
    "lfm2_moe": {"routed_scaling_factor": 1.0, "norm_topk_prob": True},
    "llama4_text": {
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "use_qk_norm": True,
        "attention_bias": False,
        "no_rope_layers": every_fourth_without_rope,
        "moe_layers": experts_by_step,
    },
    "mamba2": {"time_step_limit": [0.0, float("inf")], "use_bias": False},
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "nemotron": {"head_dim": lambda values: values["hidden_size"] // values["num_attention_heads"]},
    "nemotron_h": {
        "layers_block_type": one_kind_of_mlp,
        "mlp_hidden_act": "relu2",
        "time_step_min": 0.001,
        "topk_group": 1,
        "use_bias": False,
    },
    "olmo3": {"rope_parameters.sliding_attention.rope_type": "default"},
    "olmoe": {"rms_norm_eps": 1e-5},
    "qwen3_moe": {"norm_topk_prob": True},
    "qwen3_next": {"norm_topk_prob": True},
    "smollm3": {"no_rope_layers": every_fourth_without_rope, "sliding_window": None},
    "solar_open": {"rope_parameters.partial_rotary_factor": 0.5},
    "stablelm": PLAIN_ROPE,
    "youtu": LATENT,
}
"""Facts that llama.cpp's converter (package llama-cpp-python) does not write, by family, each with the value for which the
file stands: the one of all published models, or a function of the configuration. A model with another value is
not checked as GGUF."""

def gguf_drops(family: str, values: Values) -> list[str]:
    """Return the facts of a configuration that its GGUF file would not have."""

    def value(key: str) -> Any:
        found: Any = values
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    facts = GGUF_DROPS.get(family, {})
    kept = {key: kept(values) if callable(kept) else kept for key, kept in facts.items()}
    return [key for key in facts if value(key) != kept[key]]


def model_class(config: transformers.PreTrainedConfig) -> Any:
    """Return the automatic class that builds a model of a configuration."""
    if type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return transformers.AutoModelForCausalLM
    if type(config) in transformers.AutoModelForImageTextToText._model_mapping:
        return transformers.AutoModelForImageTextToText
    return transformers.AutoModel


def weight(name: str, stored: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random values for one parameter or buffer, according to its kind.

    No value is the one that a model starts with, so that none hides a weight that is not read.
    """
    noise = torch.randn(stored.shape, generator=generator)
    if "embed" in name and stored.dim() == 2:
        return noise
    if stored.dim() > 1:
        return noise * GAIN * (stored[0].numel() if stored.dim() == 2 else stored.shape[-1]) ** -0.5
    if "sink" in name:
        return noise
    if name.endswith("A_log"):
        # Rates that forget within a few rows, and others that remember all of them.
        return 2.0 * noise - 2.0
    spread = BIAS_SPREAD if "bias" in name or "correction" in name else NORM_SPREAD
    return stored.float() + noise * spread


@torch.inference_mode()
def write_model(folder: Path, config: transformers.PreTrainedConfig, seed: int, draw: Draw) -> None:
    """Write a model with random weights in bf16, as transformers saves it."""
    model = model_class(config).from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    persistent = set(model.state_dict())
    stored = dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if n in persistent}
    for name, tensor in sorted(stored.items()):
        if tensor.is_floating_point():
            tensor.copy_(weight(name, tensor, generator).to(torch.bfloat16))
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    if config.model_type == "kimi_k25":
        # transformers saves layers under the name of those of the vision part.
        path = folder / "model.safetensors"
        saved = {name.replace("language_model.model.blocks.", "language_model.model.layers."): one for name, one in load_file(path).items()}
        save_file(saved, path, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | PUBLISHED.get(config.model_type, {}), indent=2))
    if draw.random() < 0.5:
        in_old_style(folder / "config.json")


def with_linear_object(config: Values) -> Values:
    """Return a configuration of Kimi-Linear as published ones are: an object lists the layers, which count from 1."""
    kinds = config.pop("layer_types")
    published = {"head_dim": "head_dim", "num_heads": "num_heads", "conv_kernel_dim": "short_conv_kernel_size"}
    own = {to: config.pop(f"linear_{key}") for key, to in published.items()}
    for key, kind in (("kda_layers", "linear_attention"), ("full_attn_layers", "full_attention")):
        own[key] = [i + 1 for i, of in enumerate(kinds) if of == kind]
    fixed = {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "use_grouped_topk": True}
    return config | fixed | {"linear_attn_config": own, "rope_theta": 10000.0, "rope_scaling": None}


def in_old_style(path: Path) -> None:
    """Rewrite a `config.json` with the keys of transformers 4, which most published models have."""
    config = json.loads(path.read_text())
    if config["model_type"] == "kimi_linear":
        path.write_text(json.dumps(with_linear_object(config), indent=2))
        return
    rope = config.get("rope_parameters")
    # A table per kind of layer has no equal in that style, and neither have keys that were moved into the object.
    if not isinstance(rope, dict) or "rope_theta" not in rope or "llama_4_scaling_beta" in rope:
        return
    del config["rope_parameters"]
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if rope.get("rope_type") == "default" else rope
    config["torch_dtype"] = config.pop("dtype", "bfloat16")
    path.write_text(json.dumps(config, indent=2))


@torch.inference_mode()
def write_golden(folder: Path, config: transformers.PreTrainedConfig, precisions: list[str], draw: Draw) -> None:
    """Write a golden file with one random prompt."""
    kinds = getattr(config, "layer_types", None) or ()
    carries = config.model_type in WITH_STATE or any("linear" in kind for kind in kinds)
    length = LONG_PROMPT_TOKENS if carries and draw.random() < 0.5 else PROMPT_TOKENS
    prompt = draw.integers(3, VOCABULARY, size=length).tolist()
    golden = {"p0.input_ids": torch.tensor(prompt, dtype=torch.int32)}
    for precision in precisions:
        model = model_class(config).from_pretrained(
            folder, dtype=make_golden.PRECISIONS[precision], attn_implementation="eager"
        )
        tensors = make_golden.prompt_tensors(model.eval(), prompt, GREEDY_TOKENS, cached=False)
        golden |= {f"p0.{part}_{precision}": tensor.contiguous() for part, tensor in tensors.items()}
    save_file(golden, folder / "golden.safetensors")


def switches(family: str, config: transformers.PreTrainedConfig) -> Values:
    """Return the values that differ from a family's default and are no sizes."""
    usual = random_configs.stated(random_configs.default(family))
    sizes = random_configs.SIZES
    changed = {key: value for key, value in random_configs.stated(config).items() if value != usual.get(key)}
    left_out = {*sizes, *config.sub_configs}
    return {k: v for k, v in changed.items() if k not in left_out and not k.endswith("_token_id")}


class Girih:
    """The program, and the options of each run."""

    def __init__(self, args: argparse.Namespace, isa: str | None = None) -> None:
        """Use the program of the command line, on this kernel table."""
        self.program, self.fractions = args.girih, args.fractions
        self.arch = ["--arch", args.arch] if args.arch else []
        # Kept packed weights would outlive the temporary folder.
        self.options = ["--threads", "1", "--packed-cache", "off", "--quiet"] + (["--isa", isa] if isa else [])

    def run(self, command: str, *arguments: Any) -> subprocess.CompletedProcess:
        """Run a command."""
        words = [self.program, command, *map(str, [*arguments, *self.arch])]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def refusal(self, model: Path) -> str | None:
        """Return why the model is refused."""
        ended = self.run("inspect", model, "--json")
        # A folder without a tokenizer ends well; a broken one does not concern this check.
        if ended.returncode in (0, 1) and ended.stdout:
            refusals = json.loads(ended.stdout)["refusals"]
            return refusals[0] if refusals else None
        return one_line(ended.stderr)

    def verify(self, model: Path, golden: Path, against: str, kv: str) -> tuple[Values, str]:
        """Return the verdict, and why the run failed or an empty text."""
        options = [model, "--golden", golden, "--against", against, "--kv", kv, "--json", *self.options]
        ended = self.run("verify", *options)
        if ended.returncode not in (0, 1) or not ended.stdout:
            return {}, one_line(ended.stderr) or f"verify ended with code {ended.returncode}"
        verdict = json.loads(ended.stdout)
        if self.fractions:
            rows = [row for prompt in json.loads(self.run("diagnose", *options).stdout)["prompts"] for row in prompt]
            # JSON has no infinity; a difference that is not finite is null.
            verdict["fraction"] = max(np.inf if row["of_bound"] is None else row["of_bound"] for row in rows)
        if verdict["passed"]:
            return verdict, ""
        prompt = verdict["prompts"][0]
        beyond, step = prompt["first_out_of_bound"], prompt["failed_step"]
        if beyond:
            return verdict, f"{beyond['layer']} at token {beyond['worst_token']}: {beyond['of_bound']} times the bound"
        return verdict, f"greedy step {step['step']}: {step['disagreement']}"


def one_line(text: str) -> str:
    """Return a message without its start and line ends."""
    return re.sub(r"\s+", " ", text).strip().removeprefix("error: ").removeprefix("girih: ")


def as_published(config: Values) -> Values:
    """Return a configuration with the words of published files, if transformers 5 writes others, which the converter lacks."""
    if config["model_type"] == "granitemoehybrid":
        words = {"linear_attention": "mamba", "full_attention": "attention"}
        return config | {"layer_types": [words.get(kind, kind) for kind in config["layer_types"]]}
    if config["model_type"] == "kimi_linear":
        config = config if "linear_attn_config" in config else with_linear_object(config)
        kinds = config.get("mlp_layer_types") or []
        dense = next((at for at, kind in enumerate(kinds) if kind != "dense"), len(kinds))
        config = {"first_k_dense_replace": dense} | config
        renamed = {"num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts"}
        return config | {to: config[key] for key, to in renamed.items() if key in config and to not in config}
    if config["model_type"] == "falcon_h1":
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return config | {"head_dim": size}
    if config["model_type"] == "nemotron_h":
        letters = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
        kinds = config.pop("layers_block_type")
        if "moe" not in kinds:
            del config["num_experts_per_tok"]
        pattern = "".join(letters[kind] for kind in kinds)
        # Without the size of heads, the converter wants a multiple of 64; published files have both names of the epsilon.
        head = {"mamba_d_head": config["mamba_head_dim"], "rms_norm_eps": config["layer_norm_epsilon"]}
        # transformers would add experts to a configuration of a kind that it knows.
        config["model_type"] = "published"
        return config | head | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(kinds)}
    return config


def published_names(model_type: str, name: str, stored: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a tensor under its names in published files, if transformers 5 writes others, which the converter lacks."""
    if model_type == "granitemoehybrid":
        for new, old in GRANITE_NAMES.items():
            name = name.replace(new, old)
        yield name, stored
    elif model_type == "kimi_linear":
        yield re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", name), stored
    elif model_type == "nemotron_h":
        name = re.sub("^model\\.", "backbone.", name)
        experts = re.fullmatch(r"(.*\.experts)\.(up|down)_proj", name)
        if experts:
            start, part = experts.groups()
            yield from ((f"{start}.{i}.{part}_proj.weight", one.contiguous()) for i, one in enumerate(stored))
        else:
            yield name, stored
    else:
        yield name, stored


GRANITE_NAMES = {
    "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
    "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
    "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
}
"""Names of Granite 4's tensors in transformers 5, each with that of published files."""


def gguf_of(folder: Path, converter: Path, drafting: bool = False) -> Path | None:
    """Return the model as a GGUF file in bf16 made by llama.cpp's converter; `None` if it does not know the family.

    With `drafting`, the model has layers that draft tokens.
    """
    out = folder / "model.gguf"
    source = folder / "source"
    source.mkdir()
    saved = load_file(folder / "model.safetensors")
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    named = {name: one for entry in saved.items() for name, one in published_names(kind, *entry)}
    save_file(named, source / "model.safetensors", metadata={"format": "pt"})
    config = as_published(json.loads((folder / "config.json").read_text()))
    (source / "config.json").write_text(json.dumps(config))
    script = Path(__file__).with_name("convert_without_tokenizer.py")
    # The converter multiplies weights of Falcon-H1 by factors, and bf16 would round the products.
    outtype = "f32" if kind == "falcon_h1" else "bf16"
    command = [sys.executable, script, converter, source, "--outfile", out, "--outtype", outtype]
    # transformers makes no layers that draft tokens.
    without = ["--no-mtp"] if kind.startswith(("qwen3_5", "qwen3_next")) and not drafting else []
    subprocess.run([*command, *without], capture_output=True, check=False)
    shutil.rmtree(source)
    return out if out.exists() else None


def unbuilt(family: str, seed: int, fault: Exception) -> Values:
    """Return the line of a model that transformers does not build or run."""
    sentence = one_line(f"{type(fault).__name__}: {fault}")[:200]
    return {"family": family, "seed": seed, "state": "unbuilt", "sentence": sentence}


def check(family: str, seed: int, args: argparse.Namespace, folder: Path) -> Values:
    """Make one model in a folder, and return its line."""
    draw = np.random.default_rng([seed, *family.encode()])
    try:
        config = random_configs.drawn(family, draw)
        write_model(folder, config, seed, draw)
    except Exception as fault:  # noqa: BLE001 (any fault of the library is reported)
        return unbuilt(family, seed, fault)
    line = {"family": family, "seed": seed, "state": "right", "sentence": "", "switches": switches(family, config)}
    refusal = Girih(args).refusal(folder)
    if refusal is not None:
        return line | {"state": "refused", "sentence": refusal}
    try:
        write_golden(folder, config, args.against, draw)
    except Exception as fault:  # noqa: BLE001
        return unbuilt(family, seed, fault)
    runs, uncertain, fraction = {}, 0, 0.0
    files = {"": folder}
    if args.gguf and (converted := gguf_of(folder, args.gguf)):
        if drops := gguf_drops(family, config.to_dict()):
            line["gguf_drops"] = drops
        else:
            files["gguf-"] = converted
    for start, model in files.items():
        if start and (refusal := Girih(args).refusal(model)) is not None:
            runs["gguf"] = f"refused: {refusal}"
            continue
        for against in args.against:
            for kv in args.kv:
                for isa in args.isa or [None]:
                    girih = Girih(args, isa)
                    verdict, fault = girih.verify(model, folder / "golden.safetensors", against, kv)
                    name = start + against + (f"-{kv}" if kv != "f32" else "") + (f"-{isa}" if isa else "")
                    runs[name] = fault or "right"
                    uncertain = max(uncertain, verdict.get("bound", {}).get("uncertain_choices", 0))
                    fraction = max(fraction, verdict.get("fraction", 0.0))
                    if fault:
                        line |= {"state": "wrong", "sentence": f"{name}: {fault}"}
    line |= {"runs": runs, "uncertain": uncertain}
    return line | ({"fraction": round(fraction, 4)} if args.fractions else {})


def names(text: str) -> list[str]:
    """Parse `f32,bf16`."""
    return text.split(",")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Check girih with small models of random sizes.")
    parser.add_argument("families", nargs="*", help="model types of transformers, such as llama")
    parser.add_argument("--list", type=Path, action="append", default=[], help="file with a family per line")
    parser.add_argument("--sample", action="store_true", help=f"the families {', '.join(SAMPLE)}")
    parser.add_argument("--count", type=int, default=1, help="number of models of each family (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model (default: 0)")
    parser.add_argument("--girih", default="girih", help="the program (default: girih)")
    parser.add_argument("--arch", type=Path, help="description of an architecture that the program does not have")
    parser.add_argument("--against", type=names, default="f32,bf16", help="golden precisions (default: f32,bf16)")
    parser.add_argument("--kv", type=names, default="f32", help="types of the KV cache (default: f32)")
    parser.add_argument("--isa", type=names, default="", help="kernel tables (default: the fastest)")
    parser.add_argument("--gguf", type=Path, help="folder of llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("--fractions", action="store_true", help="also report the largest fraction of the bound")
    parser.add_argument("--results", type=Path, help="file to append lines to; models that it has are not made again")
    parser.add_argument("--configs", type=Path, help="file of a configuration of each family that was right")
    parser.add_argument("--keep", type=Path, help="folder for the models that were wrong")
    args = parser.parse_args()
    args.isa = [isa for isa in args.isa if isa] if args.isa else []
    for path in args.list:
        args.families += path.read_text().split()
    args.families += SAMPLE if args.sample else ()
    if not args.families:
        parser.error("no family; name some, or give --list or --sample")
    return args


def known(results: Path | None) -> dict[tuple[str, int], Values]:
    """Return the lines that a file of results has."""
    if results is None or not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {(line["family"], line["seed"]): line for line in lines}


def keep_config(path: Path, family: str, seed: int, folder: Path) -> None:
    """Add the configuration of a right model to a file with a line per family, if it has none of this family."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if all(line["family"] != family for line in lines):
        config = json.loads((folder / "config.json").read_text())
        lines.append({"family": family, "seed": seed, "config": config})
        lines.sort(key=lambda line: line["family"])
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def main() -> None:
    """Make and check the models."""
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    made = known(args.results)
    states = Counter()
    for seed in range(args.seed, args.seed + args.count):
        for family in args.families:
            if (family, seed) in made:
                states[made[family, seed]["state"]] += 1
                continue
            with tempfile.TemporaryDirectory() as folder:
                line = check(family, seed, args, Path(folder))
                if line["state"] == "wrong" and args.keep:
                    shutil.copytree(folder, args.keep / f"{family}-{seed}", dirs_exist_ok=True)
                if line["state"] == "right" and args.configs:
                    keep_config(args.configs, family, seed, Path(folder))
            states[line["state"]] += 1
            text = json.dumps(line)
            print(text, flush=True)
            if args.results:
                with args.results.open("a") as file:
                    file.write(text + "\n")
    print(", ".join(f"{count} {state}" for state, count in sorted(states.items())), file=sys.stderr)
    sys.exit(states["wrong"] > 0)


if __name__ == "__main__":
    main()
