#!/usr/bin/env python3
"""Write random weights for a small model that serves as a test fixture.

    scripts/make_fixture.py tests/fixtures/qwen2 --seed 2

reads `config.json` from the folder, builds the model with Hugging Face transformers, and writes
`model.safetensors` in bf16 beside it, with the tensor names of transformers. `--rename` gives them the names of
published models where those differ. `make_golden.py` then writes the reference outputs. Needs torch, transformers
and safetensors. The same configuration, seed and version of torch give the same bytes.

An error in any weight changes the logits: matrices keep the magnitude of their inputs, and biases and norm
weights are far from their initial values.
"""

import argparse
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

GAIN = 1.5
"""The approximate ratio of a matrix's output to its input."""

BIAS_SPREAD = 0.3
NORM_SPREAD = 0.2


def weight(name: str, stored: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random values for one parameter, according to its kind.

    The values of a norm are around its initial value: 1, or 0 if the distance from 1 is stored.
    """
    noise = torch.randn(stored.shape, generator=generator)
    if stored.dim() > 1:
        return noise * GAIN * stored.shape[-1] ** -0.5
    if name.endswith("bias"):
        return noise * BIAS_SPREAD
    if name.endswith("A_log"):
        # Its initial value is random. Some rates forget within a few rows, others remember all of them.
        return 2.0 * noise - 2.0
    if name.endswith(("_min", "_max")):
        # The bounds of a linear part cut some of its numbers.
        return (1.8 + 0.2 * noise) * (-1 if name.endswith("_min") else 1)
    return stored + noise * NORM_SPREAD


def renamed(name: str, renames: list[str]) -> str:
    """Return the name under which a parameter is stored."""
    for rename in renames:
        old, new = rename.split("=")
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


@torch.inference_mode()
def main() -> None:
    """Write the weights for the model of the command line."""
    parser = argparse.ArgumentParser(description="Write random weights for a folder's config.json.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    parser.add_argument(
        "--rename", action="append", default=[], metavar="OLD=NEW", help="the start of tensor names, and its replacement"
    )
    parser.add_argument(
        "--transpose", action="append", default=[], metavar="PART", help="part of the names of tensors stored by columns"
    )
    args = parser.parse_args()
    config = transformers.AutoConfig.from_pretrained(args.folder)
    model = getattr(transformers, config.architectures[0])._from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(args.seed)
    parameters = list(model.named_parameters())  # names a tied matrix once
    # Buffers that files have, such as scales of layers.
    stored = model.state_dict()
    parameters += [(name, buffer) for name, buffer in model.named_buffers() if name in stored]
    parameters.sort(key=lambda parameter: parameter[0])
    weights = {
        renamed(name, args.rename): weight(name, stored, generator).to(torch.bfloat16) for name, stored in parameters
    }
    for name in weights:
        if any(part in name for part in args.transpose):
            weights[name] = weights[name].transpose(-1, -2).contiguous()
    save_file(weights, args.folder / "model.safetensors", metadata={"format": "pt"})
    print(f"{args.folder}: {sum(stored.numel() for _, stored in parameters)} parameters")


if __name__ == "__main__":
    main()
