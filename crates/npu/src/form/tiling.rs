//! A tiling as numbers: the choices of the tile pass for one launch. A tiling
//! and a kernel together determine the loop nest.

use std::fmt;

use girih_tensor::Result;

use super::read::FormLine;
use super::tiled::Herd;

/// The choices for one launch, printed as `name=number` words in field order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiling {
    /// For a matrix product (GEMM).
    Gemm(GemmTiling),
    /// For a matrix-vector product (GEMV).
    Gemv(GemvTiling),
    /// For a kernel on rows.
    Rows(RowTiling),
    /// For a kernel on elements.
    Elements(ElementTiling),
    /// For attention.
    Attend(AttendTiling),
}

/// The tile of a matrix product on all cores: the size of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTiling {
    /// Rows.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Terms of each sum.
    pub k: u32,
    /// Calls whose weights arrive in one DRAM transfer. Their rows of `x` do
    /// too, unless `keep` is set.
    pub slices: u32,
    /// Whether the memory tile of a column keeps whole rows while all columns of
    /// the result are computed, instead of reading them from DRAM for each.
    pub keep: bool,
    /// Tiles of the result that a core computes together; not with `keep`.
    pub spread: TileSpread,
}

/// The tiles of a matrix product that a core computes together, so that a stretch of one operand is
/// read from DRAM once and sent from L2 to each of them. The core has sums for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileSpread {
    /// One tile.
    One,
    /// Row tiles; they share stretches of the weights (`e_y` of "Mapping Gemma3 onto an Edge
    /// Dataflow Architecture", equation 5).
    Rows(u32),
    /// Column tiles; they share stretches of `x` (`e_x` of the same equation).
    Columns(u32),
}

impl TileSpread {
    /// The numbers of row tiles and of column tiles that are computed together.
    pub fn tiles(self) -> [u32; 2] {
        match self {
            TileSpread::One => [1, 1],
            TileSpread::Rows(tiles) => [tiles, 1],
            TileSpread::Columns(tiles) => [1, tiles],
        }
    }
}

/// The tile of a matrix-vector product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemvTiling {
    /// The cores; with two rows, each core has its own channel from DRAM.
    pub herd: Herd,
    /// Results that a core sends at once.
    pub rows: u32,
    /// Rows of the matrix per call; 32 if it is Q4NX.
    pub step: u32,
    /// Calls whose weights a core buffers.
    pub depth: u8,
    /// Whether weights are staged in the memory tile and the vector is sent
    /// again for each call, as in the published design.
    pub staged: bool,
    /// The number of parts in which a row of the matrix arrives: 1, or more if it is too long
    /// for a core. A part of a Q4NX matrix is whole tiles.
    pub parts: u32,
}

/// The tile of a kernel on rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowTiling {
    /// The cores; those of a column receive the same words, and each uses its
    /// share.
    pub herd: Herd,
    /// Rows per call; for a rotation of a single row, heads per call.
    pub step: u32,
}

/// The tile of a kernel on elements. For a bias, the chunks are parts of rows
/// and the herd is one row of cores. For unpacking, a chunk is whole groups of a tile;
/// for appending, it is a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementTiling {
    /// The cores, as in [`RowTiling`].
    pub herd: Herd,
    /// Elements per call.
    pub chunk: u32,
}

/// The tile of attention on all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttendTiling {
    /// What the columns of cores divide.
    pub across: Across,
    /// The most columns of cores that are used.
    pub columns: u32,
    /// Query positions that a core processes at once.
    pub queries: u32,
    /// Chunks of keys and values that a core buffers.
    pub depth: u8,
    /// Positions of a chunk: 64, which is a block, 32, 16 or 8.
    pub chunk: u32,
    /// Whether chunks that no row of a core sees are left out. Results are the same.
    pub skip: bool,
    /// Whether two cores work on a KV head: the upper one reads keys and computes weights,
    /// which it sends over the cascade, the lower one reads values and sums them. Results are
    /// the same. Only with [`Across::Heads`]; keys are then not divided.
    pub pair: bool,
}

/// What the columns of cores divide in attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// The queries; the rows of cores divide the keys.
    Queries,
    /// The KV heads; columns that are left over divide the keys of each head. One row of
    /// cores works on a single query position, and each core has two streams, one for
    /// keys and one for values.
    Heads,
}

impl Across {
    /// The name in tilings.
    pub fn name(self) -> &'static str {
        match self {
            Across::Queries => "queries",
            Across::Heads => "heads",
        }
    }
}

impl std::str::FromStr for Across {
    type Err = girih_tensor::Error;

