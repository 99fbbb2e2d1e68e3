//! Writes claims as a context-free grammar.

use girih_tensor::Result;
use llguidance::api::GrammarInit;
use llguidance::derivre::RegexAst;
use llguidance::earley::SymIdx;

use super::expand::Expander;
use super::rules::{RuleWriter, quoted, some_text, text_of};
use super::shape::{Alternative, Claim, JsonKind, ValueShape};
use super::{array, object};

/// Writes the grammar of the values for which all claims hold.
///
/// # Errors
/// When a keyword is not supported, the grammar is too large, or no value exists.
pub(crate) fn write(expander: Expander<'_>, claims: &[Claim]) -> Result<GrammarInit> {
    let mut rules = RuleWriter::new(expander)?;
    let start = rules.start()?;
    if let Some(value) = rules.value(claims)? {
        rules.rule(start, vec![value]);
    }
    while let Some((claims, symbol)) = rules.take_pending() {
        write_value(&mut rules, &claims, symbol)?;
    }
    rules.finish(start)
}

/// Writes the rules of a value.
fn write_value(rules: &mut RuleWriter<'_>, claims: &[Claim], symbol: SymIdx) -> Result<()> {
    let mut scalars = Vec::new();
    for kind in JsonKind::ALL {
        for alternative in rules.expander.expand(claims, kind)?.iter() {
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
