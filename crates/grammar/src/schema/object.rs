//! Objects as grammars: the named properties in a fixed order, then all others.

use std::collections::HashMap;

use girih_tensor::Result;
use llguidance::derivre::RegexAst;
use llguidance::earley::SymIdx;

use super::number::{matcher, not};
use super::rules::{RuleWriter, quoted, some_text, text_of};
use super::shape::{Alternative, Claim, ExtraProperty, JsonKind, ObjectShape, Scope, ValueShape};
use crate::limits::refused;

/// The maximum number of named properties of one object.
const MAX_NAMES: usize = 1000;

/// The maximum number of properties that are counted for `minProperties` and `maxProperties`.
const MAX_COUNT: usize = 200;

/// The maximum number of `patternProperties` of one object. Each set of patterns is a class of names.
const MAX_PATTERNS: usize = 6;

/// Writes the rules of an object.
///
/// # Errors
/// When it is too large, or needs what is not supported.
pub(crate) fn write(
    writer: &mut RuleWriter<'_>,
    left: SymIdx,
    alternative: &Alternative,
    shape: &ObjectShape,
) -> Result<()> {
    let mut names = known_names(shape);
    if names.len() > MAX_NAMES {
        return Err(refused(format!(
            "an object of the schema names {} properties; the maximum is {MAX_NAMES}",
            names.len()
        )));
    }
    names.sort_by_key(|name| writer.expander.document.rank(name));
    // A property that must exist outside some names is one of the other names, or none.
    let mut variants = vec![(shape.clone(), Vec::<ExtraProperty>::new())];
    for extra in &shape.extra {
        let mut more = Vec::new();
        for (shape, extras) in &variants {
            for name in names.iter().filter(|name| !extra.names.contains(name)) {
                let mut shape = shape.clone();
                shape.required.insert(name.clone());
                shape.at.push((name.clone(), extra.claim));
                more.push((shape, extras.clone()));
            }
            more.push((shape.clone(), [extras.clone(), vec![extra.clone()]].concat()));
        }
        variants = more;
    }
    for (shape, extras) in &variants {
        ObjectWriter { writer, alternative, shape, names: &names }.write(left, extras)?;
    }
    Ok(())
}

