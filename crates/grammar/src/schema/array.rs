//! Arrays as grammars: an automaton that counts items, and those that `contains` asks for.

use std::collections::HashMap;

use girih_tensor::Result;
use llguidance::earley::SymIdx;

use super::keywords::unsupported;
use super::rules::RuleWriter;
use super::shape::{Alternative, ArrayShape, Claim, ContainedItems};
use crate::limits::refused;

/// The maximum number of states of the automaton of one array.
const MAX_STATES: usize = 2000;

/// How far an array has been written: its items so far, and how many of them satisfy each claim
/// of `contains`. Both stop at the largest number that matters.
type Progress = (usize, Vec<usize>);

/// Writes the rules of an array.
///
/// # Errors
/// When it is too large, or needs what is not supported.
pub(crate) fn write(
    writer: &mut RuleWriter<'_>,
    left: SymIdx,
    alternative: &Alternative,
    shape: &ArrayShape,
) -> Result<()> {
    if shape.max.is_some_and(|max| shape.min > max) {
        return Ok(());
    }
    if shape.is_unique && shape.max.is_none_or(|max| max > 1) {
        return Err(unsupported("uniqueItems"));
    }
    if !shape.unevaluated.is_empty() && !shape.contained.is_empty() {
        return Err(unsupported("contains beside unevaluatedItems"));
    }
    let counter = ItemCounter::of(shape)?;
    let (open, close, comma) = (writer.literal("[")?, writer.literal("]")?, writer.literal(",")?);
    let start: Progress = (0, vec![0; shape.contained.len()]);
    if counter.is_complete(shape, &start) {
        writer.rule(left, vec![open, close]);
    }
    let mut symbols: HashMap<Progress, SymIdx> = HashMap::new();
    let mut todo = vec![start.clone()];
    while let Some(from) = todo.pop() {
        let before = symbols.get(&from).copied();
        for (to, claims) in counter.steps(alternative, shape, &from) {
            let Some(item) = writer.value(&claims)? else { continue };
            let after = match symbols.get(&to) {
                Some(symbol) => *symbol,
                None => {
                    if symbols.len() >= MAX_STATES {
                        return Err(too_large());
                    }
                    let symbol = writer.symbol("items")?;
                    symbols.insert(to.clone(), symbol);
                    if counter.is_complete(shape, &to) {
                        writer.rule(left, vec![open, symbol, close]);
                    }
                    todo.push(to.clone());
                    symbol
                }
            };
            match before {
                Some(before) => writer.rule(after, vec![before, comma, item]),
                None => writer.rule(after, vec![item]),
            }
        }
    }
    Ok(())
}

fn too_large() -> girih_tensor::Error {
    refused(format!(
        "an array of the schema needs more than {MAX_STATES} states: lower minItems, maxItems or maxContains"
    ))
}

/// Counts the items of an array as far as it matters.
struct ItemCounter {
    /// The largest number of items that matters.
    last: usize,
}

impl ItemCounter {
    fn of(shape: &ArrayShape) -> Result<ItemCounter> {
        let prefixes = shape.schemas.iter().map(|schemas| schemas.prefix.len());
        let single = shape.at.iter().map(|(at, _)| at + 1);
        let from = shape.contained.iter().map(|contained| contained.from);
        let mut last = prefixes.chain(single).chain(from).chain([shape.min]).max().unwrap_or(0);
        if let Some(max) = shape.max {
            last = max;
        }
        if last > MAX_STATES { Err(too_large()) } else { Ok(ItemCounter { last }) }
    }

    fn is_complete(&self, shape: &ArrayShape, (items, counts): &Progress) -> bool {
        *items >= shape.min
            && shape.contained.iter().zip(counts).all(|(contained, count)| *count >= contained.min)
    }

    /// The next items: the progress after one, and the claims on it.
    fn steps(
        &self,
        alternative: &Alternative,
        shape: &ArrayShape,
        (items, counts): &Progress,
    ) -> Vec<(Progress, Vec<Claim>)> {
        if shape.max.is_some_and(|max| *items >= max) {
            return Vec::new();
        }
        let next = if shape.max.is_some() { items + 1 } else { (items + 1).min(self.last) };
        let mut steps = vec![((next, Vec::new()), claims_at(alternative, shape, *items))];
        for (contained, count) in shape.contained.iter().zip(counts) {
            let mut more = Vec::new();
            for ((next, counts), claims) in steps {
                for (count, claim) in options(contained, *items, *count) {
                    let counts = [counts.clone(), vec![count]].concat();
                    let claims = claims.iter().copied().chain(claim).collect();
                    more.push(((next, counts), claims));
                }
            }
            steps = more;
        }
        steps
    }
}

/// Whether an item counts as contained: the count after it, and the claim on it.
fn options(contained: &ContainedItems, at: usize, count: usize) -> Vec<(usize, Option<Claim>)> {
    let Claim { node, holds } = contained.claim;
    let other = Claim { node, holds: !holds };
    match contained.max {
        _ if at < contained.from => vec![(count, None)],
        // Enough are contained; others need not be told apart.
        None if count >= contained.min => vec![(count, None)],
        None => vec![(count, None), (count + 1, Some(contained.claim))],
        Some(max) if count >= max => vec![(count, Some(other))],
        Some(_) => vec![(count, Some(other)), (count + 1, Some(contained.claim))],
    }
}

/// The claims on the item at an index.
fn claims_at(alternative: &Alternative, shape: &ArrayShape, at: usize) -> Vec<Claim> {
    let (mut claims, mut evaluated) = (Vec::new(), Vec::new());
    for schemas in &shape.schemas {
        if let Some(claim) = schemas.prefix.get(at).copied().or(schemas.rest) {
            claims.push(claim);
            evaluated.push(schemas.scope);
        }
    }
    claims.extend(shape.at.iter().filter(|(index, _)| *index == at).map(|(_, claim)| *claim));
    // Inner scopes have higher numbers; what they leave to nobody is evaluated by them.
    let mut scopes = shape.unevaluated.clone();
    scopes.sort_unstable_by_key(|(scope, _)| std::cmp::Reverse(*scope));
    for (scope, claim) in scopes {
        if !evaluated.iter().any(|inner| alternative.is_within(*inner, scope)) {
            claims.push(claim);
            evaluated.push(scope);
        }
    }
    claims
}
