//! The op of a published row as a program that girih compiles, to be measured on a device. Its tiles are girih's, not
//! those that were measured.

use girih_graph::{BLOCK_POSITIONS, Pairing};
use girih_npu::Target;
use girih_npu::form::groups::{ArrayProgram, AttendSizes, GateAct, Kernel, KernelLaunch};
use girih_npu::form::schedule::{Argument, ArgumentRole, Schedule};
use girih_npu::form::weights::WeightLayout;
use girih_npu::pass::{NoDump, compile};
use girih_npu::sim::Simulator;
use girih_tensor::{Error, Result};

use super::attend::AirAttention;
use super::measurement::{MeasuredSubject, Measurement};
use super::rows::RowKernel;
use super::validation::simulated_micros;
use super::workload::Workload;

/// The program of a row's op, and its simulated time.
#[derive(Clone, Debug)]
pub struct CompiledRow {
    /// The program: one launch.
    pub schedule: Schedule,
    /// Simulated microseconds, with the array configured before.
    pub micros: f64,
}

impl Measurement {
    /// Compiles the op of the row for its target; none for steps of models, rows of several ops, and ops that the array
    /// has no program for.
    ///
    /// # Errors
    /// When the op does not fit the target.
    pub fn compiled(&self) -> Result<Option<CompiledRow>> {
        let MeasuredSubject::Launches(workload) = &self.subject else { return Ok(None) };
        let Some((name, kernel)) = kernel(workload)? else { return Ok(None) };
        let target = Target::named(self.target)?;
        let schedule = compile(&program(name, kernel), &target, &mut NoDump)?;
        let micros = simulated_micros(&mut Simulator::new(&target)?, &schedule, self.elf)?;
        Ok(Some(CompiledRow { schedule, micros }))
    }
}

/// A program of one launch, whose last operand is its result.
fn program(name: &str, kernel: Kernel) -> ArrayProgram {
    let sizes = kernel.operand_bytes();
    let last = sizes.len() - 1;
    let argument = |(index, bytes)| {
        let role = if index == last { ArgumentRole::Output } else { ArgumentRole::Input };
        Argument { name: format!("a{index}"), role, bytes }
    };
    let launch = KernelLaunch {
        name: name.to_owned(),
        kernel,
        arguments: (0..sizes.len() as u32).collect(),
        tiling: None,
        resident: false,
    };
    let arguments = sizes.into_iter().enumerate().map(argument).collect();
    ArrayProgram { name: name.to_owned(), arguments, launches: vec![launch] }
}

fn kernel(workload: &Workload) -> Result<Option<(&'static str, Kernel)>> {
    Ok(match workload {
        Workload::Gemm(gemm) | Workload::GemmAndCast(gemm) => {
            let [m, n, k] = numbers([gemm.m, gemm.n, gemm.k])?;
            Some(("gemm", Kernel::Gemm { m, n, k, weights: WeightLayout::Rows }))
        }
        Workload::Gemv(gemv) => {
            let [n, k] = numbers([gemv.m, gemv.k])?;
            Some(("gemv", Kernel::Gemv { first: 0, n, k, weights: WeightLayout::Rows }))
        }
        Workload::Rows(rows) => row_kernel(rows)?,
        Workload::Attention(attention) => attend(attention)?.map(|sizes| ("attend", Kernel::Attend(sizes))),
        Workload::PaperGemm(_) | Workload::Program(_) => None,
    })
}

/// The op of a kernel on elements or rows.
fn row_kernel(rows: &RowKernel) -> Result<Option<(&'static str, Kernel)>> {
    let [calls, each] = numbers([rows.calls, rows.output / 2])?;
    let n = calls.checked_mul(each).ok_or_else(|| Error::new("the row has more than 2^32 values"))?;
    Ok(match rows.entry {
        "add" => Some(("add", Kernel::Add { n })),
        "silu_mul" => Some(("silu_mul", Kernel::Gate { n, act: GateAct::Silu })),
        "rms_norm" => {
            Some(("rms_norm", Kernel::RmsNorm { rows: calls, n: each, width: each, epsilon: 1e-5 }))
        }
        "rope_halves" => {
            Some(("rope", Kernel::Rope { rows: calls, heads: 1, size: each, pairing: Pairing::Halves }))
        }
        _ => None,
    })
}

/// Causal attention of a prompt from its first position on; none if keys and values differ in size, which no program has, or if
/// rows see later ones: buffers of zeros name no spans.
fn attend(of: &AirAttention) -> Result<Option<AttendSizes>> {
    let [rows, keys, size, heads] = numbers([of.rows, of.keys, of.size, of.heads])?;
    let has_program = of.causal && of.size == of.values && keys.is_multiple_of(BLOCK_POSITIONS as u32);
    let sizes = AttendSizes {
        rows,
        heads,
        kv_heads: heads,
        size,
        keys,
        latest: keys.saturating_sub(rows),
        causal: true,
        window: 0,
        scale: 1.0 / (size as f32).sqrt(),
    };
    Ok(has_program.then_some(sizes))
}

fn numbers<const N: usize>(sizes: [u64; N]) -> Result<[u32; N]> {
    let mut all = [0; N];
    for (to, size) in all.iter_mut().zip(sizes) {
        *to = u32::try_from(size).map_err(|_| Error::new(format!("{size} is too large for a program")))?;
    }
    Ok(all)
}
