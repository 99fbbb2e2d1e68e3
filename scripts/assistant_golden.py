#!/usr/bin/env python3
"""Check girih's assistants against transformers, with small models of random sizes.

    scripts/assistant_golden.py --count 5 --girih target/debug/girih

An assistant of Gemma 4 reads, for the token at position p + 1, its embedding in the model, the model's hidden states at
p, and the keys and values of positions 0 to p of the model's last layers of each kind that have some
(`SinglePositionMultiTokenCandidateGenerator` in transformers' `generation/candidate_generator.py`). For each seed this
draws a model and its assistant, writes both folders, and golden.safetensors in the assistant's folder, which has

    p0  the first token of a draft after each position: the model's hidden states are given
    p1  a second token: the assistant's own hidden states are given

    pN.input_ids        int32 [T], whose first id is not read
    pN.mtp_rows_f32     float32 [T-1, W]: hidden states, own hidden states, then keys and values of each kind
    pN.mtp_logits_f32   float32 [T-1, V]

Keys are those before their rotation. With `--of`, it writes the assistant of a model that exists. Else it runs
`girih verify --assistant` and prints one line of JSON per model; the exit code is 1 if one was wrong. Needs torch,
transformers and safetensors.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import random_configs
import random_models
import torch
import transformers
from safetensors.torch import save_file

FAMILY = "gemma4_text"

TOKENS = (40, 150)
"""Of the prompts: the second crosses two ends of blocks of state."""


def assistant_config(target: Any, draw: Any) -> Any:
    """Return the configuration of an assistant of a model."""
    kinds = ["sliding_attention"] * int(draw.integers(1, 4)) + ["full_attention"]
    text = target.to_dict()
    width = int(draw.choice([16, 24, 32]))
    layers = len(kinds)
    for key in ("per_layer_config", "dtype", "_name_or_path", "architectures"):
        text.pop(key, None)
    sizes = {kind: target.per_layer_config[at] for kind, at in stored_layers(target).items()}
    full, local = sizes["full_attention"], sizes["sliding_attention"]
    text |= {
        "head_dim": local.head_dim,
        "num_key_value_heads": local.num_key_value_heads,
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.num_key_value_heads,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "num_kv_shared_layers": layers,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
    }
    config = transformers.Gemma4AssistantConfig(
        text_config=transformers.Gemma4TextConfig(**text),
        backbone_hidden_size=target.hidden_size,
        use_ordered_embeddings=False,
    )
    config.architectures = ["Gemma4AssistantForCausalLM"]
    return config


def write_assistant(folder: Path, config: Any, seed: int) -> None:
    """Write an assistant with random weights."""
    model = transformers.Gemma4AssistantForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(random_models.weight(name, tensor, generator))
    model.to(torch.bfloat16).save_pretrained(folder)


def stored_layers(config: Any) -> dict[str, int]:
    """Return the layer of each kind whose keys and values others may read."""
    return {config.layer_types[at]: at for at, mode in enumerate(config.kv_sharing_modes) if mode == "store"}


@torch.inference_mode()
def write_golden(folder: Path, target: Any, assistant: Any, prompt: list[int], draw: Any) -> None:
    """Write the golden file."""
    seen: dict[str, torch.Tensor] = {}
    config = target.config.get_text_config()
    layers = stored_layers(config)
    for kind, at in layers.items():
        attention = target.model.layers[at].self_attn
        for part in ("k", "v"):
            getattr(attention, f"{part}_norm").register_forward_hook(
                lambda _module, _inputs, out, key=(kind, part): seen.__setitem__(str(key), out[0].flatten(1))
            )
    ids = torch.tensor([prompt])
    out = target(ids, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    hidden = out.hidden_states[-1][0]
    count, width = len(prompt) - 1, assistant.config.get_text_config().hidden_size
    # The kinds in the order of their names in girih: full before local.
    given = [seen[str((kind, part))][:count] for kind in sorted(layers) for part in ("k", "v")]
    own: list[torch.Tensor] = []
    handle = assistant.model.register_forward_hook(lambda _module, _inputs, out: own.append(out.last_hidden_state[0, 0]))
    second = draw.integers(3, config.vocab_size, size=count).tolist()
    embed = target.get_input_embeddings()
    logits: list[list[torch.Tensor]] = [[], []]
    for at in range(count):
        shared = {kind: tuple(part[:, :, : at + 1] for part in both) for kind, both in out.shared_kv_states.items()}
        last, token = hidden[at], prompt[at + 1]
        for step in range(2):
            row = torch.cat([embed(torch.tensor([[token]])), last[None, None]], dim=-1)
            made = assistant(
                inputs_embeds=row, position_ids=torch.tensor([[at + 1]]), shared_kv_states=shared, use_cache=False
            )
            logits[step].append(made.logits[0, 0])
            last, token = made.last_hidden_state[0, 0], second[at]
    handle.remove()
    first = torch.stack(own[::2])
    rows = [
        torch.cat([hidden[:count], torch.zeros(count, width), *given], dim=-1),
        torch.cat([torch.zeros_like(hidden[:count]), first, *given], dim=-1),
    ]
    golden = {}
    for step, tokens in enumerate([prompt, [0, *second]]):
        golden |= {
            f"p{step}.input_ids": torch.tensor(tokens, dtype=torch.int32),
            f"p{step}.mtp_rows_f32": rows[step].float().contiguous(),
            f"p{step}.mtp_logits_f32": torch.stack(logits[step]).float().contiguous(),
        }
    save_file(golden, folder / "golden.safetensors")


def write_of(target_folder: Path, folder: Path) -> None:
    """Write an assistant of a model, with its golden file."""
    draw = np.random.default_rng(0)
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    target = transformers.Gemma4ForCausalLM.from_pretrained(target_folder, **load).eval()
    write_assistant(folder, assistant_config(target.config, draw), 1)
    assistant = transformers.Gemma4AssistantForCausalLM.from_pretrained(folder, **load).eval()
    prompt = draw.integers(3, target.config.vocab_size, size=80).tolist()
    write_golden(folder, target, assistant, prompt, draw)


def check(seed: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make one model and its assistant in a folder, and return its line."""
    draw = np.random.default_rng([seed, *FAMILY.encode()])
    config = random_configs.drawn(FAMILY, draw)
    # girih refuses biases, and assistants have no experts.
    config.attention_bias, config.enable_moe_block = False, False
    config.use_bidirectional_attention = None
    line: dict[str, Any] = {"seed": seed, "state": "right", "sentence": "", "of_bound": 0.0}
    if len(stored_layers(config)) < 2:  # noqa: PLR2004
        return line | {"state": "unbuilt", "sentence": "transformers' assistants need layers with a window and without one"}
    target_folder, own_folder = folder / "model", folder / "assistant"
    random_models.write_model(target_folder, config, seed, draw)
    write_assistant(own_folder, assistant_config(config, draw), seed + 1)
    load = {"dtype": torch.float32, "attn_implementation": "eager"}
    target = transformers.Gemma4ForCausalLM.from_pretrained(target_folder, **load).eval()
    assistant = transformers.Gemma4AssistantForCausalLM.from_pretrained(own_folder, **load).eval()
    prompt = draw.integers(3, random_configs.VOCABULARY, size=TOKENS[seed % 2]).tolist()
    write_golden(own_folder, target, assistant, prompt, draw)
    for isa in args.isa or [None]:
        options = ["--threads", "1", "--packed-cache", "off", "--quiet"] + (["--isa", isa] if isa else [])
        options += ["--arch", args.arch] if args.arch else []
        golden = own_folder / "golden.safetensors"
        command = [args.girih, "verify", target_folder, "--assistant", own_folder, "--golden", golden, "--json", *options]
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1) or not ended.stdout:
            return line | {"state": "refused", "sentence": random_models.one_line(ended.stderr)}
        verdict = json.loads(ended.stdout)
        for step, row in enumerate(verdict["prompts"]):
            line["of_bound"] = max(line["of_bound"], row["of_bound"] or np.inf)
            if not row["of_bound"] or row["of_bound"] > 1.0:
                sentence = f"{isa}: step {step}: logits at row {row['worst_token']}: {row['of_bound']} times the bound"
                return line | {"state": "wrong", "sentence": sentence}
    return line


def main() -> None:
    """Check the models of the command line."""
    parser = argparse.ArgumentParser(description="Check assistants against transformers.")
    parser.add_argument("--count", type=int, default=3, help="models (default: 3)")
    parser.add_argument("--girih", default="target/release/girih", help="the program")
    parser.add_argument("--isa", type=lambda text: text.split(","), help="kernel tables, with commas between them")
    parser.add_argument("--arch", help="a description of the architecture that is used in place of girih's")
    parser.add_argument("--keep", type=Path, help="a folder in which the models stay")
    parser.add_argument("--of", type=Path, help="write an assistant of the model in this folder to --keep, and check nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.of:
        write_of(args.of, args.keep)
        return
    wrong = False
    for seed in range(args.count):
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.keep / f"assistant-{seed}" if args.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            line = check(seed, args, folder)
        wrong |= line["state"] not in ("right", "unbuilt")
        print(json.dumps(line), flush=True)
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
