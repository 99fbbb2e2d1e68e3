//! The grammar of a reply that must be a call of a tool.
//!
//! It is a text in llguidance's variant of Lark, in which `@tool_0` stands for the first of the
//! JSON schemas beside it, and `<[128010]>` for the token of this id. Schemas stay apart from the
//! text, so that they are checked like any other schema when they are compiled.

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::parser::ReplyParser;
use super::style::{ARGUMENTS, CallSyntax, Form, HarmonyToken, ReplyStyle};
use super::syntax::ReplySyntax;
use super::tool::Tool;

/// The grammar of one forced call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallGrammar {
    /// The grammar in Lark; its first rule is `start`.
    pub lark: String,
    /// The names to which the grammar refers with `@`, and the schemas of their JSON.
    pub schemas: Vec<(String, Map<String, Value>)>,
}

impl ReplyParser {
    /// The grammar of a reply that is one call: of the tool with this name, or of any tool. It
    /// first closes the thinking, if the prompt has opened it, and ends where the call is complete.
    /// `self` is the parser before the first piece of the reply.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if there is no such tool or none at all, or if the style has no call
    /// whose arguments are JSON.
    pub fn forced_call(&self, tools: &[Tool], name: Option<&str>) -> Result<CallGrammar> {
        let refused = |sentence: String| Err(Error::with_kind(ErrorKind::Refused, sentence));
        let allowed: Vec<&Tool> =
            tools.iter().filter(|tool| name.is_none_or(|name| tool.name == name)).collect();
        if allowed.is_empty() {
            return match name {
                Some(name) => refused(format!("there is no tool {} to force", quote(name))),
                None => refused("there is no tool to force; give at least one".to_owned()),
            };
        }
        let syntax = self.syntax();
        let thinking_end = self.thinking_close().map(|close| syntax.piece(close));
        let mut lark = format!("start: {}", (0..allowed.len()).map(rule).collect::<Vec<_>>().join(" | "));
        let mut schemas = Vec::with_capacity(allowed.len());
        for (index, tool) in allowed.into_iter().enumerate() {
            let Some((before, after)) = syntax.around_arguments(&tool.name) else {
                return refused(format!(
                    "a call in the style {} cannot be forced, as its arguments are no JSON",
                    syntax.style().name()
                ));
            };
            let before = thinking_end.iter().cloned().chain(before).map(Piece::lark);
            let arguments = format!("@tool_{index}");
            let parts: Vec<String> =
                before.chain([arguments]).chain(after.into_iter().map(Piece::lark)).collect();
            lark += &format!("\n{}: {}", rule(index), parts.join(" "));
            schemas.push((format!("tool_{index}"), tool.parameters.clone()));
        }
        Ok(CallGrammar { lark: lark + "\n", schemas })
    }
}

impl ReplySyntax {
    /// What a call of a tool has before and after its arguments; `None` if they are no JSON.
    fn around_arguments(&self, name: &str) -> Option<(Vec<Piece>, Vec<Piece>)> {
        let style = self.style().0;
        let text = |text: String| Piece::Text(text);
        if style.is_harmony {
            let [channel, constrain, message] =
                [HarmonyToken::Channel, HarmonyToken::Constrain, HarmonyToken::Message]
                    .map(|token| self.piece(super::harmony::spelling(token)));
            let to = text(format!("commentary to=functions.{name} "));
            // The token that ends the call is a stop token.
            return Some((vec![channel, to, constrain, text("json".to_owned()), message], Vec::new()));
        }
        let object = |key: &str| format!("{{\"name\": \"{name}\", \"{key}\": ");
        if style.bare.contains(&Form::Object) {
            return Some((vec![text(object("parameters"))], vec![text("}".to_owned())]));
        }
        let CallSyntax { open, close, forms } = style.calls.first()?;
        let open = self.piece(open);
        if forms.contains(&Form::Named) && matches!(self.piece(ARGUMENTS), Piece::Token(_)) {
            return Some((vec![open, text(name.to_owned()), self.piece(ARGUMENTS)], Vec::new()));
        }
        if forms.contains(&Form::ObjectList) {
            let before = vec![open, text(format!("[{}", object("arguments")))];
            return Some((before, vec![text("}]".to_owned())]));
        }
        if forms.contains(&Form::Object) {
            let before = vec![open, text(format!("\n{}", object("arguments")))];
            let close = close.map(|close| self.piece(close));
            return Some((before, [text("}\n".to_owned())].into_iter().chain(close).collect()));
        }
        None
    }

    /// A marker: the special token, or its text.
    fn piece(&self, spelling: &'static str) -> Piece {
        match self.special_id(spelling) {
            Some(id) => Piece::Token(id),
            None => Piece::Text(spelling.to_owned()),
        }
    }
}

