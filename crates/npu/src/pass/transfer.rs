//! Transfers in descriptors: a pattern of dimensions is factored until the registers of
//! one descriptor hold it, or divided among an iteration, several tasks, or several
//! descriptors.

use crate::form::schedule::Dim;
use crate::form::schedule::registers::{merged, register_fault};
use crate::form::tiled::Sweep;
use crate::target::DmaSpec;

/// The dimensions of a stream in DRAM, divided: the inner ones in one descriptor, the
/// next one in the runs of a task, the others in tasks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SplitTransfer {
    /// The dimensions of the descriptor, outermost first.
    pub inner: Vec<Dim>,
    /// The dimension that advances from run to run; none if the runs are alike.
    pub iteration: Option<Dim>,
    /// The runs of a task.
    pub repeats: u32,
    outer: Vec<Dim>,
    /// The tasks, if they do not all have the same number of runs.
    swept: Option<Vec<ShimTask>>,
}

/// One task of a shim channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShimTask {
    /// Bytes added to the descriptor's address.
    pub offset: i64,
    /// The number of runs of the descriptor.
    pub repeats: u32,
}

impl SplitTransfer {
    /// Divides dimensions, outermost first, into the fewest tasks.
    pub fn of(dims: &[Dim], dma: &DmaSpec) -> SplitTransfer {
        let dims = merged(dims);
        let with = |count: usize| {
            let (rest, inner) = dims.split_at(dims.len() - count);
            Some(SplitTransfer::around(in_registers(inner, dma)?, rest, dma))
        };
        let word = || SplitTransfer::around(vec![Dim { size: 1, stride: 1 }], &dims, dma);
        let splits = (1..=dims.len()).rev().filter_map(with);
        splits.min_by_key(SplitTransfer::tasks).unwrap_or_else(word)
    }

    /// Puts as much of the next dimension as possible into the runs of a task. A
    /// stride of 0 is a repeat, which needs no iteration.
    fn around(inner: Vec<Dim>, rest: &[Dim], dma: &DmaSpec) -> SplitTransfer {
        let mut split =
            SplitTransfer { inner, iteration: None, repeats: 1, outer: rest.to_vec(), swept: None };
        let Some(&dim) = rest.last().filter(|dim| u64::from(dim.stride) <= dma.max_stride_words) else {
            return split;
        };
        let is_repeat = dim.stride == 0;
        let max = if is_repeat { dma.max_repeat } else { dma.max_repeat.min(dma.max_iterations) };
        let (outer, own) = factored(dim, max);
        split.outer.pop();
        split.outer.extend(outer);
        split.repeats = own.size;
        split.iteration = (!is_repeat && own.size > 1).then_some(own);
        split
    }

    /// Divides the dimensions of a stream whose second and third are divided into sweeps:
    /// a step of the third is a run of the descriptor, a sweep is one task or more. Stops
    /// after more than `max` tasks.
    pub fn swept(dims: &[Dim], sweeps: &[Sweep], dma: &DmaSpec, max: u64) -> SplitTransfer {
        let (outer, steps) = (dims[0], dims[2]);
        let inner = SplitTransfer::of(&dims[3..], dma);
        let runs =
            u64::from(steps.stride) <= dma.max_stride_words && inner.repeats == 1 && inner.tasks() == 1;
        let most = if runs { dma.max_repeat.min(dma.max_iterations) } else { 1 };
        let longest = sweeps.iter().map(|sweep| sweep.count.min(most)).max().unwrap_or(1);
        let (inner_tasks, bytes) =
            (inner.each(), |at: u32, dim: Dim| i64::from(at) * i64::from(dim.stride) * 4);
        let mut tasks = Vec::new();
        for head in 0..outer.size {
            for (first, sweep) in sweeps.iter().flat_map(|sweep| sweep.firsts().map(move |at| (at, sweep))) {
                for at in (0..sweep.count).step_by(longest as usize) {
                    let offset = bytes(head, outer) + bytes(first + at, steps);
                    let count = longest.min(sweep.count - at);
                    tasks.extend(inner_tasks.iter().map(|task| ShimTask {
                        offset: offset + task.offset,
                        repeats: if runs { count } else { task.repeats },
                    }));
                }
                if tasks.len() as u64 > max {
                    return SplitTransfer { swept: Some(tasks), ..inner };
                }
            }
        }
        let iteration = if runs { Some(Dim { size: longest, ..steps }) } else { inner.iteration };
        let iteration = iteration.filter(|dim| dim.size > 1);
        SplitTransfer { iteration, swept: Some(tasks), ..inner }
    }

