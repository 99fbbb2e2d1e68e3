//! What the loops of all processors share: their description, and the sum of words.

/// One instruction, issued as fast as it can be.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// The instruction and the width of its registers: `vpdpbusd zmm`.
    pub instruction: &'static str,
    /// What it multiplies.
    pub numbers: Numbers,
    /// Multiplications and additions in a round of the loop.
    pub operations: u64,
    /// Runs a number of rounds.
    pub run: fn(rounds: u64),
}

/// The numbers that an instruction multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Integers of 8 bits, added up in 32.
    Int8,
    /// Numbers in bf16, added up in single precision.
    Bf16,
    /// Single precision.
    F32,
}

impl Numbers {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Numbers::Int8 => "int8",
            Numbers::Bf16 => "bf16",
            Numbers::F32 => "f32",
        }
    }
}

/// Words that [`fold`] takes at once: eight vectors of 512 bits.
const STRIDE: usize = 64;

/// The exclusive or of all words; the compiler makes vectors of it, as wide as those
/// of the function that it is inlined into.
#[inline(always)]
pub(super) fn fold(words: &[u64]) -> u64 {
    let (strides, rest) = words.as_chunks::<STRIDE>();
    let mut sums = [0; STRIDE];
    for stride in strides {
        for (sum, word) in sums.iter_mut().zip(stride) {
            *sum ^= word;
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum ^ word)
}

/// A loop of `CHAINS` chains of `$step`, which takes an accumulator and the
/// two operands. The file that uses it defines `CHAINS` and imports `black_box`.
macro_rules! chains {
    ($name:ident, $features:literal, $vector:ty, $start:expr, $operand:expr, $step:expr) => {
        #[target_feature(enable = $features)]
        fn $name(rounds: u64) {
            let (a, b) = (black_box($operand), black_box($operand));
            let mut chains: [$vector; CHAINS] = black_box([$start; CHAINS]);
            for _ in 0..rounds {
                chains.iter_mut().for_each(|chain| *chain = $step(*chain, a, b));
            }
            black_box(chains);
        }
    };
}

pub(super) use chains;
