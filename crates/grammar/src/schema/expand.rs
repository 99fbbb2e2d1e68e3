//! Claims about a value of one type as a disjunction of shapes.
//!
//! A claim is followed through the keywords that apply to the same value. Where these choose
//! (`anyOf`, `if`, a negation), the alternative is copied for each choice. Claims about parts of
//! the value stay claims, so references may be recursive.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use girih_tensor::Result;
use llguidance::derivre::RegexAst;

use super::branch::{Branch, OpenChoice, has_kind, keywords};
use super::document::{Choice, Document, Keywords, NodeId, SchemaNode, types};
use super::negate::{fail_array, fail_demand, fail_number, fail_object, fail_string};
use super::number::{NumberDemand, integers, is_empty_regex};
use super::restrict::{one_of_scalars, restrict};
use super::shape::{Alternative, Claim, JsonKind, Scope, ValueShape};
use crate::limits::refused;

/// The alternatives of claims for values of a type.
type Expanded = HashMap<(Vec<Claim>, JsonKind), Rc<Vec<Alternative>>>;

/// The maximum number of alternatives for values of one type in one place.
const MAX_ALTERNATIVES: usize = 512;

/// The maximum number of alternatives that are followed for a schema, also those that end.
const MAX_FOLLOWED: usize = 50_000;

/// The maximum number of options of `anyOf` beside `unevaluatedProperties` or
/// `unevaluatedItems`. Each set of options is an alternative.
const MAX_EVALUATED_OPTIONS: usize = 6;

