//! `girih npu runtime`: the cost of each setting of the runtime, and of
//! compiling programs for other numbers of rows and positions than a step has.
//! Times are simulated, without values.

use std::collections::HashMap;

use girih_graph::{Graph, Key, OutputKind};
use girih_npu::Target;
use girih_npu::driver::{
    CompiledGraph, Compiler, Estimate, Runtime, Scenario, TimedProgram, WeightUse, estimate_step,
    time_programs,
};
use girih_npu::pass::{ArrayMapping, AttentionPlacement, Grouping, NoDump, Policy};
use serde_json::{Value, json};

use super::args::{CompileModelArgs, OpenedShape};
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::{bytes, print_json};

/// The numbers of rows and of positions for which programs are compiled here.
const LADDER: [u32; 6] = [64, 128, 256, 512, 1024, 2048];

/// The ways in which weights reach the array.
const WEIGHT_USES: &[(&str, WeightUse)] = &[
    ("in place", WeightUse::InPlace),
    ("copied once", WeightUse::Copied),
    ("copied with every submission", WeightUse::EachCall),
];

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: CompileModelArgs,
    /// Length of a short prompt, which is padded to the rows of a program.
    #[arg(long, value_name = "N", default_value = "30", value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The steps of a model, each compiled and timed once.
struct RuntimeBench<'a> {
    args: &'a Args,
    /// The rows of a prefill step.
    rows: u32,
    context: u32,
    shape: OpenedShape,
    /// The policy of the user's mapping.
    policy: Policy,
    compilers: HashMap<Policy, Compiler>,
    steps: HashMap<(Policy, u32, u32), TimedStep>,
}

/// A compiled step, with its times.
struct TimedStep {
    graph: Graph,
    compiled: CompiledGraph,
    times: Vec<TimedProgram>,
}

/// A line of a table.
struct CostLine {
    what: String,
    /// One estimate per column.
    costs: Vec<Estimate>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    if args.source.model.ends_with(".graph") {
        return Err(Error::call(
            "a graph has one length; girih npu runtime needs a model to compile several",
        ));
    }
    let shape = args.source.shape(&args.source.model)?;
    let Key { rows, context, .. } = args.source.key_of(shape.max_context())?;
    if args.prompt > rows {
        return Err(Error::call(format!("--prompt is {}: it must be at most --rows, {rows}", args.prompt)));
    }
    let policy = args.source.mapping()?.policy;
    let (compilers, steps) = (HashMap::new(), HashMap::new());
    let mut bench = RuntimeBench { args, rows, context, shape, policy, compilers, steps };
    let tables = [bench.switches()?, bench.lengths()?, bench.chunks()?, bench.contexts()?];
    let target = bench.target()?;
    if args.json {
        let tables: Vec<Value> = tables.iter().map(|table| table.json(&target)).collect();
        print_json(&json!({"target": target.name, "tables": tables}))?;
    } else {
        tables.iter().try_for_each(|table| table.print(&target))?;
    }
    Ok(Outcome::Done)
}

/// A table whose lines are compared with the first.
struct CostTable {
    title: String,
    columns: &'static [&'static str],
    lines: Vec<CostLine>,
    notes: Vec<String>,
}

