#!/usr/bin/env python3
"""Print the error of products whose sums are partly in FP16, beside that of rounded activations.

    fp16_sums.py

Weights are normal numbers with a deviation of 0.02, in FP16; activations are normal numbers, of which each channel has a
scale of its own (log-normal, 0.7). A product and its addition round once, as a fused multiply-add of AVX512-FP16 does; the
sums of each group of columns are added up in f32, here in double. Errors are relative to the root mean square of the
results. Needs numpy.
"""

import numpy as np

ROWS, COLUMNS, INPUTS = 64, 64, 2048


def bf16(x: np.ndarray) -> np.ndarray:
    """Round numbers to bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


def int8(x: np.ndarray) -> np.ndarray:
    """Round numbers to 127 levels of each 32 in a column."""
    groups = x.reshape(-1, 32, x.shape[1])
    scale = np.abs(groups).max(1, keepdims=True) / 127
    return (np.rint(groups / scale) * scale).reshape(x.shape)


def grouped(weights: np.ndarray, x: np.ndarray, group: int) -> np.ndarray:
    """Multiply with sums of `group` columns in FP16."""
    total = np.zeros((len(weights), x.shape[1]))
    for first in range(0, len(x), group):
        sums = np.zeros_like(total, dtype=np.float16)
        for column in range(first, first + group):
            sums = (weights[:, column, None] * x[None, column] + sums.astype(np.float64)).astype(np.float16)
        total += sums.astype(np.float64)
    return total


def main() -> None:
    """Print a table."""
    random = np.random.default_rng(1)
    weights = (random.standard_normal((ROWS, INPUTS)) * 0.02).astype(np.float16).astype(np.float64)
    x = random.standard_normal((INPUTS, COLUMNS)) * np.exp(random.standard_normal((INPUTS, 1)) * 0.7)
    halves, exact = x.astype(np.float16).astype(np.float64), weights @ x
    size = np.sqrt((exact**2).mean())
    ways = [
        ("activations in FP16, sums in f32", weights @ halves),
        ("activations in bf16, sums in f32", weights @ bf16(x)),
        ("activations in int8, sums in f32", weights @ int8(x)),
        *((f"activations and sums of {group} in FP16", grouped(weights, halves, group)) for group in (8, 16, 32, 128, INPUTS)),
    ]
    for name, result in ways:
        print(f"| {name} | {np.sqrt(((result - exact) ** 2).mean()) / size:.2e} |")


if __name__ == "__main__":
    main()
