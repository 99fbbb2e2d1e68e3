//! What attention has in common at both widths of x86's vectors: the formats of
//! cells, and the loops that differ in nothing but the width. The loops of
//! score and blend are each table's own, as what fits its registers differs.

use super::attend::{Cells, Format};

/// [`Format`] as a constant of a function.
pub(super) const F32: u8 = 0;
pub(super) const F16: u8 = 1;
pub(super) const BF16: u8 = 2;
pub(super) const Q8_0: u8 = 3;

/// Bytes of so many values, scales of Q8_0 apart.
pub(super) const fn bytes_of<const FORMAT: u8>(values: usize) -> usize {
    match FORMAT {
        F32 => 4 * values,
        Q8_0 => values,
        _ => 2 * values,
    }
}

/// The constant for the format of cells, and their bytes.
pub(super) fn format_and_bytes(cells: Cells<'_>) -> (u8, &[u8]) {
    match cells {
        Cells::Decoded(values) => (F32, super::x86::as_bytes(values)),
        Cells::Stored(Format::F32, bytes) => (F32, bytes),
        Cells::Stored(Format::F16, bytes) => (F16, bytes),
        Cells::Stored(Format::BF16, bytes) => (BF16, bytes),
        Cells::Stored(Format::Q8_0, bytes) => (Q8_0, bytes),
    }
}

/// Calls a kernel for the format of `cells`, with their bytes.
macro_rules! by_format {
    ($cells:expr, |$bytes:ident| $kernel:ident($($operand:expr),*)) => {
        match $crate::kernels::x86_attend::format_and_bytes($cells) {
            (F32, $bytes) => $kernel::<F32>($($operand),*),
            (F16, $bytes) => $kernel::<F16>($($operand),*),
            (BF16, $bytes) => $kernel::<BF16>($($operand),*),
            (_, $bytes) => $kernel::<Q8_0>($($operand),*),
        }
    };
}

/// The loops of one width, out of the file's own `load`, `store`, `values`,
/// `exp2` and `VECTOR`, and these instructions.
macro_rules! loops_of_width {
    ($features:literal, $splat:ident, $mul:ident, $fmadd:ident, $first:ident) => {
        #[target_feature(enable = $features)]
        fn join(running: &mut Ends, result: &mut [f32], [top, sum]: Ends, sums: &[f32]) {
            let larger = running[0].max(top);
            let before = exp2($splat(running[0] - larger));
            let now = exp2($splat(top - larger));
            let total = $mul($splat(running[1]), before);
            *running = [larger, $first($fmadd($splat(sum), now, total))];
            for (result, value) in result.as_chunks_mut().0.iter_mut().zip(sums.as_chunks().0) {
                let kept = $mul(load(result), before);
                store($fmadd(load(value), now, kept), result);
            }
        }

        #[target_feature(enable = $features)]
        fn widen_keys(format: Format, tile: &[u8], into: &mut [f32]) {
            by_format!(Cells::Stored(format, tile), |bytes| widen_tile(bytes, into));
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn widen_tile<const FORMAT: u8>(tile: &[u8], into: &mut [f32]) {
            if FORMAT != Q8_0 {
                return widen_run::<FORMAT>(tile, into);
            }
            for (group, into) in tile.chunks_exact(Q8_0_GROUP).zip(into.chunks_exact_mut(GROUP * TILE)) {
                let (scales, group) = group.split_at(2 * TILE);
                let mut own = [$splat(0.0); TILE / VECTOR];
                for (own, scales) in own.iter_mut().zip(scales.chunks_exact(2 * VECTOR)) {
                    *own = values::<F16>(scales);
                }
                let vectors = group.chunks_exact(bytes_of::<FORMAT>(VECTOR)).zip(into.as_chunks_mut().0);
                for (index, (bytes, into)) in vectors.enumerate() {
                    store($mul(values::<FORMAT>(bytes), own[index % own.len()]), into);
                }
            }
        }

        /// Decodes values without scales, one after another.
        #[target_feature(enable = $features)]
        #[inline]
        fn widen_run<const FORMAT: u8>(bytes: &[u8], into: &mut [f32]) {
            for (bytes, into) in bytes.chunks_exact(bytes_of::<FORMAT>(VECTOR)).zip(into.as_chunks_mut().0) {
                store(values::<FORMAT>(bytes), into);
            }
        }

        #[target_feature(enable = $features)]
        fn widen_values(values: Block<'_>, into: &mut [f32]) {
            let range = values.positions.start * values.width..values.positions.end * values.width;
            let into = &mut into[range.clone()];
            by_format!(values.cells, |bytes| widen_range(bytes, range, values.width, into));
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn widen_range<const FORMAT: u8>(bytes: &[u8], range: Range<usize>, width: usize, into: &mut [f32]) {
            let (cells, scales) = bytes.split_at(bytes_of::<FORMAT>(BLOCK_POSITIONS * width));
            let cells = &cells[bytes_of::<FORMAT>(range.start)..bytes_of::<FORMAT>(range.end)];
            if FORMAT != Q8_0 {
                return widen_run::<FORMAT>(cells, into);
            }
            let rows = cells.chunks_exact(width).zip(into.chunks_exact_mut(width));
            for (position, (cells, into)) in (range.start / width..).zip(rows) {
                let groups = cells.chunks_exact(GROUP).zip(into.as_chunks_mut::<GROUP>().0);
                for (group, (cells, into)) in groups.enumerate() {
                    let at = 2 * (group * BLOCK_POSITIONS + position);
                    let scale = $splat(half([scales[at], scales[at + 1]]));
                    for (cells, into) in cells.chunks_exact(VECTOR).zip(into.as_chunks_mut().0) {
                        store($mul(values::<FORMAT>(cells), scale), into);
                    }
                }
            }
        }
    };
}

pub(super) use {by_format, loops_of_width};
