#!/usr/bin/env python3
"""Writes small images into a folder, and what Pillow and transformers make of them into its `golden.json`.

Usage: image_golden.py FOLDER        (needs Pillow, numpy and transformers; made with Pillow 12.1 and transformers 5.24)

Pillow 13 resizes the columns of some shapes before the rows; girih follows Pillow up to 12.
"""

import hashlib
import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, ImageSequence

FILTERS = {"lanczos": 1, "bilinear": 2, "bicubic": 3}
SIZES = [(56, 56), (9, 50), (100, 3), (37, 23), (1, 1)]
TILED = [
    ("rgb.png", 60, 20, True),
    ("rgb.png", 64, 16, True),
    ("orientation6.png", 50, 20, True),
    ("orientation1.png", 31, 15, True),
    ("rgb.png", 30, 30, True),
    ("rgb.png", 60, 20, False),
]
CROPPED = [("wide.png", 9, 4), ("wide.png", 9, 3), ("wide.png", 20, 4), ("rgb.png", 19, 4), ("orientation6.png", 1, 4), ("grey.png", 64, 4)]
LOSSY = {"lossy.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "lossy.webp", "alpha.webp", "animated.webp"}


def photo(width=37, height=23):
    """A picture with gradients, edges and noise."""
    noise = np.random.default_rng(1).integers(-20, 20, (height, width, 3))
    y, x = np.mgrid[:height, :width]
    planes = [x * 255 // width, y * 255 // height, ((x // 5 + y // 7) % 2) * 200 + 20]
    return Image.fromarray(np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8))


def png16(kind, samples):
    """A PNG file with 16 bits a sample, which Pillow does not write for RGB."""
    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bmp(bits, rows, width, height, masks=()):
    """A BMP file with rows of any bits a pixel."""
    extra = b"".join(struct.pack("<I", mask) for mask in masks)
    start = 54 + len(extra)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 3 if masks else 0, 0, 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start) + info + extra + rows


def files():
    """Each name and what `Image.save` gets, or the bytes."""
    rgb = photo()
    alpha = rgb.copy()
    alpha.putalpha(Image.fromarray((np.indices((23, 37)).sum(0) * 4).astype(np.uint8)))
    palette = rgb.quantize(16)
    yield "rgb.png", rgb, {}
    yield "wide.png", photo(61, 14), {}
    yield "grey.png", rgb.convert("L"), {}
    yield "grey_alpha.png", alpha.convert("LA"), {}
    yield "alpha.png", alpha, {}
    yield "bits1.png", rgb.convert("1"), {}
    yield "palette.png", palette, {"bits": 4}
    yield "palette_transparent.png", palette, {"transparency": 3}
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield f"orientation{orientation}.png", rgb.resize((5, 3)), {"exif": exif}
    wide = np.asarray(rgb).astype(np.uint16) * 256 + 77
    yield "bits16.png", png16(2, wide), {}
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "lossy.jpg", rgb, {"quality": 90, "exif": exif}
    yield "progressive.jpg", rgb, {"quality": 95, "progressive": True, "subsampling": 0}
    yield "grey.jpg", rgb.convert("L"), {"quality": 90}
    yield "cmyk.jpg", rgb.convert("CMYK"), {"quality": 95}
    yield "lossless.webp", rgb, {"lossless": True}
    yield "lossless_alpha.webp", alpha, {"lossless": True, "exact": True}
    yield "lossy.webp", rgb, {"quality": 90}
    yield "alpha.webp", alpha, {"quality": 90}
    yield "animated.webp", rgb, {"save_all": True, "append_images": [rgb.rotate(180)], "lossless": True}
    yield "plain.gif", palette, {}
    yield "animated.gif", palette, {"save_all": True, "append_images": [palette.rotate(180)]}
    yield "part.gif", part_of_a_screen(palette), {}
    for mode in ["1", "L", "P", "RGB"]:
        yield f"{mode.lower()}.bmp", palette if mode == "P" else rgb.convert(mode), {}
    values = np.random.default_rng(2).integers(0, 1 << 16, (4, 6)).astype("<u2")
    yield "bits16_555.bmp", bmp(16, values.tobytes(), 6, 4), {}
    yield "bits16_565.bmp", bmp(16, values.tobytes(), 6, 4, (0xF800, 0x7E0, 0x1F)), {}
    yield "bits32_top_down.bmp", bmp(32, np.asarray(alpha)[..., [2, 1, 0, 3]].tobytes(), 37, -23), {}


def part_of_a_screen(palette):
    """A GIF whose frame is smaller than its screen and has a transparent colour."""
    buffer = io.BytesIO()
    palette.crop((0, 0, 10, 8)).save(buffer, "GIF", transparency=5)
    data = bytearray(buffer.getvalue())
    data[6:10] = struct.pack("<HH", 20, 15)
    at = data.index(b"\x2c", 13 + 3 * (2 << (data[10] & 7)))
    data[at + 1 : at + 5] = struct.pack("<HH", 4, 3)
    return bytes(data)


def digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


def entry(name, path):
    opened = Image.open(path)
    frames = sum(1 for _ in ImageSequence.Iterator(opened))
    opened = Image.open(path)
    image = ImageOps.exif_transpose(opened).convert("RGB")
    found = {"width": image.width, "height": image.height, "is_animated": frames > 1}
    if name in LOSSY:
        return found | {"grid": list(image.resize((8, 8), Image.Resampling.BILINEAR).tobytes())}
    return found | {"sha256": digest(image)}


def qwen(image):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    found = processor(images=[image], return_tensors="np")
    values, grid = found["pixel_values"], found["image_grid_thw"][0].tolist()
    rows = {"shape": list(values.shape), "grid": grid, "sha256": hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()}
    return {"qwen_rows": rows | {"first": values[0, :4].tolist()}}


def gemma4(image):
    """The patches of Gemma 4 in the order of cells, as its tower multiplies them."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    found = Gemma4ImageProcessorPil(max_soft_tokens=70)(images=[image], return_tensors="np")
    values, places = found["pixel_values"][0], found["image_position_ids"][0]
    across, down = (places.max(axis=0) + 1).tolist()
    order = np.arange(down * across).reshape(down // 3, 3, across // 3, 3).transpose(0, 2, 1, 3).reshape(-1)
    values = 2 * (values[order].astype(np.float32) - np.float32(0.5))
    return {"gemma4_rows": rows_of([down, across], values)} | gemma4_unified(found)


def gemma4_unified(found):
    """The same patches merged as Gemma 4 12B reads them; its processor has no variant that resizes with Pillow."""
    from transformers.models.gemma4_unified.image_processing_gemma4_unified import patches_merge

    places = torch.tensor(found["image_position_ids"])
    kept = (places[0, :, 0] >= 0).nonzero()[:, 0]
    patches, places = torch.tensor(found["pixel_values"])[:, kept], places[:, kept]
    merged, positions = patches_merge(patches, places, len(kept) // 9)
    across, down = (positions[0].amax(dim=0) + 1).tolist()
    return {"gemma4_unified_rows": rows_of([down, across], merged[0].numpy())}


def rows_of(grid, values):
    return {"grid": grid, "sha256": hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()}


def tiles(folder):
    """What Idefics 3's processor makes of pictures: pixels of each tile and of the whole, and the text of a prompt."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    for name, edge, side, split in TILED:
        image = ImageOps.exif_transpose(Image.open(folder / name)).convert("RGB")
        sizes = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": side}}
        processor = Idefics3ImageProcessorPil(do_image_splitting=split, return_row_col_info=True, **sizes)
        found = processor(images=[image], return_tensors="np")
        values, [[rows]], [[columns]] = found["pixel_values"][0], found["rows"], found["cols"]
        text = get_image_prompt_string(rows, columns, 4, "<fake_token_around_image>", "<image>", "<global-img>")
        sha256 = hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
        case = {"file": name, "edge": edge, "side": side, "split": split, "grid": [rows, columns]}
        yield case | {"images": len(values), "sha256": sha256, "text": text}


def crops(folder):
    """What Gemma 3's processor makes of pictures by pan and scan: pixels of the whole and of each crop, and the text of a prompt."""
    from types import SimpleNamespace

    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    rows = SimpleNamespace(full_image_sequence="\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n")
    for name, min_side, most in CROPPED:
        image = ImageOps.exif_transpose(Image.open(folder / name)).convert("RGB")
        rule = {"pan_and_scan_min_crop_size": min_side, "pan_and_scan_max_num_crops": most}
        processor = Gemma3ImageProcessorPil(
            do_pan_and_scan=True, pan_and_scan_min_ratio_to_activate=1.2, size={"height": 28, "width": 28}, **rule
        )
        found = processor(images=[image], return_tensors="np")
        values, count = found["pixel_values"], int(found["num_crops"][0])
        text = Gemma3Processor.replace_image_token(rows, {"num_crops": [count]}, 0)
        sha256 = hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
        yield {"file": name, "min_side": min_side, "most": most, "crops": count, "sha256": sha256, "text": text}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    golden = {"files": {}, "resized": []}
    for name, content, options in files():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            content.save(folder / name, **options)
        golden["files"][name] = entry(name, folder / name)
    rgb = Image.open(folder / "rgb.png")
    for name, number in FILTERS.items():
        for size in SIZES:
            golden["resized"].append([name, list(size), digest(rgb.resize(size, number))])
    golden |= qwen(rgb) | gemma4(rgb)
    golden["tiles"] = list(tiles(folder))
    golden["crops"] = list(crops(folder))
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
