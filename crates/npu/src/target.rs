//! The description of an array: geometry, memories, transfer engines, clocks,
//! bandwidths and overheads, each figure with its source. The figures are in
//! `targets/npu/*.toml`; the code contains none.

use std::fmt;

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};
use serde::Deserialize;
use toml::{Table, Value};

/// The target files of the repository: name and text.
const TARGET_FILES: &[(&str, &str)] = &[
    ("toy", include_str!("../targets/toy.toml")),
    ("xdna2-strix", include_str!("../targets/xdna2-strix.toml")),
    ("xdna2-kraken", include_str!("../targets/xdna2-kraken.toml")),
    ("xdna1-phoenix", include_str!("../targets/xdna1-phoenix.toml")),
];

/// The maximum size of a target file.
const MAX_FILE_BYTES: usize = 256 << 10;
/// The maximum length of a chain of files that extend one another.
const MAX_EXTENDS: usize = 4;

/// How reliable a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Measured on hardware by the author that the source names.
    Measured,
    /// Stated by a specification or by source code.
    Documented,
    /// Follows from other figures by arithmetic.
    Derived,
    /// No source states it; the reason for the guess is given instead.
    Guessed,
}

/// One figure of a target or kernel file, with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its path, such as `dram.bytes_per_second`.
    pub path: String,
    /// The value as written in the file.
    pub value: String,
    /// How reliable it is.
    pub grade: Grade,
    /// The source, or the reason for the guess.
    pub source: String,
}

/// A target: all figures that the compiler and the simulator need.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name, with `@variant` if a variant was chosen:
    /// `xdna2-kraken@cap-2025`.
    pub name: String,
    /// The display name.
    pub title: String,
    /// The kind of core, which selects the kernel figures: `aie2` or `aie2p`.
    pub core: String,
    /// The grid.
    pub array: ArraySpec,
    /// A compute tile (L1).
    pub compute: TileSpec,
    /// A memory tile (L2).
    pub memory: TileSpec,
    /// A shim tile, which connects the array to DRAM.
    pub shim: ShimSpec,
    /// The stream switches.
    pub stream: StreamSpec,
    /// The accumulator link between neighbouring cores.
    pub cascade: CascadeSpec,
    /// The processor of a compute tile.
    pub core_unit: CoreSpec,
    /// The cost of a transfer in addition to its words.
    pub dma: DmaTimes,
    /// The memory behind the shims.
    pub dram: DramSpec,
    /// The command processor and the host's driver.
    pub control: ControlSpec,
    /// Frequencies.
    pub clock: ClockSpec,
    /// The energy estimate.
    pub power: PowerSpec,
    /// The host machine.
    pub host: HostSpec,
    /// All figures, sorted by path.
    #[serde(skip)]
    pub figures: Vec<Figure>,
}

/// The grid of tiles. Row 0 contains the shims, followed by the memory rows and
/// the compute rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySpec {
    /// Columns.
    pub columns: u32,
    /// Rows of compute tiles.
    pub compute_rows: u32,
    /// Rows of memory tiles.
    pub memory_rows: u32,
    /// Columns, from the west, whose shim has a DMA.
    pub shim_columns: u32,
}

/// A tile with memory of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileSpec {
    /// Bytes of data memory.
    pub bytes: u32,
    /// Bytes of the data memory that are reserved for the stack.
    pub reserved: u32,
    /// Bytes of program memory; 0 for a tile without a core.
    #[serde(default)]
    pub program_bytes: u32,
    /// Banks of equal size, accessed independently.
    pub banks: u32,
    /// The number of channels, from 0, that also reach the memory and the locks
    /// of the east and west neighbour of a memory tile.
    #[serde(default)]
    pub neighbour_channels: u32,
    /// Its transfer engine.
    pub dma: DmaSpec,
}

impl TileSpec {
    /// Bytes of one bank.
    pub fn bank_bytes(&self) -> u32 {
        self.bytes / self.banks
    }
}

/// A shim tile: a transfer engine and no memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShimSpec {
    /// The largest DRAM buffer that its descriptors address, in bytes.
    pub max_argument_bytes: u64,
    /// Its transfer engine.
    pub dma: DmaSpec,
}

