//! What a list of claims demands of a value of one type, without choices: one alternative of the
//! disjunctive normal form.

use std::collections::BTreeSet;

use llguidance::derivre::RegexAst;

use super::document::NodeId;
use super::format::StringFormat;
use super::number::{NumberShape, regex};

/// That a subschema holds for a value, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub node: NodeId,
    pub holds: bool,
}

impl Claim {
    pub fn holds(node: NodeId) -> Claim {
        Claim { node, holds: true }
    }

    pub fn fails(node: NodeId) -> Claim {
        Claim { node, holds: false }
    }
}

/// A part of a schema whose `unevaluatedItems` or `unevaluatedProperties` see what the keywords
/// beside and below them evaluated. The first one is the whole schema.
pub(crate) type Scope = usize;

/// The schemas of an array's items, from `prefixItems` and `items` of one subschema.
#[derive(Clone, Debug)]
pub(crate) struct ItemSchemas {
    pub prefix: Vec<Claim>,
    pub rest: Option<Claim>,
    pub scope: Scope,
}

/// The number of items that satisfy a claim, counted from an index.
#[derive(Clone, Debug)]
pub(crate) struct ContainedItems {
    pub from: usize,
    pub claim: Claim,
    pub min: usize,
    pub max: Option<usize>,
}

/// The demands on an array.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrayShape {
    pub schemas: Vec<ItemSchemas>,
    /// Claims on single items.
    pub at: Vec<(usize, Claim)>,
    pub min: usize,
    pub max: Option<usize>,
    pub contained: Vec<ContainedItems>,
    pub is_unique: bool,
    pub unevaluated: Vec<(Scope, Claim)>,
}

/// The schemas of an object's properties, from `properties`, `patternProperties` and
/// `additionalProperties` of one subschema.
#[derive(Clone, Debug, Default)]
pub(crate) struct PropertySchemas {
    pub names: Vec<(String, Claim)>,
    pub patterns: Vec<(String, Claim)>,
    pub rest: Option<Claim>,
    pub scope: Scope,
}

/// That an object has a property outside some names, whose value satisfies a claim.
#[derive(Clone, Debug)]
pub(crate) struct ExtraProperty {
    pub names: Vec<String>,
    pub claim: Claim,
}

/// The demands on an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectShape {
    pub schemas: Vec<PropertySchemas>,
    pub required: BTreeSet<String>,
    pub absent: BTreeSet<String>,
    /// Claims on single properties, if present.
    pub at: Vec<(String, Claim)>,
    pub min: usize,
    pub max: Option<usize>,
    /// Claims on all names, as strings.
    pub name_claims: Vec<Claim>,
    pub extra: Vec<ExtraProperty>,
    pub unevaluated: Vec<(Scope, Claim)>,
}

/// The demands on a string.
#[derive(Clone, Debug, Default)]
pub(crate) struct StringShape {
    /// Expressions that it must match, each as a whole.
    pub parts: Vec<RegexAst>,
    pub formats: Vec<&'static StringFormat>,
}

impl StringShape {
    /// The expressions of the texts that are written.
    pub fn written(&self) -> Vec<RegexAst> {
        self.with_formats(|format| format.written)
    }

    /// The expressions of all texts that meet the demands, and of some more.
    pub fn all(&self) -> Vec<RegexAst> {
        self.with_formats(|format| format.all)
    }

    fn with_formats(&self, pattern: impl Fn(&StringFormat) -> &'static str) -> Vec<RegexAst> {
        let formats = self.formats.iter().map(|format| regex(pattern(format)));
        self.parts.iter().cloned().chain(formats).collect()
    }
}

/// The demands on a value of one type.
#[derive(Clone, Debug)]
pub(crate) enum ValueShape {
    Null,
    Boolean { may_be_false: bool, may_be_true: bool },
    Number(NumberShape),
    String(StringShape),
    Array(ArrayShape),
    Object(ObjectShape),
}

/// A type of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum JsonKind {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl JsonKind {
    pub const ALL: [JsonKind; 6] = [
        JsonKind::Null,
        JsonKind::Boolean,
        JsonKind::Number,
        JsonKind::String,
        JsonKind::Array,
        JsonKind::Object,
    ];

    /// The demand that allows every value of this type.
    pub fn any(self) -> ValueShape {
        match self {
            JsonKind::Null => ValueShape::Null,
            JsonKind::Boolean => ValueShape::Boolean { may_be_false: true, may_be_true: true },
            JsonKind::Number => ValueShape::Number(NumberShape::default()),
            JsonKind::String => ValueShape::String(StringShape::default()),
            JsonKind::Array => ValueShape::Array(ArrayShape::default()),
            JsonKind::Object => ValueShape::Object(ObjectShape::default()),
        }
    }
}

/// An alternative: a shape, and the parent of each of its scopes.
#[derive(Clone, Debug)]
pub(crate) struct Alternative {
    pub shape: ValueShape,
    pub scopes: Vec<Scope>,
}

impl Alternative {
    /// Whether `scope` lies within `outer`, or is it.
    pub fn is_within(&self, mut scope: Scope, outer: Scope) -> bool {
        while scope != outer && scope != 0 {
            scope = self.scopes[scope];
        }
        scope == outer
    }
}
