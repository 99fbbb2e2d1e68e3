//! The op table: one entry per op with everything that generic code has to know
//! about it.
//!
//! These follow from an entry: the text form, the checker's rules on arity,
//! shapes and constants, the rewrite that sinks the gather, the weight forms of
//! backends, and their refusals. The meaning of an op does not: it is a
//! function of the [interpreter](crate::interpret). The table has only ops that
//! a supported architecture uses.
//!
//! Shapes are written `[R, …]`, where `R` is the number of rows of a step (the
//! tokens of all sequences, one sequence after another), `O` the number of
//! output rows, `S` the number of sequences and `C` the positions of the context.

use std::fmt;

use girih_tensor::{DType, Error, Result};

use crate::constant::{
    Act, Constant, ConstantList, Pairing, Pooling, Span, any, finite, not_empty, not_negative, positive,
    positive_if_present,
};
use crate::value::{Extent, Role, Value};

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
            OperandKind::Matrix | OperandKind::Vector => value.role == Role::Weight,
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
            OperandKind::Matrix | OperandKind::Vector => "a weight",
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
    shapes: fn(&Operands<'_>) -> bool,
}

impl OpSpec {
    /// Whether the op can have `count` operands.
    pub fn takes(&self, count: usize) -> bool {
        (self.required..=self.operands.len()).contains(&count)
    }

    /// Whether the operands have the kinds and shapes of the op, and the result
    /// the shape that follows. The op must [take](OpSpec::takes) this number of
    /// operands.
    pub fn fits(&self, inputs: &[&Value], output: &Value) -> bool {
        inputs.iter().zip(self.operands).all(|(value, kind)| kind.fits(value))
            && (self.shapes)(&Operands { inputs, output })
    }
}

/// The operands and the result of a node, for shape rules.
struct Operands<'a> {
    inputs: &'a [&'a Value],
    output: &'a Value,
}

impl Operands<'_> {
    fn rank(&self, index: usize) -> usize {
        self.inputs[index].shape.extents().len()
    }

    fn rows(&self, index: usize) -> usize {
        self.inputs[index].shape.extents()[0]
    }

    fn columns(&self, index: usize) -> usize {
        self.inputs[index].shape.columns()
    }

    fn inner(&self, index: usize) -> &[usize] {
        &self.inputs[index].shape.extents()[1..]
    }

    /// Whether operand `index` has these extents, or is optional and absent.
    fn is(&self, index: usize, extents: &[usize]) -> bool {
        self.inputs.get(index).is_none_or(|value| value.shape.extents() == extents)
    }

    /// Whether the result has the shape of operand `index`.
    fn same(&self, index: usize) -> bool {
        let x = self.inputs[index];
        x.shape == self.output.shape && x.outermost == self.output.outermost
    }

    /// Whether the result has the outermost extent of operand 0.
    fn keeps_rows(&self) -> bool {
        self.inputs[0].outermost == self.output.outermost && self.rows(0) == self.output.shape.extents()[0]
    }

    /// Whether the result has these extents within its outermost one.
    fn yields(&self, inner: &[usize]) -> bool {
        self.output.shape.extents()[1..] == *inner
    }

    /// The shape rule of attention: the same number of query heads for each KV
    /// head.
    fn attends(&self) -> bool {
        if (0..3).any(|index| self.rank(index) != 3) {
            return false;
        }
        let [heads, size] = [self.inner(0)[0], self.columns(0)];
        let kv_heads = self.inner(1)[0];
        kv_heads > 0
            && heads.is_multiple_of(kv_heads)
            && size == self.columns(1)
            && self.inner(2)[0] == kv_heads
            && self.keeps_rows()
            && self.yields(&[heads, self.columns(2)])
    }
}

