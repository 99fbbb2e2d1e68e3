//! Records of measurements: a CSV file to which rows are appended, so that the results
//! of one machine can be compared over time.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use girih_file::open_regular;

use crate::{Error, Result};

/// The maximum length of the first line in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 16;

/// The names and values of a row, in the order of the columns.
pub type Fields = Vec<(&'static str, String)>;

/// Appends a row to the file at `path`, whose first line has the names of the columns;
/// creates the file if it is missing.
///
/// # Errors
/// When the file has other columns, or cannot be read or written.
pub fn append(path: &Path, fields: &Fields) -> Result<()> {
    let fails = |what: &str, error: std::io::Error| {
        Error::new(format!("{}: the record cannot be {what}: {error}", path.display()))
    };
    let header = header(fields);
    let have = match open_regular(path).and_then(first_line) {
        Ok(line) => Some(line),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(fails("read", error)),
    };
    if let Some(have) = have.as_ref().filter(|have| **have != header) {
        return Err(Error::new(format!(
            "{}: the record has the columns '{have}', the row has '{header}': move the file away",
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
    // One write call, so that the rows of two programs do not interleave.
    file.write_all(row.as_bytes()).map_err(|error| fails("written", error))
}

/// Reads the first line of a file, without its end.
fn first_line(file: File) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::new(file.take(MAX_HEADER_BYTES)).read_line(&mut line)?;
    Ok(line.lines().next().unwrap_or_default().to_owned())
}

/// Returns the names of the columns as a line of CSV.
pub fn header(fields: &Fields) -> String {
    line(fields.iter().map(|(name, _)| *name))
}

/// Returns the values as a line of CSV.
pub fn row(fields: &Fields) -> String {
    line(fields.iter().map(|(_, value)| value.as_str()))
}

fn line<'a>(values: impl Iterator<Item = &'a str>) -> String {
    values.map(quoted).collect::<Vec<_>>().join(",")
}

/// Quotes a value if it contains a separator, a quote or a line break (RFC 4180).
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
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/machine.csv");
        let fields = |value: &str| vec![("test", value.to_owned()), ("rate", "1.5".to_owned())];
        append(&path, &fields("pp512")).unwrap();
        append(&path, &fields("a \"b\", c")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "test,rate\npp512,1.5\n\"a \"\"b\"\", c\",1.5\n");
        let error = append(&path, &vec![("other", String::new())]).unwrap_err().to_string();
        assert!(error.contains("move the file away"), "{error}");
    }
}
