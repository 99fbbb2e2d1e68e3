"""Compares the figures of two runs: `python compare.py OURS THEIRS`."""

import json
import sys
from pathlib import Path

ours, theirs = (json.loads(Path(name).read_text().splitlines()[-1]) for name in sys.argv[1:3])
for metric in ("acc,none", "acc_norm,none"):
    assert ours["results"][metric] == theirs["results"][metric], (metric, ours["results"], theirs["results"])
pairs = [
    (float(a[0]), float(b[0]))
    for mine, other in zip(ours["likelihoods"], theirs["likelihoods"], strict=True)
    for a, b in zip(mine, other, strict=True)
]
largest = max(abs(a - b) for a, b in pairs)
print(f"accuracy {ours['results']['acc,none']}; {len(pairs)} log-likelihoods differ by at most {largest:.1e}")
# Both compute in f32. `beside_transformers.py` finds logits that differ by 1e-5; a log-probability has at most twice the error of a
# logit, and a continuation has fewer than ten tokens.
assert largest < 10 * 2 * 1e-5, largest
