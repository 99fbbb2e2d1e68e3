//! `girih doctor`: this machine's capabilities and bottlenecks, and whether girih
//! works on it.

use std::time::{Duration, Instant};

use girih::tools::FreeMemory;
use girih::{
    BUILT_IN, BUILT_IN_PROMPT, BackendChoice, BackendDevice, BackendInfo, Conversation, Model, Request,
    RunOptions, Sampling,
};
use girih_cpu::kernels::packed::Layout;
use girih_cpu::prefetch_distance::{self, ReadRate};
use girih_cpu::topology::Topology;
use girih_hub::HubEnv;
use girih_words::template::{RenderRequest, SandboxReport, SpecialTokens};
use serde_json::{Map, Value, json};

use super::outcome::Outcome;
use crate::advice::MachineState;
use crate::backend_args::BackendArgs;
use crate::error::{Error, Result};
use crate::limits::{self, MeasuredLimit};
use crate::loading::{environment, open_options};
use crate::machine;
use crate::output::{bytes, counted, print_json};
use crate::packed_weights::PackedStatus;
use crate::progress::{Show, Unit};
use crate::sandbox;

/// The beginning of the greedy continuation of the built-in prompt
/// (`ids_f32` of the model's golden file).
const STORY: &str = " She loved to play outside in the park.";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of threads to measure and to check [default: the cores this process may use].
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    // The built-in model runs on it.
    #[command(flatten)]
    backend: BackendArgs,
}

/// The results of all checks.
struct Findings {
    /// The faults of the environment and the configuration file.
    settings: Vec<String>,
    state: MachineState,
    processor: Option<String>,
    features: Vec<String>,
    memory: Option<FreeMemory>,
    limits: Result<Vec<MeasuredLimit>>,
    devices: Vec<Devices>,
    /// The rate of reading weights with each prefetch distance.
    prefetch_distances: Result<Vec<ReadRate>>,
    environment: HubEnv,
    /// The bytes of the downloaded models.
    cached: std::result::Result<u64, girih::Error>,
    packed: Option<PackedStatus>,
    story: Result<Story>,
    templates: Result<()>,
    /// The sandbox of the process that renders chat templates.
    sandbox: Result<SandboxReport>,
}

/// How the built-in model ran.
struct Story {
    /// The backend with its device.
    backend: String,
    /// From the model's files to a program that runs.
    load: Duration,
    /// A token of the reply.
    token: Duration,
}

/// The devices of a backend, or why they are unknown.
struct Devices {
    backend: &'static str,
    found: std::result::Result<Vec<BackendDevice>, girih::Error>,
}

/// Runs the checks. `settings` are the faults of the environment and the configuration file.
pub fn run(args: &Args, settings: Vec<String>) -> Result<Outcome> {
    let threads = args.threads.map_or_else(girih_cpu::default_threads, usize::from);
    let findings = Findings::now(threads, settings, &args.backend)?;
    if args.json {
        print_json(&findings.json())?
    } else {
        findings.print()?
    }
    let healthy = findings.story.is_ok() && findings.templates.is_ok() && findings.sandbox.is_ok();
    Ok(if healthy { Outcome::Done } else { Outcome::Failed })
}

impl Devices {
    /// Finds the devices that a backend has with these options.
    fn of(info: &'static BackendInfo, options: &BackendArgs) -> Devices {
        let choice = girih::backend(info.name).and_then(|choice| options.added_to(choice));
        let found = choice.and_then(|choice| (info.devices)(choice.settings()));
        Devices { backend: info.name, found }
    }

    /// What chooses a device.
    fn choice(&self, device: &BackendDevice) -> String {
        device.name.iter().fold(self.backend.to_owned(), |backend, name| format!("{backend}:{name}"))
    }

