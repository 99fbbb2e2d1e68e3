//! FlashAttention on the array (Dao 2022, arXiv 2205.14135). Cores that share queries divide
//! the keys; their partial results are merged over the cascade.
//!
//! ```text
//! for each KV head:                               queries of its heads side by side
//!   for each batch of query rows:                 a range for each column of cores
//!     clear
//!     for each step of keys and values:           a share for each core
//!       for each chunk of the share:              as many positions as memory holds
//!         attend
//!     for each part of the rows:
//!       receive from the core before, merge
//!     send on or store, part by part
//! ```
//!
//! Several query positions are divided among the columns, the keys among the rows of cores.
//! Steps whose keys no row of a batch sees are left out, as far as that is known without the
//! position of the first row: each [run of batches](crate::form::tiled::Sweep) has its own
//! number of steps. For a single position the KV heads are divided among the columns of one
//! row of cores, and the keys of a head among the columns that are left over; each core reads
//! keys and values in two streams, so that DRAM limits the speed.
//!
//! A mapping can give each KV head a pair of cores instead, as FlowKV does (Du et al.,
//! section 3.2): the upper core reads keys and sends
//! their weights down the cascade, the lower one reads values.

use girih_graph::BLOCK_POSITIONS;

use super::nest::{LaunchArguments, call, dim, divisor, fits, float, whole};
use crate::form::groups::{AttendSizes, START_BYTES, attended_blocks, chunk_bytes};
use crate::form::schedule::{Affine, Dim, Parameter, ParameterValue};
use crate::form::tiled::{
    COLUMN_TERM, Flow, Herd, Item, Local, ROW_TERM, Share, Stream, Sweep, TiledLaunch, TiledOperand,
};
use crate::form::tiling::{Across, AttendTiling};
use crate::kernel::{MAX_SPANS, WEIGHTS_HEAD};
use crate::target::Target;

const _: () = assert!(START_BYTES as usize == 4 * (2 + 2 * MAX_SPANS), "the words of a start");

impl AttendSizes {
    /// Query heads of a KV head.
    fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// The cores: columns by queries or KV heads, rows by keys.
    fn herd(&self, tile: AttendTiling, target: &Target) -> Herd {
        let blocks = self.keys / BLOCK_POSITIONS as u32;
        let wide = target.array.columns.min(tile.columns);
        let (columns, rows) = match tile.across {
            Across::Queries => (divisor(self.rows, wide), divisor(blocks, target.array.compute_rows)),
            Across::Heads => {
                let wide = wide.min(target.array.shim_columns);
                let columns = divisor(self.kv_heads, wide);
                (columns, if tile.pair { 2 } else { divisor(blocks, wide / columns) })
            }
        };
        Herd { columns: columns as u8, rows: rows as u8 }
    }
}

/// Returns the multiple to which blocks of keys are padded, so that the cores can divide
/// them: by the rows of cores, and for single rows by the columns that share a KV head.
pub(crate) fn block_granule(rows: u32, kv_heads: u32, target: &Target) -> u32 {
    let wide = target.array.columns.min(target.array.shim_columns);
    let share = if rows == 1 { wide / divisor(kv_heads, wide) } else { 1 };
    target.array.compute_rows.max(share.next_power_of_two())
}

/// The possible numbers of query positions of a core. Powers of two divide the rows
/// of a step, and with a power of two that is large enough, groups of any number of
/// heads fill the matrix unit.
const QUERIES: [u32; 7] = [64, 32, 16, 8, 4, 2, 1];

/// The maximum number of query rows of a core, over the query heads of one KV head. Groups of
/// up to 16 heads can have 16 positions.
const MAX_ROWS: u32 = 256;

/// The possible numbers of positions of a chunk, largest first.
const CHUNK_POSITIONS: [u32; 4] = [BLOCK_POSITIONS as u32, 32, 16, 8];

