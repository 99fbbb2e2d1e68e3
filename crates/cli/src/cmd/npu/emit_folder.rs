//! The folder of programs that are written for the tools of a device, and folders whose files are numbered.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use girih_npu::Target;
use girih_npu::emit::{EmittedProgram, KERNELS, LOADER, emit};
use girih_npu::form::schedule::Schedule;

use crate::error::{Error, Result};
use crate::output::counted;

/// A folder whose files are numbered by program or form. Numbers go on from those that the folder has, so that
/// no file is overwritten.
pub(super) struct NumberedFolder {
    folder: PathBuf,
    count: usize,
}

impl NumberedFolder {
    pub fn open(folder: &Path) -> io::Result<NumberedFolder> {
        std::fs::create_dir_all(folder)?;
        let mut count = 0;
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.split_once('-')?.0.parse().ok());
            count = count.max(number.unwrap_or(0));
        }
        Ok(NumberedFolder { folder: folder.to_owned(), count })
    }

    /// The beginning of the names of a program's next files: `003-flash_attn`.
    pub fn next_name(&mut self, program: &str) -> String {
        self.count = self.count.saturating_add(1);
        format!("{:03}-{}", self.count, program.replace('/', "_"))
    }

    /// Writes a new file.
    pub fn write(&self, name: &str, text: &dyn Display) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.folder.join(name));
        file.and_then(|file| write_all(file, text))
    }
}

fn write_all(file: File, text: &dyn Display) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    write!(file, "{text}")?;
    file.flush()
}

/// Writes programs for the tools of a device, and counts those that it cannot express.
pub(super) struct EmitFolder {
    folder: NumberedFolder,
    /// Programs that the dialects cannot express.
    pub refused: usize,
}

impl EmitFolder {
    /// Opens the folder, and writes the loader, the functions of cores and other scripts unless they are there.
    ///
    /// # Errors
    /// When the folder cannot be written, or one of the files has another text.
    pub fn open(path: &Path, scripts: &[(&str, &str)]) -> Result<EmitFolder> {
        let folder = NumberedFolder::open(path)?;
        for (name, text) in [("run_xrt.py", LOADER), ("kernels.cc", KERNELS)].iter().chain(scripts) {
            match folder.write(name, text) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let file = path.join(name);
                    if std::fs::read(&file)? != text.as_bytes() {
                        let file = file.display();
                        return Err(Error::call(format!(
                            "{file} has another text than this girih would write: move it, or choose another folder"
                        )));
                    }
                }
                written => written?,
            }
        }
        Ok(EmitFolder { folder, refused: 0 })
    }

    /// Writes a program's module and manifest, and prints their name, or why there are none. Returns the name that
    /// both files have without their endings.
    pub fn program(&mut self, schedule: &Schedule, target: &Target) -> Result<Option<String>> {
        let EmittedProgram { module, manifest } = match emit(schedule, target) {
            Ok(emitted) => emitted,
            Err(refusal) => {
                self.refused += 1;
                print_line!("not emitted: {refusal}")?;
                return Ok(None);
            }
        };
        let name = self.folder.next_name(&schedule.name);
        self.folder.write(&format!("{name}.mlir"), &module)?;
        self.folder.write(&format!("{name}.json"), &serde_json::to_string_pretty(&manifest)?)?;
        let devices = counted(manifest.launches.len(), "device");
        let missing = manifest.functions.iter().filter(|function| !function.is_written);
        let missing: Vec<&str> = missing.map(|function| function.name).collect();
        let functions = counted(manifest.functions.len(), "function");
        print_line!("emitted {name}.mlir: {devices}, whose cores call {functions}")?;
        if !missing.is_empty() {
            print_line!("  not in kernels.cc: {}", missing.join(", "))?;
        }
        Ok(Some(name))
    }

    /// Writes a file beside the programs; one of that name is replaced.
    pub fn replace(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.folder.folder.join(name), text)?)
    }
}
