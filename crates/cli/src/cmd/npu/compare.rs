//! `girih npu compare`: compiles several models and prints, in one table, their times on the
//! array and on the host, and then how many nodes stay on the host, and which.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use girih_graph::split::Site;
use girih_graph::{Graph, Key, Op};
use girih_npu::Target;
use girih_npu::driver::{Compiler, Scenario, TimedProgram, estimate, host_spread};
use girih_npu::pass::{AttentionPlacement, NoDump, array_split};
use serde::Serialize;
use serde_json::json;

use super::args::MappingArgs;
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::print_json;

/// The positions of the sequence that a token ends, unless `--context` names them.
const TOKEN_CONTEXT: u32 = 1024;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Models, as for the other commands, or files such as `config.json`, whose weights are not needed.
    #[arg(required = true)]
    models: Vec<String>,
    #[command(flatten)]
    mapping: MappingArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One model in the table.
#[derive(Debug, Serialize)]
struct ComparedModel {
    name: String,
    /// The time to compile the programs of both steps.
    compile_seconds: f64,
    /// All rows at once.
    prefill: ComparedStep,
    /// The last of as many positions as `--context` names, otherwise of 1,024.
    token: ComparedStep,
}

/// The simulated times of a step, and its counts. The host's times of a token are means of 64 tokens.
#[derive(Debug, Serialize)]
struct ComparedStep {
    rows: u32,
    /// The positions of the sequence, with the step's.
    context: u32,
    array_ms: f64,
    host_ms: f64,
    sync_ms: f64,
    programs: usize,
    launches: u64,
    /// The nodes on the array and on the host, without views.
    nodes: [usize; 2],
    /// What the host computes, with the reason.
    host: Vec<String>,
    /// The compared costs of attention on the array and on the host, and the choice, if the mapping
    /// chooses by cost.
    attention: Option<String>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let target = args.mapping.array()?;
    let mut compared = Vec::new();
    if !args.json {
        heading(&target, &args.mapping)?;
    }
    for name in &args.models {
        let model = compare(name, &args.mapping).map_err(|error| named(name, error))?;
        if !args.json {
            model.print()?;
        }
        compared.push(model);
    }
    if args.json {
        print_json(&json!({"target": target.name, "mapping": args.mapping.mapping, "models": compared}))?;
    } else {
        nodes(&compared)?;
        host_work(&compared)?;
        attention(&compared)?;
    }
    Ok(Outcome::Done)
}

/// The error of a model, with its name.
fn named(name: &str, error: Error) -> Error {
    let of = |sentence: String| {
        if sentence.starts_with(name) { sentence } else { format!("{name}: {sentence}") }
    };
    match error {
        Error::Call(sentence) => Error::Call(of(sentence)),
        Error::Work(sentence) => Error::Work(of(sentence)),
        other => other,
    }
}

/// Compiles a model and simulates its steps.
fn compare(name: &str, args: &MappingArgs) -> Result<ComparedModel> {
    let shape = args.shape(name)?;
    let key = args.key_of(shape.max_context())?;
    let context = args.token_context(TOKEN_CONTEXT, key.context);
    let token = Key { rows: 1, context, ..key };
    let compiler = args.fresh_compiler()?;
    let mut compile_seconds = 0.0;
    let prefill = step(&shape.graph(key)?, &compiler, &mut compile_seconds)?;
    let token = step(&shape.graph(token)?, &compiler, &mut compile_seconds)?;
    let name = Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy()).into_owned();
    Ok(ComparedModel { name, compile_seconds, prefill, token })
}

