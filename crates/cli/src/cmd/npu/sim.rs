//! `girih npu sim`: simulates the time of a model's steps, without values.

use std::fmt;
use std::time::{Duration, Instant};

use girih_graph::{Graph, Key};
use girih_npu::Target;
use girih_npu::driver::{Estimate, HostSpread, Scenario, TimedProgram, estimate, host_spread};
use girih_npu::pass::NoDump;
use girih_npu::sim::LaunchReport;
use serde_json::json;

use super::args::CompileModelArgs;
use super::trace;
use crate::cmd::outcome::Outcome;
use crate::error::Result;
use crate::output::{bytes, counted, print_json};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: CompileModelArgs,
    /// Also simulate a step of one token of each of N sequences.
    #[arg(long, value_name = "N", conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(2..=1024))]
    sequences: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    trace: trace::TraceArgs,
}

/// The counts and time of compiling a step.
struct CompileStats {
    programs: usize,
    /// The programs that were not in the cache of blobs.
    fresh: usize,
    time: Duration,
}

impl fmt::Display for CompileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompileStats { programs, fresh, time } = self;
        let kept = programs - fresh;
        let fresh = counted(*fresh, "program");
        write!(f, "{fresh} compiled, {kept} from the cache, in {:.3} s", time.as_secs_f64())
    }
}

pub fn run(args: &Args) -> Result<Outcome> {
    let compiler = args.source.compiler()?;
    let target = compiler.target();
    let mut steps = Vec::new();
    let mut trace = args.trace.begin(target);
    let tokens = args.sequences.map(|sequences| args.source.token_graph(sequences)).transpose()?;
    for graph in args.source.graphs()?.into_iter().chain(tokens) {
        let begun = Instant::now();
        let compiled = compiler.compile(&graph, &mut NoDump)?;
        let took =
            CompileStats { programs: compiled.schedules.len(), fresh: compiled.fresh, time: begun.elapsed() };
        let begun = Instant::now();
        let host = host_spread(&graph, &compiled, target, Scenario::last_position(&graph));
        let position = host.usual_position;
        let estimate = estimate(&graph, &compiled, target, position)?;
        let seconds = begun.elapsed().as_secs_f64();
        if let Some(trace) = &mut trace {
            trace.add(&graph, &compiled, target, position)?;
        }
        if args.json {
            steps.push(described(&graph, &took, &estimate, &host, target));
        } else {
            print_line!("{took}")?;
            table(&graph, &estimate, target, seconds)?;
            host_times(&estimate, &host)?;
        }
    }
    if args.json {
        let mapping = &args.source.mapping;
        print_json(&json!({"target": target.name, "mapping": mapping, "steps": steps}))?;
    }
    trace.map_or(Ok(()), |trace| trace.write(args.json))?;
    Ok(Outcome::Done)
}

fn table(graph: &Graph, estimate: &Estimate, target: &Target, seconds: f64) -> Result<()> {
    let what = match graph.key {
        Key { sequences: sequences @ 2.., .. } => format!("one token of each of {sequences} sequences"),
        Key { rows: 1, .. } => "one token".to_owned(),
        Key { rows, .. } => format!("prefill of {rows} tokens"),
    };
    print_line!("{what} ({}), simulated on {} in {seconds:.2} s", graph.key, target.name)?;
    print_line!("{:<32} {:>8} {:>10} {:>6} {:>10}", "program", "launches", "ms/run", "runs", "ms")?;
    for timed in estimate.programs.iter().filter(|timed| timed.runs > 0) {
        let [one, all] = [timed.report.cycles, timed.cycles()].map(|cycles| target.seconds(cycles) * 1e3);
        let (name, launches, runs) = (&timed.name, timed.report.launches.len(), timed.runs);
        print_line!("{name:<32} {launches:>8} {one:>10.3} {runs:>6} {all:>10.1}")?;
    }
    let ledger = &estimate.ledger;
    let submissions = counted(ledger.submissions as usize, "submission");
    print_line!("array {:.1} ms in {submissions}", ledger.array_seconds(target) * 1e3)
}

/// Prints the host's part: the mean of the last tokens, and the worst of them if it is far above.
fn host_times(estimate: &Estimate, host: &HostSpread) -> Result<()> {
    let HostSpread { mean, worst, worst_position, .. } = host;
    print_line!("host {:.1} ms, counted instead of simulated", mean.work * 1e3)?;
    let ledger = &estimate.ledger;
    let (up, down) = (bytes(ledger.written_bytes), bytes(ledger.read_bytes));
    print_line!("sync {:.1} ms: {up} up, {down} down", mean.sync * 1e3)?;
    if host.is_uneven() {
        let (work, sync) = (worst.work * 1e3, worst.sync * 1e3);
        print_line!(
            "these are means; a token after {worst_position} tokens has host {work:.1} ms and sync {sync:.1} ms, for keys and values"
        )?;
    }
    print_line!(
        "programs share buffer objects, which saves host copies of {}; weights are written once, {}",
        bytes(estimate.brokered_bytes),
        bytes(estimate.preload_bytes)
    )
}

fn described(
    graph: &Graph,
    took: &CompileStats,
    estimate: &Estimate,
    host: &HostSpread,
    target: &Target,
) -> serde_json::Value {
    let launch =
        |launch: &LaunchReport| json!({"name": launch.name, "ms": target.seconds(launch.cycles) * 1e3});
    let program = |timed: &TimedProgram| {
        json!({
            "name": timed.name,
            "runs": timed.runs,
            "ms": target.seconds(timed.report.cycles) * 1e3,
            "again_ms": target.seconds(timed.again.cycles) * 1e3,
            "configure_ms": target.seconds(timed.report.configure) * 1e3,
            "dram_read": timed.report.totals.dram_read,
            "dram_written": timed.report.totals.dram_written,
            "launches": timed.report.launches.iter().map(launch).collect::<Vec<_>>(),
        })
    };
    let ledger = &estimate.ledger;
    json!({
        "key": graph.key.to_string(),
        "compile_s": took.time.as_secs_f64(),
        "compiled_programs": took.fresh,
        "programs": estimate.programs.iter().map(program).collect::<Vec<_>>(),
        "submissions": ledger.submissions,
        "array_ms": ledger.array_seconds(target) * 1e3,
        "host_ms": host.mean.work * 1e3,
        "sync_ms": host.mean.sync * 1e3,
        "worst_host_ms": host.worst.work * 1e3,
        "worst_sync_ms": host.worst.sync * 1e3,
        "worst_position": host.worst_position,
        "written_bytes": ledger.written_bytes,
        "read_bytes": ledger.read_bytes,
        "brokered_bytes": estimate.brokered_bytes,
        "preload_bytes": estimate.preload_bytes,
    })
}
