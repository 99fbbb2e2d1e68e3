#!/usr/bin/env python3
"""Write docs/families.md from the results of random_models.py.

    scripts/families_page.py results.jsonl docs/families.md

The page has a line per family: how many random models were right, refused or wrong, in which forms, and what is
missing. A second table has the models that people run, with the published forms that girih runs.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]

ROWS = (
    ("Qwen 3.5, 3.6, 3.8 (0.8B to 27B)", ("qwen3_5_text",), ""),
    ("Gemma 4 E2B, E4B", ("gemma4_text",), ""),
    ("Gemma 4 12B unified, 26B-A4B, 31B", ("gemma4_unified_text", "gemma4_text"), ""),
    ("gpt-oss 20b, 120b", ("gpt_oss",), "MXFP4"),
    ("Qwen 3.5, 3.6-35B-A3B", ("qwen3_5_moe_text",), ""),
    ("Qwen3-Next, Qwen3-Coder-Next", ("qwen3_next",), ""),
    ("Qwen3 0.6B to 32B, 30B-A3B, Coder-30B", ("qwen3", "qwen3_moe"), ""),
    ("Qwen3-VL, Qwen2.5-VL", (), "image towers and positions of three dimensions"),
    ("GLM-4.7-Flash, GLM-4.5-Air", ("glm4_moe_lite", "glm4_moe"), ""),
    ("Nemotron 3 Nano, 3.5, Super", ("nemotron_h",), ""),
    ("LFM2, LFM2.5, LFM2-MoE", ("lfm2", "lfm2_moe"), ""),
    ("LFM3-1.7B", ("lfm3",), ""),
    ("Muse Glimmer 30B", ("muse_glimmer",), ""),
    ("Laguna XS.2, 2.1", ("laguna",), ""),
    ("Granite 4, 4.1", ("granitemoehybrid", "granite_swa", "granitemoe_swa"), ""),
    ("Ministral 3, Devstral 2, Mistral Small 4", ("ministral3", "mistral4"), ""),
    ("DeepSeek R1, V3, V4", ("deepseek_v3", "deepseek_v32", "deepseek_v4"), ""),
    ("MiniMax-M2, M3", ("minimax_m2", "minimax_m3_vl_text"), ""),
    ("Kimi-K2, Kimi-Linear", ("deepseek_v3", "kimi_linear"), ""),
    ("GLM-5, 5.3-Flash", ("glm_moe_dsa", "glm5_next"), ""),
    ("Qwen3.8-Flash-Next", ("qwen4_exp_text",), ""),
    ("EmbeddingGemma, Qwen3-Embedding, bge-m3", (), "both-way attention in decoders, and classifiers' heads"),
    ("SmolLM3, Phi-4(-mini), Llama 3, Gemma 3, 3n", ("smollm3", "phi3", "llama", "gemma3_text", "gemma3n_text"), ""),
    ("Whisper, Parakeet, Qwen3-ASR, Voxtral", (), "audio encoders"),
    ("GLM-OCR, DeepSeek-OCR, PaddleOCR-VL, dots.ocr", (), "image towers"),
    ("Step 3.5, 3.7, MiMo V2.5, Hy3, Hy4", ("step3p7", "mimo_v2_flash", "hy_v3", "hy_v4"), ""),
    ("OLMo 3, OLMo-Hybrid, Apertus", ("olmo3", "olmo_hybrid", "apertus", "apertus1p5_text"), ""),
    (
        "Mellum 2, North-Mini-Code, Ling-3.0-Flash, IQuest-Coder",
        ("mellum", "cohere2_moe", "bailing_hybrid", "iquestcoder"),
        "",
    ),
    (
        "ERNIE 4.5, Seed-OSS, Hunyuan, EXAONE 4, Solar",
        (
            "ernie4_5",
            "ernie4_5_moe",
            "seed_oss",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "exaone4",
            "exaone_moe",
            "solar_open",
        ),
        "",
    ),
    ("BitNet, Bonsai, DiffusionGemma", ("bitnet",), "block diffusion"),
)
"""Models that people run, most used first; their families; and a form or a piece beyond those."""

INTRODUCTION = """# Families of models

`scripts/random_models.py` makes small models of each family with transformers {version}: sizes, switches, windows
and scalings are random, and no weight has the value that it starts with. girih either refuses such a model by
naming the key and its value, or its hidden states, logits and greedy tokens agree with transformers within the
[derived bound](commands.md). `scripts/families_page.py` writes this page from the results.

- **right**: of the models drawn, those that agree in each form. f32 and bf16 are golden outputs of transformers in that
  arithmetic, from safetensors; GGUF is a file by llama.cpp's converter, where that knows the family.
- **refused**: those with a switch that girih does not have. Without a right model, the family is unknown.
- A dash stands for what was not tried. llama.cpp's converter drops facts in which a family's published models agree:
  the base of RoPE of Gemma 1 and 2 and of StableLM, the scale of scores of Gemma 2, windows of Mistral and Mixtral, the
  layers of SmolLM3 without rotation, YaRN's factor of rotated components, the rotated part of Nemotron's wide heads and of
  Solar Open, OLMoE's epsilon. A GGUF of a model with other values is another model. Such files are left out.

