//! Texts from outside: files and standard input, read no further than a text of
//! its kind may be long, whatever the system says of its length.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// The most bytes of a text from standard input.
const INPUT_BYTES: u64 = 64 << 20;

/// The most bytes of a description that a person writes, such as of an
/// architecture or of what is to become of each tensor.
pub const DESCRIPTION_BYTES: u64 = 1 << 20;

/// The text on standard input.
///
/// # Errors
/// When it is no text, or too long for one.
pub fn standard_input() -> Result<String> {
    text(io::stdin().lock(), INPUT_BYTES, "standard input")
}

/// The text of a file that has at most `most` bytes.
///
/// # Errors
/// When it cannot be read, is no text, or is longer.
pub fn text_file(path: &Path, most: u64) -> Result<String> {
    let name = path.display();
    text(File::open(path).map_err(|error| unreadable(&name, &error))?, most, &name)
}

fn text(from: impl Read, most: u64, name: impl Display) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&name, &error))?;
    if bytes.len() as u64 > most {
        return Err(Error::call(format!("{name}: has over {most} bytes, the most of such a text")));
    }
    String::from_utf8(bytes).map_err(|error| Error::call(format!("{name}: is no UTF-8: {error}")))
}

fn unreadable(name: impl Display, error: &io::Error) -> Error {
    Error::call(format!("{name}: cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_as_long_as_it_may_be_and_no_longer() {
        let refusal = |bytes: &[u8], most| match text(bytes, most, "a") {
            Err(Error::Call(sentence)) => sentence,
            other => panic!("{other:?}"),
        };
        assert_eq!(text(&b"four"[..], 4, "a").unwrap(), "four");
        assert_eq!(refusal(b"fiver", 4), "a: has over 4 bytes, the most of such a text");
        assert!(refusal(b"\xff", 4).starts_with("a: is no UTF-8"));
    }

    /// A device may say that it has no bytes, and have no end of them.
    #[test]
    fn what_never_ends_is_not_read_to_its_end() {
        let Err(Error::Call(sentence)) = text(io::repeat(b'a'), 1000, "a") else { panic!("read") };
        assert_eq!(sentence, "a: has over 1000 bytes, the most of such a text");
    }
}
