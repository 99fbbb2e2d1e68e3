//! What this machine can do at most, for reports that say how near girih comes
//! to it.

use girih_cpu::limits::{Numbers, Reading, peaks};
use girih_measure::Work;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cmd;
use crate::error::Result;
use crate::machine;

/// Bytes that are read to measure memory, where there is enough of it: beyond
/// what the largest caches of today keep of them.
const MEMORY_BYTES: u64 = 1 << 30;

/// The limits that a model runs into, with so many threads at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes per second from memory.
    pub read: f64,
    /// The most operations per second on integers of 8 bits, if there is an
    /// instruction for them.
    pub int8: Option<f64>,
    /// The same on brain floats.
    pub bf16: Option<f64>,
    /// The most operations per second in single precision.
    pub f32: f64,
}

/// One limit, with one thread and with several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// What is done: `read memory (1.00 GiB)`, `vpdpbusd zmm (int8)`.
    pub what: String,
    /// What is counted: bytes or operations.
    pub unit: &'static str,
    /// How many a second one thread does.
    pub one: f64,
    /// How many a second all threads do together.
    pub all: f64,
}

/// Everything that [`Measured`] can tell of this machine, memory first.
///
/// # Errors
/// When memory is short.
pub fn table(threads: usize) -> Result<Vec<Measured>> {
    let mut rows = Vec::new();
    for (place, bytes) in places(threads) {
        let reading = Reading::new(bytes, threads)?;
        let what = format!("read {place} ({})", cmd::bytes(bytes as u64));
        rows.push(Measured { what, unit: "bytes", one: reading.rate(1), all: reading.rate(threads) });
    }
    rows.extend(peaks().iter().map(|peak| Measured {
        what: format!("{} ({})", peak.instruction, peak.numbers.name()),
        unit: "operations",
        one: peak.rate(1),
        all: peak.rate(threads),
    }));
    Ok(rows)
}

/// What there is to be read from, with how many bytes to read there: so many
/// that the cache below cannot hold them, and the cache itself can.
fn places(threads: usize) -> Vec<(&'static str, usize)> {
    let cache = |level| machine::cache_bytes(level).map(|bytes| bytes as usize);
    let mut places = vec![("memory", memory_bytes())];
    let (second, third) = (cache(2), cache(3));
    if let (Some(second), Some(third)) = (second, third) {
        // A thread alone reads the parts of all.
        let bytes = (third / 2).max(2 * second * threads);
        if bytes <= third {
            places.push(("the third cache", bytes));
        }
    }
    if let Some(second) = second {
        places.push(("the second cache", second / 2));
    }
    places
}

/// What binds a step, and how near it was to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// `memory`, or the numbers that are multiplied.
    pub limit: &'static str,
    /// The least time over the time taken.
    pub fraction: f64,
}

impl Limits {
    /// Measures for a second or two.
    ///
    /// # Errors
    /// When memory is short.
    pub fn measure(threads: usize) -> Result<Limits> {
        let most = |numbers| {
            let rates = peaks().iter().filter(|peak| peak.numbers == numbers).map(|peak| peak.rate(threads));
            rates.reduce(f64::max)
        };
        Ok(Limits {
            read: Reading::new(memory_bytes(), threads)?.rate(threads),
            int8: most(Numbers::Int8),
            bf16: most(Numbers::Bf16),
            f32: most(Numbers::F32).unwrap_or(f64::INFINITY),
        })
    }

    /// How near to its limit `work` was done, with activations of this
    /// precision: `int8`, perhaps beside others, or `bf16-dot` where brain floats
    /// have products of their own, or any other.
    pub fn verdict(&self, work: &Work, seconds: f64, activations: &str) -> Verdict {
        let (numbers, peak) = match (self.int8, self.bf16) {
            (Some(int8), _) if activations.contains("int8") => ("int8", int8),
            (_, Some(bf16)) if activations.contains("bf16-dot") => ("bf16", bf16),
            _ => ("f32", self.f32),
        };
        let (memory, compute) = (work.bytes() / self.read, work.operations / peak);
        let limit = if memory >= compute { "memory" } else { numbers };
        Verdict { limit, fraction: memory.max(compute) / seconds.max(1e-12) }
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

/// The bytes to measure memory with: no more than a quarter of what there is.
pub fn memory_bytes() -> usize {
    let room = machine::Memory::now().map_or(MEMORY_BYTES, |memory| memory.room() / 4);
    usize::try_from(room.min(MEMORY_BYTES)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_is_the_limit() {
        let limits = Limits { read: 10.0, int8: Some(400.0), bf16: Some(200.0), f32: 100.0 };
        let work = |bytes, operations| Work { weight_bytes: bytes, operations, ..Work::default() };
        assert_eq!(
            limits.verdict(&work(20.0, 100.0), 4.0, "f32"),
            Verdict { limit: "memory", fraction: 0.5 }
        );
        assert_eq!(limits.verdict(&work(20.0, 800.0), 16.0, "f32"), Verdict { limit: "f32", fraction: 0.5 });
        assert_eq!(limits.verdict(&work(2.0, 800.0), 4.0, "int8"), Verdict { limit: "int8", fraction: 0.5 });
        assert_eq!(limits.verdict(&work(2.0, 800.0), 16.0, "bf16"), Verdict { limit: "f32", fraction: 0.5 });
        let dots = Verdict { limit: "bf16", fraction: 0.5 };
        assert_eq!(limits.verdict(&work(2.0, 800.0), 8.0, "gemm avx512bf16 bf16-dot bf16"), dots);
    }
}
