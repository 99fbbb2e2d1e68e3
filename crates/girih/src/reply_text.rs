//! The text of a reply, from its tokens.

use girih_engine::text::Detokenize;
use girih_graph::Result;
use girih_words::reply::ReplyDetokenizer;
use girih_words::{Detokenizer, Specials};

use crate::model::Model;
use crate::reply_format::ReplyFormat;

/// The text of a reply.
pub(crate) enum ReplyText {
    /// Without special tokens.
    Plain(Detokenizer),
    /// With characters for the special tokens of its style.
    Marked(ReplyDetokenizer),
}

impl ReplyText {
    /// An empty text, of a reply in this format.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn new(model: &Model, format: Option<&ReplyFormat>) -> Result<ReplyText> {
        Ok(match format {
            None => ReplyText::Plain(model.text_processor()?.tokenizer.detokenizer(Specials::Skip)),
            Some(format) => ReplyText::Marked(format.detokenizer(model)?),
        })
    }

    /// The start of the text that continues `prompt`. The prompt decides whether the first
    /// word has a space before it.
    pub fn after(mut self, prompt: &[u32]) -> ReplyText {
        prompt.iter().for_each(|id| drop(self.push(*id)));
        self
    }
}

impl Detokenize for ReplyText {
    fn push(&mut self, id: u32) -> String {
        match self {
            ReplyText::Plain(text) => text.push(id),
            ReplyText::Marked(text) => text.push(id),
        }
    }

    fn finish(self: Box<Self>) -> String {
        match *self {
            ReplyText::Plain(text) => text.finish(),
            ReplyText::Marked(text) => text.finish(),
        }
    }
}
