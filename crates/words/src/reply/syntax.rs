//! A style together with a vocabulary: which of its markers are special tokens there.

use std::sync::Arc;

use super::marker::{index_of, mark, without_marks};
use super::style::{MarkerRole, ReplyStyle};
use crate::stream::{Detokenizer, Specials};
use crate::tokenizer::Tokenizer;

/// A marker, and the text by which it is found: its spelling, or one character if it is a special
/// token.
#[derive(Clone, Debug)]
pub(super) struct Needle {
    pub role: MarkerRole,
    pub text: String,
    pub spelling: &'static str,
}

/// A style together with a vocabulary. Clones share their contents.
#[derive(Clone, Debug)]
pub struct ReplySyntax(Arc<Contents>);

#[derive(Debug)]
struct Contents {
    style: ReplyStyle,
    needles: Vec<Needle>,
    /// The special tokens among the markers, and the characters that stand for them.
    special: Vec<(u32, char)>,
}

impl ReplySyntax {
    /// The syntax of replies of a model with this tokenizer. A marker that is a special token of
    /// the vocabulary is found only as that token, not where a reply spells it.
    pub fn new(style: ReplyStyle, tokenizer: &Tokenizer) -> ReplySyntax {
        ReplySyntax::with(style, |spelling| tokenizer.id(spelling).filter(|id| tokenizer.is_special(*id)))
    }

    /// The syntax of replies in which all markers are spelled.
    pub fn spelled(style: ReplyStyle) -> ReplySyntax {
        ReplySyntax::with(style, |_| None)
    }

    pub(super) fn with(style: ReplyStyle, special_id: impl Fn(&str) -> Option<u32>) -> ReplySyntax {
        let (mut needles, mut special) = (Vec::new(), Vec::new());
        for (index, (role, spelling)) in style.markers().into_iter().enumerate() {
            let id = special_id(spelling);
            let text = if id.is_some() { mark(index).to_string() } else { spelling.to_owned() };
            special.extend(id.map(|id| (id, mark(index))));
            needles.push(Needle { role, text, spelling });
        }
        ReplySyntax(Arc::new(Contents { style, needles, special }))
    }

    /// The style.
    pub fn style(&self) -> ReplyStyle {
        self.0.style
    }

    pub(super) fn needles(&self) -> &[Needle] {
        &self.0.needles
    }

    /// The id of a marker that is a special token.
    pub(super) fn special_id(&self, spelling: &str) -> Option<u32> {
        let needle = self.needles().iter().find(|needle| needle.spelling == spelling)?;
        let mark = needle.text.chars().next()?;
        self.0.special.iter().find(|(_, special)| *special == mark).map(|(id, _)| *id)
    }

    /// The spelling of the special token for which a character stands.
    pub(super) fn spelling(&self, c: char) -> Option<&'static str> {
        self.needles().get(index_of(c)?).map(|needle| needle.spelling)
    }

    /// A text of a template with the markers that are special tokens as their characters.
    pub(super) fn with_marks(&self, text: &str) -> String {
        let special = self.needles().iter().filter(|needle| needle.text != needle.spelling);
        special.fold(text.to_owned(), |text, needle| text.replace(needle.spelling, &needle.text))
    }

    /// The text without the characters that stand for special tokens: what a user reads.
    pub fn visible(&self, text: String) -> String {
        if text.contains(super::marker::is_mark) { text.replace(super::marker::is_mark, "") } else { text }
    }

    /// A detokenizer of one reply, whose text a [`ReplyParser`](super::ReplyParser) reads: special tokens of the style
    /// are characters of their own, other special tokens are left out.
    pub fn detokenizer(&self, tokenizer: &Arc<Tokenizer>) -> ReplyDetokenizer {
        ReplyDetokenizer { syntax: self.clone(), text: tokenizer.detokenizer(Specials::Skip) }
    }
}

/// Converts the tokens of a reply to text for a [`ReplyParser`](super::ReplyParser).
pub struct ReplyDetokenizer {
    syntax: ReplySyntax,
    text: Detokenizer,
}

impl ReplyDetokenizer {
    /// Appends an id and returns the characters that it completes, perhaps none.
    pub fn push(&mut self, id: u32) -> String {
        match self.syntax.0.special.iter().find(|(special, _)| *special == id) {
            Some((_, mark)) => {
                let mut text = without_marks(self.text.flush());
                text.push(*mark);
                text
            }
            None => without_marks(self.text.push(id)),
        }
    }

    /// Ends the text: returns U+FFFD for an incomplete character.
    pub fn finish(self) -> String {
        self.text.finish()
    }
}
