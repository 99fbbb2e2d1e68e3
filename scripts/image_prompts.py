#!/usr/bin/env python3
"""Writes the tokens of prompts with images by transformers' processors into a folder, and the small tokenizers that make them.

Usage: image_prompts.py FIXTURES IMAGES FOLDER        (needs Pillow, tokenizers and transformers; made with transformers 5.24)

FIXTURES has the models whose sizes and ids count, and IMAGES the pictures. For each model, FOLDER gets `NAME.json`: the files
`tokenizer.json`, `tokenizer_config.json` and `preprocessor_config.json`, and for each case the pictures, the messages, and the
tokens. A tokenizer has one token for each character of ASCII, no merges, and the tokens that stand for images.
"""

import json
import sys
from pathlib import Path

from PIL import Image, ImageOps
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
CASES = [["rgb.png"], ["wide.png"], ["orientation6.png"], ["grey.png", "wide.png"], ["orientation6.png", "rgb.png"]]
TEMPLATE = (
    "{%- for message in messages %}{{ 'OPEN' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{ 'IMAGE' }}{%- elif part.type == 'text' %}{{ part.text }}{%- endif %}"
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
    videos = Qwen3VLVideoProcessor() if kind is Qwen3VLProcessor else Qwen2VLVideoProcessor()
    return kind(image, text, videos, chat_template=template), settings


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
    return Gemma4Processor(sounds, image, text, Gemma4VideoProcessor(), chat_template=template), settings


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


def main():
    fixtures, images, folder = map(Path, sys.argv[1:4])
    folder.mkdir(exist_ok=True)
    for name, special in MODELS.items():
        config = json.loads((fixtures / name / "config.json").read_text())
        bare = tokenizer(special)
        around = ("<|vision_start|><|image_pad|><|vision_end|>", *QWEN[:2]) if special is QWEN else ("<|image|>", *GEMMA[1:3])
        template = TEMPLATE.replace("IMAGE", around[0]).replace("OPEN", around[1]).replace("CLOSE", around[2])
        text = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=around[2], pad_token=around[2])
        make = qwen_processor if special is QWEN else gemma_processor
        processor, settings = make(name, config["vision_config"], text, template)
        entry = {
            "files": {
                "tokenizer.json": json.loads(bare.to_str()),
                "tokenizer_config.json": {"eos_token": around[2], "chat_template": template},
                "preprocessor_config.json": settings,
            },
            "cases": [case(processor, images, names) for names in CASES],
        }
        (folder / f"{name}.json").write_text(json.dumps(entry, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
