//! The published tables that girih brings. `tables/README.md` gives their sources.

/// Names a table of the folder `tables`, with its text.
macro_rules! table {
    ($name:literal) => {
        ($name, include_str!(concat!("../../tables/", $name)))
    };
}

/// All tables, sorted by name.
const TABLES: [(&str, &str); 16] = [
    table!("gemm_gemma3_paper_megatile.csv"),
    table!("gemm_xdna_xdna2_striking_the_balance.csv"),
    table!("mlir_air_kernel_EltwiseAdd_bf16.csv"),
    table!("mlir_air_kernel_FlashAttention_bf16.csv"),
    table!("mlir_air_kernel_GELU_bf16.csv"),
    table!("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv"),
    table!("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv"),
    table!("mlir_air_kernel_GEMV_bf16.csv"),
    table!("mlir_air_kernel_LayerNorm_bf16.csv"),
    table!("mlir_air_kernel_RMSNorm_bf16.csv"),
    table!("mlir_air_kernel_RoPE_bf16.csv"),
    table!("mlir_air_kernel_SiLU_Mul_bf16.csv"),
    table!("mlir_air_llama1b_kernel_breakdown.csv"),
    table!("power_fastflowlm_llama3.csv"),
    table!("power_seed001_table5.csv"),
    table!("seed001_gemma3_kraken.csv"),
];

/// The published tables of the repository: name and text.
pub fn built_in_tables() -> Vec<(String, String)> {
    TABLES.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}
