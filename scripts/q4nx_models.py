#!/usr/bin/env python3
"""Write the GGUF files in tests/fixtures/q4nx: one layer of each family of FastFlowLM's converter that girih knows.

    pip install gguf numpy
    python3 scripts/q4nx_models.py tests/fixtures/q4nx

Then FastFlowLM/FLM_Q4NX_Converter at dd0993c makes the files whose SHA-256 the test has (a_gguf_becomes_the_file_of_fastflowlms_converter):

    python3 convert.py tests/fixtures/q4nx/llama.gguf OUT && sha256sum OUT/model.q4nx
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quantize

WIDTH, FFN, HEADS, KV_HEADS, HEAD, VOCABULARY = 64, 96, 4, 2, 16, 96

# Family, format of the matrices, whether the head is the table of embeddings, seed.
MODELS = [
    ("llama", Kind.Q4_1, False, 1), ("qwen2", Kind.Q4_0, True, 2),
    ("qwen3", Kind.Q4_1, False, 3), ("gemma3", Kind.Q4_1, True, 4),
]


def write(path: Path, family: str, kind: Kind, tied: bool, seed: int) -> None:
    """Write one model with random weights."""
    random = np.random.default_rng(seed)
    file = GGUFWriter(path, family)
    file.add_context_length(128)
    file.add_embedding_length(WIDTH)
    file.add_block_count(1)
    file.add_feed_forward_length(FFN)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(VOCABULARY)
    if family == "llama":
        file.add_rope_dimension_count(HEAD)
    else:
        file.add_key_length(HEAD)
        file.add_value_length(HEAD)
    if family == "gemma3":
        file.add_sliding_window(16)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = (random.standard_normal((rows, columns)) * 0.05).astype(np.float32)
        file.add_tensor(name, quantize(values, kind), raw_dtype=kind)

    def vector(name: str, size: int) -> None:
        file.add_tensor(name, (1 + 0.1 * random.standard_normal(size)).astype(np.float32))

    matrix("token_embd.weight", VOCABULARY, WIDTH)
    vector("output_norm.weight", WIDTH)
    if not tied:
        matrix("output.weight", VOCABULARY, WIDTH)
    if family == "llama":
        file.add_tensor("rope_freqs.weight", np.linspace(1, 32, HEAD // 2).astype(np.float32))
    norms = ["attn_norm", "ffn_norm"]
    if family == "gemma3":
        norms += ["post_attention_norm", "post_ffw_norm"]
    for norm in norms:
        vector(f"blk.0.{norm}.weight", WIDTH)
    if family in ("gemma3", "qwen3"):
        vector("blk.0.attn_q_norm.weight", HEAD)
        vector("blk.0.attn_k_norm.weight", HEAD)
    for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        matrix(f"blk.0.attn_{part}.weight", heads * HEAD, WIDTH)
        if family == "qwen2":
            vector(f"blk.0.attn_{part}.bias", heads * HEAD)
    matrix("blk.0.attn_output.weight", WIDTH, HEADS * HEAD)
    matrix("blk.0.ffn_gate.weight", FFN, WIDTH)
    matrix("blk.0.ffn_up.weight", FFN, WIDTH)
    matrix("blk.0.ffn_down.weight", WIDTH, FFN)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def main() -> None:
    """Write all models."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("out", type=Path, help="the folder of the files")
    arguments = command.parse_args()
    for family, kind, tied, seed in MODELS:
        write(arguments.out / f"{family}.gguf", family, kind, tied, seed)


if __name__ == "__main__":
    main()
