//! FlashAttention on the array (Dao 2022, arXiv 2205.14135): each column of cores
//! has its own query rows, each row of cores its own share of the keys. Partial
//! results of the rows of cores are merged downwards over the cascade.
//!
//! ```text
//! for each KV head:                               queries of its heads side by side
//!   for each batch of query rows:                 a range for each column of cores
//!     clear
//!     for each block of keys and values:          every (rows of cores)-th
//!       for each chunk of the block:              as many positions as memory holds
//!         attend
//!     for each part of the rows:
//!       receive from above, merge
//!     send down, part by part, or store
//! ```

use girih_graph::BLOCK_POSITIONS;

use super::nest::{LaunchArguments, call, dim, divisor, fits, float, whole};
use crate::form::groups::{Kernel, START_BYTES, chunk_bytes};
use crate::form::schedule::{Affine, Parameter, ParameterValue};
use crate::form::tiled::{
    COLUMN_TERM, Flow, Herd, Item, Local, ROW_TERM, Share, Stream, TiledLaunch, TiledOperand,
};
use crate::form::tiling::AttendTiling;
use crate::target::Target;

/// The sizes of an attention.
#[derive(Clone, Copy)]
struct AttendSizes {
    rows: u32,
    heads: u32,
    kv_heads: u32,
    size: u32,
    keys: u32,
    window: u32,
    scale: f32,
}

impl AttendSizes {
    fn of(kernel: &Kernel) -> Option<AttendSizes> {
        let Kernel::Attend { rows, heads, kv_heads, size, keys, window, scale } = *kernel else {
            return None;
        };
        Some(AttendSizes { rows, heads, kv_heads, size, keys, window, scale })
    }

    /// Query heads of a KV head.
    fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// The cores: a range of the queries for each column, a share of the keys for each row.
    fn herd(&self, target: &Target) -> Herd {
        let columns = divisor(self.rows, target.array.columns);
        let rows = divisor(self.keys / BLOCK_POSITIONS as u32, target.array.compute_rows);
        Herd { columns: columns as u8, rows: rows as u8 }
    }
}

/// The possible numbers of query positions of a core. Powers of two divide the rows
/// of a step, and with a power of two that is large enough, groups of any number of
/// heads fill the matrix unit.
const QUERIES: [u32; 7] = [64, 32, 16, 8, 4, 2, 1];

/// The maximum number of query rows of a core, over the query heads of one KV head.
const MAX_ROWS: u32 = 128;

/// The possible numbers of positions of a chunk, largest first.
const CHUNK_POSITIONS: [u32; 4] = [BLOCK_POSITIONS as u32, 32, 16, 8];

/// Rows of the matrix unit's blocks in attention, which are filled with zeros if there are
/// fewer.
const UNIT_ROWS: u32 = 16;

/// The maximum number of rows that are sent over the cascade at once.
const MERGED_ROWS: u32 = 16;

/// Returns the tilings of attention, fastest guess first: each number of query positions,
/// with two buffers for chunks and with one, and the largest chunk that fits a core.
pub(super) fn space(kernel: &Kernel, target: &Target) -> Vec<AttendTiling> {
    let Some(sizes) = AttendSizes::of(kernel) else { return Vec::new() };
    let herd = sizes.herd(target);
    let queries =
        QUERIES.into_iter().filter(|queries| queries * sizes.group() <= MAX_ROWS.max(sizes.group()));
    let sides = queries.flat_map(|queries| [2, 1].map(|depth| (queries, depth)));
    let largest = |(queries, depth)| {
        let tiles = CHUNK_POSITIONS.map(|chunk| AttendTiling { queries, depth, chunk }).into_iter();
        let fitting = |tile: &AttendTiling| {
            divides(sizes, *tile, herd) && fits(&nest("", sizes, *tile, herd, &[0; 4]), target)
        };
        tiles.into_iter().find(fitting)
    };
    let mut tiles: Vec<AttendTiling> = sides.filter_map(largest).collect();
    // The sort is stable: equal guesses keep the order of the tiles.
    tiles.sort_by_key(|tile| guess(sizes, *tile, herd, target));
    tiles
}

