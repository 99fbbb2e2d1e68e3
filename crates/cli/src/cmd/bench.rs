//! `girih bench`: the speed of models, in rows like those of `llama-bench`, and
//! its share of this machine's limits.

mod sparse;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use girih::tools::peak_resident;
use girih::{DType, Drafts, Engine, LoadTimes, Numerics, Plan, RunOptions};
use girih_graph::Graph;
use girih_graph::description::byte_count;
use girih_measure::{
    BenchCase, BenchTimes, MinimalWork, Spread, TouchPlan, TouchTimes, WeightToucher, first_token, record,
    speed,
};
use serde_json::{Map, Value, json};

use self::sparse::SparseFormat;
use super::outcome::Outcome;
use crate::adapter_args::AdapterArgs;
use crate::args::{ArchArgs, DeviceArgs};
use crate::draft_args::DraftArgs;
use crate::error::{Error, Result};
use crate::limits::{Bottleneck, MachineLimits, limit_notes};
use crate::loading;
use crate::machine::{self, CpuTime};
use crate::output::{bytes, counted, print_json};
use crate::pack_args::{PackArgs, packing_json};
use crate::phases::StartPhases;
use crate::progress::Unit;
use crate::typed_options::TypedOptions;

/// The length of the prompt whose first token is timed.
const FIRST_PROMPT: u32 = 16;

/// The length of a prompt if a call sets none and the context has room for it, as in llama-bench.
const DEFAULT_PROMPT: u32 = 512;

/// The number of generated tokens, likewise.
const DEFAULT_REPLY: u32 = 128;

/// The seed of random prompts.
const SEED: u64 = 42;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    typed: TypedOptions,
    /// Models: folders, .gguf or .safetensors files, ids in the cache, or stories260k.
    #[arg(required_unless_present = "sparse")]
    models: Vec<String>,
    #[command(flatten)]
    arch: ArchArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pack: PackArgs,
    /// Prompt lengths to time (pp); 0 for none [default: 512, or what the context leaves].
    #[arg(long, short = 'p', value_name = "N,…", value_delimiter = ',')]
    prompt_tokens: Option<Vec<u32>>,
    /// Numbers of generated tokens to time (tg); 0 for none [default: 128, or what the context leaves].
    #[arg(long, short = 'n', value_name = "N,…", value_delimiter = ',')]
    gen_tokens: Option<Vec<u32>>,
    /// Tokens in the KV cache before the timed ones.
    #[arg(long, short = 'd', value_name = "N,…", value_delimiter = ',', default_value = "0")]
    depth: Vec<u32>,
    /// Number of sequences that generate in parallel, in tg rows.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    parallel: u32,
    /// Repetitions of each row, after one to warm up.
    #[arg(long, short = 'r', value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Output format (llama-bench: --output).
    #[arg(long, alias = "output", short = 'o', value_name = "FORMAT", value_enum, default_value = "md")]
    format: OutputFormat,
    /// Print JSON: one object with all rows; --format json is their array, as that of llama-bench.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Time products of random weights without blocks of zeros, at these shares of blocks, instead of models.
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', conflicts_with = "models")]
    sparse: Option<Vec<f64>>,
    /// Skip measuring this machine's limits.
    #[arg(long)]
    no_limits: bool,
    /// After each generated token, read one byte of each STRIDE [default: 256] over BYTES of the packed weights.
    #[arg(long, value_name = "BYTES[:STRIDE]", value_parser = touch)]
    touch: Option<TouchPlan>,
    /// Count the time of --touch as time of the tokens.
    #[arg(long, requires = "touch")]
    touch_in_window: bool,
    /// Append the rows to this machine's record in this folder.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "benches/record")]
    record: Option<PathBuf>,
}

/// The stride of `--touch` if it states none: that of IE-Core's harness (`IE_STRIDE_BYTES`).
const DEFAULT_STRIDE: u64 = 256;

/// Parses `BYTES` or `BYTES:STRIDE`.
fn touch(text: &str) -> std::result::Result<TouchPlan, String> {
    let (bytes, stride) = match text.split_once(':') {
        Some((bytes, stride)) => (bytes, byte_count(stride)?),
        None => (text, DEFAULT_STRIDE),
    };
    let bytes = byte_count(bytes)?;
    if bytes == 0 || stride == 0 {
        return Err("must have at least one byte and a stride of at least one byte".to_owned());
    }
    Ok(TouchPlan { bytes, stride, in_window: false })
}

