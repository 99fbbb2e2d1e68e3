//! Chooses the prefetch distance of this machine by measurement: kernels for one column and for
//! several read bands of weights, with one distance after another.
//!
//! Bytes moved: `TRIAL_BYTES` for each distance, each number of columns and each round.

use std::hint::black_box;
use std::time::Instant;

use girih_graph::Error;

use crate::kernels::Table;
use crate::kernels::packed::{BAND, Band, GROUP, Layout, Sums};
use crate::kernels::prefetch::{self, PrefetchDistance};
use crate::memory::Aligned;
use crate::pool::{Grid, ThreadPool};
use crate::weights::CpuWeights;

/// Bytes of weights that are read: twice the share of L3 that one process gets on most
/// processors, so that they come from memory in every round.
const TRIAL_BYTES: usize = 64 << 20;

/// The numbers of columns that are measured, for few columns and for more.
const TRIED_COLUMNS: [usize; 2] = [1, 4];

/// The number of rounds; the fastest one counts, because disturbances only slow a round down.
const TRIAL_ROUNDS: usize = 2;

/// Bands in a piece.
const TRIAL_PIECE_BANDS: usize = 4;

/// How fast weights are read with one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadRate {
    /// The distance.
    pub distance: PrefetchDistance,
    /// Columns of activations.
    pub columns: usize,
    /// Bytes of weights per second, of all threads together.
    pub bytes: f64,
    /// Whether this distance is the fastest for this number of columns.
    pub chosen: bool,
}

/// Chooses the distances for the weights of a model, with bands of its most frequent layout among
/// those that are read line after line. Keeps the defaults if a model is so small that caches may
/// hold it.
pub(crate) fn choose(table: &Table, pool: &ThreadPool, weights: &CpuWeights) {
    let mut layouts: Vec<(Layout, u64)> = Vec::new();
    for matrix in weights.matrices().filter(|matrix| is_read_in_order(matrix.layout)) {
        match layouts.iter_mut().find(|(layout, _)| *layout == matrix.layout) {
            Some((_, bytes)) => *bytes += matrix.size(),
            None => layouts.push((matrix.layout, matrix.size())),
        }
    }
    let Some((layout, _)) = layouts.into_iter().max_by_key(|&(_, bytes)| bytes) else { return };
    let matrices = weights.matrices().filter(|matrix| matrix.layout == layout);
    let bands = matrices.flat_map(|matrix| (0..matrix.rows.div_ceil(BAND)).map(|band| matrix.band(band)));
    let bands = first_bytes(bands);
    if bands.iter().map(|band| band.bytes.len()).sum::<usize>() >= TRIAL_BYTES {
        use_fastest(&rates(table, pool, &bands));
    }
}

/// Measures each distance on this machine with weights of `layout`, and chooses the fastest.
///
/// # Errors
/// If there is not enough memory, or the threads cannot be started.
///
/// # Panics
/// If kernels do not read this layout line after line.
pub fn measure(table: &Table, threads: usize, layout: Layout) -> Result<Vec<ReadRate>, Error> {
    const TRIAL_COLUMNS: usize = 2048;
    assert!(is_read_in_order(layout), "{layout:?} is not read line after line");
    let pool = ThreadPool::pinned(threads, None)?;
    let each = layout.band_bytes(TRIAL_COLUMNS).expect("a band of moderate size");
    let mut bytes =
        Aligned::<u8>::zeroed(TRIAL_BYTES.next_multiple_of(each), "measuring prefetch distances")?;
    bytes.fill(0x11);
    let bands = bytes.chunks_exact(each).map(|bytes| Band { layout, columns: TRIAL_COLUMNS, bytes });
    let rates = rates(table, &pool, &bands.collect::<Vec<_>>());
    use_fastest(&rates);
    Ok(rates)
}

/// Whether kernels read a layout line after line, in the order of memory.
fn is_read_in_order(layout: Layout) -> bool {
    match layout.parts() {
        Some((_, scales)) => scales.groups() == 1,
        None => matches!(layout, Layout::Bf16 | Layout::F16 | Layout::F32),
    }
}

