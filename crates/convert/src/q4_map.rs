//! Manifests of matrices to store as integers of four bits, as IE-Core's converter takes them by `--q4-map`.
//!
//! A manifest is JSON: a list of objects, an object of objects by name, or one object on each line. An object has `name`, `per`
//! (`row` or `tensor`), `rows` and `cols`. With `int4_bin` (or `packed_bin`) and `scale_bin` the integers and the scales are
//! those of these files; without them girih computes both. A path is relative to the folder of the manifest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use girih_file::{quote, read_small, shorten};
use girih_tensor::{DType, Error, Result, Shape};
use serde::Deserialize;
use serde_json::Value;

/// The maximum size of a manifest, which has a few hundred bytes for each matrix.
const MANIFEST_BYTES: u64 = 16 << 20;

/// The matrices of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Q4Map {
    items: BTreeMap<String, Q4Item>,
}

/// How one matrix is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Q4Item {
    pub is_by_row: bool,
    rows: usize,
    columns: usize,
    /// The files of integers and scales, and the format of the scales; `None` if girih computes them.
    pub files: Option<(PathBuf, PathBuf, DType)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawItem {
    name: String,
    per: String,
    rows: usize,
    cols: usize,
    #[serde(alias = "packed_bin")]
    int4_bin: Option<PathBuf>,
    scale_bin: Option<PathBuf>,
    scale_dtype: Option<String>,
    pack: Option<String>,
    zp: Option<i64>,
    symmetric: Option<bool>,
}