/// Estimates the cycles of attention. Used for ranking only; the numbers are those of the
/// entries of AIE2P, rounded.
fn guess(sizes: AttendSizes, tile: AttendTiling, herd: Herd, target: &Target) -> u64 {
    let AttendSizes { rows, kv_heads, size, keys, .. } = sizes;
    let own = tile.queries * sizes.group();
    let units = own.div_ceil(UNIT_ROWS);
    let chunk = 100
        + units * tile.chunk.div_ceil(16) * (size / 8) * 28
        + own * tile.chunk.div_ceil(16) * 45
        + units * (size / 16) * (tile.chunk / 8) * 24;
    let per_word = |values: u32| values * 2 / target.stream.bytes_per_cycle;
    let stream = per_word(2 * tile.chunk * size);
    let step = if tile.depth > 1 { chunk.max(stream) } else { chunk + stream };
    let calls = keys / tile.chunk / u32::from(herd.rows);
    let merge = 100 * own.div_ceil(MERGED_ROWS) + own * (size / 2);
    let batch = u64::from(calls) * u64::from(step)
        + u64::from(herd.rows - 1) * u64::from(merge)
        + u64::from(per_word(2 * own * size));
    let batches = u64::from(kv_heads) * u64::from(rows / (tile.queries * u32::from(herd.columns)));
    let read = batches * u64::from(keys) * u64::from(size) * 4;
    (batches * batch).max((read as f64 / target.dram_bytes_per_cycle()) as u64)
}

/// Whether a tile divides the rows of a step and the blocks of keys.
fn divides(sizes: AttendSizes, tile: AttendTiling, herd: Herd) -> bool {
    let rows = tile.queries.checked_mul(u32::from(herd.columns));
    rows.is_some_and(|rows| rows > 0 && sizes.rows.is_multiple_of(rows))
        && CHUNK_POSITIONS.contains(&tile.chunk)
}

/// Returns the launch of attention with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    kernel: &Kernel,
    tile: AttendTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let sizes = AttendSizes::of(kernel)?;
    let herd = sizes.herd(target);
    divides(sizes, tile, herd).then(|| nest(launch.name, sizes, tile, herd, launch.arguments))
}

/// Returns the launch with a tile.
fn nest(name: &str, sizes: AttendSizes, tile: AttendTiling, herd: Herd, arguments: &[u32]) -> TiledLaunch {
    let AttendSizes { rows, heads, kv_heads, size, keys, .. } = sizes;
    let (columns, stages, group) = (u32::from(herd.columns), u32::from(herd.rows), sizes.group());
    let queries = tile.queries;
    let loops = [kv_heads, rows / (queries * columns), keys / BLOCK_POSITIONS as u32 / stages];
    let row_words = heads * size / 2;
    let q = Stream {
        name: "q".to_owned(),
        argument: arguments[0],
        flow: Flow::In,
        share: Share::Column,
        level: 2,
        depth: 1,
        base_bytes: 0,
        column_bytes: u64::from(queries) * u64::from(row_words) * 4,
        row_bytes: 0,
        dims: vec![
            dim(loops[0], group * size / 2),
            dim(loops[1], columns * queries * row_words),
            dim(queries, row_words),
            dim(group * size / 2, 1),
        ],
        ahead_of: None,
        l2: None,
    };
    let start = Stream {
        name: "start".to_owned(),
        argument: arguments[2],
        share: Share::All,
        level: 0,
        column_bytes: 0,
        dims: vec![dim(START_BYTES / 4, 1)],
        ahead_of: Some("kv".to_owned()),
        ..q.clone()
    };
    let y = Stream {
        name: "y".to_owned(),
        argument: arguments[3],
        flow: Flow::Out,
        share: Share::Bottom,
        ..q.clone()
    };
    let chunks = Stream { argument: arguments[1], ..chunks(sizes, tile, loops, stages) };
    let own = queries * group;
    let mut locals = vec![Local { name: "state".to_owned(), bytes: own * (size + 2) * 4 }];
    if stages > 1 {
        let part = divisor(own, MERGED_ROWS);
        locals.push(Local { name: "other".to_owned(), bytes: part * (size + 2) * 4 });
    }
    let body = body(sizes, tile, herd, loops);
    let (name, cascade) = (name.to_owned(), stages > 1);
    TiledLaunch { name, herd, streams: vec![q, start, chunks, y], locals, cascade, resident: None, body }
}