/// Rows of the matrix unit's blocks in attention, which are filled with zeros if there are
/// fewer.
const UNIT_ROWS: u32 = 16;

/// The maximum number of values of the state that are sent over the cascade, or stored, at
/// once: 16 rows of heads of 64. Rows with larger heads are merged and stored in smaller parts,
/// which leaves memory for more rows.
const MERGED_VALUES: u32 = 16 * (64 + 2);

/// The bytes of a core's program, for estimates: FlashAttention with 32 programs of about 13
/// KB takes 0.55 ms once.
const PROGRAM_BYTES: f64 = 13e3;

/// The maximum number of runs of batches: a core's program has a loop for each.
const MAX_SWEEPS: usize = 8;

/// The context for which a tiling of single rows is chosen.
const TYPICAL_CONTEXT: u32 = 8192;

/// Returns the tilings of attention, fastest guess first: each number of query positions,
/// with two buffers for chunks and with one.
///
/// All have one division of the keys into chunks and among cores, which depends on the heads
/// and the window only: so the results of a row depend neither on the context and the number
/// of rows that a program is compiled for, nor on the position of the step.
pub(super) fn space(sizes: AttendSizes, target: &Target) -> Vec<AttendTiling> {
    if sizes.rows > 1 {
        // The cores that divide the keys divide each block.
        let largest = BLOCK_POSITIONS as u32 / target.array.compute_rows.min(8);
        let chunks = CHUNK_POSITIONS.into_iter().filter(|&chunk| chunk <= largest);
        let ways = chunks.map(|chunk| (Across::Queries, target.array.columns, chunk));
        let tiles = ways.map(|way| fitting(sizes, way, target)).find(|tiles| !tiles.is_empty());
        return sorted(tiles.unwrap_or_default(), sizes, target);
    }
    let blocks = attended_blocks(1, TYPICAL_CONTEXT, sizes.window);
    let blocks = blocks.next_multiple_of(block_granule(1, sizes.kv_heads, target));
    let keys = blocks * BLOCK_POSITIONS as u32;
    let typical = AttendSizes { keys, latest: keys, ..sizes };
    // A wide herd reads faster, a narrow one is configured faster.
    let halved =
        std::iter::successors(Some(target.array.columns), |columns| (*columns > 1).then(|| columns / 2));
    let ways = halved.map(|columns| (Across::Heads, columns)).chain([(Across::Queries, 1)]);
    let ways = ways.flat_map(|(across, columns)| CHUNK_POSITIONS.map(|chunk| (across, columns, chunk)));
    let all = ways.flat_map(|way| fitting(typical, way, target)).collect();
    let Some(best) = sorted(all, typical, target).first().copied() else { return Vec::new() };
    sorted(fitting(sizes, (best.across, best.columns, best.chunk), target), sizes, target)
}

/// Returns the tilings with this division of the keys that fit a core.
fn fitting(
    sizes: AttendSizes,
    (across, columns, chunk): (Across, u32, u32),
    target: &Target,
) -> Vec<AttendTiling> {
    let queries =
        QUERIES.into_iter().filter(|queries| queries * sizes.group() <= MAX_ROWS.max(sizes.group()));
    let sides = queries.flat_map(|queries| [2, 1].map(|depth| (queries, depth)));
    let tiles = sides.map(|(queries, depth)| AttendTiling {
        across,
        columns,
        queries,
        depth,
        chunk,
        skip: true,
        pair: false,
    });
    let fits = |tile: &AttendTiling| {
        let plan = AttendPlan::new(sizes, *tile, target);
        plan.is_some_and(|plan| fits(&plan.nest("", &[0; 4]), target))
    };
    tiles.filter(fits).collect()
}

/// Sorts tilings, fastest guess first. Equal guesses keep their order.
fn sorted(mut tiles: Vec<AttendTiling>, sizes: AttendSizes, target: &Target) -> Vec<AttendTiling> {
    tiles.sort_by_key(|tile| AttendPlan::new(sizes, *tile, target).map(|plan| plan.guess(target)));
    tiles
}

