//! `girih doctor`: what this machine is, what holds girih back on it, and
//! whether girih works on it at all.

use std::hint::black_box;
use std::time::Instant;

use girih_cpu::topology::Topology;
use girih_model::hub::{self, HubEnv};
use girih_model::words::template::{
    Conversation, RenderLimits, RenderRequest, Renderer, SpecialTokens, WORKER_COMMAND,
};
use girih_model::words::{Ends, Origin};
use serde_json::{Map, json};

use super::{Outcome, bytes, print_json};
use crate::args::{ArchArgs, Backend, DeviceArgs, KvType, PlacementArgs};
use crate::builtin;
use crate::error::{Error, Result};
use crate::generate::generate;
use crate::loading::{self, Place, environment};
use crate::machine::{self, Memory};
use crate::packed_cache::Holdings;

/// How the greedy continuation of the built-in prompt begins
/// (`ids_f32` of the model's golden file).
const STORY: &str = " She loved to play outside in the park.";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let (processor, features) = machine::processor();
    let threads = girih_cpu::default_threads();
    let memory = Memory::now();
    let bandwidth = read_bandwidth(threads);
    let environment = environment()?;
    let packed = Holdings::now();
    let cached = hub::list(&environment).map(|models| models.iter().map(|model| model.bytes).sum::<u64>());
    let story = check_story();
    let templates = check_templates();
    let topology = &girih_cpu::Machine::here().topology;
    let trial = girih_cpu::huge_pages();
    let advice = advice(threads, trial);
    let healthy = story.is_ok() && templates.is_ok();
    if args.json {
        print_json(&json!({
            "processor": processor,
            "features": features,
            "kernels": kernels(),
            "threads": threads,
            "memory": {
                "total": machine::meminfo("MemTotal"),
                "available": memory.map(|memory| memory.available),
                "cgroup_room": memory.and_then(|memory| memory.cgroup),
            },
            "topology": {
                "sockets": topology.sockets(),
                "nodes": topology.nodes(),
                "cores": topology.cores(),
                "processors": topology.processors().len(),
                "quota": girih_cpu::Machine::here().quota,
            },
            "huge_pages": machine::huge_pages(),
            "huge_pages_trial": trial.map(|(huge, touched)| json!({"huge": huge, "touched": touched})),
            "load": machine::load(),
            "read_bandwidth_bytes_per_second": bandwidth,
            "cache": {"path": environment.cache, "bytes": cached.as_ref().ok()},
            "packed_weights": packed.as_ref().map(Holdings::json),
            "built_in_model": outcome(&story),
            "chat_templates": outcome(&templates),
            "advice": advice,
        }))?;
        return Ok(if healthy { Outcome::Done } else { Outcome::Failed });
    }
    print_line!("processor: {}", processor.as_deref().unwrap_or("unknown"))?;
    print_line!("features: {}", features.join(" "))?;
    print_line!("kernels: {}; threads: {threads}", kernels())?;
    print_line!("topology: {}", shape(topology))?;
    if let Some(memory) = memory {
        print_line!(
            "memory: {} available; the control group leaves {}",
            bytes(memory.available),
            room(&memory)
        )?;
    }
    print_line!(
        "huge pages: {}; {}",
        machine::huge_pages().as_deref().unwrap_or("unknown"),
        trial.map_or("a trial cannot be told".to_owned(), |(huge, touched)| {
            format!("a trial got {} of {}", bytes(huge), bytes(touched))
        })
    )?;
    print_line!("read bandwidth: {:.1} GB/s with {threads} threads", bandwidth / 1e9)?;
    print_cache(&environment, &cached)?;
    packed.iter().flat_map(|packed| packed.lines(bytes)).try_for_each(|line| print_line!("{line}"))?;
    print_line!("built-in model: {}", outcome(&story))?;
    print_line!("chat templates: {}", outcome(&templates))?;
    for line in &advice {
        print_line!("advice: {line}")?;
    }
    Ok(if healthy { Outcome::Done } else { Outcome::Failed })
}

fn room(memory: &Memory) -> String {
    memory.cgroup.map_or("all of it".to_owned(), bytes)
}

fn print_cache(environment: &HubEnv, cached: &std::result::Result<u64, girih_model::Error>) -> Result<()> {
    let path = environment.cache.display();
    match cached {
        Ok(size) => print_line!("cache: {} in {path}", bytes(*size)),
        Err(error) => print_line!("cache: {path} cannot be read: {error}"),
    }
}

