//! The typed key-value pairs of a container's header.
//!
//! A value is read as its stored type; if another type is requested, the
//! error names the key. Bytes are never reinterpreted as another type.

use std::collections::HashMap;
use std::fmt;

use girih_tensor::{Error, Result};

use crate::quote::quote;

/// The type of a value, with GGUF's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names suffice
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

/// Type, name, and the minimum size of one value in a GGUF header, in bytes.
const VALUE_TYPES: [(ValueType, &str, u64); 13] = [
    (ValueType::U8, "u8", 1),
    (ValueType::I8, "i8", 1),
    (ValueType::U16, "u16", 2),
    (ValueType::I16, "i16", 2),
    (ValueType::U32, "u32", 4),
    (ValueType::I32, "i32", 4),
    (ValueType::F32, "f32", 4),
    (ValueType::Bool, "bool", 1),
    (ValueType::String, "string", 8),
    (ValueType::Array, "array", 12),
    (ValueType::U64, "u64", 8),
    (ValueType::I64, "i64", 8),
    (ValueType::F64, "f64", 8),
];

impl ValueType {
    /// The type with GGUF's number `id`.
    pub(super) fn from_id(id: u32) -> Option<ValueType> {
        VALUE_TYPES.get(id as usize).map(|row| row.0)
    }

    /// GGUF's number for the type.
    pub(super) fn id(self) -> u32 {
        self as u32
    }

    /// The minimum size of one value in a GGUF header, in bytes.
    pub(super) fn min_bytes(self) -> u64 {
        VALUE_TYPES[self as usize].2
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VALUE_TYPES[*self as usize].1)
    }
}

/// One value of a header.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names suffice
pub enum MetadataValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(MetadataArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names suffice
pub enum MetadataArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<MetadataArray>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl MetadataValue {
    /// The stored type.
    pub fn kind(&self) -> ValueType {
        match self {
            MetadataValue::U8(_) => ValueType::U8,
            MetadataValue::I8(_) => ValueType::I8,
            MetadataValue::U16(_) => ValueType::U16,
            MetadataValue::I16(_) => ValueType::I16,
            MetadataValue::U32(_) => ValueType::U32,
            MetadataValue::I32(_) => ValueType::I32,
            MetadataValue::F32(_) => ValueType::F32,
            MetadataValue::Bool(_) => ValueType::Bool,
            MetadataValue::String(_) => ValueType::String,
            MetadataValue::Array(_) => ValueType::Array,
            MetadataValue::U64(_) => ValueType::U64,
            MetadataValue::I64(_) => ValueType::I64,
            MetadataValue::F64(_) => ValueType::F64,
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            MetadataValue::U8(n) => Some(n.into()),
            MetadataValue::I8(n) => Some(n.into()),
            MetadataValue::U16(n) => Some(n.into()),
            MetadataValue::I16(n) => Some(n.into()),
            MetadataValue::U32(n) => Some(n.into()),
            MetadataValue::I32(n) => Some(n.into()),
            MetadataValue::U64(n) => Some(n.into()),
            MetadataValue::I64(n) => Some(n.into()),
            _ => None,
        }
    }
}

/// A short description for errors: `the u32 5`, `an array of 512 string`.
impl fmt::Display for MetadataValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataValue::String(text) => write!(f, "the string {}", quote(text)),
            MetadataValue::Array(array) => write!(f, "an array of {} {}", array.len(), array.kind()),
            MetadataValue::Bool(value) => write!(f, "the bool {value}"),
            MetadataValue::F32(value) => write!(f, "the f32 {value}"),
            MetadataValue::F64(value) => write!(f, "the f64 {value}"),
            _ => write!(f, "the {} {}", self.kind(), self.integer().unwrap_or_default()),
        }
    }
}

impl MetadataArray {
    /// The type of its elements.
    pub fn kind(&self) -> ValueType {
        match self {
            MetadataArray::U8(_) => ValueType::U8,
            MetadataArray::I8(_) => ValueType::I8,
            MetadataArray::U16(_) => ValueType::U16,
            MetadataArray::I16(_) => ValueType::I16,
            MetadataArray::U32(_) => ValueType::U32,
            MetadataArray::I32(_) => ValueType::I32,
            MetadataArray::F32(_) => ValueType::F32,
            MetadataArray::Bool(_) => ValueType::Bool,
            MetadataArray::String(_) => ValueType::String,
            MetadataArray::Array(_) => ValueType::Array,
            MetadataArray::U64(_) => ValueType::U64,
            MetadataArray::I64(_) => ValueType::I64,
            MetadataArray::F64(_) => ValueType::F64,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            MetadataArray::U8(list) => list.len(),
            MetadataArray::I8(list) => list.len(),
            MetadataArray::U16(list) => list.len(),
            MetadataArray::I16(list) => list.len(),
            MetadataArray::U32(list) => list.len(),
            MetadataArray::I32(list) => list.len(),
            MetadataArray::F32(list) => list.len(),
            MetadataArray::Bool(list) => list.len(),
            MetadataArray::String(list) => list.len(),
            MetadataArray::Array(list) => list.len(),
            MetadataArray::U64(list) => list.len(),
            MetadataArray::I64(list) => list.len(),
            MetadataArray::F64(list) => list.len(),
        }
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements of an array of integers of any width, if all fit `u32`.
    fn unsigned(&self) -> Option<Vec<u32>> {
        fn all<T: Copy + TryInto<u32>>(list: &[T]) -> Option<Vec<u32>> {
            list.iter().map(|&n| n.try_into().ok()).collect()
        }
        match self {
            MetadataArray::U8(list) => all(list),
            MetadataArray::I8(list) => all(list),
            MetadataArray::U16(list) => all(list),
            MetadataArray::I16(list) => all(list),
            MetadataArray::U32(list) => all(list),
            MetadataArray::I32(list) => all(list),
            MetadataArray::U64(list) => all(list),
            MetadataArray::I64(list) => all(list),
            _ => None,
        }
    }
}

/// A list of strings in two allocations, such as a vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// An empty list with room for `count` strings.
    pub fn with_capacity(count: usize) -> Strings {
        Strings { text: String::new(), ends: Vec::with_capacity(count) }
    }

