//! The limits of this machine, measured, and the share of them that work reaches.

use girih_cpu::limits::{Numbers, Reading, peaks};
use girih_measure::MinimalWork;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Result;
use crate::output;
use crate::progress::{Bar, Show, Unit};

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
    /// The bytes that all caches hold together; 0 if they are unknown.
    pub cache_bytes: u64,
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

/// Measures all limits of this machine, memory first; moves `bar`.
///
/// # Errors
/// When memory is short.
pub fn table(threads: usize, bar: &Bar) -> Result<Vec<MeasuredLimit>> {
    let mut rows = Vec::new();
    let (levels, peaks) = (levels(threads), peaks());
    let total = (levels.len() + peaks.len()) as u64;
    for (level, bytes) in levels {
        let reading = Reading::new(bytes, threads)?;
        let what = format!("read {level} ({})", output::bytes(bytes as u64));
        rows.push(MeasuredLimit { what, unit: "bytes", one: reading.rate(1), all: reading.rate(threads) });
        bar.set(rows.len() as u64, total);
    }
    for peak in peaks {
        let what = format!("{} ({})", peak.instruction, peak.numbers.name());
        rows.push(MeasuredLimit { what, unit: "operations", one: peak.rate(1), all: peak.rate(threads) });
        bar.set(rows.len() as u64, total);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// The levels of memory, each with the bytes to read: they fit into this level
/// but not into the one below.
fn levels(threads: usize) -> Vec<(&'static str, usize)> {
    let cache = |level| girih_cpu::HostMachine::here().caches.one(level);
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
    /// The share.
    pub share: LimitShare,
}

/// The share of a limit that work reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitShare {
    /// The minimum time divided by the measured time, at most 1.
    Of(f64),
    /// None: the caches hold all that is read, so memory is no limit.
    InCache,
    /// None: the work was faster than the limit, so the limit does not bound it, or was measured too
    /// low.
    Exceeded,
}

impl LimitShare {
    fn of(fraction: f64) -> LimitShare {
        if fraction <= 1.0 { LimitShare::Of(fraction) } else { LimitShare::Exceeded }
    }

    /// The share as a number, if there is one.
    pub fn fraction(self) -> Option<f64> {
        match self {
            LimitShare::Of(fraction) => Some(fraction),
            LimitShare::InCache | LimitShare::Exceeded => None,
        }
    }
}

impl Bottleneck {
    /// The share and its limit for a table: `43 % of memory`.
    pub fn text(self) -> String {
        match self.share {
            LimitShare::Of(fraction) => format!("{:.0} % of {}", 100.0 * fraction, self.limit),
            LimitShare::InCache => "in cache".to_owned(),
            LimitShare::Exceeded => "–".to_owned(),
        }
    }
}

/// Notes on a table of these bottlenecks: why some rows have no share.
pub fn limit_notes(bottlenecks: &[Bottleneck]) -> Vec<String> {
    let has = |share| bottlenecks.iter().any(|bottleneck| bottleneck.share == share);
    let mut notes = Vec::new();
    if has(LimitShare::InCache) {
        notes.push(
            "in cache: the processor's caches hold the whole model, so memory is not its limit".to_owned(),
        );
    }
    if has(LimitShare::Exceeded) {
        notes.push(
            "–: faster than the measured limit, because caches hold a part of what is read, or because other \
             processes slowed down the measurement of the limit"
                .to_owned(),
        );
    }
    notes
}

impl MachineLimits {
    /// Measures the limits, which takes a second or more, with a bar.
    ///
    /// # Errors
    /// When memory is short.
    pub fn measure(threads: usize, show: Show) -> Result<MachineLimits> {
        let peaks = peaks();
        let (bar, total) =
            (show.bar("measuring this machine", 0, Unit::Things("limits")), peaks.len() as u64 + 1);
        bar.set(0, total);
        let read = Reading::new(memory_bytes(), threads)?.rate(threads);
        let mut rates = Vec::new();
        for peak in peaks {
            bar.set(rates.len() as u64 + 1, total);
            rates.push((peak.numbers, peak.rate(threads)));
        }
        bar.finish_and_clear();
        let max_rate = |numbers| {
            let of_numbers = rates.iter().filter(|(of, _)| *of == numbers).map(|(_, rate)| *rate);
            of_numbers.reduce(f64::max)
        };
        Ok(MachineLimits {
            read,
            int8: max_rate(Numbers::Int8),
            bf16: max_rate(Numbers::Bf16),
            f32: max_rate(Numbers::F32).unwrap_or(f64::INFINITY),
            cache_bytes: girih_cpu::HostMachine::here().caches.all_from(2) as u64,
        })
    }

    /// The bottleneck of `work` by a model of `model_bytes`. `activations` names their precision: it
    /// contains `int8`, or `bf16-dot` if an instruction multiplies bf16, or anything else, which
    /// counts as f32.
    pub fn bottleneck(
        &self,
        work: &MinimalWork,
        seconds: f64,
        activations: &str,
        model_bytes: u64,
    ) -> Bottleneck {
        let (numbers, peak) = match (self.int8, self.bf16) {
            (Some(int8), _) if activations.contains("int8") => ("int8", int8),
            (_, Some(bf16)) if activations.contains("bf16-dot") => ("bf16", bf16),
            _ => ("f32", self.f32),
        };
        let (memory, compute) = (work.bytes() / self.read, work.operations / peak);
        let share = |minimum: f64| LimitShare::of(minimum / seconds.max(1e-12));
        match memory >= compute {
            // Each step reads the whole model, so caches hold all of it or hardly any.
            true if model_bytes <= self.cache_bytes => {
                Bottleneck { limit: "memory", share: LimitShare::InCache }
            }
            true => Bottleneck { limit: "memory", share: share(memory) },
            false => Bottleneck { limit: numbers, share: share(compute) },
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "read_bytes_per_second": self.read,
            "int8_operations_per_second": self.int8,
            "bf16_operations_per_second": self.bf16,
            "f32_operations_per_second": self.f32,
            "cache_bytes": self.cache_bytes,
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
        let limits =
            MachineLimits { read: 10.0, int8: Some(400.0), bf16: Some(200.0), f32: 100.0, cache_bytes: 15 };
        let bottleneck = |bytes, operations, seconds, activations: &str| {
            let work = MinimalWork { weight_bytes: bytes, operations, ..MinimalWork::default() };
            let found = limits.bottleneck(&work, seconds, activations, 16);
            (found.limit, found.share)
        };
        let half = LimitShare::Of(0.5);
        assert_eq!(bottleneck(20.0, 100.0, 4.0, "f32"), ("memory", half));
        assert_eq!(bottleneck(20.0, 800.0, 16.0, "f32"), ("f32", half));
        assert_eq!(bottleneck(2.0, 800.0, 4.0, "int8"), ("int8", half));
        assert_eq!(bottleneck(2.0, 800.0, 16.0, "bf16"), ("f32", half));
        assert_eq!(bottleneck(2.0, 800.0, 8.0, "gemm avx512bf16 bf16-dot bf16"), ("bf16", half));
    }

    #[test]
    fn no_share_is_above_the_limit() {
        let limits = MachineLimits { read: 10.0, int8: None, bf16: None, f32: 100.0, cache_bytes: 15 };
        let work = MinimalWork { weight_bytes: 20.0, operations: 1.0, ..MinimalWork::default() };
        let share = |seconds, model| limits.bottleneck(&work, seconds, "f32", model);
        let [slow, fast, cached] = [share(4.0, 16), share(1.0, 16), share(1.0, 15)];
        assert_eq!([slow, fast, cached].map(Bottleneck::text), ["50 % of memory", "–", "in cache"]);
        assert_eq!([slow, fast, cached].map(|one| one.share.fraction()), [Some(0.5), None, None]);
        assert!(limit_notes(&[slow]).is_empty());
        assert_eq!(limit_notes(&[slow, fast, cached, cached]).len(), 2);
    }
}
