//! The cycles of a call: the bundles of its loops, given in
//! `targets/npu/kernels-*.toml`, and the loads that stall on a bank conflict.
//!
//! ```text
//! cycles = call + Σ over loops: cycles of an iteration · Π ⌈parameter / step⌉ + waiting loads
//! ```
//!
//! `call` is the fixed part: the entry, the prologue and the epilogue of the
//! software pipeline. The cycles of a loop are its initiation interval, or all
//! of its bundles if it is not pipelined. Two loads of one bundle from the same
//! bank take one more cycle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use girih_tensor::{Error, Result};
use serde::Deserialize;
use toml::{Table as Toml, Value};

use super::entries::ENTRIES;
use super::entry::KernelEntry;
use crate::target::{Figure, Target, print, take_figure};

/// The files of the repository, by the kind of core.
const KERNEL_TIME_FILES: &[(&str, &str)] = &[
    ("aie2p", include_str!("../../targets/kernels-aie2p.toml")),
    ("aie2", include_str!("../../targets/kernels-aie2.toml")),
];

/// The bytes of each entry in a program, by the kind of core and the entry's name.
static PROGRAM_BYTES: LazyLock<BTreeMap<(&str, &str), f64>> = LazyLock::new(|| {
    let mut sizes = BTreeMap::new();
    for (core, text) in KERNEL_TIME_FILES {
        let table: Toml = text.parse().expect("a test parses every file of kernel times");
        for entry in ENTRIES {
            let program = table.get(entry.name).and_then(|entry| entry.get("program"));
            let bytes = program.and_then(|program| program.get("value")).and_then(Value::as_float);
            sizes.extend(bytes.map(|bytes| ((*core, entry.name), bytes)));
        }
    }
    sizes
});

/// The text of the file of kernel times of a kind of core; empty if there is none.
pub(crate) fn kernel_time_file(core: &str) -> &'static str {
    KERNEL_TIME_FILES.iter().find(|(known, _)| *known == core).map_or("", |(_, text)| text)
}

/// Returns the bytes of an entry in the program of a core of this kind; none if such cores
/// do not have the entry.
pub fn program_bytes(core: &str, entry: &str) -> Option<f64> {
    PROGRAM_BYTES.get(&(core, entry)).copied()
}

/// The times of all entries on one kind of core.
#[derive(Clone, Debug)]
pub struct KernelTimes {
    core: String,
    times: Vec<Option<EntryTimes>>,
    notes: Vec<String>,
    figures: Vec<Figure>,
    conflict: f64,
    bank_bytes: u32,
}

/// The times of one entry.
#[derive(Clone, Debug)]
struct EntryTimes {
    program: f64,
    call: f64,
    loops: Vec<LoopTimes>,
}

/// One loop: the parameters it iterates over, and the cycles of an iteration.
#[derive(Clone, Debug)]
struct LoopTimes {
    name: String,
    /// The index of each parameter, and the step.
    over: Vec<(usize, u32)>,
    cycles: f64,
    /// Two operands, and the loads per iteration that read both in one bundle.
    pairs: Option<(usize, usize, f64)>,
}

