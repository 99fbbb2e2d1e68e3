//! Texts from outside, as errors show them.

/// The beginning of a text, fit for an error message.
pub(super) fn short(text: &str) -> String {
    let mut chars = text.chars();
    let mut shown = String::new();
    for char in chars.by_ref().take(40) {
        if char.is_control() {
            shown.extend(char.escape_default());
        } else {
            shown.push(char);
        }
    }
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}