/// The names that an object's demands mention.
fn known_names(shape: &ObjectShape) -> Vec<String> {
    let listed =
        shape.schemas.iter().flat_map(|schemas| &schemas.names).chain(&shape.at).map(|(name, _)| name);
    let extra = shape.extra.iter().flat_map(|extra| &extra.names);
    let mut names: Vec<String> =
        listed.chain(&shape.required).chain(&shape.absent).chain(extra).cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Writes the rules of one shape of an object.
struct ObjectWriter<'w, 'a> {
    writer: &'w mut RuleWriter<'a>,
    alternative: &'w Alternative,
    shape: &'w ObjectShape,
    names: &'w [String],
}

/// A named property that may be written.
struct NamedProperty {
    /// Its name, a colon and its value.
    symbol: SymIdx,
    is_required: bool,
}

impl ObjectWriter<'_, '_> {
    fn write(mut self, left: SymIdx, extras: &[ExtraProperty]) -> Result<()> {
        let ObjectShape { required, absent, min, max, .. } = self.shape;
        if required.intersection(absent).next().is_some()
            || max.is_some_and(|max| required.len() > max || *min > max)
        {
            return Ok(());
        }
        if extras.len() > 1 {
            return Err(refused(
                "the schema asks for several properties that it does not name (additionalProperties within not): name them",
            ));
        }
        let Some(named) = self.named()? else { return Ok(()) };
        let others = self.others(&[])?;
        let last = match extras {
            [] => None,
            [extra, ..] => Some(self.others(&[extra.claim])?),
        };
        if others.is_some() && *min > required.len() + 1 {
            return Err(refused(format!(
                "minProperties {min} is not supported for properties that the schema does not name: name them, or lower it to {}",
                required.len() + 1
            )));
        }
        if last == Some(None) {
            return Ok(());
        }
        let has_rest = others.is_some() || last.is_some();
        let max = max.filter(|max| has_rest || *max < named.len());
        let rest = Rest { others, last: last.flatten(), min: *min, max };
        let count = max.unwrap_or((*min).max(1));
        if count > MAX_COUNT.max(named.len()) {
            return Err(refused(format!(
                "minProperties or maxProperties {count} is not supported; the maximum is {MAX_COUNT}"
            )));
        }
        let fields = self.fields(&named, &rest, count)?;
        let (open, close) = (self.writer.literal("{")?, self.writer.literal("}")?);
        self.writer.rule(left, vec![open, fields, close]);
        Ok(())
    }

    /// The named properties in order; `None` if a required one cannot be written.
    fn named(&mut self) -> Result<Option<Vec<NamedProperty>>> {
        let mut named = Vec::new();
        for name in self.names {
            let is_required = self.shape.required.contains(name);
            let is_allowed = !self.shape.absent.contains(name) && self.allows_name(name)?;
            let value = if is_allowed { self.value_of(name)? } else { None };
            match value {
                None if is_required => return Ok(None),
                None => {}
                Some(value) => {
                    let key = self.writer.terminal(quoted(RegexAst::Literal(name.clone())))?;
                    let symbol = self.writer.symbol("property")?;
                    let colon = self.writer.literal(":")?;
                    self.writer.rule(symbol, vec![key, colon, value]);
                    named.push(NamedProperty { symbol, is_required });
                }
            }
        }
        Ok(Some(named))
    }

    /// The symbol of a named property's value.
    fn value_of(&mut self, name: &str) -> Result<Option<SymIdx>> {
        let mut claims = self.claims(|other| other == name, |pattern| matches(pattern, name))?;
        let at = self.shape.at.iter().filter(|(other, _)| other == name);
        claims.extend(at.map(|(_, claim)| *claim));
        self.writer.value(&claims)
    }

    /// The claims on a property, given which names and patterns are its own.
    fn claims(
        &self,
        is_name: impl Fn(&str) -> bool,
        is_match: impl Fn(&str) -> Result<bool>,
    ) -> Result<Vec<Claim>> {
        let (mut claims, mut evaluated): (Vec<Claim>, Vec<Scope>) = (Vec::new(), Vec::new());
        for schemas in &self.shape.schemas {
            let before = claims.len();
            claims.extend(schemas.names.iter().filter(|(name, _)| is_name(name)).map(|(_, claim)| *claim));
            for (pattern, claim) in &schemas.patterns {
                if is_match(pattern)? {
                    claims.push(*claim);
                }
            }
            if claims.len() == before {
                claims.extend(schemas.rest);
            }
            if claims.len() > before {
                evaluated.push(schemas.scope);
            }
        }
        // Inner scopes have higher numbers; what they leave to nobody is evaluated by them.
        let mut scopes = self.shape.unevaluated.clone();
        scopes.sort_unstable_by_key(|(scope, _)| std::cmp::Reverse(*scope));
        for (scope, claim) in scopes {
            if !evaluated.iter().any(|inner| self.alternative.is_within(*inner, scope)) {
                claims.push(claim);
                evaluated.push(scope);
            }
        }
        Ok(claims)
    }

    /// The expressions that all names must match.
    fn name_parts(&self) -> Result<Option<RegexAst>> {
        if self.shape.name_claims.is_empty() {
            return Ok(None);
        }
        let mut claims = self.shape.name_claims.clone();
        claims.sort_unstable();
        claims.dedup();
        let alternatives = self.writer.expander.expand(&claims, JsonKind::String)?;
        let texts = alternatives.iter().filter_map(|alternative| match &alternative.shape {
            ValueShape::String(string) => Some(text_of(&string.written())),
            _ => None,
        });
        Ok(Some(RegexAst::Or(texts.collect())))
    }

    fn allows_name(&self, name: &str) -> Result<bool> {
        match self.name_parts()? {
            None => Ok(true),
            Some(names) => is_text_of(&names, name),
        }
    }

    /// The symbol of a property that is not named and satisfies more claims; `None` if there is
    /// none.
    fn others(&mut self, more: &[Claim]) -> Result<Option<SymIdx>> {
        let mut patterns: Vec<String> = Vec::new();
        for (pattern, _) in self.shape.schemas.iter().flat_map(|schemas| &schemas.patterns) {
            if !patterns.contains(pattern) {
                patterns.push(pattern.clone());
            }
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(refused(format!(
                "an object of the schema has {} patternProperties; the maximum is {MAX_PATTERNS}",
                patterns.len()
            )));
        }
        let mut parts: Vec<RegexAst> = self.name_parts()?.into_iter().collect();
        if !self.names.is_empty() {
            let names = self.names.iter().map(|name| RegexAst::Literal(name.clone()));
            parts.push(not(RegexAst::Or(names.collect())));
        }
        let mut symbol = None;
        for set in 0u32..1 << patterns.len() {
            let is_in = |pattern: &str| {
                Ok(patterns.iter().position(|other| other == pattern).is_some_and(|at| set >> at & 1 == 1))
            };
            let claims = [self.claims(|_| false, is_in)?, more.to_vec()].concat();
            let Some(value) = self.writer.value(&claims)? else { continue };
            let mut parts = parts.clone();
            for pattern in &patterns {
                let search = RegexAst::SearchRegex(pattern.clone());
                parts.push(if is_in(pattern)? { search } else { not(search) });
            }
            let Some(name) = some_text(text_of(&parts))? else { continue };
            let key = self.writer.terminal(quoted(name))?;
            let colon = self.writer.literal(":")?;
            let left = match symbol {
                Some(symbol) => symbol,
                None => *symbol.insert(self.writer.symbol("other")?),
            };
            self.writer.rule(left, vec![key, colon, value]);
        }
        Ok(symbol)
    }

    /// The symbol of everything between the braces. `count` is the largest number of properties
    /// that is told apart.
    fn fields(&mut self, named: &[NamedProperty], rest: &Rest, count: usize) -> Result<SymIdx> {
        let comma = self.writer.literal(",")?;
        let mut after = rest.write(self.writer, comma, count)?;
        for property in named.iter().rev() {
            let mut before = HashMap::new();
            for have in 0..=count {
                let symbol = self.writer.symbol("fields")?;
                let next = if rest.max.is_some() { have + 1 } else { (have + 1).min(count) };
                if let Some(then) = after.get(&next) {
                    let comma = (have > 0).then_some(comma);
                    self.writer.rule(symbol, comma.into_iter().chain([property.symbol, *then]).collect());
                }
                if !property.is_required {
                    self.writer.rule(symbol, vec![after[&have]]);
                }
                before.insert(have, symbol);
            }
            after = before;
        }
        Ok(after[&0])
    }
}

/// The properties behind the named ones.
struct Rest {
    others: Option<SymIdx>,
    /// A property that must come last.
    last: Option<SymIdx>,
    min: usize,
    max: Option<usize>,
}

impl Rest {
    /// The symbols of what follows this number of properties.
    fn write(
        &self,
        writer: &mut RuleWriter<'_>,
        comma: SymIdx,
        count: usize,
    ) -> Result<HashMap<usize, SymIdx>> {
        let mut symbols: HashMap<usize, SymIdx> = HashMap::new();
        for have in (0..=count).rev() {
            let symbol = writer.symbol("rest")?;
            let lead = (have > 0).then_some(comma);
            let is_last_count = have == count;
            let has_room = self.max.is_none_or(|max| have < max);
            match self.last {
                None if have >= self.min => writer.rule(symbol, vec![]),
                Some(last) if has_room && have + 1 >= self.min => {
                    writer.rule(symbol, lead.into_iter().chain([last]).collect());
                }
                _ => {}
            }
            if let Some(other) = self.others.filter(|_| has_room) {
                if !is_last_count {
                    let then = symbols[&(have + 1)];
                    writer.rule(symbol, lead.into_iter().chain([other, then]).collect());
                } else if self.last.is_none() {
                    // Left recursion keeps the parser's work per property constant.
                    writer.rule(symbol, vec![symbol, comma, other]);
                } else {
                    writer.rule(symbol, vec![comma, other, symbol]);
                }
            }
            symbols.insert(have, symbol);
        }
        Ok(symbols)
    }
}

/// Whether a name contains a match of a pattern.
fn matches(pattern: &str, name: &str) -> Result<bool> {
    is_text_of(&RegexAst::SearchRegex(pattern.to_owned()), name)
}

fn is_text_of(ast: &RegexAst, text: &str) -> Result<bool> {
    Ok(matcher(ast)?.is_match(text))
}
