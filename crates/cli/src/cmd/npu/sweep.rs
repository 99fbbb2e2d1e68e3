//! `girih npu sweep`: searches for the fastest mapping of a model, writes it, and
//! explains why it is faster than another.

use std::path::PathBuf;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu_lab::published::PassTime;
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
    /// Use the DRAM bandwidth of the target, which is fitted to times of kernels, even if it exceeds the
    /// largest that was measured.
    #[arg(long)]
    fitted_bandwidth: bool,
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
    let fitted = args.steps.array()?;
    let target = if args.fitted_bandwidth { fitted.clone() } else { fitted.clone().with_measured_dram() };
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
    let gains = Gains::of(&graphs, &target, [&against, best, &found.published])?;
    let why = sweep::explain(&keys, &target, [&against, best])?;
    let stitching = sweep::stitching(&graphs, &target, &found.mapping)?;
    if let Some(path) = &args.output {
        std::fs::write(path, found.mapping.to_string())
            .map_err(|error| Error::call(format!("{}: cannot be written: {error}", path.display())))?;
    }
    if args.json {
        let mut all = described(&found, &against, &target);
        all["why"] = json!(why);
        all["dram_bytes_per_second"] = json!(target.dram.bytes_per_second);
        all["gains"] = gains.described();
        all["stitching"] = json!(stitching);
        print_json(&all)?;
        return Ok(Outcome::Done);
    }
    kernels(&found)?;
    groupings(&found, &against, &target)?;
    gains.print()?;
    if target.dram.bytes_per_second < fitted.dram.bytes_per_second {
        let [used, other] = [&target, &fitted].map(|target| target.dram.bytes_per_second / 1e9);
        print_line!(
            "DRAM has {used:.1} GB/s, the most that was measured; --fitted-bandwidth searches with {other:.1}"
        )?;
    }
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

/// The array times of each step with several mappings.
struct Gains {
    /// A step's key, and its milliseconds with the mapping to compare with, with the swept one, and
    /// with the swept one without unpublished mechanisms.
    steps: Vec<(String, [f64; 3])>,
    /// The published tiles as validated, if the model is the published one.
    published: Vec<PassTime>,
    against: String,
}

impl Gains {
    fn of(graphs: &[Graph], target: &Target, timed: [&TimedMapping; 3]) -> Result<Gains> {
        let millis = |(at, graph): (usize, &Graph)| {
            (graph.key.to_string(), timed.map(|one| one.steps[at].seconds(target)[0] * 1e3))
        };
        Ok(Gains {
            steps: graphs.iter().enumerate().map(millis).collect(),
            published: sweep::published_tiles(graphs, timed[0], target)?,
            against: timed[0].mapping.name.clone(),
        })
    }

    /// Each pair of a reference and a step: the name of the reference, its milliseconds, and those with
    /// the swept mapping, with and without unpublished mechanisms.
    fn rows(&self) -> Vec<(String, f64, [f64; 2])> {
        let mut rows = Vec::new();
        for (key, [against, swept, published]) in &self.steps {
            rows.push((format!("{key}, {}", self.against), *against, [*swept, *published]));
        }
        // The published passes are a prefill and a token, as the steps are.
        for (pass, (key, [_, swept, published])) in self.published.iter().zip(&self.steps) {
            rows.push((format!("{key}, published tiles as validated"), pass.millis, [*swept, *published]));
        }
        rows
    }

    fn print(&self) -> Result<()> {
        print_line!("array ms, and the gain: swept, and swept without mechanisms that no published row has")?;
        for (name, millis, [swept, published]) in self.rows() {
            let [gain, less] = [swept, published].map(|other| millis / other);
            print_line!("{millis:>10.1} {swept:>10.1} {gain:>5.2}x {published:>10.1} {less:>5.2}x  {name}")?;
        }
        Ok(())
    }

    fn described(&self) -> Value {
        let row = |(name, millis, [swept, published]): (String, f64, [f64; 2])| json!({"against": name, "array_ms": millis, "swept_ms": swept, "swept_published_ms": published});
        json!(self.rows().into_iter().map(row).collect::<Vec<_>>())
    }
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
