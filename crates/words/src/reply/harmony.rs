//! Reads the header of a message in the harmony format of gpt-oss: its author, channel and recipient.
//! A header of Muse Glimmer has an author and a recipient, but no channel.

use super::object::is_name;
use super::style::{HARMONY, HarmonyToken};

/// The maximum bytes of a header.
pub(super) const MAX_HEADER_BYTES: usize = 512;

/// The end of a message and the header of the answer, as the template of gpt-oss writes them.
pub(super) const ANSWER: &str = "<|end|><|start|>assistant<|channel|>final<|message|>";

/// The end of a message and the header of the answer, as llama.cpp writes them for Muse Glimmer
/// (`common/parsers/muse-glimmer.cpp`).
pub(super) const ANSWER_TO_USER: &str = "<|eom|><|start|>assistant to=user<|message|>";

/// What the message after a header is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HarmonyMessage {
    Content,
    Thinking,
    /// The arguments of a call of this tool.
    Call(String),
    /// The header is not understood.
    Unknown,
}

/// The spelling of a marker within a header.
pub(super) fn spelling(token: HarmonyToken) -> &'static str {
    HARMONY.iter().find(|(known, _)| *known == token).map_or("", |(_, spelling)| spelling)
}

/// What the message after `header` is: the text from the role up to the marker of the message, such
/// as `assistant<|channel|>commentary to=functions.f <|constrain|>json`. The recipient may
/// also come before the channel.
pub(super) fn message(header: &str) -> HarmonyMessage {
    let header = header.replace(spelling(HarmonyToken::Constrain), " ");
    let (before, channel) = match header.split_once(spelling(HarmonyToken::Channel)) {
        Some((before, channel)) => (before, channel.split_whitespace().next()),
        None => (header.as_str(), None),
    };
    let role = before.split_whitespace().next().filter(|word| !word.starts_with("to="));
    let words = header.replace(spelling(HarmonyToken::Channel), " ");
    let recipient = words.split_whitespace().find_map(|word| word.strip_prefix("to="));
    match (role, recipient, channel) {
        (Some(role), ..) if role != "assistant" => HarmonyMessage::Unknown,
        (_, Some(recipient), _) => match recipient.strip_prefix("functions.") {
            Some(name) if is_name(name) => HarmonyMessage::Call(name.to_owned()),
            _ => HarmonyMessage::Unknown,
        },
        (_, None, Some("analysis")) => HarmonyMessage::Thinking,
        (_, None, None | Some("final" | "commentary")) => HarmonyMessage::Content,
        _ => HarmonyMessage::Unknown,
    }
}

/// What the message after `header` is in the format of Muse Glimmer, such as `assistant to=self`. A
/// message to a tool has its call as text between tags.
pub(super) fn message_to(header: &str) -> HarmonyMessage {
    let mut words = header.split_whitespace();
    let (role, recipient) = match words.next() {
        Some(word) if word.starts_with("to=") => (None, Some(word)),
        role => (role, words.next()),
    };
    let recipient = recipient.map(|word| word.strip_prefix("to="));
    match (role, recipient, words.next()) {
        (Some(role), ..) if role != "assistant" => HarmonyMessage::Unknown,
        (_, None | Some(Some("user")), None) => HarmonyMessage::Content,
        (_, Some(Some("self")), None) => HarmonyMessage::Thinking,
        (_, Some(Some(name)), None) if is_name(name) => HarmonyMessage::Content,
        _ => HarmonyMessage::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_a_message_is() {
        let call = || HarmonyMessage::Call("get_weather".to_owned());
        for (header, want) in [
            ("assistant<|channel|>analysis", HarmonyMessage::Thinking),
            ("<|channel|>final", HarmonyMessage::Content),
            ("<|channel|>commentary", HarmonyMessage::Content),
            ("", HarmonyMessage::Content),
            ("assistant<|channel|>commentary to=functions.get_weather <|constrain|>json", call()),
            ("<|channel|>commentary to=functions.get_weather<|constrain|>json", call()),
            ("assistant to=functions.get_weather<|channel|>commentary json", call()),
            (" to=functions.get_weather<|channel|>analysis", call()),
            ("<|channel|>to=functions.get_weather", call()),
            ("<|channel|>analysis to=python code", HarmonyMessage::Unknown),
            ("<|channel|>commentary to=functions. json", HarmonyMessage::Unknown),
            ("user<|channel|>final", HarmonyMessage::Unknown),
            ("<|channel|>secret", HarmonyMessage::Unknown),
        ] {
            assert_eq!(message(header), want, "{header}");
        }
    }

    #[test]
    fn headers_of_muse_glimmer_name_a_recipient() {
        for (header, want) in [
            ("assistant to=self", HarmonyMessage::Thinking),
            (" to=self", HarmonyMessage::Thinking),
            ("assistant", HarmonyMessage::Content),
            ("assistant to=user", HarmonyMessage::Content),
            ("assistant to=weather.get", HarmonyMessage::Content),
            ("tool weather", HarmonyMessage::Unknown),
            ("assistant weather", HarmonyMessage::Unknown),
            ("assistant to=self x", HarmonyMessage::Unknown),
        ] {
            assert_eq!(message_to(header), want, "{header}");
        }
    }
}
