//! Decoders of `tokenizer.json`: convert tokens to bytes of text.

use super::byte_level;
use super::split::TextPosition;

/// A decoder of `tokenizer.json`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decoding {
    /// Each character is a byte of the byte-level alphabet.
    ByteLevel,
    /// Text with replacements, and byte tokens `<0xNN>`.
    Pieces {
        /// Applied to each token, in order.
        replace: Vec<(String, String)>,
        byte_fallback: bool,
        /// A character to remove from the beginning of the text, and the
        /// maximum number of times.
        strip: Option<(char, usize)>,
    },
    /// Text with marks for spaces.
    Metaspace {
        mark: char,
        /// Whether the marks of the first token are left out.
        opens: bool,
    },
    /// Words with spaces between them; a token with `prefix` continues a word.
    WordPiece {
        prefix: String,
        /// Whether to apply `CLEANUP` to each token.
        cleanup: bool,
    },
}

/// The replacements of `cleanup`, in order.
const CLEANUP: [(&str, &str); 11] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

impl Decoding {
    /// The bytes of text of `token`. `position` is its place among the decoded
    /// tokens.
    pub(super) fn bytes(&self, token: &str, position: TextPosition) -> Vec<u8> {
        match self {
            Decoding::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_level::byte_of).collect();
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Decoding::Pieces { replace, byte_fallback, .. } => {
                let text = replace.iter().fold(token.to_owned(), |text, (from, to)| text.replace(from, to));
                match byte_token(&text) {
                    Some(byte) if *byte_fallback => vec![byte],
                    _ => text.into_bytes(),
                }
            }
            Decoding::Metaspace { mark, opens } => {
                let space = if *opens && position == TextPosition::Start { "" } else { " " };
                token.replace(*mark, space).into_bytes()
            }
            Decoding::WordPiece { prefix, cleanup } => {
                let text = match (position, token.strip_prefix(prefix.as_str())) {
                    (TextPosition::Start, _) => token.to_owned(),
                    (TextPosition::Later, Some(rest)) => rest.to_owned(),
                    (TextPosition::Later, None) => format!(" {token}"),
                };
                let replaced = |text: String, (from, to): (&str, &str)| text.replace(from, to);
                let text = if *cleanup { CLEANUP.into_iter().fold(text, replaced) } else { text };
                text.into_bytes()
            }
        }
    }
}

impl Decoding {
    /// The number of bytes of text of a token that is not the first, mostly without making them.
    pub(super) fn len(&self, token: &str) -> usize {
        let replaced = |from: &str, to: &str| {
            let count = token.matches(from).count();
            token.len() - count * from.len() + count * to.len()
        };
        match self {
            Decoding::ByteLevel => {
                let bytes: Option<usize> =
                    token.chars().try_fold(0, |count, char| byte_level::byte_of(char).map(|_| count + 1));
                bytes.unwrap_or(token.len())
            }
            Decoding::Metaspace { mark, .. } => replaced(mark.encode_utf8(&mut [0; 4]), " "),
            Decoding::Pieces { replace, byte_fallback, .. } => match replace.as_slice() {
                [(from, to)] if !token.starts_with('<') || !byte_fallback => replaced(from, to),
                _ => self.bytes(token, TextPosition::Later).len(),
            },
            Decoding::WordPiece { .. } => self.bytes(token, TextPosition::Later).len(),
        }
    }
}

/// The byte of a token `<0xNN>`.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_hex { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_token_is_that_of_its_bytes() {
        let pieces = |replace: &[(&str, &str)], byte_fallback| Decoding::Pieces {
            replace: replace.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect(),
            byte_fallback,
            strip: None,
        };
        let decodings = [
            Decoding::ByteLevel,
            pieces(&[("▁", " ")], true),
            pieces(&[("▁", " ")], false),
            pieces(&[("▁", " "), (" ", "▁▁")], true),
            Decoding::Metaspace { mark: '▁', opens: true },
            Decoding::WordPiece { prefix: "##".to_owned(), cleanup: true },
        ];
        let tokens =
            ["Ġthe", "▁the▁", "<0x0A>", "<0xZZ>", "<a▁b", "##s", "Ġé", "é", "日本", "", ".", "▁<0x0A>"];
        for decoding in &decodings {
            for token in tokens {
                let bytes = decoding.bytes(token, TextPosition::Later);
                assert_eq!(decoding.len(token), bytes.len(), "{decoding:?} {token:?}");
            }
        }
    }

    #[test]
    fn only_two_hexadecimal_digits_make_a_byte_token() {
        assert_eq!((byte_token("<0x0A>"), byte_token("<0xff>")), (Some(10), Some(255)));
        for other in ["<0x-1>", "<0x+1>", "<0x1>", "<0x100>", "0x10", "<0xé>"] {
            assert_eq!(byte_token(other), None, "{other}");
        }
    }
}
