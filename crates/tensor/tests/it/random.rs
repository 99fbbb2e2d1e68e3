//! Seeded numbers, the same on every machine.

/// A SplitMix64 generator (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value from a bell curve around 0 that ends at ±2: the sum of four
    /// uniform 16-bit numbers, so that it is exact.
    pub fn bell(&mut self) -> f32 {
        let bits = self.bits();
        let sum: i32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as i32).sum();
        (sum - 2 * 0xffff) as f32 / 65536.0
    }

    pub fn bells(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.bell()).collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }
}
