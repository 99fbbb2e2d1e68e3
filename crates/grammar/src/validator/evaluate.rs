//! Evaluates the rules of a schema for a value.
//!
//! Rules that apply to the same value say which of its items or members they evaluated, where an
//! `unevaluated` rule asks for it. Work and nesting are counted, so hostile schemas and values end.

use serde_json::{Map, Value};

use super::json::{equal, exact, shortened, shown};
use super::number::ExactNumber;
use super::rule::{Counted, Limit, PropertyRules, Schema, SchemaId, SchemaRule};
use super::work::{Failure, Stopped, VISIT, ValueFault, Work, too_much};

/// The maximum nesting of visits, which fit into the stack of `on_deep_stack`.
const MAX_NESTING: u32 = 10_000;

type Verdict = Result<(), Failure>;

/// The items or members of one value that were evaluated, in their order; nothing where nobody asks.
struct EvaluatedParts(Option<Vec<bool>>);

impl EvaluatedParts {
    /// None is evaluated.
    fn of(value: &Value) -> EvaluatedParts {
        EvaluatedParts(Some(vec![false; parts(value)]))
    }

    /// Fresh marks for the same value, if these are asked for.
    fn fresh(&self) -> EvaluatedParts {
        EvaluatedParts(self.0.as_ref().map(|marks| vec![false; marks.len()]))
    }

    fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    fn mark(&mut self, part: usize) {
        if let Some(mark) = self.0.as_mut().and_then(|marks| marks.get_mut(part)) {
            *mark = true;
        }
    }

    fn has(&self, part: usize) -> bool {
        self.0.as_ref().is_some_and(|marks| marks.get(part) == Some(&true))
    }

    fn add(&mut self, other: &EvaluatedParts) {
        if let (Some(marks), Some(others)) = (&mut self.0, &other.0) {
            marks.iter_mut().zip(others).for_each(|(mark, other)| *mark |= other);
        }
    }
}

/// The number of items or members.
fn parts(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    }
}

/// One validation.
pub(super) struct Evaluation<'a> {
    schemas: &'a [Schema],
    work: Work,
    nesting: u32,
    /// The number of choices around the rule: faults inside are not told.
    choices: u32,
}

impl<'a> Evaluation<'a> {
    /// The validation of a value by the subschema 0.
    ///
    /// # Errors
    /// When the value violates a rule, or the work is used up.
    pub fn run(schemas: &'a [Schema], value: &Value) -> Verdict {
        let mut evaluation = Evaluation { schemas, work: Work::of_reply(), nesting: 0, choices: 0 };
        evaluation.visit(0, value, &mut EvaluatedParts(None))
    }

