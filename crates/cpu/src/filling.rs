//! Fills the memory of packed weights, band by band, on all threads, and moves together what is not zero.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use girih_graph::{Error, ErrorKind, Value, WeightSource};

use crate::equal_weights::{EqualWeights, first_equal};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, LINE, bands};
use crate::memory::{Aligned, BytesOwner, SharedBytes};
use crate::memory_policy::PagePlacement;
use crate::pack::pack_band;
use crate::packed_matrix::PackedShape;
use crate::pool::{Grid, ThreadPool};
use crate::present::{BandPlaces, FilledWeight, PresentUnits, UnitGrid};

/// Fills a band of zeros of a weight; the vector is a buffer for its stored bytes.
pub(crate) type FillBand<'a> =
    dyn Fn((&Value, PackedShape), usize, &mut Vec<u8>, &mut [u8]) -> Result<(), Error> + Sync + 'a;
/// A weight to be filled.
pub(crate) struct UnfilledWeight<'a> {
    pub value: &'a Value,
    pub shape: PackedShape,
    /// The units that may be left out, if its bands are filled whole.
    pub grid: Option<UnitGrid>,
    /// The units that its bands have, if they are known.
    pub places: Option<BandPlaces>,
}

/// The range of a weight in the memory that holds all matrices. In one memory nearly all of it is in
/// huge pages; when matrices were allocated one by one, a tenth of a model was in pages of 4 KiB
/// (small matrices, such as those of keys, entirely).
struct MatrixRange<'a> {
    value: &'a Value,
    shape: PackedShape,
    range: Range<usize>,
    places: BandPlaces,
    /// The units that are searched for zeros.
    grid: Option<UnitGrid>,
}

impl MatrixRange<'_> {
    /// Places one weight after another, each at the start of a cache line.
    fn of_all<'a>(weights: impl Iterator<Item = UnfilledWeight<'a>>) -> Result<Vec<MatrixRange<'a>>, Error> {
        let mut end = 0;
        let range = |weight: UnfilledWeight<'a>| {
            let UnfilledWeight { value, shape, grid, places } = weight;
            let (band_bytes, dense) = shape.sizes(value)?;
            let (places, grid) = match places {
                Some(places) => (places, None),
                None => (BandPlaces::Equal(band_bytes), grid),
            };
            let all = places.bytes(0..bands(shape.rows) * shape.experts).end;
            debug_assert!(all <= dense, "units are left out, not added");
            let next = all.checked_next_multiple_of(LINE).and_then(|all| all.checked_add(end));
            let start = end;
            let too_large =
                || Error::new(format!("the weights up to '{}' exceed the address space", value.name));
            end = next.ok_or_else(too_large)?;
            Ok(MatrixRange { value, shape, range: start..start + all, places, grid })
        };
        weights.map(range).collect()
    }

    /// The bytes of all matrices.
    fn end(ranges: &[MatrixRange<'_>]) -> usize {
        ranges.last().map_or(0, |matrix| matrix.range.end)
    }

    /// The words of the masks of all its bands.
    fn mask_words(&self) -> usize {
        self.grid.map_or(0, |grid| grid.bands * grid.mask_words())
    }
}

/// The bytes that weights take with all their units.
pub(crate) fn planned<'a>(weights: impl Iterator<Item = UnfilledWeight<'a>>) -> u64 {
    MatrixRange::of_all(weights).map_or(u64::MAX, |ranges| Aligned::<u8>::bytes(MatrixRange::end(&ranges)))
}

