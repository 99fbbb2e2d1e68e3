//! A reply has the same bits whatever other requests run in its batch, and with drafts as
//! without: on real graphs, with windows, on the backends.

use girih_cpu::{Cpu, CpuOptions, kernels};
use girih_engine::{
    DraftQuery, Drafter, Engine, EngineLimits, EventKind, Hooks, Result, Sampling, TokenRequest, cache,
};
use girih_graph::interpret::Interpreter;
use girih_graph::{Graph, Key, OutputKind, Runner, load};
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::{DType, Random};

use crate::program::fixture;

const CONTEXT: u32 = 256;

/// What runs the model.
#[derive(Clone, Copy, Debug)]
enum Device {
    Interpreter,
    /// Kernels by their index in the list, and the number of threads.
    Cpu(usize, usize),
}

/// How the engine is set up.
#[derive(Clone, Copy, Debug)]
struct Setup {
    sequences: u32,
    chunk: u32,
    /// Blocks of the layers with full attention: enough for one sequence, or for
    /// all.
    full: u32,
    /// Steps between two requests.
    gap: usize,
    /// Output rows for drafts, beyond one per sequence.
    drafts: u32,
}

/// One request after another, each in steps of its own.
const ALONE: Setup = Setup { sequences: 1, chunk: 256, full: 4, gap: 0, drafts: 0 };

fn open(folder: &str) -> ModelFiles {
    ModelFiles::open(&fixture(folder), Vec::new(), &ModelLimits::DEFAULT).expect("fixtures are models")
}

fn engine(model: &ModelFiles, device: Device, setup: Setup) -> Engine {
    let Setup { sequences, chunk, full, drafts, .. } = setup;
    let output_rows = (sequences + drafts).min(chunk);
    let key = Key { rows: chunk, sequences, context: CONTEXT, output_rows, output: OutputKind::Logits };
    let build = |key| -> Result<Graph> { model.graph(key, DType::F16) };
    let groups = build(key).expect("a graph").groups;
    let blocks: Vec<u32> = groups.iter().map(|group| cache::blocks(group.kind, &key).min(full)).collect();
    let runner: Result<Box<dyn Runner>> = match device {
        Device::Interpreter => load(Interpreter, &model.weights, key, &blocks, build),
        Device::Cpu(table, threads) => {
            let cpu =
                Cpu::with_table(CpuOptions { threads, ..CpuOptions::default() }, kernels::tables()[table])
                    .expect("threads");
            load(cpu, &model.weights, key, &blocks, build)
        }
    };
    let limits = EngineLimits { sequences, ..EngineLimits::new(CONTEXT, chunk) };
    Engine::new(runner.expect("it loads"), limits).expect("the limits fit the programs")
}

/// Requests of several lengths, each with a seed; some share a prefix.
fn requests(vocabulary: u32) -> Vec<TokenRequest> {
    let text = |start: u32, count: u32| (start..start + count).map(move |i| i * i * 7 % 499 % vocabulary);
    let shapes = [(1, 0, 90), (2, 0, 3), (1, 90, 20), (3, 0, 140), (1, 64, 1), (4, 0, 30), (1, 90, 0)];
    let request = |(number, (story, shared, own)): (u32, (u32, u32, u32))| TokenRequest {
        tokens: text(story * 100, shared).chain(text(number * 50, own)).collect(),
        sampling: Sampling { temperature: 0.9, seed: number.into(), ..Sampling::default() },
        max_new: Some([160, 130, 20, 25, 30, 35, 40][number as usize]),
        logprobs: Some(20),
        ..TokenRequest::default()
    };
    (0..).zip(shapes).map(request).collect()
}

/// A token of a reply and the log-probabilities around it, as bits.
type Said = (u32, Vec<(u32, u64)>);

/// What was counted over several requests.
#[derive(Debug, Default)]
struct Counts {
    drafted: u32,
    accepted: u32,
}

/// Runs the requests in order, each with the hooks for its index. Returns the reply to
/// each, and counts.
fn replies(
    engine: &mut Engine,
    requests: &[TokenRequest],
    gap: usize,
    hooks: impl Fn(usize) -> Hooks,
) -> (Vec<Vec<Said>>, Counts) {
    let mut replies = vec![Vec::new(); requests.len()];
    let mut waiting = requests.iter().cloned().enumerate();
    let mut counts = Counts::default();
    for step in 0.. {
        if step % gap.max(1) == 0 || engine.is_idle() {
            let count = if gap == 0 { requests.len() } else { 1 };
            waiting.by_ref().take(count).for_each(|(index, request)| {
                engine.submit(request, hooks(index)).expect("it fits");
            });
        }
        if engine.is_idle() {
            break;
        }
        for event in engine.step() {
            match &event.kind {
                EventKind::Token { id, logprobs, .. } => {
                    let top = &logprobs.as_ref().expect("they were asked for").top;
                    let bits = top.iter().map(|entry| (entry.id, entry.value.to_bits())).collect();
                    replies[event.request.0 as usize].push((*id, bits));
                }
                EventKind::Finished { stats, .. } => {
                    counts.drafted += stats.drafted;
                    counts.accepted += stats.accepted;
                }
                EventKind::Failed(error) => panic!("{error}"),
                EventKind::PromptToken { .. } | EventKind::Prefilled(_) | EventKind::Logits(_) => {}
            }
        }
    }
    (replies, counts)
}