    fn print(&self) -> Result<()> {
        let devices = match &self.found {
            Ok(devices) => devices,
            Err(error) => {
                return print_line!("backend {}: its devices cannot be listed: {error}", self.backend);
            }
        };
        for device in devices {
            let settings: String =
                device.settings.iter().map(|(name, value)| format!(", {name} {value}")).collect();
            print_line!("backend {}: {}{settings}", self.choice(device), device.about)?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let device = |device: &BackendDevice| {
            let settings: Map<String, Value> =
                device.settings.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            json!({"name": self.choice(device), "about": device.about, "settings": settings})
        };
        match &self.found {
            Ok(devices) => {
                json!({"name": self.backend, "devices": devices.iter().map(device).collect::<Vec<_>>()})
            }
            Err(error) => json!({"name": self.backend, "error": error.to_string()}),
        }
    }
}

impl Findings {
    fn now(threads: usize, settings: Vec<String>, backend: &BackendArgs) -> Result<Findings> {
        // First, as the other checks would count as load.
        let state = MachineState::now(threads);
        let (processor, features) = machine::processor();
        let environment = environment()?;
        let cached =
            girih_hub::list(&environment).map(|models| models.iter().map(|model| model.bytes).sum::<u64>());
        Ok(Findings {
            settings,
            state,
            processor,
            features,
            memory: FreeMemory::now(),
            limits: limits::table(threads, &Show::Notes.bar("measuring", 0, Unit::Things("limits"))),
            devices: girih::backends().iter().map(|info| Devices::of(info, backend)).collect(),
            prefetch_distances: prefetch_distance::measure(
                &girih_cpu::kernels::tables()[0],
                threads,
                Layout::Q4_0,
            )
            .map_err(Error::from),
            environment,
            cached,
            packed: PackedStatus::now()?,
            story: backend.choice().and_then(|choice| Story::check(choice.with_threads(Some(threads)))),
            templates: check_templates(),
            sandbox: sandbox::probe(),
        })
    }

    fn advice(&self) -> Vec<String> {
        self.state.advice(self.limits.as_deref().unwrap_or_default())
    }

    fn json(&self) -> Value {
        let (topology, trial) = (&girih_cpu::HostMachine::here().topology, self.state.huge_pages_trial);
        let memory_rate = self.limits.as_ref().ok().and_then(|rows| rows.first()).map(|row| row.all);
        json!({
            "processor": self.processor,
            "features": self.features,
            "kernels": self.state.kernels,
            "threads": self.state.threads,
            "memory": {
                "total": self.memory.map(|memory| memory.total),
                "available": self.memory.map(|memory| memory.available),
                "cgroup_room": self.memory.and_then(|memory| memory.cgroup),
            },
            "topology": {
                "sockets": topology.sockets(),
                "nodes": topology.nodes(),
                "memory_nodes": girih_cpu::HostMachine::here().memory_nodes,
                "cores": topology.cores(),
                "processors": topology.processors().len(),
                "quota": self.state.quota,
            },
            "huge_pages": self.state.huge_pages,
            "huge_pages_trial": trial.map(|(huge, touched)| json!({"huge": huge, "touched": touched})),
            "load": self.state.load,
            "foreign_processors": self.state.foreign,
            "read_bandwidth_bytes_per_second": memory_rate,
            "backends": self.devices.iter().map(Devices::json).collect::<Vec<_>>(),
            "limits": self.limits.as_ref().ok(),
            "read_ahead": self.prefetch_distances.as_ref().ok().map(|rates| rates.iter().map(rate_json).collect::<Vec<_>>()),
            "cache": {"path": self.environment.cache, "bytes": self.cached.as_ref().ok()},
            "packed_weights": self.packed.as_ref().map(PackedStatus::json),
            "built_in_model": self.story.as_ref().map_or_else(failure, |_| "works".to_owned()),
            "built_in_model_run": self.story.as_ref().ok().map(Story::json),
            "chat_templates": outcome(&self.templates),
            "template_worker": sandbox_json(&self.sandbox),
            "settings": self.settings,
            "advice": self.advice(),
        })
    }

