//! Untrusted names in errors.

/// The maximum number of characters of a name in an error.
const QUOTED: usize = 80;

/// An untrusted name for an error: in quotes, with control characters escaped,
/// and shortened.
pub fn quote(name: &str) -> String {
    let shown: String = name.chars().take(QUOTED).flat_map(char::escape_debug).collect();
    let rest = if name.chars().nth(QUOTED).is_some() { "…" } else { "" };
    format!("'{shown}{rest}'")
}
