//! Half-precision numbers, which AVX512-FP16 multiplies and adds up, 32 in a vector.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Avx512;
use crate::kernels::layout::Line;
use crate::kernels::packed::{Band, FloatKernel, GROUP, LANES, Sums};
use crate::kernels::portable::fp16::fp16_lines;
use crate::kernels::prefetch::PrefetchDistance;
use crate::kernels::vector::packed::{COLUMNS, prefetch_lines};
use crate::kernels::vector::table::token;
use crate::kernels::vector::{Vectors, by_count};

/// The kernel, if the processor has the instructions.
pub(super) fn kernel(_: Avx512) -> Option<FloatKernel> {
    ProcessorHalves::detect()?;
    Some(|band, first, x, sums| {
        // SAFETY: this function has had such a token.
        let isa = unsafe { token::<Avx512>() };
        // SAFETY: and such a one.
        let halves = unsafe { token::<ProcessorHalves>() };
        fp16(isa, halves, band, first, x, sums);
    })
}

/// What the kernel does with vectors of 32 numbers.
trait Halves: Copy {
    /// A vector.
    type Vector: Copy;

    /// Zeros.
    fn zeros(self) -> Self::Vector;
    /// Adds to `sum` the products of a line with a number, which `word` holds twice; each is rounded once.
    fn add(self, sum: &mut Self::Vector, line: &Line, word: u32);
    /// The numbers of rows 0..16 and 16..32 in single precision.
    fn widen(self, sums: Self::Vector) -> [__m512; 2];
}

/// The token of AVX512-FP16.
#[derive(Clone, Copy)]
struct ProcessorHalves(());

impl ProcessorHalves {
    /// The token, if the processor has the instructions.
    fn detect() -> Option<ProcessorHalves> {
        let present = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512fp16");
        present.then_some(ProcessorHalves(()))
    }
}

impl Halves for ProcessorHalves {
    type Vector = __m512i;

    #[inline(always)]
    fn zeros(self) -> __m512i {
        // SAFETY: the value exists only where the processor has AVX-512.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn add(self, sum: &mut __m512i, line: &Line, word: u32) {
        // SAFETY: the value exists only where the processor has AVX-512 and AVX512-FP16.
        *sum = unsafe { multiply_add(*sum, line, word) };
    }

    #[inline(always)]
    fn widen(self, sums: __m512i) -> [__m512; 2] {
        // SAFETY: the value exists only where the processor has AVX-512.
        unsafe { widened(sums) }
    }
}

/// The products of a line with the number that `word` holds twice, plus `sum`; each is rounded once (`_mm512_fmadd_ph`, which stable Rust
/// does not have).
///
/// # Safety
/// The processor has AVX512-FP16.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_add(mut sum: __m512i, line: &Line, word: u32) -> __m512i {
    // SAFETY: a line has 64 bytes.
    let line = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
    let x = _mm512_set1_epi32(word.cast_signed());
    // SAFETY: the caller says that the instruction exists. It touches no memory.
    unsafe {
        asm!(
            "vfmadd231ph {sum}, {line}, {x}",
            sum = inout(zmm_reg) sum,
            line = in(zmm_reg) line,
            x = in(zmm_reg) x,
            options(pure, nomem, nostack),
        );
    }
    sum
}

/// The numbers of both halves of a vector in single precision.
#[inline]
#[target_feature(enable = "avx512f")]
fn widened(numbers: __m512i) -> [__m512; 2] {
    let (lower, upper) = (_mm512_castsi512_si256(numbers), _mm512_extracti64x4_epi64::<1>(numbers));
    [_mm512_cvtph_ps(lower), _mm512_cvtph_ps(upper)]
}

/// Adds the multiply-accumulates of a band of half-precision numbers with such numbers under scales.
///
/// ```text
/// for each group of 32 columns of weights:
///     for each column:
///         for each column c:      group[c] += weights · x[c]         vfmadd231ph; 32 rows
///     for each column c:          sums[c] += scale[c] · group[c]     two vectors of 16 rows
/// ```
/// Work of a group with 12 columns, on the two ports of Intel's cores: 384 products, and for each column a shuffle, two
/// conversions of two operations and two multiply-adds, 84; together 234 cycles. In single precision 768 products take 384. These
/// are counts: no processor with the instructions has run this.
/// Bytes moved: the band, once.
fn fp16<H: Halves>(isa: Avx512, halves: H, band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    let (lines, distance) = (fp16_lines(band, first), band.prefetch.distance(sums.len()));
    by_count!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        let sums: &mut [Sums; C] = sums.as_mut_array().expect(COLUMNS);
        // SAFETY: the token exists only where the processor has these features.
        unsafe { products::<H, C>(isa, halves, (lines, distance), x.as_chunks().0, sums) }
    });
}