/// Fills weights, each band by `fill`; of those whose zeros are searched for, units of zeros are left out where that
/// makes them sparse. Weights of equal bytes share them if `equal` says so.
///
/// # Errors
/// If `fill` fails, the first error in the order of bands; if there is not enough memory, or the system refuses
/// `placement`.
pub(crate) fn fill_weights<'a>(
    weights: impl Iterator<Item = UnfilledWeight<'a>>,
    placement: Option<&PagePlacement>,
    equal: EqualWeights,
    (table, pool): (&Table, &ThreadPool),
    fill: &FillBand<'_>,
) -> Result<Vec<FilledWeight>, Error> {
    let mut ranges = MatrixRange::of_all(weights)?;
    let mut memory = Aligned::zeroed_on(MatrixRange::end(&ranges), "the packed weights", placement)?;
    let mut masks = vec![0; ranges.iter().map(MatrixRange::mask_words).sum()];
    fill_all(&ranges, (&mut memory, &mut masks), (table, pool), fill)?;
    move_together(&mut ranges, &masks, equal, &mut memory);
    let memory = BytesOwner::Memory(Arc::new(memory));
    let filled = |MatrixRange { range, places, .. }| FilledWeight {
        bytes: SharedBytes::part(memory.clone(), range),
        places,
    };
    Ok(ranges.into_iter().map(filled).collect())
}

/// Moves together what is not left out, and what no earlier weight has, and gives back the memory behind. Bands behind
/// the first gap, those of dense weights included, then no longer lie near the threads that filled them. On machines with
/// several sockets, threads may read them across the sockets' link.
fn move_together(
    ranges: &mut [MatrixRange<'_>],
    masks: &[u64],
    equal: EqualWeights,
    memory: &mut Aligned<u8>,
) {
    let mut rest = masks;
    let sparse = ranges.iter().map(|matrix| {
        let (own, behind) = rest.split_at(matrix.mask_words());
        rest = behind;
        PresentUnits::of_masks(matrix.grid?, own).filter(|present| present.is_sparse())
    });
    let sparse: Vec<Option<Arc<PresentUnits>>> = sparse.collect();
    let first = match equal {
        EqualWeights::Keep => (0..ranges.len()).collect(),
        EqualWeights::Share => {
            let bytes: Vec<&[u8]> = ranges.iter().map(|matrix| &memory[matrix.range.clone()]).collect();
            first_equal(&bytes, |a, b| ranges[a].places == ranges[b].places && sparse[a] == sparse[b])
        }
    };
    if sparse.iter().all(Option::is_none) && first.iter().zip(0..).all(|(first, index)| *first == index) {
        return;
    }
    let mut end: usize = 0;
    for (index, present) in sparse.into_iter().enumerate() {
        if first[index] < index {
            let MatrixRange { range, places, .. } = &ranges[first[index]];
            (ranges[index].range, ranges[index].places) = (range.clone(), places.clone());
            continue;
        }
        let (matrix, start) = (&mut ranges[index], end.next_multiple_of(LINE));
        match present {
            Some(present) => {
                end = present.compact(memory, matrix.range.start, start);
                matrix.places = BandPlaces::Present(present);
            }
            None => {
                memory.copy_within(matrix.range.clone(), start);
                end = start + matrix.range.len();
            }
        }
        matrix.range = start..end;
    }
    memory.truncate(end);
}

/// A band to be filled.
struct EmptyBand<'a> {
    value: &'a Value,
    shape: PackedShape,
    band: usize,
    bytes: &'a mut [u8],
    /// The units that are searched for zeros, and where those of this band are noted.
    grid: Option<UnitGrid>,
    mask: &'a mut [u64],
    /// The part of its matrix that it belongs to.
    part: usize,
    /// Its index among the bands of all matrices.
    number: usize,
}

/// The bands of all matrices, each matrix in one part for each thread: the first part of every matrix,
/// then the second of every matrix, and so on. Memory is allocated near the thread that first writes
/// it, and in a step each thread begins with its own part of each matrix.
fn by_parts<'a>(
    ranges: &'a [MatrixRange<'_>],
    (memory, masks): (&'a mut [u8], &'a mut [u64]),
    parts: usize,
) -> Vec<EmptyBand<'a>> {
    let (mut all, mut rest, mut masks, mut end) = (Vec::new(), memory, masks, 0);
    for MatrixRange { value, shape, range, places, grid } in ranges {
        rest.split_off_mut(..range.start - end).expect("the ranges are within this memory");
        end = range.end;
        let count = bands(shape.rows) * shape.experts;
        for band in 0..count {
            let bytes = rest.split_off_mut(..places.bytes(band..band + 1).len());
            let mask = masks.split_off_mut(..grid.map_or(0, UnitGrid::mask_words));
            let bytes = bytes.expect("the bands are within this memory");
            let mask = mask.expect("each band has a mask");
            let (part, number) = (band * parts / count, all.len());
            all.push(EmptyBand { value, shape: *shape, band, bytes, grid: *grid, mask, part, number });
        }
    }
    all.sort_by_key(|empty| empty.part);
    all
}

