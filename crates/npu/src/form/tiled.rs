//! Tiled programs: each launch as a herd of cores that run one loop nest over
//! chunks, with the streams that bring and take the chunks. It does not say
//! where anything lies.

use std::fmt;
use std::str::FromStr;

use girih_tensor::{Error, Result};

use super::read::{FormLine, FormLines};
use super::schedule::text::{MAX_LOOPS, arguments, pair, parameters};
use super::schedule::{Affine, Argument, Dim, Parameter};
use super::{FormFault, PassForm};
use crate::target::Target;

/// A program whose launches are tiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiled {
    /// The program's name.
    pub name: String,
    /// What the host binds.
    pub arguments: Vec<Argument>,
    /// The launches, in order.
    pub launches: Vec<TiledLaunch>,
}

/// One kernel on a herd of cores.
#[derive(Clone, Debug, PartialEq)]
pub struct TiledLaunch {
    /// Its name within the program.
    pub name: String,
    /// Columns and rows of cores; all run the same body.
    pub herd: Herd,
    /// Data that flows between DRAM and the cores.
    pub streams: Vec<Stream>,
    /// Memory that a core keeps to itself.
    pub locals: Vec<Local>,
    /// Whether each core hands its accumulators down to the one below it.
    pub cascade: bool,
    /// What each core does.
    pub body: Vec<Item>,
}

/// A rectangle of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Herd {
    /// Cores from left to right.
    pub columns: u8,
    /// Cores from bottom to top.
    pub rows: u8,
}

/// Chunks of one argument, in the order in which the cores take or make them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The name that calls use.
    pub name: String,
    /// The argument's number.
    pub argument: u32,
    /// Whether cores read or write it.
    pub flow: Flow,
    /// Which cores see the same chunks.
    pub share: Share,
    /// How many of the outer loops it follows: each of their iterations has a
    /// new chunk.
    pub level: u8,
    /// Chunks of it in a core's memory at once.
    pub depth: u8,
    /// Where in the argument the first chunk begins, in bytes.
    pub base_bytes: u64,
    /// Bytes from a herd column's first chunk to the next column's.
    pub column_bytes: u64,
    /// Bytes from a herd row's first chunk to the next row's.
    pub row_bytes: u64,
    /// Where the words lie in DRAM, outermost first: one dimension for each
    /// loop it follows, then those of a chunk. Where a memory tile cuts
    /// stretches into slices, the innermost loop counts stretches.
    pub dims: Vec<Dim>,
    /// If set, it has no channels of its own: its only chunk comes over those
    /// of the stream of this name, before that one's first.
    pub ahead_of: Option<String>,
    /// If set, chunks pass through a memory tile.
    pub l2: Option<L2Staging>,
}

/// The way of chunks through a memory tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L2Staging {
    /// Stretches in the memory tile at once.
    pub depth: u8,
    /// Chunks of a core that one stretch from DRAM holds: so DRAM is read in
    /// longer runs than a core's memory has room for.
    pub slices: u32,
    /// Words from where one slice begins in the stretch to the next; 0 where
    /// the dimensions bring out all slices.
    pub slice_words: u32,
    /// How often a stretch leaves: with more than one pass all its slices do,
    /// one pass after another, and the cores have a loop of passes around that
    /// of slices.
    pub passes: u32,
    /// Where the words of a stretch go as they come in; empty if one after
    /// another.
    pub into: Vec<Dim>,
    /// The order in which a slice leaves it, or with several passes the whole
    /// stretch, as words of the memory tile's buffer.
    pub dims: Vec<Dim>,
}

impl L2Staging {
    /// Chunks that stop as they are, so many at once.
    pub fn whole(depth: u8, dims: Vec<Dim>) -> L2Staging {
        L2Staging { depth, slices: 1, slice_words: 0, passes: 1, into: Vec::new(), dims }
    }

    /// Whether a stretch leaves more than once.
    pub fn repeats(&self) -> bool {
        self.passes > 1
    }

    /// Words that leave it for each descriptor.
    fn leaving_words(&self) -> u64 {
        self.dims.iter().map(|dim| u64::from(dim.size)).product()
    }
}

/// Which way chunks travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From DRAM to the cores.
    In,
    /// From the cores to DRAM.
    Out,
}

/// Which cores of a herd see the same chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each its own.
    Own,
    /// All of a column the same.
    Column,
    /// All of a row the same.
    Row,
    /// All the same.
    All,
    /// The bottom core of each column its own; the others none.
    Bottom,
}

