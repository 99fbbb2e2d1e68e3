//! Pass 2, from a launch to its tilings: the herd, the loop nest, the chunks.
//! The only pass with a choice: it yields candidates, the fastest guess first.

mod attend;

use girih_graph::{Act, Pairing};

use crate::Target;
use crate::form::groups::{Kernel, Task};
use crate::form::schedule::{Affine, Dim, Number, Parameter};
use crate::form::tiled::{Flow, Herd, Item, Local, Share, Source, Stream, Through, TiledLaunch};

/// Rows and columns of a block of the matrix kernel's left operand; its right
/// operand and its result have blocks of as many columns.
const BLOCK: (u32, u32) = (4, 8);

/// The tilings of a launch that divide it and fit a core's memory, best first.
pub fn candidates(task: &Task, target: &Target) -> Vec<TiledLaunch> {
    let fits = |launch: &TiledLaunch| {
        let have = u64::from(target.compute.bytes - target.compute.reserved);
        let words = launch.streams.iter().map(|stream| u64::from(stream.chunk_words()));
        launch.core_bytes() <= have && words.max().unwrap_or(0) <= target.compute.dma.most_words
    };
    let name = &task.name;
    let all = match task.kernel {
        Kernel::Gemm { m, n, k } => gemm(name, [m, n, k], &task.arguments, target),
        Kernel::Gemv { first, n, k } => gemv(name, first, [n, k], &task.arguments, target),
        Kernel::RmsNorm { rows, n, width, epsilon } => {
            let sizes = vec![whole("n", n), whole("width", width), float("epsilon", epsilon)];
            let kernel = RowKernel { entry: "rms_norm", widths: [n, n, n], shared: Some(1), sizes };
            by_rows(name, rows, kernel, &task.arguments, target)
        }
        Kernel::Rope { rows, heads, size, pairing } => {
            let entry = match pairing {
                Pairing::Halves => "rope_halves",
                Pairing::Neighbours => "rope_neighbours",
            };
            let sizes = vec![whole("heads", heads), whole("size", size)];
            let kernel = RowKernel { entry, widths: [heads * size, size, heads * size], shared: None, sizes };
            by_rows(name, rows, kernel, &task.arguments, target)
        }
        Kernel::Gate { n, act } => {
            let entry = match act {
                Act::Silu => "silu_mul",
                Act::GeluTanh => "gelu_mul",
            };
            by_elements(name, n, entry, &task.arguments, target)
        }
        Kernel::Add { n } => by_elements(name, n, "add", &task.arguments, target),
        Kernel::Attend { .. } => attend::candidates(name, &task.kernel, &task.arguments, target),
    };
    all.into_iter().filter(fits).collect()
}

fn whole(name: &str, value: u32) -> Parameter {
    Parameter { name: name.to_owned(), value: Number::Int(Affine::constant(i64::from(value))) }
}

fn float(name: &str, value: f32) -> Parameter {
    Parameter { name: name.to_owned(), value: Number::Float(value) }
}

fn call(entry: &str, operands: &[&str], parameters: Vec<Parameter>) -> Item {
    let operands = operands.iter().map(|name| Source { name: (*name).to_owned(), offset: Affine::default() });
    Item::Call { entry: entry.to_owned(), operands: operands.collect(), parameters }
}

fn dim(size: u32, stride: u32) -> Dim {
    Dim { size, stride }
}

/// The tile of a product: rows, columns and terms of one kernel call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Rows.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Terms.
    pub k: u32,
    /// Calls whose operands come from DRAM together.
    pub slices: u32,
}

/// Tilings of `y[m, n] = x[m, k] · w[n, k]ᵀ`: rows over the herd's columns,
/// columns over its rows. A column of cores shares `x`, a row shares `w`.
fn gemm(name: &str, [m, n, k]: [u32; 3], arguments: &[u32], target: &Target) -> Vec<TiledLaunch> {
    let herd = Herd { columns: target.array.columns as u8, rows: target.array.compute_rows as u8 };
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let mut tiles = Vec::new();
    for tile_m in [128, 64, 32, 16, 8].into_iter().filter(|tile| m.is_multiple_of(tile * columns)) {
        for tile_n in [128, 96, 64, 48, 32, 16, 8].into_iter().filter(|tile| n.is_multiple_of(tile * rows)) {
            for tile_k in [256, 128, 96, 64, 48, 32, 16, 8].into_iter().filter(|tile| k.is_multiple_of(*tile))
            {
                let whole = |slices: &u32| k.is_multiple_of(tile_k * slices);
                let slices = [4, 3, 2, 1].into_iter().filter(whole);
                tiles.extend(slices.map(|slices| GemmTile { m: tile_m, n: tile_n, k: tile_k, slices }));
            }
        }
    }
    let mut ranked: Vec<(u64, TiledLaunch)> = Vec::new();
    for tile in tiles {
        let cost = gemm_cost([m, n, k], tile, herd, target);
        ranked.push((cost, gemm_launch(name, [m, n, k], tile, herd, arguments)));
    }
    ranked.sort_by_key(|(cost, _)| *cost);
    ranked.into_iter().map(|(_, launch)| launch).collect()
}

