#!/usr/bin/env python3
"""Write a LoRA adapter with random matrices for a model, as PEFT saves it.

    scripts/random_adapter.py MODEL OUT --rank 8 --modules q_proj,down_proj

MODEL is the folder of a causal language model. B, which PEFT fills with zeros, is random, too, so that the adapter changes the
model. With `--patterns`, layer 0 has half the rank and another alpha (`rank_pattern`, `alpha_pattern`). `--shape` needs no
weights: the matrices have the sizes of the model that its `config.json` describes. Needs torch, transformers and peft.
"""

import argparse
from pathlib import Path

import peft
import torch
import transformers

ALL = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write a random LoRA adapter for a model.")
    parser.add_argument("model", help="a folder")
    parser.add_argument("out", type=Path, help="the folder of the adapter")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=16)
    parser.add_argument("--modules", default=ALL, help=f"the adapted modules, with commas (default: {ALL})")
    parser.add_argument("--rslora", action="store_true", help="divide alpha by the root of the rank")
    parser.add_argument("--patterns", action="store_true", help="give layer 0 another rank and alpha")
    parser.add_argument("--size", type=float, default=0.05, help="the standard deviation of A and B (default: 0.05)")
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--shape", action="store_true", help="read config.json only")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    """Write the adapter."""
    args = arguments()
    dtype = PRECISIONS[args.precision]
    if args.shape:
        with torch.device("meta"):
            config = transformers.AutoConfig.from_pretrained(args.model)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    first = {r"layers.0.mlp.down_proj": args.rank // 2, r"layers.0.self_attn.q_proj": args.rank // 2}
    settings = peft.LoraConfig(
        r=args.rank,
        lora_alpha=args.alpha,
        target_modules=args.modules.split(","),
        use_rslora=args.rslora,
        rank_pattern=first if args.patterns else {},
        alpha_pattern={r"layers.0.self_attn.q_proj": args.alpha / 4} if args.patterns else {},
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    torch.manual_seed(args.seed)
    state = {
        name: (torch.randn(value.shape) * args.size).to(dtype)
        for name, value in peft.get_peft_model_state_dict(adapted).items()
    }
    args.out.mkdir(parents=True, exist_ok=True)
    from safetensors.torch import save_file

    save_file(state, args.out / "adapter_model.safetensors", metadata={"format": "pt"})
    settings.inference_mode = True
    settings.base_model_name_or_path = args.model
    settings.save_pretrained(args.out)


if __name__ == "__main__":
    main()