/// The transfer engine of a tile and the limits of its descriptors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaSpec {
    /// Channels from the stream into memory (S2MM).
    pub channels_in: u32,
    /// Channels from memory into the stream (MM2S).
    pub channels_out: u32,
    /// Buffer descriptors of the tile.
    pub descriptors: u32,
    /// Dimensions that a descriptor steps through.
    pub dimensions: u32,
    /// The longest transfer of a descriptor, in words of 4 bytes.
    pub max_words: u64,
    /// The largest step of a dimension, in words of 4 bytes.
    pub max_stride_words: u64,
    /// The largest size of a dimension. The outermost of `dimensions` has no such limit,
    /// and neither has a transfer that is one contiguous run.
    pub max_wrap: u32,
    /// The largest size of the dimension that advances from one run of a descriptor to
    /// the next.
    pub max_iterations: u32,
    /// Locks of the tile.
    pub locks: u32,
    /// The largest value of a lock.
    pub max_lock: u32,
    /// Tasks that wait in the queue of a channel.
    pub queue: u32,
    /// The maximum number of repeats of a task.
    pub max_repeat: u32,
}

/// The stream switches.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Bytes that a stream moves in a cycle.
    pub bytes_per_cycle: u32,
    /// Cycles from one switch to the next.
    pub hop_cycles: u32,
    /// Streams from a switch to the north.
    pub ports_north: u32,
    /// Streams from a switch to the south.
    pub ports_south: u32,
    /// Streams from a switch to the east.
    pub ports_east: u32,
    /// Streams from a switch to the west.
    pub ports_west: u32,
    /// The smallest unit of a transfer, in bytes.
    pub granule_bytes: u32,
}

/// The accumulator link between neighbouring cores.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CascadeSpec {
    /// Bytes that it moves in a cycle.
    pub bytes_per_cycle: u32,
    /// Cycles until the first byte arrives.
    pub latency_cycles: u32,
}

/// The processor of a compute tile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSpec {
    /// Bytes of a vector load.
    pub load_bytes: u32,
    /// Vector loads in a cycle.
    pub loads: u32,
    /// Bytes of a vector store.
    pub store_bytes: u32,
    /// Vector stores in a cycle.
    pub stores: u32,
    /// Extra cycles of a pair of loads that conflict over a bank.
    pub conflict_cycles: u32,
    /// Cycles of an acquire that succeeds, or of a release.
    pub lock_cycles: u32,
    /// Cycles that an iteration of a program's loop adds.
    pub loop_cycles: u32,
    /// Bytes of a program in addition to its kernels.
    pub program_bytes: u32,
    /// Multiply-accumulates of bf16 per cycle.
    pub bf16_macs: u32,
    /// Rows, depth and columns of a matrix instruction on bf16.
    pub bf16_shape: [u32; 3],
    /// Multiply-accumulates of bfp16ebs8 per cycle; 0 if not supported.
    pub bfp16_macs: u32,
    /// Rows, depth and columns of a matrix instruction on bfp16ebs8.
    pub bfp16_shape: [u32; 3],
    /// Multiply-accumulates of int8 per cycle.
    pub int8_macs: u32,
    /// Rows, depth and columns of a matrix instruction on int8.
    pub int8_shape: [u32; 3],
}

/// The cost of a transfer in addition to its words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaTimes {
    /// Cycles before the first word when the channel was idle.
    pub start_cycles: u32,
    /// Cycles from one descriptor of a chain to the next.
    pub switch_cycles: u32,
}

/// The memory behind the shims: one server for all reads and writes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DramSpec {
    /// The bandwidth for long runs.
    pub bytes_per_second: f64,
    /// The largest bandwidth that somebody measured, both directions together.
    pub measured_bytes_per_second: f64,
    /// A run of `r` contiguous bytes is served at `r / (r + run_bytes)` of that
    /// bandwidth.
    pub run_bytes: f64,
    /// Cycles before the first word of a read when the channel was idle.
    pub read_cycles: u32,
    /// Cycles before the first word of a write when the channel was idle.
    pub write_cycles: u32,
}

