//! Tiled programs: each launch is a herd of cores that run one loop nest over
//! chunks, with the streams that carry the chunks. Cores and chunks have no
//! addresses yet.
//!
//! A *chunk* is the data that a core receives or sends at once. A *transfer* is
//! the data that moves between DRAM and the array at once: one chunk, or
//! several *slices*, which are staged in L2 and forwarded one by one.

mod text;

use super::FormFault;
use super::program::{FormLaunch, FormProgram};
use super::schedule::{Affine, Argument, Dim, Parameter, Tile};
use crate::target::Target;

/// A program whose launches are tiled.
pub type Tiled = FormProgram<TiledLaunch>;

/// One kernel on a herd of cores.
#[derive(Clone, Debug, PartialEq)]
pub struct TiledLaunch {
    /// Its name within the program.
    pub name: String,
    /// Columns and rows of cores; all run the same body.
    pub herd: Herd,
    /// Whether all cores of the herd lie side by side in one row of the array: column by
    /// column, the rows of each from the last to the first.
    pub flat: bool,
    /// The data that moves between DRAM and the cores.
    pub streams: Vec<Stream>,
    /// If not empty, the iterations of the second loop are divided into these runs, and
    /// the dimension of the third loop of streams to the cores has the largest number of
    /// iterations.
    pub sweeps: Vec<Sweep>,
    /// Memory that only the core uses.
    pub locals: Vec<Local>,
    /// Whether each core sends its accumulators over the cascade to the core
    /// below, in a flat herd to the core on its right.
    pub cascade: bool,
    /// If set, its configuration stays on the array beside those of other launches, and this is
    /// the tile of the herd's lower left core.
    pub resident: Option<Tile>,
    /// The loop nest of each core.
    pub body: Vec<Item>,
}

/// Iterations of the second loop of a launch, one after another, in which the third loop
/// has the same number of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The number of these iterations.
    pub times: u32,
    /// The index of the third loop's dimension at which the first of them begins.
    pub first: u32,
    /// What each further one adds to that index.
    pub step: u32,
    /// The number of iterations of the third loop in each.
    pub count: u32,
}

impl Sweep {
    /// The first index of the third loop's dimension in each of the iterations.
    pub fn firsts(self) -> impl Iterator<Item = u32> {
        (0..self.times).map(move |time| self.first.saturating_add(self.step.saturating_mul(time)))
    }
}

/// A rectangle of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Herd {
    /// Cores from left to right.
    pub columns: u8,
    /// Cores from bottom to top.
    pub rows: u8,
}

/// The chunks of one argument, in the order in which the cores use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The name, which calls refer to.
    pub name: String,
    /// The argument's number.
    pub argument: u32,
    /// Whether the cores read or write it.
    pub flow: Flow,
    /// Which cores share chunks.
    pub share: Share,
    /// The number of outer loops whose iterations each use a new chunk.
    pub level: u8,
    /// The number of chunks that a core buffers.
    pub depth: u8,
    /// The byte offset of the first chunk in the argument.
    pub base_bytes: u64,
    /// Bytes from a herd column's first chunk to the next column's.
    pub column_bytes: u64,
    /// Bytes from a herd row's first chunk to the next row's.
    pub row_bytes: u64,
    /// The layout in DRAM, outermost first: one dimension for each of `level`
    /// loops, then the dimensions of a transfer. If a transfer has slices, the
    /// last of these loops counts transfers.
    pub dims: Vec<Dim>,
    /// If set, the stream has no channels of its own: its only chunk is sent
    /// over those of the stream of this name, before that stream's first chunk. Several such
    /// chunks are sent in the order of their streams.
    pub ahead_of: Option<String>,
    /// If set, transfers are staged in a memory tile; printed as `through`.
    pub l2: Option<L2Staging>,
}