{counts}

Weights quantized by other libraries (FP8, NVFP4, GPTQ, AWQ) are refused by name in all families.
"""


class Family(NamedTuple):
    """What the results say of a family."""

    name: str
    lines: list[Line]

    def count(self, state: str) -> int:
        """Return the number of models in a state."""
        return sum(line["state"] == state for line in self.lines)

    def form(self, start: str) -> str:
        """Return how many models were right in a form, such as `f32`, of those that ran in it."""
        runs = [run for line in self.lines for name, run in line.get("runs", {}).items() if name.startswith(start)]
        return f"{sum(run == 'right' for run in runs)}/{len(runs)}" if runs else "–"

    def runs_in(self, start: str) -> bool:
        """Return whether models ran in a form, and none was wrong."""
        runs = [run for line in self.lines for name, run in line.get("runs", {}).items() if name.startswith(start)]
        tried = [run for run in runs if not run.startswith("refused")]
        return bool(tried) and all(run == "right" for run in tried)

    @property
    def missing(self) -> str:
        """Return the most frequent reasons of refusals, or why no model could be made."""
        reasons = Counter(shortened(line["sentence"]) for line in self.lines if line["state"] != "right")
        return "; ".join(reason for reason, _ in reasons.most_common(2))


def shortened(sentence: str) -> str:
    """Return a sentence without the temporary folder, advice and numbers that are drawn."""
    sentence = re.sub(r"/tmp/[^\s:]+: ?", "", sentence)
    sentence = re.split(r"; (?:it|they) may change the model|; the section|; similar ones|: pass --", sentence)[0]
    sentence = re.sub(r"which architecture (\w+) does not read", "not read", sentence)
    return sentence.replace("|", "\\|").replace("<", "&lt;")[:200]


def families(path: Path) -> dict[str, Family]:
    """Return the families of a file of results, in the file's order."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for text in path.read_text().splitlines():
        line = json.loads(text)
        lines[line["family"]].append(line)
    return {name: Family(name, of_family) for name, of_family in lines.items()}


def state(family: Family) -> str:
    """Return the state of a family in a word."""
    if family.count("wrong"):
        return "**wrong**"
    if family.count("right"):
        return "runs"
    return "refused" if family.count("refused") else "not made"


def table(known: dict[str, Family]) -> str:
    """Return the table of families."""
    rows = ["| family | state | right | refused | f32 | bf16 | GGUF | missing |", "|---|---|--:|--:|--:|--:|--:|---|"]
    for family in sorted(known.values(), key=lambda family: family.name):
        forms = [family.form(start) for start in ("f32", "bf16", "gguf")]
        counts = [str(family.count(state)) for state in ("right", "refused")]
        rows.append("| " + " | ".join([f"`{family.name}`", state(family), *counts, *forms, family.missing]) + " |")
    return "\n".join(rows)


def published(known: dict[str, Family]) -> str:
    """Return the table of the models that people run."""
    rows = ["| models | runs from | missing |", "|---|---|---|"]
    for models, names, extra in ROWS:
        found = [known[name] for name in names if name in known]
        right = [family for family in found if family.count("right") and not family.count("wrong")]
        forms = ["bf16"] if right else []
        forms += ["GGUF"] if any(family.runs_in("gguf") for family in right) else []
        forms += [extra] if extra == "MXFP4" and right else []
        absent = [f"`{family.name}`: {family.missing}" for family in found if family not in right]
        absent += [extra] if extra and extra != "MXFP4" else []
        which = ""
        if right and len(right) < len(found):
            which = " (" + ", ".join(f"`{family.name}`" for family in right) + ")"
        rows.append(f"| {models} | {', '.join(forms) + which if forms else 'none'} | {'; '.join(absent)} |")
    return "\n".join(rows)


def main() -> None:
    """Write the page."""
    results, out = map(Path, sys.argv[1:3])
    known = families(results)
    states = Counter(state(family) for family in known.values())
    models = Counter(line["state"] for family in known.values() for line in family.lines)
    counts = (
        f"Of {len(known)} families {states['runs']} run, {states['refused']} are refused, {states['**wrong**']} are "
        f"wrong, and transformers makes no small model of {states['not made']}. Of {sum(models.values())} models "
        f"{models['right']} were right, {models['refused']} refused, {models['wrong']} wrong, and "
        f"{models['unbuilt']} not made."
    )
    version = json.loads(results.read_text().splitlines()[0]).get("version", "5.24")
    text = INTRODUCTION.format(version=version, counts=counts)
    text += f"\n## By family\n\n{table(known)}\n\n## By models that people run, most used first\n\n{published(known)}\n"
    out.write_text(text)


if __name__ == "__main__":
    main()
