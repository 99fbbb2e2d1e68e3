//! Reads GGUF headers, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF", version u32, tensors u64, pairs u64
//! pairs    × { key string, type u32, value }
//! tensors  × { name string, rank u32, extents u64 × rank (innermost first), type u32, offset u64 }
//! padding to the alignment, then the tensors at their offsets, each padded
//! ```
//! A string is its length in bytes (u64) and UTF-8; an array is its element
//! type (u32), its length (u64) and its elements. The format is described in
//! ggml's `docs/gguf.md`. Every count is compared with the bytes that are left
//! before anything of that size is allocated.

use std::collections::BTreeMap;

use girih_tensor::{DType, Error, Result};

use crate::container::{HeaderContents, TensorInfo, shape};
use crate::cursor::{Cursor, LittleEndian};
use crate::limits::FileLimits;
use crate::metadata::{Metadata, MetadataArray, MetadataValue, Strings, ValueType};
use crate::quote::quote;
use crate::source::ReadAt;

/// The first four bytes of every GGUF file.
pub(super) const GGUF_MAGIC: &[u8; 4] = b"GGUF";

/// The key of the alignment, and the alignment of a file without the key.
pub(super) const GGUF_ALIGNMENT: (&str, u32) = ("general.alignment", 32);

/// The largest accepted alignment: a huge page.
const ALIGNMENT_MAX: u32 = 2 << 20;

/// The minimum size of a pair: an empty key, a type, a byte.
const PAIR_MIN_BYTES: u64 = 8 + 4 + 1;

/// The minimum size of a tensor's entry: an empty name, one extent.
const ENTRY_MIN_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// The maximum number of dimensions of a tensor (`GGML_MAX_DIMS`).
const MAX_DIMENSIONS: u32 = 4;

