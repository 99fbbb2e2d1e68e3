//! Bytes as text.

use std::fmt::Write as _;

/// Two hexadecimal digits for each byte, in lower case.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string accepts all text");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::hexadecimal;

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hexadecimal(&[0, 0x0a, 0xff]), "000aff");
        assert_eq!(hexadecimal(&[]), "");
    }
}
