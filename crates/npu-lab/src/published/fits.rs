//! The rows that figures of targets and kernels were fitted to. All other rows test the figures.

/// Rows that a figure was fitted to.
struct FittedRows {
    table: &'static str,
    /// Beginnings of labels.
    labels: &'static [&'static str],
    /// The figures.
    figures: &'static str,
}

/// All fits. The sources in `targets/npu/*.toml` have the details.
const FITS: &[FittedRows] = &[
    FittedRows {
        table: "gemm_xdna_xdna2_striking_the_balance.csv",
        labels: &["XDNA2 int8-int32"],
        figures: "DRAM bandwidth of xdna2-kraken",
    },
    FittedRows {
        table: "gemm_xdna_xdna2_striking_the_balance.csv",
        labels: &["XDNA "],
        figures: "DRAM bandwidth and cost of short runs of xdna1-phoenix",
    },
    FittedRows {
        table: "mlir_air_kernel_EltwiseAdd_bf16.csv",
        labels: &["columns 2", "columns 4"],
        figures: "cycles of add",
    },
    FittedRows {
        table: "mlir_air_kernel_EltwiseAdd_bf16.csv",
        labels: &["n=2097152 ", "n=8388608 "],
        figures: "DRAM bandwidth of xdna2-strix",
    },
    FittedRows {
        table: "mlir_air_kernel_FlashAttention_bf16.csv",
        labels: &[""],
        figures: "cycles of attend and attend_merge, configuring a byte",
    },
    FittedRows {
        table: "mlir_air_kernel_GELU_bf16.csv",
        labels: &["n=1048576 ", "n=8388608 "],
        figures: "cycles of gelu",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMM_bf16_in_bf16_out.csv",
        labels: &["fused cast"],
        figures: "configuring a byte",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMM_bf16_in_bf16_out.csv",
        labels: &["drain"],
        figures: "cost of short runs in DRAM",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMM_bf16_in_bf16_out.csv",
        labels: &["low"],
        figures: "block of gemm_bf16_low",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv",
        labels: &["external 2048×"],
        figures: "block of gemm_bf16",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv",
        labels: &["direct"],
        figures: "block of gemm_bf16_direct",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv",
        labels: &["external 2048³ n=64", "external Down (K=8192) n=64", "external 4096³ n=64"],
        figures: "cost of short runs in DRAM",
    },
    FittedRows {
        table: "mlir_air_kernel_GEMV_bf16.csv",
        labels: &["2048×2048 ", "2048×8192 "],
        figures: "row and step of gemv_bf16",
    },
    FittedRows {
        table: "mlir_air_kernel_LayerNorm_bf16.csv",
        labels: &["1024×768 columns 1"],
        figures: "cycles of layer_norm",
    },
    FittedRows {
        table: "mlir_air_kernel_RMSNorm_bf16.csv",
        labels: &["2048×2048 columns 8"],
        figures: "cycles of rms_norm",
    },
    FittedRows {
        table: "mlir_air_kernel_RoPE_bf16.csv",
        labels: &["65536×64 herd 8×1"],
        figures: "cycles of rope_halves",
    },
    FittedRows {
        table: "mlir_air_kernel_RoPE_bf16.csv", labels: &["8×64 ", "32×64 "], figures: "dispatch"
    },
    FittedRows {
        table: "mlir_air_kernel_SiLU_Mul_bf16.csv",
        labels: &["n=2097152 ", "n=16777216 "],
        figures: "cycles of silu_mul",
    },
    FittedRows {
        table: "mlir_air_llama1b_kernel_breakdown.csv",
        labels: &["decode o_gemv_ffn", "decode rms_gemv_rope"],
        figures: "configuring a tile",
    },
];

impl FittedRows {
    fn has(&self, table: &str, label: &str) -> bool {
        self.table == table && self.labels.iter().any(|begin| label.starts_with(begin))
    }
}

/// Whether these figures were fitted to a row of the built-in tables.
pub(super) fn is_fitted(table: &str, label: &str, figures: &str) -> bool {
    FITS.iter().any(|fit| fit.figures == figures && fit.has(table, label))
}

/// The figures that were fitted to a row of the built-in tables.
pub(super) fn figures_fitted_to(table: &str, label: &str) -> Option<&'static str> {
    FITS.iter().find(|fit| fit.has(table, label)).map(|fit| fit.figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::built_in::built_in_tables;
    use crate::published::tables;

    /// Every fit names rows that exist, and every table but those of attention and of one fit has rows that
    /// no figure was fitted to.
    #[test]
    fn fits_name_rows_of_the_built_in_tables() {
        let mut labels = Vec::new();
        for (name, text) in built_in_tables() {
            let read = tables::read(&name, &text, &mut Vec::new()).unwrap();
            labels.extend(read.measurements.into_iter().map(|one| (one.table, one.label)));
        }
        for fit in FITS {
            for begin in fit.labels {
                let of = labels.iter().any(|(table, label)| table == fit.table && label.starts_with(begin));
                assert!(of, "{}: no row {begin:?} for {}", fit.table, fit.figures);
            }
        }
        let fitted = labels.iter().filter(|(table, label)| figures_fitted_to(table, label).is_some()).count();
        assert!(fitted * 2 < labels.len(), "{fitted} of {} rows are fitted", labels.len());
    }
}
