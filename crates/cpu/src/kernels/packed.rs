//! The operands of kernels that multiply packed weights: layouts, decoded panels, and
//! columns of activations. `pack.rs` packs weights, `activations.rs` packs activations.
//!
//! ```text
//! matrix = band 0 | band 1 | …         32 rows each, the last filled up with zeros
//! band   = group 0 | group 1 | …       32 columns each
//! line   = 64 bytes                    16 rows side by side, one in each lane
//! ```
//! Rows lie in the lanes of a vector, so that no sum runs across lanes: a
//! result is one chain over its groups in order, for any thread and any number of
//! columns of activations beside it.
//!
//! With integer activations a group adds `s · (scale · n − minimum · Σx)` to a
//! result, where `n = Σ (code − zero) · x` is exact: the scale is applied
//! first, each multiplication and sum is rounded once, and the minimum comes
//! last. All tables do so, and their results are equal bit for bit.

use super::prefetch::PrefetchChoice;

pub use super::layout::{BAND, Codes, Coding, GROUP, LINE, Layout, Line, NARROW, Scales};

/// The version of the layouts: it is raised with every change of what a layout's
/// bytes mean, as packed weights are kept on disk. A new layout changes nothing.
pub const LAYOUT_VERSION: u32 = 1;

/// Rows in a line, one in each lane of a vector.
pub const LANES: usize = 16;

/// Values of a row of activations that share one scale when they are quantized.
pub const QUANT_GROUP: usize = GROUP;

/// The maximum number of columns of activations that a kernel call multiplies with a
/// panel.
pub const TILE: usize = 12;

/// Groups of a panel: with a tile of activations it stays in an L1 of 32 KiB, but for [`SignedPanels`], with which a tile
/// reads 42.5 KB.
pub const DEPTH: usize = 16;

/// Columns of weights that floats are multiplied by before the next ones: with
/// a tile of activations they stay in L1.
pub const FLOAT_DEPTH: usize = 256;

/// The bits of `1.5 · 2²³`. A sum of integers that begins with it is, read as a
/// float, that number plus the sum, as long as the sum is below `2²²`: so
/// integers become floats without an instruction.
pub const INTEGER_BIAS: i32 = 0x4b40_0000;

/// [`INTEGER_BIAS`] as a float.
pub const INTEGER_BIAS_FLOAT: f32 = 12_582_912.0;

/// One band of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Band<'a> {
    /// How its bytes lie.
    pub layout: Layout,
    /// The columns of the matrix.
    pub columns: usize,
    /// All of its units.
    pub bytes: &'a [u8],
    /// How far ahead kernels prefetch it.
    pub prefetch: PrefetchChoice,
}

/// The number of bands of a matrix with `rows` rows.
pub(crate) fn bands(rows: usize) -> usize {
    rows.div_ceil(BAND)
}

/// Decoded groups of half a band, one after another.
pub type Panel = [PanelGroup; DEPTH];

/// One decoded group of half a band.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct PanelGroup {
    /// Line `j`: the codes of columns `4j..4j+4`, four in each lane.
    pub codes: [[u8; LINE]; GROUP / 4],
    /// The scales of the columns 0..16 and 16..32; the first counts for all
    /// where a scale is shared by 32.
    pub scales: [[f32; LANES]; 2],
    /// The minimums, likewise.
    pub minimums: [[f32; LANES]; 2],
}

impl PanelGroup {
    /// A group of zeros.
    pub const ZERO: PanelGroup =
        PanelGroup { codes: [[0; LINE]; GROUP / 4], scales: [[0.0; LANES]; 2], minimums: [[0.0; LANES]; 2] };
}

/// Decoded groups of the lower and of the upper half of a band.
pub type Panels = [Panel; 2];

/// The codes of eight bits of one decoded group of half a band, as signed numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct SignedGroup {
    /// Of each line of [`PanelGroup::codes`] the codes less 128, then their magnitudes.
    pub lines: [[Line; 2]; GROUP / 4],
}

impl SignedGroup {
    /// A group of zeros.
    pub const ZERO: SignedGroup = SignedGroup { lines: [[[0; LINE]; 2]; GROUP / 4] };
}

/// The groups of both halves of a band, as those of [`Panels`].
pub type SignedPanels = [[SignedGroup; DEPTH]; 2];

/// The 32 sums of a band and one column of activations.
pub type Sums = [f32; BAND];

/// A kernel that quantizes whole groups: to codes, scales and sums of codes.
pub type QuantizeRow = fn(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]);

/// A kernel that multiplies floats of a band, from a column on, by a tile of activations.
pub type FloatKernel = fn(band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]);

/// What a kernel multiplies: decoded weights and a tile of activations.
#[derive(Clone, Copy, Debug)]
pub struct MatmulTileOperands<'a> {
    /// How the codes become numbers.
    pub coding: Coding,
    /// The decoded weights.
    pub panels: &'a Panels,
    /// What [`MatmulKernels::sign`] made of the panels, if it was called. A kernel may read it in place of their codes.
    pub signed: Option<&'a SignedPanels>,
    /// The groups of the panels that are multiplied, from the first on.
    pub groups: usize,
    /// The words of the activations, of as many groups.
    pub x: &'a [u32],
    /// Weights that are decoded later: a kernel may prefetch them meanwhile.
    pub next: &'a [u8],
}

