//! The array with its memory: buffer objects shared by host and array, and the
//! command lists of its programs.

use std::ops::Range;
use std::sync::Arc;

use girih_tensor::{Error, Result};

use super::keys::{ResidentKeys, ResidentKeysId, SlotContent, SlotSet};
use super::ledger::Ledger;
use super::list::CommandList;
use super::runtime::{Completion, Dispatch, Runtime};
use super::traffic::Follows;
use crate::form::schedule::{ArgumentRole, Schedule};
use crate::memory::{Binding, ObjectId, Objects, SimMemory};
use crate::sim::{EventOrder, SimReport, SimUnwatched, Simulator};
use crate::target::Target;

/// The array with its memory.
#[derive(Debug)]
pub struct Device {
    simulator: Simulator,
    objects: Objects,
    /// The bytes of each object that are not synced.
    hidden: Vec<Unsynced>,
    /// Objects for values that live within a step; all programs share them,
    /// because only one runs at a time.
    arena: Vec<ObjectId>,
    resident_keys: Vec<ResidentKeys>,
    lists: Vec<CommandList>,
    runtime: Runtime,
    order: EventOrder,
    /// The costs counted so far.
    pub ledger: Ledger,
}

/// The direction of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The array sees what the host wrote.
    ToDevice,
    /// The host sees what the array wrote.
    FromDevice,
}

/// Index of a command list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListId(u32);

/// Bytes that one side has written and the other cannot see yet.
#[derive(Debug, Default)]
struct Unsynced {
    from_array: Ranges,
    from_host: Ranges,
}

/// Bytes of an object, as sorted ranges that do not touch.
#[derive(Debug, Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        self.0.retain(|known| {
            let apart = known.end < start || known.start > end;
            if !apart {
                (start, end) = (start.min(known.start), end.max(known.end));
            }
            apart
        });
        let at = self.0.partition_point(|known| known.start < start);
        self.0.insert(at, start..end);
    }

    fn remove(&mut self, range: &Range<u64>) {
        let split = |known: Range<u64>| {
            let before = known.start..known.end.min(range.start);
            let after = known.start.max(range.end)..known.end;
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(split).collect();
    }

    fn meet(&self, range: &Range<u64>) -> bool {
        self.0.iter().any(|known| known.start < range.end && range.start < known.end)
    }
}

impl Device {
    /// Creates a simulated array of this target, without memory.
    ///
    /// # Errors
    /// When no kernel times are known for its cores.
    pub fn new(target: &Target, order: EventOrder) -> Result<Device> {
        Ok(Device {
            simulator: Simulator::new(target)?,
            objects: Objects::new(),
            hidden: Vec::new(),
            arena: Vec::new(),
            resident_keys: Vec::new(),
            lists: Vec::new(),
            runtime: Runtime::default(),
            order,
            ledger: Ledger::default(),
        })
    }

    /// Sets how the runtime uses the array.
    #[must_use]
    pub fn with_runtime(self, runtime: Runtime) -> Device {
        Device { runtime, ..self }
    }

    /// How the runtime uses the array.
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// The target.
    pub fn target(&self) -> &Target {
        self.simulator.target()
    }

    /// Sets whether runs check for unordered accesses.
    pub fn look_for_hazards(&mut self, look: bool) {
        self.simulator.look_for_hazards(look);
    }

    /// Allocates a zeroed buffer object.
    ///
    /// # Errors
    /// When memory is short.
    pub fn allocate(&mut self, bytes: u64) -> Result<ObjectId> {
        let object = self.objects.add(bytes)?;
        self.hidden.push(Unsynced::default());
        Ok(object)
    }