impl DramSpec {
    /// The share of the bandwidth that runs of `run` bytes achieve.
    pub fn efficiency(&self, run: f64) -> f64 {
        run / (run + self.run_bytes)
    }
}

/// The command processor and the driver.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlSpec {
    /// The time from the call on the host to its return, for an empty program.
    pub dispatch_us: f64,
    /// A write of one register.
    pub write_ns: f64,
    /// A write of the 8 words of a descriptor.
    pub block_write_ns: f64,
    /// The time from the end of a task until the command processor notices it.
    pub poll_ns: f64,
    /// Configuring the registers of one tile for another launch.
    pub configure_tile_us: f64,
    /// Loading a byte of a core's program.
    pub configure_byte_ns: f64,
    /// The fixed part of configuring the array for another launch.
    pub configure_us: f64,
    /// A switch to another hardware context.
    pub context_switch_us: f64,
    /// A dispatch within a long list of commands.
    pub runlist_us: f64,
    /// The first dispatch after the array has been asleep.
    pub wake_us: f64,
}

/// Frequencies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockSpec {
    /// Cycles of the array in a second.
    pub hertz: f64,
    /// The clock levels of the driver.
    pub levels_mhz: Vec<u32>,
}

/// The energy estimate of the NPU's rail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Watts while the array works.
    pub static_watts: f64,
    /// Joules of a layer in a step.
    pub joules_per_layer: f64,
}

/// The host machine, for the work that is not done on the array.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Floating-point operations per second.
    pub flops: f64,
    /// Bytes that it reads or writes per second.
    pub bytes_per_second: f64,
    /// Bytes that it syncs to or from the array per second.
    pub sync_bytes_per_second: f64,
    /// A call into the driver.
    pub call_us: f64,
    /// The part of a dispatch from the array's interrupt until the host's
    /// thread runs.
    pub interrupt_us: f64,
    /// The interval between two polls of a completion word.
    pub poll_us: f64,
}

impl Target {
    /// Finds a target by name; `name@variant` selects a variant.
    ///
    /// # Errors
    /// When no target file or variant has that name.
    pub fn named(name: &str) -> Result<Target> {
        let (base, variant) = match name.split_once('@') {
            Some((base, variant)) => (base, Some(variant)),
            None => (name, None),
        };
        let text = file(base)?;
        Target::parse(text, variant).map_err(|error| error.of(format!("target {}", quote(name))))
    }

    /// The names of all targets, variants included: the list of help, errors and
    /// documents.
    pub fn names() -> Vec<String> {
        let mut names = Vec::new();
        for (name, text) in TARGET_FILES {
            names.push((*name).to_owned());
            let table: Table = text.parse().expect("a test parses every target file");
            let variants = table.get("variant").and_then(Value::as_table);
            names.extend(variants.into_iter().flat_map(Table::keys).map(|key| format!("{name}@{key}")));
        }
        names
    }

    /// Parses a target file, which may extend a file of the repository.
    ///
    /// # Errors
    /// When it is too long or not valid TOML; when a key is unknown or missing;
    /// when a number has no source and grade, or is out of range.
    pub fn parse(text: &str, variant: Option<&str>) -> Result<Target> {
        let mut table = read(text, 0)?;
        let variants = match table.remove("variant") {
            Some(Value::Table(variants)) => variants,
            Some(_) => return Err(Error::new("variant is not a table: write [variant.NAME]")),
            None => Table::new(),
        };
        if let Some(name) = variant {
            let Some(Value::Table(changes)) = variants.get(name) else {
                let known: Vec<&str> = variants.keys().map(String::as_str).collect();
                return Err(Error::new(format!("no variant {}: known are {known:?}", quote(name))));
            };
            merge(&mut table, changes.clone());
            if let Some(Value::String(base)) = table.get_mut("name") {
                base.push('@');
                base.push_str(name);
            }
        }
        let figures = take_figures(&mut table, &["name", "title", "core"])?;
        let mut target: Target =
            table.try_into().map_err(|error: toml::de::Error| Error::new(error.message().to_owned()))?;
        target.figures = figures;
        target.check()?;
        Ok(target)
    }

