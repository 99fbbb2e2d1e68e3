#!/usr/bin/env python3
"""Train a small Llama model on texts, to measure what a quantized KV cache changes.

    scripts/train_llama.py TEXTS OUT --minutes 10
    girih perplexity OUT TEXTS/frankenstein.txt --kv q4_0

TEXTS is a folder of texts, of which the files of `--files` are used, except for the last `--held-out` bytes of each, which OUT gets as
held_out.txt. OUT gets a folder as published ones of Llama are, with a tokenizer of bytes and merges that is trained first. Heads have 64
values. Training stops after `--minutes`, so two runs differ. Needs torch, transformers, tokenizers and safetensors.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import transformers
from train_mtp import END, tokenizer


def train(args: argparse.Namespace, tokens: torch.Tensor, model: torch.nn.Module) -> None:
    """Train until the time is over."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    begun, step = time.monotonic(), 0
    while (share := (time.monotonic() - begun) / (60 * args.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * share)))
        starts = torch.randint(0, len(tokens) - args.length - 1, (args.batch,))
        rows = torch.stack([tokens[start : start + args.length] for start in starts])
        loss = model(input_ids=rows, labels=rows, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        step += 1
    print(f"{step} steps, {step * args.batch * args.length} tokens")


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description="Train a small Llama model.")
    parser.add_argument("texts", type=Path, help="a folder with texts")
    parser.add_argument("out", type=Path, help="the model's folder")
    parser.add_argument("--files", nargs="+", default=["frankenstein.txt", "botchan.txt"], help="names in the folder")
    parser.add_argument("--held-out", type=int, default=20000, help="bytes of each text that are not used")
    parser.add_argument("--minutes", type=float, default=10, help="time (default: 10)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=4, help="rows of a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="the largest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    whole = [(args.texts / name).read_text(encoding="utf-8") for name in args.files]
    texts = [text[: -args.held_out] for text in whole]
    words = tokenizer(texts, args.vocabulary)
    tokens = torch.tensor([token for text in texts for token in words.encode(text).ids])
    config = transformers.AutoConfig.for_model(
        "llama",
        vocab_size=words.get_vocab_size(),
        hidden_size=args.width,
        intermediate_size=3 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.width // 64,
        num_key_value_heads=max(1, args.width // 128),
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.token_to_id(END),
    )
    print(f"{len(tokens)} tokens, {config.vocab_size} in the vocabulary", flush=True)
    model = transformers.AutoModelForCausalLM.from_config(config)
    train(args, tokens, model)
    model.to(torch.bfloat16).save_pretrained(args.out)
    words.save(str(args.out / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 2048}
    (args.out / "tokenizer_config.json").write_text(json.dumps(about, indent=2))
    (args.out / "held_out.txt").write_text("".join(text[-args.held_out :] for text in whole), encoding="utf-8")


if __name__ == "__main__":
    main()