/// Compiles and simulates one step, and adds the time to compile it.
fn step(graph: &Graph, compiler: &Compiler, seconds: &mut f64) -> Result<ComparedStep> {
    let begun = Instant::now();
    let compiled = compiler.compile(graph, &mut NoDump)?;
    *seconds += begun.elapsed().as_secs_f64();
    let target = compiler.target();
    let position = Scenario::last_position(graph);
    let timed = estimate(graph, &compiled, target, position)?;
    let mean = host_spread(graph, &compiled, target, position).mean;
    let launches = |program: &TimedProgram| program.runs * program.report.launches.len() as u64;
    let split = array_split(graph, compiler.policy_for(graph));
    let (mut nodes, host) = ([0, 0], split.host_work());
    for (index, _) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op != Op::Reshape) {
        nodes[usize::from(*split.site(index) != Site::Device)] += 1;
    }
    let by_cost = compiler.policy().attention == AttentionPlacement::ByCost;
    let host = host.into_iter().map(|work| format!("{} ({}): {}", work.name, work.op, work.reason));
    Ok(ComparedStep {
        rows: graph.key.rows,
        context: graph.key.context,
        array_ms: timed.ledger.array_seconds(target) * 1e3,
        host_ms: mean.work * 1e3,
        sync_ms: mean.sync * 1e3,
        programs: timed.programs.len(),
        launches: timed.programs.iter().map(launches).sum(),
        nodes,
        host: host.collect(),
        attention: by_cost.then(|| compiler.attention_cost(graph)).flatten().map(|cost| cost.to_string()),
    })
}

fn heading(target: &Target, args: &MappingArgs) -> Result<()> {
    let (mapping, positions) = (&args.mapping, args.token_context(TOKEN_CONTEXT, TOKEN_CONTEXT));
    print_line!("{} with {mapping}; times in ms; a token is the last of {positions} positions", target.name)?;
    let step = format!("{:>9} {:>8} {:>7} {:>8} {:>8}", "array", "host", "sync", "programs", "launches");
    print_line!("{:<24} {:>9} | prefill{step} | token{step}", "model", "compile s")
}

impl ComparedModel {
    fn print(&self) -> Result<()> {
        let step = |step: &ComparedStep| {
            let ComparedStep { array_ms, host_ms, sync_ms, programs, launches, .. } = step;
            format!("{array_ms:>9.1} {host_ms:>8.1} {sync_ms:>7.1} {programs:>8} {launches:>8}")
        };
        let ComparedModel { name, compile_seconds, prefill, token } = self;
        print_line!("{name:<24} {compile_seconds:>9.3} |        {} |      {}", step(prefill), step(token))
    }
}

/// Prints how many nodes of each model's steps run on the array.
fn nodes(models: &[ComparedModel]) -> Result<()> {
    for ComparedModel { name, prefill, token, .. } in models {
        let shown =
            |ComparedStep { nodes: [array, host], .. }: &ComparedStep| format!("{array} of {}", array + host);
        print_line!(
            "{name}: {} nodes of a prefill and {} of a token on the array",
            shown(prefill),
            shown(token)
        )?;
    }
    Ok(())
}

/// Prints the compared costs of attention of each model.
fn attention(models: &[ComparedModel]) -> Result<()> {
    for model in models {
        for cost in [&model.prefill, &model.token].into_iter().filter_map(|step| step.attention.as_ref()) {
            print_line!("{}: {cost}", model.name)?;
        }
    }
    Ok(())
}

/// Prints the work that stays on the host, and the models that have it.
fn host_work(models: &[ComparedModel]) -> Result<()> {
    let mut work: BTreeMap<(bool, &str), Vec<&str>> = BTreeMap::new();
    for model in models {
        for step in [&model.prefill, &model.token] {
            for part in &step.host {
                let of = work.entry((step.rows == 1, part)).or_default();
                if !of.contains(&model.name.as_str()) {
                    of.push(&model.name);
                }
            }
        }
    }
    for ((token, part), of) in work {
        let step = if token { "token" } else { "prefill" };
        let of = if of.len() == models.len() { "all".to_owned() } else { of.join(", ") };
        print_line!("host, {step}, {part} [{of}]")?;
    }
    Ok(())
}
