//! Which distance of reading ahead suits this machine, by measurement: kernels
//! for one column and for several go through bands of weights, with each
//! distance in turns.
//!
//! Bytes moved: `BYTES` for each distance, each number of columns and each round.

use std::hint::black_box;
use std::time::Instant;

use girih_graph::Error;

use crate::kernels::Table;
use crate::kernels::packed::{BAND, Band, GROUP, Layout, Sums};
use crate::kernels::prefetch::{self, PrefetchDistance};
use crate::memory::Aligned;
use crate::pool::{Grid, Pool};
use crate::weights::Weights;

/// Bytes of weights that are gone through: twice what the third cache of most
/// processors holds for one process, so that they come from memory again.
const BYTES: usize = 64 << 20;

/// Numbers of columns that are tried, and stand for few and for more.
const COLUMNS: [usize; 2] = [1, 4];

/// Rounds, of which the fastest counts: what disturbs one only slows it down.
const ROUNDS: usize = 2;

/// Bands of a piece.
const PIECE: usize = 4;

/// How fast weights are read with one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The distance.
    pub ahead: PrefetchDistance,
    /// Columns of activations.
    pub columns: usize,
    /// Bytes of weights a second, of all threads together.
    pub bytes: f64,
    /// Whether it is the fastest with as many columns.
    pub chosen: bool,
}

/// Chooses for the weights of a model, by what most of those are packed as whose
/// lines are read in their order. They stay with what is usual where they are so
/// few that caches may hold them.
pub(crate) fn choose(table: &Table, pool: &Pool, weights: &Weights) {
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
    if bands.iter().map(|band| band.bytes.len()).sum::<usize>() >= BYTES {
        settle(&rates(table, pool, &bands));
    }
}

/// How fast each distance is on this machine, with weights of a layout whose
/// lines are read in their order; the fastest are chosen.
///
/// # Errors
/// When memory is short, or the system gives fewer threads.
///
/// # Panics
/// When the layout is none of these.
pub fn measure(table: &Table, threads: usize, layout: Layout) -> Result<Vec<Rate>, Error> {
    const WIDTH: usize = 2048;
    assert!(is_read_in_order(layout), "{layout:?} is not read line after line");
    let pool = Pool::placed(threads, None)?;
    let each = layout.band_bytes(WIDTH).expect("a band of moderate size");
    let mut bytes = Aligned::<u8>::zeroed(BYTES.next_multiple_of(each), "a trial of reading ahead")?;
    bytes.fill(0x11);
    let bands = bytes.chunks_exact(each).map(|bytes| Band { layout, columns: WIDTH, bytes });
    let rates = rates(table, &pool, &bands.collect::<Vec<_>>());
    settle(&rates);
    Ok(rates)
}

/// Whether kernels read a layout as it is packed, line after line.
fn is_read_in_order(layout: Layout) -> bool {
    match layout.parts() {
        Some((_, scales)) => scales.groups() == 1,
        None => matches!(layout, Layout::Bf16 | Layout::F16 | Layout::F32),
    }
}

/// The first bands that hold [`BYTES`] together.
fn first_bytes<'a>(bands: impl Iterator<Item = Band<'a>>) -> Vec<Band<'a>> {
    let mut left = BYTES;
    let enough = |band: &Band<'_>| {
        let more = left > 0;
        left = left.saturating_sub(band.bytes.len());
        more
    };
    bands.take_while(enough).collect()
}

/// Lets kernels use the fastest.
fn settle(rates: &[Rate]) {
    rates.iter().filter(|rate| rate.chosen).for_each(|rate| prefetch::set_distance(rate.columns, rate.ahead));
}

/// Measures each distance with each number of columns.
fn rates(table: &Table, pool: &Pool, bands: &[Band<'_>]) -> Vec<Rate> {
    let bytes = bands.iter().map(|band| band.bytes.len()).sum::<usize>() as f64;
    let mut all = Vec::new();
    for columns in COLUMNS {
        let mut best = [f64::INFINITY; PrefetchDistance::ALL.len()];
        for _ in 0..ROUNDS {
            for (ahead, best) in PrefetchDistance::ALL.into_iter().zip(&mut best) {
                prefetch::set_distance(columns, ahead);
                *best = best.min(seconds(table, pool, bands, columns));
            }
        }
        let least = best.into_iter().fold(f64::INFINITY, f64::min);
        all.extend(PrefetchDistance::ALL.into_iter().zip(best).map(|(ahead, seconds)| Rate {
            ahead,
            columns,
            bytes: bytes / seconds,
            chosen: seconds == least,
        }));
    }
    all
}

/// Goes through the bands once.
fn seconds(table: &Table, pool: &Pool, bands: &[Band<'_>], columns: usize) -> f64 {
    let words = |band: &Band<'_>| match band.layout.coding() {
        Some(coding) => band.columns.div_ceil(GROUP) * coding.words() * columns,
        None => band.columns.next_multiple_of(2) * columns,
    };
    let x = vec![0; bands.iter().map(words).max().unwrap_or(0)];
    let mut seen = vec![0u8; bands.len()];
    let mut locals = vec![(); pool.threads()];
    let grid = Grid { width: bands.len().max(1), row_step: 1, column_step: PIECE };
    let begun = Instant::now();
    pool.tiles(&mut locals, &mut seen, grid, |tile, ()| {
        for band in &bands[tile.columns()] {
            let (x, mut sums) = (&x[..words(band)], [[0.0; BAND]; COLUMNS[1]]);
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
    fn one_distance_is_the_fastest_for_each_number_of_columns() {
        let pool = Pool::placed(2, None).unwrap();
        for (layout, table) in [Layout::Q4_0, Layout::Bf16].into_iter().zip(tables()) {
            let bytes = vec![0x11; 40 * layout.band_bytes(64).unwrap()];
            let bands: Vec<_> =
                bytes.chunks(bytes.len() / 40).map(|bytes| Band { layout, columns: 64, bytes }).collect();
            let rates = rates(table, &pool, &bands);
            assert_eq!(rates.len(), COLUMNS.len() * PrefetchDistance::ALL.len());
            for columns in COLUMNS {
                let of = || rates.iter().filter(|rate| rate.columns == columns);
                let most = of().map(|rate| rate.bytes).fold(0.0, f64::max);
                assert!(of().any(|rate| rate.chosen && rate.bytes == most), "{rates:?}");
                assert!(of().all(|rate| !rate.chosen || rate.bytes == most), "{rates:?}");
            }
        }
    }

    #[test]
    fn the_first_bands_are_enough_and_no_more() {
        let bytes = vec![0; 30 << 20];
        let band = Band { layout: Layout::Q4_0, columns: 64, bytes: &bytes };
        assert_eq!(first_bytes(std::iter::repeat_n(band, 10)).len(), 3);
        assert_eq!(first_bytes(std::iter::repeat_n(band, 2)).len(), 2);
    }
}
