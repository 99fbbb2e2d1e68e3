//! The bytes that a launch works on: the memory of its tiles and the buffer
//! objects behind the shims.

use std::borrow::Cow;
use std::ops::Range;

use super::fault::{FaultKind, SimFault};
use super::hazard::{Shadow, VectorClock};
use super::plan::{ChannelPlan, DescriptorPlan, LaunchPlan, PreparedSchedule};
use crate::form::schedule::{Buffer, Direction, DmaAddress, Tile, TileKind};
use crate::memory::{Binding, ObjectId, Objects, SimMemory};
use crate::target::Target;

/// All memory that a launch accesses.
#[derive(Debug)]
pub(super) struct LaunchMemory<'a> {
    /// By column and row.
    tiles: Vec<Option<TileMemory>>,
    rows: usize,
    /// The buffer objects; none if only time is simulated.
    pub objects: Option<&'a mut Objects>,
    pub bindings: Cow<'a, [Binding]>,
    pub sizes: Vec<u64>,
    /// Watched ranges of objects: those that the launch writes.
    pub watched: Vec<(ObjectId, Range<u64>, Shadow)>,
}

/// The memory of a tile, up to the end of its last buffer.
#[derive(Debug, Default)]
pub(super) struct TileMemory {
    pub bytes: Vec<u8>,
    /// Watched words in ascending order: one range per buffer, or per group of
    /// overlapping buffers.
    watched: Vec<(Range<usize>, Shadow)>,
}

/// The largest argument whose words are watched, in bytes.
const MAX_WATCHED_BYTES: u64 = 64 << 20;

impl<'a> LaunchMemory<'a> {
    /// Binds the arguments of a launch; if only time is simulated, each to an object of its own
    /// without bytes.
    pub fn new(
        program: &PreparedSchedule,
        plan: &LaunchPlan,
        bindings: &'a [Binding],
        memory: &'a mut SimMemory<'_>,
        target: &Target,
    ) -> Result<LaunchMemory<'a>, SimFault> {
        let objects = match memory {
            SimMemory::Values(objects) => Some(check_bindings(program, bindings, objects)?),
            SimMemory::TimeOnly => None,
        };
        let own = |number| Binding { object: ObjectId(number), offset: 0 };
        let bindings = match &objects {
            Some(_) => Cow::Borrowed(bindings),
            None => (0..program.arguments.len() as u32).map(own).collect(),
        };
        let rows = (1 + target.array.memory_rows + target.array.compute_rows) as usize;
        let mut tiles: Vec<Option<TileMemory>> = Vec::new();
        tiles.resize_with(target.array.columns as usize * rows, || None);
        for buffer in &plan.buffers {
            let local = tiles[tile_index(buffer.tile, rows)].get_or_insert_with(TileMemory::default);
            if objects.is_some() {
                local.reach(buffer.address as usize + buffer.bytes as usize);
            }
        }
        let sizes = program.arguments.iter().map(|argument| argument.bytes).collect();
        Ok(LaunchMemory { tiles, rows, objects, bindings, sizes, watched: Vec::new() })
    }

    /// Starts to record accesses, to find unordered ones.
    pub fn look_for_hazards(
        &mut self,
        program: &PreparedSchedule,
        plan: &LaunchPlan,
        before: &VectorClock,
        nobody: usize,
    ) {
        for tile in self.tiles.iter_mut().flatten() {
            tile.watched.clear();
        }
        let mut buffers: Vec<&Buffer> = plan.buffers.iter().collect();
        buffers.sort_by_key(|buffer| (buffer.tile, buffer.address));
        for buffer in buffers {
            let (first, end) = (buffer.address as usize, buffer.address as usize + buffer.bytes as usize);
            self.local(buffer.tile).watch(first / 4..end.div_ceil(4));
        }
        for (number, (argument, binding)) in (0..).zip(program.arguments.iter().zip(self.bindings.iter())) {
            let written = plan.writes(number);
            let range = binding.offset..binding.offset + argument.bytes.div_ceil(4) * 4;
            let apart = |(object, other, _): &(ObjectId, Range<u64>, Shadow)| {
                *object != binding.object || other.end <= range.start || range.end <= other.start
            };
            if written && argument.bytes <= MAX_WATCHED_BYTES && self.watched.iter().all(apart) {
                let words = (argument.bytes.div_ceil(4)) as usize;
                let mut shadow = Shadow::new(words);
                shadow.written(0..words, before, nobody);
                self.watched.push((binding.object, range, shadow));
            }
        }
    }

    /// The memory of a tile that has buffers.
    pub fn local(&mut self, tile: Tile) -> &mut TileMemory {
        let at = tile_index(tile, self.rows);
        self.tiles[at].as_mut().expect("every accessed tile has a buffer")
    }
}

/// Checks that each argument lies in its object, and returns the objects.
fn check_bindings<'a>(
    program: &PreparedSchedule,
    bindings: &[Binding],
    objects: &'a mut Objects,
) -> Result<&'a mut Objects, SimFault> {
    let unbound = |text: String| SimFault {
        kind: FaultKind::Malformed,
        cycle: 0,
        sentence: format!("{}: {text}", program.name),
    };
    if bindings.len() != program.arguments.len() {
        let (has, needs) = (bindings.len(), program.arguments.len());
        return Err(unbound(format!("{has} arguments bound, {needs} needed")));
    }
    for (argument, binding) in program.arguments.iter().zip(bindings) {
        let has = objects.bytes(binding.object).len() as u64;
        if !binding.offset.is_multiple_of(4)
            || binding.offset.checked_add(argument.bytes).is_none_or(|end| end > has)
        {
            let (name, bytes, offset) = (&argument.name, argument.bytes, binding.offset);
            let text = format!("argument {name}: {bytes} bytes at offset {offset} do not fit in its object");
            return Err(unbound(text));
        }
    }
    Ok(objects)
}

/// The index of a tile, by column and row.
fn tile_index(tile: Tile, rows: usize) -> usize {
    usize::from(tile.column) * rows + usize::from(tile.row)
}

impl TileMemory {
    /// Grows to `bytes` bytes; unwritten bytes are NaN.
    fn reach(&mut self, bytes: usize) {
        self.bytes.resize(bytes.max(self.bytes.len()), 0xff);
    }

    /// Watches words that begin at or after the last watched range.
    fn watch(&mut self, words: Range<usize>) {
        match self.watched.last_mut() {
            Some((last, shadow)) if words.start < last.end => {
                last.end = last.end.max(words.end);
                *shadow = Shadow::new(last.len());
            }
            _ => {
                let shadow = Shadow::new(words.len());
                self.watched.push((words, shadow));
            }
        }
    }

    /// The shadow of the range that contains word `first`, and the first word
    /// of that range.
    pub fn shadow(&mut self, first: usize) -> Option<(usize, &mut Shadow)> {
        let behind = self.watched.partition_point(|(words, _)| words.start <= first);
        let (words, shadow) = self.watched.get_mut(behind.checked_sub(1)?)?;
        Some((words.start, shadow))
    }
}

impl LaunchPlan {
    /// Whether a channel into DRAM may write this argument.
    fn writes(&self, number: u32) -> bool {
        let into = |plan: &ChannelPlan| {
            plan.channel.tile.kind() == TileKind::Shim && plan.channel.direction == Direction::S2mm
        };
        let names = |one: &DescriptorPlan| matches!(one.place, DmaAddress::Argument(argument, _) if argument == number);
        self.channels.iter().any(into) && self.descriptors.iter().any(names)
    }
}
