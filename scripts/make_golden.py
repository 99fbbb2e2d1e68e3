#!/usr/bin/env python3
"""Write a golden file: the outputs of Hugging Face transformers for a model, for `girih verify`.

    scripts/make_golden.py MODEL golden.safetensors --prompt "Once upon a time" --ids 1,17,4

MODEL is the folder of a causal language model, or its id on the hub; with --encoder, that of an encoder. Needs torch, transformers and
safetensors. Everything runs on the CPU with eager attention, on one thread by default: the order of sums,
and so the file, then depends only on the libraries' versions and the processor.
In bf16 the model is loaded as users load it: weights and arithmetic in bf16, the RoPE frequencies in
float32.

A prompt is one of three: text, which the model's tokenizer encodes with its default special tokens; token
ids; or a number of random ids. Prompts are numbered in the order given.

For prompt I (T tokens) and precision P (f32 or bf16: of weights and of arithmetic) the file holds

    pI.input_ids     int32 [T]        the prompt
    pI.hidden_P      P [L+1, T, D]    the embeddings, then the output of each layer, the last one
                                      after the final norm
    pI.logits_P      P [T, V]
    pI.greedy_P      int32 [N]        the greedy continuation
    pI.margin_P      float32 [N]      the difference between the two largest logits of each step
    pI.step_top5_P   int32 [N, 5]     the ids of the five largest logits of each step, largest first

For an encoder, the file has `input_ids`, `hidden_P` (without a final norm) and, instead of the others,

    pI.token_type_ids  int32 [1, T]   0 for the first half of the prompt, 1 for the second
    pI.mean_P          float32 [D]    the mean of the last hidden states
    batch.*            the prompts with token type 0 as one batch in f32: input_ids int32 [B, T],
                       attention_mask int32 [B, T] (1, then 0 for padding), last_hidden_f32 [B, T, D]

`girih verify` refuses a golden file that contradicts itself: step 0 must be the best of the last row of logits, each greedy
token the first of its step's ids, and the mean that of the last hidden states.

The greedy continuation does not stop at a stop token. It is computed without a KV cache unless
`--cache` is given: each step then runs all tokens so far, so no bug in a cache can affect the golden file.
With a cache, large models take far less time, and roundings differ slightly.

With `--adapter`, the model has a LoRA adapter of PEFT, whose matrices have the precision of the model; this needs peft.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16}
BEST = 5
"""The number of ids per step in `step_top5`."""

Tensors = dict[str, torch.Tensor]


class Text(str):
    """A prompt as text, to be tokenized."""


class Ids(list[int]):
    """A prompt as token ids."""


class Random(int):
    """A prompt of random token ids; the value is their number."""


def ids(text: str) -> Ids:
    """Parse `1,2,3`."""
    return Ids(int(number) for number in text.split(","))


def prompt_ids(prompts: list[Text | Ids | Random], model: str, seed: int) -> list[list[int]]:
    """Return the token ids of all prompts.

    Random ids exclude the special tokens that the configuration names.
    """
    config = transformers.AutoConfig.from_pretrained(model).get_text_config()
    generator = np.random.default_rng(seed)
    stated = [config.bos_token_id, config.eos_token_id, config.pad_token_id]
    special = {token for entry in stated for token in (entry if isinstance(entry, list) else [entry])}
    ordinary = [token for token in range(config.vocab_size) if token not in special]
    result = []
    for prompt in prompts:
        match prompt:
            case Text():
                tokens = transformers.AutoTokenizer.from_pretrained(model)(str(prompt)).input_ids
            case Ids():
                tokens = list(prompt)
            case Random():
                tokens = generator.choice(ordinary, size=int(prompt)).tolist()
        outside = [token for token in tokens if not 0 <= token < config.vocab_size]
        if outside or not tokens:
            raise SystemExit(f"prompt {len(result)}: ids must be from 0 to {config.vocab_size - 1}; found {tokens}")
        result.append(tokens)
    return result


def greedy(model: torch.nn.Module, prompt: list[int], steps: int, cached: bool) -> Tensors:
    """Return the greedy continuation, with the margin and the top ids of each step."""
    tokens = torch.tensor([prompt])
    cache = None
    values, best = [], []
    for _ in range(steps):
        unseen = tokens if cache is None else tokens[:, -1:]
        output = model(input_ids=unseen, past_key_values=cache, use_cache=cached, logits_to_keep=1)
        cache = output.past_key_values if cached else None
        top = output.logits[0, -1].float().topk(BEST)
        values.append(top.values)
        best.append(top.indices)
        tokens = torch.cat([tokens, top.indices[None, :1]], dim=1)
    top_values, top_ids = torch.stack(values), torch.stack(best)
    return {
        "greedy": top_ids[:, 0].to(torch.int32),
        "margin": top_values[:, 0] - top_values[:, 1],
        "step_top5": top_ids.to(torch.int32),
    }


def hidden_states(
    model: torch.nn.Module, prompt: list[int], states: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Return the embeddings and the output of each layer; Mamba 2 returns no embeddings, and the last layer twice."""
    if model.config.model_type in {"gemma3n", "gemma3n_text"}:
        # Of four residual streams, layers read the first one.
        last = model.get_decoder()(input_ids=torch.tensor([prompt])).last_hidden_state
        return (*(state[0] for state in states[:-1]), last)
    if model.config.model_type != "mamba2":
        return states
    embeddings = model.get_input_embeddings()(torch.tensor([prompt]))
    return (embeddings, *(state.to(embeddings.dtype) for state in (*states[:-2], states[-1])))