impl Q4Map {
    /// Reads a manifest.
    ///
    /// # Errors
    /// When the file cannot be read, is no such manifest, or describes matrices that girih does not store.
    pub fn read(path: &Path) -> Result<Q4Map> {
        let text = read_small(path, MANIFEST_BYTES)?;
        let text = String::from_utf8(text).map_err(|_| Error::new("is not UTF-8").of(path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Q4Map::parse(&text, folder).map_err(|error| error.of(path.display()))
    }

    /// Parses a manifest whose paths are relative to `folder`.
    fn parse(text: &str, folder: &Path) -> Result<Q4Map> {
        let mut items = BTreeMap::new();
        for value in values(text)? {
            let raw: RawItem = serde_json::from_value(value)
                .map_err(|error| Error::new(format!("is not a manifest of matrices: {}", shorten(error))))?;
            let (name, item) = (raw.name.clone(), raw);
            let of = |error: Error| error.of(format!("matrix {}", quote(&name)));
            let item = item.checked(folder).map_err(of)?;
            if items.insert(name.clone(), item).is_some() {
                return Err(of(Error::new("occurs twice")));
            }
        }
        if items.is_empty() {
            return Err(Error::new("lists no matrices"));
        }
        Ok(Q4Map { items })
    }

    /// The item of a tensor of this name and shape, if there is one.
    ///
    /// # Errors
    /// When it states another shape.
    pub(super) fn item(&self, name: &str, shape: &Shape) -> Result<Option<&Q4Item>> {
        let Some(item) = self.items.get(name) else { return Ok(None) };
        if (item.rows, item.columns) != (shape.rows(), shape.columns()) {
            let (rows, columns, name) = (item.rows, item.columns, quote(name));
            return Err(Error::new(format!(
                "the manifest states [{rows}, {columns}] for {name}, which is {shape} in the model"
            )));
        }
        Ok(Some(item))
    }

    /// Checks that each of its matrices is one of `names`.
    ///
    /// # Errors
    /// When one is not.
    pub(super) fn check_used(&self, names: &[&str]) -> Result<()> {
        match self.items.keys().find(|name| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(Error::new(format!(
                "the manifest names {}, which is no matrix of the model",
                quote(name)
            ))),
        }
    }
}

impl RawItem {
    fn checked(self, folder: &Path) -> Result<Q4Item> {
        let is_by_row = match self.per.as_str() {
            "row" => true,
            "tensor" => false,
            per => {
                return Err(Error::new(format!("has scales per {}; row and tensor are known", quote(per))));
            }
        };
        if self.zp.is_some_and(|zero| zero != 0) || self.symmetric == Some(false) {
            return Err(Error::new("has a zero point; girih stores integers around 0"));
        }
        if let Some(pack) = self.pack.as_deref().filter(|pack| *pack != girih_file::iebin::PACK) {
            return Err(Error::new(format!(
                "is packed as {}; {} is known",
                quote(pack),
                girih_file::iebin::PACK
            )));
        }
        let dtype = match self.scale_dtype.as_deref() {
            None | Some("fp16") => DType::F16,
            Some("fp32") => DType::F32,
            Some(kind) => {
                return Err(Error::new(format!("has scales of {}; fp16 and fp32 are known", quote(kind))));
            }
        };
        let files = match (self.int4_bin, self.scale_bin) {
            (Some(codes), Some(scales)) => Some((folder.join(codes), folder.join(scales), dtype)),
            (None, None) if dtype == DType::F16 => None,
            (None, None) => return Err(Error::new("has scales of fp32, but girih computes scales of fp16")),
            (Some(_), None) => return Err(Error::new("has the key 'int4_bin', but no key 'scale_bin'")),
            (None, Some(_)) => return Err(Error::new("has the key 'scale_bin', but no key 'int4_bin'")),
        };
        Ok(Q4Item { is_by_row, rows: self.rows, columns: self.cols, files })
    }
}

/// The objects of a manifest.
fn values(text: &str) -> Result<Vec<Value>> {
    let invalid = |error: serde_json::Error| Error::new(format!("is not JSON: {}", shorten(error)));
    // One object alone is also a line.
    match serde_json::from_str(text) {
        Ok(Value::Array(items)) => Ok(items),
        Ok(Value::Object(item)) if item.contains_key("name") => Ok(vec![Value::Object(item)]),
        Ok(Value::Object(items)) => items.into_iter().map(named).collect(),
        Ok(_) => Err(Error::new("is neither a list nor an object")),
        Err(_) if text.trim_start().starts_with('{') => {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            lines.map(|line| serde_json::from_str(line).map_err(invalid)).collect()
        }
        Err(error) => Err(invalid(error)),
    }
}

/// An object with its name in it.
fn named((name, value): (String, Value)) -> Result<Value> {
    match value {
        Value::Object(mut item) if !item.contains_key("name") => {
            item.insert("name".to_owned(), Value::String(name));
            Ok(Value::Object(item))
        }
        _ => Err(Error::new(format!("has no object without a name of its own under {}", quote(&name)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &str = r#""per":"row","rows":2,"cols":3"#;

    fn parse(text: &str) -> Result<Q4Map> {
        Q4Map::parse(text, Path::new("/maps"))
    }

    #[test]
    fn lists_objects_and_lines_mean_the_same() {
        let list = parse(&format!(r#"[{{"name":"a",{ITEM}}},{{"name":"b",{ITEM}}}]"#)).unwrap();
        assert_eq!(parse(&format!(r#"{{"a":{{{ITEM}}},"b":{{{ITEM}}}}}"#)).unwrap(), list);
        assert_eq!(
            parse(&format!("{{\"name\":\"a\",{ITEM}}}\n\n{{\"name\":\"b\",{ITEM}}}\n")).unwrap(),
            list
        );
        assert_eq!(parse(&format!(r#"{{"name":"a",{ITEM}}}"#)).unwrap().items.len(), 1);
        let files = r#""packed_bin":"x/c.bin","scale_bin":"/s.bin","scale_dtype":"fp32""#;
        let map = parse(&format!(r#"{{"name":"a",{ITEM},{files}}}"#)).unwrap();
        let expected = (PathBuf::from("/maps/x/c.bin"), PathBuf::from("/s.bin"), DType::F32);
        assert_eq!(map.items["a"].files, Some(expected));
        assert!(map.item("a", &Shape::matrix(2, 3)).unwrap().is_some());
        assert!(map.item("b", &Shape::matrix(2, 3)).unwrap().is_none());
        assert!(map.item("a", &Shape::matrix(3, 2)).unwrap_err().to_string().contains("states [2, 3]"));
        assert!(map.check_used(&["b"]).unwrap_err().to_string().contains("'a'"));
    }

    #[test]
    fn malformed_manifests_are_refused() {
        let with = |more: &str| format!(r#"[{{"name":"a",{ITEM},{more}}}]"#);
        for (text, word) in [
            (String::new(), "is not JSON"),
            ("3".to_owned(), "neither a list nor an object"),
            ("[]".to_owned(), "lists no matrices"),
            (r#"{"a":3}"#.to_owned(), "has no object"),
            (r#"[{"name":"a","per":"row","rows":2}]"#.to_owned(), "cols"),
            (format!(r#"[{{"name":"a",{ITEM}}},{{"name":"a",{ITEM}}}]"#), "occurs twice"),
            (with(r#""group":128"#), "group"),
            (with(r#""zp":8"#), "zero point"),
            (with(r#""symmetric":false"#), "zero point"),
            (with(r#""pack":"nibble_hilo""#), "nibble_lohi"),
            (with(r#""scale_dtype":"bf16""#), "fp16 and fp32"),
            (with(r#""scale_dtype":"fp32""#), "computes scales of fp16"),
            (with(r#""int4_bin":"c.bin""#), "scale_bin"),
            (with(r#""scale_bin":"c.bin""#), "int4_bin"),
            (r#"[{"name":"a","per":"group","rows":2,"cols":3}]"#.to_owned(), "row and tensor"),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
