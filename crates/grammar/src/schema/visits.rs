//! A bound on the work of the validator, which follows all choices of a schema again at each level
//! of a value: with recursive choices, that grows exponentially with the depth.

use std::collections::{BTreeSet, HashMap};

use girih_tensor::Result;

use super::document::{Document, Keywords, NodeId, SchemaNode};

/// The number of levels that the parser of replies reads.
pub(crate) const LEVELS: usize = 128;

/// How often subschemas are visited for one value.
type Visits = HashMap<NodeId, u64>;

/// An upper bound on the visits of all subschemas for one value, by the value's depth.
///
/// # Errors
/// When a subschema is malformed.
pub(crate) fn visits_by_depth(document: &Document<'_>, root: NodeId) -> Result<Vec<u64>> {
    let mut level = Visits::from([(root, 1)]);
    let mut totals = Vec::new();
    for _ in 0..LEVELS {
        let visits = in_place(document, &level)?;
        let total = visits.values().fold(0u64, |sum, count| sum.saturating_add(*count));
        totals.push(total);
        if total == u64::MAX {
            totals.resize(LEVELS, u64::MAX);
            break;
        }
        level = below(document, &visits)?;
    }
    Ok(totals)
}

/// Adds the visits of the subschemas that apply to the same value. References to the same value
/// have no cycles.
fn in_place(document: &Document<'_>, level: &Visits) -> Result<Visits> {
    let mut visits = Visits::new();
    let mut todo: Visits = level.clone();
    while !todo.is_empty() {
        let mut next = Visits::new();
        for (node, count) in todo {
            add(&mut visits, node, count);
            if let SchemaNode::Keywords(keywords) = &*document.node(node)? {
                // What is evaluated is looked for by visiting the subschemas again.
                let again = keywords.unevaluated_items.or(keywords.unevaluated_properties).is_some();
                let count = if again { count.saturating_mul(2) } else { count };
                same_value(keywords).into_iter().for_each(|node| add(&mut next, node, count));
            }
        }
        todo = next;
    }
    Ok(visits)
}

/// The visits of subschemas for a part of the value: an item, or a property of any name.
fn below(document: &Document<'_>, visits: &Visits) -> Result<Visits> {
    let mut items = Visits::new();
    let mut names: BTreeSet<Option<String>> = BTreeSet::from([None]);
    let mut nodes = Vec::new();
    for (node, count) in visits {
        let node = document.node(*node)?;
        if let SchemaNode::Keywords(keywords) = &*node {
            let contains = keywords.contains.map(|contains| contains.node);
            let all = keywords.prefix_items.iter().copied().chain(keywords.items);
            let all = all.chain(contains).chain(keywords.unevaluated_items);
            all.for_each(|node| add(&mut items, node, *count));
            names.extend(keywords.properties.iter().map(|(name, _)| Some(name.clone())));
        }
        nodes.push((node, *count));
    }
    let mut most = items;
    for name in names {
        let mut of_name = Visits::new();
        for (node, count) in &nodes {
            let SchemaNode::Keywords(keywords) = &**node else { continue };
            let own = keywords.properties.iter().find(|(other, _)| Some(other) == name.as_ref());
            let others = keywords.additional_properties.into_iter().chain(keywords.unevaluated_properties);
            let patterns = keywords.pattern_properties.iter().map(|(_, node)| *node);
            match own {
                Some((_, node)) => add(&mut of_name, *node, *count),
                None => others.chain(patterns).for_each(|node| add(&mut of_name, node, *count)),
            }
        }
        for (node, count) in of_name {
            let largest = most.entry(node).or_insert(0);
            *largest = count.max(*largest);
        }
    }
    Ok(most)
}

fn add(visits: &mut Visits, node: NodeId, count: u64) {
    let sum = visits.entry(node).or_insert(0);
    *sum = sum.saturating_add(count);
}

/// The subschemas that apply to the same value as their node.
pub(crate) fn same_value(keywords: &Keywords) -> Vec<NodeId> {
    let condition = keywords.condition.map(|(condition, then, other)| [condition, then, other]);
    let lists = [&keywords.any_of, &keywords.one_of];
    let direct = keywords.all_of.iter().chain(&keywords.reference).chain(&keywords.not);
    let direct = direct.chain(condition.iter().flatten()).chain(lists.into_iter().flatten().flatten());
    direct.chain(keywords.dependent_schemas.iter().map(|(_, node)| node)).copied().collect()
}
