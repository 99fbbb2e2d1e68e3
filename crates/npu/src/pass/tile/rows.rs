//! Kernels on rows and on elements, which are distributed over the cores. If a
//! column has several cores, all receive the column's words and each uses its
//! share; the column's memory tile joins their results.

use girih_graph::Pairing;

use super::nest::{CALL_ROWS, LaunchArguments, VECTOR_ELEMENTS, dim, divisor, float, whole};
use crate::form::groups::Kernel;
use crate::form::schedule::{Affine, Parameter};
use crate::form::tiled::{Flow, Herd, Item, L2Staging, ROW_TERM, Share, Stream, TiledLaunch, TiledOperand};
use crate::form::tiling::{ElementTiling, RowTiling};
use crate::target::Target;

/// The possible numbers of elements of a call, largest first.
const CALL_ELEMENTS: [u32; 15] = [4096, 3072, 2048, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 16];

/// A kernel that works on pieces of its operands.
struct PieceKernel {
    entry: &'static str,
    /// The operands; the last is the result.
    operands: Vec<PieceOperand>,
    /// The total number of pieces.
    pieces: u32,
    /// The parameter of a call that counts its pieces.
    count: &'static str,
    /// The other parameters: they follow it or, for heads, surround it.
    sizes: Vec<Parameter>,
}

/// An operand of such a kernel.
#[derive(Clone, Copy)]
struct PieceOperand {
    name: &'static str,
    /// Values in a piece.
    width: u32,
    /// Whether all pieces share the operand, which is one piece.
    shared: bool,
}

/// An operand with a piece of its own for each piece.
fn each(name: &'static str, width: u32) -> PieceOperand {
    PieceOperand { name, width, shared: false }
}

/// An operand that all pieces share.
fn shared(name: &'static str, width: u32) -> PieceOperand {
    PieceOperand { name, width, shared: true }
}

/// Returns a kernel with rows as pieces.
fn row_kernel(kernel: &Kernel) -> Option<PieceKernel> {
    match *kernel {
        Kernel::RmsNorm { rows, n, width, epsilon } => {
            let sizes = vec![whole("n", n), whole("width", width), float("epsilon", epsilon)];
            let operands = vec![each("x", n), shared("w", n), each("y", n)];
            Some(PieceKernel { entry: "rms_norm", operands, pieces: rows, count: "rows", sizes })
        }
        Kernel::LayerNorm { rows, n, width, epsilon } => {
            let sizes = vec![whole("n", n), whole("width", width), float("epsilon", epsilon)];
            let operands = vec![each("x", n), shared("w", n), shared("b", n), each("y", n)];
            Some(PieceKernel { entry: "layer_norm", operands, pieces: rows, count: "rows", sizes })
        }
        Kernel::Rope { rows, heads, size, pairing } => {
            let entry = match pairing {
                Pairing::Halves => "rope_halves",
                Pairing::Neighbours => "rope_neighbours",
            };
            let sizes = vec![whole("heads", heads), whole("size", size)];
            let operands = vec![each("x", heads * size), each("w", size), each("y", heads * size)];
            Some(PieceKernel { entry, operands, pieces: rows, count: "rows", sizes })
        }
        _ => None,
    }
}

/// Returns a kernel with the heads of a single row as pieces.
fn head_kernel(kernel: &Kernel) -> Option<PieceKernel> {
    match *kernel {
        Kernel::Rope { rows: 1, heads, size, .. } => {
            let base = row_kernel(kernel)?;
            let sizes = vec![whole("rows", 1), whole("size", size)];
            let operands = vec![each("x", size), shared("w", size), each("y", size)];
            Some(PieceKernel { pieces: heads, operands, count: "heads", sizes, ..base })
        }
        _ => None,
    }
}

/// Returns the tilings of a kernel on rows that are tried without a mapping.
pub(super) fn row_guesses(rows: u32, target: &Target) -> Vec<RowTiling> {
    let columns = divisor(rows, target.array.columns);
    row_tiles(rows, Herd { columns: columns as u8, rows: 1 })
}

