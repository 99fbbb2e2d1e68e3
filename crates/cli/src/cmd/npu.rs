//! `girih npu`: a model or a graph compiled for a simulated array, what became
//! of it, and how long it takes.

mod report;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Instant;

use girih_graph::{Graph, faults};
use girih_npu::Target;
use girih_npu::blob::{self, Cache};
use girih_npu::driver::{Compiled, Compiler, Estimate, estimate};
use girih_npu::pass::{Dump, NoDump, Policy};
use serde_json::json;

use super::{Outcome, bytes, print_json};
use crate::args::{ArchArgs, KvType};
use crate::error::{Error, Result};
use crate::loading::Place;
use crate::output::print;

/// The longest graph, in bytes, that is read from a file.
const GRAPH_BYTES: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Compile every program, and keep the blobs.
    Compile(CompileArgs),
    /// Print what a blob holds.
    Inspect(InspectArgs),
    /// Simulate the time of a step, without values.
    Sim(SimArgs),
    /// Compare simulated times with published ones, or print the figures behind them.
    Report(report::Args),
}

/// What is compiled, and how.
#[derive(Debug, clap::Args)]
struct Source {
    /// A model, as for the other commands, or a file *.graph as `girih inspect --graph` prints it.
    model: String,
    #[command(flatten)]
    arch: ArchArgs,
    /// The array, such as toy or xdna2-strix; another name lists those that there are.
    #[arg(long, value_name = "TARGET", default_value = "xdna2-strix")]
    target: String,
    /// What shares a program and where attention runs.
    #[arg(long, value_name = "POLICY", default_value = "mlir-air", value_parser = policy)]
    policy: Policy,
    /// Rows of a step of prefill.
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..=65536))]
    rows: u32,
    /// Positions of the longest sequence.
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
}

#[derive(Debug, clap::Args)]
struct CompileArgs {
    #[command(flatten)]
    source: Source,
    /// Keep blobs in this folder, and take those that it has.
    #[arg(long, value_name = "DIR")]
    blobs: Option<PathBuf>,
    /// Write every form of every program into this folder.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct InspectArgs {
    /// A blob.
    blob: PathBuf,
    /// The array that it was made for.
    #[arg(long, value_name = "TARGET", default_value = "xdna2-strix")]
    target: String,
    /// Print all of it, as text that can be read back.
    #[arg(long)]
    text: bool,
}

#[derive(Debug, clap::Args)]
struct SimArgs {
    #[command(flatten)]
    source: Source,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Reads the name of a policy.
fn policy(text: &str) -> Result<Policy, String> {
    let found = Policy::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, policy)| *policy).ok_or_else(|| {
        let known: Vec<&str> = Policy::ALL.iter().map(|(name, _)| *name).collect();
        format!("no policy is called '{text}': known are {}", known.join(", "))
    })
}

pub fn run(args: &Args) -> Result<Outcome> {
    match &args.command {
        Command::Compile(args) => compile(args),
        Command::Inspect(args) => inspect(args),
        Command::Sim(args) => sim(args),
        Command::Report(args) => report::run(args),
    }
}

impl Source {
    /// The graphs of a step of prefill and of a step of one token.
    fn graphs(&self) -> Result<Vec<Graph>> {
        if self.model.ends_with(".graph") {
            return Ok(vec![read_graph(Path::new(&self.model))?]);
        }
        let model = Place::find(&self.model)?.model(&self.arch)?;
        let key = girih_graph::Key {
            rows: self.rows.min(self.context),
            lanes: 1,
            context: self.context,
            wanted: 1,
            variant: girih_graph::Variant::GENERATE,
        };
        let single = girih_graph::Key { rows: 1, ..key };
        let keys = if key == single { vec![key] } else { vec![key, single] };
        keys.into_iter().map(|key| Ok(model.graph(key, KvType::Bf16.dtype())?)).collect()
    }

    fn compiler(&self, blobs: Option<&Path>) -> Result<Compiler> {
        let target = Target::named(&self.target).map_err(|error| Error::call(error.to_string()))?;
        let cache = blobs.map(Cache::open).transpose()?;
        Ok(Compiler::new(target, self.policy, cache))
    }
}

