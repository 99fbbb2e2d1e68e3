//! Chooses the prefetch distance of this machine by measurement: kernels for one column and for
//! several read windows of weights, with one distance after another.
//!
//! Each trial reads another window, and the weights are larger than caches, so all trials read from
//! memory, as decode does. A trial that hits a cache is meaningless, as any distance suffices there.
//!
//! Bytes moved: 32 MiB for each distance, each number of columns and each round, 768 MiB in all.

use std::hint::black_box;
use std::time::Instant;

use girih_graph::Error;

use crate::kernels::Table;
use crate::kernels::packed::{BAND, Band, GROUP, Layout, Sums};
use crate::kernels::prefetch::{PrefetchChoice, PrefetchDistance};
use crate::memory::Aligned;
use crate::pool::{Grid, ThreadPool};
use crate::probe::HostMachine;
use crate::weights::CpuWeights;

/// Bytes of weights that a trial reads: a millisecond, so that some of the rounds are undisturbed.
const WINDOW_BYTES: usize = 32 << 20;

/// The numbers of columns that are measured, for few columns and for more.
const TRIED_COLUMNS: [usize; 2] = [1, 4];

/// The number of rounds; the fastest one counts, because disturbances only slow a round down.
const TRIAL_ROUNDS: usize = 4;

/// The gain over the default from which another distance is chosen. A wrong choice costs up to a
/// quarter of decode's speed, and trials on a shared machine differ by a few percent.
const LEAST_GAIN: f64 = 1.05;

/// The multiple of L3 that the weights must have: then what a trial leaves in the cache is gone when
/// the same window comes again.
const LEAST_CACHES: usize = 2;

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
    /// Whether this distance is the choice for this number of columns.
    pub chosen: bool,
}

/// Chooses the distances for the weights of a model, with bands of its most frequent layout among
/// those that are read line after line. Returns the default if that layout has so few bytes that
/// caches may hold them.
pub(crate) fn choose(table: &Table, pool: &ThreadPool, weights: &CpuWeights) -> PrefetchChoice {
    let mut layouts: Vec<(Layout, u64)> = Vec::new();
    for matrix in weights.matrices().filter(|matrix| is_read_in_order(matrix.layout)) {
        match layouts.iter_mut().find(|(layout, _)| *layout == matrix.layout) {
            Some((_, bytes)) => *bytes += matrix.size(),
            None => layouts.push((matrix.layout, matrix.size())),
        }
    }
    let most = layouts.into_iter().max_by_key(|&(_, bytes)| bytes);
    let Some((layout, _)) = most.filter(|&(_, bytes)| bytes >= least_bytes() as u64) else {
        return PrefetchChoice::DEFAULT;
    };
    let matrices = weights.matrices().filter(|matrix| matrix.layout == layout);
    let bands = matrices.flat_map(|matrix| (0..matrix.rows.div_ceil(BAND)).map(|band| matrix.band(band)));
    choice(&rates(table, pool, &bands.collect::<Vec<_>>()))
}

/// Measures each distance on this machine with weights of `layout`.
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
        Aligned::<u8>::zeroed(least_bytes().next_multiple_of(each), "measuring prefetch distances")?;
    bytes.fill(0x11);
    let prefetch = PrefetchChoice::DEFAULT;
    let bands =
        bytes.chunks_exact(each).map(|bytes| Band { layout, columns: TRIAL_COLUMNS, bytes, prefetch });
    Ok(rates(table, &pool, &bands.collect::<Vec<_>>()))
}

/// The bytes from which on weights are read from memory in every trial.
fn least_bytes() -> usize {
    let caches = HostMachine::here().caches.all_from(3);
    // What is left behind the last whole window is not read.
    caches.saturating_mul(LEAST_CACHES).max(2 * WINDOW_BYTES).saturating_add(WINDOW_BYTES)
}

/// Whether kernels read a layout line after line, in the order of memory.
fn is_read_in_order(layout: Layout) -> bool {
    match layout.parts() {
        Some((_, scales)) => scales.groups() == 1,
        None => matches!(layout, Layout::Bf16 | Layout::F16 | Layout::F32),
    }
}