    /// Returns the tasks.
    pub fn each(&self) -> Vec<ShimTask> {
        let alike = || self.offsets().into_iter().map(|offset| ShimTask { offset, repeats: self.repeats });
        self.swept.clone().unwrap_or_else(|| alike().collect())
    }

    /// The number of tasks.
    pub fn tasks(&self) -> u64 {
        if let Some(tasks) = &self.swept {
            return tasks.len() as u64;
        }
        self.outer.iter().map(|dim| u64::from(dim.size)).fold(1, u64::saturating_mul)
    }

    /// Returns the byte offset of each task.
    pub fn offsets(&self) -> Vec<i64> {
        let mut offsets = vec![0];
        for dim in &self.outer {
            let stride = i64::from(dim.stride) * 4;
            offsets = offsets
                .iter()
                .flat_map(|base| (0..i64::from(dim.size)).map(move |i| base + i * stride))
                .collect();
        }
        offsets
    }
}

/// Returns the word offsets and the dimensions of the descriptors that move a buffer in
/// this order; none if they are more than the tile has.
pub(super) fn descriptors(dims: &[Dim], dma: &DmaSpec) -> Option<Vec<(u32, Vec<Dim>)>> {
    if register_fault(dims, None, dma).is_none() {
        return Some(vec![(0, dims.to_vec())]);
    }
    let mut starts: Vec<u32> = vec![0];
    let mut inner = merged(dims);
    loop {
        if let Some(held) = in_registers(&inner, dma) {
            return Some(starts.into_iter().map(|at| (at, held.clone())).collect());
        }
        let first = inner.first().copied()?;
        inner.remove(0);
        let alone = inner.is_empty();
        let max = u32::try_from(dma.max_words).unwrap_or(u32::MAX);
        let (parts, own) = if alone { factored(first, max) } else { (Some(first), first) };
        let fits = |parts: &Dim| starts.len() as u64 * u64::from(parts.size) <= u64::from(dma.descriptors);
        let parts = parts.filter(fits)?;
        let each = |at: u32| (0..parts.size).map(move |i| at.saturating_add(i.saturating_mul(parts.stride)));
        starts = starts.into_iter().flat_map(each).collect();
        if alone {
            inner.push(own);
        }
    }
}

/// Returns the dimensions, outermost first, as registers hold them: a size above the
/// maximum becomes two or more dimensions; that of the outermost moves to the register
/// without a maximum.
fn in_registers(dims: &[Dim], dma: &DmaSpec) -> Option<Vec<Dim>> {
    if register_fault(dims, None, dma).is_none() {
        return Some(dims.to_vec());
    }
    let last = dma.dimensions as usize - 1;
    let mut held = Vec::new();
    for (index, &dim) in dims.iter().enumerate().rev() {
        let mut rest = dim;
        while held.len() < last && rest.size > dma.max_wrap {
            if index == 0 {
                held.resize(last, Dim { size: 1, stride: 1 });
                break;
            }
            let (outer, part) = factored(rest, dma.max_wrap);
            if part.size == 1 {
                return None;
            }
            held.push(part);
            rest = outer?;
        }
        held.push(rest);
    }
    held.reverse();
    register_fault(&held, None, dma).is_none().then_some(held)
}

