//! Loops that issue one instruction as often as the processor can: they measure the
//! machine's peak, and their results are not used.
//!
//! Each keeps enough independent chains of one instruction that only the ports
//! bind it, not the latency.

#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod aarch64;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

mod peak;

use std::hint::black_box;
use std::sync::LazyLock;

use peak::fold;
pub use peak::{Numbers, Peak};

/// Those that this machine has, the widest first; there is one for single
/// precision at least.
pub fn peaks() -> &'static [Peak] {
    static PEAKS: LazyLock<Vec<Peak>> = LazyLock::new(|| {
        let mut peaks = Vec::new();
        #[cfg(target_arch = "x86_64")]
        peaks.extend(x86::peaks());
        #[cfg(target_arch = "aarch64")]
        peaks.extend(aarch64::peaks());
        peaks.push(Peak {
            instruction: "multiply, add",
            numbers: Numbers::F32,
            operations: 2 * PORTABLE_LANES as u64,
            run: multiply_add,
        });
        peaks
    });
    &PEAKS
}

/// The processor's time stamp, which counts at one rate whatever the core's
/// clock does; nothing where there is none.
pub fn time_stamp() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    return Some(x86::time_stamp());
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The exclusive or of all words, by the widest loads that this machine has.
///
/// Bytes moved: the words, once.
pub fn read(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if let Some(read) = x86::read() {
        return read(words);
    }
    fold(words)
}

/// Chains of the portable loop: eight vectors of four, which is the width that
/// every processor of the kind has.
const PORTABLE_LANES: usize = 32;

fn multiply_add(rounds: u64) {
    let (factor, addend) = (black_box(0.5_f32), black_box(1.0_f32));
    let mut sums = black_box([1.0_f32; PORTABLE_LANES]);
    for _ in 0..rounds {
        sums.iter_mut().for_each(|sum| *sum = *sum * factor + addend);
    }
    black_box(sums);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_reads_every_word() {
        for len in [0, 1, 63, 64, 65, 200] {
            for index in 0..len {
                let mut words = vec![0; len];
                words[index] = 1 << (index % 64);
                assert_eq!(read(&words), 1 << (index % 64), "word {index} of {len}");
            }
        }
    }

    #[test]
    fn the_time_stamp_grows() {
        let stamps = [(); 3].map(|()| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            time_stamp()
        });
        assert!(stamps.is_sorted() && (stamps[0] < stamps[2] || stamps[0].is_none()), "{stamps:?}");
    }

    /// A loop that the compiler has removed takes no longer for more rounds.
    #[test]
    fn rounds_take_time() {
        for peak in peaks() {
            let time = |rounds| {
                let begun = std::time::Instant::now();
                (peak.run)(rounds);
                begun.elapsed()
            };
            // 10⁶ rounds of the fastest loop are 10⁶ · 16 instructions at
            // least, four in a cycle: over 0.3 ms at any clock below 13 GHz.
            let best = (0..5).map(|_| time(1_000_000)).min().expect("five were taken");
            assert!(best.as_micros() > 300, "{} takes {best:?}", peak.instruction);
        }
    }
}
