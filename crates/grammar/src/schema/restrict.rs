//! What the keywords for one type demand of a value.

use girih_tensor::Result;
use llguidance::derivre::RegexAst;
use serde_json::Value;

use super::branch::{Branch, OpenChoice};
use super::document::{Keywords, NodeId, types};
use super::number::{Decimal, ListedNumber, NumberDemand, not, regex};
use super::shape::{Claim, ContainedItems, ItemSchemas, PropertySchemas, Scope, ValueShape};

/// Adds what the keywords for one type demand; `false` if no value satisfies them.
pub(crate) fn restrict(branch: &mut Branch, keywords: &Keywords, scope: Scope) -> Result<bool> {
    let Branch { alternative, choices, .. } = branch;
    match &mut alternative.shape {
        ValueShape::Null | ValueShape::Boolean { .. } => {}
        ValueShape::Number(number) => {
            number.is_integer |= keywords.types.is_some_and(|set| set & types::NUMBER == 0);
            number.demands.extend(number_demands(keywords)?);
        }
        ValueShape::String(string) => {
            string.parts.extend(string_demands(keywords));
            string.formats.extend(keywords.format);
        }
        ValueShape::Array(array) => {
            array.schemas.push(ItemSchemas {
                prefix: keywords.prefix_items.iter().map(|node| Claim::holds(*node)).collect(),
                rest: keywords.items.map(Claim::holds),
                scope,
            });
            array.min = array.min.max(keywords.min_items.unwrap_or(0));
            array.max = smaller(array.max, keywords.max_items);
            array.is_unique |= keywords.unique_items;
            array.contained.extend(keywords.contains.map(|contains| ContainedItems {
                from: 0,
                claim: Claim::holds(contains.node),
                min: contains.min,
                max: contains.max,
            }));
        }
        ValueShape::Object(object) => {
            let claims = |list: &[(String, NodeId)]| {
                list.iter().map(|(name, node)| (name.clone(), Claim::holds(*node))).collect()
            };
            object.schemas.push(PropertySchemas {
                names: claims(&keywords.properties),
                patterns: claims(&keywords.pattern_properties),
                rest: keywords.additional_properties.map(Claim::holds),
                scope,
            });
            object.required.extend(keywords.required.iter().cloned());
            object.min = object.min.max(keywords.min_properties.unwrap_or(0));
            object.max = smaller(object.max, keywords.max_properties);
            object.name_claims.extend(keywords.property_names.map(Claim::holds));
            let required = keywords.dependent_required.iter();
            choices.extend(
                required
                    .map(|(name, needed)| OpenChoice::Dependent(name.clone(), needed.clone(), None, scope)),
            );
            let schemas = keywords.dependent_schemas.iter();
            choices.extend(
                schemas
                    .map(|(name, node)| OpenChoice::Dependent(name.clone(), Vec::new(), Some(*node), scope)),
            );
        }
    }
    Ok(true)
}

/// The smaller of two bounds.
pub(crate) fn smaller(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    a.into_iter().chain(b).min()
}

/// What the keywords for numbers demand, one expression per keyword.
pub(crate) fn number_demands(keywords: &Keywords) -> Result<Vec<NumberDemand>> {
    let above = keywords.minimums.iter().map(|(bound, is_strict)| {
        let keyword = if *is_strict { "exclusiveMinimum" } else { "minimum" };
        NumberDemand { keyword, texts: bound.above(*is_strict) }
    });
    let below = keywords.maximums.iter().map(|(bound, is_strict)| {
        let keyword = if *is_strict { "exclusiveMaximum" } else { "maximum" };
        NumberDemand { keyword, texts: bound.below(*is_strict) }
    });
    let mut demands: Vec<NumberDemand> = above.chain(below).collect();
    if let Some(unit) = &keywords.multiple_of {
        demands.push(NumberDemand { keyword: "multipleOf", texts: unit.multiples()? });
    }
    Ok(demands)
}

/// What the keywords for strings demand, one expression per keyword, except for `format`.
pub(crate) fn string_demands(keywords: &Keywords) -> Vec<RegexAst> {
    let mut demands = Vec::new();
    demands.extend(keywords.min_length.map(|min| regex(format!("(?s:.{{{min},}})"))));
    demands.extend(keywords.max_length.map(|max| regex(format!("(?s:.{{0,{max}}})"))));
    demands.extend(keywords.pattern.iter().map(|pattern| RegexAst::SearchRegex(pattern.clone())));
    demands
}

/// Restricts a shape to scalars, or to other values; `false` if no value is left.
pub(crate) fn one_of_scalars(shape: &mut ValueShape, scalars: &[Value], is_one: bool) -> Result<bool> {
    match shape {
        ValueShape::Null => Ok(scalars.contains(&Value::Null) == is_one),
        ValueShape::Boolean { may_be_false, may_be_true } => {
            *may_be_false &= scalars.contains(&Value::Bool(false)) == is_one;
            *may_be_true &= scalars.contains(&Value::Bool(true)) == is_one;
            Ok(*may_be_false || *may_be_true)
        }
        ValueShape::Number(number) => {
            let listed = scalars.iter().filter_map(Value::as_number).map(|number| {
                Ok(ListedNumber { value: Decimal::of("const or enum", number)?, number: number.clone() })
            });
            Ok(number.demand_listed(listed.collect::<Result<_>>()?, is_one))
        }
        ValueShape::String(string) => {
            let texts: Vec<RegexAst> = scalars
                .iter()
                .filter_map(Value::as_str)
                .map(|text| RegexAst::Literal(text.to_owned()))
                .collect();
            let is_any = !texts.is_empty();
            if is_any {
                let texts = RegexAst::Or(texts);
                string.parts.push(if is_one { texts } else { not(texts) });
            }
            Ok(!is_one || is_any)
        }
        ValueShape::Array(_) | ValueShape::Object(_) => Ok(!is_one),
    }
}