impl RuntimeBench<'_> {
    fn target(&self) -> Result<Target> {
        self.args.source.array()
    }

    /// The step of `rows` rows in a context, compiled and timed.
    fn step(&mut self, policy: Policy, rows: u32, context: u32) -> Result<&TimedStep> {
        if !self.steps.contains_key(&(policy, rows, context)) {
            if !self.compilers.contains_key(&policy) {
                self.compilers.insert(policy, self.args.source.compiler_for(self.mapping(policy)?)?);
            }
            let compiler = &self.compilers[&policy];
            let key = Key { rows, sequences: 1, context, output_rows: 1, output: OutputKind::Logits };
            let graph = self.shape.graph(key)?;
            let compiled = compiler.compile(&graph, &mut NoDump)?;
            let times = time_programs(&compiled, compiler.target())?;
            self.steps.insert((policy, rows, context), TimedStep { graph, compiled, times });
        }
        Ok(&self.steps[&(policy, rows, context)])
    }

    /// The user's mapping with another policy.
    fn mapping(&self, policy: Policy) -> Result<ArrayMapping> {
        let mapping = self.args.source.mapping()?;
        let name = if policy == mapping.policy { mapping.name } else { policy.name().to_owned() };
        Ok(ArrayMapping { name, policy, ..mapping })
    }

    /// The cost of a scenario on the programs for `rows` rows in a context.
    fn cost(&mut self, policy: Policy, [rows, context]: [u32; 2], scenario: Scenario) -> Result<Estimate> {
        let target = self.target()?;
        let step = self.step(policy, rows, context)?;
        Ok(estimate_step(&step.graph, &step.compiled, &target, step.times.clone(), scenario))
    }

    /// The cost of each setting, for a prompt that fills the longest program and
    /// for a token at the end of the context.
    fn switches(&mut self) -> Result<CostTable> {
        let RuntimeBench { rows, context, policy, .. } = *self;
        let mut ways = vec![("defaults".to_owned(), policy, Runtime::default())];
        let named = |(name, runtime): (&str, Runtime)| (name.to_owned(), policy, runtime);
        ways.extend(Runtime::default().departures().into_iter().map(named));
        ways.push(named(("as in the mlir-air example", Runtime::MLIR_AIR)));
        let other = match policy.grouping {
            Grouping::Unstitched => Policy { grouping: Grouping::Stitched, ..policy },
            _ => Policy { grouping: Grouping::Unstitched, ..policy },
        };
        for other in [
            other,
            Policy { attention: AttentionPlacement::Host, ..policy },
            Policy { attention: AttentionPlacement::Array, ..policy },
        ] {
            if other == policy {
                continue;
            }
            let name = format!("mapping {}", other.name());
            let way = match (other.grouping == policy.grouping, other.attention) {
                (false, _) => Some("dispatch=single"),
                (true, AttentionPlacement::Array) => Some("keys=gathered"),
                _ => None,
            };
            ways.push((name.clone(), other, Runtime::default()));
            if let Some(way) = way {
                ways.push((format!("{name}, {way}"), other, Runtime::default().with(way)?));
            }
        }
        let mut lines = Vec::new();
        for (what, policy, runtime) in ways {
            let prefill = Scenario { sequences: 1, position: context - rows, rows, runtime };
            let token = Scenario { sequences: 1, position: context - 1, rows: 1, runtime };
            let costs =
                vec![self.cost(policy, [rows, context], prefill)?, self.cost(policy, [1, context], token)?];
            lines.push(CostLine { what, costs });
        }
        let title = format!("{rows} tokens of prefill, and a token at position {}", context - 1);
        let mut notes = Vec::new();
        for (name, weights) in WEIGHT_USES {
            let runtime = Runtime { weights: *weights, ..Runtime::default() };
            let load = self
                .cost(policy, [1, context], Scenario { sequences: 1, position: 0, rows: 1, runtime })?
                .load;
            let (copied, kept) = (bytes(load.copied), bytes(load.kept));
            notes.push(format!("weights {name}: loading copies {copied}, and the host keeps {kept}"));
        }
        Ok(CostTable { title, columns: &["prefill", "token"], lines, notes })
    }

    /// The cost of a short prompt on programs for increasing numbers of rows.
    fn lengths(&mut self) -> Result<CostTable> {
        let RuntimeBench { rows: max, context, policy, .. } = *self;
        let rows = self.args.prompt;
        let scenario = Scenario { sequences: 1, position: 0, rows, runtime: Runtime::default() };
        let mut lines = Vec::new();
        for length in self.ladder(rows, max) {
            let least = self.ladder(length, context)[0];
            for context in if least == context { vec![context] } else { vec![least, context] } {
                let what = format!("compiled for {length} rows, {context} positions");
                lines.push(CostLine { what, costs: vec![self.cost(policy, [length, context], scenario)?] });
            }
        }
        Ok(CostTable {
            title: format!("a prompt of {rows} tokens, padded"),
            columns: &["prefill"],
            lines,
            notes: Vec::new(),
        })
    }

    /// The cost of the longest prompt in chunks, each on the programs of its
    /// length and of the smallest context that contains it.
    fn chunks(&mut self) -> Result<CostTable> {
        let RuntimeBench { rows, context, policy, .. } = *self;
        let mut lines = Vec::new();
        for chunk in self.ladder(1, rows).into_iter().rev() {
            let mut costs: Vec<Estimate> = Vec::new();
            for position in (0..rows).step_by(chunk as usize) {
                let count = chunk.min(rows - position);
                let least = self.ladder(position + count, context)[0];
                let scenario = Scenario { sequences: 1, position, rows: count, runtime: Runtime::default() };
                costs.push(self.cost(policy, [chunk, least.max(chunk)], scenario)?);
            }
            let sum = costs.into_iter().reduce(joined);
            lines.push(CostLine { what: format!("in chunks of {chunk}"), costs: sum.into_iter().collect() });
        }
        Ok(CostTable {
            title: format!("a prompt of {rows} tokens in chunks"),
            columns: &["prefill"],
            lines,
            notes: Vec::new(),
        })
    }

    /// The cost of a token after a short prompt on programs for increasing contexts.
    fn contexts(&mut self) -> Result<CostTable> {
        let RuntimeBench { context: max, policy, .. } = *self;
        // A token must follow the prompt within the context.
        let position = self.args.prompt.min(max - 1);
        let array = Policy { attention: AttentionPlacement::Array, ..policy };
        let scenario = Scenario { sequences: 1, position, rows: 1, runtime: Runtime::default() };
        let mut lines = Vec::new();
        for context in self.ladder(position + 1, max) {
            let what = format!("attention on the array, {context} positions");
            lines.push(CostLine { what, costs: vec![self.cost(array, [1, context], scenario)?] });
        }
        let host = Policy { attention: AttentionPlacement::Host, ..policy };
        let what = "attention on the host, present positions only".to_owned();
        lines.push(CostLine { what, costs: vec![self.cost(host, [1, max], scenario)?] });
        Ok(CostTable {
            title: format!("a token at position {position}"),
            columns: &["token"],
            lines,
            notes: Vec::new(),
        })
    }

    /// The lengths of the ladder from `min` to `max`, and `max`.
    fn ladder(&self, min: u32, max: u32) -> Vec<u32> {
        let within = LADDER.into_iter().filter(|&length| length >= min && length < max);
        within.chain([max]).collect()
    }
}

