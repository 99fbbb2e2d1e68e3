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
# girih's keys and values are in f16 by default, which rounds by 2^-11 of a value.
assert largest < 1e-2, largest