/// The staging of transfers in a memory tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L2Staging {
    /// The number of transfers that the memory tile buffers.
    pub depth: u8,
    /// Slices of a transfer. With several, DRAM is read in longer runs than a
    /// core's memory could hold.
    pub slices: u32,
    /// Words from the start of one slice to the next; 0 if `dims` covers all
    /// slices.
    pub slice_words: u32,
    /// The number of times that a transfer is sent to the cores. With more than
    /// one pass, each pass sends all slices, and the cores have a loop over
    /// passes around the loop over slices.
    pub passes: u32,
    /// The order in which a transfer is written to L2; empty if linear.
    pub into: Vec<Dim>,
    /// The order in which a slice, or with several passes the whole transfer,
    /// is read from L2, in words of the buffer.
    pub dims: Vec<Dim>,
}

impl L2Staging {
    /// Transfers of one chunk; `depth` is the number of buffers.
    pub fn unsliced(depth: u8, dims: Vec<Dim>) -> L2Staging {
        L2Staging { depth, slices: 1, slice_words: 0, passes: 1, into: Vec::new(), dims }
    }

    /// Whether a transfer is sent more than once.
    pub fn repeats(&self) -> bool {
        self.passes > 1
    }

    /// Words that one descriptor reads from L2.
    fn descriptor_words(&self) -> u64 {
        self.dims.iter().map(|dim| u64::from(dim.size)).product()
    }
}

/// The direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From DRAM to the cores.
    In,
    /// From the cores to DRAM.
    Out,
}

/// Which cores of a herd share chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each core has its own.
    Own,
    /// The cores of a column share.
    Column,
    /// The cores of a row share.
    Row,
    /// All cores share.
    All,
    /// The bottom core of each column has its own; the others have none.
    Bottom,
    /// The top core of each column has its own; the others have none.
    Top,
}

/// The depth of a [`Term`](super::schedule::Term) that counts the core's column
/// in the herd, as if columns were a loop.
pub const COLUMN_TERM: u8 = 254;
/// Like [`COLUMN_TERM`], for the core's row.
pub const ROW_TERM: u8 = 255;

/// A buffer of a core that no stream uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The name, which calls refer to.
    pub name: String,
    /// The size.
    pub bytes: u32,
}

/// An item of a core's loop nest.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Repeats its body.
    Loop {
        /// The number of iterations.
        count: u32,
        /// The body.
        body: Vec<Item>,
    },
    /// Runs its body on some of the herd's rows only.
    On {
        /// The first row.
        first: u8,
        /// The last row.
        last: u8,
        /// The body.
        body: Vec<Item>,
    },
    /// Calls a kernel entry.
    Call {
        /// The entry's name.
        entry: String,
        /// Streams and locals, in the entry's order.
        operands: Vec<TiledOperand>,
        /// Parameters, in the entry's order.
        parameters: Vec<Parameter>,
    },
}

/// An operand: an offset in a chunk of a stream, or in a local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledOperand {
    /// The stream or local.
    pub name: String,
    /// The byte offset.
    pub offset: Affine,
}

/// The cores that share one stream circuit, by column and row of the herd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// The herd column whose chunks it carries; 0 if columns share.
    pub column: u8,
    /// The herd row whose chunks it carries; 0 if rows share or are joined.
    pub row: u8,
    /// The cores at its end. All receive the same words, unless their chunks
    /// are [joined](Stream::joins).
    pub cores: Vec<(u8, u8)>,
}

impl Stream {
    /// Words of one chunk.
    pub fn chunk_words(&self) -> u32 {
        self.transfer_words() / self.slices()
    }

    /// Chunks of one transfer.
    pub fn slices(&self) -> u32 {
        self.l2.as_ref().map_or(1, |staging| staging.slices.max(1))
    }

    /// The number of loops around the calls that use the stream: `level`, and two
    /// more, over passes and slices, if a memory tile repeats its transfers.
    pub fn loops(&self) -> usize {
        let repeats = self.l2.as_ref().is_some_and(L2Staging::repeats);
        usize::from(self.level) + if repeats { 2 } else { 0 }
    }

    /// Whether the third loop of the stream is that of the launch's sweeps, if there are any:
    /// it is a stream to the cores. Results have other loops within the second.
    pub fn is_swept(&self) -> bool {
        self.level > 2 && self.flow == Flow::In
    }