/// A term of this depth in a call's numbers counts the core's column in the
/// herd, as if columns were a loop.
pub const COLUMN_TERM: u8 = 254;
/// As [`COLUMN_TERM`], the core's row.
pub const ROW_TERM: u8 = 255;

/// Memory of a core that no stream touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The name that calls use.
    pub name: String,
    /// Its size.
    pub bytes: u32,
}

/// A step of a core's work.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Repeats its body.
    Loop {
        /// How many times.
        count: u32,
        /// What is repeated.
        body: Vec<Item>,
    },
    /// Is done by the cores of some of the herd's rows only.
    On {
        /// The first row.
        first: u8,
        /// The last row.
        last: u8,
        /// What they do.
        body: Vec<Item>,
    },
    /// Calls a kernel entry.
    Call {
        /// The entry's name.
        entry: String,
        /// Streams and locals, in the entry's order.
        operands: Vec<TiledOperand>,
        /// Numbers, in the entry's order.
        parameters: Vec<Parameter>,
    },
}

/// An operand: a place in a chunk of a stream, or in a local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledOperand {
    /// The stream or local.
    pub name: String,
    /// The byte offset in it.
    pub offset: Affine,
}

/// The cores, by column and row of the herd, that one stream circuit serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Herd column whose chunks it carries; 0 where columns share.
    pub column: u8,
    /// Herd row whose chunks it carries; 0 where rows share or are joined.
    pub row: u8,
    /// The cores at its end: all receive the same words, unless chunks of
    /// several are [joined](Stream::joins).
    pub cores: Vec<(u8, u8)>,
}

impl Stream {
    /// Words of one chunk.
    pub fn chunk_words(&self) -> u32 {
        self.transfer_words() / self.slices()
    }

    /// Chunks in a stretch from DRAM.
    pub fn slices(&self) -> u32 {
        self.l2.as_ref().map_or(1, |staging| staging.slices.max(1))
    }

    /// The loops around the calls that use it: those that it follows in DRAM,
    /// and those of passes and slices where a memory tile repeats it.
    pub fn loops(&self) -> usize {
        let repeats = self.l2.as_ref().is_some_and(L2Staging::repeats);
        usize::from(self.level) + if repeats { 2 } else { 0 }
    }

    /// Words that come from or go to DRAM together.
    pub fn transfer_words(&self) -> u32 {
        let chunk = self.dims.get(usize::from(self.level)..).unwrap_or(&[]);
        chunk.iter().fold(1, |words: u32, dim| words.saturating_mul(dim.size))
    }

    /// Bytes of one chunk.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_words().saturating_mul(4)
    }

    /// Whether the chunks of a column's cores are joined in a memory tile, one
    /// core's after another's, so that one channel carries them to DRAM.
    pub fn joins(&self) -> bool {
        self.flow == Flow::Out && self.share == Share::Own && self.l2.is_some()
    }

    /// The circuits that a herd needs for it.
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
        }
    }
}

impl Item {
    /// Whether it uses the stream or local of this name.
    pub fn uses(&self, name: &str) -> bool {
        match self {
            Item::Loop { body, .. } | Item::On { body, .. } => body.iter().any(|item| item.uses(name)),
            Item::Call { operands, .. } => operands.iter().any(|operand| operand.name == name),
        }
    }
}

/// The counts of the loops that lead to the calls which use `name`, outermost
/// first; none if nothing uses it.
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

impl PassForm for Tiled {
    const NAME: &'static str = "tiled";

    fn faults(&self, target: &Target) -> Vec<FormFault> {
        self.launches.iter().flat_map(|launch| launch.faults(&self.arguments, target)).collect()
    }
}

impl TiledLaunch {
    /// The rules: the herd fits the grid; every stream is used, at as many
    /// loops as it follows; it stays within its argument; its chunks are of
    /// one size on both ways; what a core holds fits its memory.
    fn faults(&self, arguments: &[Argument], target: &Target) -> Vec<FormFault> {
        let mut faults = Vec::new();
        let mut fault = |what: &str, sentence: String| {
            faults.push(FormFault::new(format!("{}: {what}", self.name), sentence))
        };
        let (columns, rows) = (target.array.columns, target.array.compute_rows);
        if u32::from(self.herd.columns) > columns || u32::from(self.herd.rows) > rows {
            fault("herd", format!("is {}; the array has {columns}x{rows} cores", self.herd));
        }
        for stream in &self.streams {
            if let Some(sentence) = self.stream_fault(stream, arguments) {
                fault(&stream.name, sentence);
            }
            if let Some(host) = &stream.ahead_of
                && !self.streams.iter().any(|other| other.name == *host && carries(other, stream))
            {
                fault(&stream.name, format!("comes ahead of {host}, over which one chunk cannot come"));
            }
        }
        let (need, have) = (self.core_bytes(), target.compute.bytes - target.compute.reserved);
        if need > u64::from(have) {
            fault("core", format!("needs {need} bytes of memory; it has {have}"));
        }
        faults
    }

