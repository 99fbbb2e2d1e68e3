//! The styles in which models write thinking and calls of tools: a table of their markers.
//!
//! | style | a call | source |
//! |---|---|---|
//! | `hermes` | `<tool_call>{"name": …, "arguments": {…}}</tool_call>` | templates of Qwen3, SmolLM3, Granite 4, ERNIE 4.5 |
//! | `qwen3-coder` | `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` | templates of Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5 |
//! | `seed-oss` | the same in `<seed:tool_call>` | template of Seed-OSS |
//! | `glm` | `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` | templates of GLM 4.5 and Laguna |
//! | `minimax` | `<minimax:tool_call><invoke name="…"><parameter name="…">value</parameter></invoke></minimax:tool_call>` | template of MiniMax-M2 |
//! | `muse-glimmer` | the same with `atem:` tags, in a message ` to=name` | template of Muse Glimmer |
//! | `granite` | `<\|tool_call\|>[{"name": …, "arguments": {…}}]` | template of Granite 3.3 |
//! | `phi4` | the same, and `<\|/tool_call\|>` | template of Phi-4-mini |
//! | `nemotron` | the same between `<TOOLCALL>` and `</TOOLCALL>` | template of Nemotron Nano 2 |
//! | `hunyuan` | the same between `<tool_calls>` and `</tool_calls>` | vLLM's parser for Hunyuan A13B, templates of Apriel |
//! | `lfm2` | `<\|tool_call_start\|>[name(key="…")]<\|tool_call_end\|>` | template of LFM2 |
//! | `llama3` | the whole reply is `{"name": …, "parameters": {…}}`, perhaps after `<\|python_tag\|>`, which may also be followed by `name.call(key="…")` | templates of Llama 3.1 and 3.2 |
//! | `pythonic` | the whole reply is `[name(key="…"), name()]`, perhaps between `<\|python_start\|>` and `<\|python_end\|>` | Meta's prompt formats of Llama 3.2 and 4 |
//! | `gemma` | as `pythonic` or `llama3` without tags, or either form in a fence `tool_code`, `tool_call` or `json` | Google's guide to function calling, as the template of Gemma 3 has no tools |
//! | `mistral` | `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]` or `[TOOL_CALLS]name[ARGS]{…}` | templates of Mistral Small 3.1 and 3.2 |
//! | `gpt-oss` | `<\|channel\|>commentary to=functions.name <\|constrain\|>json<\|message\|>{…}<\|call\|>` | OpenAI's description of the harmony format |
//! | `plain` | none | |
//!
//! Thinking is between `<think>` and `</think>`, for `mistral` also `[THINK]` and `[/THINK]`, for
//! `seed-oss` `<seed:think>` and `</seed:think>`, for `gpt-oss` the channel `analysis`, and for
//! `muse-glimmer` a message to `self`. The tags with which Granite, ERNIE and Hunyuan enclose the
//! answer after it are left out.

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};

use super::tags::Tags;

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
    /// Text between tags.
    Tagged(&'static Tags),
}

/// How a style divides a reply into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Messages {
    /// A reply is one message.
    One,
    /// Messages in channels, as gpt-oss writes them.
    Harmony,
    /// Messages to recipients, as Muse Glimmer writes them.
    Recipients,
}

impl Messages {
    /// The markers.
    pub(super) fn tokens(self) -> &'static [(HarmonyToken, &'static str)] {
        match self {
            Messages::One => &[],
            Messages::Harmony => &HARMONY,
            Messages::Recipients => &RECIPIENTS,
        }
    }
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
    /// Within a call of [`Form::Tagged`].
    Tag,
    /// Before an answer, and after it.
    AnswerOpen,
    AnswerClose,
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
    pub messages: Messages,
    /// Tags around the answer after the thinking.
    pub answer: &'static [(&'static str, &'static str)],
    /// A template has this style if it contains all of `has` of an entry and none of `lacks`.
    signs: &'static [Signs],
}