    fn print(&self) -> Result<()> {
        let MachineState { kernels, threads, huge_pages, huge_pages_trial, .. } = &self.state;
        print_line!("processor: {}", self.processor.as_deref().unwrap_or("unknown"))?;
        print_line!("features: {}", self.features.join(" "))?;
        print_line!("kernels: {kernels}; threads: {threads}")?;
        print_line!("topology: {}", shape(&girih_cpu::HostMachine::here().topology))?;
        if let Some(memory) = self.memory {
            print_line!(
                "memory: {} available; {}",
                bytes(memory.available),
                memory.cgroup.map_or("no cgroup limit".to_owned(), |room| format!(
                    "the cgroup limit leaves {}",
                    bytes(room)
                ))
            )?;
        }
        print_line!(
            "huge pages: {}; {}",
            huge_pages.as_deref().unwrap_or("unknown"),
            huge_pages_trial.map_or("not tested".to_owned(), |(huge, touched)| {
                format!("a test got {} of {}", bytes(huge), bytes(touched))
            })
        )?;
        if let Some(foreign) = self.state.foreign {
            print_line!("other processes: use {foreign:.2} CPUs")?;
        }
        self.devices.iter().try_for_each(Devices::print)?;
        print_limits(&self.limits, *threads)?;
        print_prefetch_distances(&self.prefetch_distances)?;
        print_cache(&self.environment, &self.cached)?;
        let packed = self.packed.iter().flat_map(|packed| packed.lines());
        packed.into_iter().try_for_each(|line| print_line!("{line}"))?;
        print_line!("built-in model: {}", self.story.as_ref().map_or_else(failure, Story::sentence))?;
        print_line!("chat templates: {}", outcome(&self.templates))?;
        match &self.sandbox {
            Ok(report) => print_line!("template worker: {}", sandbox::sentence(report))?,
            Err(error) => print_line!("template worker: {}", failure(error))?,
        }
        self.settings.iter().try_for_each(|line| print_line!("setting: {line}"))?;
        self.advice().iter().try_for_each(|line| print_line!("advice: {line}"))
    }
}

fn print_limits(limits: &Result<Vec<MeasuredLimit>>, threads: usize) -> Result<()> {
    let rows = match limits {
        Ok(rows) => rows,
        Err(_) => return print_line!("limits: not measured, not enough memory"),
    };
    print_line!("limits, billions per second with 1 thread and with {threads}:")?;
    for MeasuredLimit { what, unit, one, all } in rows {
        print_line!("  {what:<36} {:>8.1} {:>8.1}  {unit}", one / 1e9, all / 1e9)?;
    }
    Ok(())
}

/// Prints the prefetch distance that was chosen for one row of activations and
/// for several, with the rate of each in GB/s of Q4_0 weights.
fn print_prefetch_distances(rates: &Result<Vec<ReadRate>>) -> Result<()> {
    let Ok(rates) = rates else { return print_line!("prefetch: not measured, not enough memory") };
    for of in rates.chunk_by(|a, b| a.columns == b.columns) {
        let figures: Vec<String> =
            of.iter().map(|rate| format!("{} {:.1}", rate.distance.name(), rate.bytes / 1e9)).collect();
        let chosen = of.iter().find(|rate| rate.chosen).map_or_else(String::new, |rate| rate.distance.name());
        let rows = if of[0].columns == 1 { "one row" } else { "several rows" };
        print_line!("prefetch for {rows} per step: {chosen} (GB/s: {})", figures.join(", "))?;
    }
    Ok(())
}

fn rate_json(rate: &ReadRate) -> Value {
    json!({
        "rows": rate.columns,
        "far_bytes": rate.distance.far,
        "near_bytes": rate.distance.near,
        "bytes_per_second": rate.bytes,
        "chosen": rate.chosen,
    })
}

fn print_cache(environment: &HubEnv, cached: &std::result::Result<u64, girih::Error>) -> Result<()> {
    let path = environment.cache.display();
    match cached {
        Ok(size) => print_line!("cache: {} in {path}", bytes(*size)),
        Err(error) => print_line!("cache: {path} cannot be read: {error}"),
    }
}

fn outcome(check: &Result<()>) -> String {
    match check {
        Ok(()) => "works".to_owned(),
        Err(error) => failure(error),
    }
}

fn failure(error: &Error) -> String {
    match error {
        Error::Call(sentence) | Error::Work(sentence) => format!("fails: {sentence}"),
        Error::Usage(error) => format!("fails: {error}"),
        Error::Closed => "fails: standard output is closed".to_owned(),
    }
}

/// The sandbox's report, or why there is none.
fn sandbox_json(report: &Result<SandboxReport>) -> Value {
    match report {
        Ok(report) => sandbox::value(report),
        Err(error) => json!({"error": failure(error)}),
    }
}

/// The numbers of the machine's parts, and the cgroup's limit.
fn shape(topology: &Topology) -> String {
    let machine = girih_cpu::HostMachine::here();
    let nodes: Vec<String> = machine.memory_nodes.iter().map(usize::to_string).collect();
    let granted = machine.quota.map_or(String::new(), |quota| format!("; the cgroup allows {quota:.2} CPUs"));
    format!(
        "{}, {} (memory on node {}), {}, {}{granted}",
        counted(topology.sockets(), "socket"),
        counted(topology.nodes(), "NUMA node"),
        nodes.join(", "),
        counted(topology.cores(), "core"),
        counted(topology.processors().len(), "CPU"),
    )
}

/// Tokens of the built-in model's reply.
const STORY_TOKENS: u32 = 24;

impl Story {
    /// Runs the built-in model, and compares its reply with the known text.
    fn check(backend: BackendChoice) -> Result<Story> {
        let name = backend.to_string();
        let begun = Instant::now();
        let options = RunOptions { backend, ..RunOptions::default() };
        let session = Model::open(BUILT_IN)?.plan(options)?.start(|_| ())?;
        session.wait_until_ready()?;
        let load = begun.elapsed();
        let begun = Instant::now();
        let request = Request::new(BUILT_IN_PROMPT).sampling(Sampling::greedy()).max_tokens(STORY_TOKENS);
        let text = session.generate(request)?.text()?;
        let token = begun.elapsed() / STORY_TOKENS;
        if text.starts_with(STORY) {
            return Ok(Story { backend: name, load, token });
        }
        Err(Error::work(format!("the built-in model on {name} continues with {text:?} instead of {STORY:?}")))
    }

