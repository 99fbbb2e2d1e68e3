//! The bodies of `/v1/messages` and `/v1/messages/count_tokens`, and what they ask for.

use girih::{Conversation, Grammar, Prompt, SchemaObjects, ToolChoice};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::messages::{AnthropicText, InputMessage, continues_last, template_messages};
use crate::api::reasons::CACHE;
use crate::api::reply_form::{check_tools, continued_call, no_tools, schema_grammar};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::json_body::from_json_object;
use crate::parameters::{AcceptedValues, ParameterNotes, ParameterWithoutEffect};
use crate::sampling_settings::SamplingSettings;
use crate::thinking::{Effort, Lack, Thinking, ThinkingLimit};

/// Parameters that change nothing here. `docs/server.md` lists them.
pub const WITHOUT_EFFECT: &[ParameterWithoutEffect] = &[
    ParameterWithoutEffect::any("cache_control", CACHE),
    ParameterWithoutEffect::any("metadata", "nothing is stored"),
    ParameterWithoutEffect::any("service_tier", "there is one tier"),
    ParameterWithoutEffect::any("inference_geo", "requests are answered on this machine"),
    ParameterWithoutEffect::only("mcp_servers", &["[]"], "the server runs no tools"),
    ParameterWithoutEffect::only("container", &["null"], "the server runs no tools"),
    ParameterWithoutEffect {
        name: "context_management",
        values: AcceptedValues::Where(edits_nothing),
        why: "the server edits no conversation; allowed is clear_thinking with keep all",
    },
];

/// Whether none of the edits of a `context_management` removes anything.
fn edits_nothing(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let keeps_all = |edit: &Value| {
        let kind = edit["type"].as_str().unwrap_or_default();
        kind.starts_with("clear_thinking_") && edit["keep"] == "all"
    };
    let edits = object.get("edits").map_or(Some(&[][..]), |edits| edits.as_array().map(Vec::as_slice));
    object.keys().all(|name| name == "edits") && edits.is_some_and(|edits| edits.iter().all(keeps_all))
}

/// The body of `/v1/messages`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct MessagesRequest {
    /// The model's id.
    pub model: String,
    /// The conversation, at most 2048 messages; the last one is of the user.
    #[schema(min_items = 1, max_items = 2048)]
    pub messages: Vec<InputMessage>,
    /// The maximum number of tokens of the reply; it is lowered to what the context leaves.
    #[schema(minimum = 1)]
    pub max_tokens: u32,
    /// The system prompt.
    pub system: Option<AnthropicText>,
    /// Texts that end the reply, at most 16 of 256 bytes.
    #[schema(max_items = 16)]
    pub stop_sequences: Option<Vec<String>>,
    /// Whether the reply is sent in pieces as it is made.
    pub stream: Option<bool>,
    /// The temperature; 0 always picks the most likely token.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Keep this number of most likely tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens up to this cumulative probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// The tools that the model may call, at most 128.
    #[schema(max_items = 128)]
    pub tools: Option<Vec<InputTool>>,
    /// Whether the model may, must or must not call a tool.
    pub tool_choice: Option<InputToolChoice>,
    /// Whether the model thinks.
    pub thinking: Option<ThinkingConfig>,
    /// How much the model thinks, and what the reply must be.
    pub output_config: Option<OutputConfig>,
}

/// The body of `/v1/messages/count_tokens`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct CountTokensRequest {
    /// The model's id.
    pub model: String,
    /// The conversation, at most 2048 messages; the last one is of the user.
    #[schema(min_items = 1, max_items = 2048)]
    pub messages: Vec<InputMessage>,
    /// The system prompt.
    pub system: Option<AnthropicText>,
    /// The tools that the model may call, at most 128.
    #[schema(max_items = 128)]
    pub tools: Option<Vec<InputTool>>,
    /// Whether the model may, must or must not call a tool.
    pub tool_choice: Option<InputToolChoice>,
    /// Whether the model thinks.
    pub thinking: Option<ThinkingConfig>,
    /// How much the model thinks, and what the reply must be.
    pub output_config: Option<OutputConfig>,
}

