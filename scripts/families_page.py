#!/usr/bin/env python3
"""Write the tables of docs/families.md from the results of random_models.py.

    scripts/families_page.py results.jsonl docs/families.md

The page has a line per family: how many random models were right, refused or wrong, in which forms, and what is
missing. From the line `BY_HAND` on, the page is written by hand: the script keeps it, and fails if a family there is
said to run from a form in which models were tried and none was right. "GGUF (fixture)" needs a fixture of the family.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]

FIXTURES = Path(__file__).parent.parent / "tests/fixtures/gguf"
BY_HAND = "<!-- Written by hand from here on; scripts/families_page.py keeps and checks it. -->"

INTRODUCTION = """# Families of models

`scripts/random_models.py` makes small models of each family with transformers {version}: sizes, switches, windows
and scalings are random, and no weight has the value that it starts with. girih either refuses such a model by
naming the key and its value, or its hidden states, logits and greedy tokens agree with transformers within the
[derived bound](commands.md). `scripts/families_page.py` writes this table from the results. The
[second table](#models-that-people-run) has the published models.

- **right**: models that agree in each form. f32 and bf16 are golden outputs of transformers in that arithmetic, from
  safetensors; GGUF is a file by llama.cpp's converter, where that knows the family. Columns of forms count models that were
  right in the form.
- **refused**: models with a switch that girih does not have, or of an unknown family.
- A dash stands for what was not tried.
{drops}
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

    def outcomes(self, start: str) -> Counter:
        """Return how many models were right, refused and wrong in a form, such as `f32`."""
        of_models = [[run for name, run in line.get("runs", {}).items() if name.startswith(start)] for line in self.lines]
        return Counter(outcome(runs) for runs in of_models if runs)

    def form(self, start: str) -> str:
        """Return the cell of a form."""
        found = self.outcomes(start)
        cells = [f"{found[state]} {state}" for state in ("wrong", "refused") if found[state]]
        return ", ".join([str(found["right"]), *cells]) if found else "–"

    @property
    def missing(self) -> str:
        """Return the most frequent reasons of refusals, or why no model could be made."""
        reasons = Counter(shortened(line["sentence"]) for line in self.lines if line["state"] != "right")
        return "; ".join(reason for reason, _ in reasons.most_common(2))


def outcome(runs: list[str]) -> str:
    """Return what became of a model in the runs of a form."""
    if all(run == "right" for run in runs):
        return "right"
    return "refused" if all(run == "right" or run.startswith("refused") for run in runs) else "wrong"


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


def dropped(known: dict[str, Family]) -> str:
    """Return the sentence on the facts that llama.cpp's converter dropped from models of these results."""
    cells = []
    for family in sorted(known.values(), key=lambda family: family.name):
        facts = {fact.removeprefix("rope_parameters.") for line in family.lines for fact in line.get("gguf_drops", ())}
        if facts:
            cells.append(f"`{family.name}` ({', '.join(f'`{fact}`' for fact in sorted(facts))})")
    if not cells:
        return ""
    models = sum("gguf_drops" in line for family in known.values() for line in family.lines)
    return (
        f"- llama.cpp's converter drops facts in which a family's published models agree. {models} models had another\n"
        f"  value, so that their GGUF would be another model, and were not tried as GGUF: {', '.join(cells)}.\n"
    )


def claims(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a family and a form in the column "runs from" of the table written by hand."""
    rows = [line.split("|") for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    cells = [re.findall(r"`(\w+)`: ([^;]+)", row[3]) for row in rows]
    return [(name, form.strip()) for cell in cells for name, forms in cell for form in forms.split(",")]


def doubts(known: dict[str, Family], text: str) -> tuple[list[str], list[str]]:
    """Return a sentence for each claim that the results deny, and for each that they do not show.

    Published MXFP4 is no form of random models.
    """
    denied, unshown = [], []
    for name, form in claims(text):
        start = form.split()[0]
        found = known[name].outcomes(start.lower()) if name in known else Counter()
        if form == "GGUF (fixture)":
            if not any(FIXTURES.glob(f"{name.removesuffix('_text')}*.gguf")):
                denied.append(f"`{name}` is said to run from GGUF, and {FIXTURES} has no fixture of it")
        elif name not in known or state(known[name]) != "runs":
            denied.append(f"`{name}` is said to run, and no model of the results is right")
        elif found and not found["right"]:
            denied.append(f"`{name}` is said to run from {start}, and no model of the results is right from it")
        elif start != "MXFP4" and not found:
            unshown.append(f"`{name}` is said to run from {start}, which the results did not try")
    return denied, unshown


def main() -> None:
    """Write the page."""
    results, out = map(Path, sys.argv[1:3])
    known = families(results)
    _, found, by_hand = out.read_text().partition(BY_HAND)
    if not found:
        sys.exit(f"{out} lacks the line `{BY_HAND}`; put it before what is written by hand")
    denied, unshown = doubts(known, by_hand)
    print("".join(f"note: {out}: {sentence}\n" for sentence in unshown), end="", file=sys.stderr)
    if denied:
        sys.exit("\n".join(f"{out}: {sentence}" for sentence in denied))
    states = Counter(state(family) for family in known.values())
    models = Counter(line["state"] for family in known.values() for line in family.lines)
    counts = (
        f"Of {len(known)} families {states['runs']} run, {states['refused']} are refused, {states['**wrong**']} are "
        f"wrong, and transformers makes no small model of {states['not made']}. Of {sum(models.values())} models "
        f"{models['right']} were right, {models['refused']} refused, {models['wrong']} wrong, and "
        f"{models['unbuilt']} not made."
    )
    version = json.loads(results.read_text().splitlines()[0]).get("version", "5.24")
    text = INTRODUCTION.format(version=version, counts=counts, drops=dropped(known))
    out.write_text(f"{text}\n## By family\n\n{table(known)}\n\n{BY_HAND}{by_hand}")


if __name__ == "__main__":
    main()