/// Guessed cycles of a product: the slowest of core, stream and DRAM. It only
/// ranks; the simulator tells the time.
fn gemm_cost([m, n, k]: [u32; 3], tile: GemmTile, herd: Herd, target: &Target) -> u64 {
    let (columns, rows) = (u64::from(herd.columns), u64::from(herd.rows));
    let [m, n, k] = [u64::from(m), u64::from(n), u64::from(k)];
    let [tm, tn, tk] = [u64::from(tile.m), u64::from(tile.n), u64::from(tile.k)];
    let calls = (m / (tm * columns)) * (n / (tn * rows)) * (k / tk);
    let core = tm * tn * tk / u64::from(target.core_unit.bf16_macs) * 3 / 2 + 100;
    let stream = tm.max(tn) * tk * 2 / u64::from(target.stream.bytes_per_cycle);
    let read = m * k * (n / (tn * rows)) + n * k * (m / (tm * columns));
    let efficiency = target.dram.efficiency((2 * tk * u64::from(tile.slices)) as f64);
    let dram = ((read + m * n) * 2) as f64 / (target.dram_bytes_per_cycle() * efficiency);
    (calls * core.max(stream)).max(dram as u64)
}

/// The launch of a product with this tile.
fn gemm_launch(
    name: &str,
    [m, n, k]: [u32; 3],
    tile: GemmTile,
    herd: Herd,
    arguments: &[u32],
) -> TiledLaunch {
    let GemmTile { m: tile_m, n: tile_n, k: tile_k, .. } = tile;
    let loops = [m / (tile_m * u32::from(herd.columns)), n / (tile_n * u32::from(herd.rows)), k / tile_k];
    let streams = [gemm_inputs(loops, k, tile, herd), vec![gemm_output(loops, n, tile, herd)]].concat();
    let streams = streams.into_iter().zip(arguments);
    let streams = streams.map(|(stream, &argument)| Stream { argument, ..stream });
    let sums = Local { name: "sums".to_owned(), bytes: tile_m * tile_n * 4 };
    let results = || vec![whole("n", tile_m * tile_n)];
    let product = call(
        "gemm_bf16",
        &["x", "w", "sums"],
        vec![whole("m", tile_m), whole("n", tile_n), whole("k", tile_k)],
    );
    let inner = Item::Loop { count: loops[2], body: vec![product] };
    let per_tile =
        vec![call("zero_f32", &["sums"], results()), inner, call("store_bf16", &["sums", "y"], results())];
    let body =
        vec![Item::Loop { count: loops[0], body: vec![Item::Loop { count: loops[1], body: per_tile }] }];
    let (name, streams) = (name.to_owned(), streams.collect());
    TiledLaunch { name, herd, streams, locals: vec![sums], cascade: false, body }
}

/// The operands of a product: they come in rows and leave L2 in blocks.
fn gemm_inputs(loops: [u32; 3], k: u32, tile: GemmTile, herd: Herd) -> Vec<Stream> {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let GemmTile { m: tile_m, n: tile_n, k: tile_k, slices } = tile;
    let (block_rows, block_columns) = BLOCK;
    let stretch = tile_k * slices;
    // A block's row is four words: eight values of bf16.
    let blocked = |size: u32, block: u32| {
        let dims = vec![
            dim(size / block, block * stretch / 2),
            dim(tile_k / block_columns, block_columns / 2),
            dim(block, stretch / 2),
            dim(block_columns / 2, 1),
        ];
        Some(Through { depth: 2, slices, slice_words: tile_k / 2, dims })
    };
    let walk = |outer: [Dim; 2], size: u32| {
        vec![outer[0], outer[1], dim(loops[2] / slices, stretch / 2), dim(size, k / 2), dim(stretch / 2, 1)]
    };
    let x = Stream {
        name: "x".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Column,
        level: 3,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(tile_m) * u64::from(k) * 2,
        row_bytes: 0,
        dims: walk([dim(loops[0], tile_m * columns * (k / 2)), dim(loops[1], 0)], tile_m),
        through: blocked(tile_m, block_rows),
    };
    let w = Stream {
        name: "w".to_owned(),
        share: Share::Row,
        column_bytes: 0,
        row_bytes: u64::from(tile_n) * u64::from(k) * 2,
        dims: walk([dim(loops[0], 0), dim(loops[1], tile_n * rows * (k / 2))], tile_n),
        through: blocked(tile_n, block_columns),
        ..x.clone()
    };
    vec![x, w]
}