    /// Returns an object for each of these sizes from the arena that all
    /// programs share; their contents last until the end of a step.
    ///
    /// # Errors
    /// When memory is short.
    pub(super) fn arena(&mut self, sizes: &[u64]) -> Result<Vec<ObjectId>> {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(sizes[index]));
        let mut objects = vec![ObjectId(0); sizes.len()];
        for (rank, &index) in order.iter().enumerate() {
            objects[index] = match self.arena.get(rank) {
                Some(&object) => {
                    self.objects.grow(object, sizes[index])?;
                    object
                }
                None => {
                    let object = self.allocate(sizes[index])?;
                    self.arena.push(object);
                    object
                }
            };
        }
        Ok(objects)
    }

    /// Returns the resident keys and values of this name, with at least `sets` sets of at least
    /// `slots` slots of these bytes. All programs share them.
    ///
    /// # Errors
    /// When memory is short.
    pub(super) fn reserve_keys(
        &mut self,
        name: &str,
        slot_bytes: u64,
        slots: usize,
        sets: usize,
    ) -> Result<ResidentKeysId> {
        let known = self.resident_keys.iter().position(|resident_keys| resident_keys.name == name);
        let index = known.unwrap_or_else(|| {
            self.resident_keys.push(ResidentKeys { name: name.to_owned(), sets: Vec::new() });
            self.resident_keys.len() - 1
        });
        let held = &self.resident_keys[index].sets;
        let slots = held.first().map_or(slots, |set| set.slots.len().max(slots));
        let (held, bytes) = (held.len(), slot_bytes * slots as u64);
        for set in &mut self.resident_keys[index].sets {
            self.objects.grow(set.object, bytes)?;
            set.slots.resize(slots, SlotContent::default());
        }
        for _ in held..sets {
            let object = self.allocate(bytes)?;
            let slots = vec![SlotContent::default(); slots];
            self.resident_keys[index].sets.push(SlotSet { object, slots, used: 0 });
        }
        Ok(ResidentKeysId(index as u32))
    }

    /// The sets of slots of resident keys and values.
    pub(super) fn slot_sets(&self, id: ResidentKeysId) -> &[SlotSet] {
        &self.resident_keys[id.0 as usize].sets
    }

    /// Records that a step uses these sets.
    pub(super) fn use_sets(&mut self, id: ResidentKeysId, sets: &[usize]) {
        let all = &mut self.resident_keys[id.0 as usize].sets;
        let now = all.iter().map(|set| set.used).max().unwrap_or(0) + 1;
        sets.iter().for_each(|&set| all[set].used = now);
    }

    /// Records the contents of a slot.
    pub(super) fn set_content(
        &mut self,
        id: ResidentKeysId,
        (set, slot): (usize, usize),
        content: SlotContent,
    ) {
        self.resident_keys[id.0 as usize].sets[set].slots[slot] = content;
    }

    /// Maps bytes of a buffer object for reading by the host.
    ///
    /// # Errors
    /// When the array has written some of them since the last sync.
    pub fn map(&self, object: ObjectId, range: Range<u64>) -> Result<&[u8]> {
        if self.hidden[object.0 as usize].from_array.meet(&range) {
            return Err(Error::new(format!(
                "the host reads bytes {range:?} of buffer object {}, which the array wrote and which were not synced",
                object.0
            )));
        }
        Ok(&self.objects.bytes(object)[range.start as usize..range.end as usize])
    }

    /// Maps bytes of a buffer object for writing; the host must write all of
    /// them. The array sees them after a sync.
    pub fn map_mut(&mut self, object: ObjectId, range: Range<u64>) -> &mut [u8] {
        let hidden = &mut self.hidden[object.0 as usize];
        hidden.from_array.remove(&range);
        let bytes = &mut self.objects.bytes_mut(object)[range.start as usize..range.end as usize];
        hidden.from_host.add(range);
        bytes
    }

    /// The bytes of a buffer object, synced or not, for watching.
    pub(super) fn peek(&self, object: ObjectId) -> &[u8] {
        self.objects.bytes(object)
    }

    /// Makes bytes visible to the other side and counts them. An empty range
    /// does nothing.
    pub fn sync(&mut self, object: ObjectId, range: Range<u64>, sync: Sync) {
        if range.is_empty() {
            return;
        }
        let (hidden, bytes) = (&mut self.hidden[object.0 as usize], range.end - range.start);
        match sync {
            Sync::ToDevice => {
                hidden.from_host.remove(&range);
                self.ledger.sync_up(bytes);
            }
            Sync::FromDevice => {
                hidden.from_array.remove(&range);
                self.ledger.sync_down(bytes);
            }
        }
    }

    /// Makes a whole object visible to the array after a model was loaded.
    pub(super) fn preload(&mut self, object: ObjectId) {
        self.hidden[object.0 as usize].from_host = Ranges::default();
        self.ledger.preloaded_bytes += self.objects.bytes(object).len() as u64;
    }

    /// The total size of all buffer objects in bytes.
    pub fn bytes(&self) -> u64 {
        self.objects.total()
    }

    /// Returns the command list of a program; a schedule has one list.
    ///
    /// # Errors
    /// When the schedule cannot run on this array.
    pub fn list(&mut self, schedule: &Arc<Schedule>) -> Result<ListId> {
        let known = self.lists.iter().position(|list| Arc::ptr_eq(&list.schedule, schedule));
        let index = match known {
            Some(index) => index,
            None => {
                self.lists.push(CommandList::new(schedule, &self.simulator)?);
                self.lists.len() - 1
            }
        };
        Ok(ListId(index as u32))
    }

    /// Runs a program on these bindings. If programs are chained, the driver
    /// call of the previous program also starts one that follows it.
    ///
    /// # Errors
    /// When an argument has unsynced bytes, or when the simulator finds a
    /// fault.
    pub(super) fn submit(&mut self, list: ListId, bindings: &[Binding], follows: Follows) -> Result<()> {
        let list = &mut self.lists[list.0 as usize];
        let schedule = &list.schedule;
        if bindings.len() != schedule.arguments.len() {
            let (have, need) = (bindings.len(), schedule.arguments.len());
            return Err(Error::new(format!("{}: {have} bindings; {need} are needed", schedule.name)));
        }
        for (argument, binding) in schedule.arguments.iter().zip(bindings) {
            let range = binding.offset..binding.offset + argument.bytes;
            let hidden = &mut self.hidden[binding.object.0 as usize];
            if hidden.from_host.meet(&range) {
                let (program, name) = (&schedule.name, &argument.name);
                return Err(Error::new(format!(
                    "{program}: the host wrote argument '{name}' and did not sync it to the array"
                )));
            }
            if matches!(
                argument.role,
                ArgumentRole::Output | ArgumentRole::Intermediate | ArgumentRole::State
            ) {
                hidden.from_array.add(range);
            }
        }
        self.ledger.list_words += list.words.bind(bindings, self.runtime.lists);
        let mut memory = SimMemory::Values(&mut self.objects);
        let prepared = &list.prepared;
        let report =
            self.simulator.run_prepared(prepared, bindings, &mut memory, &mut SimUnwatched, self.order);
        let report = report.map_err(|fault| Error::from(fault).of(&schedule.name))?;
        self.ledger.submit(&report, self.simulator.target(), self.runtime, follows);
        Ok(())
    }
}

