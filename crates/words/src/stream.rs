//! Token ids to text, one id at a time, never splitting a character.
//!
//! The text of a whole sequence is defined as what comes out of a stream, so
//! that both are always equal. It is the text that HF's decoders give, with one
//! exception: a run of byte tokens that is not all valid UTF-8. HF gives U+FFFD
//! for each byte of such a run, which is known only at its end; here the valid
//! characters of the run are kept.

use super::decoding::Decoding;
use super::tokenizer::Tokenizer;

/// What becomes of special tokens in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// They are left out.
    Skip,
    /// They appear as they are spelled.
    Keep,
}

/// Turns a sequence of ids into text, id by id.
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    specials: Specials,
    /// The beginning of a character whose other bytes are still to come.
    pending: Vec<u8>,
    /// Characters that may still be taken off the beginning of the text.
    strip: usize,
}

impl<'t> Detokenizer<'t> {
    pub(super) fn new(tokenizer: &'t Tokenizer, specials: Specials) -> Detokenizer<'t> {
        let strip = match tokenizer.decoding() {
            Decoding::Pieces { strip: Some((_, times)), .. } => *times,
            _ => 0,
        };
        Detokenizer { tokenizer, specials, pending: Vec::new(), strip }
    }

    /// The text that this id completes: whole characters, perhaps none.
    ///
    /// An id without a token (the rows that pad an output layer have ids, too)
    /// gives U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        if self.specials == Specials::Skip && self.tokenizer.is_special(id) {
            return String::new();
        }
        match self.tokenizer.token(id) {
            Some(token) => self.pending.extend(self.tokenizer.decoding().bytes(token)),
            None => self.pending.extend("\u{FFFD}".bytes()),
        }
        let text = take_characters(&mut self.pending);
        self.stripped(text)
    }

    /// BosEos the text: U+FFFD for a character that was begun and not completed.
    pub fn finish(mut self) -> String {
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        self.stripped(text)
    }

    fn stripped(&mut self, mut text: String) -> String {
        let Decoding::Pieces { strip: Some((char, _)), .. } = self.tokenizer.decoding() else {
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

impl Tokenizer {
    /// The text of `ids`.
    pub fn decode(&self, ids: &[u32], specials: Specials) -> String {
        let mut stream = self.detokenizer(specials);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// A stream of text that ids are pushed into.
    pub fn detokenizer(&self, specials: Specials) -> Detokenizer<'_> {
        Detokenizer::new(self, specials)
    }
}

/// Takes the whole characters off the front of `bytes`; invalid ones become
/// U+FFFD, and the beginning of a character stays at the end.
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

/// Whether these bytes, which are no character, could become one.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_held_back_until_they_are_whole() {
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
