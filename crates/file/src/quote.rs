//! Names from outside, as errors show them.

/// The most characters of a name that an error repeats.
const QUOTED: usize = 80;

/// A name from outside as errors show it: in quotes, without control
/// characters, and not at any length.
pub fn quote(name: &str) -> String {
    let shown: String = name.chars().take(QUOTED).flat_map(char::escape_debug).collect();
    let rest = if name.chars().nth(QUOTED).is_some() { "…" } else { "" };
    format!("'{shown}{rest}'")
}