/// The values of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // self-explanatory
enum OutputFormat {
    Md,
    Csv,
    Json,
}

pub fn run(args: &Args) -> Result<Outcome> {
    if let Some(densities) = &args.sparse {
        return products(args, densities);
    }
    let info = args.device.backend.choice()?.info();
    if info.is_simulated {
        return Err(Error::call(format!(
            "bench measures real time, but the times of the {} backend are simulated; for an array, use \
             'girih npu sim'",
            info.name
        )));
    }
    if args.record.is_some() && drafts(args).name().is_some() {
        return Err(Error::call("a record has no columns for drafts; omit --record or --draft"));
    }
    if args.record.is_some() && args.touch.is_some() {
        return Err(Error::call("a record has no columns for touched weights; omit --record or --touch"));
    }
    if args.touch.is_some() && args.parallel > 1 {
        return Err(Error::call(
            "--touch walks between the tokens of one sequence; omit --parallel or --touch",
        ));
    }
    let format = if args.json { OutputFormat::Json } else { args.format };
    let show = args.device.show.show();
    // A name that is wrong, or rows that do not fit a model, are known before minutes of measuring.
    let subjects = args.models.iter().map(|name| Ok((name, cases(args, name)?)));
    let subjects = subjects.collect::<Result<Vec<_>>>()?;
    let limits =
        if args.no_limits { None } else { Some(MachineLimits::measure(args.device.thread_count(), show)?) };
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for (name, cases) in &subjects {
        measure(args, name, cases, limits.as_ref(), &mut notes, &mut |row| {
            if format == OutputFormat::Md {
                if rows.is_empty() {
                    print_line!("{}", BenchRow::heading())?;
                }
                print_line!("{}", row.markdown())?;
            }
            rows.push(row);
            Ok(())
        })?;
    }
    let bottlenecks: Vec<Bottleneck> = rows.iter().filter_map(BenchRow::bottleneck).collect();
    notes.iter().for_each(|note| show.note(note));
    limit_notes(&bottlenecks).iter().for_each(|note| show.note(note));
    rows.iter().filter_map(|row| row.start.as_ref()).for_each(|start| show.detail(start));
    match format {
        OutputFormat::Md => {}
        OutputFormat::Csv => print_csv(&rows)?,
        OutputFormat::Json => {
            let rows: Vec<Value> = rows.iter().map(BenchRow::json).collect();
            if args.json { print_json(&json!({"rows": rows}))? } else { print_json(&rows)? }
        }
    }
    if let Some(folder) = &args.record {
        let path = folder.join(format!("{}.csv", machine_name()));
        // Computed before the first append, which makes the repository differ from its commit.
        let fields: Vec<_> = rows.iter().map(|row| row.fields(true)).collect();
        fields.iter().try_for_each(|fields| record::append(&path, fields))?;
        show.note(format!("{} appended to {}", counted(rows.len(), "row"), path.display()));
    }
    Ok(Outcome::Done)
}

/// Times products of random weights without blocks of zeros.
fn products(args: &Args, densities: &[f64]) -> Result<Outcome> {
    let choice = args.device.backend.choice()?;
    let format = match (args.json, args.format) {
        (true, _) => SparseFormat::JsonObject,
        (false, OutputFormat::Md) => SparseFormat::Md,
        (false, OutputFormat::Json) => SparseFormat::Json,
        (false, OutputFormat::Csv) => {
            return Err(Error::call("bench --sparse prints md or json; change --format"));
        }
    };
    let counts = (args.device.thread_count(), args.repetitions as usize);
    sparse::run(choice.settings().get("isa"), counts, densities, format)?;
    Ok(Outcome::Done)
}