/// Returns the launch of attention with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    sizes: AttendSizes,
    tile: AttendTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let plan = AttendPlan::new(sizes, tile, target)?;
    Some(plan.nest(launch.name, launch.arguments))
}

/// An attention with a tile that divides it.
struct AttendPlan {
    sizes: AttendSizes,
    tile: AttendTiling,
    herd: Herd,
    /// The cores that divide the keys.
    stages: u32,
    /// Iterations over the KV heads of a column.
    heads: u32,
    /// Iterations over the batches of queries.
    batches: u32,
    /// The positions of a step: one share for each core that divides the keys.
    step: u32,
    /// Positions from one core's first key in a step to the next core's.
    between: u32,
    /// Chunks of a core in a step.
    parts: u32,
    /// Positions from one of them to the next.
    apart: u32,
    /// The steps of each batch.
    sweeps: Vec<Sweep>,
}

impl AttendPlan {
    /// Returns none if the tile does not divide the rows of a step or the blocks of keys.
    fn new(sizes: AttendSizes, tile: AttendTiling, target: &Target) -> Option<AttendPlan> {
        let herd = sizes.herd(tile, target);
        let columns = u32::from(herd.columns);
        let stages = if tile.pair { 1 } else { u32::from(herd.rows) };
        let (heads, batches) = match tile.across {
            Across::Queries => {
                let batch = tile.queries.checked_mul(columns).filter(|batch| *batch > 0)?;
                (sizes.kv_heads, if sizes.rows.is_multiple_of(batch) { sizes.rows / batch } else { 0 })
            }
            Across::Heads => (sizes.kv_heads / columns, u32::from(sizes.rows == 1 && tile.queries == 1)),
        };
        let paired = tile.across == Across::Heads && target.array.compute_rows > 1;
        if batches == 0 || !CHUNK_POSITIONS.contains(&tile.chunk) || (tile.pair && !paired) {
            return None;
        }
        let block = BLOCK_POSITIONS as u32;
        let chunks = block / tile.chunk;
        // Cores divide the chunks of each block if they can: then a step is one block.
        let within = tile.across == Across::Queries && chunks.is_multiple_of(stages);
        let (step, between, parts, apart) = if within {
            (block, tile.chunk, chunks / stages, stages * tile.chunk)
        } else {
            (stages * block, block, chunks, tile.chunk)
        };
        let sweeps = Vec::new();
        let mut plan =
            AttendPlan { sizes, tile, herd, stages, heads, batches, step, between, parts, apart, sweeps };
        plan.sweeps = plan.sweeps();
        Some(plan)
    }

    /// Positions of all columns in a batch.
    fn batch(&self) -> u32 {
        match self.tile.across {
            Across::Queries => self.tile.queries * u32::from(self.herd.columns),
            Across::Heads => 1,
        }
    }

    /// Query positions that are merged and stored at once.
    fn merged(&self) -> u32 {
        let (queries, row) = (self.tile.queries, self.sizes.group() * (self.sizes.size + 2));
        let fits = |part: &u32| queries.is_multiple_of(*part) && part * row <= MERGED_VALUES;
        (1..=queries).rev().find(fits).unwrap_or(1)
    }

    /// All steps of keys.
    fn steps(&self) -> u32 {
        self.sizes.keys / self.step
    }

    /// The first step that a row of a batch may see, and one past the last. The first row is
    /// at a position from 0 to `latest`.
    fn seen(&self, batch: u32) -> [u32; 2] {
        let AttendSizes { latest, causal, window, .. } = self.sizes;
        if !self.tile.skip || !causal {
            return [0, self.steps()];
        }
        let (first, next) = (u64::from(batch) * u64::from(self.batch()), u64::from(batch) + 1);
        let end = u64::from(latest) + next * u64::from(self.batch());
        let begin = if window == 0 { 0 } else { (first + 1).saturating_sub(window.into()) };
        let step = u64::from(self.step);
        let end = end.div_ceil(step).min(self.steps().into()) as u32;
        [((begin / step) as u32).min(end - 1), end]
    }