    /// Appends one string.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The total size of the strings, in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The string at `index`; `None` if `index` is out of range.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.text[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("the index is below the length"))
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut list = Strings::default();
        strings.into_iter().for_each(|string| list.push(string.as_ref()));
        list
    }
}

/// The pairs of one header, in file order; keys are unique.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    pairs: Vec<(String, MetadataValue)>,
    /// The index of each key in `pairs`.
    indexes: HashMap<String, usize>,
}

impl Metadata {
    /// No pairs.
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Appends a pair.
    ///
    /// # Errors
    /// When the key already exists.
    pub fn insert(&mut self, key: impl Into<String>, value: MetadataValue) -> Result<()> {
        let key = key.into();
        if self.indexes.contains_key(&key) {
            return Err(Error::new(format!("key {} occurs twice; keys must be unique", quote(&key))));
        }
        self.indexes.insert(key.clone(), self.pairs.len());
        self.pairs.push((key, value));
        Ok(())
    }

    /// The stored value of `key`.
    pub fn value(&self, key: &str) -> Option<&MetadataValue> {
        self.indexes.get(key).map(|&index| &self.pairs[index].1)
    }

    /// The value of `key`, or `None` if the file has no such key.
    ///
    /// # Errors
    /// When the value is of another type or out of range.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::from_value(value)
            .map(Some)
            .ok_or_else(|| Error::new(format!("key {} is {value}; {} is needed", quote(key), T::NEEDED)))
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// When the file has no such key, and those of [`Metadata::get`].
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?
            .ok_or_else(|| Error::new(format!("key {} is missing; {} is needed", quote(key), T::NEEDED)))
    }

    /// The pairs in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &MetadataValue)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }
}

/// A type that [`Metadata::get`] can return.
///
/// An integer is converted to another width if its value fits; nothing else
/// is converted.
pub trait FromValue<'a>: Sized {
    /// The description of the needed type, for the error.
    const NEEDED: &'static str;

    /// The value as `Self`, or `None` if it has another type.
    fn from_value(value: &'a MetadataValue) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty, $needed:literal, $pattern:pat => $result:expr;)*) => {$(
        impl<'a> FromValue<'a> for $type {
            const NEEDED: &'static str = $needed;
            fn from_value(value: &'a MetadataValue) -> Option<$type> {
                if let $pattern = value { $result } else { None }
            }
        }
    )*};
}

from_value! {
    f32, "an f32", MetadataValue::F32(number) => Some(*number);
    bool, "a bool", MetadataValue::Bool(flag) => Some(*flag);
    &'a str, "a string", MetadataValue::String(text) => Some(text);
    &'a Strings, "an array of string", MetadataValue::Array(MetadataArray::String(list)) => Some(list);
    &'a [f32], "an array of f32", MetadataValue::Array(MetadataArray::F32(list)) => Some(list);
    &'a [i32], "an array of i32", MetadataValue::Array(MetadataArray::I32(list)) => Some(list);
    &'a [bool], "an array of bool", MetadataValue::Array(MetadataArray::Bool(list)) => Some(list);
    Vec<u32>, "an array of integers from 0 to 4294967295", MetadataValue::Array(list) => list.unsigned();
}

impl FromValue<'_> for u32 {
    const NEEDED: &'static str = "an integer from 0 to 4294967295";
    fn from_value(value: &MetadataValue) -> Option<u32> {
        value.integer()?.try_into().ok()
    }
}

impl FromValue<'_> for u64 {
    const NEEDED: &'static str = "an integer that is not negative";
    fn from_value(value: &MetadataValue) -> Option<u64> {
        value.integer()?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_types_are_indexed_by_their_number() {
        for (index, row) in VALUE_TYPES.iter().enumerate() {
            assert_eq!(row.0.id() as usize, index);
            assert_eq!(ValueType::from_id(row.0.id()), Some(row.0));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn values_are_widened_but_never_reinterpreted() {
        let mut metadata = Metadata::new();
        metadata.insert("wide", MetadataValue::U64(7)).unwrap();
        metadata.insert("negative", MetadataValue::I32(-1)).unwrap();
        metadata.insert("scores", MetadataValue::Array(MetadataArray::U8(vec![0; 8]))).unwrap();
        assert_eq!(metadata.require::<u32>("wide").unwrap(), 7);
        assert_eq!(metadata.get::<u32>("absent").unwrap(), None);
        assert_eq!(metadata.require::<Vec<u32>>("scores").unwrap(), [0; 8]);
        let refusals = [
            (metadata.get::<f32>("wide").map(drop), "key 'wide' is the u64 7; an f32 is needed"),
            (
                metadata.get::<u64>("negative").map(drop),
                "key 'negative' is the i32 -1; an integer that is not negative is needed",
            ),
            (
                metadata.get::<&[f32]>("scores").map(drop),
                "key 'scores' is an array of 8 u8; an array of f32 is needed",
            ),
            (metadata.require::<bool>("absent").map(drop), "key 'absent' is missing; a bool is needed"),
            (
                metadata.insert("wide", MetadataValue::Bool(true)),
                "key 'wide' occurs twice; keys must be unique",
            ),
        ];
        for (refusal, sentence) in refusals {
            assert_eq!(refusal.unwrap_err().to_string(), sentence);
        }
    }
}
