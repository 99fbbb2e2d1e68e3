//! The parameters by which clients of other servers ask a model to think, as one request.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json_body::from_json_object;
use crate::thinking::{Effort, Lack, Thinking, ThinkingLimit};

/// Whether the model thinks, or how much.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a boolean or a string")]
pub enum ThinkSwitch {
    /// Whether it does.
    Switch(bool),
    /// A word that its chat template knows, such as `low`.
    Level(String),
}

/// Whether the model thinks: a boolean, or an object as Anthropic's API has it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a boolean or an object with the type enabled, disabled or adaptive")]
pub enum ThinkingBody {
    /// Whether it does.
    Switch(bool),
    /// As an object.
    Object(ThinkingObject),
}

/// Whether the model thinks, as Anthropic's API has it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum ThinkingObject {
    /// It does.
    Enabled {
        /// The maximum number of tokens of thinking.
        budget_tokens: Option<u32>,
    },
    /// As its chat template does by default.
    Adaptive {},
    /// It does not.
    Disabled {},
}

/// How much the model thinks, as OpenRouter has it.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ReasoningBody {
    /// A word that the chat template knows, such as `low`; `none` is not at all.
    pub effort: Option<String>,
    /// Whether the model thinks.
    pub enabled: Option<bool>,
    /// The maximum number of tokens of thinking.
    pub max_tokens: Option<u32>,
    /// Must be false: thinking is never left out.
    pub exclude: Option<bool>,
}

/// All that a request says of thinking.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedThinking<'a> {
    /// `reasoning_effort`.
    pub reasoning_effort: Option<&'a str>,
    /// `enable_thinking`.
    pub enable_thinking: Option<bool>,
    /// `think`.
    pub think: Option<&'a ThinkSwitch>,
    /// `thinking`.
    pub thinking: Option<&'a ThinkingBody>,
    /// `reasoning`.
    pub reasoning: Option<&'a ReasoningBody>,
    /// `thinking_token_budget`.
    pub thinking_token_budget: Option<i64>,
}

impl AskedThinking<'_> {
    /// How much the model thinks; `None` for its default. A word is more exact than a switch that is on, and `none` is
    /// the same as a switch that is off.
    ///
    /// # Errors
    /// When two parameters contradict each other, or thinking is to be left out.
    pub fn thinking(&self) -> Result<Option<Thinking>, ApiError> {
        if self.reasoning.is_some_and(|reasoning| reasoning.exclude == Some(true)) {
            let message = "reasoning.exclude is not supported: thinking is never left out; omit it";
            return Err(ApiError::unsupported("reasoning.exclude", message));
        }
        let mut chosen: Option<(&'static str, Effort)> = None;
        for (param, effort) in self.efforts() {
            chosen = match chosen {
                None => Some((param, effort)),
                Some((first, one)) if one == effort || effort == Effort::On && is_on(&one) => {
                    Some((first, one))
                }
                Some((first, one)) if !is_on(&one) && !is_on(&effort) => Some((first, one)),
                Some((_, Effort::On)) if is_on(&effort) => Some((param, effort)),
                Some((first, _)) => {
                    let message = format!("{first} and {param} ask for different thinking; omit one of them");
                    return Err(ApiError::invalid(param, message));
                }
            };
        }
        Ok(chosen.map(|(param, effort)| Thinking { param, effort, lack: Lack::WithoutEffect }))
    }

    /// The maximum number of tokens of thinking, the smallest that is asked for.
    pub fn limit(&self) -> Option<ThinkingLimit> {
        let budget = match self.thinking {
            Some(ThinkingBody::Object(ThinkingObject::Enabled { budget_tokens })) => *budget_tokens,
            _ => None,
        };
        let reasoning = self.reasoning.and_then(|reasoning| reasoning.max_tokens);
        let all = [
            ThinkingLimit::asked("thinking.budget_tokens", budget.map(i64::from)),
            ThinkingLimit::asked("reasoning.max_tokens", reasoning.map(i64::from)),
            ThinkingLimit::asked("thinking_token_budget", self.thinking_token_budget),
        ];
        all.into_iter().flatten().min_by_key(|limit| limit.tokens)
    }

    /// What each parameter asks for.
    fn efforts(&self) -> Vec<(&'static str, Effort)> {
        let switch = |is_on| if is_on { Effort::On } else { Effort::Off };
        let level = |word: &str| Effort::Level(word.to_owned());
        let think = |think: &ThinkSwitch| match think {
            ThinkSwitch::Switch(is_on) => switch(*is_on),
            ThinkSwitch::Level(word) => level(word),
        };
        let thinking = |thinking: &ThinkingBody| match thinking {
            ThinkingBody::Switch(is_on) => Some(switch(*is_on)),
            ThinkingBody::Object(ThinkingObject::Enabled { .. }) => Some(Effort::On),
            ThinkingBody::Object(ThinkingObject::Disabled {}) => Some(Effort::Off),
            ThinkingBody::Object(ThinkingObject::Adaptive {}) => None,
        };
        let all = [
            ("reasoning_effort", self.reasoning_effort.map(level)),
            ("reasoning.effort", self.reasoning.and_then(|body| body.effort.as_deref()).map(level)),
            ("reasoning.enabled", self.reasoning.and_then(|body| body.enabled).map(switch)),
            ("think", self.think.map(think)),
            ("enable_thinking", self.enable_thinking.map(switch)),
            ("thinking", self.thinking.and_then(thinking)),
        ];
        all.into_iter().filter_map(|(param, effort)| Some((param, effort?))).collect()
    }
}

/// Whether the model is to think.
fn is_on(effort: &Effort) -> bool {
    match effort {
        Effort::On => true,
        Effort::Off => false,
        Effort::Level(word) => word != "none",
    }
}

from_json_object!(ThinkingObject, ReasoningBody);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_agree_are_one_and_others_are_refused() {
        let on = ThinkSwitch::Switch(true);
        let both =
            AskedThinking { reasoning_effort: Some("low"), think: Some(&on), ..AskedThinking::default() };
        let thinking = both.thinking().unwrap().unwrap();
        assert_eq!((thinking.param, thinking.effort), ("reasoning_effort", Effort::Level("low".to_owned())));
        let against = AskedThinking { enable_thinking: Some(false), ..both };
        let error = against.thinking().unwrap_err();
        assert_eq!(
            error.message,
            "reasoning_effort and enable_thinking ask for different thinking; omit one of them"
        );
        let off = AskedThinking { enable_thinking: Some(false), ..AskedThinking::default() };
        assert_eq!(off.thinking().unwrap().unwrap().effort, Effort::Off);
        let twice_off = AskedThinking { reasoning_effort: Some("none"), ..off };
        let effort = twice_off.thinking().unwrap().unwrap().effort;
        assert_eq!(effort, Effort::Level("none".to_owned()));
        let word = ThinkSwitch::Level("low".to_owned());
        assert!(AskedThinking { think: Some(&word), ..twice_off }.thinking().is_err());
        assert_eq!(AskedThinking::default().thinking().unwrap(), None);
        let hidden = ReasoningBody { exclude: Some(true), ..ReasoningBody::default() };
        assert!(AskedThinking { reasoning: Some(&hidden), ..off }.thinking().is_err());
    }
}