/// Every current or former ggml tensor type, by its number (`enum ggml_type`).
/// A type that girih supports has the same name as its [`DType`].
const GGML_TYPES: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (4, "Q4_2"),
    (5, "Q4_3"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (8, "Q8_0"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (30, "BF16"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// GGUF's number for `dtype`, or `None` if it has none.
pub(super) fn type_id(dtype: DType) -> Option<u32> {
    GGML_TYPES.iter().find(|(_, name)| name.eq_ignore_ascii_case(dtype.name())).map(|row| row.0)
}

/// Reads a header and checks every extent against the length of `source`.
///
/// # Errors
/// When the file is not a GGUF of version 2 or 3, exceeds one of the `limits`,
/// contradicts itself, or has a tensor type that girih does not read.
pub fn parse(source: &dyn ReadAt, limits: &FileLimits) -> Result<HeaderContents> {
    let mut header = HeaderParser { cursor: Cursor::new(source, limits.header_bytes), limits, arrays: 0 };
    header.check_start()?;
    let tensors = header.count("tensors", limits.tensors, ENTRY_MIN_BYTES)?;
    let pairs = header.count("key-value pairs", limits.metadata_pairs, PAIR_MIN_BYTES)?;
    let metadata = header.pairs(pairs)?;
    let alignment = alignment(&metadata)?;
    let mut entries = header.entries(tensors)?;
    let data = header.cursor.position().checked_next_multiple_of(u64::from(alignment));
    let data = data.ok_or_else(|| Error::new("the header's padding overflows"))?;
    for (name, info) in &mut entries {
        locate(info, data, alignment, source.length())
            .map_err(|e| e.of(format!("tensor {}", quote(name))))?;
    }
    check_overlap(&entries)?;
    Ok(HeaderContents { metadata, tensors: entries, unreadable: BTreeMap::new() })
}

/// The alignment that the metadata specifies.
pub(super) fn alignment(metadata: &Metadata) -> Result<u32> {
    let (key, default) = GGUF_ALIGNMENT;
    match metadata.value(key) {
        None => Ok(default),
        Some(&MetadataValue::U32(n)) if n.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&n) => Ok(n),
        Some(value) => Err(Error::new(format!(
            "key '{key}' is {value}; a u32 that is a power of two from 8 to {ALIGNMENT_MAX} is needed"
        ))),
    }
}

/// The state of parsing a header.
struct HeaderParser<'a> {
    cursor: Cursor<'a>,
    limits: &'a FileLimits,
    /// The number of arrays so far. It is limited because an empty array takes
    /// more bytes in memory than in the file.
    arrays: u64,
}

impl HeaderParser<'_> {
    fn check_start(&mut self) -> Result<()> {
        let magic = self.cursor.take(4)?;
        if magic != GGUF_MAGIC {
            return Err(Error::new(format!(
                "starts with '{}' instead of 'GGUF', so it is not a GGUF file",
                magic.escape_ascii()
            )));
        }
        let version: u32 = self.cursor.number()?;
        match version {
            2 | 3 => Ok(()),
            _ if matches!(version.swap_bytes(), 1..=3) => Err(Error::new(
                "is a big-endian GGUF file; girih reads only little-endian ones, so convert the \
                 model again in that order",
            )),
            _ => Err(Error::new(format!(
                "is GGUF version {version}; girih reads 2 and 3, so convert the model again with a \
                 current converter"
            ))),
        }
    }

    /// Reads the number of `items`, each at least `min_bytes` long in the file.
    fn count(&mut self, items: &str, max: u64, min_bytes: u64) -> Result<u64> {
        let count: u64 = self.cursor.number()?;
        if count > max {
            return Err(Error::new(format!("has {count} {items}; the cap is {max}")));
        }
        self.cursor.check_room(count, items, min_bytes)?;
        Ok(count)
    }

    fn pairs(&mut self, count: u64) -> Result<Metadata> {
        let mut metadata = Metadata::new();
        for index in 0..count {
            let key = self.name().map_err(|e| e.of(format!("key {} of {count}", index + 1)))?;
            let value = self.value().map_err(|e| e.of(format!("key {}", quote(&key))))?;
            metadata.insert(key, value)?;
        }
        Ok(metadata)
    }

    /// Reads the name of a key or a tensor.
    fn name(&mut self) -> Result<String> {
        let name = self.string()?.to_owned();
        self.limits.check_name(&name)?;
        Ok(name)
    }

    fn string(&mut self) -> Result<&str> {
        let bytes: u64 = self.cursor.number()?;
        if bytes > self.limits.string_bytes {
            return Err(Error::new(format!(
                "a string has {bytes} bytes; the cap is {}",
                self.limits.string_bytes
            )));
        }
        let at = self.cursor.position();
        str::from_utf8(self.cursor.take(bytes)?)
            .map_err(|_| Error::new(format!("the string of {bytes} bytes at {at} is not UTF-8")))
    }

    fn kind(&mut self) -> Result<ValueType> {
        let id: u32 = self.cursor.number()?;
        ValueType::from_id(id)
            .ok_or_else(|| Error::new(format!("value type {id} is unknown; 0 to 12 are known")))
    }

    fn value(&mut self) -> Result<MetadataValue> {
        Ok(match self.kind()? {
            ValueType::U8 => MetadataValue::U8(self.cursor.number()?),
            ValueType::I8 => MetadataValue::I8(self.cursor.number()?),
            ValueType::U16 => MetadataValue::U16(self.cursor.number()?),
            ValueType::I16 => MetadataValue::I16(self.cursor.number()?),
            ValueType::U32 => MetadataValue::U32(self.cursor.number()?),
            ValueType::I32 => MetadataValue::I32(self.cursor.number()?),
            ValueType::F32 => MetadataValue::F32(self.cursor.number()?),
            ValueType::Bool => MetadataValue::Bool(bool_of(self.cursor.number()?)?),
            ValueType::String => MetadataValue::String(self.string()?.to_owned()),
            ValueType::Array => MetadataValue::Array(self.array(1)?),
            ValueType::U64 => MetadataValue::U64(self.cursor.number()?),
            ValueType::I64 => MetadataValue::I64(self.cursor.number()?),
            ValueType::F64 => MetadataValue::F64(self.cursor.number()?),
        })
    }

    /// Reads an array that is nested in `depth - 1` others.
    fn array(&mut self, depth: u32) -> Result<MetadataArray> {
        if depth > self.limits.nesting {
            return Err(Error::new(format!(
                "arrays are nested deeper than the cap of {}",
                self.limits.nesting
            )));
        }
        self.arrays += 1;
        if self.arrays > self.limits.metadata_pairs {
            return Err(Error::new(format!("has more than {} arrays", self.limits.metadata_pairs)));
        }
        let kind = self.kind()?;
        let count: u64 = self.cursor.number()?;
        self.cursor.check_room(count, format_args!("values of {kind}"), kind.min_bytes())?;
        Ok(match kind {
            ValueType::U8 => MetadataArray::U8(self.numbers(count)?),
            ValueType::I8 => MetadataArray::I8(self.numbers(count)?),
            ValueType::U16 => MetadataArray::U16(self.numbers(count)?),
            ValueType::I16 => MetadataArray::I16(self.numbers(count)?),
            ValueType::U32 => MetadataArray::U32(self.numbers(count)?),
            ValueType::I32 => MetadataArray::I32(self.numbers(count)?),
            ValueType::F32 => MetadataArray::F32(self.numbers(count)?),
            ValueType::Bool => MetadataArray::Bool(
                self.cursor.take(count)?.iter().map(|&b| bool_of(b)).collect::<Result<_>>()?,
            ),
            ValueType::String => MetadataArray::String(self.strings(count)?),
            ValueType::Array => {
                MetadataArray::Array((0..count).map(|_| self.array(depth + 1)).collect::<Result<_>>()?)
            }
            ValueType::U64 => MetadataArray::U64(self.numbers(count)?),
            ValueType::I64 => MetadataArray::I64(self.numbers(count)?),
            ValueType::F64 => MetadataArray::F64(self.numbers(count)?),
        })
    }

    /// Reads `count` numbers; [`Cursor::check_room`] has checked their size.
    fn numbers<T: LittleEndian>(&mut self, count: u64) -> Result<Vec<T>> {
        let bytes = self.cursor.take(count * T::BYTES as u64)?;
        Ok(bytes.chunks_exact(T::BYTES).map(T::from_le_slice).collect())
    }

    fn strings(&mut self, count: u64) -> Result<Strings> {
        let mut strings = Strings::with_capacity(count as usize); // each takes 8 bytes of the file or more
        for _ in 0..count {
            strings.push(self.string()?);
        }
        Ok(strings)
    }

    fn entries(&mut self, count: u64) -> Result<BTreeMap<String, TensorInfo>> {
        let mut entries = BTreeMap::new();
        for index in 0..count {
            let name = self.name().map_err(|e| e.of(format!("tensor {} of {count}", index + 1)))?;
            let info = self.entry().map_err(|e| e.of(format!("tensor {}", quote(&name))))?;
            if entries.contains_key(&name) {
                return Err(Error::new(format!(
                    "tensor {} occurs twice; names must be unique",
                    quote(&name)
                )));
            }
            entries.insert(name, info);
        }
        Ok(entries)
    }

    /// Reads one tensor's entry; its offset is still relative to the data section.
    fn entry(&mut self) -> Result<TensorInfo> {
        let rank: u32 = self.cursor.number()?;
        if !(1..=MAX_DIMENSIONS).contains(&rank) {
            return Err(Error::new(format!("has {rank} dimensions; 1 to {MAX_DIMENSIONS} are supported")));
        }
        let mut extents = self.numbers::<u64>(u64::from(rank))?;
        extents.reverse();
        let shape = shape(&extents)?;
        let dtype = dtype_of(self.cursor.number()?)?;
        let offset = self.cursor.number()?;
        let bytes = dtype.bytes(&shape)? as u64;
        Ok(TensorInfo { dtype, shape, shard: 0, offset, bytes })
    }
}

