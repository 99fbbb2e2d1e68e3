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

use crate::container::{HeaderContents, TensorInfo, UnreadableTensor, shape};
use crate::limits::FileLimits;
use crate::metadata::{Metadata, MetadataValue};
use crate::quote::{quote, shorten_parse};
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

/// The other formats of safetensors and their bits (`Dtype::bitsize` of the crate `safetensors`
/// 0.7). girih checks the extents of such tensors and cannot read them.
const FOREIGN_TYPES: [(&str, u64); 13] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("I16", 16),
    ("U16", 16),
    ("U32", 32),
    ("U64", 64),
    ("F64", 64),
    ("C64", 64),
];

/// The start of the keys that files with girih's former order of Q4NX have in `__metadata__`.
const FORMER_Q4NX_PREFIX: &str = "girih.q4nx.";

/// Reads a header and checks that its extents fill `source` exactly.
///
/// A scalar, whose shape safetensors writes as `[]`, has the shape `[1]`.
///
/// # Errors
/// When the file is not a safetensors file, exceeds one of the `limits`,
/// contradicts itself, or has a tensor type that is not one of safetensors.
pub fn parse(source: &dyn ReadAt, limits: &FileLimits) -> Result<HeaderContents> {
    let json = header(source, limits)?;
    let header: RawHeader = read_json(&json, limits)?;
    let mut entries = header.tensors;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let data = 8 + json.len() as u64;
    let mut tensors = BTreeMap::new();
    let mut unreadable = BTreeMap::new();
    let mut next = 0;
    for (name, entry) in entries {
        let found = entry.locate(data, &mut next).map_err(|e| e.of(format!("tensor {}", quote(&name))))?;
        match found {
            ParsedEntry::Readable(info) => {
                tensors.insert(name, info);
            }
            ParsedEntry::Unreadable(why, words) => {
                unreadable.insert(name, UnreadableTensor { shard: 0, why, words });
            }
        }
    }
    let held = source.length() - data;
    if next != held {
        return Err(Error::new(format!(
            "the tensors take {next} bytes, but {held} bytes follow the header; they must be equal"
        )));
    }
    refuse_former_q4nx(&header.metadata)?;
    Ok(HeaderContents { metadata: header.metadata, tensors, unreadable })
}

/// Refuses safetensors with matrices in girih's former order of Q4NX.
fn refuse_former_q4nx(metadata: &Metadata) -> Result<()> {
    match metadata.iter().find_map(|(key, _)| key.strip_prefix(FORMER_Q4NX_PREFIX)) {
        None => Ok(()),
        Some(name) => Err(Error::new(format!(
            "tensor {} is Q4NX in an order of bytes that only former versions of girih had; quantize the original model again",
            quote(name)
        ))),
    }
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

/// A tensor whose extent is checked.
enum ParsedEntry {
    Readable(TensorInfo),
    /// The reason why girih cannot read it, and the shape and the offset of words of 32 bits.
    Unreadable(String, Option<(Shape, u64)>),
}

impl RawEntry {
    /// Checks the entry, whose data must start at `next`, and moves `next` to its end.
    fn locate(&self, data: u64, next: &mut u64) -> Result<ParsedEntry> {
        let dtype = SAFETENSORS_TYPES.iter().find(|row| row.1 == self.dtype).map(|row| row.0);
        let (bytes, shown) = match (dtype, self.shape.is_supported()) {
            (Some(dtype), true) => {
                let shape = self.shape.checked()?;
                (dtype.bytes(&shape)? as u64, shape.to_string())
            }
            (Some(dtype), false) => {
                (self.shape.bytes(8 * dtype.block_bytes() as u64)?, self.shape.to_string())
            }
            (None, _) => (self.shape.bytes(foreign_bits(&self.dtype)?)?, self.shape.to_string()),
        };
        let (start, end) = self.data_offsets;
        if end.checked_sub(start) != Some(bytes) {
            let dtype = dtype.map_or_else(|| quote(&self.dtype), |dtype| dtype.name().to_owned());
            return Err(Error::new(format!(
                "has the offsets {start}..{end}, but {shown} of {dtype} takes {bytes} bytes"
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
        Ok(match dtype {
            None => {
                let is_words = self.dtype == "U32" && self.shape.is_supported();
                let words = if is_words { Some((self.shape.checked()?, offset)) } else { None };
                ParsedEntry::Unreadable(unread_type(&self.dtype), words)
            }
            Some(_) if !self.shape.is_supported() => ParsedEntry::Unreadable(self.shape.too_many(), None),
            Some(dtype) => ParsedEntry::Readable(TensorInfo {
                dtype,
                shape: self.shape.checked()?,
                shard: 0,
                offset,
                bytes,
            }),
        })
    }
}

/// The bits of a value of a format that girih does not read.
fn foreign_bits(name: &str) -> Result<u64> {
    let found = FOREIGN_TYPES.iter().find(|row| row.0 == name);
    found.map(|row| row.1).ok_or_else(|| Error::new(unread_type(name)))
}

/// The sentence about a format that girih does not read.
pub(crate) fn unread_type(name: &str) -> String {
    if name == "Q4NX" {
        return "has the type Q4NX of former files of FastFlowLM, whose numbers mean something else; \
                download the model again"
            .to_owned();
    }
    let held = SAFETENSORS_TYPES.map(|row| row.1).join(", ");
    format!("stored as {}, which girih does not read; convert it to one of {held}", quote(name))
}

/// The extents of a shape. Of more than girih supports, only their number and product are kept.
pub(crate) struct Extents {
    extents: [u64; Shape::MAX_RANK],
    rank: usize,
    /// The product of all extents, and the product without those that are 0, which must not hide
    /// an overflow of the others; `None` after an overflow.
    products: Option<(u64, u64)>,
}

impl fmt::Display for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.extents[..self.rank.min(Shape::MAX_RANK)];
        let shown = shown.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "[{shown}{}]", if self.is_supported() { "" } else { ", …" })
    }
}

impl Extents {
    /// Whether a tensor can have this number of dimensions.
    pub fn is_supported(&self) -> bool {
        self.rank <= Shape::MAX_RANK
    }

    /// The sentence about too many dimensions.
    pub fn too_many(&self) -> String {
        format!("has {} dimensions; 1 to {} are supported", self.rank, Shape::MAX_RANK)
    }

    /// The size of a tensor whose values have `bits` bits.
    pub fn bytes(&self, bits: u64) -> Result<u64> {
        let bits = self.products.and_then(|(elements, _)| elements.checked_mul(bits));
        bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8).ok_or_else(|| {
            Error::new(format!("has the shape {self}, which is too large or no whole number of bytes"))
        })
    }

    /// It as a shape, whose elements can be counted.
    pub fn checked(&self) -> Result<Shape> {
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
                f.write_str("a shape")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Extents, A::Error> {
                let mut shape = Extents { extents: [1; Shape::MAX_RANK], rank: 0, products: Some((1, 1)) };
                while let Some(extent) = list.next_element::<u64>()? {
                    if let Some(place) = shape.extents.get_mut(shape.rank) {
                        *place = extent;
                    }
                    shape.rank += 1;
                    shape.products = shape.products.and_then(|(product, without_zeros)| {
                        Some((product.checked_mul(extent)?, without_zeros.checked_mul(extent.max(1))?))
                    });
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
    header.map_err(|error| Error::new(format!("the header is invalid: {}", shorten_parse(&error))))
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
