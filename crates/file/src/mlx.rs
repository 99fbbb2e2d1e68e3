//! Matrices of MLX, as `mlx.core.quantize` makes them: integers of 2 to 8 bits, and for each group of columns a scale and a bias.
//!
//! ```text
//! NAME.weight  U32  [rows, columns · bits / 32]: a row is one string of bits, each integer from its lowest bit on
//! NAME.scales  F16, BF16 or F32  [rows, columns / group]
//! NAME.biases  as NAME.scales
//!              value = scale · q + bias
//! ```
//! (ml-explore/mlx, `mlx/backend/cpu/quantized.cpp`.) A container shows each such matrix as one tensor, in a block format
//! with the same numbers: up to four bits as Q4_1, five as Q5_1. Their scales are of half precision, so a scale that is not is
//! refused when it is read. Integers of six and eight bits, for which there is no such format, are shown as F32, each value
//! rounded once for the product and once for the sum.

use girih_tensor::{DType, Error, ErrorKind, Result, Shape};

use crate::container::{Container, MadeTensor, TensorInfo, UnreadableTensor};
use crate::quote::quote;
use crate::scale_numbers::ScaleNumbers;

/// The values of a block, which share a scale and a bias: a group is one or several blocks.
const BLOCK: usize = 32;

/// The blocks that are read at once.
const BLOCKS_AT_ONCE: u64 = 1 << 15;

/// How the values of a matrix are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlxQuantization {
    /// The bits of an integer.
    pub bits: u32,
    /// The number of columns that share a scale and a bias.
    pub group: usize,
}

/// A matrix of three tensors.
#[derive(Clone, Debug)]
struct MlxMatrix {
    /// For errors.
    name: String,
    quantization: MlxQuantization,
    /// The integers, as bytes.
    words: TensorInfo,
    scales: TensorInfo,
    biases: TensorInfo,
    /// The format in which it is shown.
    dtype: DType,
    shape: Shape,
}

impl MlxMatrix {
    /// The matrix `NAME.weight` of a container.
    fn of(container: &Container, name: &str, quantization: MlxQuantization) -> Result<MlxMatrix> {
        let MlxQuantization { bits, group } = quantization;
        let dtype = match bits {
            2..=4 => DType::Q4_1,
            5 => DType::Q5_1,
            6 | 8 => DType::F32,
            _ => return Err(refused(format!("has integers of {bits} bits; 2 to 6 and 8 are known"))),
        };
        if !matches!(group, 32 | 64 | 128) {
            return Err(refused(format!("has groups of {group} columns; 32, 64 and 128 are known")));
        }
        let (shard, shape, offset) = words_of(container, name).ok_or_else(|| Error::new("has no words"))?;
        let part = |part: &str| {
            let found = container.tensors.get(&format!("{name}.{part}"));
            found.cloned().ok_or_else(|| Error::new(format!("has no tensor of {part}")))
        };
        let (scales, biases) = (part("scales")?, part("biases")?);
        let columns = scales.shape.columns().checked_mul(group);
        let bits_of_row = columns.and_then(|columns| columns.checked_mul(bits as usize));
        let (Some(columns), Some(bits_of_row)) = (columns, bits_of_row) else {
            return Err(Error::new("has a shape that exceeds the address space"));
        };
        let outer = shape.extents().split_last().map(|(_, outer)| outer);
        let is_of_words = shape.columns().checked_mul(32) == Some(bits_of_row);
        if !is_of_words
            || outer.is_none_or(<[usize]>::is_empty)
            || outer != scales.shape.extents().split_last().map(|(_, outer)| outer)
            || scales.shape != biases.shape
            || scales.dtype != biases.dtype
            || !matches!(scales.dtype, DType::F16 | DType::BF16 | DType::F32)
        {
            return Err(Error::new(format!(
                "has words of the shape {shape}, scales of {} in {}, and biases of {} in {}, which do not fit each other with \
                 {bits} bits and groups of {group} columns",
                scales.shape, scales.dtype, biases.shape, biases.dtype
            )));
        }
        let mut extents = shape.extents().to_vec();
        if let Some(last) = extents.last_mut() {
            *last = columns;
        }
        let (full, bytes) = (Shape::new(&extents)?, DType::I32.bytes(&shape)? as u64);
        dtype.bytes(&full)?;
        let words = TensorInfo { dtype: DType::I32, shape, shard, offset, bytes };
        Ok(MlxMatrix { name: name.to_owned(), quantization, words, scales, biases, dtype, shape: full })
    }

    /// It as a tensor, without its shard.
    fn info(&self) -> Result<TensorInfo> {
        let bytes = self.dtype.bytes(&self.shape)? as u64;
        Ok(TensorInfo { dtype: self.dtype, shape: self.shape, shard: 0, offset: 0, bytes })
    }

    /// The bytes of a block in the format in which it is shown.
    fn block_bytes(&self) -> u64 {
        match self.dtype {
            DType::F32 => (4 * BLOCK) as u64,
            dtype => dtype.block_bytes() as u64,
        }
    }

