//! The two forms of keys and values: windows that the host holds, and variables of the model that nobody else sees.

use girih_graph::backend::Refusal;
use girih_graph::{Graph, GroupId, Op, Role, Span, StateKind};
use girih_tensor::DType;

/// Where keys and values of earlier steps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvForm {
    /// In the host's memory; a call takes them as windows.
    Windows,
    /// In variables of the requests of a model.
    Hidden,
}

impl KvForm {
    /// All forms.
    pub const ALL: [KvForm; 2] = [KvForm::Windows, KvForm::Hidden];

    /// The name of the form.
    pub const fn name(self) -> &'static str {
        match self {
            KvForm::Windows => "windows",
            KvForm::Hidden => "hidden",
        }
    }

    /// The properties that models of a graph are compiled with.
    pub fn properties(self, graph: &Graph) -> Vec<(String, String)> {
        let state = graph.values.iter().find(|value| matches!(value.role, Role::State(_)));
        let held = state.filter(|_| self == KvForm::Hidden).map(|value| held_type(value.dtype));
        held.map(|dtype| ("KV_CACHE_PRECISION".to_owned(), dtype.name().to_owned())).into_iter().collect()
    }

    /// The form of a graph: the one that was chosen; else variables for one sequence, where they can be, as they are faster, and
    /// windows for several, which share a call.
    pub fn of(graph: &Graph, chosen: Option<KvForm>) -> KvForm {
        let can_be_hidden = token_group(graph).is_some() && hidden_objection(graph).is_none();
        match chosen {
            Some(KvForm::Windows) => KvForm::Windows,
            Some(KvForm::Hidden) if can_be_hidden => KvForm::Hidden,
            None if can_be_hidden && graph.key.sequences == 1 => KvForm::Hidden,
            // A graph without state of positions has nothing to hide; others were refused.
            Some(KvForm::Hidden) | None => KvForm::Windows,
        }
    }
}

/// The type in which variables hold state of a type. With products in f32, the CPU device has no cache in bf16; it holds the
/// rounded numbers in f32.
pub(crate) fn held_type(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::F16 } else { DType::F32 }
}

/// The first group of state whose readers attend to all earlier positions.
pub(crate) fn token_group(graph: &Graph) -> Option<GroupId> {
    let is_full = |kind| matches!(kind, StateKind::Positions { span: Span::Full });
    (0..).zip(&graph.groups).find(|(_, group)| is_full(group.kind)).map(|(index, _)| GroupId(index))
}

/// Why keys and values of a graph cannot be hidden, if they cannot.
pub(crate) fn hidden_objection(graph: &Graph) -> Option<Refusal> {
    let refusal = |name: &str, reason: &str| Refusal {
        node: name.to_owned(),
        reason: format!("{reason}: use --openvino-kv {}", KvForm::Windows.name()),
    };
    let state = graph.values.iter().find(|value| matches!(value.role, Role::State(_)))?;
    if token_group(graph).is_none() {
        return Some(refusal(&state.name, "a hidden KV cache needs a layer that attends to all positions"));
    }
    for value in &graph.values {
        match graph.state_kind(value) {
            Some(StateKind::Carried) => {
                return Some(refusal(
                    &value.name,
                    "a hidden KV cache cannot take back what a sequence carries",
                ));
            }
            Some(StateKind::Positions { span: Span::All | Span::Mutual }) => {
                return Some(refusal(
                    &value.name,
                    "a hidden KV cache has no positions that attend both ways",
                ));
            }
            Some(StateKind::Positions {
                span: Span::Full | Span::Past | Span::Window(_) | Span::Chunk(_),
            })
            | None => {}
        }
    }
    let splices = graph.nodes.iter().find(|node| matches!(node.op, Op::Splice));
    if let Some(node) = splices {
        let name = &graph.value(node.output).name;
        return Some(refusal(name, "a hidden KV cache is made again from tokens, and given rows have none"));
    }
    let mut inputs = graph.inputs().map(|(_, value)| value);
    match (inputs.next(), inputs.next()) {
        (Some(ids), None) if ids.dtype == DType::I32 => None,
        (_, Some(other)) | (Some(other), None) => {
            Some(refusal(&other.name, "a hidden KV cache needs a model of tokens alone"))
        }
        (None, None) => Some(refusal(&state.name, "a hidden KV cache needs a model of tokens")),
    }
}
