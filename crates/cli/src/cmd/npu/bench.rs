//! `girih npu bench`: the time of compiling and simulating on this machine,
//! compared with its targets. These are not times of an array.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Instant;

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{Backend as _, Graph, Output as _, Outputs, Sequence, Step};
use girih_npu::blob::BlobCache;
use girih_npu::driver::{CompiledGraph, Compiler, Scenario, estimate};
use girih_npu::pass::NoDump;
use girih_npu::{Npu, NpuOptions};
use serde::Serialize;

use super::args::MappingArgs;
use crate::args::KvType;
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::loading;
use crate::output::print_json;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model, as for the other commands; a `config.json`, whose weights are not needed unless `--values` is given;
    /// or a file *.graph from `girih inspect --graph`.
    model: String,
    // Has no options for blobs, because the benchmark keeps them in a temporary
    // folder.
    #[command(flatten)]
    mapping: MappingArgs,
    /// Runs per measurement; the median is reported.
    #[arg(long, short = 'r', value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Also compute the values of a prefill of the model's first layer and head, once, without
    /// checks for unordered accesses.
    #[arg(long)]
    values: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct TimingRow {
    what: String,
    /// The median of wall-clock times.
    seconds: f64,
    /// The target.
    aim_seconds: f64,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let mut rows = Vec::new();
    let graphs = args.mapping.graphs_of(&args.model)?;
    let (target, mapping) = (args.mapping.array()?, args.mapping.mapping()?);
    let folder = TemporaryFolder::new()?;
    let compile = |cache: Option<BlobCache>| {
        let compiler = Compiler::new(target.clone(), mapping.clone(), cache);
        let compiled = graphs.iter().map(|graph| compiler.compile(graph, &mut NoDump));
        Ok::<Vec<CompiledGraph>, Error>(compiled.collect::<Result<_, _>>()?)
    };
    let mut measure = |what: String, aim_seconds: f64, work: &mut dyn FnMut() -> Result<()>| {
        let seconds = median(args.runs, work)?;
        rows.push(TimingRow { what, seconds, aim_seconds });
        Ok::<(), Error>(())
    };
    let compiled = compile(Some(BlobCache::open(&folder.0)?))?;
    // Both steps may share a head, which is compiled once.
    let programs: usize = compiled.iter().map(|compiled| compiled.fresh).sum();
    measure(format!("compile {programs} programs"), 10.0, &mut || compile(None).map(drop))?;
    measure(format!("load {programs} programs from the cache"), 0.2, &mut || {
        let kept = compile(Some(BlobCache::open(&folder.0)?))?;
        let fresh: usize = kept.iter().map(|compiled| compiled.fresh).sum();
        if fresh > 0 { Err(Error::work(format!("{fresh} programs were not in the cache"))) } else { Ok(()) }
    })?;
    for (graph, compiled) in graphs.iter().zip(&compiled) {
        let (rows, position) = (graph.key.rows, Scenario::last_position(graph));
        let (what, aim) = match rows {
            1 => (format!("time one token after {position}"), 0.2),
            _ => (format!("time a prefill of {rows}"), 5.0),
        };
        measure(what, aim, &mut || Ok(estimate(graph, compiled, &target, position).map(drop)?))?;
    }
    if args.values {
        rows.push(values(&args.model, &args.mapping)?);
    }
    show(args, &target.name, &rows)?;
    Ok(Outcome::Done)
}

/// The median time of `runs` runs, in seconds.
fn median(runs: u32, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..runs {
        let begun = Instant::now();
        work()?;
        times.push(begun.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Times a prefill step of the first layer and the head, with values.
fn values(name: &str, args: &MappingArgs) -> Result<TimingRow> {
    if name.ends_with(".graph") {
        return Err(Error::call(format!("{name}: --values needs a model, for its weights")));
    }
    let model = loading::open(name, &args.arch)?;
    let (facts, weights) = (&model.files().facts, &model.files().weights);
    let graph: Graph =
        model.files().graph_of_layers(1, args.key_of(model.max_context())?, KvType::Bf16.dtype())?;
    let npu = Npu::new(&args.array()?.name, NpuOptions { hazards: false, ..NpuOptions::default() })?;
    let npu = npu.with_mapping(args.mapping()?);
    let loaded = npu.load(&graph, weights)?;
    let blocks: Vec<Block> = (0..graph.key.context.div_ceil(64)).map(Block).collect();
    let mut state = npu.state(&graph, &[blocks.len() as u32])?;
    let program = npu.compile(&graph, &loaded)?;
    let vocabulary = facts.sizes.vocabulary as u32;
    let tokens: Vec<u32> =
        (0..graph.key.rows).map(|row| row.wrapping_mul(2_654_435_761) % vocabulary).collect();
    let rows = Range32 { start: 0, end: graph.key.rows };
    let sequences = [Sequence { blocks: &[&blocks], position: 0, rows, outputs: Outputs::Last, spans: &[] }];
    let mut output = npu.output(&graph)?;
    let inputs = [Input::Ids(&tokens)];
    let begun = Instant::now();
    let step = Step { inputs: &inputs, sequences: &sequences, watch: &mut Unwatched };
    npu.run(&program, &loaded, &mut state, &mut output, step)?;
    let seconds = begun.elapsed().as_secs_f64();
    if !output.rows(0..1)?.iter().all(|value| value.is_finite()) {
        return Err(Error::work("the values of the layer are not finite"));
    }
    let what = format!("values of a prefill of {}, one layer and the head", graph.key.rows);
    Ok(TimingRow { what, seconds, aim_seconds: 60.0 })
}

fn show(args: &Args, target: &str, rows: &[TimingRow]) -> Result<()> {
    if args.json {
        return print_json(&serde_json::json!({"target": target, "runs": args.runs, "rows": rows}));
    }
    print_line!("{:<48} {:>9} {:>9}", format!("for {target}, on this machine"), "s", "target")?;
    for TimingRow { what, seconds, aim_seconds } in rows {
        let missed = if seconds > aim_seconds { "  missed" } else { "" };
        print_line!("{what:<48} {seconds:>9.3} {aim_seconds:>9.1}{missed}")?;
    }
    Ok(())
}

/// A folder for blobs that is removed after the benchmark.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Result<TemporaryFolder> {
        let folder = std::env::temp_dir().join(format!("girih-npu-bench-{}", std::process::id()));
        // A cache of blobs is refused if others can write to its folder.
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(TemporaryFolder(folder))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A folder that cannot be removed does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
