#!/usr/bin/env python3
"""Check girih against transformers with many small models of random sizes.

    scripts/random_models.py gemma3 --count 200 --girih target/release/girih

For each model, draws sizes and weights, writes the model and its golden files in a temporary folder, and runs
`girih verify` and `girih diagnose` for each golden precision and each type of KV cache. Prints the runs that
failed, then the number of runs that passed and the largest fraction of the derived bound of each kind of run.
The exit code is 1 if a run failed. Needs torch, transformers and safetensors.

Weights are those of make_fixture.py. The same seed, count and versions give the same models. A model that
failed is kept with `--keep`.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import make_fixture
import make_golden
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

VOCABULARY = 512
PROMPT_TOKENS = 40
"""More than most windows."""

GREEDY_TOKENS = 8

Draw = np.random.Generator


def sizes(draw: Draw) -> dict[str, object]:
    """Return random sizes that all architectures have."""
    heads = int(draw.choice([1, 2, 4, 8]))
    width = int(draw.choice([16, 32, 48, 64, 96, 128]))
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": width * int(draw.integers(1, 5)),
        "num_hidden_layers": int(draw.integers(2, 9)),
        "num_attention_heads": heads,
        "num_key_value_heads": int(draw.choice([n for n in (1, 2, 4, 8) if heads % n == 0])),
        "head_dim": int(draw.choice([8, 16, 32, 64])),
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def gemma3(draw: Draw) -> transformers.PreTrainedConfig:
    """Return the text part of a Gemma 3 with windows."""
    common = sizes(draw)
    scale = common["head_dim"] * int(draw.choice([1, 1, 1, 2]))
    window, pattern = int(draw.choice([2, 3, 4, 8, 16, 32])), int(draw.integers(2, 7))
    return transformers.Gemma3TextConfig(
        **common, query_pre_attn_scalar=scale, sliding_window=window, sliding_window_pattern=pattern
    )


def gemma2(draw: Draw) -> transformers.PreTrainedConfig:
    """Return a Gemma 2 with caps and windows."""
    common, window = sizes(draw), int(draw.choice([2, 4, 8, 16, 32]))
    scale, cap = common["head_dim"], float(draw.choice([5, 20, 50]))
    return transformers.Gemma2Config(
        **common, query_pre_attn_scalar=scale, sliding_window=window, attn_logit_softcapping=cap
    )


def llama(draw: Draw) -> transformers.PreTrainedConfig:
    """Return a Llama with or without a head of its own."""
    return transformers.LlamaConfig(**sizes(draw), tie_word_embeddings=bool(draw.integers(2)))


def qwen3(draw: Draw) -> transformers.PreTrainedConfig:
    """Return a Qwen 3 with or without a head of its own."""
    return transformers.Qwen3Config(**sizes(draw), tie_word_embeddings=bool(draw.integers(2)))


ARCHITECTURES = {"gemma2": gemma2, "gemma3": gemma3, "llama": llama, "qwen3": qwen3}


def write_model(folder: Path, config: transformers.PreTrainedConfig, seed: int) -> None:
    """Write a model with random weights in bf16."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: make_fixture.weight(name, stored, generator).to(torch.bfloat16)
        for name, stored in sorted(model.named_parameters())
    }
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_golden(folder: Path, precisions: list[str], draw: Draw) -> None:
    """Write a golden file with one random prompt."""
    prompt = draw.integers(3, VOCABULARY, size=PROMPT_TOKENS).tolist()
    golden = {"p0.input_ids": torch.tensor(prompt, dtype=torch.int32)}
    for precision in precisions:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=make_golden.PRECISIONS[precision], attn_implementation="eager"
        ).eval()
        tensors = make_golden.prompt_tensors(model, prompt, GREEDY_TOKENS, cached=False)
        golden |= {f"p0.{part}_{precision}": tensor.contiguous() for part, tensor in tensors.items()}
    save_file(golden, folder / "golden.safetensors")


def check(girih: str, folder: Path, against: str, kv: str) -> tuple[float, float, str]:
    """Return the largest fraction of the bound, the logits' largest bound relative to their root mean square, and
    why the run failed or an empty text."""
    options = [folder, "--golden", folder / "golden.safetensors", "--against", against, "--kv", kv, "--json", "--quiet"]
    # Kept packed weights would outlive the temporary folder.
    options += ["--packed-cache", "off", "--threads", "1"]
    results = []
    for command in ("verify", "diagnose"):
        ended = subprocess.run([girih, command, *options], capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1) or not ended.stdout:
            raise SystemExit(f"girih {command} on {folder}: {ended.stderr.strip()}")
        results.append(json.loads(ended.stdout))
    verdict, diagnosis = results
    rows = [row for prompt in diagnosis["prompts"] for row in prompt]
    # JSON has no infinity; a difference that is not finite is null.
    worst = max(rows, key=lambda row: float("inf") if row["of_bound"] is None else row["of_bound"])
    fraction = float("inf") if worst["of_bound"] is None else worst["of_bound"]
    bound = max(row["bound"] for row in rows if row["layer"] == "logits")
    if fraction > 1:
        return fraction, bound, f"{worst['layer']} at token {worst['worst_token']}: {fraction:.3f} times the bound"
    return fraction, bound, "" if verdict["passed"] else "the greedy tokens disagree"


def names(text: str) -> list[str]:
    """Parse `f32,bf16`."""
    return text.split(",")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Check girih with small models of random sizes.")
    parser.add_argument("architecture", choices=ARCHITECTURES)
    parser.add_argument("--count", type=int, default=200, help="number of models (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first model (default: 0)")
    parser.add_argument("--girih", default="girih", help="the program (default: girih)")
    parser.add_argument("--against", type=names, default="f32,bf16", help="golden precisions (default: f32,bf16)")
    parser.add_argument("--kv", type=names, default="f32,f16", help="types of the KV cache (default: f32,f16)")
    parser.add_argument("--keep", type=Path, help="folder for the models that failed")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    """Make and check the models."""
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    fractions, bounds, failed = defaultdict(list), defaultdict(list), 0
    for seed in range(args.seed, args.seed + args.count):
        draw = np.random.default_rng(seed)
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_model(folder, ARCHITECTURES[args.architecture](draw), seed)
            write_golden(folder, args.against, draw)
            for against in args.against:
                for kv in args.kv:
                    fraction, bound, fault = check(args.girih, folder, against, kv)
                    fractions[against, kv].append(fraction)
                    bounds[against, kv].append(bound)
                    if not fault:
                        continue
                    failed += 1
                    print(f"seed {seed}, golden {against}, KV cache {kv}: {fault}", flush=True)
                    if args.keep:
                        kept = args.keep / f"{args.architecture}-{seed}"
                        kept.mkdir(parents=True, exist_ok=True)
                        for file in folder.iterdir():
                            (kept / file.name).write_bytes(file.read_bytes())
    for (against, kv), values in fractions.items():
        median, largest = np.median(values), max(values)
        print(f"golden {against}, KV cache {kv}: median {median:.3f}, largest {largest:.3f} of the bound", end="; ")
        print(f"largest bound of logits {max(bounds[against, kv]):.1e} of their root mean square")
    print(f"{sum(map(len, fractions.values())) - failed} runs passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