/// The location of an operand in the memory of its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandExtent {
    /// Identifies the tile: equal for operands in the memory of one tile.
    pub tile: u32,
    /// The first byte.
    pub address: u32,
    /// The number of bytes.
    pub bytes: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    note: String,
    program: f64,
    call: f64,
    #[serde(default)]
    loops: BTreeMap<String, LoopText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoopText {
    over: BTreeMap<String, u32>,
    cycles: f64,
    pairs: Option<PairsText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PairsText {
    operands: [String; 2],
    loads: f64,
}

impl KernelTimes {
    /// Returns the times for the cores of a target.
    ///
    /// # Errors
    /// When there is no file for its kind of core, or when the file has an
    /// error.
    pub fn of(target: &Target) -> Result<KernelTimes> {
        let found = KERNEL_TIME_FILES.iter().find(|(core, _)| *core == target.core);
        let Some((_, text)) = found else {
            return Err(Error::new(format!("no kernel times for cores of kind {:?}", target.core)));
        };
        KernelTimes::parse(text, target).map_err(|error| error.of(format!("kernel times of {}", target.core)))
    }

    /// Parses a file of times.
    ///
    /// # Errors
    /// When an entry, a parameter or an operand is unknown, or when a time has
    /// no source or is negative.
    pub fn parse(text: &str, target: &Target) -> Result<KernelTimes> {
        let mut toml: Toml =
            text.parse().map_err(|error: toml::de::Error| Error::new(error.message().to_owned()))?;
        let mut table = KernelTimes {
            core: target.core.clone(),
            times: vec![None; ENTRIES.len()],
            notes: vec![String::new(); ENTRIES.len()],
            figures: Vec::new(),
            conflict: f64::from(target.core_unit.conflict_cycles),
            bank_bytes: target.compute.bank_bytes(),
        };
        for (name, value) in &mut toml {
            let Some(at) = ENTRIES.iter().position(|entry| entry.name == name) else {
                return Err(Error::new(format!("no kernel is called {name:?}")));
            };
            take_entry_figures(name, value, &mut table.figures)?;
            let read: EntryText =
                value.clone().try_into().map_err(|error: toml::de::Error| Error::new(error.message()))?;
            table.times[at] = Some(times(&ENTRIES[at], &read).map_err(|error| error.of(name))?);
            table.notes[at] = read.note;
        }
        table.figures.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(table)
    }

    /// Whether the times of an entry are known; `entry` is its index in
    /// [`ENTRIES`].
    pub fn knows(&self, entry: usize) -> bool {
        self.times[entry].is_some()
    }

    /// The cycles of a call with these parameters and operands.
    ///
    /// # Panics
    /// When the times of the entry are unknown.
    pub fn cycles(&self, entry: usize, params: &[u32], operands: &[OperandExtent]) -> u64 {
        let times = self.times[entry].as_ref().expect("the caller has checked that the times are known");
        let mut cycles = times.call;
        for inner in &times.loops {
            let count: f64 =
                inner.over.iter().map(|&(at, step)| f64::from(params[at].div_ceil(step))).product();
            let waits = inner.pairs.map_or(0.0, |(a, b, loads)| {
                loads * self.conflict * shared(operands[a], operands[b], self.bank_bytes)
            });
            cycles += count * (inner.cycles + waits);
        }
        cycles.ceil() as u64
    }

    /// Replaces the cycles of a loop or of the fixed part of calls: `add.vector` or `add.call`.
    ///
    /// # Errors
    /// When there is no such figure, or the cycles are not in 0..=1e9.
    pub fn set(&mut self, path: &str, cycles: f64) -> Result<()> {
        let Some((name, part)) = path.split_once('.') else {
            return Err(Error::new(format!("{path:?} does not name an entry and its figure")));
        };
        let at = ENTRIES.iter().position(|entry| entry.name == name);
        let times = at.and_then(|at| self.times[at].as_mut());
        let cell = times.and_then(|times| match part {
            "call" => Some(&mut times.call),
            part => times.loops.iter_mut().find(|inner| inner.name == part).map(|inner| &mut inner.cycles),
        });
        let cell = cell.ok_or_else(|| Error::new(format!("no figure is called {path:?}")))?;
        *cell = checked_cycles(path, cycles)?;
        Ok(())
    }

    /// The bytes of an entry in the program of a core.
    ///
    /// # Panics
    /// When the times of the entry are unknown.
    pub fn program_bytes(&self, entry: usize) -> f64 {
        self.times[entry].as_ref().expect("the caller has checked that the times are known").program
    }

    /// All figures, sorted by path.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }
}

impl fmt::Display for KernelTimes {
    /// Prints what the times of each entry were fitted to, then all figures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel times of {}", self.core)?;
        for (entry, note) in ENTRIES.iter().zip(&self.notes).filter(|(_, note)| !note.is_empty()) {
            writeln!(f, "{}: {note}", entry.name)?;
        }
        print(f, &self.figures)
    }
}