    fn stream_fault(&self, stream: &Stream, arguments: &[Argument]) -> Option<String> {
        let Some(loops) = loops_of(&self.body, &stream.name) else {
            return Some("is used by no call".to_owned());
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
            return Some("is sliced, but follows no loop".to_owned());
        }
        if loops.get(..stream.loops()) != follows.as_deref() || stream.dims.len() <= level {
            return Some(format!("follows the loops {follows:?}; the calls that use it lie in {loops:?}"));
        }
        if let Some(staging) = &stream.l2 {
            let words = staging.leaving_words();
            if staging.slices == 0 || (staging.slices > 1 && stream.flow == Flow::Out) {
                return Some(format!("has {} slices in a stretch", staging.slices));
            }
            if staging.passes == 0 || (staging.repeats() && stream.flow == Flow::Out) {
                return Some(format!("leaves L2 {} times", staging.passes));
            }
            let arriving = staging.into.iter().map(|dim| u64::from(dim.size)).product::<u64>();
            if !staging.into.is_empty() && arriving != u64::from(stream.transfer_words()) {
                let words = stream.transfer_words();
                return Some(format!("has stretches of {words} words, of which {arriving} arrive in L2"));
            }
            let whole = if staging.repeats() { stream.transfer_words() } else { stream.chunk_words() };
            if words != u64::from(whole) {
                return Some(format!(
                    "has chunks of {} words, of which {words} leave L2",
                    stream.chunk_words()
                ));
            }
        }
        let Some(argument) = arguments.get(stream.argument as usize) else {
            return Some(format!("is of argument {}, which there is not", stream.argument));
        };
        let reach: u64 =
            stream.dims.iter().map(|dim| u64::from(dim.size - 1) * u64::from(dim.stride) * 4).sum();
        let last = stream.base_bytes
            + u64::from(self.herd.columns - 1) * stream.column_bytes
            + u64::from(self.herd.rows - 1) * stream.row_bytes
            + reach
            + 4;
        (last > argument.bytes).then(|| {
            format!("reaches byte {last} of argument {}, which has {}", argument.name, argument.bytes)
        })
    }

    /// Bytes of a core's memory that its chunks and locals take.
    pub fn core_bytes(&self) -> u64 {
        let chunks =
            self.streams.iter().map(|stream| u64::from(stream.chunk_bytes()) * u64::from(stream.depth));
        let locals = self.locals.iter().map(|local| u64::from(local.bytes));
        chunks.chain(locals).sum()
    }
}

/// Whether the one chunk of a stream can come over another's channels: both go
/// straight to the cores, the other to each on its own.
fn carries(other: &Stream, stream: &Stream) -> bool {
    let straight = |stream: &Stream| stream.flow == Flow::In && stream.l2.is_none();
    let own = other.share == Share::Own && other.ahead_of.is_none();
    straight(other) && straight(stream) && own && stream.level == 0 && stream.depth == 1
}

impl fmt::Display for Herd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.columns, self.rows)
    }
}

impl fmt::Display for Tiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tiled {}", self.name)?;
        print_arguments(&self.arguments, f)?;
        self.launches.iter().try_for_each(|launch| write!(f, "{launch}"))
    }
}

/// Prints the arguments of a program, one a line.
pub(super) fn print_arguments(arguments: &[Argument], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    arguments
        .iter()
        .enumerate()
        .try_for_each(|(number, argument)| writeln!(f, "argument {number} {argument}"))
}