fn same_in_every_batch(folder: &str, device: Device) {
    let model = open(folder);
    let requests = requests(model.facts.sizes.vocabulary as u32);
    let (alone, _) = replies(&mut engine(&model, device, ALONE), &requests, 0, |_| Hooks::default());
    assert!(alone.iter().zip(&requests).all(|(reply, request)| Some(reply.len() as u32) == request.max_new));
    let setups = [
        Setup { sequences: 8, chunk: 512, full: 32, gap: 0, drafts: 0 },
        Setup { sequences: 8, chunk: 8, full: 32, gap: 0, drafts: 0 },
        Setup { sequences: 3, chunk: 16, full: 12, gap: 3, drafts: 0 },
        Setup { sequences: 7, chunk: 64, full: 5, gap: 1, drafts: 0 },
        Setup { sequences: 1, chunk: 1, full: 4, gap: 0, drafts: 0 },
    ];
    for setup in setups {
        let (together, _) =
            replies(&mut engine(&model, device, setup), &requests, setup.gap, |_| Hooks::default());
        for (number, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert!(together == alone, "{folder} on {device:?}: request {number} differs in {setup:?}");
        }
    }
}

#[test]
fn replies_with_windows_do_not_depend_on_the_batch_on_the_interpreter() {
    same_in_every_batch("gemma3_text", Device::Interpreter);
}

#[test]
fn replies_with_windows_do_not_depend_on_the_batch_on_the_cpu() {
    for table in [0, kernels::tables().len() - 1] {
        same_in_every_batch("gemma3_text", Device::Cpu(table, 1));
    }
}

#[test]
fn replies_with_full_attention_do_not_depend_on_the_batch_on_the_cpu() {
    same_in_every_batch("llama32_tied", Device::Cpu(0, 2));
}

#[test]
fn replies_with_carried_values_do_not_depend_on_the_batch() {
    let last = kernels::tables().len() - 1;
    same_in_every_batch("lfm2", Device::Interpreter);
    same_in_every_batch("lfm2", Device::Cpu(0, 1));
    same_in_every_batch("qwen3_5", Device::Cpu(0, 2));
    same_in_every_batch("qwen3_5", Device::Cpu(last, 1));
}

/// Drafts the reply that it was told. Every `wrong`th token is another one.
struct Told {
    prompt: usize,
    reply: Vec<u32>,
    wrong: usize,
    random: Random,
}

impl Drafter for Told {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        let rest = self.reply.get(tokens.len() - self.prompt..).unwrap_or_default();
        let count = rest.len().min(1 + self.random.below(max as usize));
        let told = rest[..count].iter();
        told.map(|id| if self.random.once_in(self.wrong) { (id + 1) % 300 } else { *id }).collect()
    }
}

#[test]
fn drafts_do_not_change_the_bits_of_replies() {
    for (folder, device) in [
        ("gemma3_text", Device::Interpreter),
        ("gemma3_text", Device::Cpu(0, 1)),
        ("gemma3_text", Device::Cpu(kernels::tables().len() - 1, 2)),
        ("llama32_tied", Device::Cpu(kernels::tables().len() - 1, 1)),
        ("qwen3", Device::Cpu(0, 1)),
        ("lfm2", Device::Interpreter),
        ("lfm2", Device::Cpu(0, 2)),
        ("qwen3_5", Device::Cpu(kernels::tables().len() - 1, 1)),
    ] {
        let model = open(folder);
        let mut requests = requests(model.facts.sizes.vocabulary as u32);
        requests.iter_mut().step_by(2).for_each(|request| request.sampling = Sampling::greedy());
        let (alone, _) = replies(&mut engine(&model, device, ALONE), &requests, 0, |_| Hooks::default());
        for (wrong, setup) in [
            (1_000_000, Setup { sequences: 1, chunk: 16, full: 4, gap: 0, drafts: 8 }),
            (3, Setup { sequences: 3, chunk: 24, full: 12, gap: 2, drafts: 20 }),
            (1, Setup { sequences: 7, chunk: 64, full: 5, gap: 1, drafts: 30 }),
            (4, Setup { sequences: 8, chunk: 128, full: 32, gap: 0, drafts: 64 }),
        ] {
            let hooks = |index: usize| {
                let reply = alone[index].iter().map(|(id, _)| *id).collect();
                let (prompt, random) = (requests[index].tokens.len(), Random(index as u64));
                Hooks { drafter: Some(Box::new(Told { prompt, reply, wrong, random })), ..Hooks::default() }
            };
            let (drafted, counts) = replies(&mut engine(&model, device, setup), &requests, setup.gap, hooks);
            assert!(drafted == alone, "{folder} on {device:?}: drafts change a reply in {setup:?}");
            assert!(counts.drafted > 40, "{counts:?} in {setup:?}");
            match wrong {
                1 => assert_eq!(counts.accepted, 0),
                1_000_000 => assert_eq!(counts.accepted, counts.drafted),
                _ => assert!(counts.accepted > 0 && counts.accepted < counts.drafted, "{counts:?}"),
            }
        }
    }
}
