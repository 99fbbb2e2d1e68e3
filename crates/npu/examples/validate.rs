//! Prints published measurements beside simulated times:
//! `validate TABLES [PART [FIGURES]]`. Files in the folder FIGURES take the place
//! of the target and kernel files of the same name, so that a figure can be
//! tried out without a build.

use std::fs::read_to_string;
use std::path::Path;

use girih_npu::kernel::Table;
use girih_npu::sim::Simulator;
use girih_npu::{Error, Result, Target};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or_else(|| Error::new("give the folder of the tables"))?;
    let wanted = arguments.next().unwrap_or_default();
    let figures = arguments.next();
    let unreadable = |error: std::io::Error| Error::new(format!("{folder}: {error}"));
    let mut files = Vec::new();
    for entry in Path::new(&folder).read_dir().map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, read_to_string(&path).map_err(unreadable)?));
        }
    }
    files.sort();
    let array = |name: &str| array(name, figures.as_deref());
    print!("{}", girih_npu::published::validate(&files, &wanted, &array)?);
    Ok(())
}

fn array(name: &str, figures: Option<&str>) -> Result<Simulator> {
    let text = |file: String| figures.and_then(|folder| read_to_string(Path::new(folder).join(file)).ok());
    let target = match text(format!("{name}.toml")) {
        Some(text) => Target::parse(&text, None)?,
        None => Target::named(name)?,
    };
    let simulator = Simulator::new(&target)?;
    match text(format!("kernels-{}.toml", target.core)) {
        Some(text) => Ok(simulator.with_table(Table::parse(&text, &target)?)),
        None => Ok(simulator),
    }
}