/// Cuts bands into windows of at least [`WINDOW_BYTES`]; what is left is not read.
fn windows<'a, 'b>(bands: &'b [Band<'a>]) -> Vec<&'b [Band<'a>]> {
    let (mut all, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (index, band) in bands.iter().enumerate() {
        bytes += band.bytes.len();
        if bytes >= WINDOW_BYTES {
            all.push(&bands[begin..=index]);
            (begin, bytes) = (index + 1, 0);
        }
    }
    if all.is_empty() { vec![bands] } else { all }
}

/// The chosen distances.
fn choice(rates: &[ReadRate]) -> PrefetchChoice {
    let chosen = |columns| {
        let of = rates.iter().find(|rate| rate.columns == columns && rate.chosen);
        of.map_or(PrefetchDistance::ALL[0], |rate| rate.distance)
    };
    let tile = PrefetchDistance::NONE;
    PrefetchChoice { few: chosen(TRIED_COLUMNS[0]), many: chosen(TRIED_COLUMNS[1]), tile }
}

/// The fastest distance, if it is faster than the default, the first one, by [`LEAST_GAIN`].
fn preferred(rates: &[f64]) -> usize {
    let fastest = (0..rates.len()).max_by(|&a, &b| rates[a].total_cmp(&rates[b]));
    fastest.filter(|&fastest| rates[fastest] > LEAST_GAIN * rates[0]).unwrap_or(0)
}

/// Measures each distance with each number of columns.
fn rates(table: &Table, pool: &ThreadPool, bands: &[Band<'_>]) -> Vec<ReadRate> {
    let windows = windows(bands);
    let mut windows = windows.iter().cycle();
    let mut all = Vec::new();
    for columns in TRIED_COLUMNS {
        let mut best = [0.0f64; PrefetchDistance::ALL.len()];
        for _ in 0..TRIAL_ROUNDS {
            for (distance, best) in PrefetchDistance::ALL.into_iter().zip(&mut best) {
                let prefetch = PrefetchChoice::narrow(distance);
                let window = windows.next().expect("there is a window, and it comes again");
                let bands: Vec<_> = window.iter().map(|band| Band { prefetch, ..*band }).collect();
                let bytes = bands.iter().map(|band| band.bytes.len()).sum::<usize>() as f64;
                *best = best.max(bytes / seconds(table, pool, &bands, columns));
            }
        }
        let chosen = preferred(&best);
        all.extend(PrefetchDistance::ALL.into_iter().zip(best).enumerate().map(
            |(index, (distance, bytes))| ReadRate { distance, columns, bytes, chosen: index == chosen },
        ));
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
    fn one_distance_is_chosen_for_each_number_of_columns() {
        let pool = ThreadPool::pinned(2, None).unwrap();
        let prefetch = PrefetchChoice::DEFAULT;
        for (layout, table) in [Layout::Q4_0, Layout::Bf16].into_iter().zip(tables()) {
            let bytes = vec![0x11; 40 * layout.band_bytes(64).unwrap()];
            let bands = bytes.chunks(bytes.len() / 40);
            let bands: Vec<_> = bands.map(|bytes| Band { layout, columns: 64, bytes, prefetch }).collect();
            let rates = rates(table, &pool, &bands);
            assert_eq!(rates.len(), TRIED_COLUMNS.len() * PrefetchDistance::ALL.len());
            for columns in TRIED_COLUMNS {
                let of: Vec<_> = rates.iter().filter(|rate| rate.columns == columns).collect();
                assert_eq!(of.iter().filter(|rate| rate.chosen).count(), 1, "{rates:?}");
                let best = preferred(&of.iter().map(|rate| rate.bytes).collect::<Vec<_>>());
                assert!(of[best].chosen, "{rates:?}");
            }
        }
    }

    #[test]
    fn a_small_gain_keeps_the_default() {
        assert_eq!(preferred(&[30.0, 31.0, 20.0]), 0);
        assert_eq!(preferred(&[30.0, 31.6, 20.0]), 1);
        assert_eq!(preferred(&[30.0, 32.0, 40.0]), 2);
        assert_eq!(preferred(&[30.0, 30.0, 30.0]), 0);
        assert_eq!(preferred(&[f64::INFINITY, 1.0, 1.0]), 0);
    }

    #[test]
    fn windows_do_not_overlap_and_a_small_model_has_one() {
        let bytes = vec![0; 12 << 20];
        let band =
            Band { layout: Layout::Q4_0, columns: 64, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
        let counts =
            |bands: usize| windows(&vec![band; bands]).iter().map(|bands| bands.len()).collect::<Vec<_>>();
        assert_eq!(counts(10), [3, 3, 3]);
        assert_eq!(counts(2), [2]);
        assert_eq!(counts(0), [0]);
    }
}
