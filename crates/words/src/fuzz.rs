//! Entry points of the fuzz targets: vocabularies in GGUF headers,
//! `tokenizer_config.json` files, and the replies of models.

use std::sync::Arc;

use girih_file::{Container, ContainerKind};

use crate::limits::TextLimits;
use crate::processor::TextProcessor;
use crate::reply::{ReplyMessage, ReplyPart, ReplyStyle, ReplySyntax};
use crate::span::TextOrigin;
use crate::stream::Specials;
use crate::tokenizer::{BosEos, Tokenizer};

/// A text with a special token, a character of three bytes, and digits.
const TEXT: &str = "Once upon a time <s> there were 1234 ▁words.\n\u{0}";

/// Reads any bytes as a GGUF file: refused, or a consistent tokenizer.
///
/// # Panics
/// If the tokenizer is inconsistent.
pub fn gguf_tokenizer(bytes: &[u8]) {
    let Ok(container) =
        Container::memory(ContainerKind::Gguf, "fuzz", bytes.to_vec(), &TextLimits::DEFAULT.file)
    else {
        return;
    };
    if let Ok(processor) = TextProcessor::of_gguf(container.metadata(), &TextLimits::DEFAULT) {
        check_tokenizer(&processor.tokenizer);
    }
}

/// Reads any bytes as the `tokenizer_config.json` of this `tokenizer.json`.
///
/// # Panics
/// If the tokenizer is inconsistent.
pub fn tokenizer_config(tokenizer: &[u8], config: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_bytes(tokenizer, config, &TextLimits::DEFAULT) {
        check_tokenizer(&Arc::new(tokenizer));
    }
}

/// Checks that all ids are in the vocabulary, and that streaming and whole
/// decoding give the same text.
fn check_tokenizer(tokenizer: &Arc<Tokenizer>) {
    let Ok(ids) = tokenizer.encode(TEXT, TextOrigin::Template, BosEos::Add) else { return };
    assert!(ids.iter().all(|id| tokenizer.token(*id).is_some()));
    let mut stream = tokenizer.detokenizer(Specials::Keep);
    let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pieces + &stream.finish(), tokenizer.decode(&ids, Specials::Keep));
}

/// Reads any bytes as a reply: a byte for the style and for whether there are tools, one for the
/// length of pieces, and text.
///
/// # Panics
/// If the parts depend on the pieces, calls overlap, arguments without a fault are no object, or
/// text without thinking, calls and channels is changed.
pub fn reply(bytes: &[u8]) {
    let [first, size, text @ ..] = bytes else { return };
    // The detokenizer replaces the noncharacters that stand for special tokens.
    let is_text = |c: &char| !('\u{fdd0}'..='\u{fdef}').contains(c);
    let text: String = String::from_utf8_lossy(text).chars().filter(is_text).collect();
    let syntax = ReplySyntax::spelled(style(*first));
    let parse = |size: usize| {
        let mut parser = syntax.parser(first & 1 == 0);
        let letters: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in letters.chunks(size) {
            let piece: String = piece.iter().collect();
            parts.extend(parser.push(&piece));
        }
        parts.extend(parser.finish());
        joined(parts)
    };
    let whole = parse(text.len().max(1));
    assert_eq!(parse(usize::from(*size).max(1)), whole);
    let mut is_in_call = false;
    for part in &whole {
        let (must_be_in_call, will_be) = match part {
            ReplyPart::Content(_) | ReplyPart::Thinking(_) => (false, false),
            ReplyPart::CallBegin { .. } => (false, true),
            ReplyPart::Arguments(_) => (true, true),
            ReplyPart::CallEnd { .. } => (true, false),
        };
        assert_eq!(is_in_call, must_be_in_call, "{whole:?}");
        is_in_call = will_be;
    }
    assert!(!is_in_call, "{whole:?}");
    let message: ReplyMessage = whole.iter().collect();
    let has_markup =
        ["<think>", "<seed:think>", "[THINK]", "<|", "\u{fdd0}"].iter().any(|marker| text.contains(marker));
    if message.calls.is_empty() && !has_markup && !text.trim().is_empty() {
        assert_eq!(message.content, text);
    }
    for call in message.calls.iter().filter(|call| call.fault.is_none()) {
        serde_json::from_str::<serde_json::Map<_, _>>(&call.arguments).expect("the arguments are an object");
    }
}

