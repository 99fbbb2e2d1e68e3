//! Matrices in the device's layout: packing on the host, and pieces that a binding can hold.

use std::ops::Range;

use girih_tensor::{CodeKind, DType, coded_group};

use crate::layout::{BAND, BandLayout, GROUP, ScaleKind};

/// The shape of one matrix, or of several of equal shape, in the device's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    pub dtype: DType,
    pub layout: BandLayout,
    /// Matrices: one, or one for each expert or head.
    pub count: usize,
    /// Rows of each.
    pub rows: usize,
    /// Columns of each.
    pub columns: usize,
}

impl MatrixShape {
    /// Groups of a row, with padding.
    pub fn groups(&self) -> usize {
        self.layout.groups(self.columns)
    }

    /// Columns with padding.
    pub fn padded(&self) -> usize {
        self.groups() * GROUP
    }

    /// Bands of one matrix.
    pub fn bands(&self) -> usize {
        self.rows.div_ceil(BAND)
    }

    /// Bytes of a row in the file; of formats with tiles, of 32 rows.
    pub fn row_bytes(&self) -> usize {
        let (_, columns) = self.dtype.tile();
        self.columns.div_ceil(columns) * self.dtype.block_bytes()
    }

    /// The bytes of a band: codes, then scales.
    pub fn band_bytes(&self) -> [usize; 2] {
        [self.layout.band_code_bytes(self.groups()), self.layout.band_scale_bytes(self.groups())]
    }

    /// All bytes; `None` if they overflow.
    pub fn bytes(&self) -> Option<u64> {
        let each: usize = self.band_bytes().iter().sum();
        let all = each.checked_mul(self.bands())?.checked_mul(self.count)?;
        u64::try_from(all).ok()
    }

    /// The bands of each piece. No binding of a piece exceeds `limit` bytes, and pieces of several matrices have whole ones.
    /// `None` if a band, or one of several matrices, exceeds the limit.
    pub fn pieces(&self, limit: u64) -> Option<Vec<Range<usize>>> {
        let of_band = self.band_bytes().into_iter().max().unwrap_or(0).max(1) as u64;
        let unit = if self.count > 1 { self.bands() } else { 1 };
        let units = (limit / of_band) as usize / unit;
        let all = self.bands() * self.count;
        let each = (units > 0).then_some(units * unit)?;
        Some((0..all).step_by(each).map(|first| first..(first + each).min(all)).collect())
    }

    /// Packs bands. `bytes` are the rows of the bands as the file has them; rows beyond the matrix are zeros. ScaleKind
    /// follow the codes of all bands.
    pub fn pack(&self, bands: usize, bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        let [code_bytes, scale_bytes] = self.band_bytes();
        let tile_rows = self.dtype.tile().0;
        let band_rows = BAND / tile_rows * self.row_bytes();
        let mut scale_parts = scales.chunks_mut(scale_bytes.max(1));
        for (band, codes) in codes.chunks_mut(code_bytes).take(bands).enumerate() {
            let own = &bytes[(band * band_rows).min(bytes.len())..((band + 1) * band_rows).min(bytes.len())];
            let scales = scale_parts.next().unwrap_or(&mut []);
            if tile_rows > 1 {
                (0..BAND).for_each(|row| self.pack_row(own, row, codes, scales));
            } else {
                for (row, bytes) in own.chunks_exact(self.row_bytes().max(1)).enumerate() {
                    self.pack_row(bytes, row, codes, scales);
                }
            }
        }
    }

    /// Packs a row of a band.
    fn pack_row(&self, bytes: &[u8], row: usize, codes: &mut [u8], scales: &mut [u8]) {
        let group_bytes = self.layout.code_bytes();
        let vectors = group_bytes / 16;
        let at = |group: usize, vector: usize| ((group * vectors + vector) * BAND + row) * 16;
        if self.layout.scales == ScaleKind::None {
            for (index, part) in bytes.chunks(16).enumerate() {
                let at = at(index / vectors, index % vectors);
                codes[at..at + part.len()].copy_from_slice(part);
            }
            return;
        }
        let groups_of_block = self.dtype.tile().1 / GROUP;
        for group in 0..self.columns.div_ceil(GROUP) {
            let block =
                &bytes[group / groups_of_block * self.dtype.block_bytes()..][..self.dtype.block_bytes()];
            let coded = coded_group(self.dtype, block, row, group % groups_of_block);
            if self.layout.codes == CodeKind::Byte {
                for (vector, part) in coded.codes.chunks(16).enumerate() {
                    codes[at(group, vector)..][..16].copy_from_slice(part);
                }
            } else {
                let eights = coded.codes.as_chunks::<8>().0.iter();
                let nibbles = eights.flat_map(|[a, b, c, d, lasts @ ..]| {
                    let firsts = [a, b, c, d].into_iter();
                    firsts.zip(lasts).map(|(first, last)| first | last << 4)
                });
                codes[at(group, 0)..][..16].iter_mut().zip(nibbles).for_each(|(to, from)| *to = from);
            }
            let [[s0, s1], [o0, o1]] = [coded.scales, coded.offsets];
            if self.layout.scales == ScaleKind::Half {
                let to = (group / 2 * BAND + row) * 4 + group % 2 * 2;
                // The scale is stored as it is in the file.
                scales[to..to + 2].copy_from_slice(&block[..2]);
                continue;
            }
            let words: &[f32] = match self.layout.scales {
                ScaleKind::None | ScaleKind::Half => &[],
                ScaleKind::Single => &[s0],
                ScaleKind::Offset => &[s0, o0],
                ScaleKind::Halved => &[s0, s1],
                ScaleKind::HalvedOffset => &[s0, s1, o0, o1],
            };
            for (word, number) in words.iter().enumerate() {
                let to = ((group * words.len() + word) * BAND + row) * 4;
                scales[to..to + 4].copy_from_slice(&number.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bands of 2,048 bytes of codes and of 256 bytes of scales.
    fn shape(count: usize, rows: usize) -> MatrixShape {
        let dtype = DType::Q4_0;
        let layout = BandLayout::of(dtype).expect("it is a format of weights");
        MatrixShape { dtype, layout, count, rows, columns: 128 }
    }

    #[test]
    fn a_matrix_is_cut_at_bands_and_several_between_matrices() {
        assert_eq!(shape(1, 100).band_bytes(), [2048, 256]);
        let whole = shape(1, 100).pieces(1 << 20).expect("a band is below the limit");
        assert_eq!((whole.len(), whole[0].clone()), (1, 0..4));
        assert_eq!(shape(1, 100).pieces(3 * 2048), Some(vec![0..3, 3..4]));
        assert_eq!(shape(1, 100).pieces(2047), None);
        // Matrices of two bands each.
        assert_eq!(shape(5, 64).pieces(5 * 2048), Some(vec![0..4, 4..8, 8..10]));
        assert_eq!(shape(5, 64).pieces(2048), None);
    }

    #[test]
    fn columns_are_padded_to_whole_words_of_scales() {
        assert_eq!(MatrixShape { columns: 96, ..shape(1, 32) }.padded(), 128);
        let dtype = DType::BF16;
        let layout = BandLayout::of(dtype).expect("it is a format of weights");
        assert_eq!(MatrixShape { dtype, layout, columns: 33, ..shape(1, 32) }.padded(), 64);
    }
}
