//! Published figures that contradict each other, or what the hardware can carry. No figure of a
//! target or a kernel was adjusted to them.

/// Each contradiction, with a table that has one of its figures.
const CONTRADICTIONS: &[(&str, &str)] = &[
    (
        "mlir_air_llama1b_kernel_breakdown.csv",
        "FlashAttention of 2048 rows takes 15.4-16.1 ms alone and 21.6 ms in the breakdown",
    ),
    (
        "mlir_air_llama1b_kernel_breakdown.csv",
        "the head takes 8 x 2.19 ms by its own table and 13.5 ms in the breakdown",
    ),
    (
        "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv",
        "the external GEMM 2048x8192x2048 is published twice, 5 % apart",
    ),
    (
        SEED,
        "tokens of Gemma-3-4B after 128k positions need 48.1 GB/s with keys and values in bf16, and the cap is \
         40 GB/s; from 32k to 128k each position costs bytes at 78-83 GB/s, so keys and values are narrower or fed \
         otherwise",
    ),
    (
        SEED,
        "tokens of Gemma-3-1B need 23.8 GB/s with a head in Q4NX and 37.3 GB/s with one in bf16; those of 4B need \
         37.0 and 50.3 GB/s: no format of the head and no bandwidth explains both",
    ),
    (
        MEGATILE,
        "the megatiles need reads of 58, 70 and 54 GB/s by the paper's own equation 5, and the cap is 40 GB/s",
    ),
    (
        MEGATILE,
        "the megatile of 128 rows reads B 16 times in its published time, which needs 46 GB/s; one stream for each of \
         the four rows of cores carries 28.8 GB/s",
    ),
    (
        SEED,
        "prefill reaches 1.4-2.7 TFLOPS with Gemma-3-1B and 3.4-5.0 with 4B, attention included; the GEMM alone \
         reaches 13.7",
    ),
    (
        SEED,
        "the vision tower has 24 layers by the text and 27 by the model; only 27 have the stated 400M weights",
    ),
    (
        SEED,
        "a chunk of 1024 keys in windowed attention would be 512 KiB: the window is meant, and that of 1B is 512",
    ),
    (SEED, "equation 13 lacks the head size; as printed it is no bandwidth"),
    (SEED, "FusedDQP on 4 columns reads through 8 streams, 57.6 GB/s, and is said to need more than 60"),
    (
        SEED,
        "the CPU's prefill of 16k tokens, 766 s, is an outlier between 176 s and 832 s; the headline factors 33.5 and \
         222.9 use it",
    ),
    (POWER, "the headline factors 60.6 and 20.4 are 58.1 and 19.6 by tables 3 to 5"),
    (
        POWER,
        "decode on the NPU has 2.8 W on the CPU and 0 on the GPU, its prefill 0.0 and 3.1 W: columns look exchanged",
    ),
    (SEED, "only bf16 multiplication is said to be native; these cores also multiply int8"),
];

const SEED: &str = "seed001_gemma3_kraken.csv";
const MEGATILE: &str = "gemm_gemma3_paper_megatile.csv";
const POWER: &str = "power_seed001_table5.csv";

/// The contradictions with figures in one of these tables.
pub fn contradictions(tables: &[&str]) -> Vec<&'static str> {
    let of = CONTRADICTIONS.iter().filter(|(table, _)| tables.contains(table));
    of.map(|(_, sentence)| *sentence).collect()
}
