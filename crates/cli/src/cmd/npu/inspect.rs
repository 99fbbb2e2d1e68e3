//! `girih npu inspect`: what a blob holds.

use std::path::PathBuf;

use girih_npu::Target;
use girih_npu::blob;

use super::{Error, Outcome, Result, print};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A blob.
    blob: PathBuf,
    /// The array that it was made for.
    #[arg(long, value_name = "TARGET", default_value = "xdna2-strix")]
    target: String,
    /// Print all of it, as text that can be read back.
    #[arg(long)]
    text: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let target = Target::named(&args.target).map_err(|error| Error::call(error.to_string()))?;
    let bytes = std::fs::read(&args.blob)
        .map_err(|error| Error::call(format!("{}: cannot be read: {error}", args.blob.display())))?;
    let schedule = blob::decode(&bytes, &target).map_err(|error| error.of(args.blob.display()))?;
    if args.text {
        print(&schedule)?;
        return Ok(Outcome::Done);
    }
    print_line!("program {} for {}", schedule.name, schedule.target)?;
    for argument in &schedule.arguments {
        let (name, role) = (&argument.name, argument.role.name());
        print_line!("argument {name:<24} {role:<12} {}", super::super::bytes(argument.bytes))?;
    }
    for launch in &schedule.launches {
        print_line!(
            "launch {:<24} {} cores, {} buffers, {} locks, {} descriptors, {} streams",
            launch.name,
            launch.cores.len(),
            launch.buffers.len(),
            launch.locks.len(),
            launch.descriptors.len(),
            launch.routes.len()
        )?;
    }
    Ok(Outcome::Done)
}
