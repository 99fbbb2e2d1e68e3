//! How the keywords for one type may fail: one branch for each.

use girih_tensor::Result;

use super::branch::Branch;
use super::document::{Keywords, NodeId};
use super::keywords::unsupported;
use super::number::{NumberDemand, not, regex};
use super::restrict::{number_demands, smaller, string_demands};
use super::shape::{ArrayShape, Claim, ContainedItems, ExtraProperty, ObjectShape, ValueShape};

/// Adds a branch whose numbers do not meet a demand.
pub(crate) fn fail_demand(branch: &Branch, demand: NumberDemand, out: &mut Vec<Branch>) {
    let mut branch = branch.clone();
    if let ValueShape::Number(number) = &mut branch.alternative.shape {
        number.demands.push(demand.negated());
        out.push(branch);
    }
}

pub(crate) fn fail_number(branch: &Branch, keywords: &Keywords, out: &mut Vec<Branch>) -> Result<()> {
    number_demands(keywords)?.into_iter().for_each(|demand| fail_demand(branch, demand, out));
    Ok(())
}

pub(crate) fn fail_string(branch: &Branch, keywords: &Keywords, out: &mut Vec<Branch>) {
    let format = keywords.format.map(|format| regex(format.all));
    for demand in string_demands(keywords).into_iter().chain(format) {
        let mut branch = branch.clone();
        if let ValueShape::String(string) = &mut branch.alternative.shape {
            string.parts.push(not(demand));
            out.push(branch);
        }
    }
}

pub(crate) fn fail_array(branch: &Branch, keywords: &Keywords, out: &mut Vec<Branch>) -> Result<()> {
    if keywords.unique_items || keywords.unevaluated_items.is_some() {
        let name = if keywords.unique_items { "uniqueItems" } else { "unevaluatedItems" };
        return Err(unsupported(&format!("{name} within not, oneOf or if")));
    }
    let mut with = |change: &dyn Fn(&mut ArrayShape)| {
        let mut branch = branch.clone();
        if let ValueShape::Array(array) = &mut branch.alternative.shape {
            change(array);
            out.push(branch);
        }
    };
    for (at, node) in keywords.prefix_items.iter().enumerate() {
        with(&|array| {
            array.min = array.min.max(at + 1);
            array.at.push((at, Claim::fails(*node)));
        });
    }
    let contained = |claim, from, min, max| ContainedItems { from, claim, min, max };
    if let Some(node) = keywords.items {
        let from = keywords.prefix_items.len();
        with(&|array| array.contained.push(contained(Claim::fails(node), from, 1, None)));
    }
    if let Some(max) = keywords.min_items.and_then(|min| min.checked_sub(1)) {
        with(&|array| array.max = smaller(array.max, Some(max)));
    }
    if let Some(max) = keywords.max_items {
        with(&|array| array.min = array.min.max(max + 1));
    }
    if let Some(contains) = keywords.contains {
        let claim = Claim::holds(contains.node);
        if let Some(max) = contains.min.checked_sub(1) {
            with(&|array| array.contained.push(contained(claim, 0, 0, Some(max))));
        }
        if let Some(max) = contains.max {
            with(&|array| array.contained.push(contained(claim, 0, max + 1, None)));
        }
    }
    Ok(())
}

pub(crate) fn fail_object(branch: &Branch, keywords: &Keywords, out: &mut Vec<Branch>) -> Result<()> {
    let unsupported_here = [
        ("patternProperties", !keywords.pattern_properties.is_empty()),
        ("propertyNames", keywords.property_names.is_some()),
        ("unevaluatedProperties", keywords.unevaluated_properties.is_some()),
    ];
    if let Some((name, _)) = unsupported_here.iter().find(|(_, has)| *has) {
        return Err(unsupported(&format!("{name} within not, oneOf or if")));
    }
    let mut with = |change: &dyn Fn(&mut ObjectShape), claim: Option<NodeId>| {
        let mut branch = branch.clone();
        if let ValueShape::Object(object) = &mut branch.alternative.shape {
            change(object);
            branch.claims.extend(claim.map(|node| (Claim::fails(node), 0)));
            out.push(branch);
        }
    };
    for (name, node) in &keywords.properties {
        let change = |object: &mut ObjectShape| {
            object.required.insert(name.clone());
            object.at.push((name.clone(), Claim::fails(*node)));
        };
        with(&change, None);
    }
    if let Some(node) = keywords.additional_properties {
        let names: Vec<String> = keywords.properties.iter().map(|(name, _)| name.clone()).collect();
        let extra = ExtraProperty { names, claim: Claim::fails(node) };
        with(&|object| object.extra.push(extra.clone()), None);
    }
    for name in &keywords.required {
        with(&|object| object.absent.extend([name.clone()]), None);
    }
    if let Some(max) = keywords.min_properties.and_then(|min| min.checked_sub(1)) {
        with(&|object| object.max = smaller(object.max, Some(max)), None);
    }
    if let Some(max) = keywords.max_properties {
        with(&|object| object.min = object.min.max(max + 1), None);
    }
    for (name, needed) in &keywords.dependent_required {
        for absent in needed {
            let change = |object: &mut ObjectShape| {
                object.required.insert(name.clone());
                object.absent.insert(absent.clone());
            };
            with(&change, None);
        }
    }
    for (name, node) in &keywords.dependent_schemas {
        with(&|object| object.required.extend([name.clone()]), Some(*node));
    }
    Ok(())
}