/// Returns all tilings of a kernel on rows that divide it.
pub(super) fn row_space(kernel: &Kernel, target: &Target) -> Vec<RowTiling> {
    let pieces = head_kernel(kernel).or_else(|| row_kernel(kernel)).map_or(0, |kernel| kernel.pieces);
    herds(target).into_iter().flat_map(|herd| row_tiles(pieces, herd)).collect()
}

fn row_tiles(rows: u32, herd: Herd) -> Vec<RowTiling> {
    let cores = u32::from(herd.columns) * u32::from(herd.rows);
    let steps = CALL_ROWS.into_iter().filter(|step| rows.is_multiple_of(cores * step));
    steps.map(|step| RowTiling { herd, step }).collect()
}

/// Returns every herd whose sides are powers of two, largest first.
fn herds(target: &Target) -> Vec<Herd> {
    let sides = |max: u32| (0..=max.ilog2()).rev().map(|power| 1u8 << power);
    let columns = sides(target.array.columns);
    columns
        .flat_map(|columns| sides(target.array.compute_rows).map(move |rows| Herd { columns, rows }))
        .collect()
}

/// Returns the tilings of a kernel on elements that are tried without a mapping.
pub(super) fn element_guesses(n: u32, target: &Target) -> Vec<ElementTiling> {
    let columns = divisor(n / VECTOR_ELEMENTS, target.array.columns);
    element_tiles(n, Herd { columns: columns as u8, rows: 1 })
}

/// Returns all tilings of a kernel on elements that divide it.
pub(super) fn element_space(n: u32, target: &Target) -> Vec<ElementTiling> {
    herds(target).into_iter().flat_map(|herd| element_tiles(n, herd)).collect()
}

fn element_tiles(n: u32, herd: Herd) -> Vec<ElementTiling> {
    let cores = u32::from(herd.columns) * u32::from(herd.rows);
    let chunks = CALL_ELEMENTS.into_iter().filter(|chunk| n.is_multiple_of(cores * chunk));
    chunks.map(|chunk| ElementTiling { herd, chunk }).collect()
}

/// Returns the launch of a kernel on rows with a tile, if the tile divides it. If
/// there is one row, its heads are distributed over several cores.
pub(super) fn build_rows(
    launch: LaunchArguments<'_>,
    kernel: &Kernel,
    tile: RowTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let rows = row_kernel(kernel)?;
    let cores = u32::from(tile.herd.columns) * u32::from(tile.herd.rows);
    let pieces = head_kernel(kernel).filter(|_| cores > 1 || tile.step > 1).unwrap_or(rows);
    let of_rows = pieces.count == "rows";
    let built = build(launch, pieces, tile.herd, tile.step, target)?;
    match *kernel {
        Kernel::Rope { heads, .. } if of_rows && tile.step == 1 && tile.herd.rows == 1 => {
            if super::fits(&built, target) {
                return Some(built);
            }
            let mut parts = (2..=heads).filter(|parts| heads.is_multiple_of(*parts));
            parts
                .find_map(|parts| in_parts(&built, heads, parts).filter(|launch| super::fits(launch, target)))
        }
        _ => Some(built),
    }
}

/// Returns a launch that rotates one row at a time with each row in several parts, each of whole heads.
fn in_parts(launch: &TiledLaunch, heads: u32, parts: u32) -> Option<TiledLaunch> {
    let [Item::Loop { count, body }] = &launch.body[..] else { return None };
    let mut body = body.clone();
    for item in &mut body {
        let Item::Call { parameters, .. } = item else { return None };
        let of_heads = parameters.iter_mut().find(|parameter| parameter.name == "heads")?;
        *of_heads = whole("heads", heads / parts);
    }
    let body = vec![Item::Loop { count: *count, body: vec![Item::Loop { count: parts, body }] }];
    let mut streams = launch.streams.clone();
    for stream in streams.iter_mut().filter(|stream| stream.name != "w") {
        let words = stream.dims[1].size / parts;
        stream.dims = vec![stream.dims[0], dim(parts, words), dim(words, 1)];
        (stream.level, stream.depth) = (2, 2);
    }
    Some(TiledLaunch { streams, body, ..launch.clone() })
}

