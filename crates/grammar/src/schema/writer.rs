//! Writes claims as a context-free grammar.

use girih_tensor::Result;
use llguidance::api::GrammarInit;
use llguidance::derivre::RegexAst;
use llguidance::earley::SymIdx;

use super::expand::Expander;
use super::rules::{RuleWriter, Spaces, quoted, some_text, text_of};
use super::shape::{Alternative, Claim, JsonKind, ValueShape};
use super::{array, object};
use crate::limits::refused;

/// Writes the grammar of the values for which all claims hold.
///
/// # Errors
/// When a keyword is not supported, the grammar is too large, or no value exists.
pub(crate) fn write(expander: Expander<'_>, claims: &[Claim]) -> Result<GrammarInit> {
    let mut rules = RuleWriter::new(expander, Spaces::Json)?;
    let start = rules.start()?;
    if let Some(value) = rules.value(claims)? {
        rules.rule(start, vec![value]);
    }
    write_pending(&mut rules)?;
    rules.finish(&[start], |_| refused("no JSON satisfies the schema: its keywords contradict each other"))
}

/// Writes the objects for which a claim holds, and returns their symbol.
///
/// # Errors
/// When a keyword is not supported, or the grammar is too large.
pub(crate) fn write_object(rules: &mut RuleWriter<'_>, claim: Claim) -> Result<SymIdx> {
    let symbol = rules.symbol("arguments")?;
    if let Some(claims) = rules.undecided(&[claim])? {
        write_value(rules, &claims, symbol, &[JsonKind::Object])?;
    }
    write_pending(rules)?;
    Ok(symbol)
}

/// Writes the rules of all values that have a symbol but no rules.
fn write_pending(rules: &mut RuleWriter<'_>) -> Result<()> {
    while let Some((claims, symbol)) = rules.take_pending() {
        write_value(rules, &claims, symbol, &JsonKind::ALL)?;
    }
    Ok(())
}

/// Writes the rules of a value of one of these types.
fn write_value(
    rules: &mut RuleWriter<'_>,
    claims: &[Claim],
    symbol: SymIdx,
    kinds: &[JsonKind],
) -> Result<()> {
    let mut scalars = Vec::new();
    for kind in kinds {
        for alternative in rules.expander.expand(claims, *kind)?.iter() {
            match &alternative.shape {
                ValueShape::Array(shape) => array::write(rules, symbol, alternative, shape)?,
                ValueShape::Object(shape) => object::write(rules, symbol, alternative, shape)?,
                _ => scalars.extend(scalar(alternative)?),
            }
        }
    }
    if !scalars.is_empty() {
        let terminal = rules.terminal(RegexAst::Or(scalars))?;
        rules.rule(symbol, vec![terminal]);
    }
    Ok(())
}

/// The expression of a scalar's texts; `None` if there is none.
fn scalar(alternative: &Alternative) -> Result<Option<RegexAst>> {
    let literal = |text: &str| RegexAst::Literal(text.to_owned());
    match &alternative.shape {
        ValueShape::Null => Ok(Some(literal("null"))),
        ValueShape::Boolean { may_be_false, may_be_true } => {
            let texts = [("false", may_be_false), ("true", may_be_true)];
            let texts: Vec<RegexAst> =
                texts.into_iter().filter(|(_, may)| **may).map(|(text, _)| literal(text)).collect();
            Ok((!texts.is_empty()).then_some(RegexAst::Or(texts)))
        }
        ValueShape::Number(number) => some_text(number.regex()),
        ValueShape::String(parts) => Ok(some_text(text_of(parts))?.map(quoted)),
        ValueShape::Array(_) | ValueShape::Object(_) => Ok(None),
    }
}