fn outcome(check: &Result<()>) -> String {
    match check {
        Ok(()) => "works".to_owned(),
        Err(Error::Call(sentence) | Error::Work(sentence)) => format!("fails: {sentence}"),
        Err(Error::Usage(error)) => format!("fails: {error}"),
        Err(Error::Closed) => "fails: standard output is closed".to_owned(),
    }
}

/// The kernels that commands use unless told otherwise.
fn kernels() -> &'static str {
    girih_cpu::kernels::tables()[0].name
}

/// The machine's parts, and what of them this process is granted.
fn shape(topology: &Topology) -> String {
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let quota = girih_cpu::Machine::here().quota;
    let granted = quota.map_or(String::new(), |quota| format!("; the control group grants {quota:.2}"));
    format!(
        "{}, {}, {}, {}{granted}",
        plural(topology.sockets(), "socket"),
        plural(topology.nodes(), "memory node"),
        plural(topology.cores(), "core"),
        plural(topology.processors().len(), "processor"),
    )
}

/// What makes girih slower here than it could be. `trial` is of huge pages.
fn advice(threads: usize, trial: Option<(u64, u64)>) -> Vec<String> {
    let mut lines = Vec::new();
    let (have, best) = (kernels(), girih_cpu::kernels::names()[0]);
    if have != best {
        lines.push(format!(
            "the kernels are '{have}': this processor lacks instructions that the faster '{best}' are made of"
        ));
    }
    if let Some(load) = machine::load().filter(|&load| load > 0.5 * threads as f64) {
        lines.push(format!(
            "{load:.1} other processes wanted to run during the last minute; they slow every step down"
        ));
    }
    if machine::huge_pages().as_deref() == Some("never") {
        lines.push(
            "transparent huge pages are off; 'madvise' takes up to a third off the time of reading weights"
                .to_owned(),
        );
    }
    if let Some((0, _)) = trial.filter(|_| machine::huge_pages().as_deref() != Some("never")) {
        lines.push("memory that asks for huge pages gets none; it may be fragmented".to_owned());
    }
    lines
}

/// Bytes per second that all threads together read from memory, at best of
/// three passes over a buffer larger than any cache.
fn read_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 128 << 20;
    let words = BYTES / size_of::<u64>();
    let buffers: Vec<Vec<u64>> = (0..threads).map(|seed| vec![seed as u64 | 1; words / threads]).collect();
    let pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(|| black_box(buffer.iter().fold(0u64, |sum, word| sum.wrapping_add(*word))));
            }
        });
        BYTES as f64 / start.elapsed().as_secs_f64()
    };
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}

/// Generates with the built-in model and compares with its known text.
fn check_story() -> Result<()> {
    let place = Place::Builtin;
    let (model, words) = (place.model(&ArchArgs { arch: Vec::new() })?, place.words()?);
    let device = DeviceArgs {
        backend: Backend::Cpu,
        threads: None,
        placement: PlacementArgs::default(),
        isa: None,
        act_precision: None,
        kv: KvType::F32,
        context: None,
        chunk: 512,
        quiet: true,
    };
    let mut engine = loading::engine(&model, &device, 1)?;
    let tokens = words.tokenizer.encode(builtin::STORIES_PROMPT, Origin::User, Ends::Add)?;
    let request = girih_engine::Request {
        tokens,
        sampling: girih_engine::Sampling::greedy(),
        max_new: Some(24),
        ..Default::default()
    };
    let reply = generate(&mut engine, request, &words, || false, |_| Ok(()))?;
    if reply.text.starts_with(STORY) {
        return Ok(());
    }
    Err(Error::work(format!("the built-in model continues with {:?} instead of {STORY:?}", reply.text)))
}

/// Renders a small template in the worker process.
fn check_templates() -> Result<()> {
    let mut renderer =
        Renderer::new(std::env::current_exe()?, vec![WORKER_COMMAND.into()], RenderLimits::default());
    let spans = renderer.render(&RenderRequest {
        template: "{{ messages[0].content | trim }}",
        variables: &Map::new(),
        special_tokens: &SpecialTokens::new(&[]),
        conversation: &Conversation {
            messages: vec![json!({"role": "user", "content": " girih "})],
            ..Conversation::default()
        },
        unix_seconds: 0,
    })?;
    let text: String = spans.iter().map(|span| span.text.as_str()).collect();
    if text == "girih" {
        Ok(())
    } else {
        Err(Error::work(format!("a template gave {text:?} instead of \"girih\"")))
    }
}
