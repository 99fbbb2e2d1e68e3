//! The styles in which models write thinking and calls of tools: a table of their markers.
//!
//! | style | a call | source |
//! |---|---|---|
//! | `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | template of Qwen3 |
//! | `llama3` | the whole reply is `{"name": …, "parameters": {…}}`, perhaps after `<\|python_tag\|>`, which may also be followed by `name.call(key="…")` | templates of Llama 3.1 and 3.2 |
//! | `pythonic` | the whole reply is `[name(key="…"), name()]`, perhaps between `<\|python_start\|>` and `<\|python_end\|>` | Meta's prompt formats of Llama 3.2 and 4 |
//! | `gemma` | as `pythonic` or `llama3` without tags, or either form in a fence `tool_code`, `tool_call` or `json` | Google's guide to function calling, as the template of Gemma 3 has no tools |
//! | `mistral` | `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]` or `[TOOL_CALLS]name[ARGS]{…}` | templates of Mistral Small 3.1 and 3.2 |
//! | `gpt-oss` | `<\|channel\|>commentary to=functions.name <\|constrain\|>json<\|message\|>{…}<\|call\|>` | OpenAI's description of the harmony format |
//! | `plain` | none | |
//!
//! Thinking is between `<think>` and `</think>`, for `mistral` also `[THINK]` and `[/THINK]`, and
//! for `gpt-oss` the channel `analysis`.

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};

/// The form of a call, after its opening marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `{"name": …, "arguments": {…}}`; `parameters` also names the arguments.
    Object,
    /// A JSON list of such objects.
    ObjectList,
    /// A name, then a JSON object.
    Named,
    /// `name(key=value)` in Python, or several, one per line.
    Python,
    /// A Python list of such calls.
    PythonList,
}

/// Calls between markers.
#[derive(Debug)]
pub(super) struct CallSyntax {
    pub open: &'static str,
    pub close: Option<&'static str>,
    pub forms: &'static [Form],
}

/// A marker of the harmony format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HarmonyToken {
    Start,
    Channel,
    Constrain,
    Message,
    /// `<|end|>`, `<|return|>` or `<|call|>`: the message ends.
    End,
}

/// What a marker does. Numbers are indices of the style's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkerRole {
    ThinkingOpen(usize),
    ThinkingClose(usize),
    CallOpen(usize),
    CallClose(usize),
    /// Between a name and an id of [`Form::Named`].
    CallId,
    /// Before the arguments of [`Form::Named`].
    Arguments,
    Harmony(HarmonyToken),
}

/// One style.
#[derive(Debug)]
pub(super) struct Style {
    pub name: &'static str,
    pub thinking: &'static [(&'static str, &'static str)],
    pub calls: &'static [CallSyntax],
    /// The forms of calls that are a whole reply, without markers.
    pub bare: &'static [Form],
    pub is_harmony: bool,
    /// A template has this style if it contains all of `has` of an entry and none of `lacks`.
    signs: &'static [Signs],
}

