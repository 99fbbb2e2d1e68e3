//! An alternative that is being followed, and what remains to be done for it.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::document::{Keywords, NodeId, SchemaNode, types};
use super::shape::{Alternative, Claim, JsonKind, Scope};

/// What remains to be done for an alternative.
#[derive(Clone)]
pub(crate) enum OpenChoice {
    AnyOf(Rc<SchemaNode>, Scope),
    OneOf(Rc<SchemaNode>, Scope),
    If(NodeId, NodeId, NodeId, Scope),
    Choice(Rc<SchemaNode>, usize, Scope),
    /// The name is absent, or its demands hold, too.
    Dependent(String, Vec<String>, Option<NodeId>, Scope),
    /// One of the node's keywords does not hold.
    Fails(Rc<SchemaNode>),
}

/// An alternative that is being followed.
#[derive(Clone)]
pub(crate) struct Branch {
    pub alternative: Alternative,
    pub claims: Vec<(Claim, Scope)>,
    pub choices: Vec<OpenChoice>,
    pub seen: BTreeSet<(Claim, Scope)>,
}

impl Branch {
    /// A copy with more claims.
    pub fn with(&self, claims: &[Claim], scope: Scope) -> Branch {
        let mut branch = self.clone();
        branch.claims.extend(claims.iter().rev().map(|claim| (*claim, scope)));
        branch
    }
}

/// The keywords of a node that has some.
pub(crate) fn keywords(node: &SchemaNode) -> &Keywords {
    match node {
        SchemaNode::Keywords(keywords) => keywords,
        SchemaNode::Always(_) => unreachable!("only nodes with keywords make choices"),
    }
}

/// Whether a set of types has values of a kind.
pub(crate) fn has_kind(set: u8, kind: JsonKind) -> bool {
    let bits = match kind {
        JsonKind::Null => types::NULL,
        JsonKind::Boolean => types::BOOLEAN,
        JsonKind::Number => types::NUMBER | types::INTEGER,
        JsonKind::String => types::STRING,
        JsonKind::Array => types::ARRAY,
        JsonKind::Object => types::OBJECT,
    };
    set & bits != 0
}
