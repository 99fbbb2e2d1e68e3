//! Converts token ids to text, one id at a time, without splitting characters.
//!
//! The text of a whole sequence is defined as the concatenation of its stream, so
//! both are always equal. It equals the text of HF's decoders, except for a run of
//! byte tokens that contains invalid UTF-8: HF gives U+FFFD for each byte of such
//! a run, which is known only at its end; here the valid characters of the run are
//! kept.

use std::sync::Arc;

use super::decoding::Decoding;
use super::split::TextPosition;
use super::tokenizer::Tokenizer;

/// The handling of special tokens in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// Leaves them out.
    Skip,
    /// Writes them as in the vocabulary.
    Keep,
}

/// Converts a sequence of ids to text, id by id.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    stream: TextStream,
}

impl Detokenizer {
    /// Appends an id and returns the characters that it completes, perhaps none.
    ///
    /// An id without a token, such as that of a padding row of the output layer,
    /// gives U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        self.stream.push(&self.tokenizer, id)
    }

    /// Returns U+FFFD for an incomplete character, which the next token cannot complete.
    pub(crate) fn flush(&mut self) -> String {
        self.stream.flush(&self.tokenizer)
    }

    /// Ends the text: returns U+FFFD for an incomplete character.
    pub fn finish(self) -> String {
        self.stream.finish(&self.tokenizer)
    }
}

impl Tokenizer {
    /// Decodes `ids` to text.
    pub fn decode(&self, ids: &[u32], specials: Specials) -> String {
        let mut stream = TextStream::new(self, specials);
        let mut text: String = ids.iter().map(|id| stream.push(self, *id)).collect();
        text.push_str(&stream.finish(self));
        text
    }

    /// Returns a detokenizer for one sequence, which shares the tokenizer.
    pub fn detokenizer(self: &Arc<Self>, specials: Specials) -> Detokenizer {
        Detokenizer { tokenizer: Arc::clone(self), stream: TextStream::new(self, specials) }
    }
}

/// The state of one sequence. Each call takes the tokenizer of the sequence.
struct TextStream {
    specials: Specials,
    /// The first bytes of an incomplete character.
    pending: Vec<u8>,
    /// Characters that may still be removed from the beginning of the text.
    strip: usize,
    /// The position of the next token.
    position: TextPosition,
}

impl TextStream {
    fn new(tokenizer: &Tokenizer, specials: Specials) -> TextStream {
        let strip = match tokenizer.decoding() {
            Decoding::Pieces { strip: Some((_, times)), .. } => *times,
            _ => 0,
        };
        TextStream { specials, pending: Vec::new(), strip, position: TextPosition::Start }
    }

    fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.specials == Specials::Skip && tokenizer.is_special(id) {
            return String::new();
        }
        match tokenizer.token(id) {
            Some(token) => self.pending.extend(tokenizer.decoding().bytes(token, self.position)),
            None => self.pending.extend("\u{FFFD}".bytes()),
        }
        self.position = TextPosition::Later;
        let text = take_characters(&mut self.pending);
        self.stripped(tokenizer, text)
    }

    fn finish(mut self, tokenizer: &Tokenizer) -> String {
        self.flush(tokenizer)
    }

    fn flush(&mut self, tokenizer: &Tokenizer) -> String {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        self.stripped(tokenizer, text)
    }

    fn stripped(&mut self, tokenizer: &Tokenizer, mut text: String) -> String {
        let Decoding::Pieces { strip: Some((char, _)), .. } = tokenizer.decoding() else {
            return text;
        };
        while self.strip > 0 && !text.is_empty() {
            self.strip = if text.starts_with(*char) { self.strip - 1 } else { 0 };
            if text.starts_with(*char) {
                text.remove(0);
            }
        }
        text
    }
}

/// Removes and returns the complete characters at the front of `bytes`. Invalid
/// bytes become U+FFFD; the first bytes of an incomplete character remain.
fn take_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let rest = chunk.invalid();
        if rest.is_empty() || taken + rest.len() == bytes.len() && is_beginning(rest) {
            break;
        }
        text.push('\u{FFFD}');
        taken += rest.len();
    }
    bytes.drain(..taken);
    text
}

/// Whether these invalid bytes are the beginning of a character.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_characters_are_held_back() {
        let mut bytes = b"a\xE5\x8F".to_vec();
        assert_eq!(take_characters(&mut bytes), "a");
        assert_eq!(bytes, [0xE5, 0x8F]);
        bytes.push(0xAB);
        assert_eq!(take_characters(&mut bytes), "叫");
        assert!(bytes.is_empty());
    }

    #[test]
    fn any_split_of_any_bytes_gives_the_lossy_text_of_the_whole() {
        let bytes = b"a\xE5\x8Fb\xFF\xF0\x9F\xA6\x99\xE5\xE5\x8F\xAB\xC0\x80\xF0\x9F";
        for step in 1..=bytes.len() {
            let (mut pending, mut text) = (Vec::new(), String::new());
            for chunk in bytes.chunks(step) {
                pending.extend(chunk);
                text += &take_characters(&mut pending);
            }
            text += &String::from_utf8_lossy(&pending);
            assert_eq!(text, String::from_utf8_lossy(bytes), "in steps of {step}");
        }
    }
}
