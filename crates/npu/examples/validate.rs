//! Prints published measurements beside simulated times: `validate DIR [PART]`.

use std::path::Path;

use girih_npu::{Error, Result};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or_else(|| Error::new("give the folder of the tables"))?;
    let wanted = arguments.next().unwrap_or_default();
    let unreadable = |error: std::io::Error| Error::new(format!("{folder}: {error}"));
    let mut files = Vec::new();
    for entry in Path::new(&folder).read_dir().map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, std::fs::read_to_string(&path).map_err(unreadable)?));
        }
    }
    files.sort();
    print!("{}", girih_npu::published::validate(&files, &wanted)?);
    Ok(())
}