/// Returns the launch of a kernel on elements, if the tile divides their number. `names` are those of the operands; the
/// last one is the result.
pub(super) fn build_elements(
    launch: LaunchArguments<'_>,
    entry: &'static str,
    names: &[&'static str],
    n: u32,
    tile: ElementTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let operands = names.iter().map(|name| each(name, 1)).collect();
    let kernel = PieceKernel { entry, operands, pieces: n, count: "n", sizes: Vec::new() };
    build(launch, kernel, tile.herd, tile.chunk, target).filter(|_| tile.chunk.is_multiple_of(2))
}

fn build(
    launch: LaunchArguments<'_>,
    kernel: PieceKernel,
    herd: Herd,
    step: u32,
    target: &Target,
) -> Option<TiledLaunch> {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let fits = columns <= target.array.columns && rows <= target.array.compute_rows;
    if !fits || !kernel.pieces.is_multiple_of(step.checked_mul(columns)?.checked_mul(rows)?) {
        return None;
    }
    let count = kernel.pieces / (columns * rows * step);
    let all = 0..kernel.operands.len();
    let result = all.len() - 1;
    let streams = all.clone().map(|operand| {
        let argument = launch.arguments[operand];
        Stream { argument, ..stream(&kernel, operand, herd, [count, step]) }
    });
    let own = |operand: usize| {
        let PieceOperand { name, width, shared } = kernel.operands[operand];
        let bytes = step * width * 2;
        let apart = rows > 1 && operand != result && !shared;
        let offset =
            if apart { Affine::constant(0).plus(ROW_TERM, i64::from(bytes)) } else { Affine::default() };
        TiledOperand { name: name.to_owned(), offset }
    };
    let mut parameters = vec![whole(kernel.count, step)];
    let at = kernel.sizes.iter().position(|size| size.name == "rows").map_or(0, |rows| rows + 1);
    parameters.splice(0..0, kernel.sizes[..at].iter().cloned());
    parameters.extend(kernel.sizes[at..].iter().cloned());
    let work = Item::Call { entry: kernel.entry.to_owned(), operands: all.map(own).collect(), parameters };
    let body = vec![Item::Loop { count, body: vec![work] }];
    let (name, streams) = (launch.name.to_owned(), streams.collect());
    let mut tiled = TiledLaunch::of(name, herd, streams, body);
    // Of a single row that is too long for two buffers, a core has one.
    if step == 1 && !super::fits(&tiled, target) {
        tiled.streams.iter_mut().for_each(|stream| stream.depth = 1);
    }
    Some(tiled)
}

/// Returns the stream of one operand: `count` calls, with `step` pieces for each
/// core.
fn stream(kernel: &PieceKernel, operand: usize, herd: Herd, [count, step]: [u32; 2]) -> Stream {
    let (rows, is_result) = (u32::from(herd.rows), operand == kernel.operands.len() - 1);
    let PieceOperand { name, width, shared } = kernel.operands[operand];
    // Words of a call of one core, and of all cores of a column.
    let words = step * width / 2;
    let column_words = rows * words;
    let arrives = if is_result { words } else { column_words };
    let dims = if shared { vec![dim(width / 2, 1)] } else { vec![dim(count, column_words), dim(arrives, 1)] };
    let share = match (shared, is_result, rows) {
        (true, ..) => Share::All,
        (false, false, 2..) => Share::Column,
        _ => Share::Own,
    };
    Stream {
        name: name.to_owned(),
        argument: 0,
        flow: if is_result { Flow::Out } else { Flow::In },
        share,
        level: u8::from(!shared),
        depth: if shared { 1 } else { 2 },
        base_bytes: 0,
        column_bytes: if shared { 0 } else { u64::from(count) * u64::from(column_words) * 4 },
        row_bytes: if is_result && rows > 1 { u64::from(words) * 4 } else { 0 },
        dims,
        // A core has two channels for what it reads.
        ahead_of: (!is_result && operand > 1).then(|| kernel.operands[0].name.to_owned()),
        l2: (is_result && rows > 1).then(|| L2Staging::unsliced(2, vec![dim(words, 1)])),
    }
}
