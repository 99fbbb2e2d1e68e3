//! How much a model is asked to think, and how its chat template is told.

use girih::{Conversation, Model};
use serde_json::Value;

use crate::error::ApiError;
use crate::parameters::ParameterNotes;

/// Sets the thinking of a message that a client sends back, as chat templates read it: that of gpt-oss
/// reads `thinking`, others `reasoning_content`.
pub fn set_thinking(message: &mut Value, text: &str) {
    message["reasoning_content"] = text.into();
    message["thinking"] = text.into();
}

/// How much a model is asked to think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// The parameter that asks for it, for errors.
    pub param: &'static str,
    /// How much.
    pub effort: Effort,
    /// What happens if the model cannot.
    pub lack: Lack,
}

/// A maximum number of tokens of thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinkingLimit {
    /// The parameter that sets it; `None` for the server's own.
    pub param: Option<&'static str>,
    /// The number.
    pub tokens: u32,
}

impl ThinkingLimit {
    /// One that a client asks for; a negative number is none.
    pub fn asked(param: &'static str, tokens: Option<i64>) -> Option<ThinkingLimit> {
        let tokens = u32::try_from(tokens?).ok()?;
        Some(ThinkingLimit { param: Some(param), tokens })
    }

    /// Why it has no effect on replies to a conversation, if it has none.
    ///
    /// # Errors
    /// When there is no tokenizer, or no template of the right name.
    pub fn lack(self, conversation: &Conversation, model: &Model) -> girih::Result<Option<&'static str>> {
        let tools = conversation.tools.as_deref();
        Ok((!TemplateThinking::of(model, tools)?.thinks).then_some("the model does not think"))
    }
}

/// What happens if a model cannot think as it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The request is refused.
    Refused,
    /// The model answers as it can, and the parameter has no effect.
    WithoutEffect,
}

/// How much a model thinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Not at all.
    Off,
    /// As much as it does by default.
    On,
    /// A word that its chat template knows, such as `low`; `none` is not at all.
    Level(String),
}

/// What a model's chat template has for thinking.
#[derive(Clone, Copy, Debug)]
pub struct TemplateThinking {
    /// It reads a word that says how much.
    has_levels: bool,
    /// It reads whether the model is to think.
    has_switch: bool,
    /// It has one of these, or a place for thinking.
    pub thinks: bool,
}

impl TemplateThinking {
    /// What the template for a conversation with these tools has.
    ///
    /// # Errors
    /// When there is no tokenizer, or no template of the right name.
    pub fn of(model: &Model, tools: Option<&[Value]>) -> girih::Result<TemplateThinking> {
        let template = model.text_processor()?.template.as_ref();
        let source = template.map(|template| template.source(tools)).transpose()?.unwrap_or_default();
        let has_levels = source.contains("reasoning_effort");
        let has_switch = source.contains("enable_thinking");
        let style = model.reply_style(tools.is_some())?;
        let thinks = has_levels || has_switch || style.has_thinking(source);
        Ok(TemplateThinking { has_levels, has_switch, thinks })
    }
}

/// Sets the variable by which a chat template knows how much the model is to say; notes it as without effect if
/// the template does not read it.
///
/// # Errors
/// When there is no tokenizer, or no template of the right name.
pub fn set_verbosity(
    word: &str,
    conversation: &mut Conversation,
    model: &Model,
    notes: &ParameterNotes,
) -> Result<(), ApiError> {
    let template = model.text_processor()?.template.as_ref();
    let source = template.map(|template| template.source(conversation.tools.as_deref())).transpose()?;
    if source.is_some_and(|source| source.contains("verbosity")) {
        conversation.variables.insert("verbosity".to_owned(), word.into());
    } else {
        notes.add("verbosity", "the chat template does not read it");
    }
    Ok(())
}