#[derive(Debug)]
struct Signs {
    has: &'static [&'static str],
    lacks: &'static [&'static str],
}

const THINK: (&str, &str) = ("<think>", "</think>");

const PLAIN: Style = Style {
    name: "plain",
    thinking: &[THINK],
    calls: &[],
    bare: &[],
    messages: Messages::One,
    answer: &[],
    signs: &[],
};

const QWEN3_CODER: Tags = Tags {
    name_open: "<function=",
    name_close: ">",
    key_open: "<parameter=",
    key_close: ">",
    value_open: "",
    value_close: "</parameter>",
    call_close: Some("</function>"),
    end: "</tool_call>",
    has_lines: true,
};

const SEED_OSS: Tags = Tags { end: "</seed:tool_call>", has_lines: false, ..QWEN3_CODER };

const GLM: Tags = Tags {
    name_open: "",
    name_close: "",
    key_open: "<arg_key>",
    key_close: "</arg_key>",
    value_open: "<arg_value>",
    value_close: "</arg_value>",
    call_close: None,
    end: "</tool_call>",
    has_lines: false,
};

const MINIMAX: Tags = Tags {
    name_open: "<invoke name=\"",
    name_close: "\">",
    key_open: "<parameter name=\"",
    key_close: "\">",
    value_open: "",
    value_close: "</parameter>",
    call_close: Some("</invoke>"),
    end: "</minimax:tool_call>",
    has_lines: false,
};

const ATEM: Tags = Tags {
    name_open: "<atem:invoke name=\"",
    key_open: "<atem:parameter name=\"",
    value_close: "</atem:parameter>",
    call_close: Some("</atem:invoke>"),
    end: "</atem:function_calls>",
    ..MINIMAX
};

/// Calls of [`Form::Tagged`], which read their closing marker.
const fn tagged(open: &'static str, forms: &'static [Form]) -> CallSyntax {
    CallSyntax { open, close: None, forms }
}

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

/// The markers of messages to recipients.
const RECIPIENTS: [(HarmonyToken, &str); 4] = [
    (HarmonyToken::Start, "<|start|>"),
    (HarmonyToken::Message, "<|message|>"),
    (HarmonyToken::End, "<|eom|>"),
    (HarmonyToken::End, "<|eot|>"),
];

