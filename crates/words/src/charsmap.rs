//! The character map of SentencePiece's normalizer (`precompiled_charsmap`): a double-array trie of
//! texts, and what replaces them.
//!
//! The format is SentencePiece's (`normalizer.cc`): the length of the trie in bytes, the trie's units
//! of 32 bits (Darts-clone, `darts.h`), and the replacements, each ended by a zero byte. Lookups
//! follow the `tokenizers` crate, which defines the ids: a grapheme of less than 6 bytes is looked up
//! as a whole, then by its characters. The shortest text in the trie that fits is replaced.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use girih_tensor::{Error, Result};
use unicode_segmentation::UnicodeSegmentation as _;

/// The maximum bytes of a map. That of T5 and XLM-R has 237,561.
const MAX_MAP_BYTES: usize = 8 << 20;
/// The maximum bytes of a replacement, which bounds the work per character of a text. The longest in
/// the four maps of SentencePiece 0.2.3 has 33: U+FDFA in NFKC, the longest decomposition in Unicode
/// (UAX #15, section 12). 256 leaves a map of its own seven times as much.
const MAX_REPLACEMENT_BYTES: usize = 256;
/// Graphemes of this many bytes or more are looked up by character.
const WHOLE_GRAPHEME_BYTES: usize = 6;

/// A character map.
#[derive(Debug)]
pub(super) struct CharsMap {
    units: Vec<u32>,
    replacements: String,
}

impl CharsMap {
    /// Reads a map in base64.
    ///
    /// # Errors
    /// When it is not one.
    pub(super) fn parse(base64: &str) -> Result<CharsMap> {
        if base64.len() > MAX_MAP_BYTES / 3 * 4 {
            return Err(Error::new(format!(
                "precompiled_charsmap has {} bytes in base64; the maximum is {}",
                base64.len(),
                MAX_MAP_BYTES / 3 * 4
            )));
        }
        let bytes = STANDARD.decode(base64);
        let bytes = bytes.map_err(|_| Error::new("precompiled_charsmap is not valid base64"))?;
        let parts = bytes.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length).filter(|_| length % 4 == 0)
        });
        let (units, replacements) = parts
            .ok_or_else(|| Error::new("precompiled_charsmap does not begin with the length of its trie"))?;
        let units = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements = std::str::from_utf8(replacements)
            .map_err(|_| Error::new("the replacements of precompiled_charsmap are not UTF-8"))?;
        if let Some(long) = replacements.split('\0').find(|text| text.len() > MAX_REPLACEMENT_BYTES) {
            return Err(Error::new(format!(
                "precompiled_charsmap has a replacement of {} bytes; the maximum is {MAX_REPLACEMENT_BYTES}",
                long.len()
            )));
        }
        Ok(CharsMap { units, replacements: replacements.to_owned() })
    }

    /// Calls `part` for each part of the text with its replacement, if it has one.
    pub(super) fn each_part<'a>(&'a self, text: &'a str, mut part: impl FnMut(&'a str, Option<&'a str>)) {
        for grapheme in text.graphemes(true) {
            let whole = if grapheme.len() < WHOLE_GRAPHEME_BYTES { self.replacement(grapheme) } else { None };
            if whole.is_some() {
                part(grapheme, whole);
                continue;
            }
            for (at, char) in grapheme.char_indices() {
                let one = &grapheme[at..at + char.len_utf8()];
                part(one, self.replacement(one));
            }
        }
    }

    /// What replaces a text that begins with one in the trie.
    fn replacement(&self, text: &str) -> Option<&str> {
        let rest = self.replacements.get(self.shortest(text.as_bytes())?..)?;
        rest.split('\0').next()
    }

    /// The value of the shortest text in the trie with which `key` begins.
    fn shortest(&self, key: &[u8]) -> Option<usize> {
        let unit = |at: usize| self.units.get(at).copied();
        let mut at = offset(unit(0)?);
        for byte in key.iter().take_while(|byte| **byte != 0) {
            at ^= usize::from(*byte);
            let here = unit(at)?;
            if label(here) != u32::from(*byte) {
                return None;
            }
            at ^= offset(here);
            if has_leaf(here) {
                return usize::try_from(unit(at)? & 0x7FFF_FFFF).ok();
            }
        }
        None
    }
}

/// Whether a text ends at a unit.
fn has_leaf(unit: u32) -> bool {
    unit >> 8 & 1 == 1
}

/// The byte of a unit; a value's unit has no byte, and its highest bit is set.
fn label(unit: u32) -> u32 {
    unit & (1 << 31 | 0xFF)
}

/// The distance from a unit to its children.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map in which `b` replaces `a`, in base64: units 0 and 64 ^ 'a', and the value after it.
    fn a_to_b() -> String {
        let mut units = vec![0_u32; 256];
        units[0] = 64 << 10;
        let at = 64 ^ usize::from(b'a');
        // Its child is at distance 16.
        units[at] = 16 << 10 | 1 << 8 | u32::from(b'a');
        units[at ^ 16] = 1 << 31;
        let mut bytes = 1024_u32.to_le_bytes().to_vec();
        bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend(b"b\0");
        STANDARD.encode(bytes)
    }

    #[test]
    fn a_part_of_the_text_is_replaced() {
        let map = CharsMap::parse(&a_to_b()).expect("a map");
        let mut all = String::new();
        map.each_part("banané", |part, new| all += new.unwrap_or(part));
        assert_eq!(all, "bbnbné");
        // A grapheme that begins with a text of the trie is replaced as a whole.
        let mut all = String::new();
        map.each_part("a\u{301}x", |part, new| all += new.unwrap_or(part));
        assert_eq!(all, "bx");
    }

    #[test]
    fn spoiled_maps_are_refused_or_replace_nothing() {
        let error = |text: &str| CharsMap::parse(text).expect_err("a bad map").to_string();
        assert_eq!(error("?"), "precompiled_charsmap is not valid base64");
        assert!(error("AAA=").contains("length of its trie"));
        assert!(error(&STANDARD.encode([9, 0, 0, 0, 1])).contains("length of its trie"));
        assert!(error(&STANDARD.encode([0, 0, 0, 0, 0xFF])).contains("not UTF-8"));
        assert!(error(&"A".repeat(MAX_MAP_BYTES * 2)).contains("the maximum is"));
        let long = |length: usize| STANDARD.encode([&[0; 4][..], &vec![b'a'; length], b"\0"].concat());
        let found = error(&long(MAX_REPLACEMENT_BYTES + 1));
        assert_eq!(found, "precompiled_charsmap has a replacement of 257 bytes; the maximum is 256");
        CharsMap::parse(&long(MAX_REPLACEMENT_BYTES)).expect("a replacement of 256 bytes");
        let empty = CharsMap::parse(&STANDARD.encode([0, 0, 0, 0])).expect("a map without texts");
        empty.each_part("ab", |_, new| assert_eq!(new, None));
    }
}