/// Makes [`Op`] and its table of entries
/// `Name = "name" { constant: Type [range], … } (Operand, …; Optional, …) RowUse |o| shape rule;`.
macro_rules! ops {
    ($( $(#[$doc:meta])* $name:ident = $text:literal
        $({ $( $(#[$field_doc:meta])* $field:ident : $type:ty [$range:path] ),* $(,)? })?
        ($($operand:ident),* $(; $($optional:ident),*)?) $rows:ident $shapes:expr ;
    )*) => {
        /// One op with its constants; its operands are the node's.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Op { $( $(#[$doc])* $name $({ $( $(#[$field_doc])* $field: $type ),* })? ),* }

        static OPS: &[OpSpec] = &[$( OpSpec {
            name: $text,
            constants: &[$($(stringify!($field)),*)?],
            operands: &[$(OperandKind::$operand,)* $($(OperandKind::$optional),*)?],
            required: [$(OperandKind::$operand),*].len(),
            rows: RowUse::$rows,
            shapes: $shapes,
        } ),*];

        /// The index of each op in `OPS`.
        enum OpIndex { $($name),* }

        impl Op {
            /// Returns the entry of the table.
            pub fn spec(&self) -> &'static OpSpec {
                &OPS[match self { $( Op::$name { .. } => OpIndex::$name ),* } as usize]
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
                let op = match name {
                    $( $text => Op::$name { $($($field: constants.parse(stringify!($field))?),*)? }, )*
                    _ => return Err(Error::new(format!("unknown op '{name}'"))),
                };
                constants.end()?;
                Ok(op)
            }
        }
    };
}

ops! {
    /// `(ids [R], table [V, D]) → [R, D]`: row `ids[r]` of the table.
    Embed = "embed" (Ids, Matrix) Own
        |o| o.rank(1) == 2 && o.keeps_rows() && o.yields(&[o.columns(1)]);

    /// `(x [R, D], given [R, D]) → same`: the rows that the step gives replace those of `x`.
    Splice = "splice" (Rows, Given) Positional |o| o.same(0) && o.same(1);

    /// `(x [R, …, D], weight [D]) → same`: root-mean-square normalisation of
    /// the innermost dimension, `x / √(mean(x²) + epsilon) · weight`
    /// (Zhang & Sennrich 2019, arXiv 1910.07467).
    Norm = "norm" {
        /// Added to the mean square.
        epsilon: f32 [not_negative],
    } (Activations, Vector) Own
        |o| o.rank(0) > 1 && o.same(0) && o.is(1, &[o.columns(0)]);

    /// `(x [R, …, D], weight [D], bias [D]?) → same`: normalisation of the innermost
    /// dimension, `(x − mean(x)) / √(variance(x) + epsilon) · weight + bias`, where the
    /// variance is the mean squared distance from the mean (Ba et al. 2016, arXiv 1607.06450).
    LayerNorm = "layer_norm" {
        /// Added to the variance.
        epsilon: f32 [not_negative],
    } (Activations, Vector; Vector) Own
        |o| o.rank(0) > 1 && o.same(0) && o.is(1, &[o.columns(0)]) && o.is(2, &[o.columns(0)]);

    /// `(x [R, K], weight [N, K], bias [N]?) → [R, N]`: `x · weightᵀ + bias`.
    Linear = "linear" (Activations, Matrix; Vector) Own |o| {
        o.rank(0) == 2
            && o.rank(1) == 2
            && o.columns(0) == o.columns(1)
            && o.is(2, &[o.rows(1)])
            && o.keeps_rows()
            && o.yields(&[o.rows(1)])
    };

    /// `(x) → y`: the same numbers in the same order under another shape with
    /// the same outermost extent.
    Reshape = "reshape" (Activations) Own
        |o| o.keeps_rows() && o.inputs[0].shape.elements() == o.output.shape.elements();

    /// `(x [R, H, D], frequencies [D/2]) → same`, positional: rotates pair `i`
    /// of every head by `position · frequencies[i]` radians
    /// (Su et al. 2021, arXiv 2104.09864). The frequencies include any scaling.
    Rope = "rope" {
        /// The components that form a pair.
        pairing: Pairing [any],
    } (Rows, Vector) Positional
        |o| o.same(0) && o.rank(0) == 3 && o.columns(0) % 2 == 0 && o.is(1, &[o.columns(0) / 2]);

    /// `(x [R, H, D]) → state [C, H, D]`, positional: stores each row in its
    /// sequence's state at the row's position, rounded to the state's type.
    Write = "write" (Rows) Positional
        |o| o.rank(0) == 3 && o.yields(o.inner(0));

    /// `(q [R, H, D], keys [C, G, D], values [C, G, E]) → [R, H, E]`, positional:
    /// `softmax(mask(cap(scale · q·kᵀ))) · v` over the row's own sequence. Query
    /// head `h` reads KV head `h / (H / G)`. A row at position `p` attends to the
    /// positions of its [`Span`], and to all rows of a mutual span that contains
    /// it.
    ///
    /// Keys and values are both state of one group, or, with [`Span::All`], both rows of the
    /// step (`[R, G, D]` and `[R, G, E]`).
    Attend = "attend" {
        /// Multiplies every score.
        scale: f32 [finite],
        /// How far back a row attends.
        span: Span [not_empty],
        /// If set, scores become `cap · tanh(score / cap)` before masking.
        softcap: Option<f32> [positive_if_present],
    } (Rows, StateOrRows, StateOrRows) Positional |o| o.attends();

    /// `(x [R, D], taps [K, D], carried [K − 1, D]) → same`, sequential: the causal convolution
    /// of each column with taps of its own, `Σₖ taps[k] · x[r − K + 1 + k]` for row `r` of a
    /// sequence. The carried value holds the last `K − 1` rows of `x`, the latest one last; a
    /// sequence begins with zeros.
    ShortConv = "short_conv" (Rows, Vector, Carried) Sequential |o| {
        o.same(0)
            && (0..3).all(|index| o.rank(index) == 2)
            && o.columns(1) == o.columns(0)
            && o.is(2, &[o.rows(1) - 1, o.columns(0)])
    };

    /// `(gate, up) → same`: `act(gate) · up`, element by element.
    Gate = "gate" {
        /// The activation of the gate.
        act: Act [any],
    } (Activations, Activations) Own |o| o.same(0) && o.same(1);

    /// `(x) → same`: `act(x)`, element by element.
    Activate = "activate" {
        /// The activation.
        act: Act [any],
    } (Activations) Own |o| o.same(0);

    /// `(a, b) → same`: the sum, element by element.
    Add = "add" (Activations, Activations) Own |o| o.same(0) && o.same(1);

    /// `(x) → same`: every element times a constant.
    Scale = "scale" {
        /// The constant.
        factor: f32 [finite],
    } (Activations) Own |o| o.same(0);

    /// `(x) → same`: `cap · tanh(x / cap)`.
    Softcap = "softcap" {
        /// The bound of the magnitude of every result.
        cap: f32 [positive],
    } (Activations) Own |o| o.same(0);

    /// `(x [R, …]) → [O, …]`, positional: the output rows, in order.
    Gather = "gather" (Rows) Positional
        |o| o.output.outermost == Extent::OutputRows && o.yields(o.inner(0));

    /// `(x [R, D]) → [S, D]`, positional: one row for each sequence of the step.
    Pool = "pool" {
        /// How the rows of a sequence become one.
        how: Pooling [any],
    } (Rows) Positional
        |o| o.rank(0) == 2 && o.output.outermost == Extent::Sequences && o.yields(o.inner(0));
}

impl Op {
    /// Every entry of the table.
    pub fn table() -> &'static [OpSpec] {
        OPS
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