    /// Whether the cores of this row of the herd have memory for its chunks. Results have it in
    /// all, at the same addresses.
    pub fn is_held(&self, row: u8, herd: Herd) -> bool {
        match self.share {
            Share::Top => row + 1 == herd.rows,
            Share::Bottom if self.flow == Flow::In => row == 0,
            _ => true,
        }
    }

    /// Words of one transfer.
    pub fn transfer_words(&self) -> u32 {
        let chunk = self.dims.get(usize::from(self.level)..).unwrap_or(&[]);
        chunk.iter().fold(1, |words: u32, dim| words.saturating_mul(dim.size))
    }

    /// Bytes of one chunk.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_words().saturating_mul(4)
    }

    /// Whether one channel carries the chunks of a column's cores to or from DRAM, core by
    /// core, and a memory tile joins or divides them.
    pub fn joins(&self) -> bool {
        self.share == Share::Own && self.l2.is_some()
    }

    /// The circuits of the stream in a herd.
    pub fn circuits(&self, herd: Herd) -> Vec<Circuit> {
        let columns = 0..herd.columns;
        let rows = 0..herd.rows;
        let circuit = |column, row, cores| Circuit { column, row, cores };
        let column_of = |column: u8| rows.clone().map(move |row| (column, row)).collect::<Vec<_>>();
        match self.share {
            _ if self.ahead_of.is_some() => Vec::new(),
            Share::Own if self.joins() => {
                columns.map(|column| circuit(column, 0, column_of(column))).collect()
            }
            Share::Own => {
                let cores = columns.flat_map(column_of);
                cores.map(|(column, row)| circuit(column, row, vec![(column, row)])).collect()
            }
            Share::Column => columns.map(|column| circuit(column, 0, column_of(column))).collect(),
            Share::Row => {
                let row_of = |row: u8| columns.clone().map(move |column| (column, row)).collect();
                rows.clone().map(|row| circuit(0, row, row_of(row))).collect()
            }
            Share::All => vec![circuit(0, 0, columns.flat_map(column_of).collect())],
            Share::Bottom => columns.map(|column| circuit(column, 0, vec![(column, 0)])).collect(),
            Share::Top => {
                let top = herd.rows - 1;
                columns.map(|column| circuit(column, top, vec![(column, top)])).collect()
            }
        }
    }
}

impl TiledLaunch {
    /// The column and the row of a core of the herd, counted from the herd's lower left
    /// core.
    pub fn place(&self, (column, row): (u8, u8)) -> (u8, u8) {
        let Herd { rows, .. } = self.herd;
        if self.flat {
            (column.saturating_mul(rows).saturating_add(rows - 1 - row.min(rows - 1)), 0)
        } else {
            (column, row)
        }
    }
}

/// The number of chunks of a stream with `loops` loops that items use, which are in
/// `depth` loops.
pub fn chunks_of(items: &[Item], depth: usize, stream: &str, loops: usize) -> u64 {
    if depth >= loops {
        return u64::from(items.iter().any(|item| item.uses(stream)));
    }
    let of = |item: &Item| match item {
        Item::Loop { count, body } => {
            u64::from(*count).saturating_mul(chunks_of(body, depth + 1, stream, loops))
        }
        Item::On { body, .. } => chunks_of(body, depth, stream, loops),
        Item::Call { .. } => 0,
    };
    items.iter().map(of).fold(0, u64::saturating_add)
}

impl TiledLaunch {
    /// Creates a launch of a herd in the lower left corner, without locals, sweeps and cascade.
    pub fn of(name: String, herd: Herd, streams: Vec<Stream>, body: Vec<Item>) -> TiledLaunch {
        let (locals, sweeps) = (Vec::new(), Vec::new());
        TiledLaunch { name, herd, flat: false, streams, sweeps, locals, cascade: false, resident: None, body }
    }
}

impl Item {
    /// Whether the item uses the stream or local of this name.
    pub fn uses(&self, name: &str) -> bool {
        match self {
            Item::Loop { body, .. } | Item::On { body, .. } => body.iter().any(|item| item.uses(name)),
            Item::Call { operands, .. } => operands.iter().any(|operand| operand.name == name),
        }
    }
}

