//! The tools of a chat, and whether the model may, must or must not call one.

use std::collections::HashMap;

use girih::ToolChoice;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::reply_form::{check_tools, no_tools};
use crate::error::ApiError;
use crate::json_body::from_json_object;

/// A tool, as `girih::Tool` reads it.
#[derive(ToSchema)]
#[allow(dead_code)] // describes what is passed on as it is
pub struct ToolBody {
    #[schema(rename = "type")]
    kind: FunctionType,
    function: ToolFunction,
}

/// The function of a tool.
#[derive(ToSchema)]
#[allow(dead_code)] // describes what is passed on as it is
pub struct ToolFunction {
    #[schema(pattern = "^[A-Za-z0-9_.:/-]{1,128}$")]
    name: String,
    description: Option<String>,
    /// A JSON Schema of an object.
    parameters: Option<HashMap<String, Value>>,
}

/// Whether the model may, must or must not call a tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be none, auto, required, or an object that names a function")]
pub enum ToolChoiceBody {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// This tool.
    Named(NamedTool),
}

/// Whether the model calls a tool.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // OpenAI's words
pub enum ToolMode {
    None,
    Auto,
    Required,
}

/// The tool that the model must call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[allow(dead_code)] // the type has one value
pub struct NamedTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: FunctionType,
    /// The tool.
    pub function: NamedFunction,
}

/// The type of a tool.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // OpenAI's word
pub enum FunctionType {
    Function,
}

/// The name of a tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct NamedFunction {
    /// The name.
    pub name: String,
}

/// Whether the reply must be a call of one of these tools.
///
/// # Errors
/// When a tool has another form, or the choice has none to choose from.
pub fn checked_choice(
    tools: Option<&[Value]>,
    choice: Option<&ToolChoiceBody>,
) -> Result<ToolChoice, ApiError> {
    let count = tools.map_or(0, <[Value]>::len);
    if let Some(tools) = tools {
        check_tools(tools)?;
    }
    let choice = match choice {
        None | Some(ToolChoiceBody::Mode(ToolMode::None | ToolMode::Auto)) => return Ok(ToolChoice::Auto),
        Some(ToolChoiceBody::Mode(ToolMode::Required)) => ToolChoice::Required,
        Some(ToolChoiceBody::Named(tool)) => ToolChoice::Tool(tool.function.name.clone()),
    };
    if count == 0 {
        return Err(no_tools());
    }
    Ok(choice)
}

from_json_object!(NamedTool, NamedFunction);
