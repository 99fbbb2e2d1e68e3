#!/usr/bin/env python3
"""Writes the tokens of prompts with images by transformers' processors into a folder, and the small tokenizers that make them.

Usage: image_prompts.py FIXTURES IMAGES FOLDER        (needs Pillow, tokenizers and transformers; made with transformers 5.24)

FIXTURES has the models whose sizes and ids count, and IMAGES the pictures. For each model, FOLDER gets `NAME.json`: the files
`tokenizer.json`, `tokenizer_config.json`, `preprocessor_config.json` and perhaps one of videos, and for each case the pictures, the messages, and the
tokens. A tokenizer has one token for each character of ASCII, no merges, and the tokens that stand for images.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

QWEN = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
GEMMA = ["<bos>", "<|turn>", "<turn|>", "<|audio|>", "<|audio>", "<audio|>", "<|image>", "<image|>", "<|image|>", "<|video|>"]
VOCABULARY = 128
MODELS = {
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": QWEN,
    "qwen3_5_vision": QWEN,
    "gemma4_vision": GEMMA,
}
VIDEO_SIZE = {"shortest_edge": 512, "longest_edge": 3072}
VIDEOS = [(["rgb.png", "grey.png", "palette.png"], 2.0), (["rgb.png", "rgb.png", "grey.png", "alpha.png"], 1.5), (["wide.png"] * 2, 30.0)]
"""The frames of videos, and how many of them there are in a second."""
CASES = [["rgb.png"], ["wide.png"], ["orientation6.png"], ["grey.png", "wide.png"], ["orientation6.png", "rgb.png"]]
TEMPLATE = (
    "{%- for message in messages %}{{ 'OPEN' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{ 'IMAGE' }}{%- elif part.type == 'video' %}{{ 'VIDEO' }}{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{ 'CLOSE\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ 'OPENmodel\\n' }}{%- endif %}"
)


def tokenizer(special):
    """Bytes of ASCII as tokens, and the special ones at the end of the vocabulary."""
    alphabet = [chr(code) for code in range(33, 127)] + ["\u0120", "\u010a"]
    words = {character: at for at, character in enumerate(alphabet)}
    first = VOCABULARY - len(special)
    words |= {f"unused{at}": at for at in range(len(alphabet), first)}
    words |= {text: first + at for at, text in enumerate(special)}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return made


def qwen_processor(name, vision, text, template):
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    kinds = {"qwen2_vl": Qwen2VLProcessor, "qwen2_5_vl": Qwen2_5_VLProcessor}
    settings = {
        "patch_size": vision["patch_size"], "merge_size": vision["spatial_merge_size"],
        "temporal_patch_size": vision["temporal_patch_size"],
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 256, "longest_edge": 768},
    }
    image = Qwen2VLImageProcessorPil(**settings)
    kind = kinds.get(name, Qwen3VLProcessor)
    video_settings = settings | {"size": VIDEO_SIZE}
    # The first two have no file for videos when they are published, so that of images counts.
    videos = Qwen3VLVideoProcessor(**video_settings) if kind is Qwen3VLProcessor else Qwen2VLVideoProcessor(**settings)
    return kind(image, text, videos, chat_template=template), settings, video_settings if kind is Qwen3VLProcessor else None


def gemma_processor(_, vision, text, template):
    from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
    from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor

    settings = {
        "patch_size": vision["patch_size"], "pooling_kernel_size": vision["pooling_kernel_size"], "max_soft_tokens": 70,
    }
    names = {
        "image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>",
        "audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>",
    }
    for key, token in names.items():
        setattr(text, key, token)
        setattr(text, f"{key}_id", text.convert_tokens_to_ids(token))
    image, sounds = Gemma4ImageProcessorPil(**settings), Gemma4AudioFeatureExtractor()
    of_videos = settings | {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "do_normalize": True, "num_frames": 32}
    videos = Gemma4VideoProcessor(**of_videos)
    return Gemma4Processor(sounds, image, text, videos, chat_template=template), settings, of_videos


def case(processor, folder, names):
    """A prompt with these pictures between its texts, and its tokens."""
    images = [ImageOps.exif_transpose(Image.open(folder / name)).convert("RGB") for name in names]
    content = [{"type": "text", "text": "See "}]
    for at in range(len(names)):
        content += [{"type": "image"}, {"type": "text", "text": f" number {at}.\n"}]
    messages = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    found = processor(text=[text], images=images, return_tensors="np")
    return {"images": names, "messages": messages, "tokens": found["input_ids"][0].tolist()}


def video_case(processor, folder, names, rate):
    """A prompt with a video of these frames, its tokens, and the frames' patches."""
    frames = [Image.open(folder / name).convert("RGB") for name in names]
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What moves?"}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    metadata = {"total_num_frames": len(frames), "fps": rate, "frames_indices": list(range(len(frames)))}

    def processed(frames):
        # In torch, so that an array of 3 frames is not taken for one with 3 channels first.
        video = torch.tensor(np.stack([np.asarray(frame) for frame in frames])).permute(0, 3, 1, 2)
        given = {"videos": [video], "video_metadata": [metadata], "do_sample_frames": False}
        return processor(text=[text], **given, return_tensors="pt")

    found = processed(frames)
    if "video_position_ids" in found:
        return gemma_video_case(processor, (names, rate, messages), frames, processed)
    _, down, across = found["video_grid_thw"][0].tolist()
    patch = processor.video_processor.patch_size
    # Pillow resizes them, as girih does; torchvision rounds otherwise.
    again = processed([frame.resize((across * patch, down * patch), Image.Resampling.BICUBIC) for frame in frames])
    assert again["video_grid_thw"].tolist() == found["video_grid_thw"].tolist()
    values = again["pixel_values_videos"].numpy()
    # The samples: torchvision's normalization rounds otherwise in the last bit.
    samples = np.rint((values + 1) * 127.5).astype(np.uint8)
    off = np.abs(values - found["pixel_values_videos"].numpy())
    print(f"{names}: torchvision's pixels differ by {off.mean():.5f} in the mean, {off.max():.3f} at most")
    case = {"frames": names, "frames_per_second": rate, "messages": messages, "tokens": found["input_ids"][0].tolist()}
    return case | {"grid": found["video_grid_thw"][0].tolist(), "sha256": hashlib.sha256(samples.tobytes()).hexdigest()}