/// The cases to time with a model, which its context holds: for each depth first the prompts.
fn cases(args: &Args, name: &str) -> Result<Vec<BenchCase>> {
    let max = loading::open(name, &arch(args))?.max_context();
    let context = args.device.context.unwrap_or(max).min(max);
    let mut cases = Vec::new();
    for &depth in &args.depth {
        let prompt = |prompt| BenchCase { prompt, generated: 0, depth, parallel: 1 };
        let reply = |generated| BenchCase { prompt: 0, generated, depth, parallel: args.parallel };
        // The default is what the context leaves, but at least one token, which may then be refused.
        let fitted = |default: u32, one: BenchCase| {
            vec![default.min((context + 1).saturating_sub(one.positions())).max(1)]
        };
        let prompts = args.prompt_tokens.clone().unwrap_or_else(|| fitted(DEFAULT_PROMPT, prompt(1)));
        let replies = args.gen_tokens.clone().unwrap_or_else(|| fitted(DEFAULT_REPLY, reply(1)));
        let both = prompts.into_iter().map(prompt).chain(replies.into_iter().map(reply));
        cases.extend(both.filter(|case| case.tokens() > 0));
    }
    if cases.is_empty() {
        return Err(Error::call("nothing to time: set --prompt-tokens or --gen-tokens to at least 1"));
    }
    with_context(&args.device, &cases, max)?;
    Ok(cases)
}

/// Loads a model and calls `each` with each row when it is measured. Notes of loading are added to
/// `notes`.
fn measure(
    args: &Args,
    name: &str,
    cases: &[BenchCase],
    limits: Option<&MachineLimits>,
    notes: &mut Vec<String>,
    each: &mut dyn FnMut(BenchRow) -> Result<()>,
) -> Result<()> {
    let reset = machine::reset_peak();
    let LoadedSubject { subject, graph, mut engine, notes: notes_of_loading, phases, draft, packing } =
        load(args, name, cases)?;
    let show = args.device.show.show();
    let tuning = engine.runner().tuning();
    let chosen = [&subject.machine_default, &tuning].into_iter().flatten();
    notes.extend(chosen.map(|sentence| format!("{}: {sentence}", subject.file)));
    let mut start = Some(format!("{}: {}", subject.file, phases.line()));
    for &case in cases {
        let bar = show.bar("measuring", 0, Unit::Things("tokens"));
        let before = CpuTime::now();
        let begun = Instant::now();
        let plan = args.touch.map(|plan| TouchPlan { in_window: args.touch_in_window, ..plan });
        let mut touch = plan.filter(|_| case.generated > 0).map(WeightToucher::new);
        let times = speed(&mut engine, case, args.repetitions, SEED, touch.as_mut(), &mut bar.watcher())?;
        bar.finish_and_clear();
        let seconds = begun.elapsed().as_secs_f64();
        let foreign = before.and_then(|before| Some(CpuTime::now()?.foreign_since(&before, seconds)));
        let work = work(&graph, &engine, case);
        if times.drafted > 0 {
            let (file, name, BenchTimes { drafted, accepted, .. }) = (&subject.file, case.name(), &times);
            notes.push(format!("{file}: {name}: {accepted} of {drafted} drafted tokens were accepted"));
        }
        if let Some(TouchTimes { plan, bytes: walked, time, checksum }) =
            touch.as_ref().map(WeightToucher::times)
        {
            let (file, name, seconds) = (&subject.file, case.name(), time.as_secs_f64());
            let rate = walked as f64 / seconds.max(1e-9) / 1e9;
            let counts = if plan.in_window { "counts" } else { "does not count" };
            notes.push(format!(
                "{file}: {name}: {} of weights touched in {seconds:.3} s, {rate:.2} GB/s, which {counts} as time of the \
                 tokens; checksum {checksum:02x}",
                bytes(walked)
            ));
        }
        each(BenchRow {
            subject: subject.clone(),
            case,
            work,
            limits: limits.copied(),
            draft: draft.clone(),
            times,
            touch: touch.map(|touch| touch.times()),
            foreign,
            phases: phases.clone(),
            start: start.take(),
            tuning: tuning.clone(),
            packing: packing.clone(),
            // Without a reset, the peak includes what was resident before the model.
            peak_resident: reset.then(peak_resident).flatten(),
        })?;
    }
    drop(engine);
    notes.extend(notes_of_loading.try_iter());
    Ok(())
}

/// What drafts: in a record, which has no columns for drafts, only what was typed.
fn drafts(args: &Args) -> DraftArgs {
    if args.record.is_some() { args.draft.if_typed(&args.typed) } else { args.draft.clone() }
}

/// The adapters and the packing of the models.
fn arch(args: &Args) -> ArchArgs {
    args.pack.applied(args.adapters.beside(&args.arch))
}

/// A model that is loaded and has generated its first token.
struct LoadedSubject {
    subject: Subject,
    graph: Graph,
    engine: Engine,
    /// The notes of loading, which may arrive until the engine is dropped.
    notes: Receiver<String>,
    phases: StartPhases,
    /// What drafts, if anything does.
    draft: Option<String>,
    /// The error of packed weights, or null.
    packing: Value,
}

