//! Families of kernels, whose rows a refit leaves out.

use crate::published::workload::Workload;

/// A family of kernels of the published tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFamily {
    /// Matmuls of several rows.
    Gemm,
    /// Matrix-vector products.
    Gemv,
    /// FlashAttention.
    Attention,
    /// RMSNorm and LayerNorm.
    Norms,
    /// Rotations by position.
    Rope,
    /// Products of SiLU and another operand.
    Silu,
    /// Sums of two operands.
    Add,
}

impl KernelFamily {
    /// All families.
    pub const ALL: [KernelFamily; 7] = [
        KernelFamily::Gemm,
        KernelFamily::Gemv,
        KernelFamily::Attention,
        KernelFamily::Norms,
        KernelFamily::Rope,
        KernelFamily::Silu,
        KernelFamily::Add,
    ];

    /// The name in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            KernelFamily::Gemm => "gemm",
            KernelFamily::Gemv => "gemv",
            KernelFamily::Attention => "attention",
            KernelFamily::Norms => "norms",
            KernelFamily::Rope => "rope",
            KernelFamily::Silu => "silu",
            KernelFamily::Add => "add",
        }
    }

    /// Whether a launch of this workload runs a kernel of the family.
    pub(super) fn is_in(self, workload: &Workload) -> bool {
        match workload {
            Workload::Program(launches) => launches.iter().any(|launch| self.is_in(launch)),
            launch => KernelFamily::of_launch(launch) == Some(self),
        }
    }

    /// The family of a workload that is not a program of a model; none for kernels of no family.
    pub(super) fn of_launch(workload: &Workload) -> Option<KernelFamily> {
        match workload {
            Workload::Gemm(_) | Workload::GemmAndCast(_) | Workload::PaperGemm(_) => Some(KernelFamily::Gemm),
            Workload::Gemv(_) => Some(KernelFamily::Gemv),
            Workload::Attention(_) => Some(KernelFamily::Attention),
            Workload::Rows(kernel) => match kernel.entry {
                "rms_norm" | "layer_norm" => Some(KernelFamily::Norms),
                "rope_halves" => Some(KernelFamily::Rope),
                "silu_mul" => Some(KernelFamily::Silu),
                "add" => Some(KernelFamily::Add),
                _ => None,
            },
            Workload::Program(_) => None,
        }
    }
}