    /// Some blocks. As rows consist of whole groups, these lie one after another in all three tensors.
    fn blocks(&self, container: &Container, blocks: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let MlxQuantization { bits, group } = self.quantization;
        let (count, in_group) = ((blocks.end - blocks.start) as usize, (group / BLOCK) as u64);
        let block = bits as usize * BLOCK / 8;
        let mut words = vec![0; count * block];
        container.read(&self.words, blocks.start * block as u64, &mut words)?;
        let groups = blocks.start / in_group..blocks.end.div_ceil(in_group);
        let [scales, biases] =
            [&self.scales, &self.biases].map(|info| ScaleNumbers::read(container, info, groups.clone()));
        let (scales, biases) = (scales?, biases?);
        let mut made = Vec::with_capacity(count * self.block_bytes() as usize);
        for (index, words) in blocks.zip(words.chunks_exact(block)) {
            let group = (index / in_group - groups.start) as usize;
            let codes = codes(words, bits);
            self.put(codes, [&scales, &biases], group, &mut made)?;
        }
        Ok(made)
    }

    /// Appends a block.
    fn put(
        &self,
        codes: [u8; BLOCK],
        [scales, biases]: [&ScaleNumbers; 2],
        group: usize,
        made: &mut Vec<u8>,
    ) -> Result<()> {
        if self.dtype == DType::F32 {
            let (scale, bias) = (scales.values[group], biases.values[group]);
            let values = codes.iter().flat_map(|code| (scale * f32::from(*code) + bias).to_le_bytes());
            made.extend(values);
            return Ok(());
        }
        // The scale of codes that are all zero changes nothing; MLX writes a tiny one.
        made.extend(if codes == [0; BLOCK] { [0; 2] } else { scales.half(group)? });
        made.extend(biases.half(group)?);
        if self.dtype == DType::Q5_1 {
            let fifths = codes.iter().zip(0..).fold(0, |all, (code, bit)| all | u32::from(code >> 4) << bit);
            made.extend(fifths.to_le_bytes());
        }
        let (low, high) = codes.split_at(BLOCK / 2);
        made.extend(low.iter().zip(high).map(|(low, high)| low & 15 | (high & 15) << 4));
        Ok(())
    }
}

impl MadeTensor for MlxMatrix {
    fn read(&self, container: &Container, start: u64, into: &mut [u8]) -> Result<()> {
        let block_bytes = self.block_bytes();
        let (mut at, mut rest) = (start, into);
        while !rest.is_empty() {
            let (first, skipped) = (at / block_bytes, (at % block_bytes) as usize);
            let last = (at + rest.len() as u64).div_ceil(block_bytes).min(first + BLOCKS_AT_ONCE);
            let bytes = self.blocks(container, first..last).map_err(|error| error.of(quote(&self.name)))?;
            let length = (bytes.len() - skipped).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&bytes[skipped..skipped + length]);
            (at, rest) = (at + length as u64, later);
        }
        Ok(())
    }
}

/// The words of `NAME.weight`: their shard, shape and offset.
fn words_of(container: &Container, name: &str) -> Option<(usize, Shape, u64)> {
    let UnreadableTensor { shard, words, why: _ } = container.unreadable.get(&format!("{name}.weight"))?;
    let (shape, offset) = (*words)?;
    Some((*shard, shape, offset))
}

/// The integers of a block.
fn codes(bytes: &[u8], bits: u32) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    let (mut held, mut count, mut bytes) = (0u32, 0, bytes.iter());
    for code in &mut codes {
        while count < bits {
            held |= u32::from(*bytes.next().unwrap_or(&0)) << count;
            count += 8;
        }
        *code = (held & ((1 << bits) - 1)) as u8;
        (held, count) = (held >> bits, count - bits);
    }
    codes
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

impl Container {
    /// This container with each matrix of MLX as one tensor. `quantization` returns how the module of a name is quantized.
    ///
    /// # Errors
    /// When the tensors of one do not fit each other, it is quantized in a way that girih does not know, or there is none.
    pub fn with_mlx(mut self, quantization: impl Fn(&str) -> Option<MlxQuantization>) -> Result<Container> {
        let is_quantized = |name: &String| {
            let name = name.strip_suffix(".weight")?;
            self.tensors.contains_key(&format!("{name}.scales")).then(|| name.to_owned())
        };
        let names: Vec<String> = self.unreadable.keys().filter_map(is_quantized).collect();
        if names.is_empty() {
            return Err(Error::new("'config.json' states a quantization of MLX, but there are no scales"));
        }
        for name in names {
            let of = |error: Error| error.of(format!("the matrix {} of MLX", quote(&name)));
            let stated = quantization(&name);
            let stated =
                stated.ok_or_else(|| of(Error::new("is said not to be quantized, but has scales")))?;
            let matrix = MlxMatrix::of(&self, &name, stated).map_err(of)?;
            let info = matrix.info().map_err(of)?;
            let shard = matrix.words.shard;
            let info = TensorInfo { shard: self.add_made(Box::new(matrix), shard), ..info };
            self.tensors.remove(&format!("{name}.scales"));
            self.tensors.remove(&format!("{name}.biases"));
            self.unreadable.remove(&format!("{name}.weight"));
            self.tensors.insert(format!("{name}.weight"), info);
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each integer begins where the one before ends.
    #[test]
    fn integers_are_strings_of_bits() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let values: Vec<u32> = (0..BLOCK as u32).map(|i| i * 37 % (1 << bits)).collect();
            let mut bytes = vec![0u8; bits as usize * BLOCK / 8];
            for (index, value) in values.iter().enumerate() {
                for bit in 0..bits as usize {
                    let at = index * bits as usize + bit;
                    bytes[at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
                }
            }
            assert!(codes(&bytes, bits).iter().map(|code| u32::from(*code)).eq(values), "{bits} bits");
        }
    }
}
