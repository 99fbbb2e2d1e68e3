//! Plans and loads a model on a backend. Only this file chooses a backend by
//! name.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use girih_cpu::{ActivationPrecision, Cpu, kernels};
use girih_engine::cache;
use girih_graph::backend::{HostWork, MemoryPlan};
use girih_graph::interpret::Interpreter;
use girih_graph::store::StoreOptions;
use girih_graph::{Backend as _, Graph, Key, Numerics, Runner, StateGroup};
use girih_model::Model;

use crate::args::{ActPrecision, AffinityArg, BackendChoice, DeviceArgs, PackedCache};
use crate::error::Result;
use crate::machine;
use crate::packed_cache::{FileStore, PackedFolder};
use crate::progress::{Counted, Show, Unit};

/// A model to be loaded: the graph of its largest step, and its state.
pub struct LoadPlan<'a> {
    model: &'a Model,
    device: &'a DeviceArgs,
    /// The largest step.
    pub key: Key,
    /// The graph of the largest step.
    pub graph: Graph,
    blocks: Vec<u32>,
}

impl<'a> LoadPlan<'a> {
    /// The plan of `model` for steps up to `key`.
    ///
    /// # Errors
    /// When the shapes of the weights contradict the model's facts.
    pub fn new(model: &'a Model, device: &'a DeviceArgs, key: Key) -> Result<LoadPlan<'a>> {
        let graph = model.graph(key, device.kv.dtype())?;
        let blocks = graph.groups.iter().map(|group| cache::blocks(group.span, &key)).collect();
        Ok(LoadPlan { model, device, key, graph, blocks })
    }

    /// The groups of state, each with its number of blocks.
    pub fn state(&self) -> impl Iterator<Item = (&StateGroup, u32)> {
        self.graph.groups.iter().zip(self.blocks.iter().copied())
    }

    /// The bytes that the loaded model takes.
    ///
    /// # Errors
    /// When the backend cannot be created.
    pub fn memory(&self) -> Result<MemoryPlan> {
        Ok(match &self.device.backend {
            BackendChoice::Cpu => self.cpu()?.plan(&self.graph, &self.blocks),
            BackendChoice::Interpreter => Interpreter.plan(&self.graph, &self.blocks),
            BackendChoice::Npu(target) => {
                self.device.array.npu(target, None)?.plan(&self.graph, &self.blocks)
            }
        })
    }

    /// The name of the model's architecture.
    pub fn architecture(&self) -> &str {
        &self.model.facts.name
    }

    /// How the backend rounds.
    ///
    /// # Errors
    /// When the backend cannot be created.
    pub fn numerics(&self) -> Result<Numerics> {
        Ok(match &self.device.backend {
            BackendChoice::Cpu => self.cpu()?.numerics(&self.graph),
            BackendChoice::Interpreter => Interpreter.numerics(&self.graph),
            BackendChoice::Npu(target) => self.device.array.npu(target, None)?.numerics(&self.graph),
        })
    }

    /// The precision of activations in matmuls: a name, or several joined by `+`.
    ///
    /// # Errors
    /// As [`LoadPlan::numerics`].
    pub fn activations(&self) -> Result<String> {
        Ok(self.numerics()?.name())
    }

    /// The backend's description, and the reasons for each node that it refuses.
    ///
    /// # Errors
    /// When the backend cannot be created.
    pub fn description_and_refusals(&self) -> Result<(String, Vec<String>)> {
        let (kernels, refusals) = match &self.device.backend {
            BackendChoice::Cpu => {
                let cpu = self.cpu()?;
                (cpu.describe(&self.graph), cpu.refuses(&self.graph))
            }
            BackendChoice::Interpreter => ("interpreter".to_owned(), Interpreter.refuses(&self.graph)),
            BackendChoice::Npu(target) => (
                format!("npu, target {target}, simulated"),
                self.device.array.npu(target, None)?.refuses(&self.graph),
            ),
        };
        Ok((
            kernels,
            refusals.into_iter().map(|refusal| format!("{}: {}", refusal.node, refusal.reason)).collect(),
        ))
    }

    /// Sentences about the work that falls back to the host, with reasons, and
    /// about the bytes that an array moves in steps of one row. Empty unless the
    /// backend is an array.
    ///
    /// # Errors
    /// When the backend or a graph cannot be created.
    pub fn host_work(&self) -> Result<Vec<String>> {
        let BackendChoice::Npu(target) = &self.device.backend else { return Ok(Vec::new()) };
        let npu = self.device.array.npu(target, None)?;
        let mut all: Vec<(HostWork, Vec<String>)> = Vec::new();
        for key in npu.ladder(self.key) {
            let graph = self.model.graph(key, self.device.kv.dtype())?;
            for stays in npu.host_work(&graph) {
                match all.iter_mut().find(|(known, _)| *known == stays) {
                    Some((_, rows)) => rows.push(key.rows.to_string()),
                    None => all.push((stays, vec![key.rows.to_string()])),
                }
            }
        }
        let sentence = |(HostWork { name, op, count, reason }, rows): (HostWork, Vec<String>)| {
            let rows = rows.join(", ");
            format!("the host computes {count} x {name} ({op}) in steps of {rows} rows: {reason}")
        };
        Ok(all.into_iter().map(sentence).chain([girih_npu::ONE_ROW_NOTE.to_owned()]).collect())
    }

    /// Loads the model if it fits into memory.
    ///
    /// # Errors
    /// When it does not fit, the backend refuses a node, or a file fails.
    pub fn load(&self, show: Show) -> Result<Box<dyn Runner>> {
        self.load_unless(&Arc::default(), show)
    }

    /// Loads the model, but fails early once `cancelled` is set.
    ///
    /// # Errors
    /// As [`LoadPlan::load`].
    pub fn load_unless(&self, cancelled: &Arc<AtomicBool>, show: Show) -> Result<Box<dyn Runner>> {
        machine::check(&self.memory()?)?;
        let source = Counted {
            source: &self.model.weights,
            bar: show.bar("loading", self.stored_bytes(), Unit::Bytes),
            cancelled,
        };
        let build = |key| self.model.graph(key, self.device.kv.dtype());
        let runner = match &self.device.backend {
            BackendChoice::Cpu => {
                let cpu = match self.store(show, cancelled) {
                    Some(store) => self.cpu()?.with_store(Box::new(store)),
                    None => self.cpu()?,
                };
                girih_graph::load(cpu, &source, self.key, &self.blocks, build)
            }
            BackendChoice::Interpreter => {
                girih_graph::load(Interpreter, &source, self.key, &self.blocks, build)
            }
            BackendChoice::Npu(target) => {
                let npu = self.device.array.npu(target, Some(show))?;
                girih_graph::load(npu, &source, self.key, &self.blocks, build)
            }
        }?;
        source.bar.finish_and_clear();
        Ok(runner)
    }

    /// The bytes of all weights in their files.
    fn stored_bytes(&self) -> u64 {
        let bytes = self.graph.weights().filter_map(|(_, value)| value.dtype.bytes(&value.shape).ok());
        bytes.map(|bytes| bytes as u64).sum()
    }

    fn precision(&self) -> Option<ActivationPrecision> {
        self.device.act_precision.map(ActPrecision::precision)
    }

    /// The store of packed weights, if it is enabled and a cache folder is known.
    fn store(&self, show: Show, cancelled: &Arc<AtomicBool>) -> Option<FileStore> {
        let placement = &self.device.placement;
        let writes = match placement.packed_cache.unwrap_or_default() {
            PackedCache::On => true,
            PackedCache::ReadOnly => false,
            PackedCache::Off => return None,
        };
        let options = StoreOptions { writes, limit: placement.packed_cache_limit };
        let path = self.model.weights.container().paths().next()?;
        Some(FileStore::new(PackedFolder::default_path()?, options, path, show, cancelled.clone()))
    }

    fn cpu(&self) -> Result<Cpu> {
        let threads = self.device.threads.map_or_else(girih_cpu::default_threads, usize::from);
        let placement = &self.device.placement;
        let options = girih_cpu::CpuOptions {
            threads,
            precision: self.precision(),
            affinity: placement.affinity.map_or_else(Default::default, AffinityArg::affinity),
            residence: placement.weights.unwrap_or_default().residence(),
        };
        Ok(match &self.device.isa {
            Some(isa) => Cpu::with_table(options, kernels::by_name(isa)?)?,
            None => Cpu::new(options)?,
        })
    }
}