    /// Returns the steps of each batch as runs of batches. If there are too many runs, the
    /// bounds are rounded to larger multiples of steps.
    fn sweeps(&self) -> Vec<Sweep> {
        let mut multiple = 1;
        loop {
            let mut sweeps: Vec<Sweep> = Vec::new();
            for batch in 0..self.batches {
                let [first, end] = self.seen(batch);
                let first = first / multiple * multiple;
                let count = (end - first).next_multiple_of(multiple).min(self.steps() - first);
                match sweeps.last_mut() {
                    Some(last) if last.count == count && continues(last, first) => {
                        last.step = if last.times == 1 { first - last.first } else { last.step };
                        last.times += 1;
                    }
                    _ => sweeps.push(Sweep { times: 1, first, step: 0, count }),
                }
            }
            if sweeps.len() <= MAX_SWEEPS || multiple >= self.steps() {
                return sweeps;
            }
            multiple *= 2;
        }
    }

    /// Estimates the cycles of attention. Used for ranking only; the numbers are those of the
    /// entries of AIE2P, rounded.
    fn guess(&self, target: &Target) -> u64 {
        let (AttendSizes { size, .. }, tile) = (self.sizes, self.tile);
        let own = tile.queries * self.sizes.group();
        let units = own.div_ceil(UNIT_ROWS);
        let chunk = 100
            + units * tile.chunk.div_ceil(16) * (size / 8) * 28
            + own * tile.chunk.div_ceil(16) * 45
            + units * (size / 16) * (tile.chunk / 8) * 24;
        let per_word = |values: u32| values * 2 / target.stream.bytes_per_cycle;
        let streams = if tile.across == Across::Heads { 2 } else { 1 };
        let stream = per_word(2 * tile.chunk * size) / streams;
        let step = if tile.depth > 1 { chunk.max(stream) } else { chunk + stream };
        let steps: u64 =
            self.sweeps.iter().map(|sweep| u64::from(sweep.times) * u64::from(sweep.count)).sum();
        let merge = 100 * (tile.queries / self.merged()) + own * (size / 2);
        let batch = u64::from(self.stages - 1) * u64::from(merge) + u64::from(per_word(2 * own * size));
        let heads = u64::from(self.heads);
        let cycles =
            heads * (steps * u64::from(self.parts) * u64::from(step) + u64::from(self.batches) * batch);
        let columns = if tile.across == Across::Heads { u64::from(self.herd.columns) } else { 1 };
        let read = heads * columns * steps * u64::from(self.step) * u64::from(size) * 4;
        cycles.max((read as f64 / target.dram_bytes_per_cycle()) as u64) + self.configuration(target)
    }

    /// Estimates the cycles that the configuration of the cores and shims takes.
    fn configuration(&self, target: &Target) -> u64 {
        let control = &target.control;
        let cores = f64::from(self.herd.columns) * f64::from(self.herd.rows);
        let tile = control.configure_tile_us * 1e-6 + control.configure_byte_ns * 1e-9 * PROGRAM_BYTES;
        target.cycles(cores * tile)
    }
}

/// Whether a batch whose first step is `first` continues a run.
fn continues(run: &Sweep, first: u32) -> bool {
    let last = run.first + run.step * (run.times - 1);
    if run.times == 1 { first >= last } else { first == last + run.step }
}