/// Divides a dimension into an outer one and an inner one of at most `max` steps, as
/// many as divide its size. There is no outer one if the inner one is the whole.
fn factored(dim: Dim, max: u32) -> (Option<Dim>, Dim) {
    let size = (1..=max.min(dim.size)).rev().find(|&size| dim.size.is_multiple_of(size)).unwrap_or(1);
    match dim.stride.checked_mul(size) {
        Some(stride) if size < dim.size => (Some(Dim { size: dim.size / size, stride }), Dim { size, ..dim }),
        Some(_) => (None, dim),
        None => (Some(dim), Dim { size: 1, stride: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn dims(list: &[(u32, u32)]) -> Vec<Dim> {
        list.iter().map(|&(size, stride)| Dim { size, stride }).collect()
    }

    /// The offsets of all words, in order.
    fn words(dims: &[Dim], base: u64) -> Vec<u64> {
        dims.iter().fold(vec![base], |bases, dim| {
            let each = |base: u64| (0..dim.size).map(move |i| base + u64::from(i) * u64::from(dim.stride));
            bases.into_iter().flat_map(each).collect()
        })
    }

    /// The words that the tasks of a split move, in order.
    fn moved(split: &SplitTransfer) -> Vec<u64> {
        let step = split.iteration.map_or(0, |dim| u64::from(dim.stride));
        let mut all = Vec::new();
        for offset in split.offsets() {
            for run in 0..split.repeats {
                all.extend(words(&split.inner, offset as u64 / 4 + u64::from(run) * step));
            }
        }
        all
    }

    #[test]
    fn a_size_above_the_register_is_factored() {
        let dma = Target::named("xdna2-strix").unwrap().shim.dma;
        let inner = |list: &[(u32, u32)]| SplitTransfer::of(&dims(list), &dma).inner;
        assert_eq!(inner(&[(64, 8192), (2048, 1)]), dims(&[(64, 8192), (4, 512), (512, 1)]));
        // The register of the outermost dimension has no maximum: 4093 is a prime number.
        assert_eq!(inner(&[(4093, 64), (8, 1)]), dims(&[(4093, 64), (1, 1), (8, 1)]));
        // One contiguous run needs no size register.
        assert_eq!(inner(&[(4, 65_536), (65_536, 1)]), dims(&[(262_144, 1)]));
        // A prime number of words is one run of a task.
        let prime = SplitTransfer::of(&dims(&[(128, 8192), (4093, 1)]), &dma);
        assert_eq!((prime.inner, prime.repeats, prime.outer.len()), (dims(&[(4093, 1)]), 64, 1));
        // A repeat is no iteration; iterations are fewer.
        let repeat = SplitTransfer::of(&dims(&[(200, 0), (4096, 1)]), &dma);
        assert_eq!((repeat.repeats, repeat.iteration, repeat.tasks()), (200, None, 1));
        let rows = SplitTransfer::of(&dims(&[(200, 7), (2, 9), (3, 11), (2, 5), (2, 1)]), &dma);
        assert_eq!((rows.repeats, rows.tasks()), (2, 200));
    }

    /// Whatever the factors, the words and their order stay.
    #[test]
    fn every_split_moves_the_same_words_within_the_registers() {
        let target = Target::named("xdna2-strix").unwrap();
        let mut random = girih_tensor::Random(5);
        let sizes = [1, 2, 3, 7, 64, 96, 257, 300, 1021, 1024, 1031, 2048];
        let mut several = 0;
        for _ in 0..200 {
            let mut stride = 1;
            let mut list = Vec::new();
            let mut left = 20_000;
            for _ in 0..1 + random.below(4) {
                let size = sizes[random.below(sizes.len())].min(left);
                left = (left / size).max(1);
                let again = random.below(8) == 0 && !list.is_empty();
                list.insert(0, Dim { size, stride: if again { 0 } else { stride } });
                stride = (stride * size * [1, 1, 2, 5][random.below(4)]).min(1 << 24);
            }
            let want = words(&list, 0);
            for dma in [&target.shim.dma, &target.memory.dma, &target.compute.dma] {
                let split = SplitTransfer::of(&list, dma);
                assert_eq!(register_fault(&split.inner, split.iteration, dma), None, "{list:?}");
                assert!(split.repeats <= dma.max_repeat);
                assert_eq!(moved(&split), want, "{list:?} is {split:?}");
                several += usize::from(split.tasks() > 1);
                if let Some(pieces) = descriptors(&list, dma) {
                    let found: Vec<u64> =
                        pieces.iter().flat_map(|(at, dims)| words(dims, u64::from(*at))).collect();
                    assert_eq!(found, want, "{list:?} is {pieces:?}");
                    assert!(pieces.iter().all(|(_, dims)| register_fault(dims, None, dma).is_none()));
                }
            }
        }
        assert!(several > 50, "{several} of 600 have several tasks");
    }
}
