//! What steps have cost: counted by the runtime, timed by the simulator.

use std::ops::AddAssign;

use crate::host::HostWork;
use crate::target::Target;

/// Counts over some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Programs submitted.
    pub submissions: u64,
    /// Calls of the driver that started them; one may start several.
    pub calls: u64,
    /// Launches in them.
    pub launches: u64,
    /// Cycles from each dispatch to its end, added up.
    pub array_cycles: u64,
    /// Of these, configuring the array.
    pub configure_cycles: u64,
    /// Of the array's cycles, those in which the host did nothing but look
    /// whether they are over.
    pub polled_cycles: u64,
    /// Words of command lists that were written.
    pub list_words: u64,
    /// Bytes that the host wrote for the array, in weights, when they were loaded.
    pub preloaded_bytes: u64,
    /// Bytes that the host wrote for the array, in steps.
    pub written_bytes: u64,
    /// Bytes that the host read of what the array wrote.
    pub read_bytes: u64,
    /// Calls that made bytes visible to the other side, in steps.
    pub syncs: u64,
    /// Bytes that the host copied between memory of its own and buffer
    /// objects, when weights were loaded.
    pub load_copied_bytes: u64,
    /// The same in steps.
    pub copied_bytes: u64,
    /// What the host computed.
    pub host: HostWork,
}

impl Ledger {
    /// Adds a piece of the host's work.
    pub(super) fn add(&mut self, work: HostWork) {
        self.host.flops += work.flops;
        self.host.bytes += work.bytes;
    }

    /// Seconds that the array took.
    pub fn array_seconds(&self, target: &Target) -> f64 {
        target.seconds(self.array_cycles)
    }

    /// Seconds that the host takes for its own work, by the figures of the
    /// target: the slower of computing and moving bytes.
    pub fn host_seconds(&self, target: &Target) -> f64 {
        let flops = self.host.flops as f64 / target.host.flops;
        let bytes = self.host.bytes as f64 / target.host.bytes_per_second;
        flops.max(bytes)
    }

    /// Seconds that making bytes visible to the other side takes.
    pub fn sync_seconds(&self, target: &Target) -> f64 {
        let bytes = (self.written_bytes + self.read_bytes) as f64 / target.host.sync_bytes_per_second;
        bytes + self.syncs as f64 * target.host.call_us * 1e-6
    }

    /// Seconds that the host takes to write command lists. Copies to buffer
    /// objects take none besides: what is published of syncs is the time of a
    /// copy and a sync together.
    pub fn copy_seconds(&self, target: &Target) -> f64 {
        (4 * self.list_words) as f64 / target.host.bytes_per_second
    }

    /// Seconds that steps take when host and array take turns.
    pub fn seconds(&self, target: &Target) -> f64 {
        self.array_seconds(target)
            + self.host_seconds(target)
            + self.sync_seconds(target)
            + self.copy_seconds(target)
    }
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Ledger) {
        let Ledger {
            submissions,
            calls,
            launches,
            array_cycles,
            configure_cycles,
            polled_cycles,
            list_words,
            preloaded_bytes,
            written_bytes,
            read_bytes,
            syncs,
            load_copied_bytes,
            copied_bytes,
            host,
        } = other;
        self.submissions += submissions;
        self.calls += calls;
        self.launches += launches;
        self.array_cycles += array_cycles;
        self.configure_cycles += configure_cycles;
        self.polled_cycles += polled_cycles;
        self.list_words += list_words;
        self.preloaded_bytes += preloaded_bytes;
        self.written_bytes += written_bytes;
        self.read_bytes += read_bytes;
        self.syncs += syncs;
        self.load_copied_bytes += load_copied_bytes;
        self.copied_bytes += copied_bytes;
        self.add(host);
    }
}
