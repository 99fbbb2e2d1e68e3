//! Byte products of AVX-VNNI, which adds four in 32 bits with vectors of AVX2 (Alder Lake and later, Zen 5).

use std::arch::x86_64::*;

use super::{Avx2, ByteDot};
use crate::kernels::table::{InstructionSet, Table};
use crate::kernels::vector::VectorKernel;
use crate::kernels::vector::table::{table, with_products_of};

/// Bytes multiplied by AVX-VNNI.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Vnni;

impl Avx2<Vnni> {
    /// The table of AVX2 with this multiplication of packed codes.
    pub(in super::super) fn table(self) -> Table {
        let avx2 = self.pairs();
        with_products_of(self, table(avx2, InstructionSet::Avx2(avx2)))
    }
}

impl ByteDot for Vnni {
    const NAME: &'static str = "avxvnni";

    fn is_present() -> bool {
        is_x86_feature_detected!("avxvnni")
    }

    fn enter<R, K: VectorKernel<Avx2<Vnni>, R>>(isa: Avx2<Vnni>, kernel: K) -> R {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn compiled<R, K: VectorKernel<Avx2<Vnni>, R>>(isa: Avx2<Vnni>, kernel: K) -> R {
            kernel.run(isa)
        }
        // SAFETY: `isa` exists only where the processor has these features.
        unsafe { compiled(isa, kernel) }
    }

    #[inline(always)]
    fn dot(_: Avx2<Vnni>, _bits: u8, n: &mut __m256i, _pairs: &mut __m256i, codes: __m256i, x: __m256i) {
        // SAFETY: the token exists only where the processor has AVX-VNNI.
        unsafe { *n = _mm256_dpbusd_avx_epi32(*n, codes, x) }
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;
    use crate::kernels::avx2::Pairs;
    use crate::kernels::packed::{
        BAND, Band, Coding, GROUP, INTEGER_BIAS, Layout, MatmulTileOperands, NARROW, PanelGroup, Panels,
        Sums, TILE,
    };
    use crate::kernels::prefetch::PrefetchChoice;

    /// Groups of a band of these tests: a unit of every layout.
    const GROUPS: usize = 8;

    /// `vpdpbusd` by instructions of AVX2, for processors without it.
    #[derive(Clone, Copy)]
    struct Emulated;

    impl ByteDot for Emulated {
        const NAME: &'static str = "emulated";

        fn is_present() -> bool {
            true
        }

        fn enter<R, K: VectorKernel<Avx2<Emulated>, R>>(isa: Avx2<Emulated>, kernel: K) -> R {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn compiled<R, K: VectorKernel<Avx2<Emulated>, R>>(isa: Avx2<Emulated>, kernel: K) -> R {
                kernel.run(isa)
            }
            // SAFETY: `isa` exists only where the processor has these features.
            unsafe { compiled(isa, kernel) }
        }

        #[inline(always)]
        fn dot(_: Avx2<Emulated>, _: u8, n: &mut __m256i, _: &mut __m256i, codes: __m256i, x: __m256i) {
            // SAFETY: the token exists only where the processor has AVX2.
            *n = unsafe { emulated(*n, codes, x) };
        }
    }

    /// The instruction: to each lane the products of its four bytes, those of `codes` without a sign. Bytes
    /// are widened to 16 bits, so nothing saturates.
    #[target_feature(enable = "avx2")]
    fn emulated(n: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
        let odd = _mm256_srli_epi16::<8>(codes);
        let even = _mm256_madd_epi16(even, _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)));
        let odd = _mm256_madd_epi16(odd, _mm256_srai_epi16::<8>(x));
        _mm256_add_epi32(n, _mm256_add_epi32(even, odd))
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn instruction(n: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(n, codes, x)
    }

    #[target_feature(enable = "avx2,avx512vl,avx512vnni")]
    fn longer_encoding(n: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(n, codes, x)
    }

    /// A random byte, often an extreme one.
    fn byte(random: &mut Random) -> u8 {
        match random.below(4) {
            0 => random.of(&[0, 127, 128, 129, 255]),
            _ => random.bits() as u8,
        }
    }

    type Lanes = [u32; 8];

    /// As Intel's manual describes the instruction (SDM 2, VPDPBUSD).
    fn defined(n: u32, codes: u32, x: u32) -> u32 {
        let products = codes.to_le_bytes().into_iter().zip(x.to_le_bytes());
        let sum: i32 = products.map(|(code, x)| i32::from(code) * i32::from(x as i8)).sum();
        n.wrapping_add(sum as u32)
    }