impl AttendPlan {
    /// Returns the launch.
    fn nest(&self, name: &str, arguments: &[u32]) -> TiledLaunch {
        let (size, own) = (self.sizes.size, self.tile.queries * self.sizes.group());
        let mut streams = vec![self.queries(arguments), self.start(arguments)];
        streams.extend(self.keys(arguments));
        streams.push(self.results(arguments));
        let mut locals = vec![Local { name: "state".to_owned(), bytes: own * (size + 2) * 4 }];
        if self.tile.pair {
            locals.push(Local { name: "weights".to_owned(), bytes: self.weights() * 4 });
        } else if self.stages > 1 {
            let part = self.merged() * self.sizes.group();
            locals.push(Local { name: "other".to_owned(), bytes: part * (size + 2) * 4 });
        }
        let whole = Sweep { times: self.batches, first: 0, step: 0, count: self.steps() };
        let sweeps = if *self.sweeps == [whole] { Vec::new() } else { self.sweeps.clone() };
        TiledLaunch {
            name: name.to_owned(),
            herd: self.herd,
            flat: self.tile.across == Across::Heads && !self.tile.pair,
            streams,
            sweeps,
            locals,
            cascade: self.herd.rows > 1,
            body: self.body(),
            resident: None,
        }
    }

    /// Returns the stream of queries. That of KV heads over columns has one chunk, with the
    /// queries of all heads of a column.
    fn queries(&self, arguments: &[u32]) -> Stream {
        let (AttendSizes { heads, size, .. }, queries) = (self.sizes, self.tile.queries);
        let (columns, group, row_words) =
            (u32::from(self.herd.columns), self.sizes.group(), heads * size / 2);
        let (level, column_words, dims, ahead_of) = match self.tile.across {
            Across::Queries => {
                let dims = vec![
                    dim(self.heads, group * size / 2),
                    dim(self.batches, columns * queries * row_words),
                    dim(queries, row_words),
                    dim(group * size / 2, 1),
                ];
                (2, queries * row_words, dims, None)
            }
            Across::Heads => {
                let words = self.heads * group * size / 2;
                (0, words, vec![dim(words, 1)], Some("k".to_owned()))
            }
        };
        Stream {
            name: "q".to_owned(),
            argument: arguments[0],
            flow: Flow::In,
            share: if self.tile.pair { Share::Top } else { Share::Column },
            level,
            depth: 1,
            base_bytes: 0,
            column_bytes: u64::from(column_words) * 4,
            row_bytes: 0,
            dims,
            ahead_of,
            l2: None,
        }
    }

    /// Returns the stream of the positions of the first row and of the first key.
    fn start(&self, arguments: &[u32]) -> Stream {
        let host = match self.tile.across {
            _ if self.tile.pair => "k",
            Across::Heads => "v",
            Across::Queries => "kv",
        };
        Stream {
            name: "start".to_owned(),
            argument: arguments[2],
            share: if self.tile.pair { Share::Top } else { Share::All },
            level: 0,
            column_bytes: 0,
            dims: vec![dim(START_BYTES / 4, 1)],
            ahead_of: Some(host.to_owned()),
            ..self.queries(arguments)
        }
    }

    /// Returns the stream of results.
    fn results(&self, arguments: &[u32]) -> Stream {
        let words = self.sizes.group() * self.sizes.size / 2;
        let (q, row_words) = (self.queries(arguments), self.sizes.heads * self.sizes.size / 2);
        let (part, parts) = (self.merged(), self.tile.queries / self.merged());
        let mut dims = match self.tile.across {
            Across::Queries => q.dims[..2].to_vec(),
            Across::Heads => vec![dim(self.heads, words), dim(1, 0)],
        };
        dims.extend((parts > 1).then(|| dim(parts, part * row_words)));
        let level = dims.len() as u8;
        dims.extend([dim(part, row_words), dim(words, 1)]);
        Stream {
            name: "y".to_owned(),
            argument: arguments[3],
            flow: Flow::Out,
            share: Share::Bottom,
            level,
            dims,
            ahead_of: None,
            ..q
        }
    }