/// Takes the figures of an entry. The names and steps of its loops are not
/// figures.
fn take_entry_figures(name: &str, value: &mut Value, figures: &mut Vec<Figure>) -> Result<()> {
    let not = || Error::new(format!("{name} is not a table"));
    let table = value.as_table_mut().ok_or_else(not)?;
    for key in ["program", "call"] {
        if let Some(figure) = table.get_mut(key) {
            take_figure(&format!("{name}.{key}"), figure, figures)?;
        }
    }
    let Some(loops) = table.get_mut("loops").and_then(Value::as_table_mut) else { return Ok(()) };
    for (loop_name, inner) in loops {
        let path = format!("{name}.{loop_name}");
        match inner.as_table_mut().and_then(|inner| inner.get_mut("cycles")) {
            Some(cycles) => take_figure(&path, cycles, figures)?,
            None => return Err(Error::new(format!("{path} has no cycles"))),
        }
    }
    Ok(())
}

/// Refuses cycles, or bytes, that no call has.
fn checked_cycles(what: &str, cycles: f64) -> Result<f64> {
    let known = (0.0..=1e9).contains(&cycles);
    known.then_some(cycles).ok_or_else(|| Error::new(format!("{what} is {cycles}: it must lie in 0..=1e9")))
}

fn times(entry: &KernelEntry, text: &EntryText) -> Result<EntryTimes> {
    let time = checked_cycles;
    let operand = |name: &String| {
        let at = entry.operands.iter().position(|operand| operand.name == name);
        at.ok_or_else(|| Error::new(format!("the kernel has no operand {name:?}")))
    };
    let mut loops = Vec::new();
    for (name, inner) in &text.loops {
        let over = inner.over.iter().map(|(number, &step)| {
            let at = entry.params.iter().position(|param| param.name == number);
            match at {
                Some(at) if step > 0 => Ok((at, step)),
                Some(_) => Err(Error::new(format!("loop {name} steps by 0 through {number}"))),
                None => Err(Error::new(format!("loop {name}: the kernel has no parameter {number:?}"))),
            }
        });
        let pairs = match &inner.pairs {
            Some(PairsText { operands: [a, b], loads }) => {
                Some((operand(a)?, operand(b)?, time(name, *loads)?))
            }
            None => None,
        };
        loops.push(LoopTimes {
            name: name.clone(),
            over: over.collect::<Result<_>>()?,
            cycles: time(name, inner.cycles)?,
            pairs,
        });
    }
    Ok(EntryTimes { program: time("program", text.program)?, call: time("call", text.call)?, loops })
}

