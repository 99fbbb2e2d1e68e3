//! Records of measurements: a CSV file that grows by a row at a time, so that
//! figures of one machine can be compared over the project's life.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::{Error, Result};

/// Names and values of a row, in the order of its columns.
pub type Fields = Vec<(&'static str, String)>;

/// Appends a row to the file at `path`, which begins with the names of its
/// columns; a file that is not there is made.
///
/// # Errors
/// When the file has other columns, or cannot be read or written.
pub fn append(path: &Path, fields: &Fields) -> Result<()> {
    let fails = |what: &str, error: std::io::Error| {
        Error::new(format!("{}: the record cannot be {what}: {error}", path.display()))
    };
    let header = header(fields);
    let have = match fs::read_to_string(path) {
        Ok(text) => Some(text.lines().next().unwrap_or_default().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(fails("read", error)),
    };
    if let Some(have) = have.as_ref().filter(|have| **have != header) {
        return Err(Error::new(format!(
            "{}: the columns of the record are '{have}', of the row '{header}': move the file away",
            path.display()
        )));
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| fails("written", error))?;
    }
    let mut file =
        OpenOptions::new().create(true).append(true).open(path).map_err(|error| fails("written", error))?;
    let begin = if have.is_none() { format!("{header}\n") } else { String::new() };
    let row = format!("{begin}{}\n", row(fields));
    // In one call, so that two programs do not write into each other's rows.
    file.write_all(row.as_bytes()).map_err(|error| fails("written", error))
}

/// The names of the columns, as a line of CSV.
pub fn header(fields: &Fields) -> String {
    line(fields.iter().map(|(name, _)| *name))
}

/// The values, as a line of CSV.
pub fn row(fields: &Fields) -> String {
    line(fields.iter().map(|(_, value)| value.as_str()))
}

fn line<'a>(values: impl Iterator<Item = &'a str>) -> String {
    values.map(quoted).collect::<Vec<_>>().join(",")
}

/// A value as CSV has it (RFC 4180): quoted where it holds what ends a value.
fn quoted(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", value.replace('"', "\"\""))
    } else {
        value.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_grows_and_keeps_its_columns() {
        let folder = std::env::temp_dir().join(format!("girih-record-{}", std::process::id()));
        let path = folder.join("a/machine.csv");
        let fields = |value: &str| vec![("test", value.to_owned()), ("rate", "1.5".to_owned())];
        append(&path, &fields("pp512")).unwrap();
        append(&path, &fields("a \"b\", c")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "test,rate\npp512,1.5\n\"a \"\"b\"\", c\",1.5\n");
        let error = append(&path, &vec![("other", String::new())]).unwrap_err().to_string();
        assert!(error.contains("move the file away"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
