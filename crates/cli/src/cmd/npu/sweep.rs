//! `girih npu sweep`: searches for the best mapping of a model, writes it, and
//! says why it is better than another.

use std::path::PathBuf;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu_lab::sweep::{self, BestTiling, MappedStep, SweepResult, TimedMapping};

use serde_json::{Value, json};

use super::{Error, Outcome, Result, Steps, array, print, print_json};
use crate::progress::{Show, Unit};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model, as for the other commands, or a file *.graph as `girih inspect --graph` prints it.
    model: String,
    #[command(flatten)]
    steps: Steps,
    /// Write the best mapping into this file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Compare with this mapping, a file or a name; the search starts from none
    /// [default: seed-000, or mlir-air where seed-000 does not fit the array].
    #[arg(long, value_name = "FILE|NAME")]
    against: Option<String>,
    /// Threads of the search; the result is the same for any number.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// No progress bar.
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let target = args.steps.array()?;
    let graphs = args.steps.graphs_of(&args.model)?;
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let show = Show::unless(args.quiet);
    let against = match &args.against {
        Some(name) => sweep::time_mapping(&graphs, &target, &array::mapping(name)?)?,
        None => usual(&graphs, &target, show)?,
    };
    let bar = show.bar("tilings", 0, Unit::Tilings);
    let progress = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let found = sweep::sweep(&graphs, &target, &against, threads.unwrap_or(1), &progress)?;
    bar.finish_and_clear();
    let keys: Vec<String> = graphs.iter().map(|graph| graph.key.to_string()).collect();
    let best = found.policies.iter().find(|weighed| weighed.mapping == found.mapping);
    let best = best.ok_or_else(|| Error::call("the search weighed no mapping"))?;
    let why = sweep::explain(&keys, &target, [&against, best])?;
    let stitching = sweep::stitching(&graphs, &target, &found.mapping)?;
    if let Some(path) = &args.output {
        std::fs::write(path, found.mapping.to_string())
            .map_err(|error| Error::call(format!("{}: cannot be written: {error}", path.display())))?;
    }
    if args.json {
        let mut all = described(&found, &against, &target);
        all["why"] = json!(why);
        all["stitching"] = json!(stitching);
        print_json(&all)?;
        return Ok(Outcome::Done);
    }
    kernels(&found)?;
    groupings(&found, &against, &target)?;
    print(&why)?;
    print(&stitching)?;
    args.output.as_ref().map_or(Ok(()), |path| print_line!("written to {}", path.display()))?;
    Ok(Outcome::Done)
}

/// What is compared with where nobody says: what was published, or, as that is
/// made for eight columns, what fits any array.
fn usual(graphs: &[Graph], target: &Target, show: Show) -> Result<TimedMapping> {
    sweep::time_mapping(graphs, target, &array::mapping("seed-000")?).or_else(|error| {
        let fits_all = sweep::time_mapping(graphs, target, &array::mapping("mlir-air")?)?;
        show.note(format!("compared with mlir-air, as seed-000 does not fit {}: {error}", target.name));
        Ok(fits_all)
    })
}

/// What was found; the mapping as `--output` writes it.
fn described(found: &SweepResult, against: &TimedMapping, target: &Target) -> Value {
    let kernel = |one: &BestTiling| {
        json!({
            "kernel": one.of.kernel.to_string(),
            "tiling": one.tiling.to_string(),
            "cycles": one.cycles,
            "tilings": one.space,
            "hopeless": one.hopeless,
        })
    };
    let step = |step: &MappedStep| {
        let [array, host, passing] = step.seconds(target).map(|seconds| seconds * 1e3);
        let submissions = step.estimate.ledger.submissions;
        json!({"array_ms": array, "host_ms": host, "passing_ms": passing, "submissions": submissions})
    };
    let weighed = |one: &TimedMapping| {
        json!({
            "mapping": one.mapping.name,
            "grouping": one.mapping.policy.grouping.name(),
            "attention": one.mapping.policy.attention.name(),
            "steps": one.steps.iter().map(step).collect::<Vec<_>>(),
        })
    };
    json!({
        "target": target.name,
        "mapping": found.mapping.to_string(),
        "kernels": found.kernels.iter().map(kernel).collect::<Vec<_>>(),
        "against": weighed(against),
        "policies": found.policies.iter().map(weighed).collect::<Vec<_>>(),
    })
}

/// What was found for each kernel, and how much of its space its bound ruled
/// out.
fn kernels(found: &SweepResult) -> Result<()> {
    print_line!("{:>8} {:>8} {:>10}  kernel: best tiling", "tilings", "hopeless", "cycles")?;
    for BestTiling { of, tiling, cycles, space, hopeless, .. } in &found.kernels {
        print_line!("{space:>8} {hopeless:>8} {cycles:>10}  {}: {tiling}", of.kernel)?;
    }
    Ok(())
}

/// Every grouping and place of attention, times of all steps in milliseconds.
fn groupings(found: &SweepResult, against: &TimedMapping, target: &Target) -> Result<()> {
    print_line!("grouping, attention: for each step ms of array, host and passing bytes, and submissions")?;
    for weighed in std::iter::once(against).chain(&found.policies) {
        let policy = weighed.mapping.policy;
        let steps = weighed.steps.iter().map(|step| {
            let [array, host, sync] = step.seconds(target).map(|seconds| seconds * 1e3);
            format!("{array:>8.1} {host:>6.1} {sync:>6.1} {:>4}", step.estimate.ledger.submissions)
        });
        let name = format!("{} {}", policy.grouping.name(), policy.attention.name());
        let mark = if weighed.mapping == found.mapping { "*" } else { "" };
        let steps = steps.collect::<Vec<_>>().join(" |");
        print_line!("{:<9} {name:<20} {steps} {mark}", weighed.mapping.name)?;
    }
    Ok(())
}
