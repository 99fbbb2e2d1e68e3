//! The cases of each op of the table.

use super::case::Case;
use super::roundoff::Roundoff;
use super::{delta, elements, matmuls, norms, rows, scans, sequences};
use crate::ops::OpName;

/// A random case of an op. There is no default arm, so an op without cases does not compile.
pub fn draw(op: OpName, seed: u64, round: Roundoff) -> Case {
    let case = match op {
        OpName::Embed => rows::embed,
        OpName::Splice => rows::splice,
        OpName::Norm => norms::norm,
        OpName::LayerNorm => norms::layer_norm,
        OpName::MatchRms => norms::match_rms,
        OpName::Sparsify => norms::sparsify,
        OpName::Linear => matmuls::linear,
        OpName::LinearHeads => matmuls::linear_heads,
        OpName::Concat => elements::concat,
        OpName::Route => matmuls::route,
        OpName::Experts => matmuls::experts,
        OpName::Reshape => rows::reshape,
        OpName::Rope => rows::rope,
        OpName::Temper => rows::temper,
        OpName::Write => sequences::write,
        OpName::Attend => sequences::attend,
        OpName::SelectKeys => sequences::select_keys,
        OpName::AttendLatent => sequences::attend_latent,
        OpName::ShortConv => sequences::short_conv,
        OpName::SsmScan => scans::ssm_scan,
        OpName::DeltaRule => delta::delta_rule,
        OpName::Gate => elements::gate,
        OpName::GateHeads => elements::gate_heads,
        OpName::MixHeads => elements::mix_heads,
        OpName::Activate => elements::activate,
        OpName::Xielu => elements::xielu,
        OpName::Add => elements::add,
        OpName::Scale => elements::scale,
        OpName::ScaleColumns => elements::scale_columns,
        OpName::ShiftColumns => elements::shift_columns,
        OpName::Softcap => elements::softcap,
        OpName::Clamp => elements::clamp,
        OpName::Hadamard => elements::hadamard,
        OpName::Gather => rows::gather,
        OpName::Pool => rows::pool,
    };
    case(seed, round)
}