/// The result of a product: it comes in blocks, of a column's cores one after
/// another, and leaves L2 in rows.
fn gemm_output(loops: [u32; 3], n: u32, tile: GemmTile, herd: Herd) -> Stream {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let GemmTile { m: tile_m, n: tile_n, .. } = tile;
    let (block_rows, block_columns) = BLOCK;
    let block_words = block_rows * block_columns / 2;
    let by_rows = vec![
        dim(tile_m / block_rows, tile_n / block_columns * block_words),
        dim(block_rows, block_columns / 2),
        dim(tile_n / block_columns, block_words),
        dim(block_columns / 2, 1),
    ];
    Stream {
        name: "y".to_owned(),
        argument: 0,
        flow: Flow::Out,
        share: Share::Own,
        level: 2,
        depth: 1,
        base_bytes: 0,
        column_bytes: u64::from(tile_m) * u64::from(n) * 2,
        row_bytes: u64::from(tile_n) * 2,
        dims: vec![
            dim(loops[0], tile_m * columns * (n / 2)),
            dim(loops[1], tile_n * rows / 2),
            dim(tile_m, n / 2),
            dim(tile_n / 2, 1),
        ],
        through: Some(Through { depth: 1, slices: 1, slice_words: 0, dims: by_rows }),
    }
}

/// Tilings of `y[n] = w[n, k] · x[k]`: each column's core has a stretch of the
/// rows of `w`, some for each result it hands on, fewer for each call.
fn gemv(name: &str, first: u32, [n, k]: [u32; 2], arguments: &[u32], target: &Target) -> Vec<TiledLaunch> {
    let columns = divisor(n / 2, target.array.columns);
    let herd = Herd { columns: columns as u8, rows: 1 };
    let own = n / columns;
    let mut launches = Vec::new();
    for tile in [32, 16, 8, 4, 2].into_iter().filter(|tile| own.is_multiple_of(*tile)) {
        for step in [8, 4, 2, 1].into_iter().filter(|step| *step <= tile) {
            let mut launch = gemv_launch(name, [n, k], [tile, step], herd, arguments);
            launch.streams[0].base_bytes = u64::from(first) * u64::from(k) * 2;
            launch.streams[2].base_bytes = u64::from(first) * 2;
            launches.push(launch);
        }
    }
    launches
}

fn gemv_launch(
    name: &str,
    [n, k]: [u32; 2],
    [tile, step]: [u32; 2],
    herd: Herd,
    arguments: &[u32],
) -> TiledLaunch {
    let own = n / u32::from(herd.columns);
    let loops = [own / tile, tile / step];
    let w = Stream {
        name: "w".to_owned(),
        argument: arguments[1],
        flow: Flow::In,
        share: Share::Own,
        level: 2,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(own) * u64::from(k) * 2,
        row_bytes: 0,
        dims: vec![dim(loops[0], tile * (k / 2)), dim(loops[1], step * (k / 2)), dim(step * (k / 2), 1)],
        through: None,
    };
    let x = Stream {
        name: "x".to_owned(),
        argument: arguments[0],
        share: Share::All,
        level: 0,
        depth: 1,
        column_bytes: 0,
        dims: vec![dim(k / 2, 1)],
        ..w.clone()
    };
    let y = Stream {
        name: "y".to_owned(),
        argument: arguments[2],
        flow: Flow::Out,
        level: 1,
        column_bytes: u64::from(own) * 2,
        dims: vec![dim(loops[0], tile / 2), dim(tile / 2, 1)],
        ..w.clone()
    };
    let offset = |name: &str, offset: Affine| Source { name: name.to_owned(), offset };
    let product = Item::Call {
        entry: "gemv_bf16".to_owned(),
        operands: vec![
            offset("w", Affine::default()),
            offset("x", Affine::default()),
            offset("y", Affine::constant(0).plus(1, i64::from(step) * 2)),
        ],
        parameters: vec![whole("rows", step), whole("k", k)],
    };
    let inner = Item::Loop { count: loops[1], body: vec![product] };
    let body = vec![Item::Loop { count: loops[0], body: vec![inner] }];
    TiledLaunch {
        name: name.to_owned(),
        herd,
        streams: vec![w, x, y],
        locals: Vec::new(),
        cascade: false,
        body,
    }
}

