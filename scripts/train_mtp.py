#!/usr/bin/env python3
"""Train a small model with a layer for multi-token prediction on texts, to measure drafts.

    scripts/train_mtp.py TEXTS OUT --minutes 10
    girih run OUT -p "It was" --raw -n 256 --temp 0 --draft mtp -v    # and --draft off

TEXTS is a folder of texts, of which the files of `--files` are used. OUT gets a folder as published ones of Qwen3.5 are, with a
tokenizer of bytes and merges that is trained first. The model has attention in all layers, with heads of 64 values. Both
losses are trained together, that of the layer with the weight 0.3, as DeepSeek-V3 began (arXiv 2412.19437, section 4.2). It
stops after `--minutes`, so two runs differ. Prints the losses, and how often the layer's best token is the model's. Needs torch,
transformers, tokenizers and safetensors.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen

END = "<|endoftext|>"
WEIGHT = 0.3
"""Of the layer's loss."""


def tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Train a tokenizer."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return made


class Predictor(torch.nn.Module):
    """The layer: published names, in the order of the module."""

    def __init__(self, config: transformers.PreTrainedConfig) -> None:
        """Make the layer; its own index is that of a layer with attention."""
        super().__init__()
        width, epsilon = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = qwen.Qwen3_5RMSNorm(width, eps=epsilon)
        self.pre_fc_norm_hidden = qwen.Qwen3_5RMSNorm(width, eps=epsilon)
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.layers = torch.nn.ModuleList([qwen.Qwen3_5DecoderLayer(config, 0)])
        self.norm = qwen.Qwen3_5RMSNorm(width, eps=epsilon)

    def forward(self, following: torch.Tensor, hidden: torch.Tensor, rotations: tuple) -> torch.Tensor:
        """Return the rows before the head."""
        both = [self.pre_fc_norm_embedding(following), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(both, dim=-1))
        count = x.shape[1]
        mask = torch.full((count, count), torch.finfo(x.dtype).min).triu(1)[None, None]
        x = self.layers[0](x, position_embeddings=rotations, attention_mask=mask)
        return self.norm(x[0] if isinstance(x, tuple) else x)


def losses(
    model: torch.nn.Module, predictor: Predictor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the model's loss, that of the layer, and how often their best tokens agree."""
    hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden)
    own = functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
    following = model.get_input_embeddings()(rows[:, 1:])
    positions = torch.arange(rows.shape[1] - 1)[None]
    drafted = model.lm_head(predictor(following, hidden[:, :-1], model.model.rotary_emb(following, positions)))
    further = functional.cross_entropy(drafted[:, :-1].flatten(0, 1), rows[:, 2:].flatten())
    agreed = (drafted.argmax(-1) == logits[:, 1:].argmax(-1)).float().mean().item()
    return own, further, agreed


def train(args: argparse.Namespace, tokens: torch.Tensor, config: transformers.PreTrainedConfig) -> tuple:
    """Train until the time is over."""
    torch.manual_seed(args.seed)
    config._attn_implementation = "eager"  # noqa: SLF001
    model, predictor = transformers.AutoModelForCausalLM.from_config(config), Predictor(config)
    for weights in predictor.modules():
        if isinstance(weights, torch.nn.Linear):
            torch.nn.init.normal_(weights.weight, std=config.initializer_range)
    parameters = [*model.parameters(), *predictor.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    begun, step = time.monotonic(), 0
    while (share := (time.monotonic() - begun) / (60 * args.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, (step + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * share)))
        starts = torch.randint(0, len(tokens) - args.length - 1, (args.batch,))
        rows = torch.stack([tokens[start : start + args.length] for start in starts])
        own, further, agreed = losses(model, predictor, rows)
        optimizer.zero_grad()
        (own + WEIGHT * further).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 100 == 0:
            line = f"step {step}: loss {own.item():.3f}, of the layer {further.item():.3f}, agreement {agreed:.2f}"
            print(line, flush=True)
        step += 1
    print(f"{step} steps, {step * rows.numel()} tokens")
    return model, predictor


def write(folder: Path, model: torch.nn.Module, predictor: Predictor, words: Tokenizer) -> None:
    """Write the folder, with weights in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    tensors |= {f"mtp.{name}": tensor.to(torch.bfloat16) for name, tensor in predictor.state_dict().items()}
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False}
    path.write_text(json.dumps(config, indent=2))
    words.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2))


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description="Train a small model with a layer for multi-token prediction.")
    parser.add_argument("texts", type=Path, help="a folder with texts")
    parser.add_argument("out", type=Path, help="the model's folder")
    parser.add_argument("--files", nargs="+", default=["frankenstein.txt", "botchan.txt"], help="names in the folder")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="the most bytes of each text")
    parser.add_argument("--minutes", type=float, default=60, help="time (default: 60)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--length", type=int, default=128, help="tokens of a row")
    parser.add_argument("--batch", type=int, default=16, help="rows of a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="the largest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    texts = [(args.texts / name).read_text(encoding="utf-8")[: args.bytes] for name in args.files]
    words = tokenizer(texts, args.vocabulary)
    tokens = torch.tensor([token for text in texts for token in words.encode(text).ids])
    config = transformers.AutoConfig.for_model(
        "qwen3_5_text",
        vocab_size=words.get_vocab_size(),
        hidden_size=args.width,
        intermediate_size=3 * args.width,
        num_hidden_layers=args.layers,
        layer_types=["full_attention"] * args.layers,
        num_attention_heads=args.width // 64,
        num_key_value_heads=max(1, args.width // 128),
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.token_to_id(END),
    )
    print(f"{len(tokens)} tokens, {config.vocab_size} in the vocabulary", flush=True)
    model, predictor = train(args, tokens, config)
    write(args.out, model, predictor, words)


if __name__ == "__main__":
    main()
