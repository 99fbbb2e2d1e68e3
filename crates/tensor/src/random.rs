//! A seeded pseudorandom number generator with the same output on every
//! machine, for tests, sampling and the prompts of benchmarks.
//!
//! SplitMix64: Steele, Lea & Flood, "Fast splittable pseudorandom number
//! generators", OOPSLA 2014; the multipliers are Stafford's variant 13. It is
//! not cryptographically secure.

/// The increment of the state: 2⁶⁴ divided by the golden ratio.
pub const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function: a bijection in which each input bit affects all output
/// bits.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A generator; its field is the seed, then the state.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(INCREMENT);
        mix(self.0)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// `true` with a probability of 1 / `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A value in [−1, 1), uniform in steps of 2⁻²³, which `f32` holds exactly.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `count` values of [`Random::number`].
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    /// A value in [−2, 2) from a bell curve around 0: the sum of four uniform
    /// 16-bit numbers, which `f32` holds exactly.
    pub fn bell(&mut self) -> f32 {
        let bits = self.bits();
        let sum: i32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as i32).sum();
        (sum - 2 * 0xffff) as f32 / 65536.0
    }

    /// `count` values of [`Random::bell`].
    pub fn bells(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.bell()).collect()
    }

    /// A positive finite `f32` of any magnitude, subnormal ones included.
    pub fn positive(&mut self) -> f32 {
        loop {
            let number = f32::from_bits(self.bits() as u32 >> 1);
            if number.is_finite() && number > 0.0 {
                return number;
            }
        }
    }

    /// `count` uniform bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of the reference program
    /// (prng.di.unimi.it/splitmix64.c) for the seed 0.
    #[test]
    fn bits_are_those_of_the_reference_program() {
        let mut random = Random(0);
        assert_eq!([random.bits(), random.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random(7);
        for _ in 0..1000 {
            assert!(random.below(3) < 3 && (-1.0..1.0).contains(&random.number()));
            assert!((-2.0..2.0).contains(&random.bell()) && random.positive() > 0.0);
        }
        assert_eq!((random.below(0), random.bytes(5).len()), (0, 5));
    }
}
