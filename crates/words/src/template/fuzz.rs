//! The entry of the fuzz target: everything in the parent process that sees
//! bytes from a user, a template or a worker. Rendering itself has no place
//! here, since it may end the process.

use super::generation::replace_generation_tags;
use super::mark::{Marks, SpecialTokens};
use super::protocol::{Answer, read_frame};
use crate::span::Origin;

/// The most special tokens: the check looks for each of them everywhere.
const TOKENS: usize = 64;

/// Any bytes as frames of a worker, as a template's source, and as special
/// tokens and strings of a user.
///
/// # Panics
/// If what a user wrote is not given back, or a special token in it would be
/// taken for one of the template.
pub fn fuzz(bytes: &[u8]) {
    let mut frames = bytes;
    while let Ok(Some(frame)) = read_frame(&mut frames, 1 << 16) {
        // Parsed or refused: either is fine.
        let _ = serde_json::from_slice::<Answer>(&frame);
    }
    let text = String::from_utf8_lossy(bytes);
    replace_generation_tags(&text);
    let (tokens, strings) = text.split_once('\n').unwrap_or(("<|a|>", &text));
    let tokens: Vec<String> = tokens.split(' ').take(TOKENS).map(str::to_owned).collect();
    check_marks(&tokens, &strings.split('\n').collect::<Vec<_>>());
}

/// Marks strings, joins them as a template may, and checks the spans.
fn check_marks(tokens: &[String], strings: &[&str]) {
    let special = SpecialTokens::new(tokens);
    let mut marks = Marks::new(&special, strings);
    let marked: Result<String, _> = strings.iter().map(|text| marks.mark_text(text)).collect();
    let Ok(marked) = marked else { return };
    let spans = marks.split(&marked);
    assert_eq!(spans.iter().map(|span| span.text.as_str()).collect::<String>(), strings.concat());
    for span in spans.iter().filter(|span| span.origin == Origin::Template) {
        let spelled = tokens.iter().find(|token| !token.is_empty() && span.text.contains(token.as_str()));
        assert_eq!(spelled, None, "left in {:?}", span.text);
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::fuzz;

    #[test]
    fn random_strings_of_few_letters_pass() {
        const LETTERS: &[u8] = b"<>|ab \n\n<{%}";
        let mut random = Random(0);
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..24).map(|_| random.of(LETTERS)).collect();
            fuzz(&bytes);
        }
    }
}