/// Fills the bands of all matrices, in one task: threads wait for each other at the end of a task,
/// for milliseconds if one of them has lost its CPU to another process.
fn fill_all(
    ranges: &[MatrixRange<'_>],
    memory: (&mut [u8], &mut [u64]),
    (table, pool): (&Table, &ThreadPool),
    fill: &FillBand<'_>,
) -> Result<(), Error> {
    let mut bands = by_parts(ranges, memory, pool.threads());
    let mut buffers = vec![Vec::new(); pool.threads()];
    let failure = FirstError::default();
    let grid = Grid { width: 1, row_step: 1, column_step: 1 };
    pool.tiles(&mut buffers, &mut bands, grid, |tile, buffer| {
        let index = tile.rows().start;
        let [EmptyBand { value, shape, band, bytes, grid, mask, number, .. }] = tile.row(index) else {
            unreachable!("a row is one band")
        };
        if failure.is_before(*number) {
            return;
        }
        match fill((value, *shape), *band, buffer, bytes) {
            Ok(()) => grid.iter().for_each(|grid| grid.scan(table, bytes, mask)),
            Err(error) => failure.note(*number, error),
        }
    });
    failure.outcome()
}

/// The time that packing takes, summed over all threads, without reading the source.
#[derive(Debug, Default)]
pub(crate) struct PackingClock {
    nanoseconds: AtomicU64,
}

impl PackingClock {
    /// The time of each of `threads` threads.
    pub fn of_each(&self, threads: usize) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed) / threads.max(1) as u64)
    }

    fn count(&self, since: Instant) {
        let time = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(time, Ordering::Relaxed);
    }
}

/// Reads the rows of a band from the source, and packs them, which the clock times.
pub(crate) fn read_and_pack(
    (value, shape): (&Value, PackedShape),
    (source, clock): (&dyn WeightSource, &PackingClock),
    band: usize,
    stored: &mut Vec<u8>,
    packed: &mut [u8],
) -> Result<(), Error> {
    let (dtype, PackedShape { experts, rows, columns, row_parts: _ }) = (value.dtype, shape);
    let each = dtype.bytes(&value.shape)? / experts;
    let band_bytes = match dtype.tile().0 {
        1 => each / rows.max(1) * BAND,
        _ => each / bands(rows).max(1),
    };
    let (expert, band) = (band / bands(rows).max(1), band % bands(rows).max(1));
    let length = band_bytes.min(each - band * band_bytes);
    let start = expert * each + band * band_bytes;
    stored.try_reserve_exact(length.saturating_sub(stored.len())).map_err(|_| {
        let sentence = format!("cannot allocate {length} bytes to read '{}'", value.name);
        Error::with_kind(ErrorKind::OutOfMemory, sentence)
    })?;
    stored.resize(length, 0);
    source.read(&value.name, start as u64, stored)?;
    let begun = Instant::now();
    pack_band(dtype, columns, stored, packed);
    clock.count(begun);
    Ok(())
}

/// The error of the first piece that failed, in the order of pieces.
#[derive(Default)]
struct FirstError(Mutex<Option<(usize, Error)>>);

impl FirstError {
    /// Whether an earlier piece has failed, so that this one can be skipped.
    fn is_before(&self, piece: usize) -> bool {
        let noted = self.0.lock().expect("nothing panics while it holds the lock");
        noted.as_ref().is_some_and(|(first, _)| *first < piece)
    }

