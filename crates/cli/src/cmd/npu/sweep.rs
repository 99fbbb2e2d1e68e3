//! `girih npu sweep`: searches for the fastest mapping of a model, writes it, and
//! explains why it is faster than another.

use std::path::PathBuf;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu_lab::sweep::{self, BestTiling, MappedStep, SweepResult, TimedMapping};

use serde_json::{Value, json};

use super::args::StepArgs;
use super::blobs;
use crate::args::ShowArgs;
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::{print, print_json};
use crate::progress::{Show, Unit};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model, as for the other commands; a `config.json`, whose weights are not needed; or a file *.graph from
    /// `girih inspect --graph`.
    model: String,
    #[command(flatten)]
    steps: StepArgs,
    /// Write the fastest mapping to this file.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Mapping to compare with, a file or a name (does not affect the search)
    /// [default: mlir-air-tiles, or mlir-air if mlir-air-tiles does not fit the array].
    #[arg(long, value_name = "FILE|NAME")]
    against: Option<String>,
    /// Number of threads (does not affect results).
    #[arg(long, short = 't', value_name = "N")]
    threads: Option<usize>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    show: ShowArgs,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let target = args.steps.array()?;
    let graphs = args.steps.graphs_of(&args.model)?;
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let show = args.show.show();
    let against = match &args.against {
        Some(name) => sweep::time_mapping(&graphs, &target, &blobs::mapping(name)?)?,
        None => default_mapping(&graphs, &target, show)?,
    };
    let bar = show.bar("searching", 0, Unit::Things("tilings"));
    let progress = |done: usize, all: usize| bar.set(done as u64, all as u64);
    let found = sweep::sweep(&graphs, &target, &against, threads.unwrap_or(1), &progress)?;
    bar.finish_and_clear();
    let keys: Vec<String> = graphs.iter().map(|graph| graph.key.to_string()).collect();
    let best = found.policies.iter().find(|weighed| weighed.mapping == found.mapping);
    let best = best.ok_or_else(|| Error::call("the search evaluated no mapping"))?;
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

/// Evaluates the default mapping to compare with: the published one, which needs
/// eight columns, else one that fits any array.
fn default_mapping(graphs: &[Graph], target: &Target, show: Show) -> Result<TimedMapping> {
    let published = blobs::mapping("mlir-air-tiles")?;
    sweep::time_mapping(graphs, target, &published).or_else(|error| {
        let fits_all = sweep::time_mapping(graphs, target, &blobs::mapping("mlir-air")?)?;
        let (needed, found) = (published.columns(), target.array.columns);
        let reason = match needed > found {
            true => format!("{needed} columns are needed, {found} found"),
            false => error.to_string(),
        };
        show.note(format!("comparing with mlir-air: mlir-air-tiles does not fit {} ({reason})", target.name));
        Ok(fits_all)
    })
}

/// The result as JSON, with the mapping in the form of `--output`.
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

/// Prints the best tiling of each kernel, and how many tilings its bound
/// excluded.
fn kernels(found: &SweepResult) -> Result<()> {
    print_line!("{:>8} {:>8} {:>10}  kernel: best tiling", "tilings", "excluded", "cycles")?;
    for BestTiling { of, tiling, cycles, space, hopeless, .. } in &found.kernels {
        print_line!("{space:>8} {hopeless:>8} {cycles:>10}  {}: {tiling}", of.kernel)?;
    }
    Ok(())
}

/// Prints the times of all steps, in milliseconds, for each grouping and each
/// choice of where attention runs.
fn groupings(found: &SweepResult, against: &TimedMapping, target: &Target) -> Result<()> {
    print_line!("grouping, attention: for each step ms of array, host and transfers, and submissions")?;
    for weighed in std::iter::once(against).chain(&found.policies) {
        let policy = weighed.mapping.policy;
        let steps = weighed.steps.iter().map(|step| {
            let [array, host, sync] = step.seconds(target).map(|seconds| seconds * 1e3);
            format!("{array:>8.1} {host:>6.1} {sync:>6.1} {:>4}", step.estimate.ledger.submissions)
        });
        let name = format!("{} {}", policy.grouping.name(), policy.attention.name());
        let mark = if weighed.mapping == found.mapping { "*" } else { "" };
        let steps = steps.collect::<Vec<_>>().join(" |");
        print_line!("{:<14} {name:<20} {steps} {mark}", weighed.mapping.name)?;
    }
    Ok(())
}
