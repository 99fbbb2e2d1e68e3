//! Reads JSON objects of a known form; unknown and repeated keys are refused.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use girih::tools::{quote, shorten_parse};
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::status::{Fault, Result};

/// The maximum length of a JSON text in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Reads an object; `what` names it in errors. `None` is an empty object.
///
/// # Errors
/// When the text is too long, is no JSON object, or has unknown, repeated or wrong keys.
pub fn read<T: DeserializeOwned>(what: &str, text: Option<&str>) -> Result<T> {
    let text = text.unwrap_or("{}");
    if text.len() > MAX_BYTES {
        let length = text.len();
        return Err(Fault::argument(format!("{what} have {length} bytes; the maximum is {MAX_BYTES}")));
    }
    // What serde derives for structs also reads a list of the fields' values.
    if !text.trim_start().starts_with('{') {
        return Err(Fault::argument(format!("{what} are no JSON object: pass one, such as {{}}")));
    }
    serde_json::from_str(text).map_err(|error| Fault::argument(format!("{what}: {}", shorten_parse(&error))))
}

/// Reads an object whose keys are free, each once.
///
/// # Errors
/// When it is no object, a value is wrong, or a key is there twice.
pub fn unique_map<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<BTreeMap<String, V>, D::Error> {
    struct UniqueKeyMap<V>(PhantomData<V>);

    impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueKeyMap<V> {
        type Value = BTreeMap<String, V>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
            let mut all = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, V>()? {
                if all.contains_key(&key) {
                    return Err(A::Error::custom(format!("duplicate key {}", quote(&key))));
                }
                all.insert(key, value);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_map(UniqueKeyMap(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cat {
        lives: Option<u32>,
        #[serde(default, deserialize_with = "unique_map")]
        toys: BTreeMap<String, u32>,
    }

    #[test]
    fn an_object_has_known_keys_only() {
        let read = |text| read::<Cat>("the options", text);
        let toys = BTreeMap::new();
        assert_eq!(read(None), Ok(Cat { lives: None, toys: toys.clone() }));
        assert_eq!(read(Some(" {\"lives\": 9}")), Ok(Cat { lives: Some(9), toys }));
        for (bad, named) in [
            ("[9]", "no JSON object"),
            ("", "no JSON object"),
            ("{", "EOF"),
            ("{\"lifes\": 9}", "lifes"),
            ("{\"lives\": 9, \"lives\": 9}", "duplicate"),
            ("{\"lives\": -9}", "-9"),
            ("{\"toys\": {\"ball\": 1, \"ball\": 2}}", "ball"),
            ("{\"toys\": []}", "an object"),
        ] {
            let fault = read(Some(bad)).unwrap_err();
            assert!(fault.sentence.starts_with("the options") && fault.sentence.contains(named), "{fault:?}");
        }
    }
}