/// The cost of two steps, one after the other.
fn joined(mut a: Estimate, b: Estimate) -> Estimate {
    a.ledger += b.ledger;
    a
}

impl CostTable {
    fn print(&self, target: &Target) -> Result<()> {
        let wide = self.lines.iter().map(|line| line.what.len()).max().unwrap_or(0).max(self.title.len());
        let mut head = format!("{:<wide$}", self.title);
        for column in self.columns {
            head += &format!(
                " | {:>10} {:>7} {:>10} {:>10} {:>6} {:>6} {:>6} {:>9}",
                format!("{column} ms"),
                "times",
                "copied",
                "synced",
                "syncs",
                "runs",
                "calls",
                "list"
            );
        }
        print_line!("{head}")?;
        for line in &self.lines {
            let mut text = format!("{:<wide$}", line.what);
            for (cost, first) in line.costs.iter().zip(&self.lines[0].costs) {
                let (ledger, ms) = (&cost.ledger, cost.ledger.seconds(target) * 1e3);
                let times = ms / (first.ledger.seconds(target) * 1e3);
                text += &format!(
                    " | {ms:>10.2} {times:>7.3} {:>10} {:>10} {:>6} {:>6} {:>6} {:>9}",
                    bytes(ledger.copied_bytes),
                    bytes(ledger.written_bytes + ledger.read_bytes),
                    ledger.syncs,
                    ledger.submissions,
                    ledger.calls,
                    bytes(4 * ledger.list_words),
                );
            }
            print_line!("{text}")?;
        }
        self.notes.iter().try_for_each(|note| print_line!("{note}"))?;
        print_line!("")
    }

    fn json(&self, target: &Target) -> Value {
        let cost = |cost: &Estimate| {
            let ledger = &cost.ledger;
            json!({
                "ms": ledger.seconds(target) * 1e3,
                "array_ms": ledger.array_seconds(target) * 1e3,
                "host_ms": ledger.host_seconds(target) * 1e3,
                "sync_ms": ledger.sync_seconds(target) * 1e3,
                "copy_ms": ledger.copy_seconds(target) * 1e3,
                "polled_ms": target.seconds(ledger.polled_cycles) * 1e3,
                "copied_bytes": ledger.copied_bytes,
                "written_bytes": ledger.written_bytes,
                "read_bytes": ledger.read_bytes,
                "syncs": ledger.syncs,
                "submissions": ledger.submissions,
                "calls": ledger.calls,
                "list_words": ledger.list_words,
                "load_copied_bytes": cost.load.copied,
                "load_kept_bytes": cost.load.kept,
            })
        };
        let line = |line: &CostLine| json!({"what": line.what, "costs": line.costs.iter().map(cost).collect::<Vec<_>>()});
        let lines: Vec<Value> = self.lines.iter().map(line).collect();
        json!({"title": self.title, "columns": self.columns, "lines": lines})
    }
}
