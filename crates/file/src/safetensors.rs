//! Reads safetensors headers.
//!
//! ```text
//! length u64, then `length` bytes of JSON:
//! { "__metadata__": { key: string, … }, name: { "dtype", "shape", "data_offsets": [start, end] }, … }
//! then the data, contiguous, to the end of the file
//! ```
//! The `safetensors` crate reads the same format, but keeps the last of two
//! equal names and does not name the tensor at fault, so girih parses the
//! header itself. The order of the checks is: length, cap, UTF-8, JSON
//! and unique names, type, overflow of the shape, extent equal to the size,
//! extents contiguous, exact end of the file.

use std::collections::BTreeMap;
use std::fmt;

use girih_tensor::{DType, Error, Result, Shape};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::container::{HeaderContents, TensorInfo, shape};
use crate::limits::FileLimits;
use crate::metadata::{Metadata, MetadataValue};
use crate::q4nx;
use crate::quote::{quote, shorten};
use crate::source::ReadAt;

/// The header's key for its string pairs.
pub(super) const METADATA: &str = "__metadata__";

/// The formats that both safetensors and girih support, in the order of the
/// reference implementation.
pub(super) const SAFETENSORS_TYPES: [(DType, &str); 7] = [
    (DType::U8, "U8"),
    (DType::I8, "I8"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::I32, "I32"),
    (DType::I64, "I64"),
    (DType::F32, "F32"),
];

/// Reads a header and checks that its extents fill `source` exactly.
///
/// A scalar, whose shape safetensors writes as `[]`, has the shape `[1]`.
///
/// # Errors
/// When the file is not a safetensors file, exceeds one of the `limits`,
/// contradicts itself, or has a tensor type that girih does not read.
pub fn parse(source: &dyn ReadAt, limits: &FileLimits) -> Result<HeaderContents> {
    let json = header(source, limits)?;
    let header: RawHeader = read_json(&json, limits)?;
    let mut entries = header.tensors;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let data = 8 + json.len() as u64;
    let mut tensors = BTreeMap::new();
    let mut next = 0;
    for (name, entry) in entries {
        let info = entry.locate(data, &mut next).map_err(|e| e.of(format!("tensor {}", quote(&name))))?;
        tensors.insert(name, info);
    }
    let held = source.length() - data;
    if next != held {
        return Err(Error::new(format!(
            "the tensors take {next} bytes, but {held} bytes follow the header; they must be equal"
        )));
    }
    q4nx::reveal(&header.metadata, &mut tensors)?;
    Ok(HeaderContents { metadata: header.metadata, tensors })
}

/// Reads the bytes of the JSON text.
fn header(source: &dyn ReadAt, limits: &FileLimits) -> Result<Vec<u8>> {
    let length = source.length();
    let mut prefix = [0; 8];
    if length < 8 {
        return Err(Error::new(format!(
            "has {length} bytes, but a safetensors file starts with the length of its header, 8 bytes"
        )));
    }
    source.read_at(0, &mut prefix)?;
    let bytes = u64::from_le_bytes(prefix);
    if bytes > limits.header_bytes {
        return Err(Error::new(format!("the header has {bytes} bytes; the cap is {}", limits.header_bytes)));
    }
    if bytes > length - 8 {
        return Err(Error::new(format!(
            "the header has {bytes} bytes, but only {} follow its length; the file is truncated or is not \
             safetensors",
            length - 8
        )));
    }
    let mut json = vec![0; bytes as usize]; // bounded by the cap
    source.read_at(8, &mut json)?;
    Ok(json)
}

/// A parsed header whose extents are not yet checked.
#[derive(Default)]
struct RawHeader {
    metadata: Metadata,
    tensors: Vec<(String, RawEntry)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Extents,
    data_offsets: (u64, u64),
}

impl RawEntry {
    /// Checks the entry, whose data must start at `next`, and moves `next` to its end.
    fn locate(&self, data: u64, next: &mut u64) -> Result<TensorInfo> {
        let dtype = dtype_of(&self.dtype)?;
        let shape = self.shape.checked()?;
        let bytes = dtype.bytes(&shape)? as u64;
        let (start, end) = self.data_offsets;
        if end.checked_sub(start) != Some(bytes) {
            return Err(Error::new(format!(
                "has the offsets {start}..{end}, but {shape} of {dtype} takes {bytes} bytes"
            )));
        }
        if start != *next {
            return Err(Error::new(format!(
                "starts at {start} instead of {next}; tensors must be contiguous"
            )));
        }
        *next = end;
        let offset = data
            .checked_add(start)
            .ok_or_else(|| Error::new(format!("starts at {start}, which overflows the file offset")))?;
        Ok(TensorInfo { dtype, shape, shard: 0, offset, bytes })
    }
}

