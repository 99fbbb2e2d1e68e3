#!/usr/bin/env python3
"""Draw the pictures of README.md that come from files and from the array's report.

    pictures.py --girih PROGRAM [--folder docs/pictures]

Writes speed.svg from the first table of speeds in docs/performance.md, and array.svg and timeline.svg
from the page that `girih npu report` makes of a model of Llama-3.2-1B's shape: its files are made here,
with weights of zero, which do not change times. record_terminal.py draws the other picture. Standard
library only.
"""

import argparse
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
from xml.sax.saxutils import escape

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The rows of the table that are drawn, with their titles.
SPEED_ROWS = [
    ("pp512", "Prompt of 512 tokens"),
    ("tg32", "Reply, at the start of the context"),
    ("tg32@d1024", "Reply after 1,024 tokens"),
    ("tg16@d16384", "Reply after 16,384 tokens"),
]
COLOURS = ["#2a6db5", "#8a8780", "#a9a69e", "#c3c0b8"]
INK, SOFT, PAPER, LINE = "#1d1e1c", "#64655f", "#ffffff", "#dedcd5"
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"

CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}


def make_model(folder):
    """Writes a model of this shape; its weights are a hole in the file and take no room."""
    width, inner = CONFIGURATION["hidden_size"], CONFIGURATION["intermediate_size"]
    keys = CONFIGURATION["num_key_value_heads"] * CONFIGURATION["head_dim"]
    layer = {"input_layernorm": [width], "post_attention_layernorm": [width]}
    layer |= {f"self_attn.{name}_proj": shape for name, shape in
              [("q", [width, width]), ("k", [keys, width]), ("v", [keys, width]), ("o", [width, width])]}
    layer |= {f"mlp.{name}_proj": shape for name, shape in
              [("gate", [inner, width]), ("up", [inner, width]), ("down", [width, inner])]}
    shapes = {"model.embed_tokens": [CONFIGURATION["vocab_size"], width], "model.norm": [width]}
    for number in range(CONFIGURATION["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIGURATION, file)


def speeds():
    """The engines, and for each drawn row the tokens per second of each; None where none was measured."""
    with open(os.path.join(REPOSITORY, "docs/performance.md"), encoding="utf-8") as file:
        text = file.read()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    head = next(number for number, row in enumerate(rows) if row[0] == "Q4_0")
    engines = rows[head][1:5]
    table = {row[0]: row[1:5] for row in reversed(rows[head + 2:])}  # The first row of a name counts.
    number = lambda cell: None if cell == "–" else float(cell)
    return engines, [(title, [number(cell) for cell in table[name]]) for name, title in SPEED_ROWS]


def speed_chart():
    engines, rows = speeds()
    width, left, right, bar, gap = 860, 130, 90, 17, 30
    out, y = [], 34
    for title, values in rows:
        out.append(f'<text x="16" y="{y}" class="h">{escape(title)}</text>')
        y += 10
        top = max(value for value in values if value is not None)
        for engine, value, colour in zip(engines, values, COLOURS):
            if value is None:
                continue
            long = (width - left - right) * value / top
            out.append(f'<text x="{left - 8}" y="{y + 13}" class="e">{escape(engine)}</text>')
            out.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="{bar - 3}" rx="2" fill="{colour}"/>')
            out.append(f'<text x="{left + long + 7:.1f}" y="{y + 12}">{value:.1f}</text>')
            y += bar
        y += gap
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y - 4}" width="{width}" height="{y - 4}" role="img" '
        'aria-label="Tokens per second of four engines; longer is faster">'
        f"<style>text{{font:13px {FONT};fill:{INK}}}.h{{font-weight:600}}.e{{text-anchor:end;fill:{SOFT}}}"
        f".n{{text-anchor:end;fill:{SOFT};font-size:12px}}</style>"
        f'<rect width="{width}" height="{y - 4}" rx="10" fill="{PAPER}" stroke="{LINE}"/>'
        f'<text x="{width - 16}" y="34" class="n">tokens per second, longer is faster; each test has its own scale</text>'
    )
    return "\n".join([head, *out, "</svg>"]) + "\n"


def report_pictures(girih):
    """The first picture of the array and the first timeline of the report's page."""
    with tempfile.TemporaryDirectory(prefix="girih-pictures-") as home:
        page_file = os.path.join(home, "report.html")
        environment = {"HOME": home, "PATH": os.environ["PATH"]}
        model = os.path.join(home, "llama-3.2-1b")
        os.mkdir(model)
        make_model(model)
        report = [girih, "npu", "report", model, "--html", page_file]
        subprocess.run(report, env=environment, check=True, stdout=subprocess.DEVNULL)
        with open(page_file, encoding="utf-8") as file:
            page = file.read()
    style = re.search(r"<style>\n(.*?)</style>", page, re.DOTALL)[1]
    colours = dict(re.findall(r"--([a-z_]+): (#[0-9a-f]+);", style[:style.index("}")]))
    rules = "".join(line for line in style.splitlines() if line.startswith("svg "))
    rules = rules.replace("svg text ", "text ").replace("svg .", ".")
    found = {}
    for name, label in [("array", "Use of the tiles: Prefill"), ("timeline", "Prefill of [0-9]+ tokens: one layer")]:
        match = re.search(rf'<svg viewBox="0 0 ([0-9.]+) ([0-9.]+)" role="img" aria-label="{label}.*?</svg>', page, re.DOTALL)
        if not match:
            sys.exit(f"the report has no picture {label!r}")
        width, height = float(match[1]), float(match[2])
        body = match[0][match[0].index(">") + 1:-len("</svg>")]
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-14 -14 {width + 28:g} {height + 28:g}" '
            f'width="{width + 28:g}" height="{height + 28:g}" role="img" aria-label="{label.replace(" of [0-9]+ tokens", "")}">'
            f"<style>{rules}</style>"
            f'<rect x="-14" y="-14" width="{width + 28:g}" height="{height + 28:g}" rx="10" fill="{PAPER}"/>'
        )
        text = re.sub(r"var\(--([a-z_]+)\)", lambda use: colours[use[1]], head + body + "</svg>\n")
        found[name] = text
    return found


def main():
    parser = argparse.ArgumentParser(description="Draw the pictures of README.md.")
    parser.add_argument("--girih", required=True, help="the program")
    parser.add_argument("--folder", default=os.path.join(REPOSITORY, "docs/pictures"))
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    pictures = {"speed": speed_chart(), **report_pictures(os.path.abspath(arguments.girih))}
    for name, text in pictures.items():
        path = os.path.join(arguments.folder, name + ".svg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        print(path, len(text), "bytes")


if __name__ == "__main__":
    main()