def prompt_tensors(model: torch.nn.Module, prompt: list[int], steps: int, cached: bool) -> Tensors:
    """Return the tensors of one prompt at the model's precision."""
    output = model(input_ids=torch.tensor([prompt]), output_hidden_states=True, use_cache=False)
    hidden = torch.cat(hidden_states(model, prompt, output.hidden_states))
    return {"hidden": hidden, "logits": output.logits[0]} | greedy(model, prompt, steps, cached)


def token_types(prompt: list[int]) -> torch.Tensor:
    """Return 0 for the first half of a prompt, and 1 for the second."""
    half = len(prompt) // 2
    return torch.tensor([[0] * half + [1] * (len(prompt) - half)])


def encoder_tensors(model: torch.nn.Module, prompt: list[int]) -> Tensors:
    """Return the tensors of one prompt of an encoder at the model's precision."""
    ids = torch.tensor([prompt])
    output = model(input_ids=ids, token_type_ids=token_types(prompt), output_hidden_states=True)
    mean = output.last_hidden_state[0].float().mean(0)
    return {"hidden": torch.cat(output.hidden_states), "mean": mean}


def batch_tensors(model: torch.nn.Module, prompts: list[list[int]]) -> Tensors:
    """Return the tensors of all prompts as one padded batch."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in prompts])
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return {
        "batch.input_ids": ids.to(torch.int32),
        "batch.attention_mask": mask.to(torch.int32),
        "batch.last_hidden_f32": hidden.contiguous(),
    }


def model_class(model: str) -> type:
    """Return the class that the model's configuration names, which for some models also reads images."""
    return getattr(transformers, transformers.AutoConfig.from_pretrained(model).architectures[0])


def with_adapter(model: torch.nn.Module, folder: str) -> torch.nn.Module:
    """Return the model with an adapter in its modules."""
    import peft

    adapted = peft.PeftModel.from_pretrained(model, folder, autocast_adapter_dtype=False)
    return adapted.eval().base_model.model


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Write a golden file for a model that transformers runs.",
        epilog="--prompt, --ids and --random may be repeated and mixed.",
    )
    parser.add_argument("model", help="a folder, or an id on the hub")
    parser.add_argument("out", type=Path, help="the golden file, a .safetensors")
    add_prompt = {"dest": "prompts", "action": "append"}
    parser.add_argument("--prompt", type=Text, metavar="TEXT", help="tokenized by the model's tokenizer", **add_prompt)
    parser.add_argument("--ids", type=ids, metavar="1,2,3", help="token ids", **add_prompt)
    parser.add_argument("--random", type=Random, metavar="LENGTH", help="random token ids", **add_prompt)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random ids (default: 0)")
    parser.add_argument("--tokens", type=int, default=32, help="greedy steps (default: 32)")
    parser.add_argument(
        "--precision",
        type=lambda text: text.split(","),
        default=list(PRECISIONS),
        help="f32, bf16 or both with a comma (default: f32,bf16)",
    )
    parser.add_argument("--adapter", metavar="FOLDER", help="a LoRA adapter of the model, as PEFT saves it")
    parser.add_argument("--encoder", action="store_true", help="the model is an encoder, such as BERT")
    parser.add_argument("--cache", action="store_true", help="use a KV cache for the greedy continuation")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    args = parser.parse_args()
    if not args.prompts:
        parser.error("no prompt; give --prompt, --ids or --random")
    unknown = [name for name in args.precision if name not in PRECISIONS]
    if unknown:
        parser.error(f"--precision {unknown[0]} is unknown; known are {', '.join(PRECISIONS)}")
    if args.tokens < 1:
        parser.error(f"--tokens {args.tokens} must be at least 1")
    return args


@torch.inference_mode()
def main() -> None:
    """Write the golden file."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    prompts = prompt_ids(args.prompts, args.model, args.seed)
    golden = {f"p{i}.input_ids": torch.tensor(prompt, dtype=torch.int32) for i, prompt in enumerate(prompts)}
    if args.encoder:
        types = {f"p{i}.token_type_ids": token_types(prompt) for i, prompt in enumerate(prompts)}
        golden |= {name: tensor.to(torch.int32) for name, tensor in types.items()}
    loader = transformers.AutoModel if args.encoder else model_class(args.model)
    for precision in args.precision:
        model = loader.from_pretrained(
            args.model, dtype=PRECISIONS[precision], attn_implementation="eager"
        ).eval()
        if args.adapter:
            model = with_adapter(model, args.adapter)
        if args.encoder and precision == "f32":
            golden |= batch_tensors(model, prompts)
        for i, prompt in enumerate(prompts):
            if args.encoder:
                tensors, note = encoder_tensors(model, prompt), ""
            else:
                tensors = prompt_tensors(model, prompt, args.tokens, args.cache)
                note = f", smallest margin {tensors['margin'].min().item():.4f}"
            golden |= {f"p{i}.{part}_{precision}": tensor.contiguous() for part, tensor in tensors.items()}
            print(f"prompt {i}, {precision}: {len(prompt)} tokens{note}")
    # One entry only: safetensors writes several in random order, and the file would differ from run to run.
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    save_file(golden, args.out, metadata={"made_with": versions})


if __name__ == "__main__":
    main()