    /// Returns the streams of keys and values: one of both, or one of each.
    fn keys(&self, arguments: &[u32]) -> Vec<Stream> {
        let AttendSizes { kv_heads, size, .. } = self.sizes;
        let head_words = chunk_bytes(size) / 4;
        // All heads of a block are contiguous.
        let block_words = kv_heads * head_words;
        let words = self.tile.chunk * size / 2;
        let (between, apart) = (self.between / self.tile.chunk, self.apart / self.tile.chunk);
        let is_block = self.between == BLOCK_POSITIONS as u32;
        let mut dims = vec![
            dim(self.heads, head_words),
            dim(self.batches, 0),
            dim(self.steps(), self.step / BLOCK_POSITIONS as u32 * block_words),
        ];
        dims.extend((self.parts > 1).then(|| dim(self.parts, apart * words)));
        let level = dims.len() as u8;
        let stream = |name: &str, chunk: &[Dim], base_words: u32| Stream {
            name: name.to_owned(),
            argument: arguments[1],
            flow: Flow::In,
            share: if self.tile.across == Across::Heads { Share::Own } else { Share::Row },
            level,
            depth: self.tile.depth,
            base_bytes: u64::from(base_words) * 4,
            column_bytes: match self.tile.across {
                Across::Queries => 0,
                Across::Heads => u64::from(self.heads * head_words) * 4,
            },
            row_bytes: match is_block {
                _ if self.tile.pair => 0,
                true => u64::from(block_words) * 4,
                false => u64::from(between * words) * 4,
            },
            dims: [&dims[..], chunk].concat(),
            ahead_of: None,
            l2: None,
        };
        match self.tile.across {
            Across::Heads => {
                let chunk = [dim(words, 1)];
                let [mut k, mut v] = [stream("k", &chunk, 0), stream("v", &chunk, head_words / 2)];
                if self.tile.pair {
                    (k.share, v.share) = (Share::Top, Share::Bottom);
                }
                vec![k, v]
            }
            Across::Queries if is_block && self.parts == 1 => vec![stream("kv", &[dim(head_words, 1)], 0)],
            Across::Queries => vec![stream("kv", &[dim(2, head_words / 2), dim(words, 1)], 0)],
        }
    }

    /// Returns the loop nest of each core.
    fn body(&self) -> Vec<Item> {
        let mut first = 0;
        let mut runs = Vec::new();
        for sweep in &self.sweeps {
            runs.push(Item::Loop { count: sweep.times, body: self.batch_body(first, *sweep) });
            first += sweep.times;
        }
        vec![Item::Loop { count: self.heads, body: runs }]
    }

    /// Returns the body of the batches of a run, which begins with batch `first`.
    fn batch_body(&self, first: u32, sweep: Sweep) -> Vec<Item> {
        let (size, rows) = (self.sizes.size, self.tile.queries * self.sizes.group());
        let side = |rows: u32| vec![whole("rows", rows), whole("values", size)];
        let mut chunks = self.attend(first, sweep);
        if self.parts > 1 {
            chunks = vec![Item::Loop { count: self.parts, body: chunks }];
        }
        let clear = call("attend_clear", &["state"], side(rows));
        let mut batch = if self.tile.pair {
            let head = vec![whole("rows", rows), whole("values", self.weights() / rows - 2)];
            vec![lower(vec![clear]), upper(vec![call("attend_clear", &["weights"], head)])]
        } else {
            vec![clear]
        };
        batch.push(Item::Loop { count: sweep.count, body: chunks });
        let (top, part) = (self.stages as u8 - 1, self.merged() * self.sizes.group());
        let bytes = i64::from(part * (size + 2) * 4);
        let each = |entry: &str, operands: &[&str], parameters| {
            let own = |name: &str| {
                let own =
                    if name == "state" { Affine::constant(0).plus(2, bytes) } else { Affine::default() };
                TiledOperand { name: name.to_owned(), offset: own }
            };
            let operands = operands.iter().map(|name| own(name)).collect();
            Item::Call { entry: entry.to_owned(), operands, parameters }
        };
        let repeat = |body| vec![Item::Loop { count: rows / part, body }];
        if top > 0 {
            let words = || vec![whole("n", part * (size + 2))];
            let receive = vec![
                each("receive", &["other"], words()),
                each("attend_merge", &["other", "state"], side(part)),
            ];
            batch.push(Item::On { first: 0, last: top - 1, body: repeat(receive) });
            let send = vec![each("send", &["state"], words())];
            batch.push(Item::On { first: 1, last: top, body: repeat(send) });
        }
        let store = if rows > part {
            repeat(vec![each("attend_store", &["state", "y"], side(part))])
        } else {
            vec![call("attend_store", &["state", "y"], side(rows))]
        };
        batch.push(lower(store));
        batch
    }

