//! `functions` and `function_call`, OpenAI's older names of tools: translated to tools, and calls back.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::tool_choice::{FunctionType, NamedFunction, NamedTool, ToolChoiceBody, ToolMode};
use crate::error::ApiError;

/// Whether the model may or must call a function.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be none, auto, or an object that names a function")]
pub enum FunctionChoice {
    /// `none` or `auto`.
    Mode(FunctionMode),
    /// This function.
    Named(NamedFunction),
}

/// Whether the model calls a function.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // OpenAI's words
pub enum FunctionMode {
    None,
    Auto,
}

/// The form in which a client gets calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWireForm {
    /// `tool_calls`.
    Tools,
    /// `function_call`, the only call of a message.
    Function,
}

/// The tools of a request, under either name.
#[derive(Clone, Debug)]
pub struct AskedTools {
    /// The tools; `None` if there are none, or the model may not call them.
    pub tools: Option<Vec<Value>>,
    /// Whether the model may or must call one.
    pub choice: Option<ToolChoiceBody>,
    /// The form of calls in the reply.
    pub form: CallWireForm,
}

/// What a request says of tools, under both names.
#[derive(Clone, Copy, Debug)]
pub struct NamedTools<'a> {
    /// `tools`.
    pub tools: Option<&'a Vec<Value>>,
    /// `tool_choice`.
    pub tool_choice: Option<&'a ToolChoiceBody>,
    /// `functions`.
    pub functions: Option<&'a Vec<Value>>,
    /// `function_call`.
    pub function_call: Option<&'a FunctionChoice>,
}

impl NamedTools<'_> {
    /// The tools that the request has.
    ///
    /// # Errors
    /// When it has both names, or a choice without what it chooses from.
    pub fn asked(&self) -> Result<AskedTools, ApiError> {
        let Some(functions) = self.functions else {
            if self.function_call.is_some() {
                let message = "function_call needs functions; send them, or tools and tool_choice";
                return Err(ApiError::invalid("function_call", message));
            }
            return Ok(self.with_choice(self.tools.cloned(), self.tool_choice.cloned()));
        };
        if self.tools.is_some() || self.tool_choice.is_some() {
            let message = "functions is set beside tools or tool_choice; omit it";
            return Err(ApiError::invalid("functions", message));
        }
        let tools = functions.iter().map(|function| json!({"type": "function", "function": function}));
        let choice = self.function_call.map(|choice| match choice {
            FunctionChoice::Mode(FunctionMode::None) => ToolChoiceBody::Mode(ToolMode::None),
            FunctionChoice::Mode(FunctionMode::Auto) => ToolChoiceBody::Mode(ToolMode::Auto),
            FunctionChoice::Named(function) => {
                ToolChoiceBody::Named(NamedTool { kind: FunctionType::Function, function: function.clone() })
            }
        });
        Ok(self.with_choice(Some(tools.collect()), choice))
    }

    fn with_choice(&self, tools: Option<Vec<Value>>, choice: Option<ToolChoiceBody>) -> AskedTools {
        let calls_none = matches!(choice, Some(ToolChoiceBody::Mode(ToolMode::None)));
        let tools = tools.filter(|tools| !tools.is_empty() && !calls_none);
        AskedTools { tools, choice, form: self.form() }
    }

    /// The form of calls in the reply.
    pub fn form(&self) -> CallWireForm {
        if self.functions.is_some() { CallWireForm::Function } else { CallWireForm::Tools }
    }
}
