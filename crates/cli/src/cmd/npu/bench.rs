//! `girih npu bench`: how long compiling and simulating take on this machine,
//! beside what they are meant to take. Nothing here says how fast an array is.

use std::path::PathBuf;
use std::time::Instant;

use girih_graph::backend::{Block, Inputs, Range32, Unwatched};
use girih_graph::{Backend as _, Graph, Outputs, Sequence, Step};
use girih_npu::blob::BlobCache;
use girih_npu::driver::{Compiled, Compiler, estimate};
use girih_npu::pass::NoDump;
use girih_npu::{Npu, Options};
use serde::Serialize;

use super::{Layout, Outcome, Result, print_json};
use crate::args::KvType;
use crate::error::Error;
use crate::loading::Place;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model, as for the other commands, or a file *.graph as `girih inspect --graph` prints it.
    model: String,
    // Without a choice of a folder for programs: what is measured is kept in one of its own.
    #[command(flatten)]
    layout: Layout,
    /// Runs of each measurement; the median counts.
    #[arg(long, short = 'r', value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    runs: u32,
    /// Also compute the values of a prefill of the model's first layer with its head, once;
    /// accesses that nothing orders are not looked for.
    #[arg(long)]
    values: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    /// The median, by the wall clock.
    seconds: f64,
    /// What it is meant to take at most.
    aim_seconds: f64,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let mut rows = Vec::new();
    let graphs = args.layout.graphs_of(&args.model)?;
    let (target, mapping) = (args.layout.array()?, args.layout.mapping()?);
    let folder = Folder::new()?;
    let compile = |cache: Option<BlobCache>| {
        let compiler = Compiler::new(target.clone(), mapping.clone(), cache);
        let compiled = graphs.iter().map(|graph| compiler.compile(graph, &mut NoDump));
        Ok::<Vec<Compiled>, Error>(compiled.collect::<Result<_, _>>()?)
    };
    let mut measure = |what: String, aim_seconds: f64, work: &mut dyn FnMut() -> Result<()>| {
        let seconds = median(args.runs, work)?;
        rows.push(Row { what, seconds, aim_seconds });
        Ok::<(), Error>(())
    };
    let compiled = compile(Some(BlobCache::open(&folder.0)?))?;
    // A head that both steps have is compiled once.
    let programs: usize = compiled.iter().map(|compiled| compiled.fresh).sum();
    measure(format!("compile {programs} programs"), 10.0, &mut || compile(None).map(drop))?;
    measure(format!("take {programs} programs from the cache"), 0.2, &mut || {
        let kept = compile(Some(BlobCache::open(&folder.0)?))?;
        let fresh: usize = kept.iter().map(|compiled| compiled.fresh).sum();
        if fresh > 0 { Err(Error::work(format!("{fresh} programs were not in the cache"))) } else { Ok(()) }
    })?;
    for (graph, compiled) in graphs.iter().zip(&compiled) {
        let (rows, position) = (graph.key.rows, graph.key.context - graph.key.rows);
        let (what, aim) = match rows {
            1 => (format!("time one token after {position}"), 0.2),
            _ => (format!("time a prefill of {rows}"), 5.0),
        };
        measure(what, aim, &mut || Ok(estimate(graph, compiled, &target, position).map(drop)?))?;
    }
    if args.values {
        rows.push(values(&args.model, &args.layout)?);
    }
    show(args, &target.name, &rows)?;
    Ok(Outcome::Done)
}

/// The middle of so many times, in seconds.
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

/// A step of prefill of the first layer alone, with its values.
fn values(name: &str, layout: &Layout) -> Result<Row> {
    if name.ends_with(".graph") {
        return Err(Error::call(format!("{name}: --values needs a model, for its weights")));
    }
    let mut model = Place::find(name)?.model(&layout.arch)?;
    model.facts.layers.truncate(1);
    let graph: Graph = model.graph(layout.key()?, KvType::Bf16.dtype())?;
    let npu = Npu::new(&layout.target, Options { hazards: false, ..Options::default() })?;
    let npu = npu.with_mapping(layout.mapping()?);
    let weights = npu.load(&graph, &model.weights)?;
    let blocks: Vec<Block> = (0..graph.key.context.div_ceil(64)).map(Block).collect();
    let mut state = npu.state(&graph, &[blocks.len() as u32])?;
    let program = npu.compile(&graph, &weights)?;
    let vocabulary = model.facts.sizes.vocabulary as u32;
    let tokens: Vec<u32> =
        (0..graph.key.rows).map(|row| row.wrapping_mul(2_654_435_761) % vocabulary).collect();
    let rows = Range32 { start: 0, end: graph.key.rows };
    let sequences = [Sequence { blocks: &[&blocks], position: 0, rows, outputs: Outputs::Last, spans: &[] }];
    let mut output = vec![0.0; model.facts.sizes.vocabulary];
    let inputs = Inputs::Tokens(&tokens);
    let begun = Instant::now();
    let step = Step { inputs, sequences: &sequences, output: &mut output, watch: &mut Unwatched };
    npu.run(&program, &weights, &mut state, step)?;
    let seconds = begun.elapsed().as_secs_f64();
    if !output.iter().all(|value| value.is_finite()) {
        return Err(Error::work("the values of the layer are not finite"));
    }
    let what = format!("values of a prefill of {}, one layer and the head", graph.key.rows);
    Ok(Row { what, seconds, aim_seconds: 60.0 })
}

fn show(args: &Args, target: &str, rows: &[Row]) -> Result<()> {
    if args.json {
        return print_json(&serde_json::json!({"target": target, "runs": args.runs, "rows": rows}));
    }
    print_line!("{:<48} {:>9} {:>9}", format!("for {target}, on this machine"), "s", "aim")?;
    for Row { what, seconds, aim_seconds } in rows {
        let missed = if seconds > aim_seconds { "  missed" } else { "" };
        print_line!("{what:<48} {seconds:>9.3} {aim_seconds:>9.1}{missed}")?;
    }
    Ok(())
}

/// A folder for blobs that goes when the benchmark is over.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let folder = std::env::temp_dir().join(format!("girih-npu-bench-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        Ok(Folder(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
