//! The single list of backends: from a name to a loaded model.

use girih_cpu::{Cpu, kernels};
use girih_graph::backend::MemoryPlan;
use girih_graph::interpret::Interpreter;
use girih_graph::{BLOCK_POSITIONS, Backend as _, Graph, Key, Runner};
use girih_model::Model;
use girih_npu::Npu;

use crate::args::{Backend, DeviceArgs};
use crate::error::{Error, Result};
use crate::machine;
use crate::progress::{Counted, Show, Unit};

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
    /// When the model's weights do not have the shapes that its facts say, or
    /// kernels are chosen for a backend that has no choice of them.
    pub fn new(model: &'a Model, device: &'a DeviceArgs, key: Key) -> Result<Layout<'a>> {
        if device.isa.is_some() && device.backend != Backend::Cpu {
            return Err(Error::call("--isa chooses kernels of the cpu backend; leave it out for others"));
        }
        let graph = model.graph(key, device.kv.dtype())?;
        let blocks = vec![key.context.div_ceil(BLOCK_POSITIONS as u32); graph.groups.len()];
        Ok(Layout { model, device, key, graph, blocks })
    }

    /// Bytes that the loaded model will take.
    ///
    /// # Errors
    /// When the backend cannot be made.
    pub fn plan(&self) -> Result<MemoryPlan> {
        Ok(match &self.device.backend {
            Backend::Cpu => self.cpu()?.plan(&self.graph, &self.blocks),
            Backend::Interpreter => Interpreter.plan(&self.graph, &self.blocks),
            Backend::Npu(target) => npu(target)?.plan(&self.graph, &self.blocks),
        })
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
            Backend::Npu(target) => {
                (format!("npu, target {target}, simulated"), npu(target)?.refuses(&self.graph))
            }
        };
        Ok((
            kernels,
            refusals.into_iter().map(|refusal| format!("{}: {}", refusal.node, refusal.reason)).collect(),
        ))
    }

    /// Loads the model, if it fits into memory.
    ///
    /// # Errors
    /// When it does not fit, the backend refuses a node, or a file fails.
    pub fn load(&self, show: Show) -> Result<Box<dyn Runner>> {
        let plan = self.plan()?;
        machine::check(&plan)?;
        let source = Counted {
            source: &self.model.weights,
            bar: show.bar("loading", self.stored_bytes(), Unit::Bytes),
        };
        let build = |key| self.model.graph(key, self.device.kv.dtype());
        let runner = match &self.device.backend {
            Backend::Cpu => girih_graph::load(self.cpu()?, &source, self.key, &self.blocks, build),
            Backend::Interpreter => girih_graph::load(Interpreter, &source, self.key, &self.blocks, build),
            Backend::Npu(target) => girih_graph::load(npu(target)?, &source, self.key, &self.blocks, build),
        }?;
        source.bar.finish_and_clear();
        Ok(runner)
    }

    /// Bytes of all weights as their files hold them.
    fn stored_bytes(&self) -> u64 {
        let bytes = self.graph.weights().filter_map(|(_, value)| value.dtype.bytes(&value.shape).ok());
        bytes.map(|bytes| bytes as u64).sum()
    }

    /// The kernels that will run, and of which formats they decode weights no
    /// faster than any machine does.
    fn kernels(&self, cpu: &Cpu) -> String {
        let stored = |dtype| self.graph.weights().any(|(_, value)| value.dtype == dtype);
        let portable = cpu.kernels().portable_formats().filter(|&dtype| stored(dtype));
        let portable: Vec<_> = portable.map(|dtype| dtype.name()).collect();
        let rest = if portable.is_empty() {
            String::new()
        } else {
            format!(", portable for {}", portable.join(", "))
        };
        format!("cpu, {} kernels{rest}", cpu.kernels().name)
    }

    fn cpu(&self) -> Result<Cpu> {
        let threads = self.device.threads.map_or_else(girih_cpu::default_threads, usize::from);
        let options = girih_cpu::Options { threads };
        Ok(match &self.device.isa {
            Some(isa) => Cpu::with_table(options, kernels::by_name(isa)?)?,
            None => Cpu::new(options)?,
        })
    }
}

/// The backend of a simulated array.
fn npu(target: &str) -> Result<Npu> {
    Ok(Npu::new(target, girih_npu::Options::default())?)
}
