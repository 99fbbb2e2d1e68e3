//! A tiling as numbers: what the tile pass may choose for a launch. It does not
//! say what the launch computes; with its kernel it is the whole loop nest.

use std::fmt;

use girih_tensor::Result;

use super::read::FormLine;
use super::tiled::Herd;

/// The choices of one launch. Printed as `name=number` words, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// Of a product of matrices.
    Gemm(GemmTiling),
    /// Of a product of a matrix and a vector.
    Gemv(GemvTiling),
    /// Of a kernel on whole rows.
    Rows(RowTiling),
    /// Of a kernel on elements.
    Elements(ElementTiling),
    /// Of attention.
    Attend(AttendTiling),
}

/// The tile of a product on all cores: rows, columns and terms of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTiling {
    /// Rows.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Terms.
    pub k: u32,
    /// Calls whose weights, and whose rows unless they are kept, come from
    /// DRAM in one run.
    pub slices: u32,
    /// Whether a column's rows lie whole in its memory tile while all columns
    /// of the result pass, instead of coming from DRAM for each.
    pub keep: bool,
}

/// The tile of a matrix-vector product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemvTiling {
    /// The cores; with two rows each core has a channel from DRAM of its own.
    pub herd: Herd,
    /// Results that a core hands on at once.
    pub rows: u32,
    /// Rows of the matrix in a call.
    pub step: u32,
    /// Calls whose weights a core has room for.
    pub depth: u8,
    /// Whether weights stop in the memory tile, and the vector comes for each
    /// call anew, as in the published design.
    pub staged: bool,
}

/// The tile of a kernel on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTiling {
    /// The cores; those of a column receive the same words, and each uses its
    /// share.
    pub herd: Herd,
    /// Rows of a call; heads, for a rotation of a single row.
    pub step: u32,
}

/// The tile of a kernel on elements, or of a bias, whose chunks are parts of
/// rows and whose herd is one row of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTiling {
    /// The cores, as of [`RowTiling`].
    pub herd: Herd,
    /// Elements of a call.
    pub chunk: u32,
}

/// The tile of an attention on all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendTiling {
    /// Positions of queries in a core at once.
    pub queries: u32,
    /// Chunks of keys that a core has room for.
    pub depth: u8,
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tiling::Gemm(GemmTiling { m, n, k, slices, keep }) => {
                write!(f, "m={m} n={n} k={k} slices={slices} keep={}", u8::from(*keep))
            }
            Tiling::Gemv(GemvTiling { herd, rows, step, depth, staged }) => {
                write!(f, "herd={herd} rows={rows} step={step} depth={depth} staged={}", u8::from(*staged))
            }
            Tiling::Rows(RowTiling { herd, step }) => write!(f, "herd={herd} step={step}"),
            Tiling::Elements(ElementTiling { herd, chunk }) => write!(f, "herd={herd} chunk={chunk}"),
            Tiling::Attend(AttendTiling { queries, depth }) => write!(f, "queries={queries} depth={depth}"),
        }
    }
}

impl Tiling {
    /// Reads what a tiling of a kernel of this name prints, to the end of the
    /// line.
    ///
    /// # Errors
    /// When the line has other words.
    pub fn read(kernel: &str, line: &mut FormLine<'_>) -> Result<Tiling> {
        let tiling = match kernel {
            "gemm" => Tiling::Gemm(GemmTiling {
                m: number(line, "m")?,
                n: number(line, "n")?,
                k: number(line, "k")?,
                slices: number(line, "slices")?,
                keep: switch(line, "keep")?,
            }),
            "gemv" => Tiling::Gemv(GemvTiling {
                herd: field(line, "herd")?,
                rows: number(line, "rows")?,
                step: number(line, "step")?,
                depth: depth(line)?,
                staged: switch(line, "staged")?,
            }),
            "rms_norm" | "rope" => {
                Tiling::Rows(RowTiling { herd: field(line, "herd")?, step: number(line, "step")? })
            }
            "gate" | "add" | "bias" => {
                Tiling::Elements(ElementTiling { herd: field(line, "herd")?, chunk: number(line, "chunk")? })
            }
            "attend" => {
                Tiling::Attend(AttendTiling { queries: number(line, "queries")?, depth: depth(line)? })
            }
            _ => return Err(line.error(format!("has the kernel '{kernel}', which is none"))),
        };
        line.end()?;
        Ok(tiling)
    }
}

/// The value of the next word, which is `name=value`.
fn field<T: std::str::FromStr>(line: &mut FormLine<'_>, name: &str) -> Result<T> {
    let word = line.word(name)?;
    let value = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
    let value = value.ok_or_else(|| line.error(format!("has '{word}' where {name}= is needed")))?;
    line.parsed(value, name)
}

/// A number of a tile, which is never zero.
fn number(line: &mut FormLine<'_>, name: &str) -> Result<u32> {
    match field(line, name)? {
        0 => Err(line.error(format!("has no {name}: at least 1 is needed"))),
        number => Ok(number),
    }
}

fn depth(line: &mut FormLine<'_>) -> Result<u8> {
    let depth = number(line, "depth")?;
    u8::try_from(depth).map_err(|_| line.error(format!("has a depth of {depth}: at most 255 is possible")))
}

fn switch(line: &mut FormLine<'_>, name: &str) -> Result<bool> {
    match field::<u32>(line, name)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(line.error(format!("has {name}={other}: 0 or 1 is needed"))),
    }
}