/// The probability that loads from two operands hit the same bank, if the
/// operands are read independently.
fn shared(a: OperandExtent, b: OperandExtent, bank_bytes: u32) -> f64 {
    if a.tile != b.tile || a.bytes == 0 || b.bytes == 0 {
        return 0.0;
    }
    let within = |extent: OperandExtent, bank: u32| {
        let (from, to) =
            (u64::from(bank) * u64::from(bank_bytes), (u64::from(bank) + 1) * u64::from(bank_bytes));
        let (first, end) = (u64::from(extent.address), u64::from(extent.address) + u64::from(extent.bytes));
        end.min(to).saturating_sub(first.max(from)) as f64 / f64::from(extent.bytes)
    };
    let last = a.address.saturating_add(a.bytes) / bank_bytes;
    (a.address / bank_bytes..=last).map(|bank| within(a, bank) * within(b, bank)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(address: u32, bytes: u32) -> OperandExtent {
        OperandExtent { tile: 0, address, bytes }
    }

    fn entry(name: &str) -> usize {
        ENTRIES.iter().position(|entry| entry.name == name).unwrap()
    }

    #[test]
    fn every_target_has_a_time_for_every_entry_that_its_cores_run() {
        for name in Target::names() {
            let target = Target::named(&name).unwrap();
            let table = KernelTimes::of(&target).unwrap();
            for (at, entry) in ENTRIES.iter().enumerate() {
                let expected = target.core_unit.bfp16_macs > 0 || entry.name != "gemm_bfp16";
                assert_eq!(table.knows(at), expected, "{} on {name}", entry.name);
                let bytes = expected.then(|| table.program_bytes(at));
                assert_eq!(program_bytes(&target.core, entry.name), bytes, "{} on {name}", entry.name);
            }
            assert!(table.to_string().lines().count() > table.figures().len());
        }
    }

    #[test]
    fn a_loop_takes_its_iterations_and_paired_loads_from_one_bank_wait() {
        let target = Target::named("xdna2-strix").unwrap();
        let figure = |value: &str| format!("{{ value = {value}, grade = \"guessed\", source = \"test\" }}");
        let text = format!(
            "[gemv_bf16]\nnote = \"test\"\nprogram = {}\ncall = {}\n[gemv_bf16.loops.step]\nover = {{ rows = 1, k = 64 }}\n\
             cycles = {}\npairs = {{ operands = [\"w\", \"x\"], loads = 2 }}\n",
            figure("100.0"),
            figure("10.0"),
            figure("3.0")
        );
        let table = KernelTimes::parse(&text, &target).unwrap();
        let cycles = |w: OperandExtent, x: OperandExtent| {
            table.cycles(entry("gemv_bf16"), &[4, 100], &[w, x, extent(0, 0)])
        };
        let bank = target.compute.bank_bytes();
        assert_eq!(cycles(extent(0, 64), extent(bank, 64)), 10 + 4 * 2 * 3);
        assert_eq!(cycles(extent(0, 64), extent(64, 64)), 10 + 4 * 2 * (3 + 2));
        assert_eq!(cycles(extent(0, 64), extent(bank - 32, 64)), 10 + 4 * 2 * (3 + 1), "half of it");
        assert_eq!(cycles(extent(0, 64), OperandExtent { tile: 1, ..extent(64, 64) }), 10 + 4 * 2 * 3);
    }

    #[test]
    fn a_figure_is_replaced_by_its_path() {
        let target = Target::named("xdna2-strix").unwrap();
        let mut table = KernelTimes::of(&target).unwrap();
        let cycles = |table: &KernelTimes| table.cycles(entry("add"), &[32], &[extent(0, 0); 3]);
        table.set("add.vector", 5.0).unwrap();
        table.set("add.call", 7.0).unwrap();
        assert_eq!(cycles(&table), 7 + 2 * 5);
        for (path, part) in [("add", "does not name"), ("add.row", "no figure"), ("gemx.call", "no figure")] {
            let error = table.set(path, 1.0).unwrap_err().to_string();
            assert!(error.contains(part), "{path}: {error}");
        }
        assert!(table.set("add.call", -1.0).is_err());
    }

    #[test]
    fn a_faulty_file_of_times_is_refused() {
        let target = Target::named("toy").unwrap();
        let call = "call = { value = 1.0, grade = \"guessed\", source = \"x\" }";
        for (text, part) in [
            ("[gemx]".to_owned(), "no kernel is called"),
            ("[add]\nnote = \"\"\ncall = 3.0".to_owned(), "has no source"),
            (format!("[add]\nnote = \"\"\n{call}\nloop = 1"), "unknown field"),
            (format!("[add]\nnote = \"\"\n{call}\n[add.loops.a]\nover = {{ n = 1 }}"), "has no cycles"),
        ] {
            let error = KernelTimes::parse(&text, &target).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