/// Returns the counts of the loops around the first call that uses `name`,
/// outermost first; none if no call does.
pub fn loops_of(body: &[Item], name: &str) -> Option<Vec<u32>> {
    body.iter().find_map(|item| match item {
        Item::Call { .. } => item.uses(name).then(Vec::new),
        Item::On { body, .. } => loops_of(body, name),
        Item::Loop { count, body } => loops_of(body, name).map(|mut inner| {
            inner.insert(0, *count);
            inner
        }),
    })
}

impl FormLaunch for TiledLaunch {
    const NAME: &'static str = "tiled";

    /// The rules: the herd fits the grid; every stream is used, within the loops
    /// of its dimensions; it stays within its argument; as many words leave L2
    /// as enter it; chunks and locals fit a core's memory.
    fn faults(&self, arguments: &[Argument], target: &Target) -> Vec<FormFault> {
        let mut faults = Vec::new();
        let mut fault = |what: &str, sentence: String| {
            faults.push(FormFault::new(format!("{}: {what}", self.name), sentence))
        };
        let (columns, rows) = (target.array.columns, target.array.compute_rows);
        let (right, top) = self.place((self.herd.columns - 1, 0));
        let last = (u32::from(right), u32::from(top.max(self.place((0, self.herd.rows - 1)).1)));
        if last.0 >= columns || last.1 >= rows {
            fault("herd", format!("is {}; the array has {columns}x{rows} cores", self.herd));
        }
        for stream in &self.streams {
            if let Some(sentence) = self.stream_fault(stream, arguments) {
                fault(&stream.name, sentence);
            }
            if let Some(host) = &stream.ahead_of
                && !self.streams.iter().any(|other| other.name == *host && carries(other, stream))
            {
                fault(&stream.name, format!("is sent ahead of {host}, which cannot carry it"));
            }
        }
        let (need, have) = (self.core_bytes(), target.compute.bytes - target.compute.reserved);
        if need > u64::from(have) {
            fault("core", format!("needs {need} bytes of memory; it has {have}"));
        }
        faults
    }
}

impl TiledLaunch {
    fn stream_fault(&self, stream: &Stream, arguments: &[Argument]) -> Option<String> {
        let Some(loops) = loops_of(&self.body, &stream.name) else {
            return Some("is not used by any call".to_owned());
        };
        let level = usize::from(stream.level);
        let mut follows: Option<Vec<u32>> =
            stream.dims.get(..level).map(|dims| dims.iter().map(|dim| dim.size).collect());
        let repeated = stream.l2.as_ref().filter(|staging| staging.repeats());
        if let (Some(follows), Some(staging)) = (&mut follows, repeated) {
            follows.extend([staging.passes, staging.slices]);
        } else if let Some(last) = follows.as_mut().and_then(|follows| follows.last_mut()) {
            *last = last.saturating_mul(stream.slices());
        } else if stream.slices() > 1 {
            return Some("has slices but no loop".to_owned());
        }
        if !self.sweeps.is_empty() {
            if let Some(sentence) = self.sweep_fault(stream) {
                return Some(sentence);
            }
        } else if loops.get(..stream.loops()) != follows.as_deref() || stream.dims.len() <= level {
            return Some(format!("has the loops {follows:?}; the calls that use it are in {loops:?}"));
        }
        if let Some(staging) = &stream.l2 {
            let words = staging.descriptor_words();
            if staging.slices == 0 || (staging.slices > 1 && stream.flow == Flow::Out) {
                return Some(format!("has {} slices in a transfer", staging.slices));
            }
            if staging.passes == 0 || (staging.repeats() && stream.flow == Flow::Out) {
                return Some(format!("is sent from L2 {} times", staging.passes));
            }
            let arriving = staging.into.iter().map(|dim| u64::from(dim.size)).product::<u64>();
            if !staging.into.is_empty() && arriving != u64::from(stream.transfer_words()) {
                let words = stream.transfer_words();
                return Some(format!("has transfers of {words} words; {arriving} are written to L2"));
            }
            let whole = if staging.repeats() { stream.transfer_words() } else { stream.chunk_words() };
            if words != u64::from(whole) {
                return Some(format!(
                    "has chunks of {} words; {words} are read from L2",
                    stream.chunk_words()
                ));
            }
        }
        let Some(argument) = arguments.get(stream.argument as usize) else {
            return Some(format!("is of argument {}, which the program does not have", stream.argument));
        };
        let reach: u64 =
            stream.dims.iter().map(|dim| u64::from(dim.size - 1) * u64::from(dim.stride) * 4).sum();
        let last = stream.base_bytes
            + u64::from(self.herd.columns - 1) * stream.column_bytes
            + u64::from(self.herd.rows - 1) * stream.row_bytes
            + reach
            + 4;
        (last > argument.bytes).then(|| {
            format!("ends at byte {last} of argument {}, which has {} bytes", argument.name, argument.bytes)
        })
    }