    fn visit(&mut self, id: SchemaId, value: &Value, marks: &mut EvaluatedParts) -> Verdict {
        self.work.spend(VISIT)?;
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(too_much().into());
        }
        let outcome = match &self.schemas[id] {
            Schema::Always(true) => Ok(()),
            Schema::Always(false) => self.fault(|| "no value is allowed here".to_owned()),
            Schema::Rules(rules) if rules.iter().any(SchemaRule::needs_marks) => {
                self.work.spend(parts(value) as u64)?;
                let mut own = EvaluatedParts::of(value);
                let outcome = rules.iter().try_for_each(|rule| self.rule(rule, value, &mut own));
                marks.add(&own);
                outcome
            }
            Schema::Rules(rules) => rules.iter().try_for_each(|rule| self.rule(rule, value, marks)),
        };
        self.nesting -= 1;
        outcome
    }

    /// Whether a subschema holds; faults are not told.
    fn holds(&mut self, id: SchemaId, value: &Value, marks: &mut EvaluatedParts) -> Result<bool, Stopped> {
        self.work.spend(parts(value) as u64 * u64::from(marks.are_wanted()))?;
        let mut own = marks.fresh();
        self.choices += 1;
        let outcome = self.visit(id, value, &mut own);
        self.choices -= 1;
        match outcome {
            Ok(()) => {
                marks.add(&own);
                Ok(true)
            }
            Err(Failure::Fault(_)) => Ok(false),
            Err(Failure::Stopped(stopped)) => Err(stopped),
        }
    }

    /// Visits a part of the value.
    fn part(&mut self, id: SchemaId, value: &Value, name: impl Fn() -> String) -> Verdict {
        self.visit(id, value, &mut EvaluatedParts(None)).map_err(|failure| match failure {
            Failure::Fault(fault) if self.choices == 0 => Failure::Fault(fault.within(name())),
            other => other,
        })
    }

    fn property_name(&mut self, id: SchemaId, name: &str) -> Verdict {
        self.visit(id, &Value::from(name), &mut EvaluatedParts(None)).map_err(|failure| match failure {
            Failure::Fault(fault) if self.choices == 0 => Failure::Fault(ValueFault::new(format!(
                "the name '{}': {}",
                shortened(name),
                fault.sentence()
            ))),
            other => other,
        })
    }

    fn fault(&self, reason: impl FnOnce() -> String) -> Verdict {
        Err(Failure::Fault(if self.choices == 0 { ValueFault::new(reason()) } else { ValueFault::default() }))
    }

    fn demand(&self, is_right: bool, reason: impl FnOnce() -> String) -> Verdict {
        if is_right { Ok(()) } else { self.fault(reason) }
    }

    fn rule(&mut self, rule: &SchemaRule, value: &Value, marks: &mut EvaluatedParts) -> Verdict {
        self.work.spend(1)?;
        match (rule, value) {
            (SchemaRule::All(all), value) => all.iter().try_for_each(|id| self.visit(*id, value, marks)),
            (SchemaRule::AnyOf(options), value) => self.any_of(options, value, marks),
            (SchemaRule::OneOf(options), value) => self.one_of(options, value, marks),
            (SchemaRule::Not(id), value) => {
                let holds = self.holds(*id, value, &mut EvaluatedParts(None))?;
                self.demand(!holds, || format!("{} satisfies what 'not' excludes", shown(value)))
            }
            (SchemaRule::If { condition, then, otherwise }, value) => {
                let holds = self.holds(*condition, value, marks)?;
                let next = if holds { then } else { otherwise };
                next.iter().try_for_each(|id| self.visit(*id, value, marks))
            }
            (SchemaRule::Items { first, others }, Value::Array(items)) => {
                self.items(first, *others, items, marks)
            }
            (SchemaRule::Contains { schema, min, max }, Value::Array(items)) => {
                self.contains(*schema, (min, max.as_ref()), items, marks)
            }
            (SchemaRule::UniqueItems, Value::Array(items)) => self.unique(items),
            (SchemaRule::UnevaluatedItems(id), Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    if !marks.has(at) {
                        self.part(*id, item, || at.to_string())?;
                        marks.mark(at);
                    }
                }
                Ok(())
            }
            (SchemaRule::Properties(rules), Value::Object(members)) => self.properties(rules, members, marks),
            (SchemaRule::UnevaluatedProperties(id), Value::Object(members)) => {
                for (at, (name, member)) in members.iter().enumerate() {
                    if !marks.has(at) {
                        self.part(*id, member, || shortened(name))?;
                        marks.mark(at);
                    }
                }
                Ok(())
            }
            (SchemaRule::PropertyNames(id), Value::Object(members)) => {
                members.keys().try_for_each(|name| self.property_name(*id, name))
            }
            (SchemaRule::DependentSchema(name, id), Value::Object(members)) if members.contains_key(name) => {
                self.visit(*id, value, marks)
            }
            (SchemaRule::DependentRequired(name, needed), Value::Object(members))
                if members.contains_key(name) =>
            {
                self.required(needed, members)
            }
            (SchemaRule::Required(needed), Value::Object(members)) => self.required(needed, members),
            (rule, value) => self.scalar(rule, value),
        }
    }

    fn any_of(&mut self, options: &[SchemaId], value: &Value, marks: &mut EvaluatedParts) -> Verdict {
        let mut any = false;
        for id in options {
            // Each option that holds evaluates parts.
            any = self.holds(*id, value, marks)? || any;
            if any && !marks.are_wanted() {
                break;
            }
        }
        self.demand(any, || format!("{} satisfies no option of 'anyOf'", shown(value)))
    }

    fn one_of(&mut self, options: &[SchemaId], value: &Value, marks: &mut EvaluatedParts) -> Verdict {
        let mut count = 0;
        for id in options {
            count += u32::from(self.holds(*id, value, marks)?);
            if count > 1 {
                return self.fault(|| format!("{} satisfies several options of 'oneOf'", shown(value)));
            }
        }
        self.demand(count == 1, || format!("{} satisfies no option of 'oneOf'", shown(value)))
    }

    fn items(
        &mut self,
        first: &[SchemaId],
        others: Option<SchemaId>,
        items: &[Value],
        marks: &mut EvaluatedParts,
    ) -> Verdict {
        for (at, item) in items.iter().enumerate() {
            let Some(id) = first.get(at).copied().or(others) else { break };
            self.part(id, item, || at.to_string())?;
            marks.mark(at);
        }
        Ok(())
    }

    fn contains(
        &mut self,
        schema: SchemaId,
        (min, max): (&Limit, Option<&Limit>),
        items: &[Value],
        marks: &mut EvaluatedParts,
    ) -> Verdict {
        let mut count = 0;
        for (at, item) in items.iter().enumerate() {
            if self.holds(schema, item, &mut EvaluatedParts(None))? {
                count += 1;
                marks.mark(at);
            }
        }
        let exact = ExactNumber::of_count(count);
        let sentence = |bound: &str, limit: &Limit| {
            format!("{count} items satisfy 'contains', the {bound} is {}", limit.text)
        };
        self.demand(exact >= min.value, || sentence("minimum", min))?;
        match max {
            Some(max) => self.demand(exact <= max.value, || sentence("maximum", max)),
            None => Ok(()),
        }
    }

    fn unique(&mut self, items: &[Value]) -> Verdict {
        for (at, item) in items.iter().enumerate() {
            for (earlier_at, earlier) in items[..at].iter().enumerate() {
                let is_same = equal(earlier, item, &mut self.work)?;
                self.demand(!is_same, || format!("the items {earlier_at} and {at} are equal: uniqueItems"))?;
            }
        }
        Ok(())
    }

    fn properties(
        &mut self,
        rules: &PropertyRules,
        members: &Map<String, Value>,
        marks: &mut EvaluatedParts,
    ) -> Verdict {
        for (at, (name, member)) in members.iter().enumerate() {
            self.work.spend(1 + name.len() as u64 / 16)?;
            let mut is_known = false;
            if let Some(id) = rules.named.get(name) {
                is_known = true;
                self.part(*id, member, || shortened(name))?;
            }
            for (pattern, id) in &rules.patterns {
                self.work.spend(work_of_match(name))?;
                if pattern.is_in(name) {
                    is_known = true;
                    self.part(*id, member, || shortened(name))?;
                }
            }
            if let Some(id) = rules.others.filter(|_| !is_known) {
                is_known = true;
                self.part(id, member, || shortened(name))?;
            }
            if is_known {
                marks.mark(at);
            }
        }
        Ok(())
    }

    fn required(&mut self, needed: &[String], members: &Map<String, Value>) -> Verdict {
        self.work.spend(needed.len() as u64)?;
        let missing = needed.iter().find(|name| !members.contains_key(*name));
        missing.map_or(Ok(()), |name| self.fault(|| format!("the property '{}' is missing", shortened(name))))
    }

    /// The rules that have no subschemas.
    fn scalar(&mut self, rule: &SchemaRule, value: &Value) -> Verdict {
        match (rule, value) {
            (SchemaRule::Types(types), value) => {
                for kind in types {
                    if kind.has(value)? {
                        return Ok(());
                    }
                }
                let names: Vec<&str> = types.iter().map(|kind| kind.name()).collect();
                self.fault(|| format!("{} has not the type {}", shown(value), names.join(" or ")))
            }
            (SchemaRule::Const(expected), value) => {
                let is_same = equal(expected, value, &mut self.work)?;
                self.demand(is_same, || format!("{} is not the value of 'const'", shown(value)))
            }
            (SchemaRule::Enum(all), value) => {
                for expected in all {
                    if equal(expected, value, &mut self.work)? {
                        return Ok(());
                    }
                }
                self.fault(|| format!("{} is no value of 'enum'", shown(value)))
            }
            (SchemaRule::Bound { keyword, limit, refused }, Value::Number(number)) => {
                let is_right = !refused.contains(&exact(number)?.cmp(&limit.value));
                self.demand(is_right, || format!("{number} violates {keyword} {}", limit.text))
            }
            (SchemaRule::MultipleOf(limit), Value::Number(number)) => {
                let is_multiple = exact(number)?.is_multiple_of(limit.value).ok_or(Stopped(
                    "the finished reply has a number that multipleOf cannot check exactly: use fewer digits",
                ))?;
                self.demand(is_multiple, || format!("{number} is no multiple of {}", limit.text))
            }
            (SchemaRule::Count { keyword, counted, limit, refused }, value) => {
                let count = match (counted, value) {
                    (Counted::Characters, Value::String(text)) => {
                        self.work.spend(text.len() as u64 / 16)?;
                        text.chars().count()
                    }
                    (Counted::Items, Value::Array(items)) => items.len(),
                    (Counted::Members, Value::Object(members)) => members.len(),
                    _ => return Ok(()),
                };
                let is_right = ExactNumber::of_count(count).cmp(&limit.value) != *refused;
                self.demand(is_right, || format!("a size of {count} violates {keyword} {}", limit.text))
            }
            (SchemaRule::Pattern(pattern), Value::String(text)) => {
                self.work.spend(work_of_match(text))?;
                self.demand(pattern.is_in(text), || {
                    format!("the string does not match the pattern '{}'", shortened(&pattern.text))
                })
            }
            (SchemaRule::Format { name, is_right }, Value::String(text)) => {
                self.work.spend(text.len() as u64 / 4)?;
                self.demand(is_right(text), || format!("the string has not the format '{name}'"))
            }
            // The value has another type.
            _ => Ok(()),
        }
    }
}

/// The work of a search, which is linear in the text.
fn work_of_match(text: &str) -> u64 {
    4 + text.len() as u64
}