impl fmt::Display for TiledLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cascade = if self.cascade { " cascade" } else { "" };
        writeln!(f, "launch {} herd {}{cascade}", self.name, self.herd)?;
        self.streams.iter().try_for_each(|stream| writeln!(f, "  {stream}"))?;
        for Local { name, bytes } in &self.locals {
            writeln!(f, "  local {name} {bytes}")?;
        }
        writeln!(f, "  body {{")?;
        self.body.iter().try_for_each(|item| print_item(item, 2, f))?;
        writeln!(f, "  }}")
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stream { name, argument, level, depth, base_bytes, column_bytes, row_bytes, .. } = self;
        let flow = if self.flow == Flow::In { "in" } else { "out" };
        let share = SHARES.iter().find(|(share, _)| *share == self.share).map_or("?", |(_, word)| word);
        write!(f, "stream {name} {flow} a{argument} share {share} level {level} depth {depth}")?;
        write!(f, " base {base_bytes} column {column_bytes} row {row_bytes} dims {}", Dims(&self.dims))?;
        if let Some(host) = &self.ahead_of {
            write!(f, " ahead {host}")?;
        }
        let Some(staging) = &self.l2 else { return Ok(()) };
        let L2Staging { depth, slices, slice_words, passes, into, dims } = staging;
        write!(f, " through {depth} slices {slices} {slice_words} dims {}", Dims(dims))?;
        if staging.repeats() {
            write!(f, " passes {passes}")?;
        }
        if into.is_empty() { Ok(()) } else { write!(f, " into {}", Dims(into)) }
    }
}

const SHARES: [(Share, &str); 5] = [
    (Share::Own, "own"),
    (Share::Column, "column"),
    (Share::Row, "row"),
    (Share::All, "all"),
    (Share::Bottom, "bottom"),
];

/// Dimensions, separated by commas.
struct Dims<'a>(&'a [Dim]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.0.iter().try_for_each(|dim| write!(f, "{}{dim}", std::mem::replace(&mut separator, ",")))
    }
}

fn print_item(item: &Item, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:1$}", "", 2 * depth)?;
    match item {
        Item::Loop { count, body } => {
            writeln!(f, "loop {count} {{")?;
            body.iter().try_for_each(|inner| print_item(inner, depth + 1, f))?;
            writeln!(f, "{:1$}}}", "", 2 * depth)
        }
        Item::On { first, last, body } => {
            writeln!(f, "on {first} {last} {{")?;
            body.iter().try_for_each(|inner| print_item(inner, depth + 1, f))?;
            writeln!(f, "{:1$}}}", "", 2 * depth)
        }
        Item::Call { entry, operands, parameters } => {
            write!(f, "call {entry}")?;
            operands.iter().try_for_each(|TiledOperand { name, offset }| write!(f, " {name}@{offset}"))?;
            if !parameters.is_empty() {
                f.write_str(" :")?;
            }
            parameters.iter().try_for_each(|parameter| write!(f, " {parameter}"))?;
            writeln!(f)
        }
    }
}

impl FromStr for Tiled {
    type Err = Error;

    fn from_str(text: &str) -> Result<Tiled> {
        let mut lines = FormLines::new(text);
        let mut head = lines.need("tiled")?;
        let name = head.word("the program's name")?.to_owned();
        head.end()?;
        let arguments = arguments(&mut lines)?;
        let mut launches = Vec::new();
        while lines.peek() == Some("launch") {
            launches.push(TiledLaunch::read(&mut lines)?);
        }
        lines.end()?;
        Ok(Tiled { name, arguments, launches })
    }
}

impl TiledLaunch {
    /// Reads a launch from its first line to the end of its body.
    pub(super) fn read(lines: &mut FormLines<'_>) -> Result<TiledLaunch> {
        let mut head = lines.need("launch")?;
        let name = head.word("the launch's name")?.to_owned();
        head.need("herd")?;
        let herd = head.value("a herd")?;
        let cascade = head.skip("cascade");
        head.end()?;
        let mut launch =
            TiledLaunch { name, herd, streams: Vec::new(), locals: Vec::new(), cascade, body: Vec::new() };
        while let Some(mut line) = lines.take("stream") {
            launch.streams.push(stream(&mut line)?);
        }
        while let Some(mut line) = lines.take("local") {
            let name = line.word("a name")?.to_owned();
            launch.locals.push(Local { name, bytes: line.value("a size in bytes")? });
            line.end()?;
        }
        let mut line = lines.need("body")?;
        line.need("{")?;
        line.end()?;
        launch.body = items(lines, 0)?;
        Ok(launch)
    }
}