#[derive(Debug)]
struct Signs {
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

const THINK: (&str, &str) = ("<think>", "</think>");

const PLAIN: Style =
    Style { name: "plain", thinking: &[THINK], calls: &[], bare: &[], is_harmony: false, signs: &[] };

/// The markers of [`Form::Named`].
pub(super) const CALL_ID: &str = "[CALL_ID]";
pub(super) const ARGUMENTS: &str = "[ARGS]";

/// The markers of harmony.
pub(super) const HARMONY: [(HarmonyToken, &str); 7] = [
    (HarmonyToken::Start, "<|start|>"),
    (HarmonyToken::Channel, "<|channel|>"),
    (HarmonyToken::Constrain, "<|constrain|>"),
    (HarmonyToken::Message, "<|message|>"),
    (HarmonyToken::End, "<|end|>"),
    (HarmonyToken::End, "<|return|>"),
    (HarmonyToken::End, "<|call|>"),
];

/// The styles, in the order in which a template is compared with their signs.
static STYLES: [Style; 7] = [
    Style {
        name: "gpt-oss",
        thinking: &[],
        is_harmony: true,
        signs: &[Signs { has: &["<|channel|>", "<|message|>"], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "mistral",
        thinking: &[("[THINK]", "[/THINK]"), THINK],
        calls: &[CallSyntax {
            open: "[TOOL_CALLS]",
            close: None,
            forms: &[Form::ObjectList, Form::Object, Form::Named],
        }],
        signs: &[
            Signs { has: &["[TOOL_CALLS]"], lacks: &[] },
            Signs { has: &["[INST]", "[THINK]"], lacks: &[] },
        ],
        ..PLAIN
    },
    Style {
        name: "hermes",
        calls: &[CallSyntax { open: "<tool_call>", close: Some("</tool_call>"), forms: &[Form::Object] }],
        // Qwen3-Coder and GLM write XML between the same tags.
        signs: &[Signs { has: &["<tool_call>"], lacks: &["<function=", "<arg_key>"] }],
        ..PLAIN
    },
    Style {
        name: "pythonic",
        calls: &[CallSyntax {
            open: "<|python_start|>",
            close: Some("<|python_end|>"),
            forms: &[Form::PythonList],
        }],
        bare: &[Form::PythonList],
        signs: &[Signs { has: &["[func_name1("], lacks: &["<start_of_turn>"] }],
        ..PLAIN
    },
    Style {
        name: "llama3",
        calls: &[CallSyntax { open: "<|python_tag|>", close: None, forms: &[Form::Object, Form::Python] }],
        bare: &[Form::Object],
        signs: &[
            Signs { has: &["<|start_header_id|>", "\"parameters\""], lacks: &[] },
            Signs { has: &["<|python_tag|>"], lacks: &[] },
        ],
        ..PLAIN
    },
    Style {
        name: "gemma",
        calls: &[
            CallSyntax { open: "```tool_code", close: Some("```"), forms: &GEMMA_FENCE },
            CallSyntax { open: "```tool_call", close: Some("```"), forms: &GEMMA_FENCE },
            CallSyntax { open: "```json", close: Some("```"), forms: &[Form::Object, Form::ObjectList] },
        ],
        bare: &[Form::Object, Form::PythonList],
        signs: &[Signs { has: &["<start_of_turn>"], lacks: &["<start_function_call>"] }],
        ..PLAIN
    },
    PLAIN,
];

const GEMMA_FENCE: [Form; 3] = [Form::Object, Form::PythonList, Form::Python];

/// The style in which a model writes thinking and calls of tools; see the table of the module.
#[derive(Clone, Copy)]
pub struct ReplyStyle(pub(super) &'static Style);

impl std::fmt::Debug for ReplyStyle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplyStyle({})", self.0.name)
    }
}

impl PartialEq for ReplyStyle {
    fn eq(&self, other: &ReplyStyle) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ReplyStyle {}

impl ReplyStyle {
    /// All styles.
    pub fn all() -> impl Iterator<Item = ReplyStyle> {
        STYLES.iter().map(ReplyStyle)
    }

    /// The style of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<ReplyStyle> {
        ReplyStyle::all().find(|style| style.name() == name).ok_or_else(|| {
            let names: Vec<&str> = ReplyStyle::all().map(ReplyStyle::name).collect();
            let sentence = format!("there is no style {}; known are {}", quote(name), names.join(", "));
            Error::with_kind(ErrorKind::Refused, sentence)
        })
    }

    /// The style that the source of a chat template teaches, else `plain`.
    pub fn of_template(source: &str) -> ReplyStyle {
        let contains = |text: &&str| source.contains(*text);
        let fits = |signs: &Signs| signs.has.iter().all(contains) && !signs.lacks.iter().any(contains);
        let style = STYLES.iter().find(|style| style.signs.iter().any(fits));
        ReplyStyle(style.unwrap_or(&STYLES[STYLES.len() - 1]))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Whether calls of tools are found in it.
    pub fn has_calls(self) -> bool {
        self.0.is_harmony || !self.0.calls.is_empty() || !self.0.bare.is_empty()
    }

    /// Whether a chat template of this style with this source has a place for thinking.
    pub fn has_thinking(self, source: &str) -> bool {
        self.0.is_harmony || self.0.thinking.iter().any(|(open, _)| source.contains(open))
    }

    /// The style's markers.
    pub(super) fn markers(self) -> Vec<(MarkerRole, &'static str)> {
        let Style { thinking, calls, is_harmony, .. } = self.0;
        let mut markers = Vec::new();
        for (index, (open, close)) in thinking.iter().enumerate() {
            markers.extend([
                (MarkerRole::ThinkingOpen(index), *open),
                (MarkerRole::ThinkingClose(index), *close),
            ]);
        }
        for (index, call) in calls.iter().enumerate() {
            markers.push((MarkerRole::CallOpen(index), call.open));
            markers.extend(call.close.map(|close| (MarkerRole::CallClose(index), close)));
        }
        if calls.iter().any(|call| call.forms.contains(&Form::Named)) {
            markers.extend([(MarkerRole::CallId, CALL_ID), (MarkerRole::Arguments, ARGUMENTS)]);
        }
        if *is_harmony {
            markers.extend(HARMONY.map(|(token, text)| (MarkerRole::Harmony(token), text)));
        }
        markers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_the_style_that_they_teach() {
        for (source, name) in [
            ("<|start|>assistant<|channel|>final<|message|>", "gpt-oss"),
            ("[INST] [/INST] [TOOL_CALLS]", "mistral"),
            ("<|im_start|> <tool_call>", "hermes"),
            ("<|im_start|> <tool_call> <function=", "plain"),
            ("<|start_header_id|> [func_name1(a=1)]", "pythonic"),
            ("<|start_header_id|> {\"name\": \"parameters\"}", "llama3"),
            ("<|start_header_id|>", "plain"),
            ("<start_of_turn>", "gemma"),
            ("", "plain"),
        ] {
            assert_eq!(ReplyStyle::of_template(source).name(), name, "{source}");
            assert_eq!(ReplyStyle::named(name).unwrap(), ReplyStyle::of_template(source));
        }
        let error = ReplyStyle::named("xml").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no style 'xml'; known are gpt-oss, mistral, hermes, pythonic, llama3, gemma, plain"
        );
    }

    #[test]
    fn no_marker_is_the_beginning_of_another_that_may_stand_in_its_place() {
        for style in ReplyStyle::all() {
            let markers = style.markers();
            assert!(markers.len() <= 32);
            let opening: Vec<&str> = markers
                .iter()
                .filter(|(role, _)| matches!(role, MarkerRole::ThinkingOpen(_) | MarkerRole::CallOpen(_)))
                .map(|(_, text)| *text)
                .collect();
            for (index, one) in opening.iter().enumerate() {
                assert!(opening.iter().skip(index + 1).all(|other| !other.starts_with(one)), "{one}");
            }
            assert!(markers.iter().all(|(_, text)| !text.contains(char::is_whitespace)));
        }
    }
}
