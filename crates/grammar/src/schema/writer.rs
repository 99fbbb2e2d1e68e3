//! Writes claims as a context-free grammar.

use girih_tensor::{Error, Result};
use llguidance::api::GrammarInit;
use llguidance::derivre::RegexAst;
use llguidance::earley::SymIdx;

use super::expand::Expander;
use super::number::is_empty_regex;
use super::rules::{RuleWriter, Spaces, quoted, some_text, text_of};
use super::shape::{Claim, JsonKind, ValueShape};
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
    let (mut scalars, mut has_parts, mut too_long) = (Vec::new(), false, None);
    for kind in kinds {
        for alternative in rules.expander.expand(claims, *kind)?.iter() {
            match &alternative.shape {
                ValueShape::Array(shape) => array::write(rules, symbol, alternative, shape)?,
                ValueShape::Object(shape) => object::write(rules, symbol, alternative, shape)?,
                shape => match scalar(shape)? {
                    Some(texts) => scalars.push(texts),
                    None => too_long = too_long.or_else(|| refusal_of_digits(shape)),
                },
            }
            has_parts |= matches!(alternative.shape, ValueShape::Array(_) | ValueShape::Object(_));
        }
    }
    if let Some(refusal) = too_long.filter(|_| scalars.is_empty() && !has_parts) {
        return Err(refusal);
    }
    if !scalars.is_empty() {
        let terminal = rules.terminal(RegexAst::Or(scalars))?;
        rules.rule(symbol, vec![terminal]);
    }
    Ok(())
}

/// The expression of a scalar's texts; `None` if there is none.
fn scalar(shape: &ValueShape) -> Result<Option<RegexAst>> {
    let literal = |text: &str| RegexAst::Literal(text.to_owned());
    match shape {
        ValueShape::Null => Ok(Some(literal("null"))),
        ValueShape::Boolean { may_be_false, may_be_true } => {
            let texts = [("false", may_be_false), ("true", may_be_true)];
            let texts: Vec<RegexAst> =
                texts.into_iter().filter(|(_, may)| **may).map(|(text, _)| literal(text)).collect();
            Ok((!texts.is_empty()).then_some(RegexAst::Or(texts)))
        }
        ValueShape::Number(number) => some_text(number.written()?),
        ValueShape::String(string) => Ok(some_text(text_of(&string.written()))?.map(quoted)),
        ValueShape::Array(_) | ValueShape::Object(_) => Ok(None),
    }
}

/// The refusal of numbers that exist, but that all have too many digits to be written.
fn refusal_of_digits(shape: &ValueShape) -> Option<Error> {
    let ValueShape::Number(number) = shape else { return None };
    (is_empty_regex(&number.all()) == Some(false)).then(|| number.too_long())
}