    /// Numbers that a pair of cores passes on for a chunk.
    fn weights(&self) -> u32 {
        self.tile.queries * self.sizes.group() * (self.tile.chunk + WEIGHTS_HEAD as u32)
    }

    /// Returns the calls that attend to a chunk.
    fn attend(&self, first: u32, sweep: Sweep) -> Vec<Item> {
        let (AttendSizes { size, window, causal, scale, .. }, tile) = (self.sizes, self.tile);
        let queries = i64::from(tile.queries);
        let operand = |name: &str, offset| TiledOperand { name: name.to_owned(), offset };
        let number = |name: &str, value: Affine| Parameter {
            name: name.to_owned(),
            value: ParameterValue::Int(value),
        };
        let [batch, step] = [self.batch(), self.step].map(i64::from);
        let mut query = Affine::constant(i64::from(first) * batch).plus(1, batch);
        let mut q = Affine::default();
        match tile.across {
            Across::Queries => query = query.plus(COLUMN_TERM, queries),
            Across::Heads => {
                query = Affine::constant(0);
                q = q.plus(0, i64::from(self.sizes.group() * size * 2));
            }
        }
        let key = Affine::constant(i64::from(sweep.first) * step)
            .plus(1, i64::from(sweep.step) * step)
            .plus(2, step);
        let key = if self.tile.pair { key } else { key.plus(ROW_TERM, self.between.into()) };
        let key = if self.parts > 1 { key.plus(3, self.apart.into()) } else { key };
        let values = Affine::constant(i64::from(tile.chunk * size * 2));
        let [k, v] = match tile.across {
            Across::Queries => [operand("kv", Affine::constant(0)), operand("kv", values)],
            Across::Heads => ["k", "v"].map(|name| operand(name, Affine::constant(0))),
        };
        let [start, state, weights] =
            ["start", "state", "weights"].map(|name| operand(name, Affine::default()));
        let mut parameters = vec![
            whole("rows", tile.queries * self.sizes.group()),
            whole("size", size),
            whole("values", size),
            whole("keys", tile.chunk),
            whole("group", self.sizes.group()),
            number("query", query),
            number("key", key),
            whole("causal", u32::from(causal)),
            whole("window", window),
            float("scale", scale),
        ];
        let entry =
            |entry: &str, operands, parameters| Item::Call { entry: entry.to_owned(), operands, parameters };
        let q = operand("q", q);
        if !tile.pair {
            return vec![entry("attend", vec![q, k, v, start, state], parameters)];
        }
        let sums = [0, 2, 3].map(|index| parameters[index].clone()).to_vec();
        parameters.retain(|parameter| parameter.name != "values");
        let passed = || vec![whole("n", self.weights())];
        vec![
            upper(vec![
                entry("attend_scores", vec![q, k, start, weights.clone()], parameters),
                call("send", &["weights"], passed()),
            ]),
            lower(vec![
                call("receive", &["weights"], passed()),
                entry("attend_values", vec![v, weights, state], sums),
            ]),
        ]
    }
}

/// Returns what the upper core of a pair runs.
fn upper(body: Vec<Item>) -> Item {
    Item::On { first: 1, last: 1, body }
}

/// Returns what the bottom core of a column runs.
fn lower(body: Vec<Item>) -> Item {
    Item::On { first: 0, last: 0, body }
}
