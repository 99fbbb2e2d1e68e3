//! The rows of each expert's matrix in a tensor that holds those of several weights, of all experts.

use girih_file::{Container, TensorInfo, quote};
use girih_tensor::{DType, Error, Result, Shape};

use crate::arch::schema::ExpertsPart;

/// The bytes of a block of 32 values as safetensors has it: pairs of codes, the even value in the lower bits.
const STORED_BLOCK: usize = 16;

/// A part of the rows of each expert's matrix.
#[derive(Debug)]
pub(crate) struct ExpertRows {
    pub tensor: String,
    info: TensorInfo,
    /// The scales of blocks in MXFP4, one byte each.
    scales: Option<TensorInfo>,
    part: ExpertsPart,
    /// The format in which the weight is read, and its shape: `[experts, rows, columns]`, or
    /// `[experts, rows]` for biases.
    pub dtype: DType,
    pub shape: Shape,
    /// Bytes of a row.
    row: usize,
}

impl ExpertRows {
    /// A part of a tensor, and the name of its tensor of scales, if it has one.
    ///
    /// # Errors
    /// When the tensor has no such part, or the scales are missing or do not fit.
    pub fn of(
        container: &Container,
        tensor: &str,
        info: &TensorInfo,
        part: ExpertsPart,
    ) -> Result<(ExpertRows, Option<String>)> {
        let refused =
            |why: &str| Error::new(format!("tensor {}, {} {}, {why}", quote(tensor), info.dtype, info.shape));
        let [index, count] = part.experts;
        let extents = info.shape.extents();
        // A bias has one value for each row.
        let (experts, rows, columns) = match (extents, part.mxfp4, part.transposed) {
            (&[experts, rows, groups, STORED_BLOCK], true, false) => (experts, rows, groups * 32),
            (&[experts, rows], false, false) => (experts, rows, 1),
            (&[experts, rows, columns], false, false) | (&[experts, columns, rows], false, true) => {
                (experts, rows, columns)
            }
            _ => return Err(refused("has not the dimensions of a weight of experts")),
        };
        if info.shape.elements() == 0 || index >= count || !rows.is_multiple_of(count) {
            return Err(refused(&format!("has no part {index} of {count} equal parts of its rows")));
        }
        let rows = rows / count;
        let shape = if extents.len() == 2 {
            Shape::matrix(experts, rows)
        } else {
            Shape::new(&[experts, rows, columns])?
        };
        let mut scales = None;
        let dtype = match (part.mxfp4, info.dtype) {
            (true, DType::U8) => {
                let name = format!("{}_scales", tensor.trim_end_matches("_blocks"));
                let found = container.tensors().get(&name).ok_or_else(|| {
                    refused(&format!("has no scales; the tensor {} is needed", quote(&name)))
                })?;
                if found.dtype != DType::U8 || found.shape.extents() != &extents[..3] {
                    return Err(refused(&format!("has scales of another shape, {}", found.shape)));
                }
                scales = Some((name, found.clone()));
                DType::MXFP4
            }
            (false, dtype @ (DType::F32 | DType::F16 | DType::BF16)) => dtype,
            _ => return Err(refused("is stored as a type that no weight of experts has")),
        };
        dtype.bytes(&shape)?;
        let row = dtype.matrix_bytes(1, columns)?;
        let (name, scales) = scales.unzip();
        let rows =
            ExpertRows { tensor: tensor.to_owned(), info: info.clone(), scales, part, dtype, shape, row };
        Ok((rows, name))
    }

    /// The same part of a tensor that has rows, if each expert's matrix needs to have this shape and the tensor's extents say
    /// so.
    ///
    /// # Errors
    /// When the extents fit both with rows and with columns.
    pub fn by_rows(&self, container: &Container, [rows, columns]: [usize; 2]) -> Result<Option<ExpertRows>> {
        let rows = rows.saturating_mul(self.part.experts[1]);
        let fits = |extents: [usize; 2]| self.info.shape.extents().get(1..) == Some(&extents[..]);
        if !self.part.either || !fits([rows, columns]) {
            return Ok(None);
        }
        if fits([columns, rows]) {
            return Err(Error::new(format!(
                "tensor {}, {}, has matrices with rows or with columns; girih cannot tell which",
                quote(&self.tensor),
                self.info.shape
            )));
        }
        let part = ExpertsPart { transposed: false, either: false, ..self.part };
        ExpertRows::of(container, &self.tensor, &self.info, part).map(|(found, _)| Some(found))
    }