/// Loads a model for all cases, and times the phases of its start.
fn load(args: &Args, name: &str, cases: &[BenchCase]) -> Result<LoadedSubject> {
    let mut phases = StartPhases::begin();
    let model = loading::open(name, &arch(args))?;
    phases.end("open");
    let device = with_context(&args.device, cases, model.max_context())?;
    let options = RunOptions { sequences: args.parallel, ..loading::options(&device)? };
    let plan = drafts(args).plan(&model, options, &args.arch, &args.typed, args.device.show.show())?;
    let digest = match args.record {
        Some(_) => model.files().weights.container().sha256()?,
        None => String::new(),
    };
    let is_off = matches!(plan.options().drafts, Drafts::Off);
    let draft = drafts(args).name().filter(|_| !is_off);
    let (subject, graph) = (Subject::new(name, &plan, &device, digest), plan.graph().clone());
    let begun = Instant::now();
    let (mut engine, notes) = loading::engine_with_notes(plan, args.device.show.show())?;
    phases.end_load(&LoadTimes { whole: begun.elapsed(), phases: engine.runner().phases() });
    let first_prompt = FIRST_PROMPT.min(engine.limits().context - 1);
    phases.add("first token", first_token(&mut engine, first_prompt, SEED)?);
    let packing = packing_json(&model);
    Ok(LoadedSubject { subject, graph, engine, notes, phases, draft, packing })
}

/// Sets the context to the minimum that every case fits into, unless it is given.
fn with_context(device: &DeviceArgs, cases: &[BenchCase], max: u32) -> Result<DeviceArgs> {
    let need = cases.iter().map(BenchCase::positions).max().unwrap_or(1);
    let mut device = device.clone();
    let context = *device.context.get_or_insert(need);
    if need > context {
        return Err(Error::call(format!(
            "the rows need a context of {need} tokens, but --context is {context}: increase or omit it"
        )));
    }
    if need > max {
        return Err(Error::call(format!(
            "the rows need a context of {need} tokens, but the model supports {max}: time fewer tokens"
        )));
    }
    Ok(device)
}

/// The minimum work of a case.
fn work(graph: &Graph, engine: &Engine, case: BenchCase) -> MinimalWork {
    let densities = engine.runner().densities();
    let graph = (graph, &densities[..]);
    match case.generated {
        0 => MinimalWork::of_prefill(graph, case.start(), case.prompt, engine.limits().chunk),
        tokens => MinimalWork::of_decode(graph, case.start(), tokens, case.parallel),
    }
}

/// The model that is measured, and how it runs.
#[derive(Clone, Debug)]
struct Subject {
    file: String,
    /// The architecture, and the format of most of the weights.
    kind: String,
    bytes: u64,
    parameters: u64,
    threads: usize,
    chunk: u32,
    backend: &'static str,
    isa: String,
    kv: &'static str,
    activations: String,
    /// What the machine's model decided by default.
    machine_default: Option<String>,
    /// The numbers that matmuls multiply, for [`MachineLimits::bottleneck`].
    numbers: String,
    digest: String,
}

impl Subject {
    fn new(name: &str, plan: &Plan, device: &DeviceArgs, digest: String) -> Subject {
        let weights: Vec<_> = plan.graph().weights().map(|(_, value)| value).collect();
        let bytes = |value: &&girih_graph::Value| value.dtype.bytes(&value.shape).unwrap_or(0) as u64;
        let of = |dtype| weights.iter().filter(|value| value.dtype == dtype).map(bytes).sum::<u64>();
        let main_dtype = weights.iter().map(|value| value.dtype).max_by_key(|&dtype| of(dtype));
        let Numerics { activations, .. } = plan.numerics();
        let multiplied: Vec<&str> = activations.iter().map(|rounding| rounding.multiplied).collect();
        Subject {
            file: Path::new(name).file_name().map_or(name.into(), |file| file.to_string_lossy()).into_owned(),
            kind: format!(
                "{} {}",
                plan.model().files().facts.name,
                main_dtype.map_or("", |dtype| dtype.name())
            ),
            bytes: weights.iter().map(bytes).sum(),
            parameters: plan.model().parameters(),
            threads: device.thread_count(),
            chunk: plan.key().rows,
            backend: plan.backend().info().name,
            isa: plan.kernels(),
            kv: plan.kv().map_or("-", DType::name),
            numbers: multiplied.join("+"),
            activations: plan.numerics().name(),
            machine_default: plan.machine_default(),
            digest,
        }
    }
}

