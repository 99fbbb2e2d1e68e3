//! The grammar of a reply that must be a call of a tool: what comes before the arguments and after
//! them, and their JSON schema.

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use super::parser::ReplyParser;
use super::style::{ARGUMENTS, CallSyntax, Form, HarmonyToken, Messages, ReplyStyle};
use super::syntax::ReplySyntax;
use super::tool::Tool;

/// The grammar of a forced call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallGrammar {
    /// The calls that are allowed, at least one; each is of another tool.
    pub calls: Vec<CallForm>,
}

/// A call of one tool: all of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// The name of the tool.
    pub name: String,
    /// What comes before the arguments.
    pub before: Vec<CallPiece>,
    /// The JSON schema of the arguments, which are an object.
    pub arguments: Map<String, Value>,
    /// What comes after the arguments.
    pub after: Vec<CallPiece>,
}

/// A part of a call outside its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPiece {
    /// A text.
    Text(String),
    /// The special token of this id.
    Token(u32),
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
        let mut calls = Vec::with_capacity(allowed.len());
        for tool in allowed {
            let Some((before, after)) = syntax.around_arguments(&tool.name) else {
                return refused(format!(
                    "a call in the style {} cannot be forced, as its arguments are no JSON",
                    syntax.style().name()
                ));
            };
            let before = thinking_end.iter().cloned().chain(before).collect();
            let arguments = tool.parameters.clone();
            calls.push(CallForm { name: tool.name.clone(), before, arguments, after });
        }
        Ok(CallGrammar { calls })
    }
}

impl ReplySyntax {
    /// What a call of a tool has before and after its arguments; `None` if they are no JSON.
    fn around_arguments(&self, name: &str) -> Option<(Vec<CallPiece>, Vec<CallPiece>)> {
        let style = self.style().0;
        let text = |text: String| CallPiece::Text(text);
        if style.messages == Messages::Harmony {
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
        if forms.contains(&Form::Named) && matches!(self.piece(ARGUMENTS), CallPiece::Token(_)) {
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
    fn piece(&self, spelling: &'static str) -> CallPiece {
        match self.special_id(spelling) {
            Some(id) => CallPiece::Token(id),
            None => CallPiece::Text(spelling.to_owned()),
        }
    }
}

impl ReplyStyle {
    /// Whether a call in this style can be forced ([`ReplyParser::forced_call`]).
    pub fn can_force_calls(self) -> bool {
        ReplySyntax::spelled(self).around_arguments("f").is_some()
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
            grammar.calls.iter().map(written).collect::<Vec<_>>(),
            ["get_weather", "now"].map(|name| format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {ARGUMENTS_JSON}}}\n</tool_call>"
            ))
        );
        assert_eq!(grammar.calls[1].arguments, tools()[1].parameters);
        let thinks = syntax("llama3").parser(true).after_prompt("<think>\n");
        let one = thinks.forced_call(&tools(), Some("now")).unwrap();
        assert_eq!(
            one.calls.iter().map(written).collect::<Vec<_>>(),
            [format!("</think>{{\"name\": \"now\", \"parameters\": {ARGUMENTS_JSON}}}")]
        );
        let harmony = ReplySyntax::with(ReplyStyle::named("gpt-oss").unwrap(), |spelling| {
            Some(200_000 + u32::try_from(spelling.len()).unwrap())
        });
        let harmony = harmony.parser(true).forced_call(&tools(), Some("now")).unwrap();
        let text = |text: &str| CallPiece::Text(text.to_owned());
        let [channel, constrain, message] = [200_011, 200_013, 200_011].map(CallPiece::Token);
        let before = [channel, text("commentary to=functions.now "), constrain, text("json"), message];
        assert_eq!((&harmony.calls[0].before[..], &harmony.calls[0].after[..]), (&before[..], &[][..]));
    }

    const ARGUMENTS_JSON: &str = "{\"city\": \"Paris\"}";

    /// A call without special tokens.
    fn written(call: &CallForm) -> String {
        let text = |pieces: &[CallPiece]| -> String {
            let spelled = |piece: &CallPiece| match piece {
                CallPiece::Text(text) => text.clone(),
                CallPiece::Token(id) => unreachable!("token {id}"),
            };
            pieces.iter().map(spelled).collect()
        };
        format!("{}{ARGUMENTS_JSON}{}", text(&call.before), text(&call.after))
    }

    #[test]
    fn every_forced_call_is_parsed_as_one() {
        for style in ReplyStyle::all().filter(|style| style.can_force_calls()) {
            let syntax = ReplySyntax::spelled(style);
            let mut parser = syntax.parser(true);
            let text = written(&parser.forced_call(&tools(), Some("get_weather")).unwrap().calls[0]);
            let mut parts: Vec<ReplyPart> = parser.push(&text);
            parts.extend(parser.finish());
            let message: ReplyMessage = parts.iter().collect();
            assert_eq!((message.content.as_str(), message.calls.len()), ("", 1), "{style:?}: {text}");
            let call = &message.calls[0];
            assert_eq!((call.name.as_str(), call.fault), ("get_weather", None), "{style:?}");
            assert_eq!(call.arguments, ARGUMENTS_JSON);
        }
    }

    #[test]
    fn what_cannot_be_forced_is_refused() {
        let refusal = |style: &str, tools: &[Tool], name: Option<&str>| {
            syntax(style).parser(true).forced_call(tools, name).unwrap_err().to_string()
        };
        assert_eq!(refusal("hermes", &tools(), Some("x")), "there is no tool 'x' to force");
        assert_eq!(refusal("hermes", &[], None), "there is no tool to force; give at least one");
        for style in ["pythonic", "plain", "glm", "muse-glimmer"] {
            assert!(refusal(style, &tools(), None).contains("cannot be forced"), "{style}");
        }
    }
}