/// Returns the stream of keys and values: whole blocks, or the same positions of the keys
/// and of the values of a block.
fn chunks(sizes: AttendSizes, tile: AttendTiling, loops: [u32; 3], stages: u32) -> Stream {
    let AttendSizes { kv_heads, size, .. } = sizes;
    let head_words = chunk_bytes(size) / 4;
    // All heads of a block are contiguous.
    let block_words = kv_heads * head_words;
    let mut dims = vec![dim(loops[0], head_words), dim(loops[1], 0), dim(loops[2], stages * block_words)];
    let parts = BLOCK_POSITIONS as u32 / tile.chunk;
    if parts > 1 {
        let words = tile.chunk * size / 2;
        dims.extend([dim(parts, words), dim(2, head_words / 2), dim(words, 1)]);
    } else {
        dims.push(dim(head_words, 1));
    }
    Stream {
        name: "kv".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Row,
        level: if parts > 1 { 4 } else { 3 },
        depth: tile.depth,
        base_bytes: 0,
        column_bytes: 0,
        row_bytes: u64::from(block_words) * 4,
        dims,
        ahead_of: None,
        l2: None,
    }
}

/// Returns the loop nest of each core.
fn body(sizes: AttendSizes, tile: AttendTiling, herd: Herd, loops: [u32; 3]) -> Vec<Item> {
    let rows = tile.queries * sizes.group();
    let side = |rows: u32| vec![whole("rows", rows), whole("values", sizes.size)];
    let mut sweep = vec![attend(sizes, tile, herd)];
    let parts = BLOCK_POSITIONS as u32 / tile.chunk;
    if parts > 1 {
        sweep = vec![Item::Loop { count: parts, body: sweep }];
    }
    let mut batch =
        vec![call("attend_clear", &["state"], side(rows)), Item::Loop { count: loops[2], body: sweep }];
    let top = herd.rows - 1;
    if top > 0 {
        let part = divisor(rows, MERGED_ROWS);
        let words = || vec![whole("n", part * (sizes.size + 2))];
        let bytes = i64::from(part * (sizes.size + 2) * 4);
        let own = |name: &str| {
            let offset = if name == "state" { Affine::constant(0).plus(2, bytes) } else { Affine::default() };
            TiledOperand { name: name.to_owned(), offset }
        };
        let each = |entry: &str, operands: &[&str], parameters| Item::Call {
            entry: entry.to_owned(),
            operands: operands.iter().map(|name| own(name)).collect(),
            parameters,
        };
        let repeat = |body| vec![Item::Loop { count: rows / part, body }];
        let receive =
            vec![each("receive", &["other"], words()), each("attend_merge", &["other", "state"], side(part))];
        batch.push(Item::On { first: 0, last: top - 1, body: repeat(receive) });
        let send = vec![each("send", &["state"], words())];
        batch.push(Item::On { first: 1, last: top, body: repeat(send) });
    }
    batch.push(Item::On { first: 0, last: 0, body: vec![call("attend_store", &["state", "y"], side(rows))] });
    vec![Item::Loop { count: loops[0], body: vec![Item::Loop { count: loops[1], body: batch }] }]
}

/// Returns the call that attends to a chunk.
fn attend(sizes: AttendSizes, tile: AttendTiling, herd: Herd) -> Item {
    let AttendSizes { size, window, scale, .. } = sizes;
    let AttendTiling { queries, chunk, .. } = tile;
    let (columns, stages) = (i64::from(herd.columns), i64::from(herd.rows));
    let positions = BLOCK_POSITIONS as i64;
    let at =
        |offset: u32| TiledOperand { name: "kv".to_owned(), offset: Affine::constant(i64::from(offset)) };
    let plain = |name: &str| TiledOperand { name: name.to_owned(), offset: Affine::default() };
    let number =
        |name: &str, value: Affine| Parameter { name: name.to_owned(), value: ParameterValue::Int(value) };
    let query =
        Affine::constant(0).plus(1, columns * i64::from(queries)).plus(COLUMN_TERM, i64::from(queries));
    let key = Affine::constant(0).plus(2, stages * positions).plus(ROW_TERM, positions);
    let key = if i64::from(chunk) < positions { key.plus(3, i64::from(chunk)) } else { key };
    Item::Call {
        entry: "attend".to_owned(),
        operands: vec![plain("q"), at(0), at(chunk * size * 2), plain("start"), plain("state")],
        parameters: vec![
            whole("rows", queries * sizes.group()),
            whole("size", size),
            whole("values", size),
            whole("keys", chunk),
            whole("group", sizes.group()),
            number("query", query),
            number("key", key),
            whole("causal", 1),
            whole("window", window),
            float("scale", scale),
        ],
    }
}
