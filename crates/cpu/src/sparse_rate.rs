//! Times products with sparse matrices beside those with the same matrices that keep their zeros.
//!
//! Both run in turns, on the same threads and the same activations, and their results are compared. Matrices are larger
//! than caches, so that weights come from memory, as in decode.

use std::sync::Arc;
use std::time::Instant;

use girih_graph::Error;
use girih_tensor::{DType, Random};

use crate::activations::{ActivationKind, PackedActivations, PrecisionRule, SourceRows};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, Layout};
use crate::memory::{Aligned, BytesOwner, SharedBytes};
use crate::ops::Executor;
use crate::ops::linear::{self, Epilogue, MatmulOperands};
use crate::pack::pack_band;
use crate::packed_matrix::{PackedMatrix, PackedShape};
use crate::pool::ThreadPool;
use crate::present::{BandPlaces, FilledWeight, PresentUnits, UnitGrid, Zeros};
use crate::probe::HostMachine;

/// Different bands of random weights; a matrix has them again and again, with different units of zeros.
const DRAWN_BANDS: usize = 8;

/// The multiple of the caches that the present units of a matrix have.
const CACHES: f64 = 2.0;

/// The largest matrix with all its units.
const MAX_BYTES: usize = 1 << 29;

/// The seed of weights, zeros and activations.
const SEED: u64 = 41;

/// What is multiplied.
#[derive(Clone, Copy, Debug)]
pub struct SparseCase {
    /// The format of the weights.
    pub dtype: DType,
    /// The columns of the weights, whole units.
    pub columns: usize,
    /// Rows of activations.
    pub rows: usize,
    /// The share of units that are present.
    pub density: f64,
}

/// The times of one case.
#[derive(Clone, Debug)]
pub struct SparseRates {
    /// The numbers of the weights, zeros included.
    pub elements: usize,
    /// The bytes of the matrix with all units, and without zeros.
    pub bytes: [usize; 2],
    /// The seconds of each round, with all units and without zeros.
    pub seconds: Vec<[f64; 2]>,
    /// The largest difference between the results; zero if all bits are equal.
    pub largest_difference: f32,
}

impl SparseRates {
    /// The median seconds, with all units and without zeros.
    pub fn medians(&self) -> [f64; 2] {
        [0, 1].map(|index| {
            let mut seconds: Vec<f64> = self.seconds.iter().map(|round| round[index]).collect();
            seconds.sort_by(f64::total_cmp);
            seconds[seconds.len() / 2]
        })
    }
}

/// Times a case in `rounds` rounds, after one to warm up.
///
/// # Errors
/// If the case has no sparse form, there is not enough memory, or threads cannot be started.
pub fn measure(table: &Table, threads: usize, case: SparseCase, rounds: usize) -> Result<SparseRates, Error> {
    let caches = HostMachine::here().caches.all_from(3) as f64 * CACHES;
    let bytes = ((caches / case.density.max(0.01)) as usize).min(MAX_BYTES);
    let band_bytes = Layout::of(case.dtype).band_bytes(case.columns).unwrap_or(usize::MAX).max(1);
    measure_bands(table, threads, case, rounds, bytes.div_ceil(band_bytes))
}

/// As [`measure`], with this number of bands.
fn measure_bands(
    table: &Table,
    threads: usize,
    case: SparseCase,
    rounds: usize,
    bands: usize,
) -> Result<SparseRates, Error> {
    let SparseCase { dtype, columns, rows, density: _ } = case;
    let (layout, refused) = (Layout::of(dtype), || {
        Error::new(format!(
            "{dtype} with {columns} columns has no blocks to skip; use whole blocks, such as 2048"
        ))
    });
    let band_bytes = layout.band_bytes(columns).ok_or_else(refused)?;
    let grid = UnitGrid::of(layout, [1, bands * BAND, columns], Zeros::Any).ok_or_else(refused)?;
    let pool = ThreadPool::pinned(threads, None)?;
    let mut random = Random(SEED);
    let matrices = matrices(table, case, (grid, band_bytes), &mut random)?;
    let kind = ActivationKind::of(layout, PrecisionRule::Fixed);
    let values = random.numbers(rows * columns);
    let mut product = SparseTrial {
        table,
        pool: &pool,
        kind,
        rows,
        columns,
        words: vec![0; kind.size(rows, columns)],
        locals: (0..pool.threads())
            .map(|_| {
                Aligned::zeroed(linear::local_len(rows * kind.terms(), columns), "a thread's scratch memory")
            })
            .collect::<Result<_, _>>()?,
    };
    product.pack(&values);
    let mut outputs = [0, 1].map(|_| vec![0.0; rows * bands * BAND]);
    let mut seconds = Vec::new();
    for round in 0..=rounds {
        let mut times = [0.0; 2];
        for ((time, matrix), output) in times.iter_mut().zip(&matrices).zip(&mut outputs) {
            *time = product.seconds(matrix, output);
        }
        seconds.extend((round > 0).then_some(times));
    }
    let [all, some] = &outputs;
    let difference = |(a, b): (&f32, &f32)| {
        if a.to_bits() == b.to_bits() { 0.0 } else { (a - b).abs().max(f32::MIN_POSITIVE) }
    };
    Ok(SparseRates {
        elements: bands * BAND * columns,
        bytes: matrices.each_ref().map(|matrix| matrix.size() as usize),
        seconds,
        largest_difference: all.iter().zip(some).map(difference).fold(0.0, f32::max),
    })
}