impl Ledger {
    pub(super) fn sync_up(&mut self, bytes: u64) {
        self.written_bytes += bytes;
        self.syncs += 1;
    }

    pub(super) fn sync_down(&mut self, bytes: u64) {
        self.read_bytes += bytes;
        self.syncs += 1;
    }

    /// Counts a run of a program. In a chain, the command processor dispatches
    /// the following programs, and the host waits once for the whole chain. Commands of
    /// programs that stay configured are one list: nothing is dispatched between them.
    pub(super) fn submit(&mut self, report: &SimReport, target: &Target, runtime: Runtime, follows: Follows) {
        let micro = |time: f64| target.cycles(time * 1e-6);
        let follows = if runtime.dispatch == Dispatch::Chained { follows } else { Follows::Host };
        let dispatch = match follows {
            Follows::Host => report.dispatch,
            Follows::Program => report.dispatch.min(micro(target.control.runlist_us)),
            Follows::Resident => 0,
        };
        let mut cycles = report.cycles - report.dispatch + dispatch;
        self.calls += u64::from(follows == Follows::Host);
        self.submissions += u64::from(follows != Follows::Resident);
        if runtime.completion == Completion::Polling {
            if follows == Follows::Host {
                // On average, the host notices the end half a polling interval
                // late.
                cycles = cycles.saturating_sub(micro(target.host.interrupt_us));
                cycles += micro(target.host.poll_us / 2.0);
            }
            self.polled_cycles += cycles;
        }
        self.launches += report.launches.len() as u64;
        self.array_cycles += cycles;
        self.configure_cycles += report.configure;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_merged_and_split() {
        let mut ranges = Ranges::default();
        for range in [10..20, 30..40, 18..32, 50..60] {
            ranges.add(range);
        }
        assert_eq!(ranges.0, [10..40, 50..60]);
        ranges.remove(&(15..25));
        assert_eq!(ranges.0, [10..15, 25..40, 50..60]);
        ranges.remove(&(0..26));
        assert_eq!(ranges.0, [26..40, 50..60]);
        assert!(ranges.meet(&(39..50)) && !ranges.meet(&(40..50)));
    }

    #[test]
    fn unsynced_bytes_cannot_be_read() {
        let target = Target::named("toy").unwrap();
        let mut device = Device::new(&target, EventOrder::Earliest).unwrap();
        let object = device.allocate(64).unwrap();
        device.hidden[0].from_array.add(8..16);
        assert!(device.map(object, 0..8).is_ok());
        let error = device.map(object, 4..12).unwrap_err().to_string();
        assert!(error.contains("not synced"), "{error}");
        device.sync(object, 8..16, Sync::FromDevice);
        assert_eq!(device.map(object, 4..12).unwrap(), [0; 8]);
        device.map_mut(object, 0..4).fill(1);
        assert!(device.hidden[0].from_host.meet(&(0..1)));
        device.sync(object, 0..4, Sync::ToDevice);
        assert!(!device.hidden[0].from_host.meet(&(0..64)));
        let Ledger { written_bytes, read_bytes, syncs, .. } = device.ledger;
        assert_eq!((written_bytes, read_bytes, syncs), (4, 8, 2));
    }

    #[test]
    fn programs_share_the_arena() {
        let target = Target::named("toy").unwrap();
        let mut device = Device::new(&target, EventOrder::Earliest).unwrap();
        let small = device.arena(&[64, 256]).unwrap();
        let large = device.arena(&[128, 64, 512]).unwrap();
        assert_eq!(device.bytes(), 512 + 128 + 64);
        assert_eq!([small[1], small[0]], [large[2], large[0]]);
    }
}
