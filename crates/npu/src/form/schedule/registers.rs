//! The registers of a descriptor: which dimensions they hold.
//!
//! The innermost dimension is `d0`. A size register holds at most
//! [`max_wrap`](DmaSpec::max_wrap); the outermost of a tile's dimensions has no size
//! register, as the length of the transfer ends it. A transfer that is one contiguous
//! run needs the length register only (mlir-aie `AIEXDialect.cpp`, `verifyStridesWraps`
//! and `LinearizeContiguousTransfer`).

use super::Dim;
use crate::target::DmaSpec;

/// Returns the sentence of the register that cannot hold its part of a transfer.
pub(crate) fn register_fault(dims: &[Dim], iteration: Option<Dim>, dma: &DmaSpec) -> Option<String> {
    let count = dims.len();
    if count == 0 || count > dma.dimensions as usize {
        return Some(format!("has {count} dimensions; 1..={} is allowed", dma.dimensions));
    }
    let words = dims.iter().map(|dim| u64::from(dim.size)).fold(1, u64::saturating_mul);
    if words == 0 || words > dma.max_words {
        return Some(format!("moves {words} words; 1..={} is allowed", dma.max_words));
    }
    let max = dma.max_stride_words;
    let stride = |dim: &Dim, min: u64| {
        let steps = dim.size > 1 && !(min..=max).contains(&u64::from(dim.stride));
        steps.then(|| format!("has a stride of {} words; {min}..={max} is allowed", dim.stride))
    };
    if let Some(dim) = iteration {
        if dim.size == 0 || dim.size > dma.max_iterations {
            return Some(format!("has {} iterations; 1..={} is allowed", dim.size, dma.max_iterations));
        }
        if let Some(sentence) = stride(&dim, 0) {
            return Some(sentence);
        }
    }
    if is_one_run(dims) {
        return None;
    }
    let wrap = dma.max_wrap;
    let mut inner = dims.iter().rev().enumerate().take(dma.dimensions as usize - 1);
    let wide = inner.find(|(_, dim)| dim.size > wrap);
    let wide = wide.map(|(at, dim)| format!("has {} steps in d{at}; 1..={wrap} is allowed", dim.size));
    wide.or_else(|| dims.iter().find_map(|dim| stride(dim, 1)))
}

/// Returns the sentence of a stride that is no multiple of the contiguous run of a transfer. The
/// hardware moves such words, too; but layouts have rows of whole runs, so a stride that is off by a
/// word reads or writes the words of a neighbour.
pub(crate) fn stride_fault(dims: &[Dim], iteration: Option<Dim>) -> Option<String> {
    let dims = merged(dims);
    let (run, outer) = match dims.split_last() {
        Some((Dim { size, stride: 1 }, outer)) => (*size, outer),
        _ => return None,
    };
    let steps = outer.iter().chain(&iteration).filter(|dim| dim.size > 1);
    let off = steps.map(|dim| dim.stride).find(|stride| stride % run.max(1) != 0)?;
    Some(format!("has a stride of {off} words; a multiple of its run of {run} words is needed"))
}

/// Whether the dimensions are one run of contiguous words.
fn is_one_run(dims: &[Dim]) -> bool {
    matches!(merged(dims)[..], [Dim { size: 1, .. } | Dim { stride: 1, .. }])
}

/// Returns the dimensions without those of size 1, and with contiguous ones merged.
pub(crate) fn merged(dims: &[Dim]) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::new();
    for &dim in dims.iter().filter(|dim| dim.size != 1) {
        match merged.last_mut() {
            Some(outer) if u64::from(outer.stride) == u64::from(dim.size) * u64::from(dim.stride) => {
                match outer.size.checked_mul(dim.size) {
                    Some(size) => *outer = Dim { size, stride: dim.stride },
                    None => merged.push(dim),
                }
            }
            _ => merged.push(dim),
        }
    }
    if merged.is_empty() {
        merged.push(Dim { size: 1, stride: 1 });
    }
    merged
}
