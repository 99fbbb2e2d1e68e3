#!/usr/bin/env python3
"""Check girih's layers for multi-token prediction against a twin in torch, with small models of random sizes.

    scripts/mtp_golden.py qwen3_5_text glm4_moe deepseek_v3 --count 5 --girih target/debug/girih

transformers leaves such layers out. This twin follows what is published: DeepSeek-V3's report (arXiv 2412.19437, section
2.2) and vLLM's `deepseek_mtp.py`, `glm4_moe_mtp.py` and `qwen3_next_mtp.py`. Row t reads the model's hidden state at t,
after the last norm, and the embedding of token t + 1:

    x = M [norm(embedding of t + 1), norm(hidden state at t)]
    logits = head(norm(layer(x)))

The layer is one of transformers' own of the family, so only the lines above are the twin's. For each family and seed this
draws a configuration and weights as random_models.py does, writes the folder as published models have it, and
golden.safetensors, which has beside the outputs of make_golden.py

    p0.mtp_logits_f32  float32 [T-1, V]

Then it runs `girih verify --mtp` and prints one line of JSON per model; the exit code is 1 if one was wrong. Needs torch,
transformers and safetensors.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import make_golden
import numpy as np
import random_configs
import random_models
import torch
import transformers
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

TOKENS = (40, 150)
"""Of the prompts: the second crosses two ends of blocks of state."""

NAMES = {
    "deepseek": {
        "layer": "model.layers.{n}.",
        "tokens": "model.layers.{n}.enorm.weight",
        "hidden": "model.layers.{n}.hnorm.weight",
        "matrix": "model.layers.{n}.eh_proj.weight",
        "norm": "model.layers.{n}.shared_head.norm.weight",
        "embedding": "model.layers.{n}.embed_tokens.weight",
        "head": "model.layers.{n}.shared_head.head.weight",
    },
    "qwen": {
        "layer": "mtp.layers.0.",
        "tokens": "mtp.pre_fc_norm_embedding.weight",
        "hidden": "mtp.pre_fc_norm_hidden.weight",
        "matrix": "mtp.fc.weight",
        "norm": "mtp.norm.weight",
    },
    "dsa": {
        "layer": "model.layers.{n}.",
        "tokens": "model.layers.{n}.enorm.weight",
        "hidden": "model.layers.{n}.hnorm.weight",
        "matrix": "model.layers.{n}.eh_proj.weight",
        "norm": "model.layers.{n}.shared_head.norm.weight",
    },
    "mimo": {
        "layer": "model.mtp.layers.{i}.",
        "tokens": "model.mtp.layers.0.enorm.weight",
        "hidden": "model.mtp.layers.0.hnorm.weight",
        "matrix": "model.mtp.layers.0.eh_proj.weight",
        "norm": "model.mtp.layers.0.final_layernorm.weight",
    },
    "nemotron": {
        "layer": "mtp.layers.{i}.",
        "tokens": "mtp.layers.0.enorm.weight",
        "hidden": "mtp.layers.0.hnorm.weight",
        "matrix": "mtp.layers.0.eh_proj.weight",
        "norm": "mtp.layers.1.final_layernorm.weight",
    },
}
"""The names of the tensors in published files."""

FAMILIES = {
    "deepseek_v3": ("deepseek", {"num_nextn_predict_layers": 1}),
    "glm4_moe": ("deepseek", {"num_nextn_predict_layers": 1}),
    "qwen3_5_text": ("qwen", {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}),
    "qwen3_5_moe_text": ("qwen", {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}),
    "qwen3_next": ("qwen", {}),
    "deepseek_v32": ("dsa", {"num_nextn_predict_layers": 1}),
    "glm_moe_dsa": ("dsa", {"num_nextn_predict_layers": 1}),
    "mimo_v2_flash": ("mimo", {}),
    "nemotron_h": ("nemotron", {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]}),
}
"""The names of each family, and the keys of its `config.json` that tell of the layer."""


KINDS = {
    "dsa": {"layer_types": ["indexed_attention"], "mlp_layer_types": ["sparse"], "indexer_types": ["full"]},
    "mimo": {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    "nemotron": {"layers_block_type": ["full_attention", "moe"]},
}
"""The kinds of the layers that predict, where the last layer of a longer model is not of this kind."""

RENAMED = {"mimo": {"post_attention_layernorm": "pre_mlp_layernorm"}}
"""Parts of a layer's names, each with that of a layer that predicts."""