/// A schema whose claims are expanded.
pub(crate) struct Expander<'a> {
    pub document: Document<'a>,
    followed: RefCell<usize>,
    /// Whether the subschemas that apply to the same value have been followed without a cycle.
    acyclic: RefCell<HashMap<NodeId, bool>>,
    expanded: RefCell<Expanded>,
}
impl<'a> Expander<'a> {
    pub fn new(document: Document<'a>) -> Expander<'a> {
        Expander {
            document,
            followed: RefCell::new(0),
            acyclic: RefCell::default(),
            expanded: RefCell::default(),
        }
    }

    /// An expander of another document, whose work counts with this one's.
    pub fn replaced(&self, document: Document<'a>) -> Expander<'a> {
        Expander { followed: RefCell::new(*self.followed.borrow()), ..Expander::new(document) }
    }

    /// The alternatives in which all claims hold for a value of this type.
    ///
    /// # Errors
    /// When a keyword is not supported, or there are too many alternatives.
    pub fn expand(&self, claims: &[Claim], kind: JsonKind) -> Result<Rc<Vec<Alternative>>> {
        let key = (claims.to_vec(), kind);
        if let Some(known) = self.expanded.borrow().get(&key) {
            return Ok(Rc::clone(known));
        }
        let mut done = Vec::new();
        let mut branches = vec![Branch {
            alternative: Alternative { shape: kind.any(), scopes: vec![0] },
            claims: claims.iter().rev().map(|claim| (*claim, 0)).collect(),
            choices: Vec::new(),
            seen: BTreeSet::new(),
        }];
        while let Some(mut branch) = branches.pop() {
            *self.followed.borrow_mut() += 1;
            if *self.followed.borrow() > MAX_FOLLOWED || branches.len() > MAX_FOLLOWED {
                return Err(refused(
                    "the schema has too many combinations of anyOf, oneOf, not or if: simplify it",
                ));
            }
            if let Some((claim, scope)) = branch.claims.pop() {
                if !branch.seen.insert((claim, scope)) || self.follow(&mut branch, claim, scope, kind)? {
                    branches.push(branch);
                }
            } else if let Some(choice) = branch.choices.pop() {
                self.choose(&branch, &choice, kind, &mut branches)?;
            } else {
                done.push(branch.alternative);
                if done.len() > MAX_ALTERNATIVES {
                    return Err(refused(format!(
                        "a part of the schema has more than {MAX_ALTERNATIVES} alternatives: simplify anyOf, oneOf, not or if"
                    )));
                }
            }
        }
        let done = Rc::new(done);
        self.expanded.borrow_mut().insert(key, Rc::clone(&done));
        Ok(done)
    }

    /// Adds what a claim demands; `false` if no value of this type can satisfy it.
    fn follow(&self, branch: &mut Branch, claim: Claim, scope: Scope, kind: JsonKind) -> Result<bool> {
        let node = self.document.node(claim.node)?;
        self.refuse_cycle(claim.node)?;
        let keywords = match &*node {
            SchemaNode::Always(always) => return Ok(*always == claim.holds),
            SchemaNode::Keywords(keywords) => keywords,
        };
        if !claim.holds {
            branch.choices.push(OpenChoice::Fails(Rc::clone(&node)));
            return Ok(true);
        }
        if keywords.types.is_some_and(|set| !has_kind(set, kind)) {
            return Ok(false);
        }
        let scope = self.scope_of(branch, keywords, scope, kind);
        let claims = &mut branch.claims;
        claims.extend(
            keywords.all_of.iter().chain(&keywords.reference).map(|node| (Claim::holds(*node), scope)),
        );
        claims.extend(keywords.not.map(|node| (Claim::fails(node), scope)));
        let choices = &mut branch.choices;
        if keywords.any_of.is_some() {
            choices.push(OpenChoice::AnyOf(Rc::clone(&node), scope));
        }
        if keywords.one_of.is_some() {
            choices.push(OpenChoice::OneOf(Rc::clone(&node), scope));
        }
        if let Some((condition, then, other)) = keywords.condition {
            choices.push(OpenChoice::If(condition, then, other, scope));
        }
        choices.extend((0..keywords.choices.len()).map(|at| OpenChoice::Choice(Rc::clone(&node), at, scope)));
        restrict(branch, keywords, scope)
    }

    /// The scope of a subschema's keywords.
    fn scope_of(&self, branch: &mut Branch, keywords: &Keywords, scope: Scope, kind: JsonKind) -> Scope {
        let claim = match kind {
            JsonKind::Array => keywords.unevaluated_items,
            JsonKind::Object => keywords.unevaluated_properties,
            _ => None,
        };
        let Some(node) = claim else { return scope };
        let Alternative { shape, scopes } = &mut branch.alternative;
        scopes.push(scope);
        let inner = scopes.len() - 1;
        match shape {
            ValueShape::Array(array) => array.unevaluated.push((inner, Claim::holds(node))),
            ValueShape::Object(object) => object.unevaluated.push((inner, Claim::holds(node))),
            _ => {}
        }
        inner
    }

    /// Adds the branches of a choice.
    fn choose(
        &self,
        branch: &Branch,
        choice: &OpenChoice,
        kind: JsonKind,
        out: &mut Vec<Branch>,
    ) -> Result<()> {
        let mut with = |claims: &[Claim], scope: Scope| out.push(branch.with(claims, scope));
        match choice {
            OpenChoice::AnyOf(node, scope) => {
                let options = keywords(node).any_of.as_deref().unwrap_or_default();
                for set in option_sets(options, *scope, kind)? {
                    with(&set, *scope);
                }
            }
            OpenChoice::OneOf(node, scope) => {
                let options = keywords(node).one_of.as_deref().unwrap_or_default();
                for chosen in options {
                    let mut claims = vec![Claim::holds(*chosen)];
                    for other in options.iter().filter(|other| *other != chosen) {
                        if !self.excludes(*chosen, *other, kind)? {
                            claims.push(Claim::fails(*other));
                        }
                    }
                    // An option that is listed twice holds twice.
                    if options.iter().filter(|other| *other == chosen).count() == 1 {
                        with(&claims, *scope);
                    }
                }
            }
            OpenChoice::If(condition, then, other, scope) => {
                with(&[Claim::holds(*condition), Claim::holds(*then)], *scope);
                with(&[Claim::fails(*condition), Claim::holds(*other)], *scope);
            }
            OpenChoice::Choice(node, at, scope) => {
                let Choice { scalars, nodes } = &keywords(node).choices[*at];
                nodes.iter().for_each(|node| with(&[Claim::holds(*node)], *scope));
                let mut branch = branch.clone();
                if one_of_scalars(&mut branch.alternative.shape, scalars, true)? {
                    out.push(branch);
                }
            }
            OpenChoice::Dependent(name, needed, schema, scope) => {
                out.extend(dependent(branch, name, needed, schema.map(|node| (Claim::holds(node), *scope))));
            }
            OpenChoice::Fails(node) => self.fail(branch, keywords(node), kind, out)?,
        }
        Ok(())
    }

    /// Adds a branch for each keyword that may not hold.
    fn fail(
        &self,
        branch: &Branch,
        keywords: &Keywords,
        kind: JsonKind,
        out: &mut Vec<Branch>,
    ) -> Result<()> {
        // What is found within a negation evaluates nothing outside of it.
        let scope = 0;
        if let Some(set) = keywords.types {
            if !has_kind(set, kind) {
                out.push(branch.clone());
                return Ok(());
            }
            if kind == JsonKind::Number && set & types::NUMBER == 0 {
                fail_demand(branch, NumberDemand { keyword: "type", texts: integers() }, out);
            }
        }
        let mut with = |claims: &[Claim]| out.push(branch.with(claims, scope));
        let fails = |nodes: &[NodeId]| nodes.iter().map(|node| Claim::fails(*node)).collect::<Vec<_>>();
        keywords.all_of.iter().chain(&keywords.reference).for_each(|node| with(&[Claim::fails(*node)]));
        keywords.not.into_iter().for_each(|node| with(&[Claim::holds(node)]));
        if let Some(options) = &keywords.any_of {
            with(&fails(options));
        }
        if let Some(options) = &keywords.one_of {
            with(&fails(options));
            for (at, first) in options.iter().enumerate() {
                options[at + 1..]
                    .iter()
                    .for_each(|second| with(&[Claim::holds(*first), Claim::holds(*second)]));
            }
        }
        if let Some((condition, then, other)) = keywords.condition {
            with(&[Claim::holds(condition), Claim::fails(then)]);
            with(&[Claim::fails(condition), Claim::fails(other)]);
        }
        for Choice { scalars, nodes } in &keywords.choices {
            let mut branch = branch.clone();
            if one_of_scalars(&mut branch.alternative.shape, scalars, false)? {
                branch.claims.extend(nodes.iter().map(|node| (Claim::fails(*node), scope)));
                out.push(branch);
            }
        }
        match kind {
            JsonKind::Number => fail_number(branch, keywords, out)?,
            JsonKind::String => fail_string(branch, keywords, out),
            JsonKind::Array => fail_array(branch, keywords, out)?,
            JsonKind::Object => fail_object(branch, keywords, out)?,
            JsonKind::Null | JsonKind::Boolean => {}
        }
        Ok(())
    }

    /// Whether two subschemas verifiably never hold for the same value of this type.
    fn excludes(&self, one: NodeId, other: NodeId, kind: JsonKind) -> Result<bool> {
        let mut claims = vec![Claim::holds(one), Claim::holds(other)];
        claims.sort_unstable();
        claims.dedup();
        self.is_empty(&claims, kind, 3)
    }

    /// Whether the claims verifiably allow no value of this type.
    fn is_empty(&self, claims: &[Claim], kind: JsonKind, depth: u32) -> Result<bool> {
        for alternative in self.expand(claims, kind)?.iter() {
            if !self.alternative_is_empty(alternative, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn alternative_is_empty(&self, alternative: &Alternative, depth: u32) -> Result<bool> {
        Ok(match &alternative.shape {
            ValueShape::Null => false,
            ValueShape::Boolean { may_be_false, may_be_true } => !may_be_false && !may_be_true,
            ValueShape::Number(number) => {
                !number.demands.is_empty() && is_empty_regex(&number.all()) == Some(true)
            }
            ValueShape::String(string) => {
                let parts = string.all();
                !parts.is_empty() && is_empty_regex(&RegexAst::And(parts)) == Some(true)
            }
            ValueShape::Array(array) => array.max.is_some_and(|max| array.min > max),
            ValueShape::Object(object) => {
                if object.required.intersection(&object.absent).next().is_some() {
                    return Ok(true);
                }
                for name in object.required.iter().filter(|_| depth > 0) {
                    let named = object.schemas.iter().flat_map(|schemas| &schemas.names).chain(&object.at);
                    let mut claims: Vec<Claim> =
                        named.filter(|(other, _)| other == name).map(|(_, claim)| *claim).collect();
                    claims.sort_unstable();
                    claims.dedup();
                    let mut is_empty = true;
                    for kind in JsonKind::ALL {
                        is_empty = is_empty && self.is_empty(&claims, kind, depth - 1)?;
                    }
                    if is_empty {
                        return Ok(true);
                    }
                }
                false
            }
        })
    }

    /// Refuses a cycle below a node, also one that no value reaches.
    ///
    /// # Errors
    /// As [`Expander::refuse_cycle`].
    pub fn refuse_cycles(&self, root: NodeId) -> Result<()> {
        let (mut todo, mut seen) = (vec![root], BTreeSet::from([root]));
        while let Some(node) = todo.pop() {
            self.refuse_cycle(node)?;
            if let SchemaNode::Keywords(keywords) = &*self.document.node(node)? {
                let next = keywords.in_place().into_iter().chain(keywords.parts());
                todo.extend(next.filter(|node| seen.insert(*node)));
            }
        }
        Ok(())
    }

    /// Refuses a subschema that refers to itself for the same value.
    ///
    /// # Errors
    /// When it does.
    fn refuse_cycle(&self, node: NodeId) -> Result<()> {
        match self.acyclic.borrow().get(&node) {
            Some(true) => return Ok(()),
            Some(false) => {
                return Err(refused(
                    "a $ref of the schema leads back to itself for the same value: break the cycle",
                ));
            }
            None => {}
        }
        self.acyclic.borrow_mut().insert(node, false);
        if let SchemaNode::Keywords(keywords) = &*self.document.node(node)? {
            for node in keywords.in_place() {
                self.refuse_cycle(node)?;
            }
        }
        self.acyclic.borrow_mut().insert(node, true);
        Ok(())
    }
}

/// The sets of options of `anyOf` that are followed.
fn option_sets(options: &[NodeId], scope: Scope, kind: JsonKind) -> Result<Vec<Vec<Claim>>> {
    if scope == 0 || !matches!(kind, JsonKind::Array | JsonKind::Object) {
        return Ok(options.iter().map(|node| vec![Claim::holds(*node)]).collect());
    }
    // What all options that hold evaluated counts, so each set of them is followed.
    if options.len() > MAX_EVALUATED_OPTIONS {
        return Err(refused(format!(
            "anyOf beside unevaluatedProperties or unevaluatedItems has {} options; the maximum is \
             {MAX_EVALUATED_OPTIONS}",
            options.len()
        )));
    }
    let set = |bits: u32| {
        let chosen = (0..).zip(options).filter(move |(at, _)| bits >> at & 1 == 1);
        chosen.map(|(_, node)| Claim::holds(*node)).collect()
    };
    Ok((1..1 << options.len()).map(set).collect())
}

/// The branches of a dependency: the property is absent, or it is present with what it needs.
fn dependent(branch: &Branch, name: &str, needed: &[String], claim: Option<(Claim, Scope)>) -> Vec<Branch> {
    let (mut absent, mut present) = (branch.clone(), branch.clone());
    let mut branches = Vec::new();
    if let ValueShape::Object(object) = &mut present.alternative.shape {
        object.required.insert(name.to_owned());
        object.required.extend(needed.iter().cloned());
        present.claims.extend(claim);
        branches.push(present);
    }
    if let ValueShape::Object(object) = &mut absent.alternative.shape
        && !object.required.contains(name)
    {
        object.absent.insert(name.to_owned());
        branches.push(absent);
    }
    branches
}
