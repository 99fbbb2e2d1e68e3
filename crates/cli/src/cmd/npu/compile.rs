//! `girih npu compile`: compiles every program of a model, keeps the blobs, and emits the programs for
//! the tools of a device.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use girih_npu::Target;
use girih_npu::blob;
use girih_npu::driver::{CompiledGraph, Compiler};
use girih_npu::emit::{EmittedProgram, KERNELS, LOADER, emit};
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{Dump, Grouping, NoDump};

use super::args::CompileModelArgs;
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::{bytes, counted};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: CompileModelArgs,
    /// Write every form of every program into this folder; blobs are neither read nor kept.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["blobs", "blobs_limit"])]
    dump: Option<PathBuf>,
    /// Also write every program for the tools of a device: aie is MLIR in the dialects of mlir-aie, with a
    /// manifest and a loader for XRT. No device has run one yet.
    #[arg(long, value_name = "FORMAT")]
    emit: Option<EmitFormat>,
    /// Folder for --emit [default: aie].
    #[arg(value_name = "OUT_DIR", requires = "emit")]
    output: Option<PathBuf>,
}

/// The values of `--emit`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum EmitFormat {
    /// MLIR in the dialects aie and aiex.
    Aie,
}

impl EmitFormat {
    /// The folder if the call names none.
    fn folder(self) -> &'static Path {
        match self {
            EmitFormat::Aie => Path::new("aie"),
        }
    }
}

/// A folder whose files are numbered by program or form. Numbers go on from those that the folder has, so that
/// no file is overwritten.
struct NumberedFolder {
    folder: PathBuf,
    count: usize,
}

impl NumberedFolder {
    fn open(folder: &Path) -> io::Result<NumberedFolder> {
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
    fn next_name(&mut self, program: &str) -> String {
        self.count = self.count.saturating_add(1);
        format!("{:03}-{}", self.count, program.replace('/', "_"))
    }

    /// Writes a new file.
    fn write(&self, name: &str, text: &dyn Display) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.folder.join(name));
        file.and_then(|file| write_all(file, text))
    }
}

/// Writes the forms of programs into a folder.
struct DumpFolder {
    folder: NumberedFolder,
    failed: Option<io::Error>,
}

impl DumpFolder {
    fn open(folder: &Path) -> io::Result<DumpFolder> {
        Ok(DumpFolder { folder: NumberedFolder::open(folder)?, failed: None })
    }
}

impl Dump for DumpFolder {
    fn form(&mut self, name: &str, program: &str, text: &dyn Display) {
        let file = format!("{}.{name}.npu", self.folder.next_name(program));
        if let Err(error) = self.folder.write(&file, text) {
            self.failed.get_or_insert(error);
        }
    }
}

fn write_all(file: File, text: &dyn Display) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    write!(file, "{text}")?;
    file.flush()
}

/// Writes programs for the tools of a device, and counts those that it cannot express.
struct EmitFolder {
    folder: NumberedFolder,
    refused: usize,
}

impl EmitFolder {
    /// Opens the folder, and writes the loader and the functions of cores unless they are there.
    ///
    /// # Errors
    /// When the folder cannot be written, or one of the two files has another text.
    fn open(path: &Path) -> Result<EmitFolder> {
        let folder = NumberedFolder::open(path)?;
        for (name, text) in [("run_xrt.py", LOADER), ("kernels.cc", KERNELS)] {
            match folder.write(name, &text) {
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

    /// Writes a program's module and manifest, and prints their name, or why there are none.
    fn program(&mut self, schedule: &Schedule, target: &Target) -> Result<()> {
        let EmittedProgram { module, manifest } = match emit(schedule, target) {
            Ok(emitted) => emitted,
            Err(refusal) => {
                self.refused += 1;
                return print_line!("not emitted: {refusal}");
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
        if missing.is_empty() { Ok(()) } else { print_line!("  not in kernels.cc: {}", missing.join(", ")) }
    }
}

pub fn run(args: &Args) -> Result<Outcome> {
    let mut mapping = args.source.mapping()?;
    let grouping = mapping.policy.grouping;
    if args.emit.is_some() && matches!(grouping, Grouping::ByCost | Grouping::Resident) {
        // Each emitted launch has a configuration of its own.
        mapping.policy.grouping = Grouping::Joined;
    }
    let compiler = match &args.dump {
        Some(_) => Compiler::new(args.source.array()?, mapping, None),
        None => args.source.compiler_for(mapping)?,
    };
    let mut files = args.dump.as_deref().map(DumpFolder::open).transpose()?;
    let output = args.emit.map(|format| args.output.as_deref().unwrap_or(format.folder()));
    let mut emitted = output.map(EmitFolder::open).transpose()?;
    for graph in args.source.graphs()? {
        let begun = Instant::now();
        let compiled = match &mut files {
            None => compiler.compile(&graph, &mut NoDump)?,
            Some(files) => {
                let compiled = compiler.compile(&graph, files)?;
                files.failed.take().map_or(Ok(compiled), Err)?
            }
        };
        let seconds = begun.elapsed().as_secs_f64();
        let CompiledGraph { groups, schedules, fresh } = &compiled;
        let submissions = counted(groups.submissions(1) as usize, "submission");
        print_line!("{}: {submissions} per step", graph.key)?;
        print_line!("{:<32} {:>8} {:>6} {:>10}", "program", "launches", "cores", "blob")?;
        for schedule in schedules {
            let size = blob::encode(schedule, compiler.target())?.len();
            let cores = schedule.launches.iter().map(|launch| launch.cores.len()).max().unwrap_or(0);
            let (name, launches) = (&schedule.name, schedule.launches.len());
            print_line!("{name:<32} {launches:>8} {cores:>6} {:>10}", bytes(size as u64))?;
        }
        print_line!("{fresh} of {} compiled, in {seconds:.3} s", counted(schedules.len(), "program"))?;
        if let Some(folder) = &mut emitted {
            schedules.iter().try_for_each(|schedule| folder.program(schedule, compiler.target()))?;
        }
    }
    match emitted {
        Some(EmitFolder { refused: 1.., .. }) => Ok(Outcome::Failed),
        _ => Ok(Outcome::Done),
    }
}