def kinds_of(config: transformers.PreTrainedConfig) -> tuple[int, dict[str, list[str]]]:
    """Return the number of layers that predict, and their kinds, if these are others than the last layer's."""
    style = next((FAMILIES[family][0] for family in FAMILIES if family == config.model_type), "")
    kinds = {key: kinds for key, kinds in KINDS.get(style, {}).items() if getattr(config, key, None)}
    return max([1, *map(len, kinds.values())]), kinds


def only_predicting(config: transformers.PreTrainedConfig) -> transformers.PreTrainedConfig:
    """Return the configuration of a model of the layers that predict."""
    short = copy.deepcopy(config)
    count, kinds = kinds_of(config)
    values = {**short.to_dict(), **kinds, "num_hidden_layers": count}
    return type(config).from_dict({key: value for key, value in values.items() if key != "per_layer_config"})


def one_layer_more(config: transformers.PreTrainedConfig) -> transformers.PreTrainedConfig:
    """Return a configuration with one more layer, of the kind that predicts: with full attention, and with experts."""
    longer = copy.deepcopy(config)
    layers = config.num_hidden_layers
    count, own = kinds_of(config)
    if own:
        values = {**config.to_dict(), "num_hidden_layers": layers + count}
        values |= {key: [*getattr(config, key), *kinds] for key, kinds in own.items()}
        return type(config).from_dict(values)
    longer.num_hidden_layers = layers + 1
    if kinds := getattr(config, "layer_types", None):
        longer.layer_types = [*kinds, "full_attention"]
    if kinds := getattr(config, "mlp_layer_types", None):
        longer.mlp_layer_types = [*kinds[:layers], "sparse"]
    if hasattr(config, "first_k_dense_replace"):
        longer.first_k_dense_replace = min(config.first_k_dense_replace, layers)
    return longer


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float, one: float) -> torch.Tensor:
    """Divide rows by their root mean square, and multiply them with a weight that is stored less `one`."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * (weight + one)


class Twin:
    """A model with one more layer, and the tensors that only prediction has."""

    def __init__(self, family: str, config: transformers.PreTrainedConfig, seed: int) -> None:
        """Draw the tensors beside the layer's own."""
        self.style, self.keys = FAMILIES[family]
        self.config, self.layers = config, config.num_hidden_layers
        self.names = {part: name.format(n=self.layers, i=0) for part, name in NAMES[self.style].items()}
        generator = torch.Generator().manual_seed(seed + 1)
        width, vocabulary = config.hidden_size, config.vocab_size
        one = 0.0 if self.style == "qwen" else 1.0
        drawn = {
            part: random_models.weight(f"{part}.norm", torch.full((width,), one), generator)
            for part in ("tokens", "hidden", "norm")
        }
        drawn["matrix"] = random_models.weight("fc", torch.zeros(width, 2 * width), generator)
        # Some files repeat the model's embedding and head, and some do not. Others than the model's show which is read.
        if "embedding" in self.names and seed % 2:
            drawn["embedding"] = random_models.weight("embed", torch.zeros(vocabulary, width), generator)
            drawn["head"] = random_models.weight("head", torch.zeros(vocabulary, width), generator)
        self.drawn = {part: tensor.to(torch.bfloat16) for part, tensor in drawn.items()}

    def starts(self) -> list[tuple[str, str]]:
        """Return the starts of the names of each layer, as transformers has them and as published ones are."""
        count, _ = kinds_of(self.config)
        names = NAMES[self.style]["layer"]
        return [
            (f"{base}layers.{self.layers + at}.", names.format(n=self.layers, i=at))
            for at in range(count)
            for base in ("model.", "backbone.")
        ]

    def moved(self, name: str) -> str:
        """Return the published name of a tensor of a longer model."""
        for start, own in self.starts():
            if name.startswith(start):
                rest = name[len(start) :]
                for part, other in RENAMED.get(self.style, {}).items():
                    rest = rest.replace(part, other)
                return own + rest
        return name

    def write(self, folder: Path, seed: int, draw: Any) -> None:
        """Write the model as published ones are: the last layer has the names of the one that predicts."""
        random_models.write_model(folder, one_layer_more(self.config), seed, draw)
        if self.style in KINDS:
            made = random_models.model_class(self.config).from_pretrained(folder, dtype=torch.float32)
            self.predicting = made.base_model
        path = folder / "model.safetensors"
        tensors = load_file(path)
        moved = {self.moved(n): t for n, t in tensors.items()}
        moved |= {self.names[part]: tensor for part, tensor in self.drawn.items()}
        save_file({n: t.contiguous() for n, t in moved.items()}, path, metadata={"format": "pt"})
        path = folder / "config.json"
        longer = json.loads(path.read_text())
        shorter = self.config.to_dict()
        lists = ("num_hidden_layers", "layer_types", "mlp_layer_types", "layers_block_type", "indexer_types", "per_layer_config")
        cut = {k: shorter.get(k) for k in lists if k in longer}
        path.write_text(json.dumps(longer | cut | self.keys, indent=2))

    def logits(self, folder: Path, model: torch.nn.Module, tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of all rows."""
        if self.style in KINDS:
            return self.logits_of_model(model, tokens, hidden)
        longer = random_models.model_class(self.config).from_config(one_layer_more(self.config), dtype=torch.float32)
        longer.config._attn_implementation = "eager"  # noqa: SLF001
        layer = longer.model.layers[self.layers].eval()
        layer.load_state_dict(self.layer_state(folder))
        part = {name: tensor.float() for name, tensor in self.drawn.items()}
        epsilon, one = self.config.rms_norm_eps, 1.0 if self.style == "qwen" else 0.0
        embedding = part.get("embedding", model.get_input_embeddings().weight.float())
        head = part.get("head", model.get_output_embeddings().weight.float())
        following = embedding[torch.tensor(tokens[1:])]
        both = [norm(following, part["tokens"], epsilon, one), norm(hidden[:-1], part["hidden"], epsilon, one)]
        x = (torch.cat(both, dim=-1) @ part["matrix"].T)[None]
        count = x.shape[1]
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), torch.finfo(torch.float32).min).triu(1)[None, None]
        rotations = model.model.rotary_emb(x, positions)
        x = layer(x, position_embeddings=rotations, attention_mask=mask, position_ids=positions)
        x = x[0] if isinstance(x, tuple) else x
        return norm(x[0], part["norm"], epsilon, one) @ head.T

    def logits_of_model(self, model: torch.nn.Module, tokens: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of all rows, of layers that are a model of their own."""
        part = {name: tensor.float() for name, tensor in self.drawn.items()}
        epsilon = getattr(self.config, "rms_norm_eps", None) or self.config.layer_norm_epsilon
        following = model.get_input_embeddings().weight.float()[torch.tensor(tokens[1:])]
        both = [norm(following, part["tokens"], epsilon, 0.0), norm(hidden[:-1], part["hidden"], epsilon, 0.0)]
        x = (torch.cat(both, dim=-1) @ part["matrix"].T)[None]
        own = random_models.model_class(self.config).from_config(only_predicting(self.config), dtype=torch.float32)
        own.config._attn_implementation = "eager"  # noqa: SLF001
        base = own.eval().base_model
        base.layers.load_state_dict(self.predicting.layers[self.layers :].state_dict())
        last = base.norm if hasattr(base, "norm") else base.norm_f
        last.weight.data.copy_(part["norm"])
        rows = base(inputs_embeds=x, use_cache=False).last_hidden_state[0]
        return rows @ model.get_output_embeddings().weight.float().T

    def layer_state(self, folder: Path) -> Tensors:
        """Return the layer's tensors as transformers names them, from a folder with one layer more."""
        with tempfile.TemporaryDirectory() as temporary:
            whole = Path(temporary)
            tensors = load_file(folder / "model.safetensors")
            start, own = self.names["layer"], f"model.layers.{self.layers}."
            extra = {self.names[part] for part in self.drawn}
            kept = {n.replace(start, own, 1) if n.startswith(start) else n: t for n, t in tensors.items() if n not in extra}
            save_file(kept, whole / "model.safetensors", metadata={"format": "pt"})
            one_layer_more(self.config).save_pretrained(whole)
            model = random_models.model_class(self.config).from_pretrained(whole, dtype=torch.float32)
            return model.model.layers[self.layers].state_dict()


@torch.inference_mode()
def write_golden(folder: Path, twin: Twin, draw: Any) -> None:
    """Write a golden file with one random prompt."""
    prompt = draw.integers(3, random_configs.VOCABULARY, size=int(draw.choice(TOKENS))).tolist()
    model = random_models.model_class(twin.config).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    tensors = make_golden.prompt_tensors(model.eval(), prompt, 1, cached=False)
    tensors["mtp_logits"] = twin.logits(folder, model, prompt, tensors["hidden"][-1])
    golden = {f"p0.{part}_f32": tensor.contiguous() for part, tensor in tensors.items()}
    save_file(golden | {"p0.input_ids": torch.tensor(prompt, dtype=torch.int32)}, folder / "golden.safetensors")


def check(family: str, seed: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make one model in a folder, and return its line."""
    draw = np.random.default_rng([seed, *family.encode()])
    config = random_configs.drawn(family, draw)
    if family.startswith("qwen"):
        # girih refuses biases.
        config.attention_bias = False
    if family == "qwen3_next":
        # Published models have experts in every layer.
        config.decoder_sparse_step, config.mlp_only_layers = 1, []
    twin = Twin(family, config, seed)
    twin.write(folder, seed, draw)
    write_golden(folder, twin, draw)
    line: dict[str, Any] = {"family": family, "seed": seed, "state": "right", "sentence": "", "of_bound": 0.0}
    model = folder
    if args.gguf:
        if drops := random_models.gguf_drops(family, config.to_dict()):
            return line | {"state": "unbuilt", "sentence": f"llama.cpp's converter drops {', '.join(drops)}"}
        converted = random_models.gguf_of(folder, args.gguf, drafting=True)
        if not converted:
            return line | {"state": "unbuilt", "sentence": "llama.cpp's converter refuses it"}
        model = converted
    for isa in args.isa or [None]:
        options = ["--threads", "1", "--packed-cache", "off", "--quiet"] + (["--isa", isa] if isa else [])
        options += ["--arch", args.arch] if args.arch else []
        command = [args.girih, "verify", model, "--mtp", "--golden", folder / "golden.safetensors", "--json", *options]
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1) or not ended.stdout:
            return line | {"state": "refused", "sentence": random_models.one_line(ended.stderr)}
        verdict = json.loads(ended.stdout)
        line["of_bound"] = max(line["of_bound"], verdict["prompts"][0]["of_bound"] or np.inf)
        if not verdict["passed"]:
            row = verdict["prompts"][0]
            sentence = f"{isa}: logits at row {row['worst_token']}: {row['of_bound']} times the bound"
            return line | {"state": "wrong", "sentence": sentence}
    return line


def main() -> None:
    """Check the families of the command line."""
    parser = argparse.ArgumentParser(description="Check layers for multi-token prediction against a twin in torch.")
    parser.add_argument("families", nargs="+", choices=sorted(FAMILIES))
    parser.add_argument("--count", type=int, default=3, help="models of each family (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument("--girih", default="target/release/girih", help="the program")
    parser.add_argument("--isa", type=lambda text: text.split(","), help="kernel tables, with commas between them")
    parser.add_argument("--arch", help="a description of the architecture that is used in place of girih's")
    parser.add_argument("--gguf", type=Path, help="check the GGUF that llama.cpp's converter in this folder makes")
    parser.add_argument("--keep", type=Path, help="a folder in which the models stay")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wrong = False
    for family in args.families:
        for seed in range(args.seed, args.seed + args.count):
            with tempfile.TemporaryDirectory() as temporary:
                folder = args.keep / f"{family}-{seed}" if args.keep else Path(temporary)
                folder.mkdir(parents=True, exist_ok=True)
                line = check(family, seed, args, folder)
            wrong |= line["state"] not in ("right", "unbuilt")
            print(json.dumps(line), flush=True)
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
