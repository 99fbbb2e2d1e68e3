//! The cost of steps: counted by the runtime, timed by the simulator.

use std::ops::AddAssign;

use crate::host::HostCost;
use crate::target::Target;

/// The counts of some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Submitted lists of commands. Programs that stay configured and follow each other directly are one list.
    pub submissions: u64,
    /// Driver calls that started them; one call may start several.
    pub calls: u64,
    /// Launches in these programs.
    pub launches: u64,
    /// Cycles from each dispatch to its end, summed.
    pub array_cycles: u64,
    /// The part of `array_cycles` spent on configuring the array.
    pub configure_cycles: u64,
    /// The part of `array_cycles` in which the host polls for the end and does
    /// nothing else.
    pub polled_cycles: u64,
    /// Words written to command lists.
    pub list_words: u64,
    /// Bytes of weights that the host wrote for the array at load.
    pub preloaded_bytes: u64,
    /// Bytes that the host wrote for the array in steps.
    pub written_bytes: u64,
    /// Bytes written by the array that the host read.
    pub read_bytes: u64,
    /// Sync calls in steps.
    pub syncs: u64,
    /// Bytes that the host copied between its own memory and buffer objects
    /// when weights were loaded.
    pub load_copied_bytes: u64,
    /// Bytes that the host copied between its own memory and buffer objects in
    /// steps.
    pub copied_bytes: u64,
    /// The work of the host.
    pub host: HostCost,
}

impl Ledger {
    /// Adds work of the host.
    pub(super) fn add(&mut self, work: HostCost) {
        self.host.flops += work.flops;
        self.host.bytes += work.bytes;
    }

    /// The time of the array in seconds.
    pub fn array_seconds(&self, target: &Target) -> f64 {
        target.seconds(self.array_cycles)
    }

    /// The time of the host's work in seconds, by the figures of the target:
    /// the slower of computing and moving bytes.
    pub fn host_seconds(&self, target: &Target) -> f64 {
        let flops = self.host.flops as f64 / target.host.flops;
        let bytes = self.host.bytes as f64 / target.host.bytes_per_second;
        flops.max(bytes)
    }

    /// The time of syncs in seconds.
    pub fn sync_seconds(&self, target: &Target) -> f64 {
        let bytes = (self.written_bytes + self.read_bytes) as f64 / target.host.sync_bytes_per_second;
        bytes + self.syncs as f64 * target.host.call_us * 1e-6
    }

    /// The time to write command lists, in seconds. Copies to buffer objects
    /// add nothing: published sync times include the copy.
    pub fn copy_seconds(&self, target: &Target) -> f64 {
        (4 * self.list_words) as f64 / target.host.bytes_per_second
    }

    /// The time of steps in seconds; host and array do not overlap.
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
