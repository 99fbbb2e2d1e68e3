//! `girih npu compile`: compiles every program of a model and keeps the blobs.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use girih_npu::blob;
use girih_npu::driver::CompiledGraph;
use girih_npu::pass::{Dump, NoDump};

use super::args::CompileModelArgs;
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
}

/// Writes forms into numbered files of a folder. Numbers go on from those that the folder has,
/// so that no file is overwritten.
struct DumpFolder {
    folder: PathBuf,
    count: usize,
    failed: Option<io::Error>,
}

impl DumpFolder {
    fn open(folder: &Path) -> io::Result<DumpFolder> {
        std::fs::create_dir_all(folder)?;
        let mut count = 0;
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.split_once('-')?.0.parse().ok());
            count = count.max(number.unwrap_or(0));
        }
        Ok(DumpFolder { folder: folder.to_owned(), count, failed: None })
    }
}

impl Dump for DumpFolder {
    fn form(&mut self, name: &str, program: &str, text: &dyn Display) {
        self.count = self.count.saturating_add(1);
        let program = program.replace('/', "_");
        let file = self.folder.join(format!("{:03}-{program}.{name}.npu", self.count));
        let file = OpenOptions::new().write(true).create_new(true).open(file);
        if let Err(error) = file.and_then(|file| write_all(file, text)) {
            self.failed.get_or_insert(error);
        }
    }
}

fn write_all(file: File, text: &dyn Display) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    write!(file, "{text}")?;
    file.flush()
}

pub fn run(args: &Args) -> Result<Outcome> {
    let compiler =
        if args.dump.is_some() { args.source.fresh_compiler()? } else { args.source.compiler()? };
    let mut files = args.dump.as_deref().map(DumpFolder::open).transpose()?;
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
    }
    Ok(Outcome::Done)
}
