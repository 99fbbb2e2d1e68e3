//! The limits of this machine, measured, and the share of them that work reaches.

use std::path::Path;

use girih_cpu::limits::{Numbers, Reading, peaks};
use girih_measure::MinimalWork;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Result;
use crate::output;

/// The bytes that are read to measure memory: more than the largest caches hold.
const MAX_READ_BYTES: u64 = 1 << 30;

/// The limits of a model's speed, for one number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineLimits {
    /// Bytes per second from memory.
    pub read: f64,
    /// The maximum of int8 operations per second, if the processor has an
    /// instruction for them.
    pub int8: Option<f64>,
    /// The maximum of bf16 operations per second, likewise.
    pub bf16: Option<f64>,
    /// The maximum of f32 operations per second.
    pub f32: f64,
}

/// One limit, with one thread and with several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredLimit {
    /// The work: `read memory (1.00 GiB)`, `vpdpbusd zmm (int8)`.
    pub what: String,
    /// The unit of the work: bytes or operations.
    pub unit: &'static str,
    /// The rate of one thread, per second.
    pub one: f64,
    /// The rate of all threads together, per second.
    pub all: f64,
}

/// Measures all limits of this machine, memory first.
///
/// # Errors
/// When memory is short.
pub fn table(threads: usize) -> Result<Vec<MeasuredLimit>> {
    let mut rows = Vec::new();
    for (level, bytes) in levels(threads) {
        let reading = Reading::new(bytes, threads)?;
        let what = format!("read {level} ({})", output::bytes(bytes as u64));
        rows.push(MeasuredLimit { what, unit: "bytes", one: reading.rate(1), all: reading.rate(threads) });
    }
    rows.extend(peaks().iter().map(|peak| MeasuredLimit {
        what: format!("{} ({})", peak.instruction, peak.numbers.name()),
        unit: "operations",
        one: peak.rate(1),
        all: peak.rate(threads),
    }));
    Ok(rows)
}

/// The levels of memory, each with the bytes to read: they fit into this level
/// but not into the one below.
fn levels(threads: usize) -> Vec<(&'static str, usize)> {
    let cache = |level| girih_cpu::topology::cache_bytes(Path::new("/"), level);
    let mut levels = vec![("memory", memory_bytes())];
    let (l2, l3) = (cache(2), cache(3));
    if let (Some(l2), Some(l3)) = (l2, l3) {
        // One thread alone reads the bytes of all threads.
        let bytes = (l3 / 2).max(2 * l2 * threads);
        if bytes <= l3 {
            levels.push(("L3", bytes));
        }
    }
    if let Some(l2) = l2 {
        levels.push(("L2", l2 / 2));
    }
    levels
}

/// The limit that bounds some work, and the share of it that the work reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// `memory`, or the type of the numbers that are multiplied.
    pub limit: &'static str,
    /// The minimum time divided by the measured time.
    pub fraction: f64,
}

impl MachineLimits {
    /// Measures the limits, which takes a second or two.
    ///
    /// # Errors
    /// When memory is short.
    pub fn measure(threads: usize) -> Result<MachineLimits> {
        let max_rate = |numbers| {
            let rates = peaks().iter().filter(|peak| peak.numbers == numbers).map(|peak| peak.rate(threads));
            rates.reduce(f64::max)
        };
        Ok(MachineLimits {
            read: Reading::new(memory_bytes(), threads)?.rate(threads),
            int8: max_rate(Numbers::Int8),
            bf16: max_rate(Numbers::Bf16),
            f32: max_rate(Numbers::F32).unwrap_or(f64::INFINITY),
        })
    }

    /// The bottleneck of `work`. `activations` names their precision: it contains
    /// `int8`, or `bf16-dot` if an instruction multiplies bf16, or anything else,
    /// which counts as f32.
    pub fn bottleneck(&self, work: &MinimalWork, seconds: f64, activations: &str) -> Bottleneck {
        let (numbers, peak) = match (self.int8, self.bf16) {
            (Some(int8), _) if activations.contains("int8") => ("int8", int8),
            (_, Some(bf16)) if activations.contains("bf16-dot") => ("bf16", bf16),
            _ => ("f32", self.f32),
        };
        let (memory, compute) = (work.bytes() / self.read, work.operations / peak);
        let limit = if memory >= compute { "memory" } else { numbers };
        Bottleneck { limit, fraction: memory.max(compute) / seconds.max(1e-12) }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "read_bytes_per_second": self.read,
            "int8_operations_per_second": self.int8,
            "bf16_operations_per_second": self.bf16,
            "f32_operations_per_second": self.f32,
        })
    }
}

/// The bytes to read to measure memory: at most a quarter of the free memory.
pub fn memory_bytes() -> usize {
    let room = girih::tools::FreeMemory::now().map_or(MAX_READ_BYTES, |memory| memory.room() / 4);
    usize::try_from(room.min(MAX_READ_BYTES)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_is_the_limit() {
        let limits = MachineLimits { read: 10.0, int8: Some(400.0), bf16: Some(200.0), f32: 100.0 };
        let work =
            |bytes, operations| MinimalWork { weight_bytes: bytes, operations, ..MinimalWork::default() };
        assert_eq!(
            limits.bottleneck(&work(20.0, 100.0), 4.0, "f32"),
            Bottleneck { limit: "memory", fraction: 0.5 }
        );
        assert_eq!(
            limits.bottleneck(&work(20.0, 800.0), 16.0, "f32"),
            Bottleneck { limit: "f32", fraction: 0.5 }
        );
        assert_eq!(
            limits.bottleneck(&work(2.0, 800.0), 4.0, "int8"),
            Bottleneck { limit: "int8", fraction: 0.5 }
        );
        assert_eq!(
            limits.bottleneck(&work(2.0, 800.0), 16.0, "bf16"),
            Bottleneck { limit: "f32", fraction: 0.5 }
        );
        let dots = Bottleneck { limit: "bf16", fraction: 0.5 };
        assert_eq!(limits.bottleneck(&work(2.0, 800.0), 8.0, "gemm avx512bf16 bf16-dot bf16"), dots);
    }
}