    /// The same target with at most the DRAM bandwidth that somebody measured. The bandwidth of a
    /// target may exceed it, because it is fitted to the times of kernels.
    pub fn with_measured_dram(mut self) -> Target {
        self.dram.bytes_per_second = self.dram.bytes_per_second.min(self.dram.measured_bytes_per_second);
        self
    }

    /// Converts seconds to cycles of the array, rounded up.
    pub fn cycles(&self, seconds: f64) -> u64 {
        (seconds * self.clock.hertz).ceil() as u64
    }

    /// Converts cycles of the array to seconds.
    pub fn seconds(&self, cycles: u64) -> f64 {
        cycles as f64 / self.clock.hertz
    }

    /// The DRAM bandwidth for long runs, in bytes per cycle.
    pub fn dram_bytes_per_cycle(&self) -> f64 {
        self.dram.bytes_per_second / self.clock.hertz
    }

    /// The number of compute tiles.
    pub fn cores(&self) -> u32 {
        self.array.columns * self.array.compute_rows
    }

    fn check(&self) -> Result<()> {
        let counts = [
            ("array.columns", self.array.columns, 64),
            ("array.compute_rows", self.array.compute_rows, 16),
            ("array.memory_rows", self.array.memory_rows, 1),
            ("array.shim_columns", self.array.shim_columns, self.array.columns),
            ("compute.bytes", self.compute.bytes, 16 << 20),
            ("compute.banks", self.compute.banks, 64),
            ("memory.bytes", self.memory.bytes, 64 << 20),
            ("memory.banks", self.memory.banks, 64),
            ("stream.bytes_per_cycle", self.stream.bytes_per_cycle, 1024),
            ("cascade.bytes_per_cycle", self.cascade.bytes_per_cycle, 1024),
        ];
        for (path, count, max) in counts {
            if count == 0 || count > max {
                return Err(Error::new(format!("{path} is {count}: it must lie in 1..={max}")));
            }
        }
        if self.stream.granule_bytes != 4 {
            let found = self.stream.granule_bytes;
            return Err(Error::new(format!(
                "stream.granule_bytes is {found}: transfers count words of 4 bytes"
            )));
        }
        for (name, dma) in
            [("compute", &self.compute.dma), ("memory", &self.memory.dma), ("shim", &self.shim.dma)]
        {
            dma.check(name)?;
        }
        self.check_rates()
    }

    fn check_rates(&self) -> Result<()> {
        let rates = [
            ("dram.bytes_per_second", self.dram.bytes_per_second),
            ("dram.measured_bytes_per_second", self.dram.measured_bytes_per_second),
            ("clock.hertz", self.clock.hertz),
            ("host.flops", self.host.flops),
            ("host.bytes_per_second", self.host.bytes_per_second),
            ("host.sync_bytes_per_second", self.host.sync_bytes_per_second),
        ];
        for (path, rate) in rates {
            if !(1e3..=1e15).contains(&rate) {
                return Err(Error::new(format!("{path} is {rate}: it must lie in 1e3..=1e15")));
            }
        }
        let times = [
            ("dram.run_bytes", self.dram.run_bytes),
            ("control.dispatch_us", self.control.dispatch_us),
            ("control.write_ns", self.control.write_ns),
            ("control.block_write_ns", self.control.block_write_ns),
            ("control.poll_ns", self.control.poll_ns),
            ("control.configure_tile_us", self.control.configure_tile_us),
            ("control.configure_byte_ns", self.control.configure_byte_ns),
            ("control.configure_us", self.control.configure_us),
            ("control.context_switch_us", self.control.context_switch_us),
            ("control.runlist_us", self.control.runlist_us),
            ("control.wake_us", self.control.wake_us),
            ("host.call_us", self.host.call_us),
            ("host.interrupt_us", self.host.interrupt_us),
            ("host.poll_us", self.host.poll_us),
        ];
        for (path, time) in times {
            if !(0.0..=1e9).contains(&time) {
                return Err(Error::new(format!("{path} is {time}: it must lie in 0..=1e9")));
            }
        }
        Ok(())
    }
}

