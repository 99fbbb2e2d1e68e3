//! The single list of backends: from a name to a loaded model.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::ArgMatches;
use girih_cpu::kernels::{self, packed};
use girih_cpu::{Cpu, Precision};
use girih_engine::cache;
use girih_graph::backend::MemoryPlan;
use girih_graph::interpret::Interpreter;
use girih_graph::{Backend as _, Graph, Group, Key, Runner};
use girih_model::Model;
use girih_npu::pass::HostFallback;
use girih_tensor::DType;

use crate::args::{ActPrecision, AffinityArg, Backend, DeviceArgs, PackedCache};
use crate::error::{Error, Result};
use crate::machine;
use crate::packed_cache::{Folder, Store, Wishes};
use crate::progress::{Counted, Show, Unit};
use crate::settings::is_on_command_line;

/// How a model is going to run: its largest graph and its state.
pub struct Layout<'a> {
    model: &'a Model,
    device: &'a DeviceArgs,
    /// The largest step.
    pub key: Key,
    /// The graph of the largest step.
    pub graph: Graph,
    blocks: Vec<u32>,
}

impl<'a> Layout<'a> {
    /// The layout of `model` for steps up to `key`.
    ///
    /// # Errors
    /// When the model's weights do not have the shapes that its facts say.
    pub fn new(model: &'a Model, device: &'a DeviceArgs, key: Key) -> Result<Layout<'a>> {
        let graph = model.graph(key, device.kv.dtype())?;
        let blocks = graph.groups.iter().map(|group| cache::blocks(group.span, &key)).collect();
        Ok(Layout { model, device, key, graph, blocks })
    }

    /// The groups of state, and how many blocks each gets.
    pub fn state(&self) -> impl Iterator<Item = (&Group, u32)> {
        self.graph.groups.iter().zip(self.blocks.iter().copied())
    }

    /// Bytes that the loaded model will take.
    ///
    /// # Errors
    /// When the backend cannot be made.
    pub fn plan(&self) -> Result<MemoryPlan> {
        Ok(match &self.device.backend {
            Backend::Cpu => self.cpu()?.plan(&self.graph, &self.blocks),
            Backend::Interpreter => Interpreter.plan(&self.graph, &self.blocks),
            Backend::Npu(target) => self.device.array.npu(target, None)?.plan(&self.graph, &self.blocks),
        })
    }

    /// The name of the model's architecture.
    pub fn architecture(&self) -> &str {
        &self.model.facts.name
    }

    /// What activations are rounded to in products: a name, or several with a
    /// `+` where weights of several formats differ in it.
    pub fn activations(&self) -> String {
        if let Backend::Npu(_) = self.device.backend {
            return self.device.backend.activations().name().to_owned();
        }
        self.precisions().iter().map(|precision| precision.name()).collect::<Vec<_>>().join("+")
    }

    /// What activations are rounded to in products beyond how the backend
    /// stores them: each precision once, the coarsest first.
    pub fn precisions(&self) -> Vec<Precision> {
        match &self.device.backend {
            Backend::Cpu => girih_cpu::activations(&self.graph, self.precision()),
            Backend::Interpreter => vec![Precision::F32],
            Backend::Npu(_) => Vec::new(),
        }
    }

    /// What activations are rounded to before the product that yields logits.
    pub fn head_precision(&self) -> Precision {
        let rounded = match &self.device.backend {
            Backend::Cpu => girih_cpu::output_activations(&self.graph, self.precision()),
            Backend::Interpreter | Backend::Npu(_) => None,
        };
        rounded.unwrap_or(Precision::F32)
    }

    /// What the backend says of itself and refuses of the graph.
    ///
    /// # Errors
    /// When the backend cannot be made.
    pub fn reception(&self) -> Result<(String, Vec<String>)> {
        let (kernels, refusals) = match &self.device.backend {
            Backend::Cpu => {
                let cpu = self.cpu()?;
                (self.kernels(&cpu), cpu.refuses(&self.graph))
            }
            Backend::Interpreter => ("interpreter".to_owned(), Interpreter.refuses(&self.graph)),
            Backend::Npu(target) => (
                format!("npu, target {target}, simulated"),
                self.device.array.npu(target, None)?.refuses(&self.graph),
            ),
        };
        Ok((
            kernels,
            refusals.into_iter().map(|refusal| format!("{}: {}", refusal.node, refusal.reason)).collect(),
        ))
    }

    /// What of each program's work does not run on the backend's device but on
    /// the host, and why, in sentences; and what an array's steps of one row
    /// mean for its bytes.
    ///
    /// # Errors
    /// When the backend or a graph cannot be made.
    pub fn host_work(&self) -> Result<Vec<String>> {
        let Backend::Npu(target) = &self.device.backend else { return Ok(Vec::new()) };
        let npu = self.device.array.npu(target, None)?;
        let mut all: Vec<(HostFallback, Vec<String>)> = Vec::new();
        for key in npu.ladder(self.key) {
            let graph = self.model.graph(key, self.device.kv.dtype())?;
            for stays in npu.stays(&graph) {
                match all.iter_mut().find(|(known, _)| *known == stays) {
                    Some((_, rows)) => rows.push(key.rows.to_string()),
                    None => all.push((stays, vec![key.rows.to_string()])),
                }
            }
        }
        let sentence = |(HostFallback { name, op, count, reason }, rows): (HostFallback, Vec<String>)| {
            let rows = rows.join(", ");
            format!("the host computes {count} x {name} ({op}) in steps of {rows} rows: {reason}")
        };
        Ok(all.into_iter().map(sentence).chain([girih_npu::ONE_ROW.to_owned()]).collect())
    }

    /// Loads the model, if it fits into memory.
    ///
    /// # Errors
    /// When it does not fit, the backend refuses a node, or a file fails.
    pub fn load(&self, show: Show) -> Result<Box<dyn Runner>> {
        self.load_unless(&Arc::default(), show)
    }

    /// The same, but it ends early, and fails, once `abandoned` is set.
    ///
    /// # Errors
    /// As [`Layout::load`].
    pub fn load_unless(&self, abandoned: &Arc<AtomicBool>, show: Show) -> Result<Box<dyn Runner>> {
        let plan = self.plan()?;
        machine::check(&plan)?;
        let source = Counted {
            source: &self.model.weights,
            bar: show.bar("loading", self.stored_bytes(), Unit::Bytes),
            abandoned,
        };
        let build = |key| self.model.graph(key, self.device.kv.dtype());
        let runner = match &self.device.backend {
            Backend::Cpu => {
                let cpu = match self.store(show, abandoned) {
                    Some(store) => self.cpu()?.with_store(Box::new(store)),
                    None => self.cpu()?,
                };
                girih_graph::load(cpu, &source, self.key, &self.blocks, build)
            }
            Backend::Interpreter => girih_graph::load(Interpreter, &source, self.key, &self.blocks, build),
            Backend::Npu(target) => {
                let npu = self.device.array.npu(target, Some(show))?;
                girih_graph::load(npu, &source, self.key, &self.blocks, build)
            }
        }?;
        source.bar.finish_and_clear();
        Ok(runner)
    }

    /// Bytes of all weights as their files hold them.
    fn stored_bytes(&self) -> u64 {
        let bytes = self.graph.weights().filter_map(|(_, value)| value.dtype.bytes(&value.shape).ok());
        bytes.map(|bytes| bytes as u64).sum()
    }

    /// The kernels that will run, and which formats they decode as they are
    /// defined, no faster than any machine does.
    fn kernels(&self, cpu: &Cpu) -> String {
        let formats = DType::ALL.iter().filter(|&&dtype| {
            matches!(packed::Layout::of(dtype), packed::Layout::Stored(_))
                && self.graph.weights().any(|(_, value)| value.dtype == dtype)
        });
        let formats: Vec<_> = formats.map(|dtype| dtype.name()).collect();
        let rest = if formats.is_empty() {
            String::new()
        } else {
            format!(", {} decoded portably and multiplied as floats", formats.join(", "))
        };
        format!("cpu, {} kernels{rest}", cpu.kernels().name)
    }

    fn precision(&self) -> Option<Precision> {
        self.device.act_precision.map(ActPrecision::precision)
    }

    /// Where packed weights are kept, if they are to be and there is a place.
    fn store(&self, show: Show, abandoned: &Arc<AtomicBool>) -> Option<Store> {
        let placement = &self.device.placement;
        let writes = match placement.packed_cache.unwrap_or_default() {
            PackedCache::On => true,
            PackedCache::ReadOnly => false,
            PackedCache::Off => return None,
        };
        let wishes = Wishes::new(writes, placement.packed_cache_limit);
        let path = self.model.weights.container().paths().next()?;
        Some(Store::new(Folder::usual()?, wishes, path, show, abandoned.clone()))
    }

    fn cpu(&self) -> Result<Cpu> {
        let threads = self.device.threads.map_or_else(girih_cpu::default_threads, usize::from);
        let placement = &self.device.placement;
        let options = girih_cpu::Options {
            threads,
            precision: self.precision(),
            affinity: placement.affinity.map_or_else(Default::default, AffinityArg::affinity),
            replicate: placement.hot_replicate.unwrap_or_default(),
            residence: placement.weights.unwrap_or_default().residence(),
        };
        Ok(match &self.device.isa {
            Some(isa) => Cpu::with_table(options, kernels::by_name(isa)?)?,
            None => Cpu::new(options)?,
        })
    }
}

