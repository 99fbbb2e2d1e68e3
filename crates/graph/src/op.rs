//! The operators: what each takes, what it yields, and its formula.
//!
//! The set holds what the supported architectures use and nothing else; an
//! operator comes with the first model that needs it. Shapes below are written
//! `[R, …]` where `R` is the number of rows of a step (tokens of all sequences, one
//! sequence after another) and `W` the number of rows whose results are wanted.
//! *Positional* operators read the step's sequences: which sequence a row belongs
//! to, where it stands in it, and which rows are output rows.

use std::fmt;

/// One operator, with everything about it that is not a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `(tokens [R], table [V, D]) → [R, D]`: row `tokens[r]` of the table.
    Embed,
    /// `(x [R, …, D], weight [D]) → same`: root-mean-square normalisation of
    /// the innermost dimension, `x / √(mean(x²) + epsilon) · weight`
    /// (Zhang & Sennrich 2019, arXiv 1910.07467).
    Norm {
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `(x [R, K], weight [N, K], bias [N]?) → [R, N]`: `x · weightᵀ + bias`.
    Linear,
    /// `(x) → y`: the same numbers in the same order under another shape; the
    /// outermost extent stays.
    Reshape,
    /// `(x [R, H, D], frequencies [D/2]) → same`, positional: rotates pair `i`
    /// of every head by `position · frequencies[i]` radians
    /// (Su et al. 2021, arXiv 2104.09864). The frequencies carry any scaling.
    Rope {
        /// Which components form a pair.
        pairing: Pairing,
    },
    /// `(x [R, H, D]) → state [C, H, D]`, positional: puts each row into its
    /// sequence's state at the row's position, rounded to the state's type.
    Write,
    /// `(q [R, H, D], keys [C, G, D], values [C, G, E]) → [R, H, E]`, positional:
    /// `softmax(mask(cap(scale · q·kᵀ))) · v` over the row's own sequence. Query
    /// head `h` reads key head `h / (H / G)`. A row at position `p` sees the
    /// positions that [`Span`] names, and all rows of a mutual span it lies in.
    Attend {
        /// Multiplies every score.
        scale: f32,
        /// How far back a row sees.
        span: Span,
        /// If set, scores become `cap · tanh(score / cap)` before masking.
        softcap: Option<f32>,
    },
    /// `(gate, up) → same`: `act(gate) · up`, element by element.
    Gate {
        /// The activation of the gate.
        act: Act,
    },
    /// `(a, b) → same`: the sum, element by element.
    Add,
    /// `(x) → same`: every element times a constant.
    Scale {
        /// The constant.
        factor: f32,
    },
    /// `(x) → same`: `cap · tanh(x / cap)`.
    Softcap {
        /// The bound that no result exceeds in size.
        cap: f32,
    },
    /// `(x [R, …]) → [W, …]`, positional: the output rows,
    /// in their order.
    Gather,
}

/// Which components of a head a rotation pairs; `D` is the head's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Component `i` with `i + D/2`.
    Halves,
    /// Component `2i` with `2i + 1`.
    Neighbours,
}

/// How far back a row at position `p` sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Positions `0 ..= p`.
    Full,
    /// The last so many positions, its own included: `p − n + 1 ..= p`.
    Window(u32),
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`: the tanh form of GELU
    /// (Hendrycks & Gimpel 2016, arXiv 1606.08415).
    GeluTanh,
}

impl Op {
    /// The operator's name in printed graphs and refusals.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::Norm { .. } => "norm",
            Op::Linear => "linear",
            Op::Reshape => "reshape",
            Op::Rope { .. } => "rope",
            Op::Write => "write",
            Op::Attend { .. } => "attend",
            Op::Gate { .. } => "gate",
            Op::Add => "add",
            Op::Scale { .. } => "scale",
            Op::Softcap { .. } => "softcap",
            Op::Gather => "gather",
        }
    }
}

impl Act {
    /// Every activation.
    pub const ALL: &'static [Act] = &[Act::Silu, Act::GeluTanh];

    /// The name in printed graphs and architecture files.
    pub fn name(self) -> &'static str {
        match self {
            Act::Silu => "silu",
            Act::GeluTanh => "gelu_tanh",
        }
    }
}

impl Pairing {
    /// The name in printed graphs and architecture files.
    pub fn name(self) -> &'static str {
        match self {
            Pairing::Halves => "halves",
            Pairing::Neighbours => "neighbours",
        }
    }
}

impl Span {
    /// The first position that a row at `position` sees.
    pub fn first(self, position: usize) -> usize {
        match self {
            Span::Full => 0,
            Span::Window(length) => (position + 1).saturating_sub(length as usize),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Full => f.write_str("full"),
            Span::Window(length) => write!(f, "window:{length}"),
        }
    }
}