/// [`fp16`] with `C` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn products<H: Halves, const C: usize>(
    isa: Avx512,
    halves: H,
    (lines, distance): (&[Line], PrefetchDistance),
    x: &[[u32; C]],
    sums: &mut [Sums; C],
) {
    for (lines, x) in lines.chunks(GROUP).zip(x.as_chunks::<{ GROUP + 1 }>().0) {
        let mut group = [halves.zeros(); C];
        for (line, x) in lines.iter().zip(x) {
            prefetch_lines(std::slice::from_ref(line), distance);
            for c in 0..C {
                halves.add(&mut group[c], line, x[c]);
            }
        }
        for c in 0..C {
            let scale = isa.splat(f32::from_bits(x[GROUP][c]));
            for (part, to) in halves.widen(group[c]).into_iter().zip(sums[c].as_chunks_mut::<LANES>().0) {
                isa.store(isa.fmadd(scale, part, isa.load(to)), to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;
    use half::f16;

    use super::*;
    use crate::kernels::packed::{BAND, Layout, NARROW, TILE};
    use crate::kernels::portable::fp16::{fp16 as portable, fused};
    use crate::kernels::prefetch::PrefetchChoice;

    /// The instructions in plain code.
    #[derive(Clone, Copy)]
    struct EmulatedHalves;

    impl Halves for EmulatedHalves {
        type Vector = [f16; BAND];

        fn zeros(self) -> [f16; BAND] {
            [f16::ZERO; BAND]
        }

        fn add(self, sum: &mut [f16; BAND], line: &Line, word: u32) {
            assert_eq!(word >> 16, word & 0xffff, "both halves of a word are the number");
            let x = f16::from_bits(word as u16);
            for (sum, weight) in sum.iter_mut().zip(line.as_chunks().0) {
                *sum = fused(f16::from_le_bytes(*weight), x, *sum);
            }
        }

        fn widen(self, sums: [f16; BAND]) -> [__m512; 2] {
            let floats = sums.map(f16::to_f32);
            // SAFETY: tests run this with a token of AVX-512. Each half has 16 numbers.
            [0, LANES].map(|at| unsafe { _mm512_loadu_ps(floats[at..][..LANES].as_ptr()) })
        }
    }

    /// A finite number of any size up to 500, now and then a zero or a subnormal one.
    fn number(random: &mut Random) -> f16 {
        let bits = random.bits();
        let small = f16::from_bits((bits >> 32) as u16 & 0x83ff);
        let x = f16::from_f32((bits as i32 as f32 * 2f32.powi(-31)) * 2f32.powi((bits >> 60) as i32 - 6));
        if bits % 61 < 2 { small } else { x }
    }

    /// Bits of the sums by the portable kernel and by `kernel`, of bands of some widths and of columns of activations.
    fn compare(kernel: impl Fn(Band<'_>, usize, &[u32], &mut [Sums])) {
        let mut random = Random(29);
        for columns in [1, 31, 32, 33, 256, 300] {
            let bytes: Vec<u8> =
                (0..columns * BAND).flat_map(|_| number(&mut random).to_le_bytes()).collect();
            let band =
                Band { layout: Layout::F16, columns, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
            for (first, each) in [0, GROUP]
                .into_iter()
                .filter(|first| *first < columns)
                .flat_map(|first| (1..=NARROW).chain([TILE]).map(move |each| (first, each)))
            {
                let groups = (columns - first).div_ceil(GROUP);
                let x: Vec<u32> = (0..groups * (GROUP + 1) * each)
                    .map(|at| {
                        let is_scale = at / each % (GROUP + 1) == GROUP;
                        let scale = 2f32.powi(random.below(40) as i32 - 20).to_bits();
                        let bits = f16::from_f32(number(&mut random).to_f32() / 125.0).to_bits();
                        if is_scale { scale } else { u32::from(bits) * 0x1_0001 }
                    })
                    .collect();
                let (mut wanted, mut seen) = (vec![[0.75; BAND]; each], vec![[0.75; BAND]; each]);
                portable(band, first, &x, &mut wanted);
                kernel(band, first, &x, &mut seen);
                let bits =
                    |sums: &[Sums]| sums.as_flattened().iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&seen), bits(&wanted), "{columns} columns from {first} on x{each}");
            }
        }
    }

    #[test]
    fn sums_have_the_bits_of_the_portable_kernel() {
        let Some(isa) = Avx512::detect() else {
            eprintln!("skipped: this processor has no AVX-512 with VNNI");
            return;
        };
        compare(|band, first, x, sums| fp16(isa, EmulatedHalves, band, first, x, sums));
        let Some(kernel) = kernel(isa) else {
            eprintln!("skipped: this processor has no AVX512-FP16");
            return;
        };
        compare(kernel);
    }
}
