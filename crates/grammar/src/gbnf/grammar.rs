//! A grammar of llama.cpp, as it is read.

/// The maximum number of rules.
pub(super) const MAX_RULES: usize = 1024;

/// The maximum nesting of brackets.
pub(super) const MAX_DEPTH: usize = 64;

/// The maximum number of characters, classes, names and brackets.
pub(super) const MAX_PIECES: usize = 16_384;

/// The maximum count of a repetition, that of llama.cpp.
pub(super) const MAX_REPETITIONS: u32 = 2000;

/// A grammar.
#[derive(Debug)]
pub(super) struct GbnfGrammar {
    pub rules: Vec<Alternatives>,
    /// The number of the rule `root`.
    pub root: usize,
}

/// Sequences of which a text is one.
pub(super) type Alternatives = Vec<Vec<GbnfItem>>;

/// A piece that is repeated.
#[derive(Debug)]
pub(super) struct GbnfItem {
    pub piece: GbnfPiece,
    pub min: u32,
    /// `None` without a maximum.
    pub max: Option<u32>,
}

/// A piece of a sequence.
#[derive(Debug)]
pub(super) enum GbnfPiece {
    /// These characters in order.
    Text(String),
    /// One character of these ranges, or of no one of them.
    Class { is_negated: bool, ranges: Vec<(char, char)> },
    /// What this rule describes.
    Rule(usize),
    /// What these alternatives describe.
    Group(Alternatives),
}

/// What a grammar is written as.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WrittenGbnf {
    /// A regular expression, in the syntax of the crate `regex`.
    Pattern(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}