/// The options that only the cpu backend has, and what each does.
const OF_THE_CPU: [(&str, &str); 7] = [
    ("isa", "chooses kernels"),
    ("act_precision", "rounds activations"),
    ("affinity", "places threads"),
    ("hot_replicate", "places weights"),
    ("packed_cache", "keeps weights"),
    ("packed_cache_limit", "keeps weights"),
    ("weights", "maps packed weights"),
];

/// The options that only arrays have, and what each does.
const OF_ARRAYS: [(&str, &str); 6] = [
    ("npu_mapping", "lays models out"),
    ("npu_runtime", "sets the runtime"),
    ("npu_lengths", "chooses lengths"),
    ("npu_contexts", "chooses contexts"),
    ("blobs", "keeps compiled programs"),
    ("blobs_limit", "keeps compiled programs"),
];

/// Refuses options on the command line that mean nothing to the backend of this
/// call. Variables and the configuration file are set for many calls: what they
/// say to another backend is not for this one.
///
/// # Errors
/// When there is such an option.
pub fn refuse_idle_options(matches: &ArgMatches) -> Result<()> {
    // Not every command has a backend, and few a second one.
    let named = |id| matches.try_get_one::<Backend>(id).ok().flatten();
    let Some(backend) = named("backend") else { return Ok(()) };
    let typed = |options: &[(&str, &str)]| {
        let (id, what) = options.iter().find(|(id, _)| is_on_command_line(matches, id))?;
        Some(format!("--{} {what}", id.replace('_', "-")))
    };
    if let (false, Some(option)) = (*backend == Backend::Cpu, typed(&OF_THE_CPU)) {
        return Err(Error::call(format!("{option} of the cpu backend; leave it out for others")));
    }
    let array = [Some(backend), named("reference")].into_iter().flatten().any(Backend::is_array);
    if let (false, Some(option)) = (array, typed(&OF_ARRAYS)) {
        return Err(Error::call(format!("{option} of an array; leave it out for other backends")));
    }
    Ok(())
}
