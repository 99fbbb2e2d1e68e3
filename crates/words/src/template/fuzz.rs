//! Entry point of the fuzz target: everything in the parent process that reads
//! bytes from a user, a template or a worker. Rendering is excluded because it may
//! end the process.

use super::generation::replace_generation_tags;
use super::mark::{Marks, SpecialTokens};
use super::protocol::{RenderAnswer, read_frame};
use crate::span::TextOrigin;

/// The maximum number of special tokens: the check searches every span for each of
/// them.
const MAX_TOKENS: usize = 64;

/// Reads any bytes as frames of a worker, as a template's source, and as special
/// tokens and strings of a user.
///
/// # Panics
/// If a user's text is not restored, or a special token in it is treated as one of
/// the template.
pub fn fuzz(bytes: &[u8]) {
    let mut frames = bytes;
    while let Ok(Some(frame)) = read_frame(&mut frames, 1 << 16) {
        // Parsed or refused: either is fine.
        let _ = serde_json::from_slice::<RenderAnswer>(&frame);
    }
    let text = String::from_utf8_lossy(bytes);
    replace_generation_tags(&text);
    let (tokens, strings) = text.split_once('\n').unwrap_or(("<|a|>", &text));
    let tokens: Vec<String> = tokens.split(' ').take(MAX_TOKENS).map(str::to_owned).collect();
    check_marks(&tokens, &strings.split('\n').collect::<Vec<_>>());
}

/// Marks strings, concatenates them as a template may, and checks the spans.
fn check_marks(tokens: &[String], strings: &[&str]) {
    let special = SpecialTokens::new(tokens);
    let mut marks = Marks::new(&special, strings);
    let marked: Result<String, _> = strings.iter().map(|text| marks.mark_text(text)).collect();
    let Ok(marked) = marked else { return };
    let spans = marks.split(&marked);
    assert_eq!(spans.iter().map(|span| span.text.as_str()).collect::<String>(), strings.concat());
    for span in spans.iter().filter(|span| span.origin == TextOrigin::Template) {
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
        for seed in 0..50_000 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let bytes: Vec<u8> = (0..24).map(|_| random.of(LETTERS)).collect();
            fuzz(&bytes);
        }
    }
}