/// One measured row.
#[derive(Clone, Debug)]
struct BenchRow {
    subject: Subject,
    case: BenchCase,
    work: MinimalWork,
    limits: Option<MachineLimits>,
    /// What drafted, if anything did.
    draft: Option<String>,
    times: BenchTimes,
    /// What was read of the weights after the tokens, if --touch asks for it.
    touch: Option<TouchTimes>,
    /// CPUs that other processes used.
    foreign: Option<f64>,
    /// The start, up to the first token of a short prompt.
    phases: StartPhases,
    /// The start as a line, in the first row of a model.
    start: Option<String>,
    /// What loading chose for this machine by measurement.
    tuning: Option<String>,
    /// The error of packed weights, or null.
    packing: Value,
    peak_resident: Option<u64>,
}

impl BenchRow {
    /// The heading of the Markdown table.
    fn heading() -> String {
        let names = "| model | size | params | backend | threads | kv | act | test | t/s median (min–max) | of limit | other CPUs |";
        format!("{names}\n|{}", "---|".repeat(11))
    }

    /// The name that llama-bench uses, and what drafted.
    fn test(&self) -> String {
        let name = self.case.name();
        self.draft.as_ref().map_or(name.clone(), |draft| format!("{name}, draft {draft}"))
    }

    fn spread(&self) -> Spread {
        Spread::of(&self.times.rates())
    }

    /// The median of the seconds of all repetitions.
    fn seconds(&self) -> f64 {
        let seconds: Vec<f64> = self.times.samples.iter().map(Duration::as_secs_f64).collect();
        Spread::of(&seconds).median
    }

    fn bottleneck(&self) -> Option<Bottleneck> {
        Some(self.limits?.bottleneck(&self.work, self.seconds(), &self.subject.numbers, self.subject.bytes))
    }

    fn markdown(&self) -> String {
        let Subject { file, bytes: size, parameters, backend, isa, threads, kv, activations, .. } =
            &self.subject;
        let (spread, test) = (self.spread(), self.test());
        let limit = self.bottleneck().map_or_else(|| "–".to_owned(), Bottleneck::text);
        let foreign = self.foreign.map_or("–".to_owned(), |foreign| format!("{foreign:.2}"));
        format!(
            "| {file} | {} | {} | {backend} {isa} | {threads} | {kv} | {activations} | {test} | \
             {:.2} ({:.2}–{:.2}) | {limit} | {foreign} |",
            bytes(*size),
            parameter_count(*parameters),
            spread.median,
            spread.min,
            spread.max,
        )
    }

    /// All columns, with llama-bench's names where it has them.
    fn columns(&self) -> Vec<(&'static str, Value)> {
        let Subject { file, kind, bytes, parameters, threads, chunk, backend, isa, kv, .. } = &self.subject;
        let (spread, tokens) = (self.spread(), f64::from(self.times.tokens));
        let nanoseconds: Vec<f64> = self.times.samples.iter().map(|time| time.as_nanos() as f64).collect();
        let nanoseconds = Spread::of(&nanoseconds);
        let bottleneck = self.bottleneck();
        vec![
            ("build_commit", json!(build())),
            ("cpu_info", json!(machine::processor().0)),
            ("backends", json!(backend)),
            ("isa", json!(isa)),
            ("model_filename", json!(file)),
            ("model_type", json!(kind)),
            ("model_size", json!(bytes)),
            ("model_n_params", json!(parameters)),
            ("n_batch", json!(chunk)),
            ("n_threads", json!(threads)),
            ("type_k", json!(kv)),
            ("type_v", json!(kv)),
            ("activations", json!(self.subject.activations)),
            ("test", json!(self.test())),
            ("n_prompt", json!(self.case.prompt)),
            ("n_gen", json!(self.case.generated)),
            ("n_depth", json!(self.case.depth)),
            ("n_parallel", json!(self.case.parallel)),
            ("test_time", json!(unix_seconds())),
            ("avg_ns", json!(nanoseconds.mean.round())),
            ("stddev_ns", json!(nanoseconds.deviation.round())),
            ("avg_ts", json!(spread.mean)),
            ("stddev_ts", json!(spread.deviation)),
            ("median_ts", json!(spread.median)),
            ("min_ts", json!(spread.min)),
            ("max_ts", json!(spread.max)),
            ("repetitions", json!(self.times.samples.len())),
            ("bytes_per_token", json!(self.work.bytes() / tokens)),
            ("operations_per_token", json!(self.work.operations / tokens)),
            ("limit", json!(bottleneck.map(|bottleneck| bottleneck.limit))),
            ("fraction_of_limit", json!(bottleneck.and_then(|bottleneck| bottleneck.share.fraction()))),
            ("foreign_processors", json!(self.foreign)),
            ("first_token_seconds", json!(self.phases.total().as_secs_f64())),
            ("peak_resident", json!(self.peak_resident)),
            // Counted on the graph. A token reads the share `coverage` of the stored weights, with keys and values.
            ("bytes_touched", json!(self.work.bytes())),
            ("coverage", json!(self.work.bytes() / tokens / (*bytes).max(1) as f64)),
            ("effective_gb_s", json!(self.work.bytes() / self.seconds().max(1e-9) / 1e9)),
        ]
    }

