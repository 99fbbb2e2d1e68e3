//! The names that clients may give to models, which become names of files.

use girih::{Error, ErrorKind, Result};
use girih_file::quote;

use crate::model_folder;

/// The maximum length of a name in bytes.
const NAME_BYTES: usize = 200;

/// Checks a name that a client gives to a model: `name` or `org/name`.
///
/// # Errors
/// When it is none, or a model would not be found under it.
pub fn check_target(name: &str) -> Result<()> {
    check_name(name)?;
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.split('/').any(model_folder::is_reserved) || !model_folder::is_own_name(last) {
        return Err(refused(format!(
            "{} is the name of a part, a projector or a file beside models: choose another name",
            quote(name)
        )));
    }
    Ok(())
}

/// Checks that a name leads nowhere else: `name` or `org/name` of plain letters.
///
/// # Errors
/// When it does not have this form.
pub fn check_name(name: &str) -> Result<()> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "-_.:+".contains(c);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(is_letter)
    };
    let parts: Vec<&str> = name.split('/').collect();
    if name.len() <= NAME_BYTES && parts.len() <= 2 && parts.iter().all(|part| is_part(part)) {
        return Ok(());
    }
    Err(refused(format!(
        "{} is no name of a model: NAME or ORG/NAME of letters, digits and -_.:+ is needed, at most {NAME_BYTES} bytes",
        quote(name)
    )))
}

/// Checks the length of a name, of a model that may be there.
///
/// # Errors
/// When it is too long.
pub fn check_length(name: &str) -> Result<()> {
    match name.len() > NAME_BYTES {
        true => Err(refused(format!(
            "a name of {} bytes is no name of a model; it has at most {NAME_BYTES}",
            name.len()
        ))),
        false => Ok(()),
    }
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["a", "org/name", "org/Qwen3-0.6B-GGUF:Q8_0", "a.b_c+d"] {
            check_target(name).unwrap();
        }
        for name in
            ["", "/a", "a/", "../a", "a/../b", "a/b/c", ".a", "org/.a", "-a", "a b", "a\\b", "ä", "a\n"]
        {
            assert!(check_name(name).is_err() && check_target(name).is_err(), "{name}");
        }
        for name in ["mmproj-x", "org/x-00002-of-00003", "girih.toml", "girih.toml/x", "org/tokenizer.json"] {
            let refused = check_target(name).unwrap_err().to_string();
            assert!(
                refused.contains("is the name of a part, a projector or a file beside models"),
                "{refused}"
            );
        }
        assert!(check_name(&"a".repeat(201)).is_err());
        assert!(check_length(&"a".repeat(201)).is_err() && check_length(&"a".repeat(200)).is_ok());
    }
}
