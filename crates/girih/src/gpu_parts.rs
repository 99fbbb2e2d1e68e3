//! The options of the backend `gpu` that leave a part of a model to the CPU: its first layers (`gpu-layers`), or its routed
//! experts (`cpu-experts`).

use std::sync::Arc;

use girih_graph::description::{AnyBackend, BackendChoice, Services};
use girih_graph::host_experts::HostExpertsBackend;
use girih_graph::staged::StagedBackend;
use girih_graph::stages::{GraphStages, layer_count};
use girih_graph::{Error, ErrorKind, Graph, Result};

use crate::backends::backend;

/// The option for layers.
const LAYERS: &str = "gpu-layers";

/// The option for experts.
const EXPERTS: &str = "cpu-experts";

/// The value that asks for as many layers as the device has room for.
const AUTO: &str = "auto";

/// Opens the backend that a choice means for a model with this graph and these blocks of state.
///
/// # Errors
/// When a backend cannot be opened, no layer fits into the device's memory, or options contradict each other.
pub(crate) fn open(
    choice: &BackendChoice,
    services: &Arc<dyn Services>,
    graph: &Graph,
    blocks: &[u32],
) -> Result<Box<dyn AnyBackend>> {
    let settings = choice.settings();
    match (settings.get(LAYERS), settings.is_on(EXPERTS)) {
        (None, false) => choice.open(services),
        (None, true) => {
            let host = cpu(choice, services)?;
            Ok(Box::new(HostExpertsBackend::new(choice.open(services)?, host)?))
        }
        (Some(asked), false) => with_layers(asked, choice, services, graph, blocks),
        (Some(_), true) => Err(Error::with_kind(
            ErrorKind::Refused,
            "gpu-layers and cpu-experts cannot be used together: remove one of them",
        )),
    }
}

/// The choice without `cpu-experts`: what drafts runs on the GPU whole.
pub(crate) fn whole_experts(choice: BackendChoice) -> BackendChoice {
    choice.without(EXPERTS)
}

/// The CPU beside the chosen backend.
fn cpu(choice: &BackendChoice, services: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
    let settings = choice.settings();
    let cpu = backend("cpu")?.with_threads(settings.threads).with_default_rounding(settings.default_rounding);
    cpu.open(services)
}

/// The backend with the number of layers that is asked for.
fn with_layers(
    asked: &str,
    choice: &BackendChoice,
    services: &Arc<dyn Services>,
    graph: &Graph,
    blocks: &[u32],
) -> Result<Box<dyn AnyBackend>> {
    let last = choice.open(services)?;
    let layers = layer_count(graph);
    let kept = match asked {
        AUTO => most_layers(&*last, graph, blocks)?,
        number => number.parse().expect("the option takes 'auto' or a number"),
    };
    let Some(cut) = layers.checked_sub(kept).filter(|cut| *cut > 0) else { return Ok(last) };
    let staged = StagedBackend::new(cpu(choice, services)?, last, cut);
    if asked == AUTO {
        services.note(&format!("{kept} of {layers} layers run on the GPU, and the first {cut} on the CPU"));
    }
    Ok(Box::new(staged))
}

/// The largest number of layers that the device has room for, with the head; the whole model counts as all of them.
fn most_layers(device: &dyn AnyBackend, graph: &Graph, blocks: &[u32]) -> Result<usize> {
    let refused = |kind, sentence: &str| Err(Error::with_kind(kind, sentence));
    let fits = |graph: &Graph| device.plan(graph, blocks).check_device();
    let pool = device.plan(graph, blocks).device;
    if pool.is_none_or(|pool| pool.free == u64::MAX) {
        return refused(
            ErrorKind::Refused,
            "gpu-layers auto needs to know the free memory of the GPU, which its driver does not tell: \
             add gpu-memory, such as 8GiB, or choose a number of layers",
        );
    }
    let layers = layer_count(graph);
    if fits(graph).is_ok() {
        return Ok(layers);
    }
    let mut last_error = None;
    for cut in 1..layers {
        match GraphStages::of(graph, cut).and_then(|stages| fits(&stages.last)) {
            Ok(()) => return Ok(layers - cut),
            Err(error) => last_error = Some(error),
        }
    }
    match last_error {
        Some(error) => Err(error.of("not even one layer fits on the GPU")),
        None => refused(
            ErrorKind::OutOfMemory,
            "the model has no layer that could run on the CPU: use the backend cpu",
        ),
    }
}