    /// Returns the fault of a stream of a launch with sweeps.
    fn sweep_fault(&self, stream: &Stream) -> Option<String> {
        let level = usize::from(stream.level);
        if stream.dims.len() <= level || stream.l2.is_some() {
            return Some("has too few dimensions, or is staged in L2, and the launch has sweeps".to_owned());
        }
        let sizes: Vec<u64> = stream.dims[..level].iter().map(|dim| u64::from(dim.size)).collect();
        let swept = stream.is_swept();
        let rest = sizes.get(if swept { 3 } else { 2 }..).unwrap_or(&[]);
        let rest = rest.iter().fold(1, |all: u64, size| all.saturating_mul(*size));
        let each = |sweep: &Sweep| {
            let count = if swept { u64::from(sweep.count) } else { 1 };
            u64::from(sweep.times).saturating_mul(count).saturating_mul(rest)
        };
        let chunks = || self.sweeps.iter().map(each).fold(0, u64::saturating_add);
        let need = if level > 1 { sizes[0].saturating_mul(chunks()) } else { sizes.iter().product() };
        let have = chunks_of(&self.body, 0, &stream.name, stream.loops());
        if need != have {
            return Some(format!("has {need} chunks in its sweeps; the calls that use it need {have}"));
        }
        let times = self.sweeps.iter().map(|sweep| u64::from(sweep.times)).fold(0, u64::saturating_add);
        if sizes.get(1).is_some_and(|&size| size != times) {
            return Some(format!("has {} iterations of the second loop; the sweeps have {times}", sizes[1]));
        }
        let beyond = |sweep: &&Sweep| {
            let last = u64::from(sweep.times.saturating_sub(1)).saturating_mul(sweep.step.into());
            let end = last.saturating_add(sweep.first.into()).saturating_add(sweep.count.into());
            (swept && end > sizes[2]) || sweep.count == 0 || sweep.times == 0
        };
        self.sweeps
            .iter()
            .find(beyond)
            .map(|sweep| format!("has the sweep {sweep}, in {:?} steps", sizes.get(2)))
    }

    /// Bytes of chunks and locals of the core that has the most.
    pub fn core_bytes(&self) -> u64 {
        let chunks = |row| {
            let held = self.streams.iter().filter(move |stream| stream.is_held(row, self.herd));
            held.map(|stream| u64::from(stream.chunk_bytes()) * u64::from(stream.depth)).sum()
        };
        let locals: u64 = self.locals.iter().map(|local| u64::from(local.bytes)).sum();
        locals + (0..self.herd.rows).map(chunks).max().unwrap_or(0)
    }
}

/// Whether another stream's channels can carry the only chunk of a stream: both
/// go directly to the cores, and the cores of a circuit receive the same chunk.
fn carries(other: &Stream, stream: &Stream) -> bool {
    let direct = |stream: &Stream| stream.flow == Flow::In && stream.l2.is_none();
    let by_column = stream.share == Share::Column && matches!(other.share, Share::Own | Share::Column);
    let alike = match stream.share {
        Share::All => other.share != Share::Top,
        Share::Top => other.share == Share::Top,
        _ => by_column,
    } && other.ahead_of.is_none();
    direct(other) && direct(stream) && alike && stream.level == 0 && stream.depth == 1
}