    #[test]
    fn the_emulator_is_the_instruction() {
        if Avx2::<Pairs>::detect().is_none() {
            eprintln!("skipped: this processor has no AVX2");
            return;
        }
        let mut random = Random(1);
        let vnni = is_x86_feature_detected!("avxvnni");
        let longer = is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni");
        for _ in 0..10_000 {
            let [n, codes, x]: [Lanes; 3] = std::array::from_fn(|_| {
                std::array::from_fn(|_| u32::from_le_bytes(std::array::from_fn(|_| byte(&mut random))))
            });
            let expected: Lanes = std::array::from_fn(|lane| defined(n[lane], codes[lane], x[lane]));
            // SAFETY: vectors and arrays of integers of one size, for which any bits are valid.
            let [n, codes, x] = unsafe { std::mem::transmute::<[Lanes; 3], [__m256i; 3]>([n, codes, x]) };
            // SAFETY: the processor has reported the features.
            let by_avx2 = unsafe { emulated(n, codes, x) };
            // SAFETY: as above.
            let by_vnni = vnni.then(|| unsafe { instruction(n, codes, x) });
            // SAFETY: as above.
            let by_avx512 = longer.then(|| unsafe { longer_encoding(n, codes, x) });
            let found = [Some(by_avx2), by_vnni, by_avx512];
            for found in found.into_iter().flatten() {
                // SAFETY: as above.
                assert_eq!(unsafe { std::mem::transmute::<__m256i, Lanes>(found) }, expected);
            }
        }
    }

    /// A table with the emulated products, and those of this machine that it must equal.
    fn table_and_twins() -> Option<(Table, Vec<Table>)> {
        let avx2 = Avx2::<Pairs>::detect()?;
        let emulated = with_products_of(Avx2::<Emulated>::detect()?, table(avx2, InstructionSet::Avx2(avx2)));
        Some((emulated, crate::kernels::tables().to_vec()))
    }

    /// Words of `columns` columns of activations.
    fn words(coding: Coding, columns: usize, random: &mut Random) -> Vec<u32> {
        let rows = coding.words();
        let mut words = vec![0; GROUPS * rows * columns];
        for group in words.chunks_exact_mut(rows * columns) {
            for c in 0..columns {
                let mut sums = [0; 2];
                for line in 0..GROUP / 4 {
                    let bytes: [u8; 4] = std::array::from_fn(|_| match byte(random) {
                        0x80 => 0x81,
                        byte => byte,
                    });
                    let half = if coding.halves { 8 * line / GROUP } else { 0 };
                    sums[half] += bytes.iter().map(|&byte| i32::from(byte as i8)).sum::<i32>();
                    group[line * columns + c] = u32::from_le_bytes(bytes);
                }
                let scale = 0.5 + random.below(1000) as f32 / 1000.0;
                for (half, sum) in sums.into_iter().take(coding.sums()).enumerate() {
                    let shareless = INTEGER_BIAS - i32::from(coding.zero) * sum;
                    let begin =
                        if coding.minimums { (scale * sum as f32).to_bits() } else { shareless as u32 };
                    group[(GROUP / 4 + half) * columns + c] = begin;
                }
                group[(rows - 1) * columns + c] = scale.to_bits();
            }
        }
        words
    }

    fn bits(sums: &[Sums]) -> Vec<u32> {
        sums.as_flattened().iter().map(|sum| sum.to_bits()).collect()
    }

    /// The kernels that a machine with AVX-VNNI runs, with its instruction emulated, have the bits of all
    /// other tables.
    #[test]
    fn sums_are_those_of_all_tables() {
        let Some((emulated, twins)) = table_and_twins() else {
            eprintln!("skipped: this processor has no AVX2");
            return;
        };
        let mut random = Random(2);
        for &layout in Layout::INTEGERS {
            let coding = layout.coding().expect("a layout of integers");
            let len = layout.band_bytes(GROUPS * GROUP).expect("a small band");
            // The upper byte of a scale is that of a moderate number.
            let bytes: Vec<u8> = (0..len)
                .map(|at| if at % 2 == 1 { 0x2c + byte(&mut random) % 16 } else { byte(&mut random) })
                .collect();
            let band =
                Band { layout, columns: GROUPS * GROUP, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
            for columns in 1..=NARROW {
                let x = words(coding, columns, &mut random);
                let narrow = |table: &Table| {
                    let mut sums = [[1.5; BAND]; NARROW];
                    (table.matmul.narrow)(band, &x, &mut sums[..columns]);
                    bits(&sums)
                };
                for twin in &twins {
                    assert_eq!(narrow(&emulated), narrow(twin), "{layout:?} x{columns}: {}", twin.name);
                }
            }
            let mut panels: Box<Panels> = Box::new([[PanelGroup::ZERO; _]; 2]);
            (emulated.matmul.decode)(band, 0, GROUPS, &mut panels);
            for columns in [TILE / 3, 2 * TILE / 3, TILE] {
                let x = words(coding, columns, &mut random);
                let tile = |table: &Table| {
                    let mut sums = [[1.5; BAND]; TILE];
                    let operands = MatmulTileOperands {
                        coding,
                        panels: &panels,
                        signed: None,
                        groups: GROUPS,
                        x: &x,
                        next: &[],
                    };
                    (table.matmul.tile)(operands, &mut sums[..columns]);
                    bits(&sums)
                };
                for twin in &twins {
                    assert_eq!(tile(&emulated), tile(twin), "{layout:?} tile x{columns}: {}", twin.name);
                }
            }
        }
    }
}