/// A tool that the model may call.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct InputTool {
    /// `custom`, or absent.
    #[serde(rename = "type")]
    pub kind: Option<CustomTool>,
    /// Its name: 1 to 128 ASCII letters, digits and `_ - . : /`.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// The JSON Schema of its arguments, an object.
    pub input_schema: Map<String, Value>,
    /// Without effect: the arguments of a forced call always follow the schema.
    pub strict: Option<bool>,
    /// Without effect.
    pub cache_control: Option<Value>,
    /// Without effect: arguments are always sent as they are made.
    pub eager_input_streaming: Option<bool>,
}

/// The type of a tool.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CustomTool {
    /// The client runs it.
    Custom,
}

/// Whether the model may, must or must not call a tool.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum InputToolChoice {
    /// It may.
    Auto {
        /// Whether the reply ends after its first call.
        disable_parallel_tool_use: Option<bool>,
    },
    /// It must call one.
    Any {
        /// Whether the reply ends after its first call.
        disable_parallel_tool_use: Option<bool>,
    },
    /// It must call this one.
    Tool {
        /// The tool's name.
        name: String,
        /// Whether the reply ends after its first call.
        disable_parallel_tool_use: Option<bool>,
    },
    /// It must not.
    None {},
}

/// Whether the model thinks.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum ThinkingConfig {
    /// It does.
    Enabled {
        /// The maximum number of tokens of thinking.
        budget_tokens: Option<u32>,
        /// How thinking is shown.
        display: Option<ThinkingDisplay>,
    },
    /// As its chat template does by default.
    Adaptive {
        /// How thinking is shown.
        display: Option<ThinkingDisplay>,
    },
    /// It does not.
    Disabled {},
}

/// How thinking is shown.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingDisplay {
    /// Whole: nothing is left out.
    Summarized,
}

/// How much the model thinks, and what the reply must be.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct OutputConfig {
    /// How much the model thinks, if its chat template knows the word.
    pub effort: Option<String>,
    /// What the reply must be.
    pub format: Option<AnthropicFormat>,
}

/// What the reply must be.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AnthropicFormat {
    /// JSON of a schema.
    JsonSchema {
        /// The JSON Schema.
        schema: Value,
    },
}

/// What decides the prompt, in both bodies.
#[derive(Clone, Copy)]
pub struct PromptFields<'a> {
    messages: &'a [InputMessage],
    system: Option<&'a AnthropicText>,
    tools: Option<&'a [InputTool]>,
    tool_choice: Option<&'a InputToolChoice>,
    thinking: Option<&'a ThinkingConfig>,
    output_config: Option<&'a OutputConfig>,
}

impl CountTokensRequest {
    /// What decides the prompt.
    pub fn prompt(&self) -> PromptFields<'_> {
        PromptFields {
            messages: &self.messages,
            system: self.system.as_ref(),
            tools: self.tools.as_deref(),
            tool_choice: self.tool_choice.as_ref(),
            thinking: self.thinking.as_ref(),
            output_config: self.output_config.as_ref(),
        }
    }
}

impl MessagesRequest {
    fn prompt(&self) -> PromptFields<'_> {
        PromptFields {
            messages: &self.messages,
            system: self.system.as_ref(),
            tools: self.tools.as_deref(),
            tool_choice: self.tool_choice.as_ref(),
            thinking: self.thinking.as_ref(),
            output_config: self.output_config.as_ref(),
        }
    }

    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is outside its range, or contradicts another one.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        if self.max_tokens == 0 {
            return Err(ApiError::invalid("max_tokens", "max_tokens is 0; it must be 1 or more"));
        }
        let prompt = self.prompt();
        let conversation = prompt.conversation()?;
        let (tool_choice, single_call) = prompt.tool_choice()?;
        if conversation.continues_last && tool_choice != ToolChoice::Auto {
            return Err(continued_call());
        }
        let sampling = SamplingSettings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            ..SamplingSettings::default()
        };
        Ok(GenerationRequest {
            model: Some(self.model.clone()),
            count: 1,
            sampling,
            max_tokens: Some(self.max_tokens),
            stops: self.stop_sequences.clone().unwrap_or_default(),
            grammar: prompt.grammar(conversation.tools.is_some())?,
            prompts: vec![Prompt::Conversation(conversation)],
            tool_choice,
            single_call,
            thinking: prompt.thinking()?,
            thinking_limit: prompt.thinking_limit(),
            ..GenerationRequest::default()
        })
    }
}

