#!/usr/bin/env python3
"""Write a golden file of prompts with images: the outputs of Hugging Face transformers, for `girih verify`.

    scripts/tower_golden.py MODEL golden.safetensors --text 6,20 --images 1,2

MODEL is the folder of a model that reads images of one size, such as Gemma 3 or the tiles of SmolVLM, or of any size, such as Qwen3-VL and Gemma 4. Prompt I has
as many random ids and images as the lists say; pixels are random. The file has the tensors of make_golden.py and, for N images
of R rows,

    pI.pixel_values      float32 [N, C, H, W]
    pI.token_type_ids    int32 [1, T]           1 for the rows of images
    pI.image_features_P  P [N, R, D]            what the text model reads
    pI.tower_P           P [N, L+1, S, W]       the embeddings of the tower's patches, then the output of each layer

Of images of any size, it has for S patches of V values and R rows of all images together, and K tapped layers,

    pI.pixel_values      float32 [S, V]
    pI.image_grid_thw    int32 [N, 3]
    pI.token_type_ids    int32 [1, T]
    pI.image_features_P  P [R, D]
    pI.image_added_P     P [K, R, D]            what is added to the outputs of the text model's first layers
    pI.tower_P           P [L+1, S, W]          of a tower with windows, window after window

--grids says the patches down and across of images of any size, in turn.
With --video, the model reads the images of a prompt as the groups of frames of one video (Qwen2-VL, Qwen2.5-VL, Qwen3-VL,
Qwen 3.5, Gemma 4); the golden has them as images. In Qwen2-VL and Qwen2.5-VL, where a video is one run of tokens, it also has

    pI.image_times       int32 [N]              0 for the first group; for later ones 1 more than how far they lie behind it in time

The patches of Gemma 4 come cell after cell, as girih reads them, with the numbers that the tower multiplies: twice the
pixels less 1. Those of Gemma 4 12B are its merged patches, row by row.

Everything runs on the CPU with eager attention and without a cache. Needs torch, transformers and safetensors.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import make_golden
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


GRIDS = [(4, 6), (8, 4), (2, 2), (6, 10)]
"""The patches down and across of images of any size, in turn, if the command line does not say them."""


CELLS = [(3, 6), (6, 3), (3, 3), (6, 9)]
"""The same for cells of 3 x 3 patches."""


MERGED = [(2, 3), (4, 2), (1, 1), (3, 5)]
"""The same for patches that are rows."""


SECONDS_PER_GROUP = 1.1
"""The seconds from a group of frames to the next one, for Qwen2.5-VL."""


ONE_RUN = {"qwen2_vl", "qwen2_5_vl"}
"""The models in which a video is one run of tokens."""


class Images(NamedTuple):
    """The images of a prompt: what the model takes beside tokens, the number of rows of each, and what the golden has."""

    inputs: Tensors
    rows: list[int]
    golden: Tensors | None = None


def by_cells(down: int, across: int, cell: int) -> torch.Tensor:
    """Return the index of each patch, counted row by row, in the order of cells."""
    at = torch.arange(down * across).reshape(down // cell, cell, across // cell, cell)
    return at.permute(0, 2, 1, 3).reshape(-1)


def of_frames(images: Images) -> Images:
    """Return images of Gemma 4 as the frames of a video."""
    names = {"pixel_values": "pixel_values_videos", "image_position_ids": "video_position_ids"}
    inputs = {names[name]: tensor for name, tensor in images.inputs.items()}
    inputs["num_frames_per_video"] = torch.tensor([len(images.rows)])
    return images._replace(inputs=inputs)


def gemma4_images(
    config: transformers.PretrainedConfig, generator: np.random.Generator, first: int, count: int, video: bool
) -> Images:
    """Return random images of Gemma 4, padded to the largest of them as its processor does; those of a video have one size."""
    vision = config.vision_config
    cell = vision.pooling_kernel_size
    grids = [CELLS[(first + (0 if video else index)) % len(CELLS)] for index in range(count)]
    most = max(down * across for down, across in grids)
    pixels = torch.zeros(count, most, 3 * vision.patch_size**2)
    places = torch.full((count, most, 2), -1)
    in_cells = []
    for image, (down, across) in enumerate(grids):
        patches = torch.tensor(generator.random((down * across, pixels.shape[-1])), dtype=torch.float32)
        pixels[image, : len(patches)] = patches
        at = torch.arange(down * across)
        places[image, : len(patches)] = torch.stack([at % across, at // across], dim=1)
        in_cells.append(2 * (patches[by_cells(down, across, cell)] - 0.5))
    golden = {
        "pixel_values": torch.cat(in_cells),
        "image_grid_thw": torch.tensor([(1, down, across) for down, across in grids]),
    }
    inputs = {"pixel_values": pixels, "image_position_ids": places}
    return Images(inputs, [down * across // cell**2 for down, across in grids], golden)


def gemma4_unified_images(
    config: transformers.PretrainedConfig, generator: np.random.Generator, first: int, count: int, video: bool
) -> Images:
    """Return random images of Gemma 4 12B: merged patches, padded to the image with the most of them; as for Gemma 4."""
    grids = [MERGED[(first + (0 if video else index)) % len(MERGED)] for index in range(count)]
    most = max(down * across for down, across in grids)
    pixels = torch.zeros(count, most, 3 * config.vision_config.model_patch_size**2)
    places = torch.full((count, most, 2), -1)
    for image, (down, across) in enumerate(grids):
        at = torch.arange(down * across)
        pixels[image, : len(at)] = torch.tensor(generator.random((len(at), pixels.shape[-1])), dtype=torch.float32)
        places[image, : len(at)] = torch.stack([at % across, at // across], dim=1)
    golden = {
        "pixel_values": torch.cat([image[: down * across] for image, (down, across) in zip(pixels, grids, strict=True)]),
        "image_grid_thw": torch.tensor([(1, down, across) for down, across in grids]),
    }
    inputs = {"pixel_values": pixels, "image_position_ids": places}
    return Images(inputs, [down * across for down, across in grids], golden)


def images_of(
    config: transformers.PretrainedConfig, generator: np.random.Generator, first: int, count: int, args: argparse.Namespace
) -> Images:
    """Return random images, or the pairs of frames of a video."""
    vision = config.vision_config
    gemma = {"gemma4": gemma4_images, "gemma4_unified": gemma4_unified_images}.get(config.model_type)
    if gemma:
        images = gemma(config, generator, first, count, args.video)
        return of_frames(images) if args.video else images
    if hasattr(vision, "image_size"):
        shape = (count, vision.num_channels, vision.image_size, vision.image_size)
        pixels = torch.tensor(generator.uniform(-1, 1, size=shape), dtype=torch.float32)
        return Images({"pixel_values": pixels}, [rows_of_image(config)] * count)
    side = vision.spatial_merge_size
    grids = [args.grids[(first + index) % len(args.grids)] for index in range(count)]
    values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    if args.video:
        # Sides that are longer than the time.
        grids = ([GRIDS[3]] if config.model_type in ONE_RUN else grids[:1]) * count
    shape = (sum(down * across for down, across in grids), values)
    pixels = torch.tensor(generator.uniform(-1, 1, size=shape), dtype=torch.float32)
    grid = torch.tensor([(1, down, across) for down, across in grids])
    rows = [down * across // side**2 for down, across in grids]
    images = {"pixel_values": pixels, "image_grid_thw": grid}
    if not args.video:
        return Images(images, rows)
    inputs = {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([(count, *grids[0])])}
    if config.model_type not in ONE_RUN:
        return Images(inputs, rows, images)
    times = torch.arange(count)
    if config.model_type == "qwen2_5_vl":
        inputs["second_per_grid_ts"] = torch.tensor([SECONDS_PER_GROUP])
        times = (times * (vision.tokens_per_second * inputs["second_per_grid_ts"][0])).long()
    # Otherwise, transformers 5 and other programs disagree on the positions behind the video.
    assert times[-1] < max(grids[0]) // side, "the video takes more time than its sides"
    times[1:] += 1
    return Images(inputs, rows, images | {"image_times": times})


def rows_of_image(config: transformers.PretrainedConfig) -> int:
    """Return the number of rows that an image of one size becomes."""
    if hasattr(config, "mm_tokens_per_image"):
        return config.mm_tokens_per_image
    return (config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2


def is_tiled(config: transformers.PretrainedConfig) -> bool:
    """Return whether the model reads the tiles of a picture as images, in one more dimension."""
    return config.model_type in {"idefics3", "smolvlm"}


def prompt(
    config: transformers.PretrainedConfig, generator: np.random.Generator, text: int, rows: list[int], video: bool
) -> list[int]:
    """Return random ids with images of these numbers of rows between them, or pairs of frames."""
    names = ("boi_token_index", "image_token_id", "eoi_token_index")
    if hasattr(config, "boi_token_id"):
        names = ("boi_token_id", "image_token_id", "eoi_token_id")
    elif not hasattr(config, names[0]):
        names = ("vision_start_token_id", "image_token_id", "vision_end_token_id")
    row = config.video_token_id if video else config.image_token_id
    if video and config.model_type in ONE_RUN:
        rows = [sum(rows)]
    # Without tokens of their own, any stand around the rows.
    first, last = (getattr(config, name, row - 1) for name in names[::2])
    special = {first, row, last, config.image_token_id, getattr(config, "video_token_id", row), getattr(config, "audio_token_id", row)}
    ordinary = [token for token in range(3, config.text_config.vocab_size) if token not in special]
    tokens = generator.choice(ordinary, size=text).tolist()
    added = 0
    for index, count in enumerate(rows):
        at = 1 + (text - 1) * index // len(rows) + added
        tokens[at:at] = [first] + [row] * count + [last]
        added += count + 2
    return tokens


def with_types(model: torch.nn.Module, inputs: Tensors) -> Tensors:
    """Return the inputs with the types of tokens, under the name that the model has for them.

    Gemma 4 12B gets masks, too: those that transformers makes for generation. Without them, transformers 5.24 lets the rows
    of an image see each other in layers without a window, which its Gemma4Model and vLLM (pull request 47217) do not.
    """
    config = model.config
    if is_tiled(config):
        return inputs
    types = (inputs["input_ids"] == config.image_token_id).long()
    if "pixel_values_videos" in inputs:
        types = 2 * (inputs["input_ids"] == config.video_token_id).long()
    has_kinds = any(name in inputs for name in ("image_grid_thw", "image_position_ids", "pixel_values_videos"))
    typed = inputs | {"mm_token_type_ids" if has_kinds else "token_type_ids": types}
    if config.model_type != "gemma4_unified":
        return typed
    rows = torch.zeros(*types.shape, config.text_config.hidden_size, dtype=model.dtype)
    positions = torch.arange(types.shape[1])[None]
    masks = model.create_masks_for_generate(config, rows, None, None, positions, mm_token_type_ids=types)
    return typed | {"attention_mask": masks}


def greedy(model: torch.nn.Module, inputs: Tensors, steps: int) -> Tensors:
    """Return the greedy continuation, with the margin and the top ids of each step."""
    values, best = [], []
    for _ in range(steps):
        output = model(**with_types(model, inputs), use_cache=False)
        top = output.logits[0, -1].float().topk(make_golden.BEST)
        values.append(top.values)
        best.append(top.indices)
        inputs = inputs | {"input_ids": torch.cat([inputs["input_ids"], top.indices[None, :1]], dim=1)}
    top_values, top_ids = torch.stack(values), torch.stack(best)
    return {
        "greedy": top_ids[:, 0].to(torch.int32),
        "margin": top_values[:, 0] - top_values[:, 1],
        "step_top5": top_ids.to(torch.int32),
    }


def tower_of_any_size(model: torch.nn.Module, pixels: torch.Tensor, grid: torch.Tensor) -> Tensors:
    """Return what the tower of images of any size makes, with the inputs and the output of its layers."""
    states = []
    visual = model.model.visual
    hooks = [visual.blocks[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))]
    hooks += [block.register_forward_hook(lambda _, __, output: states.append(output)) for block in visual.blocks]
    made = visual(pixels, grid_thw=grid)
    for hook in hooks:
        hook.remove()
    found = {"image_features": made.pooler_output, "tower": torch.stack(states)}
    added = getattr(made, "deepstack_features", None)
    return found | ({"image_added": torch.stack(added)} if added else {})


def gemma4_tower(model: torch.nn.Module, pixels: torch.Tensor, places: torch.Tensor) -> Tensors:
    """Return what the tower of Gemma 4 makes, with the inputs and the output of its layers in the order of cells."""
    tower = model.model.vision_tower
    features = model.model.get_image_features(pixels, places).pooler_output
    images = []
    for image, at in zip(pixels, places, strict=True):
        count = int((at[:, 0] >= 0).sum())
        across, down = (at[:count].max(dim=0).values + 1).tolist()
        states = []
        layers = tower.encoder.layers
        hooks = [layers[0].register_forward_pre_hook(lambda _, inputs, kept=states: kept.append(inputs[0]))]
        hooks += [
            layer.register_forward_hook(lambda _, __, output, kept=states: kept.append(output)) for layer in layers
        ]
        tower(image[None, :count], at[None, :count])
        for hook in hooks:
            hook.remove()
        order = by_cells(down, across, model.config.vision_config.pooling_kernel_size)
        images.append(torch.cat(states)[:, order])
    return {"image_features": torch.cat(features), "tower": torch.cat(images, dim=1)}


def gemma4_embedder(model: torch.nn.Module, pixels: torch.Tensor, places: torch.Tensor) -> Tensors:
    """Return what Gemma 4 12B makes of images, and the embeddings of their patches."""
    states = []
    hook = model.model.embed_vision.pos_norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
    features = model.model.get_image_features(pixels, places).pooler_output
    hook.remove()
    return {"image_features": torch.cat(features), "tower": states[0][places[..., 0] >= 0][None]}


def tensors(model: torch.nn.Module, ids: list[int], images: Images, steps: int) -> Tensors:
    """Return the tensors of one prompt at the model's precision."""
    name = "pixel_values_videos" if "pixel_values_videos" in images.inputs else "pixel_values"
    pixels = images.inputs[name]
    places = images.inputs.get("image_position_ids", images.inputs.get("video_position_ids"))
    if places is None:
        pixels = pixels.to(model.dtype)
    tiled = is_tiled(model.config)
    inputs = {"input_ids": torch.tensor([ids])} | images.inputs | {name: pixels[None] if tiled else pixels}
    output = model(**with_types(model, inputs), output_hidden_states=True, use_cache=False)
    if model.config.model_type == "gemma4_unified":
        of_tower = gemma4_embedder(model, pixels, places)
    elif places is not None:
        of_tower = gemma4_tower(model, pixels, places)
    elif "image_grid_thw" in inputs:
        of_tower = tower_of_any_size(model, pixels, inputs["image_grid_thw"])
    elif "video_grid_thw" in inputs:
        of_tower = tower_of_any_size(model, pixels, inputs["video_grid_thw"])
    else:
        vision = model.model.vision_model if tiled else model.model.vision_tower
        tower = vision(pixel_values=pixels, output_hidden_states=True)
        features = model.model.get_image_features(pixel_values=inputs["pixel_values"])
        features = getattr(features, "pooler_output", features)
        features = features[0].reshape(len(pixels), -1, features[0].shape[-1]) if tiled else features
        of_tower = {"image_features": features, "tower": torch.stack(tower.hidden_states, dim=1)}
    hidden = {"hidden": torch.cat(output.hidden_states), "logits": output.logits[0]}
    return hidden | of_tower | greedy(model, inputs, steps)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write a golden file of prompts with images.")
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    sides = lambda text: [tuple(int(side) for side in grid.split("x")) for grid in text.split(",")]  # noqa: E731
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, help="the golden file, a .safetensors")
    parser.add_argument("--text", type=numbers, default=[6, 20], help="random ids of each prompt (default: 6,20)")
    parser.add_argument("--images", type=numbers, default=[1, 2], help="images of each prompt (default: 1,2)")
    parser.add_argument("--grids", type=sides, default=GRIDS, help="patches of images, such as 4x6,8x4")
    parser.add_argument(
        "--video", action="store_true", help="the images of a prompt are the pairs of frames of one video"
    )
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
    golden, prompts, seen = {}, [], 0
    for index, (text, count) in enumerate(zip(args.text, args.images, strict=True)):
        images = images_of(config, generator, seen, count, args)
        seen += count
        ids = prompt(config, generator, text, images.rows, args.video)
        golden[f"p{index}.input_ids"] = torch.tensor(ids, dtype=torch.int32)
        for name, tensor in (images.golden or images.inputs).items():
            golden[f"p{index}.{name}"] = tensor if tensor.is_floating_point() else tensor.to(torch.int32)
        row = config.video_token_id if args.video else config.image_token_id
        types = [[int(token == row) for token in ids]]
        golden[f"p{index}.token_type_ids"] = torch.tensor(types, dtype=torch.int32)
        prompts.append((ids, images))
    loader = make_golden.model_class(args.model)
    for precision, dtype in make_golden.PRECISIONS.items():
        model = loader.from_pretrained(args.model, dtype=dtype, attn_implementation="eager").eval()
        for index, (ids, images) in enumerate(prompts):
            for part, tensor in tensors(model, ids, images, args.tokens).items():
                golden[f"p{index}.{part}_{precision}"] = tensor.contiguous()
            print(f"prompt {index}, {precision}: {len(ids)} tokens, {len(images.rows)} images")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    save_file(golden, args.out, metadata={"made_with": versions})


if __name__ == "__main__":
    main()