    fn sentence(&self) -> String {
        let Story { backend, load, token } = self;
        let (load, token) = (load.as_secs_f64(), token.as_secs_f64() * 1e3);
        format!("works on {backend}: {load:.2} s to load, {token:.2} ms a token")
    }

    fn json(&self) -> Value {
        let Story { backend, load, token } = self;
        json!({
            "backend": backend,
            "load_seconds": load.as_secs_f64(),
            "seconds_per_token": token.as_secs_f64(),
        })
    }
}

/// Renders a small template in the worker process.
fn check_templates() -> Result<()> {
    let spans = open_options()?.renderer().render(&RenderRequest {
        template: "{{ messages[0].content | trim }}",
        variables: &Map::new(),
        special_tokens: &SpecialTokens::new(&[]),
        conversation: &Conversation {
            messages: vec![json!({"role": "user", "content": " girih "})],
            ..Conversation::default()
        },
        has_typed_texts: false,
        unix_seconds: 0,
    })?;
    let text: String = spans.iter().map(|span| span.text.as_str()).collect();
    if text == "girih" {
        Ok(())
    } else {
        Err(Error::work(format!("a template gave {text:?} instead of \"girih\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_reason_of_a_failed_probe() {
        let failed = Err(Error::work("the worker of chat templates reports nothing".to_owned()));
        let want = json!({"error": "fails: the worker of chat templates reports nothing"});
        assert_eq!(sandbox_json(&failed), want);
    }
}