impl PromptFields<'_> {
    /// The maximum number of tokens of thinking.
    fn thinking_limit(&self) -> Option<ThinkingLimit> {
        let Some(ThinkingConfig::Enabled { budget_tokens, .. }) = self.thinking else { return None };
        ThinkingLimit::asked("thinking.budget_tokens", budget_tokens.map(i64::from))
    }

    /// The conversation with its system prompt and tools.
    ///
    /// # Errors
    /// When a message or a tool has a form that is not known.
    pub fn conversation(&self) -> Result<Conversation, ApiError> {
        let mut conversation = Conversation::new();
        let system = self.system.map(|system| system.system_text(&ParameterNotes::current())).transpose()?;
        if let Some(system) = system.flatten() {
            conversation = conversation.system(system);
        }
        conversation.messages.extend(template_messages(self.messages)?);
        conversation.continues_last = continues_last(self.messages);
        let has_none = matches!(self.tool_choice, Some(InputToolChoice::None {}));
        let tools = self.tools.filter(|tools| !tools.is_empty() && !has_none);
        conversation.tools = tools.map(|tools| tools.iter().map(InputTool::template_tool).collect());
        if let Some(tools) = &conversation.tools {
            check_tools(tools)?;
        }
        Ok(conversation)
    }

    /// How much the model thinks; `None` for its default.
    ///
    /// # Errors
    /// When an effort is asked for although thinking is disabled.
    pub fn thinking(&self) -> Result<Option<Thinking>, ApiError> {
        let lack = Lack::WithoutEffect;
        let effort = self.output_config.and_then(|config| config.effort.as_ref());
        Ok(match (self.thinking, effort) {
            (Some(ThinkingConfig::Disabled {}), Some(_)) => {
                let message = "output_config.effort is set, but thinking is disabled; omit one of them";
                return Err(ApiError::invalid("output_config.effort", message));
            }
            (_, Some(word)) => {
                Some(Thinking { param: "output_config.effort", effort: Effort::Level(word.clone()), lack })
            }
            (Some(ThinkingConfig::Disabled {}), None) => {
                Some(Thinking { param: "thinking", effort: Effort::Off, lack })
            }
            (Some(ThinkingConfig::Enabled { .. }), None) => {
                Some(Thinking { param: "thinking", effort: Effort::On, lack })
            }
            (None | Some(ThinkingConfig::Adaptive { .. }), None) => None,
        })
    }

    fn tool_choice(&self) -> Result<(ToolChoice, bool), ApiError> {
        let (choice, single) = match self.tool_choice {
            None | Some(InputToolChoice::None {}) => return Ok((ToolChoice::Auto, false)),
            Some(InputToolChoice::Auto { disable_parallel_tool_use: single }) => {
                return Ok((ToolChoice::Auto, *single == Some(true)));
            }
            Some(InputToolChoice::Any { disable_parallel_tool_use }) => {
                (ToolChoice::Required, disable_parallel_tool_use)
            }
            Some(InputToolChoice::Tool { name, disable_parallel_tool_use }) => {
                (ToolChoice::Tool(name.clone()), disable_parallel_tool_use)
            }
        };
        if self.tools.is_none_or(<[InputTool]>::is_empty) {
            return Err(no_tools());
        }
        Ok((choice, *single == Some(true)))
    }

    fn grammar(&self, has_tools: bool) -> Result<Option<Grammar>, ApiError> {
        const PARAM: &str = "output_config.format";
        let Some(AnthropicFormat::JsonSchema { schema }) =
            self.output_config.and_then(|config| config.format.as_ref())
        else {
            return Ok(None);
        };
        schema_grammar(PARAM, schema, SchemaObjects::Closed, has_tools).map(Some)
    }
}

impl InputTool {
    /// The tool as chat templates read it.
    fn template_tool(&self) -> Value {
        let mut function = json!({"name": self.name});
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        function["parameters"] = Value::Object(self.input_schema.clone());
        json!({"type": "function", "function": function})
    }
}

from_json_object!(
    MessagesRequest,
    CountTokensRequest,
    InputTool,
    InputToolChoice,
    ThinkingConfig,
    OutputConfig,
    AnthropicFormat
);
