//! A list in JSON with as many elements as a model may have tensors.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use crate::limits::FileLimits;

/// A list whose length is checked while it is read.
pub(crate) struct CappedList<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for CappedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CappedList<T>, D::Error> {
        struct CappedListVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for CappedListVisitor<T> {
            type Value = CappedList<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tensors")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CappedList<T>, A::Error> {
                let (mut elements, max) = (Vec::new(), FileLimits::DEFAULT.tensors);
                while let Some(element) = list.next_element()? {
                    if elements.len() as u64 == max {
                        return Err(A::Error::custom(format!("has more than {max} tensors")));
                    }
                    elements.push(element);
                }
                Ok(CappedList(elements))
            }
        }
        deserializer.deserialize_seq(CappedListVisitor(PhantomData))
    }
}