/// A graph from a file of its text form.
fn read_graph(path: &Path) -> Result<Graph> {
    let failed = |error: &dyn Display| Error::call(format!("{}: {error}", path.display()));
    if std::fs::metadata(path).map_err(|error| failed(&error))?.len() > GRAPH_BYTES {
        return Err(failed(&format!("a graph has at most {GRAPH_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let graph: Graph = text.parse().map_err(|error| failed(&error))?;
    match faults(&graph).first() {
        None => Ok(graph),
        Some(fault) => Err(failed(fault)),
    }
}

/// Writes forms into a folder, in the order in which they are made.
struct Files {
    folder: PathBuf,
    count: usize,
    failed: Option<std::io::Error>,
}

impl Dump for Files {
    fn form(&mut self, name: &str, program: &str, text: &dyn Display) {
        self.count += 1;
        let file = self.folder.join(format!("{:03}-{program}.{name}.npu", self.count));
        if let Err(error) = std::fs::write(file, text.to_string()) {
            self.failed.get_or_insert(error);
        }
    }
}

fn compile(args: &CompileArgs) -> Result<Outcome> {
    let compiler = args.source.compiler(args.blobs.as_deref())?;
    for graph in args.source.graphs()? {
        let begun = Instant::now();
        let compiled = match &args.dump {
            None => compiler.compile(&graph, &mut NoDump)?,
            Some(folder) => {
                std::fs::create_dir_all(folder)?;
                let mut files = Files { folder: folder.clone(), count: 0, failed: None };
                let compiled = compiler.compile(&graph, &mut files)?;
                files.failed.map_or(Ok(compiled), Err)?
            }
        };
        let Compiled { groups, schedules, fresh } = &compiled;
        print_line!("{}: {} submissions a step", graph.key, groups.submissions(1))?;
        print_line!("{:<32} {:>8} {:>6} {:>10}", "program", "launches", "cores", "blob")?;
        for schedule in schedules {
            let size = blob::encode(schedule, compiler.target())?.len();
            let cores = schedule.launches.iter().map(|launch| launch.cores.len()).max().unwrap_or(0);
            let (name, launches) = (&schedule.name, schedule.launches.len());
            print_line!("{name:<32} {launches:>8} {cores:>6} {:>10}", bytes(size as u64))?;
        }
        let (all, seconds) = (schedules.len(), begun.elapsed().as_secs_f64());
        print_line!("{fresh} of {all} programs compiled, in {seconds:.2} s")?;
    }
    Ok(Outcome::Done)
}

fn inspect(args: &InspectArgs) -> Result<Outcome> {
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
        print_line!("argument {name:<24} {role:<12} {}", super::bytes(argument.bytes))?;
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

fn sim(args: &SimArgs) -> Result<Outcome> {
    let compiler = args.source.compiler(None)?;
    let target = compiler.target();
    let mut steps = Vec::new();
    for graph in args.source.graphs()? {
        let compiled = compiler.compile(&graph, &mut NoDump)?;
        let begun = Instant::now();
        let position = graph.key.context - graph.key.rows;
        let estimate = estimate(&graph, &compiled, target, position)?;
        if args.json {
            steps.push(described(&graph, &estimate, target));
        } else {
            table(&graph, &estimate, target, begun.elapsed().as_secs_f64())?;
        }
    }
    if args.json {
        print_json(&json!({"target": target.name, "policy": args.source.policy.name(), "steps": steps}))?;
    }
    Ok(Outcome::Done)
}

fn table(graph: &Graph, estimate: &Estimate, target: &Target, seconds: f64) -> Result<()> {
    print_line!("{}, simulated on {} in {seconds:.2} s", graph.key, target.name)?;
    print_line!("{:<32} {:>8} {:>10} {:>6} {:>10}", "program", "launches", "ms/run", "runs", "ms")?;
    for timed in &estimate.programs {
        let ms = target.seconds(timed.report.cycles) * 1e3;
        let (name, launches, runs) = (&timed.name, timed.report.launches.len(), timed.runs);
        print_line!("{name:<32} {launches:>8} {ms:>10.3} {runs:>6} {:>10.1}", ms * runs as f64)?;
    }
    let ledger = &estimate.ledger;
    print_line!("array {:.1} ms in {} submissions", ledger.array_seconds(target) * 1e3, ledger.submissions)?;
    print_line!("host {:.1} ms, not simulated but counted", ledger.host_seconds(target) * 1e3)?;
    print_line!(
        "sync {:.1} ms: {} up, {} down",
        ledger.sync_seconds(target) * 1e3,
        bytes(ledger.written_bytes),
        bytes(ledger.read_bytes)
    )?;
    print_line!(
        "programs share buffer objects; else the host would copy {} more; weights are written once, {}",
        bytes(estimate.brokered_bytes),
        bytes(estimate.preload_bytes)
    )
}

fn described(graph: &Graph, estimate: &Estimate, target: &Target) -> serde_json::Value {
    let launch = |launch: &girih_npu::sim::LaunchReport| json!({"name": launch.name, "ms": target.seconds(launch.cycles) * 1e3});
    let program = |timed: &girih_npu::driver::Timed| {
        json!({
            "name": timed.name,
            "runs": timed.runs,
            "ms": target.seconds(timed.report.cycles) * 1e3,
            "configure_ms": target.seconds(timed.report.configure) * 1e3,
            "dram_read": timed.report.totals.dram_read,
            "dram_written": timed.report.totals.dram_written,
            "launches": timed.report.launches.iter().map(launch).collect::<Vec<_>>(),
        })
    };
    let ledger = &estimate.ledger;
    json!({
        "key": graph.key.to_string(),
        "programs": estimate.programs.iter().map(program).collect::<Vec<_>>(),
        "submissions": ledger.submissions,
        "array_ms": ledger.array_seconds(target) * 1e3,
        "host_ms": ledger.host_seconds(target) * 1e3,
        "sync_ms": ledger.sync_seconds(target) * 1e3,
        "written_bytes": ledger.written_bytes,
        "read_bytes": ledger.read_bytes,
        "brokered_bytes": estimate.brokered_bytes,
        "preload_bytes": estimate.preload_bytes,
    })
}
