//! The alphabet of byte-level BPE: one printable character for each byte.
//!
//! Printable Latin-1 bytes map to themselves, the other 68 bytes to the characters
//! from U+0100 on, in order (GPT-2, `encoder.py`, `bytes_to_unicode`).

use std::sync::LazyLock;

/// The highest character of the alphabet. It stands for byte 0xAD, the last of the
/// 68 bytes that are not printable.
const HIGHEST_CHAR: usize = 0x143;

static CHAR_OF_BYTE: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100_u32;
    std::array::from_fn(|byte| {
        let byte = u8::try_from(byte).expect("the array has 256 elements");
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).expect("U+0100 to U+0143 are characters")
    })
});

static BYTE_OF_CHAR: LazyLock<[Option<u8>; HIGHEST_CHAR + 1]> = LazyLock::new(|| {
    let mut bytes = [None; HIGHEST_CHAR + 1];
    for (byte, char) in (0..=255).zip(CHAR_OF_BYTE.iter()) {
        bytes[*char as usize] = Some(byte);
    }
    bytes
});

/// The character that stands for `byte`.
pub(super) fn char_of(byte: u8) -> char {
    CHAR_OF_BYTE[usize::from(byte)]
}

/// The byte that `char` stands for, if it is in the alphabet.
pub(super) fn byte_of(char: char) -> Option<u8> {
    BYTE_OF_CHAR.get(char as usize).copied().flatten()
}

/// Replaces each byte of a text by its character of the alphabet.
pub(super) fn spell(text: &str) -> String {
    text.bytes().map(char_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(b'a')), ('Ġ', 'Ċ', 'a'));
        assert_eq!(char_of(0xAD) as usize, HIGHEST_CHAR);
        assert_eq!((byte_of('ń'), byte_of('▁'), byte_of(' ')), (None, None, None));
    }
}