    fn from_str(text: &str) -> Result<Across> {
        let known = [Across::Queries, Across::Heads].into_iter().find(|across| across.name() == text);
        known.ok_or_else(|| girih_tensor::Error::new(format!("'{text}' is neither queries nor heads")))
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tiling::Gemm(GemmTiling { m, n, k, slices, keep, spread }) => {
                write!(f, "m={m} n={n} k={k} slices={slices} keep={}", u8::from(*keep))?;
                match spread {
                    TileSpread::One => Ok(()),
                    TileSpread::Rows(tiles) => write!(f, " rows={tiles}"),
                    TileSpread::Columns(tiles) => write!(f, " columns={tiles}"),
                }
            }
            Tiling::Gemv(GemvTiling { herd, rows, step, depth, staged, parts }) => {
                write!(f, "herd={herd} rows={rows} step={step} depth={depth} staged={}", u8::from(*staged))?;
                write!(f, " parts={parts}")
            }
            Tiling::Rows(RowTiling { herd, step }) => write!(f, "herd={herd} step={step}"),
            Tiling::Elements(ElementTiling { herd, chunk }) => write!(f, "herd={herd} chunk={chunk}"),
            Tiling::Attend(AttendTiling { across, columns, queries, depth, chunk, skip, pair }) => {
                write!(f, "across={} columns={columns} queries={queries}", across.name())?;
                write!(f, " depth={depth} chunk={chunk}")?;
                write!(f, " skip={} pair={}", u8::from(*skip), u8::from(*pair))
            }
        }
    }
}

impl Tiling {
    /// The columns of cores that it needs; 1 if it fits any number.
    pub fn columns(&self) -> u32 {
        match self {
            Tiling::Gemm(_) | Tiling::Attend(_) => 1,
            Tiling::Gemv(tiling) => tiling.herd.columns.into(),
            Tiling::Rows(tiling) => tiling.herd.columns.into(),
            Tiling::Elements(tiling) => tiling.herd.columns.into(),
        }
    }

    /// Reads the tiling of a kernel of this name, to the end of the line.
    ///
    /// # Errors
    /// When the line is not such a tiling.
    pub fn read(kernel: &str, line: &mut FormLine<'_>) -> Result<Tiling> {
        let tiling = match kernel {
            "gemm" => Tiling::Gemm(GemmTiling {
                m: number(line, "m")?,
                n: number(line, "n")?,
                k: number(line, "k")?,
                slices: number(line, "slices")?,
                keep: switch(line, "keep")?,
                spread: spread(line)?,
            }),
            "gemv" => Tiling::Gemv(GemvTiling {
                herd: field(line, "herd")?,
                rows: number(line, "rows")?,
                step: number(line, "step")?,
                depth: depth(line)?,
                staged: switch(line, "staged")?,
                parts: number(line, "parts")?,
            }),
            "rms_norm" | "layer_norm" | "rope" => {
                Tiling::Rows(RowTiling { herd: field(line, "herd")?, step: number(line, "step")? })
            }
            "gate" | "gelu" | "add" | "bias" | "append" | "dequant" => {
                Tiling::Elements(ElementTiling { herd: field(line, "herd")?, chunk: number(line, "chunk")? })
            }
            "attend" => Tiling::Attend(AttendTiling {
                across: field(line, "across")?,
                columns: number(line, "columns")?,
                queries: number(line, "queries")?,
                depth: depth(line)?,
                chunk: number(line, "chunk")?,
                skip: switch(line, "skip")?,
                pair: switch(line, "pair")?,
            }),
            _ => return Err(line.error(format!("has '{kernel}', which is not a kernel"))),
        };
        line.end()?;
        Ok(tiling)
    }
}

/// Reads the value of the next word, which is `name=value`.
fn field<T: std::str::FromStr>(line: &mut FormLine<'_>, name: &str) -> Result<T> {
    let word = line.word(name)?;
    let value = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
    let value = value.ok_or_else(|| line.error(format!("has '{word}' where {name}= is needed")))?;
    line.parsed(value, name)
}

/// Reads a number of a tile, which must not be zero.
fn number(line: &mut FormLine<'_>, name: &str) -> Result<u32> {
    match field(line, name)? {
        0 => Err(line.error(format!("has {name}=0: at least 1 is needed"))),
        number => Ok(number),
    }
}

/// Reads `rows=number` or `columns=number`, or nothing at the end of the line: one tile.
fn spread(line: &mut FormLine<'_>) -> Result<TileSpread> {
    let Some(word) = line.optional() else { return Ok(TileSpread::One) };
    let (spread, number): (fn(u32) -> TileSpread, &str) =
        match (word.strip_prefix("rows="), word.strip_prefix("columns=")) {
            (Some(number), _) => (TileSpread::Rows, number),
            (_, Some(number)) => (TileSpread::Columns, number),
            _ => return Err(line.error(format!("has '{word}' where rows= or columns= is possible"))),
        };
    match line.parsed(number, "a number of tiles")? {
        0 | 1 => Err(line.error(format!("has {word}: at least 2 tiles are needed"))),
        tiles => Ok(spread(tiles)),
    }
}

fn depth(line: &mut FormLine<'_>) -> Result<u8> {
    let depth = number(line, "depth")?;
    u8::try_from(depth).map_err(|_| line.error(format!("has depth={depth}: at most 255 is possible")))
}

fn switch(line: &mut FormLine<'_>, name: &str) -> Result<bool> {
    match field::<u32>(line, name)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(line.error(format!("has {name}={other}: 0 or 1 is needed"))),
    }
}
