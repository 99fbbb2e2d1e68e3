//! The ops: one entry of a table and one file for each.
//!
//! An entry has the op's name, constants and operands. The text form, the checker's rules on arity
//! and constants, the rewrite that sinks the gather, and the weight forms of backends follow from
//! it. The op's file has three functions: `fits`, the shape rule; `define`, the meaning, in plain
//! loops whose sums are in `f64` and whose results are rounded once; and `work`, what a step has to
//! read and to compute. The table has only ops that a supported architecture uses.
//!
//! Shapes are written `[R, …]`, where `R` is the number of rows of a step (the
//! tokens of all sequences, one sequence after another), `O` the number of
//! output rows, `S` the number of sequences and `C` the positions of the context.

pub(crate) mod activate;
pub(crate) mod add;
pub(crate) mod attend;
pub(crate) mod attend_latent;
pub(crate) mod clamp;
pub(crate) mod concat;
pub(crate) mod delta_rule;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gate;
pub(crate) mod gate_heads;
pub(crate) mod gather;
pub(crate) mod hadamard;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod linear_heads;
pub(crate) mod match_rms;
pub(crate) mod mix_heads;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod reshape;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod scale;
pub(crate) mod scale_columns;
pub(crate) mod select_keys;
pub(crate) mod shift_columns;
pub(crate) mod short_conv;
pub(crate) mod softcap;
pub(crate) mod sparsify;
pub(crate) mod splice;
pub(crate) mod ssm_scan;
pub(crate) mod temper;
mod write;
pub(crate) mod xielu;

use std::fmt;

use girih_tensor::{DType, Error, Result, Shape};

use crate::constant::{
    Act, Constant, ConstantList, ExpertGroups, GateLimit, HeadSharing, Pairing, Pooling, RouterScore, Span,
    Weighed, any, finite, finite_if_present, not_empty, not_negative, not_negative_if_present, not_zero,
    positive, positive_bound_if_present, positive_if_present, power_of_two,
};
use crate::value::{Extent, Role, Value};
use crate::work::{MAX_OPERANDS, NodeWork, WorkStep};

/// The kind of value that an op reads at one position of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// Ids of table rows, such as tokens: an `i32` input.
    Ids,
    /// An `f32` input that has values for some rows of the step only.
    Given,
    /// Activations, one row for each row of the step.
    Rows,
    /// Activations, one row for each row of the step, for each output row or for each sequence.
    Activations,
    /// A weight of two dimensions; each row makes one output, or is one entry
    /// of a table.
    Matrix,
    /// A weight of three dimensions: a matrix for each expert.
    Matrices,
    /// A weight whose values are used one by one, such as those of a norm.
    Vector,
    /// State of the row's own sequence, or activations of the rows of its sequence in this step.
    StateOrRows,
    /// The carried value of the row's own sequence, which the op reads and replaces.
    Carried,
}

impl OperandKind {
    /// Whether a value is of this kind. The shape rules check its rank.
    pub fn fits(self, value: &Value) -> bool {
        let is_ids = value.role == Role::Input && value.dtype == DType::I32;
        let is_made_by_rows = matches!(value.role, Role::Input | Role::Scratch | Role::Output) && !is_ids;
        let is_rows = is_made_by_rows && value.outermost == Extent::Rows;
        let is_state = matches!(value.role, Role::State(_));
        match self {
            OperandKind::Ids => is_ids,
            OperandKind::Given => value.role == Role::Input && !is_ids,
            OperandKind::Rows => is_rows,
            OperandKind::Activations => {
                is_made_by_rows
                    && matches!(value.outermost, Extent::Rows | Extent::OutputRows | Extent::Sequences)
            }
            OperandKind::Matrix | OperandKind::Matrices | OperandKind::Vector => value.role == Role::Weight,
            OperandKind::StateOrRows => is_rows || is_state && value.outermost == Extent::Context,
            OperandKind::Carried => is_state && value.outermost == Extent::Fixed,
        }
    }
}

impl fmt::Display for OperandKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OperandKind::Ids => "ids",
            OperandKind::Given => "an input of given rows",
            OperandKind::Rows => "the rows of the step",
            OperandKind::Activations => "rows of activations",
            OperandKind::Matrix | OperandKind::Matrices | OperandKind::Vector => "a weight",
            OperandKind::StateOrRows => "state or the rows of the step",
            OperandKind::Carried => "a carried value",
        })
    }
}