impl DmaSpec {
    fn check(&self, tile: &str) -> Result<()> {
        let counts = [
            ("channels_in", self.channels_in, 16),
            ("channels_out", self.channels_out, 16),
            ("descriptors", self.descriptors, 1024),
            ("dimensions", self.dimensions, 8),
            ("locks", self.locks, 1024),
            ("max_lock", self.max_lock, 1 << 16),
            ("queue", self.queue, 64),
            ("max_repeat", self.max_repeat, 1 << 16),
            ("max_wrap", self.max_wrap, 1 << 20),
            ("max_iterations", self.max_iterations, 1 << 16),
        ];
        for (name, count, max) in counts {
            if count == 0 || count > max {
                return Err(Error::new(format!("{tile}.dma.{name} is {count}: it must lie in 1..={max}")));
            }
        }
        for (name, words) in [("max_words", self.max_words), ("max_stride_words", self.max_stride_words)] {
            if words == 0 {
                return Err(Error::new(format!("{tile}.dma.{name} is 0: it must be at least 1")));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Target {
    /// Prints all figures, one per line, with grade and source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}, cores {}", self.name, self.title, self.core)?;
        print(f, &self.figures)
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Grade::Measured => "measured",
            Grade::Documented => "documented",
            Grade::Derived => "derived",
            Grade::Guessed => "guessed",
        })
    }
}

/// Prints figures in aligned columns.
pub(crate) fn print(f: &mut fmt::Formatter<'_>, figures: &[Figure]) -> fmt::Result {
    let widest = |of: fn(&Figure) -> usize| figures.iter().map(of).max().unwrap_or(0);
    let (path, value) = (widest(|figure| figure.path.len()), widest(|figure| figure.value.len()));
    for Figure { path: name, value: number, grade, source } in figures {
        writeln!(f, "{name:path$}  {number:>value$}  {grade:10}  {source}")?;
    }
    Ok(())
}

fn file(name: &str) -> Result<&'static str> {
    let found = TARGET_FILES.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let known = Target::names().join(", ");
        Error::with_kind(
            ErrorKind::NotFound,
            format!("no NPU target is called {}: known are {known}", quote(name)),
        )
    })
}

/// Parses a file and merges it over the one that it extends.
fn read(text: &str, depth: usize) -> Result<Table> {
    if text.len() > MAX_FILE_BYTES {
        return Err(Error::new(format!("the file has {} bytes; the limit is {MAX_FILE_BYTES}", text.len())));
    }
    let mut table: Table =
        text.parse().map_err(|error: toml::de::Error| Error::new(error.message().to_owned()))?;
    match table.remove("extends") {
        None => Ok(table),
        Some(_) if depth == MAX_EXTENDS => {
            Err(Error::new(format!("more than {MAX_EXTENDS} files extend one another")))
        }
        Some(Value::String(base)) => {
            let mut under = read(file(&base)?, depth + 1)?;
            under.remove("variant");
            merge(&mut under, table);
            Ok(under)
        }
        Some(_) => Err(Error::new("extends is not the name of a target")),
    }
}

/// Merges `over` into `under`; a figure replaces a figure as a whole.
fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) if !above.contains_key("value") => {
                merge(below, above);
            }
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// Replaces each `{ value, grade, source }` by its value and collects the
/// figures. Other numbers are refused; the keys in `names` may stand at the top
/// without a source.
pub(crate) fn take_figures(table: &mut Table, names: &[&str]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (key, value) in table.iter_mut() {
        if names.contains(&key.as_str()) {
            continue;
        }
        take_figure(key, value, &mut figures)?;
    }
    figures.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(figures)
}

