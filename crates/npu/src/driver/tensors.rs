//! Maps values of the graph to tensors of the groups, and back.

use std::collections::BTreeMap;

use girih_graph::{Graph, ValueId};

use crate::form::groups::{ArrayTensor, Groups, TensorKind};
use crate::pass::partition::root;

/// The value of each tensor.
pub(super) fn values_of(graph: &Graph, groups: &Groups, tensors: &[Option<u32>]) -> Vec<Option<ValueId>> {
    let mut values = vec![None; groups.tensors.len()];
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(tensor) = tensor {
            values[*tensor as usize].get_or_insert(root(graph, ValueId(index as u32)));
        }
    }
    values
}

/// The keys and the values of the step from which the host lays out a tensor of row chunks; none for others.
pub(super) fn laid_from(graph: &Graph, tensor: &ArrayTensor) -> Vec<ValueId> {
    if tensor.kind != TensorKind::RowChunks {
        return Vec::new();
    }
    tensor.name.split('|').filter_map(|side| graph.find(side)).collect()
}

/// The tensor of each value; a view has the tensor of the value that it is a
/// view of.
pub(super) fn tensors_of(graph: &Graph, groups: &Groups) -> Vec<Option<u32>> {
    let names: BTreeMap<&str, u32> = groups
        .tensors
        .iter()
        .enumerate()
        .map(|(number, tensor)| (tensor.name.as_str(), number as u32))
        .collect();
    let ids = (0..graph.values.len()).map(|index| root(graph, ValueId(index as u32)));
    let found = |id: ValueId| {
        let number = names.get(graph.value(id).name.as_str()).copied()?;
        let made = matches!(groups.tensors[number as usize].kind, TensorKind::CosSin | TensorKind::Start);
        (!made).then_some(number)
    };
    ids.map(found).collect()
}
