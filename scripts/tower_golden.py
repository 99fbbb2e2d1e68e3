#!/usr/bin/env python3
"""Write a golden file of prompts with images: the outputs of Hugging Face transformers, for `girih verify`.

    scripts/tower_golden.py MODEL golden.safetensors --text 6,20 --images 1,2

MODEL is the folder of a model that reads images of one size: Gemma 3, Idefics 3 or SmolVLM, whose tiles are such images.
Prompt I has as many random ids and images as the lists say; pixels are random. The file has the tensors of make_golden.py
and, for N images of R rows,

    pI.pixel_values      float32 [N, C, H, W]
    pI.token_type_ids    int32 [1, T]           1 for the rows of images
    pI.image_features_P  P [N, R, D]            what the text model reads
    pI.tower_P           P [N, L+1, S, W]       the embeddings of the tower's patches, then the output of each layer

Everything runs on the CPU with eager attention and without a cache. Needs torch, transformers and safetensors.
"""

import argparse
from pathlib import Path

import make_golden
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def prompt(config: transformers.PretrainedConfig, generator: np.random.Generator, text: int, images: int) -> list[int]:
    """Return random ids with images between them."""
    row, rows = config.image_token_id, rows_of_image(config)
    # Without tokens of their own, any stand around the rows.
    first, last = (getattr(config, name, row - 1) for name in ("boi_token_index", "eoi_token_index"))
    ordinary = [token for token in range(3, config.text_config.vocab_size) if token not in {first, row, last}]
    tokens = generator.choice(ordinary, size=text).tolist()
    image = [first] + [row] * rows + [last]
    for index in range(images):
        at = 1 + (text - 1) * index // images
        tokens[at + index * len(image) : at + index * len(image)] = image
    return tokens


def rows_of_image(config: transformers.PretrainedConfig) -> int:
    """Return the number of rows that an image becomes."""
    if hasattr(config, "mm_tokens_per_image"):
        return config.mm_tokens_per_image
    return (config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2


def is_tiled(config: transformers.PretrainedConfig) -> bool:
    """Return whether the model reads the tiles of a picture as images, in one more dimension."""
    return config.model_type in {"idefics3", "smolvlm"}


def greedy(model: torch.nn.Module, inputs: Tensors, steps: int) -> Tensors:
    """Return the greedy continuation, with the margin and the top ids of each step."""
    ids, types = inputs["input_ids"], inputs.get("token_type_ids")
    values, best = [], []
    for _ in range(steps):
        more = {} if types is None else {"token_type_ids": types}
        output = model(**(inputs | {"input_ids": ids} | more), use_cache=False)
        top = output.logits[0, -1].float().topk(make_golden.BEST)
        values.append(top.values)
        best.append(top.indices)
        ids = torch.cat([ids, top.indices[None, :1]], dim=1)
        if types is not None:
            types = torch.cat([types, torch.zeros(1, 1, dtype=types.dtype)], dim=1)
    top_values, top_ids = torch.stack(values), torch.stack(best)
    return {
        "greedy": top_ids[:, 0].to(torch.int32),
        "margin": top_values[:, 0] - top_values[:, 1],
        "step_top5": top_ids.to(torch.int32),
    }


def tensors(model: torch.nn.Module, ids: list[int], pixels: torch.Tensor, steps: int) -> Tensors:
    """Return the tensors of one prompt at the model's precision."""
    pixels = pixels.to(model.dtype)
    inputs = {"input_ids": torch.tensor([ids])}
    if is_tiled(model.config):
        inputs["pixel_values"] = pixels[None]
        vision = model.model.vision_model
    else:
        inputs["pixel_values"] = pixels
        inputs["token_type_ids"] = torch.tensor([[int(token == model.config.image_token_id) for token in ids]])
        vision = model.model.vision_tower
    output = model(**inputs, output_hidden_states=True, use_cache=False)
    tower = vision(pixel_values=pixels, output_hidden_states=True)
    features = model.model.get_image_features(pixel_values=inputs["pixel_values"])
    features = getattr(features, "pooler_output", features)
    if is_tiled(model.config):
        features = features[0].reshape(len(pixels), -1, features[0].shape[-1])
    return {
        "hidden": torch.cat(output.hidden_states),
        "logits": output.logits[0],
        "image_features": features,
        "tower": torch.stack(tower.hidden_states, dim=1),
    } | greedy(model, inputs, steps)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write a golden file of prompts with images.")
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, help="the golden file, a .safetensors")
    parser.add_argument("--text", type=numbers, default=[6, 20], help="random ids of each prompt (default: 6,20)")
    parser.add_argument("--images", type=numbers, default=[1, 2], help="images of each prompt (default: 1,2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=32, help="greedy steps (default: 32)")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    """Write the golden file."""
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(args.model)
    generator = np.random.default_rng(args.seed)
    vision, golden, prompts = config.vision_config, {}, []
    for index, (text, images) in enumerate(zip(args.text, args.images, strict=True)):
        ids = prompt(config, generator, text, images)
        shape = (images, vision.num_channels, vision.image_size, vision.image_size)
        pixels = torch.tensor(generator.uniform(-1, 1, size=shape), dtype=torch.float32)
        golden[f"p{index}.input_ids"] = torch.tensor(ids, dtype=torch.int32)
        golden[f"p{index}.pixel_values"] = pixels
        types = [[int(token == config.image_token_id) for token in ids]]
        golden[f"p{index}.token_type_ids"] = torch.tensor(types, dtype=torch.int32)
        prompts.append((ids, pixels))
    loader = make_golden.model_class(args.model)
    for precision, dtype in make_golden.PRECISIONS.items():
        model = loader.from_pretrained(args.model, dtype=dtype, attn_implementation="eager").eval()
        for index, (ids, pixels) in enumerate(prompts):
            for part, tensor in tensors(model, ids, pixels, args.tokens).items():
                golden[f"p{index}.{part}_{precision}"] = tensor.contiguous()
            print(f"prompt {index}, {precision}: {len(ids)} tokens, {len(pixels)} images")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    save_file(golden, args.out, metadata={"made_with": versions})


if __name__ == "__main__":
    main()
