//! The tools of `/v1/responses`: functions, and others that are left out.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::api::openai::tool_choice::FunctionType;
use crate::json_body::json_object;
use crate::parameters::ParameterNotes;

/// The types of tools that are no functions: those that OpenAI's server runs, and those that a client runs but whose calls
/// have another form. An agent sends them whatever the model can do.
const LEFT_OUT: [&str; 15] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "custom",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "shell",
    "tool_search",
    "web_search",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];

/// A tool that the model may call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct FunctionTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: FunctionType,
    /// Its name: 1 to 128 ASCII letters, digits and `_ - . : /`.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The JSON Schema of its arguments, an object.
    pub parameters: Option<Map<String, Value>>,
    /// Without effect: the arguments of a forced call always follow the schema.
    pub strict: Option<bool>,
}

json_object!(FunctionTool);

/// A tool.
#[derive(Clone, Debug)]
pub enum ResponsesTool {
    /// A function.
    Function(FunctionTool),
    /// One of another type, which the model cannot call.
    LeftOut(&'static str),
}

impl<'de> Deserialize<'de> for ResponsesTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ResponsesTool, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match LEFT_OUT.into_iter().find(|kind| value["type"] == *kind) {
            Some(kind) => Ok(ResponsesTool::LeftOut(kind)),
            None => FunctionTool::deserialize(value).map(ResponsesTool::Function).map_err(D::Error::custom),
        }
    }
}

/// The functions among tools; the others are noted.
pub fn functions(tools: &[ResponsesTool], notes: &ParameterNotes) -> Vec<FunctionTool> {
    let function = |(index, tool): (usize, &ResponsesTool)| match tool {
        ResponsesTool::Function(tool) => Some(tool.clone()),
        ResponsesTool::LeftOut(kind) => {
            notes.add(
                &format!("tools[{index}]"),
                &format!("the model can call functions only, and no {kind}"),
            );
            None
        }
    };
    tools.iter().enumerate().filter_map(function).collect()
}

impl FunctionTool {
    /// The tool as chat templates read it.
    pub fn template_tool(&self) -> Value {
        let mut function = json!({"name": self.name});
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        if let Some(parameters) = &self.parameters {
            function["parameters"] = Value::Object(parameters.clone());
        }
        json!({"type": "function", "function": function})
    }
}