/// The recursion is bounded by the depth limit of the TOML parser.
pub(crate) fn take_figure(path: &str, value: &mut Value, figures: &mut Vec<Figure>) -> Result<()> {
    let Value::Table(table) = value else {
        return Err(Error::new(format!(
            "{path} has no source: write {{ value = …, grade = …, source = … }}"
        )));
    };
    if !table.contains_key("value") {
        for (key, value) in table.iter_mut() {
            take_figure(&format!("{path}.{key}"), value, figures)?;
        }
        return Ok(());
    }
    let table = std::mem::take(table);
    let read: FigureText =
        table.try_into().map_err(|error: toml::de::Error| Error::new(error.message().to_owned()).of(path))?;
    if read.source.trim().is_empty() {
        return Err(Error::new(format!(
            "{path} has an empty source: name the source, or the reason for the guess"
        )));
    }
    let shown = read.value.to_string();
    figures.push(Figure { path: path.to_owned(), value: shown, grade: read.grade, source: read.source });
    *value = read.value;
    Ok(())
}

/// A figure as written in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureText {
    value: Value,
    grade: Grade,
    source: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_and_variant_parses_and_every_figure_has_a_source() {
        assert!(Target::names().contains(&"xdna2-kraken@cap-2025".to_owned()));
        for name in Target::names() {
            let target = Target::named(&name).unwrap();
            assert_eq!(target.name, name);
            assert!(target.figures.len() > 80, "{name}");
            assert!(target.figures.iter().all(|figure| !figure.source.is_empty()));
            assert!(target.to_string().lines().count() == target.figures.len() + 1);
        }
    }

    #[test]
    fn a_variant_changes_only_the_figures_it_names() {
        let plain = Target::named("xdna2-kraken").unwrap();
        let capped = Target::named("xdna2-kraken@cap-2025").unwrap();
        assert_eq!((plain.dram.bytes_per_second, capped.dram.bytes_per_second), (82.0e9, 40.0e9));
        assert_eq!(plain.dram.run_bytes, capped.dram.run_bytes);
        let other = |target: &Target| -> Vec<Figure> {
            let mut figures = target.figures.clone();
            figures.retain(|figure| figure.path != "dram.bytes_per_second");
            figures
        };
        assert_eq!(other(&plain), other(&capped));
    }

    #[test]
    fn a_faulty_target_file_is_refused_by_name() {
        let with = |change: &str| {
            let text = format!("name = \"a\"\ntitle = \"b\"\ncore = \"aie2p\"\nextends = \"toy\"\n{change}");
            Target::parse(&text, None).map(|target| target.name).map_err(|error| error.to_string())
        };
        assert_eq!(with(""), Ok("a".to_owned()));
        let figure = |value: &str| format!("{{ value = {value}, grade = \"guessed\", source = \"test\" }}");
        for (change, part) in [
            ("[array]\ncolumns = 4".to_owned(), "array.columns has no source"),
            (format!("[array]\ncolums = {}", figure("4")), "unknown field `colums`"),
            (format!("[array]\ncolumns = {}", figure("0")), "array.columns is 0: it must lie in 1..=64"),
            (format!("[array]\ncolumns = {}", figure("-1")), "invalid value"),
            (format!("[dram]\nbytes_per_second = {}", figure("nan")), "must lie in"),
            (
                "[array]\ncolumns = { value = 1, grade = \"known\", source = \"x\" }".to_owned(),
                "unknown variant",
            ),
            (
                "[array]\ncolumns = { value = 1, grade = \"guessed\", source = \" \" }".to_owned(),
                "empty source",
            ),
            ("[array]\ncolumns = { value = 1, grade = \"guessed\" }".to_owned(), "source"),
        ] {
            let error = with(&change).unwrap_err();
            assert!(error.contains(part), "{change}: {error}");
        }
        assert!(Target::parse("extends = \"nowhere\"", None).unwrap_err().to_string().contains("nowhere"));
        assert!(Target::named("xdna3").unwrap_err().to_string().contains("known are toy"));
        assert!(Target::named("toy@fast").unwrap_err().to_string().contains("no variant"));
    }

    #[test]
    fn long_runs_use_more_of_the_bandwidth() {
        let target = Target::named("xdna2-strix").unwrap();
        assert!(target.dram.efficiency(64.0) < target.dram.efficiency(4096.0));
        assert!(target.dram.efficiency(1e9) > 0.999);
    }
}