/// A matrix with all its units, and the same without those of zeros.
fn matrices(
    table: &Table,
    SparseCase { dtype, columns, density, .. }: SparseCase,
    (grid, band_bytes): (UnitGrid, usize),
    random: &mut Random,
) -> Result<[PackedMatrix; 2], Error> {
    let mut drawn = vec![vec![0; band_bytes]; DRAWN_BANDS];
    for band in &mut drawn {
        let values = random.numbers(BAND * columns);
        pack_band(dtype, columns, &dtype.pack_matrix(BAND, columns, &values)?, band);
    }
    let mut whole = Aligned::<u8>::zeroed(grid.bands * band_bytes, "the weights")?;
    let mut masks = vec![0; grid.bands * grid.mask_words()];
    let present = (density * grid.units as f64).round() as usize;
    for ((band, mask), drawn) in whole
        .chunks_exact_mut(band_bytes)
        .zip(masks.chunks_exact_mut(grid.mask_words()))
        .zip(drawn.iter().cycle())
    {
        band.copy_from_slice(drawn);
        // The first units of a random order.
        let mut order: Vec<usize> = (0..grid.units).collect();
        (0..present).for_each(|at| order.swap(at, at + random.below(grid.units - at)));
        for unit in &order[present..] {
            band[unit * grid.unit_bytes()..(unit + 1) * grid.unit_bytes()].fill(0);
        }
        grid.scan(table, band, mask);
    }
    let mut compact = Aligned::<u8>::zeroed(whole.len(), "the weights")?;
    compact.copy_from_slice(&whole);
    let places = match PresentUnits::of_masks(grid, &masks) {
        None => BandPlaces::Equal(band_bytes),
        Some(present) => {
            let end = present.compact(&mut compact, 0, 0);
            compact.truncate(end);
            BandPlaces::Present(present)
        }
    };
    let shape = PackedShape { experts: 1, rows: grid.bands * BAND, columns, row_parts: 1 };
    let matrix = |memory: Aligned<u8>, places: BandPlaces| {
        let range = 0..memory.len();
        let bytes = SharedBytes::part(BytesOwner::Memory(Arc::new(memory)), range);
        let mut matrices =
            PackedMatrix::of_weight("weights", grid.layout, shape, &FilledWeight { bytes, places });
        matrices.pop().expect("one matrix")
    };
    Ok([matrix(whole, BandPlaces::Equal(band_bytes)), matrix(compact, places)])
}

/// Activations, and what a product needs beside its operands.
struct SparseTrial<'a> {
    table: &'a Table,
    pool: &'a ThreadPool,
    kind: ActivationKind,
    rows: usize,
    columns: usize,
    words: Vec<u32>,
    locals: Vec<Aligned<f32>>,
}

impl SparseTrial<'_> {
    fn pack(&mut self, values: &[f32]) {
        let SparseTrial { table, pool, kind, columns, words, locals, .. } = self;
        let mut executor =
            Executor { table, pool, locals, partials: &mut [], words: &mut [], variant: [""; 4] };
        linear::pack_activations(&mut executor, *kind, SourceRows::Rows(values), *columns, words);
    }

    /// Multiplies once; returns the seconds that it took.
    fn seconds(&mut self, weight: &PackedMatrix, output: &mut [f32]) -> f64 {
        let SparseTrial { table, pool, kind, rows, columns, words, locals } = self;
        let x = PackedActivations { kind: *kind, rows: *rows, width: *columns, words };
        let matmuls = [Some(MatmulOperands { x, weight, bias: None, adapters: None }), None, None, None];
        let mut executor =
            Executor { table, pool, locals, partials: &mut [], words: &mut [], variant: [""; 4] };
        let begun = Instant::now();
        linear::linear(&mut executor, matmuls, Epilogue::Store, [output, &mut [], &mut [], &mut []]);
        begun.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tables;

    #[test]
    fn results_are_equal_and_zeros_are_left_out() {
        for (dtype, rows) in [(DType::Q4_0, 1), (DType::BF16, 9)] {
            let case = SparseCase { dtype, columns: 2048, rows, density: 0.25 };
            let rates = small(case);
            assert_eq!(rates.largest_difference, 0.0, "{dtype}");
            assert_eq!(rates.bytes[1] * 4, rates.bytes[0], "{dtype}");
            assert_eq!(rates.seconds.len(), 2);
        }
    }

    fn small(case: SparseCase) -> SparseRates {
        measure_bands(&tables()[0], 2, case, 2, 3).unwrap()
    }

    #[test]
    fn a_format_without_blocks_is_refused() {
        let case = SparseCase { dtype: DType::I8, columns: 2048, rows: 1, density: 0.5 };
        let error = measure(&tables()[0], 1, case, 1).unwrap_err();
        assert!(error.to_string().starts_with("i8 with 2048 columns has no blocks to skip"), "{error}");
    }
}