def gemma_video_case(processor, case, frames, processed):
    """The same for Gemma 4, whose processor has no grid; the samples come cell after cell, as girih reads them."""
    found = processed(frames)
    kernel, patch = processor.video_processor.pooling_kernel_size, processor.video_processor.patch_size
    at = found["video_position_ids"][0]
    across, down = (at[at[:, 0] >= 0].max(dim=0).values + 1).tolist()
    again = processed([frame.resize((across * patch, down * patch), Image.Resampling.BICUBIC) for frame in frames])
    values = again["pixel_values_videos"][:, : down * across].numpy()
    order = np.arange(down * across).reshape(down // kernel, kernel, across // kernel, kernel).transpose(0, 2, 1, 3).ravel()
    samples = np.rint(values[:, order] * 255).astype(np.uint8)
    names, rate, messages = case
    case = {"frames": names, "frames_per_second": rate, "messages": messages, "tokens": found["input_ids"][0].tolist()}
    return case | {"grid": [len(frames), down, across], "sha256": hashlib.sha256(samples.tobytes()).hexdigest()}


def main():
    fixtures, images, folder = map(Path, sys.argv[1:4])
    folder.mkdir(exist_ok=True)
    for name, special in MODELS.items():
        config = json.loads((fixtures / name / "config.json").read_text())
        bare = tokenizer(special)
        around = ("<|vision_start|><|image_pad|><|vision_end|>", *QWEN[:2], "<|vision_start|><|video_pad|><|vision_end|>") if special is QWEN else ("<|image|>", *GEMMA[1:3], "<|video|>")
        template = TEMPLATE.replace("IMAGE", around[0]).replace("VIDEO", around[3]).replace("OPEN", around[1]).replace("CLOSE", around[2])
        text = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=around[2], pad_token=around[2])
        make = qwen_processor if special is QWEN else gemma_processor
        processor, settings, of_videos = make(name, config["vision_config"], text, template)
        entry = {
            "files": {
                "tokenizer.json": json.loads(bare.to_str()),
                "tokenizer_config.json": {"eos_token": around[2], "chat_template": template},
                "preprocessor_config.json": settings,
            },
            "cases": [case(processor, images, names) for names in CASES],
        }
        if of_videos:
            entry["files"]["video_preprocessor_config.json"] = of_videos
        entry["videos"] = [video_case(processor, images, names, rate) for names, rate in VIDEOS]
        (folder / f"{name}.json").write_text(json.dumps(entry, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