    fn note(&self, piece: usize, error: Error) {
        let mut noted = self.0.lock().expect("nothing panics while it holds the lock");
        if noted.as_ref().is_none_or(|(first, _)| piece < *first) {
            *noted = Some((piece, error));
        }
    }

    fn outcome(self) -> Result<(), Error> {
        match self.0.into_inner().expect("nothing panics while it holds the lock") {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::{Extent, Role};
    use girih_tensor::{DType, Shape};

    use super::*;
    use crate::piece_queue::PieceQueue;

    /// Each thread fills its own part of every matrix first, the part that it reads first in a step.
    #[test]
    fn each_part_of_all_matrices_is_filled_before_the_next() {
        let value = |name: &str, rows| Value {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: Shape::matrix(rows, 4),
            role: Role::Weight,
            outermost: Extent::Fixed,
        };
        let values = [value("a", 4 * BAND), value("b", 1), value("c", 6 * BAND)];
        let shape = |value: &Value| PackedShape {
            experts: 1,
            rows: value.shape.rows(),
            columns: value.shape.columns(),
            row_parts: 1,
        };
        let weights = values.iter();
        let weights =
            weights.map(|value| UnfilledWeight { value, shape: shape(value), grid: None, places: None });
        let ranges = MatrixRange::of_all(weights).unwrap();
        assert!(ranges.iter().all(|matrix| matrix.range.start % LINE == 0));
        let mut memory = vec![0; MatrixRange::end(&ranges)];
        let bands = by_parts(&ranges, (&mut memory, &mut []), 2);
        let order: Vec<_> = bands.iter().map(|empty| (&*empty.value.name, empty.band)).collect();
        let first = [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)];
        let second = [("a", 2), ("a", 3), ("c", 3), ("c", 4), ("c", 5)];
        assert_eq!(order, [&first[..], &second].concat());
    }

    /// The group of threads that begins with each of `pieces` pieces.
    fn groups(pieces: usize, threads: usize) -> Vec<usize> {
        let mut groups = vec![usize::MAX; pieces];
        for group in 0..=PieceQueue::new([pieces], threads).group(threads - 1) {
            let (queue, mut own) = (PieceQueue::new([pieces], threads), group);
            while let Some((_, piece)) = queue.next(&mut own)
                && own == group
            {
                groups[piece] = group;
            }
        }
        groups
    }

    /// Pages lie near the thread that first writes them. In a step, the same group of threads begins with a band, except at the
    /// ends of ranges, which are whole pieces there.
    #[test]
    fn bands_are_filled_by_the_group_that_reads_them() {
        let value = |name: &str, bands: usize| Value {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: Shape::matrix(bands * BAND, 1),
            role: Role::Weight,
            outermost: Extent::Fixed,
        };
        let values = [value("a", 64), value("b", 512), value("c", 1002)];
        let shape =
            |value: &Value| PackedShape { experts: 1, rows: value.shape.rows(), columns: 1, row_parts: 1 };
        let unfilled = |value| UnfilledWeight { value, shape: shape(value), grid: None, places: None };
        let ranges = MatrixRange::of_all(values.iter().map(unfilled)).unwrap();
        for (threads, piece) in [(2, 1), (2, 4), (16, 4), (64, 4), (96, 2), (128, 4)] {
            let mut memory = vec![0; MatrixRange::end(&ranges)];
            let filled = by_parts(&ranges, (&mut memory, &mut []), threads);
            let fillers = groups(filled.len(), threads);
            for value in &values {
                let readers = groups(bands(value.shape.rows()).div_ceil(piece), threads);
                let own = filled.iter().zip(&fillers).filter(|(empty, _)| empty.value.name == value.name);
                let others = own.filter(|(empty, filler)| readers[empty.band / piece] != **filler).count();
                let ends = readers[readers.len() - 1] * (piece + values.len());
                assert!(others <= ends, "{others} bands of '{}', {threads} threads", value.name);
            }
        }
    }
}