/// The style that the first byte of a reply's input chooses.
fn style(first: u8) -> ReplyStyle {
    let styles: Vec<ReplyStyle> = ReplyStyle::all().collect();
    styles[usize::from(first >> 1) % styles.len()]
}

/// The parts with neighbours of one kind joined.
fn joined(parts: Vec<ReplyPart>) -> Vec<ReplyPart> {
    let mut all: Vec<ReplyPart> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(ReplyPart::Content(last)), ReplyPart::Content(text))
            | (Some(ReplyPart::Thinking(last)), ReplyPart::Thinking(text))
            | (Some(ReplyPart::Arguments(last)), ReplyPart::Arguments(text)) => last.push_str(&text),
            (_, part) => all.push(part),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    /// What the styles are made of.
    const FRAGMENTS: &[&str] = &[
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "{\"name\":\"f\",\"arguments\":{",
        "}}",
        "}",
        "{",
        "[",
        "]",
        "\"a\":",
        "1",
        "\"x\"",
        ",",
        ":",
        "\"",
        "\\",
        "u",
        "d800",
        " ",
        "\n",
        ";",
        "<",
        "[TOOL_CALLS]",
        "[ARGS]",
        "f",
        "(",
        ")",
        "a=",
        "'",
        "`",
        "```tool_code",
        "```",
        "print(",
        "<|python_tag|>",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "final",
        "analysis",
        " to=functions.f",
        "assistant",
        "\u{fdd0}",
        "\u{e9}",
        "[THINK]",
        "[/THINK]",
        "[CALL_ID]",
        "true",
        "\"name\":\"g\"",
        "\"parameters\":{}",
        "<function=",
        "<parameter=",
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<minimax:tool_call>",
        "<invoke name=\"f\">",
        "<parameter name=\"a\">",
        "</invoke>",
        "</minimax:tool_call>",
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<seed:think>",
        "</seed:think>",
        "<|message|>",
        "<|eom|>",
        " to=self",
        "<atem:function_calls>",
        "<atem:invoke name=\"f\">",
        "</atem:invoke>",
        "</atem:function_calls>",
        "<|tool_call|>",
        "<tool_calls>",
        "<response>",
        "</response>",
        ">",
    ];

    /// A new style moves those after it; then the seeds' first bytes must change.
    #[test]
    fn seeds_of_replies_have_the_style_of_their_name_and_a_call() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/reply");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("the folder of seeds") {
            let path = entry.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a seed");
            let name = path.file_name().expect("a name").to_string_lossy();
            assert_eq!(style(bytes[0]).name(), name);
            reply(&bytes);
            let mut parser = ReplySyntax::spelled(style(bytes[0])).parser(bytes[0] & 1 == 0);
            let mut parts = parser.push(std::str::from_utf8(&bytes[2..]).expect("a text"));
            parts.extend(parser.finish());
            let message: ReplyMessage = parts.iter().collect();
            assert_eq!(message.calls.first().map(|call| call.name.as_str()), Some("f"), "{name}");
            count += 1;
        }
        assert_eq!(count, 9);
    }

    #[test]
    fn random_fragments_of_all_styles_pass() {
        for seed in 0..20_000 {
            println!("seed {seed}");
            let mut random = Random(seed);
            let mut bytes = vec![random.below(34) as u8, random.below(5) as u8];
            for _ in 0..random.below(24) {
                bytes.extend(random.of(FRAGMENTS).bytes());
            }
            reply(&bytes);
        }
    }
}
