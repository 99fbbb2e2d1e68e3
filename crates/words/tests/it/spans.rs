//! Prompts of spans are encoded like the joined text, except that special tokens
//! in a user's text are ignored.

use std::path::Path;

use girih_words::TextLimits;
use girih_words::{BosEos, Specials, TextOrigin, TextSpan, Tokenizer};

use crate::data;

/// A family: its folder, the template's text around a user's, and its end-of-turn
/// token.
struct ChatFamily {
    folder: &'static str,
    before: &'static str,
    after: &'static str,
    end: &'static str,
}

const CHAT_FAMILIES: [ChatFamily; 3] = [
    ChatFamily {
        folder: "llama3_2",
        before: "<|start_header_id|>user<|end_header_id|>\n\n",
        after: "<|eot_id|>",
        end: "<|eot_id|>",
    },
    ChatFamily {
        folder: "gemma3",
        before: "<start_of_turn>user\n",
        after: "<end_of_turn>\n",
        end: "<end_of_turn>",
    },
    ChatFamily { folder: "qwen3", before: "<|im_start|>user\n", after: "<|im_end|>\n", end: "<|im_end|>" },
];

fn template(text: &str) -> TextSpan {
    TextSpan { text: text.to_owned(), origin: TextOrigin::Template }
}

fn user(text: &str) -> TextSpan {
    TextSpan { text: text.to_owned(), origin: TextOrigin::User }
}

fn joined(spans: &[TextSpan]) -> String {
    spans.iter().map(|span| span.text.as_str()).collect()
}

fn open(folder: &Path) -> Tokenizer {
    Tokenizer::from_folder(folder, &TextLimits::DEFAULT).expect("a real tokenizer")
}

#[test]
fn special_tokens_in_user_text_are_plain_text() {
    let Some(data) = data::folder() else { return };
    for family in &CHAT_FAMILIES {
        let tokenizer = open(&data.join("tokenizers").join(family.folder));
        let end = tokenizer.id(family.end).expect("the end of a turn is a token");
        let (head, tail) = family.end.split_at(3);
        let spelled = ["", "x", " "].map(|edge| format!("{edge}{}{edge}", family.end));
        let mut users: Vec<Vec<TextSpan>> = spelled.iter().map(|text| vec![user(text)]).collect();
        // A user's text together with the text around it forms no special token
        // either.
        users.push(vec![user(head), user(tail)]);
        users.push(vec![template(head), user(tail)]);
        users.push(vec![user(head), template(tail)]);
        for users in users {
            let mut spans = vec![template(family.before)];
            spans.extend(users);
            spans.push(template(family.after));
            let ids = tokenizer.encode_spans(&spans, BosEos::Omit).expect("a chat");
            assert_eq!(ids.iter().filter(|id| **id == end).count(), 1, "{spans:?}");
            assert_eq!(tokenizer.decode(&ids, Specials::Keep), joined(&spans));
        }
        assert_eq!(tokenizer.encode(family.end, TextOrigin::Template, BosEos::Omit).expect("a token"), [end]);
        let plain = tokenizer.encode(family.end, TextOrigin::User, BosEos::Omit).expect("a text");
        assert!(plain.len() > 1 && plain.iter().all(|id| !tokenizer.is_special(*id)), "{plain:?}");
    }
}

#[test]
fn no_special_token_of_any_family_comes_from_user_text() {
    let Some(data) = data::folder() else { return };
    for family in &CHAT_FAMILIES {
        let tokenizer = open(&data.join("tokenizers").join(family.folder));
        for id in (0..tokenizer.vocab_size()).filter(|id| tokenizer.is_special(*id)) {
            let token = tokenizer.token(id).expect("a special token has a text");
            let ids = tokenizer.encode(token, TextOrigin::User, BosEos::Omit).expect("a text");
            assert!(ids.iter().all(|id| !tokenizer.is_special(*id)), "{token}: {ids:?}");
        }
    }
}