/// A kernel that makes signed numbers of the codes of some groups of panels, from the first on.
pub type SignKernel = fn(panels: &Panels, groups: usize, signed: &mut SignedPanels);

/// A kernel that multiplies panels by a tile of activations.
pub type TileKernel = fn(operands: MatmulTileOperands<'_>, sums: &mut [Sums]);

/// The kernels that multiply packed weights.
///
/// Activations of integer matmuls come as words, for each group `words` rows
/// ([`Coding::words`]) of one word a column: eight of codes, four signed bytes
/// each; then, for each sum, the starting value `INTEGER_BIAS − zero · Σ codes`, or
/// the float `scale · Σ codes` where there are minimums; then the scale.
/// Activations of float matmuls are one row of floats for each column of the
/// weights; an odd number of them is filled up with a row of zeros. In matmuls
/// of bf16 numbers they are one row for each two columns: the first column's
/// number in the lower half of a word, the second's in the upper.
#[derive(Clone, Copy, Debug)]
pub struct MatmulKernels {
    /// Adds to `sums` the matmul of a band with `sums.len()` columns, at most
    /// [`NARROW`], of integers; as many groups as `x` has.
    pub narrow: fn(band: Band<'_>, x: &[u32], sums: &mut [Sums]),
    /// Decodes some groups of a band, its lower and its upper half.
    pub decode: fn(band: Band<'_>, first: usize, count: usize, panels: &mut Panels),
    /// Adds to `sums` the matmul of groups of panels with `sums.len()` columns, which is a third, two thirds or all of [`TILE`].
    pub tile: TileKernel,
    /// Computes once for all tiles what `tile` would compute of codes of eight bits for each. None where it multiplies them as
    /// they are.
    pub sign: Option<SignKernel>,
    /// Adds to `sums` the matmul of floats of a band, from the column `first`
    /// on, with `sums.len()` columns, at most [`TILE`], of floats; as many as
    /// `x` has rows for.
    pub floats: FloatKernel,
    /// As `floats`, with a band of [`Layout::Bf16`] and with bf16 numbers: of
    /// each word the upper product is added first, then the lower one.
    ///
    /// A product is exact, as two numbers of 8 bits have one of 16, so only the
    /// sums are rounded, each to the nearest, and all tables yield the same bits
    /// as long as no operand, product or sum is subnormal. Subnormal operands and
    /// sums are flushed to zero or kept, depending on the table's instructions. The table `amx` has another order: it adds
    /// up the first products of 16 words from zero on, and the second ones, then both, and adds that to the sum.
    pub bf16: FloatKernel,
    /// As `floats`, with a band of [`Layout::F16`] and half-precision numbers under scales, whose products are added up in half
    /// precision. For each [`GROUP`] columns of weights, `x` has as many rows of words, then a row of scales. A word holds its number in
    /// both halves; rows behind the last column are zeros. From zero on, a fused multiply-add for each column yields a group's sum, which times
    /// its scale is added to the result by another one. All kernels have the same bits. None where the table's instructions
    /// have no such product: there, the rounded numbers are multiplied by `floats`.
    pub fp16: Option<FloatKernel>,
    /// Rounds each [`QUANT_GROUP`] values to a scale times integers in −127 ..= 127, and adds these up: all tables
    /// to the same bits. A group that holds an infinity or NaN has that for its scale, and codes of zero.
    ///
    /// Panics when the lengths do not fit each other.
    pub quantize: QuantizeRow,
    /// Whether `bf16` uses an instruction that multiplies bf16.
    pub has_bf16_dot: bool,
}

impl MatmulKernels {
    /// The signed codes of panels that this number of tiles multiplies, in `memory`. None if `tile` reads the codes as they
    /// are, or if there is one tile, which would not gain what they cost.
    pub fn signed_for<'a>(
        &self,
        tiles: usize,
        coding: Coding,
        panels: (&Panels, usize),
        memory: &'a mut Option<SignedPanels>,
    ) -> Option<&'a SignedPanels> {
        if tiles > 1 { self.signed(coding, panels, memory) } else { None }
    }

    /// As [`MatmulKernels::signed_for`], for any number of tiles.
    pub fn signed<'a>(
        &self,
        coding: Coding,
        (panels, groups): (&Panels, usize),
        memory: &'a mut Option<SignedPanels>,
    ) -> Option<&'a SignedPanels> {
        let sign =
            self.sign.filter(|_| matches!(coding, Coding { bits: 8, minimums: false, halves: false, .. }))?;
        let signed = memory.get_or_insert([[SignedGroup::ZERO; DEPTH]; 2]);
        sign(panels, groups, signed);
        Some(signed)
    }

    /// The name of the numbers that `bf16` multiplies, in `profile`; an instruction for them marks it.
    pub fn bf16_name(&self) -> &'static str {
        if self.has_bf16_dot { "bf16-dot" } else { "bf16" }
    }
}