    /// Fills `into` with the weight's bytes from `offset` on.
    ///
    /// # Errors
    /// When the file cannot be read, or the weight ends before.
    pub fn read(&self, container: &Container, offset: u64, into: &mut [u8]) -> Result<()> {
        let all = self.dtype.bytes(&self.shape)?;
        let start = usize::try_from(offset).ok().filter(|start| *start <= all && into.len() <= all - start);
        let start = start.ok_or_else(|| Error::new("a weight was read past its end"))?;
        if self.part.transposed {
            return self.read_columns(container, start, into);
        }
        let (mut at, mut rest, mut whole) = (start, into, vec![0; self.row]);
        while !rest.is_empty() {
            let (row, within) = (at / self.row, at % self.row);
            let (now, later) = rest.split_at_mut((self.row - within).min(rest.len()));
            let stored = self.stored_row(row);
            if self.scales.is_some() {
                self.read_blocks(container, stored, &mut whole)?;
                now.copy_from_slice(&whole[within..within + now.len()]);
            } else {
                container.read(&self.info, (stored * self.row + within) as u64, now)?;
            }
            (at, rest) = (at + now.len(), later);
        }
        Ok(())
    }

    /// Where a row of the weight is among those of the tensor.
    fn stored_row(&self, row: usize) -> usize {
        let rows = self.shape.extents()[1];
        let (expert, row) = (row / rows, row % rows);
        let [index, count] = self.part.experts;
        let within = if self.part.interleaved { row * count + index } else { index * rows + row };
        expert * rows * count + within
    }

    /// Reads a row of blocks. In girih's, a scale comes before its codes, and the lower bits hold the first
    /// half of the values.
    fn read_blocks(&self, container: &Container, stored: usize, row: &mut [u8]) -> Result<()> {
        let Some(of_scales) = &self.scales else { return Ok(()) };
        let groups = row.len() / (1 + STORED_BLOCK);
        let mut scales = vec![0; groups];
        container.read(of_scales, (stored * groups) as u64, &mut scales)?;
        let mut blocks = vec![0; groups * STORED_BLOCK];
        container.read(&self.info, (stored * groups * STORED_BLOCK) as u64, &mut blocks)?;
        let code = |block: &[u8], value: usize| block[value / 2] >> (value % 2 * 4) & 0xf;
        for ((row, scale), block) in
            row.chunks_exact_mut(1 + STORED_BLOCK).zip(scales).zip(blocks.chunks_exact(STORED_BLOCK))
        {
            row[0] = scale;
            for (index, byte) in row[1..].iter_mut().enumerate() {
                *byte = code(block, index) | code(block, index + STORED_BLOCK) << 4;
            }
        }
        Ok(())
    }

    /// As [`ExpertRows::read`], of a tensor whose columns are the rows: for each expert and column of the
    /// weight the values that `into` touches.
    fn read_columns(&self, container: &Container, start: usize, into: &mut [u8]) -> Result<()> {
        let &[_, rows, columns] = self.shape.extents() else { return Ok(()) };
        let (value, count) = (self.row / columns, self.part.experts[1]);
        let end = start + into.len();
        let touched = start / self.row..end.div_ceil(self.row);
        let mut first = touched.start;
        while first < touched.end {
            // The rows of one expert.
            let expert = first / rows;
            let next = touched.end.min((expert + 1) * rows);
            let places = [first, next - 1].map(|row| self.stored_row(row) % (rows * count));
            let mut strip = vec![0; (places[1] + 1 - places[0]) * value];
            let step = (if self.part.interleaved { count } else { 1 }) * value;
            for column in 0..columns {
                let at = ((expert * columns + column) * rows * count + places[0]) * value;
                container.read(&self.info, at as u64, &mut strip)?;
                for (row, bytes) in (first..next).zip(strip.chunks(step)) {
                    for (at, byte) in (row * self.row + column * value..).zip(&bytes[..value]) {
                        if (start..end).contains(&at) {
                            into[at - start] = *byte;
                        }
                    }
                }
            }
            first = next;
        }
        Ok(())
    }
}