/// What a row of an op's result depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowUse {
    /// Only the same row of its operands, and weights, so a gather can move before
    /// the op.
    Own,
    /// Also the step's sequences: which sequence the row belongs to, its
    /// position, and which rows are output rows.
    Positional,
    /// All earlier rows of its sequence, through a carried value, so a step goes on where the
    /// last one of its sequence ended.
    Sequential,
}

/// One entry of the op table.
#[derive(Debug)]
pub struct OpSpec {
    /// The name in printed graphs and refusals.
    pub name: &'static str,
    /// The names of the constants, in printed order.
    pub constants: &'static [&'static str],
    /// The operands in order; those from `required` on are optional.
    pub operands: &'static [OperandKind],
    /// The number of operands that the op cannot do without.
    pub required: usize,
    /// What a row of the result depends on.
    pub rows: RowUse,
}

/// Makes [`Op`], [`AppliedOp`] and the table of entries
/// `Name = name { constant: Type [range], … } (operand: Kind, …; optional: Kind, …) RowUse;`, where the
/// module `name` has what else the op states: its shape rule, its definition and its work.
macro_rules! ops {
    ($( $(#[$doc:meta])* $name:ident = $module:ident
        $({ $( $(#[$field_doc:meta])* $field:ident : $type:ty [$range:path] ),* $(,)? })?
        ($($operand:ident : $kind:ident),* $(; $($optional:ident : $optional_kind:ident),*)?) $rows:ident;
    )*) => {
        /// One op with its constants; its operands are the node's.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Op { $( $(#[$doc])* $name $({ $( $(#[$field_doc])* $field: $type ),* })? ),* }

        /// An op with its constants and its operands, by name.
        ///
        /// A backend that answers for an op takes all of them apart, without `..`. So neither a new op nor
        /// a new operand compiles until every backend has answered it.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the fields are those of `Op` and the operands in its documentation")]
        pub enum AppliedOp<T> {
            $( $name { $($($field: $type,)*)? $($operand: T,)* $($($optional: Option<T>,)*)? } ),*
        }

        static OPS: &[OpSpec] = &[$( OpSpec {
            name: stringify!($module),
            constants: &[$($(stringify!($field)),*)?],
            operands: &[$(OperandKind::$kind,)* $($(OperandKind::$optional_kind),*)?],
            required: [$(OperandKind::$kind),*].len(),
            rows: RowUse::$rows,
        } ),*];

        $( const _: () = assert!(
            [$(stringify!($operand),)* $($(stringify!($optional)),*)?].len() <= MAX_OPERANDS,
            "raise MAX_OPERANDS"
        ); )*

        /// An op of the table, without constants.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "`Op` has the documentation")]
        pub enum OpName { $($name),* }

        impl OpName {
            /// Every op, in the order of the table.
            pub const ALL: &'static [OpName] = &[$(OpName::$name),*];

            /// Returns the entry of the table.
            pub fn spec(self) -> &'static OpSpec {
                &OPS[self as usize]
            }
        }

        impl Op {
            /// The op without its constants.
            pub fn without_constants(&self) -> OpName {
                match self { $( Op::$name { .. } => OpName::$name ),* }
            }

            /// Returns the entry of the table.
            pub fn spec(&self) -> &'static OpSpec {
                self.without_constants().spec()
            }

            /// The op with these operands; `None` if it cannot have this number of them.
            pub fn applied_to<T: Copy>(&self, operands: &[T]) -> Option<AppliedOp<T>> {
                let mut operands = operands.iter().copied();
                let call = match *self { $(
                    Op::$name $({ $($field),* })? => AppliedOp::$name {
                        $($($field,)*)?
                        $($operand: operands.next()?,)*
                        $($($optional: operands.next(),)*)?
                    },
                )* };
                operands.next().is_none().then_some(call)
            }

            /// The constants as they are printed: name and text.
            fn constants(&self) -> Vec<(&'static str, Option<String>)> {
                match self { $(
                    Op::$name { $($($field),*)? } => vec![$($((stringify!($field), $field.print())),*)?],
                )* }
            }

            /// Whether every constant is within its range.
            pub(crate) fn has_constants_in_range(&self) -> bool {
                match self { $( Op::$name { $($($field),*)? } => true $($(&& $range($field))*)?, )* }
            }

            /// Parses a printed name and the list of constants that follows it.
            pub(crate) fn parse(name: &str, constants: &str) -> Result<Op> {
                let mut constants = ConstantList::new(name, constants)?;
                $( if name == stringify!($module) {
                    let op = Op::$name { $($($field: constants.parse(stringify!($field))?),*)? };
                    return constants.end().map(|()| op);
                } )*
                Err(Error::new(format!("unknown op '{name}'")))
            }
        }

        impl AppliedOp<&Value> {
            /// Whether the shapes of the operands and of the result are those of the op.
            fn fits(self, result: &Value) -> bool {
                match self { $(
                    AppliedOp::$name { $($($field: _,)*)? $($operand,)* $($($optional,)*)? } => {
                        $module::fits($($operand,)* $($($optional,)*)? result)
                    }
                )* }
            }
        }

        impl AppliedOp<Shape> {
            /// The work of a node in a step, on any device. The operands are given by their shapes.
            pub fn work(self, step: WorkStep<'_>) -> NodeWork {
                match self { $(
                    AppliedOp::$name { $($($field,)*)? $($operand,)* $($($optional,)*)? } => {
                        $module::work($($($field,)*)? $($operand,)* $($($optional,)*)? step)
                    }
                )* }
            }
        }
    };
}

ops! {
    /// `(ids [R], table [V, D]) → [R, D]`: row `ids[r]` of the table.
    Embed = embed (ids: Ids, table: Matrix) Own;

    /// `(x [R, D], given [R, D]) → same`: the rows that the step gives replace those of `x`.
    Splice = splice (x: Rows, given: Given) Positional;

    /// `(x [R, …, D], weight [D]?) → same`: root-mean-square normalisation of
    /// the innermost dimension, `x / √(mean(x²) + epsilon) · weight`
    /// (Zhang & Sennrich 2019, arXiv 1910.07467). The weight may have a number for each value of a row
    /// instead, `[… · D]`: norms of groups with a weight of their own each.
    Norm = norm {
        /// Added to the mean square.
        epsilon: f32 [not_negative],
    } (x: Activations; weight: Vector) Own;

    /// `(x [R, …, D], weight [D]?, bias [D]?) → same`: normalisation of the innermost
    /// dimension, `(x − mean(x)) / √(variance(x) + epsilon) · weight + bias`, where the
    /// variance is the mean squared distance from the mean (Ba et al. 2016, arXiv 1607.06450).
    LayerNorm = layer_norm {
        /// Added to the variance.
        epsilon: f32 [not_negative],
    } (x: Activations; weight: Vector, bias: Vector) Own;

    /// `(x [R, …, D], like [R, …, D]) → same`: every row of the innermost dimension with the root mean square of
    /// another one, `x · √(mean(like²)) / √(max(mean(x²), least))`.
    MatchRms = match_rms {
        /// The smallest mean square that a row counts with.
        least: f32 [not_negative],
    } (x: Activations, like: Activations) Own;

    /// `(x [R, …, D]) → same`: what of each number lies above a cutoff, `max(x − c, 0)` with
    /// `c = mean(x) + deviations · √variance(x)` over the innermost dimension, where the variance is the mean squared
    /// distance from the mean.
    Sparsify = sparsify {
        /// How many standard deviations the cutoff lies above the mean.
        deviations: f32 [finite],
    } (x: Activations) Own;

    /// `(x [R, K], weight [N, K], bias [N]?) → [R, N]`: `x · weightᵀ + bias`.
    Linear = linear (x: Activations, weight: Matrix; bias: Vector) Own;

    /// `(x [R, H, D], weight [H, E, D]) → [R, H, E]`: each head of a row times the transpose of its matrix.
    LinearHeads = linear_heads (x: Activations, weight: Matrices) Own;

    /// `(a [R, H, D], b [R, H, E]) → [R, H, D + E]`: the numbers of each head of `a`, then those of `b`.
    Concat = concat (a: Activations, b: Activations) Own;

    /// `(scores [R, E], bias [E]?) → same`: the weights of the experts of a row, 0 for those that it does
    /// not choose. Scores become probabilities; the experts with the largest ones plus the bias are
    /// chosen, of equal ones the first.
    Route = route {
        /// What scores become.
        score: RouterScore [any],
        /// The number of experts that are chosen.
        used: u32 [not_zero],
        /// If set, the weights of a row are divided by their sum plus this.
        normalized: Option<f32> [not_negative_if_present],
        /// If set, some groups of experts are chosen first.
        groups: Option<ExpertGroups> [any],
        /// If set, it multiplies every weight.
        factor: Option<f32> [positive_if_present],
        /// If set, the probability of an expert is its softmax over those that are not chosen before it and whose
        /// scores are not farther below its own than this share of the larger one (SparseMixer, Liu et al. 2024,
        /// arXiv 2409.12136, as PhiMoE has it).
        near: Option<f32> [positive_if_present],
    } (scores: Activations; bias: Vector) Own;

    /// `(x [R, D], weights [R, E], up [E, F, D], down [E, N, F], gate [E, F, D]?, gate_bias [E, F]?,
    /// up_bias [E, F]?, down_bias [E, N]?) → [R, N]`: the sum of `weight · down(act(gate(x)) · up(x))`
    /// over the experts whose weight is not 0; without a gate, of `weight · down(act(up(x)))`. With a limit
    /// and an offset, gate and up become one as a [`GateRule`](crate::GateRule) says; both need a gate. Weights
    /// of inputs make it the sum of `down(act(gate(weight · x)) · up(weight · x))`; they need a gate and
    /// allow no biases.
    Experts = experts {
        /// The largest number of experts of a row.
        used: u32 [not_zero],
        /// The activation.
        act: Act [any],
        /// The bound of the gate and of the gated value.
        limit: Option<GateLimit> [positive_bound_if_present],
        /// What is added to the gated value.
        offset: Option<f32> [finite_if_present],
        /// What the weights multiply.
        weighed: Weighed [any],
    } (
        x: Activations, weights: Activations, up: Matrices, down: Matrices;
        gate: Matrices, gate_bias: Vector, up_bias: Vector, down_bias: Vector
    ) Own;

    /// `(x) → y`: the same numbers in the same order under another shape with
    /// the same outermost extent.
    Reshape = reshape (x: Activations) Own;

    /// `(x [R, H, D], frequencies [P]) → same`, positional: rotates pair `i` of the first `2P ≤ D`
    /// components of every head by `position · frequencies[i]` radians
    /// (Su et al. 2021, arXiv 2104.09864), and keeps the other components. The frequencies include any
    /// scaling. With positions `[R, S]` and frequencies `[P · S]`, a row has `S` positions of its own: pair `i` is
    /// rotated by the sum of `positions[s] · frequencies[i · S + s]` radians (Wang et al. 2024, arXiv 2409.12191).
    Rope = rope {
        /// The components that form a pair.
        pairing: Pairing [any],
        /// If set, multiplies the rotated components (the attention factor of YaRN: Peng et al. 2023,
        /// arXiv 2309.00071).
        factor: Option<f32> [positive_if_present],
    } (x: Rows, frequencies: Vector; positions: Rows) Positional;

    /// `(x [R, …]) → same`, positional: every element of a row at position `p` times
    /// `1 + beta · ln(1 + ⌊(p + offset) / every⌋)`, which makes the scores of distant positions sharper
    /// (Nakanishi 2025, arXiv 2501.19399).
    Temper = temper {
        /// The factor of the logarithm.
        beta: f32 [finite],
        /// The number of positions with the same factor.
        every: u32 [not_zero],
        /// What is added to the position.
        offset: u32 [any],
    } (x: Rows) Positional;

    /// `(x [R, H, D]) → state [C, H, D]`, positional: stores each row in its
    /// sequence's state at the row's position, rounded to the state's type.
    Write = write (x: Rows) Positional;

    /// `(q [R, H, D], keys [C, G, D], values [C, G, E], sinks [H]?) → [R, H, E]`, positional:
    /// `softmax(mask(cap(scale · q·kᵀ))) · v` over the row's own sequence. Query
    /// head `h` reads KV head `h / (H / G)`. A row at position `p` attends to the
    /// positions of its [`Span`], and, unless that is [`Span::Past`], to all rows of a mutual span that contains
    /// it. The sink of a head is one more score of its softmax, without a value
    /// (OpenAI 2025, arXiv 2508.10925).
    ///
    /// Keys and values are both state of one group, or, with [`Span::All`] and [`Span::Mutual`], both
    /// rows of the step (`[R, G, D]` and `[R, G, E]`).
    Attend = attend {
        /// Multiplies every score.
        scale: f32 [finite],
        /// How far back a row attends.
        span: Span [not_empty],
        /// If set, scores become `cap · tanh(score / cap)` before masking.
        softcap: Option<f32> [positive_if_present],
    } (q: Rows, keys: StateOrRows, values: StateOrRows; sinks: Vector) Positional;

    /// `(q [R, H, D], weights [R, H], keys [C, 1, D]) → [R, C / 16 or more]`, positional: the positions that a row selects among
    /// those of its sequence that it sees (DeepSeek-AI 2025, arXiv 2512.02556): those with the largest
    /// `Σ weight · max(q·k, 0)` over all heads, of equal ones the first. A number has a bit for each of 16 positions, the
    /// lowest one for the first. The keys are state of a group with the span `full`.
    SelectKeys = select_keys {
        /// The number of positions that a row selects, if it sees that many.
        best: u32 [not_zero],
    } (q: Rows, weights: Rows, keys: StateOrRows) Positional;

    /// `(q [R, H, D], latents [C, G, D], selected [R, C / 16 or more]?) → [R, H, E]`, positional: [`Attend`](Op::Attend)
    /// without a softcap and sinks, to keys whose first `E` numbers are their values, too. So a latent is held once
    /// (DeepSeek-AI 2024, arXiv 2405.04434). The latents are state. With a selection, as
    /// [`SelectKeys`](Op::SelectKeys) makes it, a row attends to the positions that it has only.
    AttendLatent = attend_latent {
        /// Multiplies every score.
        scale: f32 [finite],
        /// How far back a row attends.
        span: Span [not_empty],
        /// The number of a key's first numbers that are its value: `E`.
        values: u32 [not_zero],
    } (q: Rows, latents: StateOrRows; selected: Rows) Positional;

    /// `(x [R, D], taps [K, D], carried [K − 1, D], bias [D]?) → same`, sequential: the causal convolution
    /// of each column with taps of its own, `Σₖ taps[k] · x[r − K + 1 + k] + bias` for row `r` of a
    /// sequence. The carried value holds the last `K − 1` rows of `x`, the latest one last; a
    /// sequence begins with zeros.
    ShortConv = short_conv (x: Rows, taps: Vector, carried: Carried; bias: Vector) Sequential;

    /// `(x [R, H, P], dt [R, H], b [R, G, N], c [R, G, N], a [H], d [H], bias [H], carried [H, P, N]) → like x`,
    /// sequential: the scan of Mamba-2 (Dao & Gu 2024, arXiv 2405.21060). A row makes a step
    /// `Δ = min(max(softplus(dt + bias), least), most)` for each head; its state becomes
    /// `S ← e^(Δ·a) · S + Δ · x bᵀ`, and its result is `S c + d · x`. Head `h` reads `b` and `c` of group
    /// `h / (H / G)`. The carried value is `S`; a sequence begins with zeros.
    SsmScan = ssm_scan {
        /// The smallest step.
        least: f32 [not_negative],
        /// The largest step.
        most: Option<f32> [not_negative_if_present],
    } (
        x: Rows, dt: Rows, b: Rows, c: Rows, a: Vector, d: Vector, bias: Vector, carried: Carried
    ) Sequential;

    /// `(q [R, G, D], k [R, G, D], v [R, H, E], beta [R, H], dt [R, H] or [R, H, D], a [H], carried [H, D, E])
    /// → like v`, sequential: the gated delta rule (Yang, Kautz & Hatamizadeh 2024, arXiv 2412.06464); with a step
    /// for each channel, Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692). The carried value has a matrix
    /// `S` for each head, of zeros where a sequence begins. A row decays it, `S ← e^(dt · a) · S`, corrects what it
    /// predicts, `u = beta · (v − Sᵀ k)` and `S ← S + k uᵀ`, and returns `Sᵀ q`.
    DeltaRule = delta_rule {
        /// Which heads of values share a head of queries and keys.
        sharing: HeadSharing [any],
    } (
        q: Rows, k: Rows, v: Rows, beta: Rows, dt: Rows, a: Vector, carried: Carried
    ) Sequential;

    /// `(gate, up) → same`: `act(gate) · up`, element by element; with a limit and an offset as a
    /// [`GateRule`](crate::GateRule) says.
    Gate = gate {
        /// The activation of the gate.
        act: Act [any],
        /// The bound of the operands.
        limit: Option<GateLimit> [positive_bound_if_present],
        /// What is added to the gated value.
        offset: Option<f32> [finite_if_present],
    } (gate: Activations, up: Activations) Own;

    /// `(gate [R, H], x [R, H, D]) → like x`: every head times its activated gate, `act(gate) · x`.
    GateHeads = gate_heads {
        /// The activation of the gate.
        act: Act [any],
    } (gate: Activations, x: Activations) Own;

    /// `(weights [R, H], x [R, H, D]) → [R, D]`: the sum of the heads of a row, each times its weight.
    MixHeads = mix_heads (weights: Activations, x: Activations) Own;

    /// `(x) → same`: `act(x)`, element by element.
    Activate = activate {
        /// The activation.
        act: Act [any],
    } (x: Activations) Own;

    /// `(x) → same`: xIELU, element by element, as [`Xielu`](crate::Xielu) says.
    Xielu = xielu {
        /// The factor of the square.
        positive: f32 [finite],
        /// The factor of the curve below zero.
        negative: f32 [finite],
        /// The slope at zero.
        beta: f32 [finite],
        /// The largest exponent.
        epsilon: f32 [finite],
    } (x: Activations) Own;

    /// `(a, b) → same`: the sum, element by element.
    Add = add (a: Activations, b: Activations) Own;

    /// `(x) → same`: every element times a constant.
    Scale = scale {
        /// The constant.
        factor: f32 [finite],
    } (x: Activations) Own;

    /// `(x [R, …, D], weight [D]) → same`: every number times the weight of its column; zeros stay zeros, so that
    /// experts that were not chosen are none.
    ScaleColumns = scale_columns (x: Activations, weight: Vector) Own;

    /// `(x [R, …, D], shift [D]) → same`: every number less that of its column.
    ShiftColumns = shift_columns (x: Activations, shift: Vector) Own;

    /// `(x) → same`: `cap · tanh(x / cap)`.
    Softcap = softcap {
        /// The bound of the magnitude of every result.
        cap: f32 [positive],
    } (x: Activations) Own;

    /// `(x) → same`: `min(max(x, low), high)`.
    Clamp = clamp {
        /// The least result.
        low: f32 [finite],
        /// The largest one, which is not below `low`.
        high: f32 [finite],
    } (x: Activations) Own;

    /// `(x [R, …, D]) → same`: each block of numbers of the innermost dimension, which is whole blocks, times the
    /// orthonormal Hadamard matrix of Sylvester: `y[i] = Σⱼ (−1)^popcount(i & j) · x[j] / √size`. It is its own inverse and
    /// keeps dot products, and a number that is larger than those beside it becomes part of all of them, so that a
    /// block with one scale loses less by rounding (Ashkboos et al. 2024, arXiv 2404.00456).
    Hadamard = hadamard {
        /// The numbers of a block.
        size: u32 [power_of_two],
    } (x: Activations) Own;

    /// `(x [R, …]) → [O, …]`, positional: the output rows, in order.
    Gather = gather (x: Rows) Positional;

    /// `(x [R, D]) → [S, D]`, positional: one row for each sequence of the step.
    Pool = pool {
        /// How the rows of a sequence become one.
        how: Pooling [any],
    } (x: Rows) Positional;
}

impl Op {
    /// Every entry of the table.
    pub fn table() -> &'static [OpSpec] {
        OPS
    }

    /// Whether the operands have the number, the kinds and the shapes of the op, and the result the
    /// shape that follows.
    pub(crate) fn fits(&self, operands: &[&Value], result: &Value) -> bool {
        let are_of_kinds = operands.iter().zip(self.spec().operands).all(|(value, kind)| kind.fits(value));
        are_of_kinds && self.applied_to(operands).is_some_and(|call| call.fits(result))
    }

    /// `act(gate) · up`.
    pub const fn gate(act: Act) -> Op {
        Op::Gate { act, limit: None, offset: None }
    }

    /// The op's name in printed graphs and refusals.
    pub fn name(&self) -> &'static str {
        self.spec().name
    }
}

/// The name, and the constants in brackets: `norm(epsilon=1e-5)`.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut separator = "(";
        for (name, text) in self.constants().into_iter().filter_map(|(name, text)| Some((name, text?))) {
            write!(f, "{separator}{name}={text}")?;
            separator = " ";
        }
        if separator == " " { f.write_str(")") } else { Ok(()) }
    }
}