/// The styles, in the order in which a template is compared with their signs.
static STYLES: [Style; 17] = [
    Style {
        name: "muse-glimmer",
        thinking: &[],
        calls: &[tagged("<atem:function_calls>", &[Form::Tagged(&ATEM)])],
        messages: Messages::Recipients,
        signs: &[Signs { has: &["<|message|>", "<|eom|>"], lacks: &["<|channel|>"] }],
        ..PLAIN
    },
    Style {
        name: "gpt-oss",
        thinking: &[],
        messages: Messages::Harmony,
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
        name: "seed-oss",
        thinking: &[("<seed:think>", "</seed:think>"), THINK],
        calls: &[tagged("<seed:tool_call>", &[Form::Tagged(&SEED_OSS)])],
        signs: &[Signs { has: &["<seed:tool_call>"], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "minimax",
        calls: &[tagged("<minimax:tool_call>", &[Form::Tagged(&MINIMAX)])],
        signs: &[Signs { has: &["<minimax:tool_call>", "<invoke name="], lacks: &["]<]minimax[>["] }],
        ..PLAIN
    },
    Style {
        name: "qwen3-coder",
        calls: &[tagged("<tool_call>", &[Form::Tagged(&QWEN3_CODER)])],
        signs: &[Signs { has: &["<tool_call>", "<function=", "<parameter="], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "glm",
        calls: &[tagged("<tool_call>", &[Form::Tagged(&GLM)])],
        signs: &[Signs { has: &["<tool_call>", "<arg_key>", "<arg_value>"], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "phi4",
        calls: &[CallSyntax {
            open: "<|tool_call|>",
            close: Some("<|/tool_call|>"),
            forms: &[Form::ObjectList, Form::Object],
        }],
        signs: &[Signs { has: &["<|tool_call|>", "<|/tool_call|>"], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "granite",
        calls: &[CallSyntax { open: "<|tool_call|>", close: None, forms: &[Form::ObjectList, Form::Object] }],
        answer: &[("<response>", "</response>")],
        signs: &[Signs { has: &["<|tool_call|>"], lacks: &["<|/tool_call|>"] }],
        ..PLAIN
    },
    Style {
        name: "nemotron",
        calls: &[CallSyntax { open: "<TOOLCALL>", close: Some("</TOOLCALL>"), forms: &[Form::ObjectList] }],
        signs: &[Signs { has: &["<TOOLCALL>"], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "hunyuan",
        calls: &[CallSyntax {
            open: "<tool_calls>",
            close: Some("</tool_calls>"),
            forms: &[Form::ObjectList],
        }],
        answer: &[("<answer>", "</answer>")],
        signs: &[
            Signs { has: &["<tool_calls>"], lacks: &["<tool_call>", "<tool_call_begin>"] },
            // Apriel's template names the other tag in its explanation.
            Signs { has: &["<tool_calls>["], lacks: &[] },
        ],
        ..PLAIN
    },
    Style {
        name: "lfm2",
        calls: &[CallSyntax {
            open: "<|tool_call_start|>",
            close: Some("<|tool_call_end|>"),
            forms: &[Form::PythonList],
        }],
        signs: &[Signs { has: &["<|tool_call_start|>"], lacks: &[] }],
        ..PLAIN
    },
    Style {
        name: "hermes",
        calls: &[CallSyntax { open: "<tool_call>", close: Some("</tool_call>"), forms: &[Form::Object] }],
        answer: &[("<response>", "</response>")],
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
        self.0.messages != Messages::One || !self.0.calls.is_empty() || !self.0.bare.is_empty()
    }

    /// Whether a chat template of this style with this source has a place for thinking.
    pub fn has_thinking(self, source: &str) -> bool {
        self.0.messages != Messages::One || self.0.thinking.iter().any(|(open, _)| source.contains(open))
    }

    /// The style's markers.
    pub(super) fn markers(self) -> Vec<(MarkerRole, &'static str)> {
        let Style { thinking, calls, messages, answer, .. } = self.0;
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
        for form in calls.iter().flat_map(|call| call.forms) {
            if let Form::Tagged(tags) = form {
                markers.extend(tags.all().map(|tag| (MarkerRole::Tag, tag)));
            }
        }
        for (open, close) in *answer {
            markers.extend([(MarkerRole::AnswerOpen, *open), (MarkerRole::AnswerClose, *close)]);
        }
        let tokens = messages.tokens().iter();
        markers.extend(tokens.map(|(token, text)| (MarkerRole::Harmony(*token), *text)));
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
            ("<tool_call> <function=f> <parameter=", "qwen3-coder"),
            ("<seed:tool_call> <function=f> <parameter=", "seed-oss"),
            ("<tool_call> <arg_key> <arg_value>", "glm"),
            ("<minimax:tool_call> <invoke name=\"", "minimax"),
            ("<|start|> <|message|> <|eom|> <atem:function_calls>", "muse-glimmer"),
            ("<|tool_call|>", "granite"),
            ("<|tool_call|> <|/tool_call|>", "phi4"),
            ("<TOOLCALL>", "nemotron"),
            ("<tool_calls>", "hunyuan"),
            ("<tool_call></tool_call> <tool_calls>[{", "hunyuan"),
            ("<|tool_call_start|>", "lfm2"),
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
            "there is no style 'xml'; known are muse-glimmer, gpt-oss, mistral, seed-oss, minimax, qwen3-coder, glm, \
             phi4, granite, nemotron, hunyuan, lfm2, hermes, pythonic, llama3, gemma, plain"
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
            assert!(markers.iter().all(|(_, text)| !text.is_empty() && !text.contains(char::is_whitespace)));
        }
    }
}