impl ReplyStyle {
    /// Whether a call in this style can be forced ([`ReplyParser::forced_call`]).
    pub fn can_force_calls(self) -> bool {
        ReplySyntax::spelled(self).around_arguments("f").is_some()
    }
}

/// The name of the rule of a tool.
fn rule(index: usize) -> String {
    format!("call_{index}")
}

/// A part of a rule.
#[derive(Clone)]
enum Piece {
    Text(String),
    Token(u32),
}

impl Piece {
    fn lark(self) -> String {
        match self {
            // Strings of Lark have the escapes of JSON.
            Piece::Text(text) => Value::from(text).to_string(),
            Piece::Token(id) => format!("<[{id}]>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reply::{ReplyMessage, ReplyPart};

    fn tools() -> Vec<Tool> {
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema}});
        Tool::list(&[tool("get_weather"), tool("now")]).unwrap()
    }

    fn syntax(style: &str) -> ReplySyntax {
        ReplySyntax::spelled(ReplyStyle::named(style).unwrap())
    }

    #[test]
    fn a_forced_call_is_what_the_template_writes() {
        let grammar = syntax("hermes").parser(true).forced_call(&tools(), None).unwrap();
        assert_eq!(
            grammar.lark,
            "start: call_0 | call_1\n\
             call_0: \"<tool_call>\" \"\\n{\\\"name\\\": \\\"get_weather\\\", \\\"arguments\\\": \" @tool_0 \"}\\n\" \"</tool_call>\"\n\
             call_1: \"<tool_call>\" \"\\n{\\\"name\\\": \\\"now\\\", \\\"arguments\\\": \" @tool_1 \"}\\n\" \"</tool_call>\"\n"
        );
        assert_eq!(grammar.schemas[1], ("tool_1".to_owned(), tools()[1].parameters.clone()));
        let thinks = syntax("llama3").parser(true).after_prompt("<think>\n");
        let one = thinks.forced_call(&tools(), Some("now")).unwrap();
        assert_eq!(
            one.lark,
            "start: call_0\ncall_0: \"</think>\" \"{\\\"name\\\": \\\"now\\\", \\\"parameters\\\": \" @tool_0 \"}\"\n"
        );
        let harmony = ReplySyntax::with(ReplyStyle::named("gpt-oss").unwrap(), |spelling| {
            Some(200_000 + u32::try_from(spelling.len()).unwrap())
        });
        let harmony = harmony.parser(true).forced_call(&tools(), Some("now")).unwrap();
        assert_eq!(
            harmony.lark,
            "start: call_0\ncall_0: <[200011]> \"commentary to=functions.now \" <[200013]> \"json\" <[200011]> @tool_0\n"
        );
    }

    /// The text of a grammar with one rule: its literals, with arguments in place of the schema.
    fn written(lark: &str) -> String {
        let (_, rule) = lark.trim_end().split_once("call_0: ").unwrap();
        let mut text = String::new();
        let mut rest = rule;
        while !rest.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            if let Some(after) = rest.strip_prefix("@tool_0") {
                text += "{\"city\": \"Paris\"}";
                rest = after.trim_start();
            } else {
                text += &values.next().unwrap().unwrap();
                rest = rest[values.byte_offset()..].trim_start();
            }
        }
        text
    }

    #[test]
    fn every_forced_call_is_parsed_as_one() {
        for style in ReplyStyle::all().filter(|style| style.can_force_calls()) {
            let syntax = ReplySyntax::spelled(style);
            let mut parser = syntax.parser(true);
            let text = written(&parser.forced_call(&tools(), Some("get_weather")).unwrap().lark);
            let mut parts: Vec<ReplyPart> = parser.push(&text);
            parts.extend(parser.finish());
            let message: ReplyMessage = parts.iter().collect();
            assert_eq!((message.content.as_str(), message.calls.len()), ("", 1), "{style:?}: {text}");
            let call = &message.calls[0];
            assert_eq!((call.name.as_str(), call.fault), ("get_weather", None), "{style:?}");
            assert_eq!(call.arguments, "{\"city\": \"Paris\"}");
        }
    }

    #[test]
    fn what_cannot_be_forced_is_refused() {
        let refusal = |style: &str, tools: &[Tool], name: Option<&str>| {
            syntax(style).parser(true).forced_call(tools, name).unwrap_err().to_string()
        };
        assert_eq!(refusal("hermes", &tools(), Some("x")), "there is no tool 'x' to force");
        assert_eq!(refusal("hermes", &[], None), "there is no tool to force; give at least one");
        for style in ["pythonic", "plain"] {
            assert!(refusal(style, &tools(), None).contains("cannot be forced"), "{style}");
        }
    }
}