fn dtype_of(name: &str) -> Result<DType> {
    SAFETENSORS_TYPES.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| {
        let held = SAFETENSORS_TYPES.map(|row| row.1).join(", ");
        Error::new(format!(
            "stored as {}, which girih does not read; convert it to one of {held}",
            quote(name)
        ))
    })
}

/// The extents of a shape, up to the rank that girih supports.
struct Extents {
    extents: [u64; Shape::MAX_RANK],
    rank: usize,
}

impl Extents {
    fn checked(&self) -> Result<Shape> {
        // A scalar has the shape [1].
        shape(&self.extents[..self.rank.max(1)])
    }
}

impl<'de> Deserialize<'de> for Extents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Extents, D::Error> {
        struct ExtentsVisitor;
        impl<'de> Visitor<'de> for ExtentsVisitor {
            type Value = Extents;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a shape of at most 4 dimensions")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Extents, A::Error> {
                let mut shape = Extents { extents: [1; Shape::MAX_RANK], rank: 0 };
                while let Some(extent) = list.next_element()? {
                    *shape.extents.get_mut(shape.rank).ok_or_else(|| {
                        A::Error::custom("a shape has more than 4 dimensions, which girih does not support")
                    })? = extent;
                    shape.rank += 1;
                }
                Ok(shape)
            }
        }
        deserializer.deserialize_seq(ExtentsVisitor)
    }
}

/// Reads JSON whose outermost value is a [`RawHeader`].
fn read_json(json: &[u8], limits: &FileLimits) -> Result<RawHeader> {
    let text = str::from_utf8(json)
        .map_err(|error| Error::new(format!("the header is not UTF-8 at byte {}", error.valid_up_to())))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let header = deserializer.deserialize_map(HeaderVisitor { limits });
    let header = header.and_then(|header| deserializer.end().map(|()| header));
    header.map_err(|error| Error::new(format!("the header is invalid: {}", shorten(error))))
}

struct HeaderVisitor<'a> {
    limits: &'a FileLimits,
}

impl<'de> Visitor<'de> for HeaderVisitor<'_> {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object that describes tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if header.tensors.len() as u64 == self.limits.tensors {
                return Err(A::Error::custom(format!("has more than {} tensors", self.limits.tensors)));
            }
            self.limits.check_name(&name).map_err(A::Error::custom)?;
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("{} occurs twice", quote(&name))));
            }
            let named = |error: A::Error| A::Error::custom(format!("{}: {error}", quote(&name)));
            if name == METADATA {
                let pairs: UniqueMap<String> = map.next_value().map_err(named)?;
                if pairs.0.len() as u64 > self.limits.metadata_pairs {
                    let max = self.limits.metadata_pairs;
                    return Err(A::Error::custom(format!("{METADATA} has more than {max} pairs")));
                }
                for (key, value) in pairs.0 {
                    header.metadata.insert(key, MetadataValue::String(value)).map_err(A::Error::custom)?;
                }
            } else {
                let entry = map.next_value().map_err(named)?;
                header.tensors.push((name, entry));
            }
        }
        Ok(header)
    }
}

/// The maximum number of pairs of a [`UniqueMap`]: the cap on tensors.
const UNIQUE_PAIRS_MAX: usize = FileLimits::DEFAULT.tensors as usize;

/// A JSON object of limited size in which no key occurs twice.
pub(super) struct UniqueMap<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueMap<V>, D::Error> {
        struct UniqueVisitor<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
            type Value = UniqueMap<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap<V>, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if pairs.len() == UNIQUE_PAIRS_MAX {
                        return Err(A::Error::custom(format!("has more than {UNIQUE_PAIRS_MAX} pairs")));
                    }
                    FileLimits::DEFAULT.check_name(&key).map_err(A::Error::custom)?;
                    if pairs.contains_key(&key) {
                        return Err(A::Error::custom(format!("{} occurs twice", quote(&key))));
                    }
                    pairs.insert(key, map.next_value()?);
                }
                Ok(UniqueMap(pairs))
            }
        }
        deserializer.deserialize_map(UniqueVisitor(std::marker::PhantomData))
    }
}
