#!/usr/bin/env python3
"""Compares the two attentions of OpenVINO's CPU device on a prompt: that of stateful models, as girih writes them, and PagedAttention.

    openvino_attention.py MODEL.gguf [--rows 512] [--rounds 5] [--hint f32] [--threads 2]

Lets OpenVINO GenAI make a stateful model of the file, and a copy of it with PagedAttention, as its LLMPipeline runs it. Runs a prompt
with both in turns, and prints the milliseconds of the kinds of layers (PERF_COUNT, whose means over all runs become those of a run)
and the seconds of processor time. Needs openvino-genai 2026.4, numpy, and as much disk as the file has.
"""

import argparse
import collections
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
from openvino._offline_transformations import paged_attention_transformation

BLOCK = 32
"""Positions of a block of keys and values on the CPU device."""


class Timed:
    """A compiled model, and the times of its layers so far."""

    def __init__(self, model: ov.Model, properties: dict):
        self.compiled = ov.Core().compile_model(model, "CPU", properties)
        self.runs = 0
        self.sums: collections.Counter = collections.Counter()

    def run(self, inputs: dict) -> tuple[float, dict[str, float]]:
        """Return the seconds of processor time and the milliseconds of each kind of layer that takes some."""
        request = self.compiled.create_infer_request()
        begun = time.process_time()
        request.infer(inputs)
        seconds = time.process_time() - begun
        self.runs += 1
        sums: collections.Counter = collections.Counter()
        for layer in request.profiling_info:
            sums[layer.node_type] += 1e3 * layer.real_time.total_seconds() * self.runs
        own = {kind: sums[kind] - self.sums[kind] for kind in sums}
        self.sums = sums
        return seconds, {kind: taken for kind, taken in own.items() if taken > 20}


def stateful_inputs(ids: np.ndarray) -> dict:
    rows = len(ids)
    return {
        "input_ids": ids[None],
        "attention_mask": np.ones((1, rows), np.int64),
        "position_ids": np.arange(rows)[None],
        "beam_idx": np.zeros(1, np.int32),
    }


def paged_inputs(ids: np.ndarray, compiled: ov.CompiledModel) -> dict:
    rows, blocks = len(ids), -(-len(ids) // BLOCK)
    inputs = {
        "input_ids": ids,
        "position_ids": np.arange(rows),
        "past_lens": np.zeros(1, np.int32),
        "subsequence_begins": np.array([0, rows], np.int32),
        "block_indices": np.arange(blocks, dtype=np.int32),
        "block_indices_begins": np.array([0, blocks], np.int32),
        "max_context_len": np.array(rows, np.int32),
    }
    for port in compiled.inputs:
        if "cache." in port.any_name:
            extents = [extent.get_length() if extent.is_static else blocks for extent in port.partial_shape]
            inputs[port.any_name] = ov.Tensor(port.element_type, ov.Shape(extents))
    return inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hint", default="f32")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    properties = {"INFERENCE_PRECISION_HINT": arguments.hint, "KV_CACHE_PRECISION": arguments.hint, "PERF_COUNT": "YES"}
    properties |= {"INFERENCE_NUM_THREADS": arguments.threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32}
    with tempfile.TemporaryDirectory(dir=arguments.model.parent) as folder:
        link = Path(folder) / arguments.model.name
        link.symlink_to(arguments.model.resolve())
        # It saves the model beside the file.
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        models = [ov.Core().read_model(Path(folder) / "openvino_model.xml") for _ in range(2)]
        paged_attention_transformation(models[1])
        stateful, paged = (Timed(model, properties) for model in models)
    ids = np.random.default_rng(1).integers(1000, 100_000, arguments.rows)
    ways = {"stateful": (stateful, stateful_inputs(ids)), "paged": (paged, paged_inputs(ids, paged.compiled))}
    for index in range(arguments.rounds):
        for name, (timed, inputs) in ways.items():
            seconds, kinds = timed.run(inputs)
            shown = ", ".join(f"{kind} {taken:.0f} ms" for kind, taken in sorted(kinds.items(), key=lambda pair: -pair[1]))
            print(f"round {index + 1}, {name}: {seconds:.2f} s of processor time; {shown}", flush=True)


if __name__ == "__main__":
    main()