/// Returns the first bands that hold [`TRIAL_BYTES`] together.
fn first_bytes<'a>(bands: impl Iterator<Item = Band<'a>>) -> Vec<Band<'a>> {
    let mut left = TRIAL_BYTES;
    let enough = |band: &Band<'_>| {
        let more = left > 0;
        left = left.saturating_sub(band.bytes.len());
        more
    };
    bands.take_while(enough).collect()
}

/// Sets the fastest distances for the kernels.
fn use_fastest(rates: &[ReadRate]) {
    rates
        .iter()
        .filter(|rate| rate.chosen)
        .for_each(|rate| prefetch::set_distance(rate.columns, rate.distance));
}

/// Measures each distance with each number of columns.
fn rates(table: &Table, pool: &ThreadPool, bands: &[Band<'_>]) -> Vec<ReadRate> {
    let bytes = bands.iter().map(|band| band.bytes.len()).sum::<usize>() as f64;
    let mut all = Vec::new();
    for columns in TRIED_COLUMNS {
        let mut best = [f64::INFINITY; PrefetchDistance::ALL.len()];
        for _ in 0..TRIAL_ROUNDS {
            for (ahead, best) in PrefetchDistance::ALL.into_iter().zip(&mut best) {
                prefetch::set_distance(columns, ahead);
                *best = best.min(seconds(table, pool, bands, columns));
            }
        }
        let fastest = best.into_iter().fold(f64::INFINITY, f64::min);
        all.extend(PrefetchDistance::ALL.into_iter().zip(best).map(|(ahead, seconds)| ReadRate {
            distance: ahead,
            columns,
            bytes: bytes / seconds,
            chosen: seconds == fastest,
        }));
    }
    all
}

/// Returns the seconds of reading all bands once.
fn seconds(table: &Table, pool: &ThreadPool, bands: &[Band<'_>], columns: usize) -> f64 {
    let words = |band: &Band<'_>| match band.layout.coding() {
        Some(coding) => band.columns.div_ceil(GROUP) * coding.words() * columns,
        None => band.columns.next_multiple_of(2) * columns,
    };
    let x = vec![0; bands.iter().map(words).max().unwrap_or(0)];
    let mut seen = vec![0u8; bands.len()];
    let mut locals = vec![(); pool.threads()];
    let grid = Grid { width: bands.len().max(1), row_step: 1, column_step: TRIAL_PIECE_BANDS };
    let begun = Instant::now();
    pool.tiles(&mut locals, &mut seen, grid, |tile, ()| {
        for band in &bands[tile.columns()] {
            let (x, mut sums) = (&x[..words(band)], [[0.0; BAND]; TRIED_COLUMNS[1]]);
            let sums: &mut [Sums] = &mut sums[..columns];
            match band.layout.coding() {
                Some(_) => (table.matmul.narrow)(*band, x, sums),
                None => (table.matmul.floats)(*band, 0, x, sums),
            }
            black_box(sums);
        }
    });
    begun.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tables;

    #[test]
    fn the_fastest_distance_is_chosen_for_each_number_of_columns() {
        let pool = ThreadPool::pinned(2, None).unwrap();
        for (layout, table) in [Layout::Q4_0, Layout::Bf16].into_iter().zip(tables()) {
            let bytes = vec![0x11; 40 * layout.band_bytes(64).unwrap()];
            let bands: Vec<_> =
                bytes.chunks(bytes.len() / 40).map(|bytes| Band { layout, columns: 64, bytes }).collect();
            let rates = rates(table, &pool, &bands);
            assert_eq!(rates.len(), TRIED_COLUMNS.len() * PrefetchDistance::ALL.len());
            for columns in TRIED_COLUMNS {
                let of = || rates.iter().filter(|rate| rate.columns == columns);
                let max = of().map(|rate| rate.bytes).fold(0.0, f64::max);
                assert!(of().any(|rate| rate.chosen && rate.bytes == max), "{rates:?}");
                assert!(of().all(|rate| !rate.chosen || rate.bytes == max), "{rates:?}");
            }
        }
    }

    #[test]
    fn the_first_bands_reach_the_bytes_that_are_read() {
        let bytes = vec![0; 30 << 20];
        let band = Band { layout: Layout::Q4_0, columns: 64, bytes: &bytes };
        assert_eq!(first_bytes(std::iter::repeat_n(band, 10)).len(), 3);
        assert_eq!(first_bytes(std::iter::repeat_n(band, 2)).len(), 2);
    }
}
