#!/usr/bin/env python3
"""Give a small model random weights, as a fixture for tests.

    scripts/make_fixture.py tests/fixtures/qwen2 --seed 2

reads `config.json` from the folder, builds the model with Hugging Face transformers, and writes
`model.safetensors` in bf16 beside it, under the names that transformers gives. `make_golden.py` then says
what the model computes. Needed are torch, transformers and safetensors. The same configuration, seed and
version of torch give the same bytes.

The weights are such that a fault in any of them shows in the logits: matrices keep the size of what
passes through them, biases and weights of norms are far from what initialisation would leave them at.
"""

import argparse
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

GAIN = 1.5
"""How much larger than its input, about, the output of a matrix is."""

BIAS_SPREAD = 0.3
NORM_SPREAD = 0.2


def weight(name: str, stored: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random values for one parameter, according to what it is.

    A norm's are around what it was initialised with: 1, or 0 where the distance from 1 is stored.
    """
    noise = torch.randn(stored.shape, generator=generator)
    if stored.dim() > 1:
        return noise * GAIN * stored.shape[-1] ** -0.5
    if name.endswith("bias"):
        return noise * BIAS_SPREAD
    return stored + noise * NORM_SPREAD


@torch.inference_mode()
def main() -> None:
    """Writes the weights that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write random weights for a folder's config.json.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="what weights are drawn with (default: 0)")
    args = parser.parse_args()
    config = transformers.AutoConfig.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(args.seed)
    parameters = sorted(model.named_parameters())  # names a tied matrix once
    weights = {name: weight(name, stored, generator).to(torch.bfloat16) for name, stored in parameters}
    save_file(weights, args.folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{args.folder}: {sum(stored.numel() for _, stored in parameters)} parameters")


if __name__ == "__main__":
    main()