fn stream(line: &mut FormLine<'_>) -> Result<Stream> {
    let name = line.word("a name")?.to_owned();
    let flow = match line.word("a direction")? {
        "in" => Flow::In,
        "out" => Flow::Out,
        word => return Err(line.error(format!("has '{word}' where in or out is needed"))),
    };
    let word = line.word("an argument")?;
    let number =
        word.strip_prefix('a').ok_or_else(|| line.error(format!("has '{word}', which is no argument")))?;
    let argument = line.parsed(number, "an argument's number")?;
    line.need("share")?;
    let word = line.word("who shares")?;
    let share = SHARES.iter().find(|(_, name)| *name == word).map(|(share, _)| *share);
    let share =
        share.ok_or_else(|| line.error(format!("has '{word}' where own, column, row or all is needed")))?;
    line.need("level")?;
    let level = line.value("a number of loops")?;
    line.need("depth")?;
    let depth = line.value("a number of chunks")?;
    line.need("base")?;
    let base_bytes = line.value("a number of bytes")?;
    line.need("column")?;
    let column_bytes = line.value("a number of bytes")?;
    line.need("row")?;
    let row_bytes = line.value("a number of bytes")?;
    line.need("dims")?;
    let dims = dims(line)?;
    let ahead_of = if line.skip("ahead") { Some(line.word("a stream's name")?.to_owned()) } else { None };
    let l2 = if line.skip("through") {
        let depth = line.value("a number of stretches")?;
        line.need("slices")?;
        let (slices, slice_words) = (line.value("a number of slices")?, line.value("words of a slice")?);
        line.need("dims")?;
        let dims = self::dims(line)?;
        let passes = if line.skip("passes") { line.value("a number of passes")? } else { 1 };
        let into = if line.skip("into") { self::dims(line)? } else { Vec::new() };
        Some(L2Staging { depth, slices, slice_words, passes, into, dims })
    } else {
        None
    };
    line.end()?;
    Ok(Stream {
        name,
        argument,
        flow,
        share,
        level,
        depth,
        base_bytes,
        column_bytes,
        row_bytes,
        dims,
        ahead_of,
        l2,
    })
}

/// Dimensions separated by commas; none is empty.
fn dims(line: &mut FormLine<'_>) -> Result<Vec<Dim>> {
    let word = line.word("dimensions")?;
    let dims: Vec<Dim> = word.split(',').map(|dim| line.parsed(dim, "a dimension")).collect::<Result<_>>()?;
    match dims.iter().find(|dim| dim.size == 0) {
        Some(_) => Err(line.error("has a dimension of no words")),
        None => Ok(dims),
    }
}

fn items(lines: &mut FormLines<'_>, depth: usize) -> Result<Vec<Item>> {
    let mut body = Vec::new();
    loop {
        if let Some(mut line) = lines.take("}") {
            line.end()?;
            return Ok(body);
        } else if let Some(line) = lines.take("loop") {
            let count = super::schedule::text::loop_head(line, depth)?;
            body.push(Item::Loop { count, body: items(lines, depth + 1)? });
        } else if let Some(line) = lines.take("on") {
            let (first, last) = rows(line, depth)?;
            body.push(Item::On { first, last, body: items(lines, depth + 1)? });
        } else {
            let mut line = lines.need("call")?;
            let entry = line.word("an entry")?.to_owned();
            let mut operands = Vec::new();
            while let Some(word) = line.optional() {
                if word == ":" {
                    break;
                }
                let parts = word.split_once('@');
                let (name, offset) =
                    parts.ok_or_else(|| line.error(format!("has '{word}', which is no operand")))?;
                operands
                    .push(TiledOperand { name: name.to_owned(), offset: line.parsed(offset, "an offset")? });
            }
            body.push(Item::Call { entry, operands, parameters: parameters(&mut line)? });
        }
    }
}

/// The rows that a body is for, if it does not lie too deep.
fn rows(mut line: FormLine<'_>, depth: usize) -> Result<(u8, u8)> {
    if depth == MAX_LOOPS {
        return Err(line.error(format!("lies within {depth} others, which is the most")));
    }
    let rows = (line.value("a row")?, line.value("a row")?);
    line.need("{")?;
    line.end()?;
    Ok(rows)
}

impl FromStr for Herd {
    type Err = Error;

    fn from_str(text: &str) -> Result<Herd> {
        match pair(text, 'x', "a herd")? {
            (columns, rows) if columns > 0 && rows > 0 => Ok(Herd { columns, rows }),
            _ => Err(Error::new(format!("'{text}' is no herd"))),
        }
    }
}
