//! Splits the streamed text of a reply into thinking and answer, by the tags that models write.

use crate::error::Result;

/// The tag that opens thinking.
const OPEN: &str = "<think>";

/// The tag that closes it.
const CLOSE: &str = "</think>";

/// What a part of a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// For the model itself, tags included.
    Thinking,
    /// For the user.
    Answer,
}

/// Splits text that arrives in pieces. An end that may begin a tag is held back.
#[derive(Debug)]
pub struct ThinkingSplitter {
    part: ReplyPart,
    held: String,
}

/// Whether the end of a prompt has opened the thinking, as some templates do.
pub fn is_opened_by(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

impl ThinkingSplitter {
    /// A splitter at the start of a reply.
    pub fn new(first: ReplyPart) -> ThinkingSplitter {
        ThinkingSplitter { part: first, held: String::new() }
    }

    /// Appends text, and passes on what is decided.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn push(&mut self, text: &str, mut take: impl FnMut(ReplyPart, &str) -> Result<()>) -> Result<()> {
        self.held.push_str(text);
        loop {
            let tag = match self.part {
                ReplyPart::Thinking => CLOSE,
                ReplyPart::Answer => OPEN,
            };
            let Some(at) = self.held.find(tag) else {
                let decided = self.held.len() - held_back(&self.held, tag);
                if decided > 0 {
                    take(self.part, &self.held[..decided])?;
                    self.held.drain(..decided);
                }
                return Ok(());
            };
            let rest = self.held.split_off(at + tag.len());
            let (before, tag) = self.held.split_at(at);
            if !before.is_empty() {
                take(self.part, before)?;
            }
            take(ReplyPart::Thinking, tag)?;
            self.held = rest;
            self.part = match self.part {
                ReplyPart::Thinking => ReplyPart::Answer,
                ReplyPart::Answer => ReplyPart::Thinking,
            };
        }
    }

    /// Passes on what was held back, at the end of the reply.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn finish(&mut self, mut take: impl FnMut(ReplyPart, &str) -> Result<()>) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() { Ok(()) } else { take(self.part, &held) }
    }

    /// The bytes that are held back.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

/// The number of bytes at the end of `text` that may begin `tag`.
fn held_back(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&count| text.ends_with(&tag[..count])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a reply that arrives in pieces of `size` characters; thinking is in brackets.
    fn split(first: ReplyPart, text: &str, size: usize) -> String {
        let mut splitter = ThinkingSplitter::new(first);
        let (mut answer, mut thinking) = (String::new(), String::new());
        let mut take = |part: ReplyPart, text: &str| {
            match part {
                ReplyPart::Thinking => thinking.push_str(text),
                ReplyPart::Answer => answer.push_str(text),
            }
            Ok(())
        };
        let letters: Vec<char> = text.chars().collect();
        for piece in letters.chunks(size) {
            splitter.push(&piece.iter().collect::<String>(), &mut take).unwrap();
        }
        splitter.finish(&mut take).unwrap();
        format!("[{thinking}]{answer}")
    }

    #[test]
    fn thinking_is_found_in_pieces_of_any_size() {
        let cases = [
            (ReplyPart::Answer, "<think>\nHm.</think>\nYes.", "[<think>\nHm.</think>]\nYes."),
            (ReplyPart::Thinking, "Hm.</think>Yes.", "[Hm.</think>]Yes."),
            (ReplyPart::Answer, "a < b <thin> c", "[]a < b <thin> c"),
            (ReplyPart::Answer, "é<think>never closed <", "[<think>never closed <]é"),
            (ReplyPart::Answer, "<think>a</think>b<think>c</think>", "[<think>a</think><think>c</think>]b"),
            (ReplyPart::Answer, "ends with <thi", "[]ends with <thi"),
        ];
        for (first, text, want) in cases {
            for size in 1..=text.chars().count() {
                assert_eq!(split(first, text, size), want, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_prompt_may_open_the_thinking() {
        assert!(is_opened_by("<|assistant|>\n<think>\n"));
        assert!(!is_opened_by("<think>\n\n</think>\n\n"));
    }
}