fn bool_of(byte: u8) -> Result<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::new(format!("a bool has the value {byte}; 0 or 1 is needed"))),
    }
}

fn dtype_of(id: u32) -> Result<DType> {
    let Some((_, name)) = GGML_TYPES.iter().find(|row| row.0 == id) else {
        return Err(Error::new(format!("stored as ggml type {id}, which is unknown")));
    };
    name.parse().map_err(|_| {
        let held = GGML_TYPES.iter().map(|row| row.1).filter(|name| name.parse::<DType>().is_ok());
        let held = held.collect::<Vec<_>>().join(", ");
        Error::new(format!("stored as {name}, which girih does not read; convert it to one of {held}"))
    })
}

/// Makes the offset absolute, and checks that the tensor lies within the file.
fn locate(info: &mut TensorInfo, data: u64, alignment: u32, length: u64) -> Result<()> {
    if !info.offset.is_multiple_of(u64::from(alignment)) {
        return Err(Error::new(format!(
            "starts at offset {}, which is not a multiple of the alignment {alignment}",
            info.offset
        )));
    }
    let start = data.checked_add(info.offset);
    match start.and_then(|start| start.checked_add(info.bytes)) {
        Some(end) if end <= length => {
            info.offset = end - info.bytes;
            Ok(())
        }
        _ => Err(Error::new(format!(
            "{} bytes at offset {} exceed the file; the data starts at {data}, the file has {length} bytes",
            info.bytes, info.offset
        ))),
    }
}

fn check_overlap(entries: &BTreeMap<String, TensorInfo>) -> Result<()> {
    let mut ordered: Vec<_> = entries.iter().filter(|(_, info)| info.bytes > 0).collect();
    ordered.sort_by_key(|(_, info)| info.offset);
    match ordered.windows(2).find(|pair| pair[0].1.offset + pair[0].1.bytes > pair[1].1.offset) {
        None => Ok(()),
        Some(pair) => {
            Err(Error::new(format!("tensors {} and {} overlap", quote(pair[0].0), quote(pair[1].0))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ggml_format_is_found_by_its_name() {
        for &dtype in DType::ALL {
            match type_id(dtype) {
                Some(id) => assert_eq!(dtype_of(id).unwrap(), dtype),
                None => assert!([DType::U8, DType::Q4NX].contains(&dtype), "{dtype} has a number"),
            }
        }
    }
}