    fn json(&self) -> Value {
        let mut row: Map<String, Value> =
            self.columns().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let rates = self.times.rates();
        let nanoseconds: Vec<u64> = self.times.samples.iter().map(|time| time.as_nanos() as u64).collect();
        row.insert("samples_ns".to_owned(), json!(nanoseconds));
        row.insert("samples_ts".to_owned(), json!(rates));
        row.insert("draft".to_owned(), json!(self.draft));
        row.insert("drafted_tokens".to_owned(), json!(self.times.drafted));
        row.insert("accepted_tokens".to_owned(), json!(self.times.accepted));
        row.insert("latency_ms".to_owned(), girih::tools::latency_json(&self.times.latencies));
        row.insert("touch".to_owned(), json!(self.touch.as_ref().map(touch_json)));
        row.insert("start".to_owned(), self.phases.json());
        row.insert("machine_default".to_owned(), json!(self.subject.machine_default));
        row.insert("tuning".to_owned(), json!(self.tuning));
        row.insert("packing".to_owned(), self.packing.clone());
        row.insert("limits".to_owned(), json!(self.limits.map(|limits| limits.json())));
        Value::Object(row)
    }

    /// The columns as text, for CSV. A record also has the commit and the digest
    /// of the model.
    fn fields(&self, recorded: bool) -> record::Fields {
        let text = |value: Value| match value {
            Value::String(text) => text,
            Value::Null => String::new(),
            value => value.to_string(),
        };
        let mut fields: record::Fields =
            self.columns().into_iter().map(|(name, value)| (name, text(value))).collect();
        if recorded {
            fields.insert(0, ("commit", commit().unwrap_or_default()));
            fields.push(("model_sha256", self.subject.digest.clone()));
        }
        fields
    }
}

/// The walks over the weights as fields; `gb_s` counts the bytes walked over.
fn touch_json(touch: &TouchTimes) -> Value {
    let TouchTimes { plan: TouchPlan { bytes, stride, in_window }, bytes: walked, time, checksum } = touch;
    let seconds = time.as_secs_f64();
    json!({
        "bytes_per_token": bytes,
        "stride": stride,
        "in_window": in_window,
        "bytes": walked,
        "seconds": seconds,
        "gb_s": *walked as f64 / seconds.max(1e-9) / 1e9,
        "checksum": checksum,
    })
}

/// Formats a number of parameters: `1.24 B`.
fn parameter_count(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 { format!("{:.2} B", count / 1e9) } else { format!("{:.2} M", count / 1e6) }
}

fn print_csv(rows: &[BenchRow]) -> Result<()> {
    for (index, row) in rows.iter().enumerate() {
        let fields = row.fields(false);
        if index == 0 {
            print_line!("{}", record::header(&fields))?;
        }
        print_line!("{}", record::row(&fields))?;
    }
    Ok(())
}

fn build() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The commit of the repository in the current folder, marked if files differ
/// from it.
fn commit() -> Option<String> {
    let output =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The name of this machine's record: its processor and the number of cores.
fn machine_name() -> String {
    let name = machine::processor().0.unwrap_or_else(|| "unknown".to_owned()).to_lowercase();
    let words: Vec<&str> =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    format!("{}-x{}", words.join("-"), girih::default_threads())
}
