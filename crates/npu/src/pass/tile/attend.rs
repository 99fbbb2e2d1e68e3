//! FlashAttention on the array (Dao 2022, arXiv 2205.14135): each column of cores
//! has its own query rows, each row of cores its own share of the keys. Partial
//! results of the rows of cores are merged downwards over the cascade.
//!
//! ```text
//! for each KV head:                               queries of its heads side by side
//!   for each batch of query rows:                 a range for each column of cores
//!     clear
//!     for each chunk of keys and values:          every (rows of cores)-th
//!       attend
//!     receive from above, merge; send down, or store
//! ```

use girih_graph::BLOCK_POSITIONS;

use super::nest::{LaunchArguments, call, dim, divisor, float, whole};
use crate::form::groups::{CHUNK_HEAD, Kernel, chunk_bytes};
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

/// The possible numbers of query rows of a core, over the query heads of one KV
/// head, largest first.
const QUERY_ROWS: [u32; 7] = [64, 32, 16, 8, 4, 2, 1];

/// Returns the tilings of attention, best first: the numbers of query positions,
/// each with two buffers for chunks of keys and with one.
pub(super) fn space(kernel: &Kernel, target: &Target) -> Vec<AttendTiling> {
    let Kernel::Attend { rows, heads, kv_heads, .. } = *kernel else { return Vec::new() };
    let columns = divisor(rows, target.array.columns);
    let queries = QUERY_ROWS.map(|side| side / (heads / kv_heads)).into_iter();
    let queries = queries.filter(|&queries| queries > 0 && rows.is_multiple_of(queries * columns));
    queries.flat_map(|queries| [2, 1].map(|depth| AttendTiling { queries, depth })).collect()
}

/// Returns the launch of attention with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    kernel: &Kernel,
    tile: AttendTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let Kernel::Attend { rows, heads, kv_heads, size, keys, window, scale } = *kernel else { return None };
    let sizes = AttendSizes { rows, heads, kv_heads, size, keys, window, scale };
    let columns = divisor(rows, target.array.columns);
    let stages = divisor(keys / BLOCK_POSITIONS as u32, target.array.compute_rows);
    let herd = Herd { columns: columns as u8, rows: stages as u8 };
    let divides = rows.is_multiple_of(tile.queries.checked_mul(columns)?);
    divides.then(|| nest(launch.name, sizes, tile.queries, tile.depth, herd, launch.arguments))
}

/// Returns the launch with `queries` query positions in a core at once.
fn nest(
    name: &str,
    sizes: AttendSizes,
    queries: u32,
    depth: u8,
    herd: Herd,
    arguments: &[u32],
) -> TiledLaunch {
    let AttendSizes { rows, heads, kv_heads, size, keys, .. } = sizes;
    let (columns, stages) = (u32::from(herd.columns), u32::from(herd.rows));
    let group = heads / kv_heads;
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
    let chunk_words = chunk_bytes(size) / 4;
    // All heads of a block are contiguous.
    let block_words = kv_heads * chunk_words;
    let chunks = Stream {
        name: "kv".to_owned(),
        argument: arguments[1],
        share: Share::Row,
        level: 3,
        depth,
        column_bytes: 0,
        row_bytes: u64::from(block_words) * 4,
        dims: vec![
            dim(loops[0], chunk_words),
            dim(loops[1], 0),
            dim(loops[2], stages * block_words),
            dim(chunk_words, 1),
        ],
        ..q.clone()
    };
    let y = Stream {
        name: "y".to_owned(),
        argument: arguments[2],
        flow: Flow::Out,
        share: Share::Bottom,
        ..q.clone()
    };
    let state = queries * group * (size + 2);
    let mut locals = vec![Local { name: "state".to_owned(), bytes: state * 4 }];
    if stages > 1 {
        locals.push(Local { name: "other".to_owned(), bytes: state * 4 });
    }
    let body = body(sizes, queries, herd, loops);
    let (name, cascade) = (name.to_owned(), stages > 1);
    TiledLaunch { name, herd, streams: vec![q, chunks, y], locals, cascade, body }
}

/// Returns the loop nest of each core.
fn body(sizes: AttendSizes, queries: u32, herd: Herd, loops: [u32; 3]) -> Vec<Item> {
    let AttendSizes { heads, kv_heads, size, window, scale, .. } = sizes;
    let (columns, stages) = (i64::from(herd.columns), i64::from(herd.rows));
    let (rows, positions) = (queries * heads / kv_heads, BLOCK_POSITIONS as u32);
    let at =
        |offset: u32| TiledOperand { name: "kv".to_owned(), offset: Affine::constant(i64::from(offset)) };
    let plain = |name: &str| TiledOperand { name: name.to_owned(), offset: Affine::default() };
    let number =
        |name: &str, value: Affine| Parameter { name: name.to_owned(), value: ParameterValue::Int(value) };
    let query =
        Affine::constant(0).plus(1, columns * i64::from(queries)).plus(COLUMN_TERM, i64::from(queries));
    let key = Affine::constant(0).plus(2, stages * i64::from(positions)).plus(ROW_TERM, i64::from(positions));
    let attend = Item::Call {
        entry: "attend".to_owned(),
        operands: vec![
            plain("q"),
            at(CHUNK_HEAD),
            at(CHUNK_HEAD + positions * size * 2),
            at(0),
            plain("state"),
        ],
        parameters: vec![
            whole("rows", rows),
            whole("size", size),
            whole("values", size),
            whole("keys", positions),
            whole("group", heads / kv_heads),
            number("query", query),
            number("key", key),
            whole("causal", 1),
            whole("window", window),
            float("scale", scale),
        ],
    };
    let side = || vec![whole("rows", rows), whole("values", size)];
    let words = || vec![whole("n", rows * (size + 2))];
    let mut batch =
        vec![call("attend_clear", &["state"], side()), Item::Loop { count: loops[2], body: vec![attend] }];
    let top = herd.rows - 1;
    if top > 0 {
        let receive =
            vec![call("receive", &["other"], words()), call("attend_merge", &["other", "state"], side())];
        batch.push(Item::On { first: 0, last: top - 1, body: receive });
        batch.push(Item::On { first: 1, last: top, body: vec![call("send", &["state"], words())] });
    }
    batch.push(Item::On { first: 0, last: 0, body: vec![call("attend_store", &["state", "y"], side())] });
    vec![Item::Loop { count: loops[0], body: vec![Item::Loop { count: loops[1], body: batch }] }]
}
