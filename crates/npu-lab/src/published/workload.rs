//! The designs that published rows were measured with.

use girih_tensor::Result;

use super::attend::AirAttention;
use super::design::{Design, divides};
use super::gemm::AirGemm;
use super::gemv::AirGemv;
use super::paper::PaperGemm;
use super::rows::RowKernel;

/// The design that is built to simulate a measurement.
#[derive(Clone, Debug)]
pub(super) enum Workload {
    Gemm(AirGemm),
    /// A matmul in f32, then a launch that rounds the result to bf16.
    GemmAndCast(AirGemm),
    Gemv(AirGemv),
    Rows(RowKernel),
    Attention(AirAttention),
    PaperGemm(PaperGemm),
    /// Launches one after another.
    Program(Vec<Workload>),
}

impl Workload {
    /// Checks that the design can be built: the tables are not trusted.
    ///
    /// # Errors
    /// When sizes do not fit their tiles.
    pub fn fits(&self) -> Result<()> {
        match self {
            Workload::Gemm(gemm) => gemm.fits(),
            Workload::GemmAndCast(gemm) => {
                gemm.fits()?;
                divides("the number of results to round", gemm.m * gemm.n, CAST_TILE)?;
                cast(gemm.m * gemm.n).fits()
            }
            Workload::Gemv(gemv) => gemv.fits(),
            Workload::Rows(kernel) => kernel.fits(),
            Workload::Attention(attention) => attention.fits(),
            Workload::PaperGemm(gemm) => gemm.fits(),
            Workload::Program(launches) => launches.iter().try_for_each(Workload::fits),
        }
    }

    /// Appends the launches, in order.
    pub fn designs(&self, all: &mut Vec<Design>) {
        match self {
            Workload::Gemm(gemm) => all.push(gemm.design("gemm")),
            Workload::GemmAndCast(gemm) => {
                all.extend([gemm.design("gemm"), cast(gemm.m * gemm.n).design("cast")]);
            }
            Workload::Gemv(gemv) => all.push(gemv.design("gemv")),
            Workload::Rows(kernel) => all.push(kernel.design(kernel.entry)),
            Workload::Attention(attention) => all.push(attention.design("attend")),
            Workload::PaperGemm(gemm) => all.push(gemm.design("gemm")),
            Workload::Program(launches) => launches.iter().for_each(|launch| launch.designs(all)),
        }
    }
}

/// Values that one call of the rounding launch takes.
const CAST_TILE: u64 = 4096;

/// The launch that rounds `n` values to bf16.
fn cast(n: u64) -> RowKernel {
    RowKernel {
        entry: "store_bf16",
        numbers: vec![CAST_TILE],
        inputs: vec![CAST_TILE * 4],
        output: CAST_TILE * 2,
        constants: Vec::new(),
        calls: n / CAST_TILE,
        herd: (8, 1),
        contiguous: false,
    }
}