impl Thinking {
    /// Sets the variable by which the model's chat template knows how much to think. Returns why it had no
    /// effect, if it had none.
    ///
    /// # Errors
    /// When the template has no such variable, or the model cannot do it, and this is to be refused.
    pub fn apply(
        &self,
        conversation: &mut Conversation,
        model: &Model,
    ) -> Result<Option<&'static str>, ApiError> {
        let TemplateThinking { has_levels, has_switch, thinks } =
            TemplateThinking::of(model, conversation.tools.as_deref())?;
        let mut set = |name: &str, value: Value| {
            conversation.variables.insert(name.to_owned(), value);
            Ok(None)
        };
        match &self.effort {
            Effort::Level(word) if has_levels => set("reasoning_effort", word.as_str().into()),
            Effort::Level(word) if has_switch => set("enable_thinking", (word != "none").into()),
            Effort::Level(_) => {
                self.lacking("its chat template reads neither reasoning_effort nor enable_thinking")
            }
            Effort::On if has_switch => set("enable_thinking", true.into()),
            Effort::On if thinks => Ok(None),
            Effort::On => self.lacking("it does not think"),
            Effort::Off if has_switch => set("enable_thinking", false.into()),
            Effort::Off if thinks => self.lacking("it always thinks"),
            Effort::Off => Ok(None),
        }
    }

    /// The error for a prompt without a chat template.
    pub fn without_template(&self) -> ApiError {
        self.refused("the prompt is no conversation")
    }

    fn lacking(&self, why: &'static str) -> Result<Option<&'static str>, ApiError> {
        match self.lack {
            Lack::Refused => Err(self.refused(why)),
            Lack::WithoutEffect => Ok(Some(why)),
        }
    }

    fn refused(&self, why: &str) -> ApiError {
        let param = self.param;
        let message = format!("{param} has no effect on this model: {why}; omit it");
        ApiError::unsupported(param, message)
    }
}

#[cfg(test)]
mod tests {
    use girih::{BUILT_IN, OpenOptions};
    use serde_json::json;

    use super::*;

    /// The variables that a template with this source gets.
    fn variables(source: &str, effort: Effort) -> Result<Value, String> {
        let options = OpenOptions { chat_template: Some(source.to_owned()), ..OpenOptions::default() };
        let model = Model::open_with(BUILT_IN, &options).unwrap();
        let mut conversation = Conversation::new();
        let thinking = Thinking { param: "think", effort: effort.clone(), lack: Lack::Refused };
        let lenient = Thinking { lack: Lack::WithoutEffect, ..thinking.clone() };
        let applied = lenient.apply(&mut Conversation::new(), &model).unwrap();
        match thinking.apply(&mut conversation, &model) {
            Ok(why) => {
                assert_eq!((why, applied), (None, None));
                Ok(Value::Object(conversation.variables))
            }
            Err(error) => {
                assert!(error.message.contains(applied.unwrap()), "{error}");
                Err(error.message)
            }
        }
    }

    #[test]
    fn the_template_decides_how_it_is_told() {
        let level = |word: &str| Effort::Level(word.to_owned());
        let switch = "{{ enable_thinking }}";
        assert_eq!(variables(switch, Effort::On), Ok(json!({"enable_thinking": true})));
        assert_eq!(variables(switch, Effort::Off), Ok(json!({"enable_thinking": false})));
        assert_eq!(variables(switch, level("none")), Ok(json!({"enable_thinking": false})));
        let levels = "{{ reasoning_effort }}";
        assert_eq!(variables(levels, level("low")), Ok(json!({"reasoning_effort": "low"})));
        assert_eq!(variables(levels, Effort::On), Ok(json!({})));
        assert!(variables(levels, Effort::Off).unwrap_err().ends_with("it always thinks; omit it"));
        assert_eq!(variables("{# <think> #}", Effort::On), Ok(json!({})));
        let plain = "{{ messages }}";
        assert_eq!(variables(plain, Effort::Off), Ok(json!({})));
        assert!(variables(plain, Effort::On).unwrap_err().starts_with("think has no effect"));
        assert!(variables(plain, level("low")).is_err());
    }
}
