//! `girih npu inspect`: the contents of a blob, or the work of a model that the
//! array does and the work that falls back to the host, with reasons.

use std::io::Read;
use std::path::Path;

use girih_file::open_regular;
use girih_graph::Graph;
use girih_graph::backend::HostWork;
use girih_npu::ONE_ROW_NOTE;
use girih_npu::blob;
use girih_npu::form::groups::{Groups, ProgramRuns, StepAction};
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{NoDump, array_split};
use serde_json::{Value, json};

use super::args::CompileModelArgs;
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::{bytes, counted, print, print_json};

/// The first bytes of an ELF file.
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

#[derive(Debug, clap::Args)]
pub struct Args {
    // The model may also be a blob that `girih npu compile --blobs` kept.
    #[command(flatten)]
    source: CompileModelArgs,
    /// Print everything as text that can be parsed: a schedule, or the groups of each step.
    #[arg(long)]
    text: bool,
    /// Print where each graph is cut between host and device, and what crosses; only for a model.
    #[arg(long, conflicts_with_all = ["text", "json"])]
    split: bool,
    /// Print JSON; only for a model.
    #[arg(long, conflicts_with = "text")]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let path = Path::new(&args.source.model);
    if !is_blob(path) {
        return model(args);
    }
    let file = open_regular(path)
        .map_err(|error| Error::call(format!("{}: cannot be read: {error}", path.display())))?;
    let schedule = match args.source.named_array()? {
        Some(target) => blob::read(file, &target),
        None => blob::read_for_its_target(file),
    };
    let schedule = schedule.map_err(|error| error.of(path.display()))?;
    if args.json {
        return Err(Error::call("--json needs a model; use --text for a blob"));
    }
    if args.split {
        return Err(Error::call("--split needs a model; use --text for a blob"));
    }
    if args.text {
        print(&schedule)?
    } else {
        describe(&schedule)?
    }
    Ok(Outcome::Done)
}

/// Whether a file has the magic bytes of a blob.
fn is_blob(path: &Path) -> bool {
    let mut magic = [0; 4];
    open_regular(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == ELF_MAGIC
}

fn describe(schedule: &Schedule) -> Result<()> {
    print_line!("program {} for {}", schedule.name, schedule.target)?;
    for argument in &schedule.arguments {
        let (name, role) = (&argument.name, argument.role.name());
        print_line!("argument {name:<24} {role:<12} {}", bytes(argument.bytes))?;
    }
    for launch in &schedule.launches {
        print_line!(
            "launch {:<24} {}, {}, {}, {}, {}",
            launch.name,
            counted(launch.cores.len(), "core"),
            counted(launch.buffers.len(), "buffer"),
            counted(launch.locks.len(), "lock"),
            counted(launch.descriptors.len(), "descriptor"),
            counted(launch.routes.len(), "stream")
        )?;
    }
    Ok(())
}

fn model(args: &Args) -> Result<Outcome> {
    let compiler = args.source.compiler()?;
    let mut steps = Vec::new();
    for graph in args.source.graphs()? {
        let groups = compiler.groups(&graph, &mut NoDump)?;
        let split = array_split(&graph, compiler.policy_for(&graph));
        let host = split.host_work();
        if args.split {
            print_line!("{}", graph.key)?;
            print(&split)?;
        } else if args.json {
            steps.push(described(&graph, &groups, &host));
        } else if args.text {
            print(&groups)?;
        } else {
            table(&graph, &groups, &host)?;
        }
    }
    if args.json {
        print_json(&json!({
            "target": compiler.target().name,
            "policy": compiler.policy().name(),
            "steps": steps,
        }))?;
    } else if !args.text && !args.split {
        print_line!("{ONE_ROW_NOTE}")?;
    }
    Ok(Outcome::Done)
}

/// The number of times that a step may run program `number`, for one output row and for one sequence.
fn runs(groups: &Groups, number: usize) -> usize {
    let programs = |step: &StepAction| match step {
        StepAction::Array { program, runs: ProgramRuns::EachSequence { one_row }, .. } => {
            vec![*program, *one_row]
        }
        StepAction::Array { program, .. } => vec![*program],
        StepAction::Host { .. } => Vec::new(),
    };
    groups.steps.iter().flat_map(programs).filter(|program| *program as usize == number).count()
}

fn table(graph: &Graph, groups: &Groups, host: &[HostWork]) -> Result<()> {
    print_line!("{}", graph.key)?;
    for (number, program) in groups.programs.iter().enumerate() {
        let launches: Vec<&str> = program.launches.iter().map(|task| task.name.as_str()).collect();
        let (name, runs) = (&program.name, runs(groups, number));
        print_line!("  array {runs:>3} x {name:<20} {}", launches.join(", "))?;
    }
    for HostWork { name, op, count, reason } in host {
        print_line!("  host  {count:>3} x {name:<20} {op}: {reason}")?;
    }
    Ok(())
}

fn described(graph: &Graph, groups: &Groups, host: &[HostWork]) -> Value {
    let programs = groups.programs.iter().enumerate().map(|(number, program)| {
        let launches: Vec<String> =
            program.launches.iter().map(|task| format!("{} {}", task.name, task.kernel)).collect();
        json!({"name": program.name, "runs": runs(groups, number), "launches": launches})
    });
    let host = host.iter().map(
        |stays| json!({"name": stays.name, "op": stays.op, "count": stays.count, "reason": stays.reason}),
    );
    json!({
        "key": graph.key.to_string(),
        "array": programs.collect::<Vec<_>>(),
        "host": host.collect::<Vec<_>>(),
    })
}
