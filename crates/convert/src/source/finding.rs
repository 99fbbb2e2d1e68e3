//! The results of comparing a file with its source.

/// The part of a model that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourcePart {
    /// The facts of the configuration.
    Facts,
    /// A weight.
    Weight,
    /// The tokenizer.
    Tokenizer,
    /// The chat template.
    ChatTemplate,
}

impl SourcePart {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            SourcePart::Facts => "facts",
            SourcePart::Weight => "weight",
            SourcePart::Tokenizer => "tokenizer",
            SourcePart::ChatTemplate => "chat template",
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceVerdict {
    /// The file has what the source has, as closely as its types allow.
    Agrees,
    /// It has something else.
    Differs,
    /// The source does not say.
    NotCompared,
}

impl SourceVerdict {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            SourceVerdict::Agrees => "agrees",
            SourceVerdict::Differs => "differs",
            SourceVerdict::NotCompared => "not compared",
        }
    }
}

/// One comparison of a file with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceFinding {
    /// What was compared.
    pub part: SourcePart,
    /// The weight, the fact or the kind of text.
    pub name: String,
    /// The result.
    pub verdict: SourceVerdict,
    /// How it was stored, or the first difference.
    pub detail: String,
    /// Of a weight, the root mean square of the error divided by that of the source's values.
    pub relative_error: Option<f64>,
}

impl SourceFinding {
    /// A finding without an error in numbers.
    pub(super) fn new(
        part: SourcePart,
        name: impl Into<String>,
        verdict: SourceVerdict,
        detail: impl Into<String>,
    ) -> SourceFinding {
        SourceFinding { part, name: name.into(), verdict, detail: detail.into(), relative_error: None }
    }
}