/// A kernel that works on whole rows.
struct RowKernel {
    entry: &'static str,
    /// Values in a row of each operand.
    widths: [u32; 3],
    /// The operand, if there is one, that all rows share.
    shared: Option<usize>,
    /// Its numbers after the rows.
    sizes: Vec<Parameter>,
}

/// Tilings that give each column's core a stretch of the rows, some at a time.
fn by_rows(name: &str, rows: u32, kernel: RowKernel, arguments: &[u32], target: &Target) -> Vec<TiledLaunch> {
    let columns = divisor(rows, target.array.columns);
    let herd = Herd { columns: columns as u8, rows: 1 };
    let own = rows / columns;
    let steps = [8, 4, 2, 1].into_iter().filter(|step| own.is_multiple_of(*step));
    let launch = |step: u32| {
        let stream = |operand: usize| {
            let words = kernel.widths[operand] / 2;
            let shared = kernel.shared == Some(operand);
            let chunk = if shared {
                vec![dim(words, 1)]
            } else {
                vec![dim(own / step, step * words), dim(step * words, 1)]
            };
            Stream {
                name: ["x", "w", "y"][operand].to_owned(),
                argument: arguments[operand],
                flow: if operand == 2 { Flow::Out } else { Flow::In },
                share: if shared { Share::All } else { Share::Own },
                level: u8::from(!shared),
                depth: if shared { 1 } else { 2 },
                base_bytes: 0,
                column_bytes: if shared { 0 } else { u64::from(own) * u64::from(words) * 4 },
                row_bytes: 0,
                dims: chunk,
                through: None,
            }
        };
        let mut sizes = vec![whole("rows", step)];
        sizes.extend(kernel.sizes.iter().cloned());
        let body =
            vec![Item::Loop { count: own / step, body: vec![call(kernel.entry, &["x", "w", "y"], sizes)] }];
        let streams = (0..3).map(stream).collect();
        TiledLaunch { name: name.to_owned(), herd, streams, locals: Vec::new(), cascade: false, body }
    };
    steps.map(launch).collect()
}

/// Tilings of `y = f(a, b)`, element by element.
fn by_elements(name: &str, n: u32, entry: &str, arguments: &[u32], target: &Target) -> Vec<TiledLaunch> {
    let columns = divisor(n / 16, target.array.columns);
    let herd = Herd { columns: columns as u8, rows: 1 };
    let own = n / columns;
    let largest = [4096, 3072, 2048, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 16];
    let chunks = largest.into_iter().filter(|chunk| own.is_multiple_of(*chunk));
    let launch = |chunk: u32| {
        let stream = |operand: usize| Stream {
            name: ["a", "b", "y"][operand].to_owned(),
            argument: arguments[operand],
            flow: if operand == 2 { Flow::Out } else { Flow::In },
            share: Share::Own,
            level: 1,
            depth: 2,
            base_bytes: 0,
            column_bytes: u64::from(own) * 2,
            row_bytes: 0,
            dims: vec![dim(own / chunk, chunk / 2), dim(chunk / 2, 1)],
            through: None,
        };
        let body = vec![Item::Loop {
            count: own / chunk,
            body: vec![call(entry, &["a", "b", "y"], vec![whole("n", chunk)])],
        }];
        let streams = (0..3).map(stream).collect();
        TiledLaunch { name: name.to_owned(), herd, streams, locals: Vec::new(), cascade: false, body }
    };
    chunks.map(launch).collect()
}

/// The largest number up to `most` that divides `n`; at least 1.
fn divisor(n: u32, most: u32) -> u32 {
    (1..=most.max(1)).rev().find(|count| n >= *count && n.is_multiple_of(*count)).unwrap_or(1)
}
