//! `girih npu compile`: compiles every program of a model, keeps the blobs, and emits the programs for
//! the tools of a device.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use girih_npu::blob;
use girih_npu::driver::{CompiledGraph, Compiler};
use girih_npu::pass::{Dump, Grouping, NoDump};

use super::args::CompileModelArgs;
use super::emit_folder::{EmitFolder, NumberedFolder};
use crate::cmd::outcome::Outcome;
use crate::error::Result;
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
    let mut emitted = output.map(|path| EmitFolder::open(path, &[])).transpose()?;
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
        // The last row of each sequence is an output row.
        let sequences = graph.key.sequences as usize;
        let submissions = counted(groups.submissions(sequences, sequences), "submission");
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
            for schedule in schedules {
                folder.program(schedule, compiler.target())?;
            }
        }
    }
    match emitted {
        Some(EmitFolder { refused: 1.., .. }) => Ok(Outcome::Failed),
        _ => Ok(Outcome::Done),
    }
}
