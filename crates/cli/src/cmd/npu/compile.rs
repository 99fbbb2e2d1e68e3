//! `girih npu compile`: compiles every program of a model and keeps the blobs.

use std::fmt::Display;
use std::path::PathBuf;
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

/// Writes forms into numbered files of a folder.
struct DumpFolder {
    folder: PathBuf,
    count: usize,
    failed: Option<std::io::Error>,
}

impl Dump for DumpFolder {
    fn form(&mut self, name: &str, program: &str, text: &dyn Display) {
        self.count += 1;
        let file = self.folder.join(format!("{:03}-{program}.{name}.npu", self.count));
        if let Err(error) = std::fs::write(file, text.to_string()) {
            self.failed.get_or_insert(error);
        }
    }
}

pub fn run(args: &Args) -> Result<Outcome> {
    let compiler =
        if args.dump.is_some() { args.source.fresh_compiler()? } else { args.source.compiler()? };
    if let Some(folder) = &args.dump {
        std::fs::create_dir_all(folder)?;
    }
    // Numbers go on from one step to the next, so that no file is overwritten.
    let mut files = args.dump.clone().map(|folder| DumpFolder { folder, count: 0, failed: None });
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
