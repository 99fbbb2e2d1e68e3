//! The parameters that `/api/chat` and `/api/generate` share: options of the samplers, the form of
//! the reply, and thinking.

use girih::{Grammar, SchemaObjects};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::reasons::{AT_START, CONTEXT, NEVER_CUT};
use crate::api::reply_form::{no_room_for_calls, schema_grammar};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::json_body::{from_json_object, read_object};
use crate::parameters::ParameterWithoutEffect;
use crate::sampling_settings::{SamplingSettings, mirostat_tau};
use crate::thinking::{Effort, Lack, Thinking};

/// Parameters that change nothing here. `docs/server.md` lists them.
pub const WITHOUT_EFFECT: &[ParameterWithoutEffect] =
    &[ParameterWithoutEffect::any("verbose", "/api/show tells everything")];

/// Parameters of embeddings that change nothing here. `docs/server.md` names them.
pub const EMBED_WITHOUT_EFFECT: &[ParameterWithoutEffect] =
    &[ParameterWithoutEffect::any("keep_alive", "encoders stay loaded")];

/// Options that change nothing here. `docs/server.md` lists them.
pub const OPTIONS_WITHOUT_EFFECT: &[ParameterWithoutEffect] = &[
    ParameterWithoutEffect::any("num_ctx", CONTEXT),
    ParameterWithoutEffect::any("num_keep", NEVER_CUT),
    ParameterWithoutEffect::any("num_thread", AT_START),
    ParameterWithoutEffect::any("num_batch", AT_START),
    ParameterWithoutEffect::any("num_gpu", AT_START),
    ParameterWithoutEffect::any("main_gpu", AT_START),
    ParameterWithoutEffect::any("low_vram", AT_START),
    ParameterWithoutEffect::any("use_mmap", AT_START),
    ParameterWithoutEffect::any("use_mlock", AT_START),
    ParameterWithoutEffect::any("numa", AT_START),
    ParameterWithoutEffect::any("f16_kv", AT_START),
    ParameterWithoutEffect::only("logits_all", &["false"], "the model replies with text"),
    ParameterWithoutEffect::only("vocab_only", &["false"], "the model replies with text"),
    ParameterWithoutEffect::only("embedding_only", &["false"], "the model replies with text"),
    ParameterWithoutEffect::only("penalize_newline", &["true"], "penalties count each token"),
    ParameterWithoutEffect::only("tfs_z", &["1"], "there is no tail-free sampling"),
];

/// Options of the samplers. Those that are not set are the model's.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct OllamaOptions {
    /// The maximum number of tokens of the reply; -1 and -2 are as many as the context leaves.
    pub num_predict: Option<i64>,
    /// The seed of the random numbers. Default 0: the same request gives the same reply.
    pub seed: Option<i64>,
    /// The temperature; 0 always picks the most likely token.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Keep this number of most likely tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keep the most likely tokens up to this cumulative probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// Keep tokens whose probability is at least this fraction of the most likely token's.
    pub min_p: Option<f32>,
    /// Locally typical sampling, up to this cumulative probability.
    pub typical_p: Option<f32>,
    /// Divide the logits of tokens that have occurred by this.
    pub repeat_penalty: Option<f32>,
    /// The number of last tokens that the three penalties count; -1 is all, and 0 switches the penalties off.
    /// Default -1.
    pub repeat_last_n: Option<i64>,
    /// Subtract this from the logits of tokens that occur in the reply.
    pub presence_penalty: Option<f32>,
    /// Subtract this from a token's logit once for each time it occurs in the reply.
    pub frequency_penalty: Option<f32>,
    /// 0 is no Mirostat, 2 is its version 2; 1 is refused.
    pub mirostat: Option<u32>,
    /// Mirostat: target surprise in bits. Default 5.
    pub mirostat_tau: Option<f32>,
    /// Mirostat: learning rate. Default 0.1.
    pub mirostat_eta: Option<f32>,
    /// Texts that end the reply, at most 16 of 256 bytes.
    #[schema(max_items = 16)]
    pub stop: Option<Vec<String>>,
}

/// Whether the model thinks, or how much.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a boolean or a string")]
pub enum Think {
    /// Whether it does.
    Switch(bool),
    /// A word that its chat template knows, such as `low`.
    Level(String),
}

impl Think {
    /// How much the model thinks.
    pub fn thinking(&self) -> Thinking {
        let effort = match self {
            Think::Switch(true) => Effort::On,
            Think::Switch(false) => Effort::Off,
            Think::Level(word) => Effort::Level(word.clone()),
        };
        Thinking { param: "think", effort, lack: Lack::Refused }
    }
}

/// The options as a neutral request without a prompt.
///
/// # Errors
/// When one is not known, has no equivalent, or is outside its range.
pub fn generation(options: Option<&Map<String, Value>>) -> Result<GenerationRequest, ApiError> {
    let options = options.cloned().unwrap_or_default();
    let options: OllamaOptions = read_object("options", options, OPTIONS_WITHOUT_EFFECT)?;
    Ok(GenerationRequest {
        count: 1,
        max_tokens: options.max_tokens()?,
        stops: options.stop.clone().unwrap_or_default(),
        sampling: options.sampling()?.with_range("options.repeat_last_n", options.repeat_last_n)?,
        ..GenerationRequest::default()
    })
}

impl OllamaOptions {
    fn max_tokens(&self) -> Result<Option<u32>, ApiError> {
        match self.num_predict {
            None | Some(-1 | -2) => Ok(None),
            Some(count) => u32::try_from(count).ok().filter(|count| *count > 0).map(Some).ok_or_else(|| {
                let message = format!("options.num_predict is {count}; it must be -2, -1, or 1 or more");
                ApiError::invalid("options.num_predict", message)
            }),
        }
    }

    fn sampling(&self) -> Result<SamplingSettings, ApiError> {
        // Without a version, a target alone switches nothing on.
        let version = self.mirostat.or(Some(0));
        let mirostat_tau = mirostat_tau("options.mirostat", version, self.mirostat_tau)?;
        Ok(SamplingSettings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            seed: self.seed.map(i64::cast_unsigned),
            ..SamplingSettings::default()
        })
    }
}

/// The grammar of a `format`: nothing, `json`, or a JSON Schema.
///
/// # Errors
/// When it is something else, or there are tools.
pub fn grammar(format: Option<&Value>, has_tools: bool) -> Result<Option<Grammar>, ApiError> {
    const PARAM: &str = "format";
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" && has_tools => Err(no_room_for_calls(PARAM)),
        Some(Value::String(text)) if text == "json" => Ok(Some(Grammar::JsonObject)),
        Some(schema @ Value::Object(_)) => {
            schema_grammar(PARAM, schema, SchemaObjects::Closed, has_tools).map(Some)
        }
        Some(_) => Err(ApiError::invalid(PARAM, "format must be \"json\" or a JSON Schema")),
    }
}

from_json_object!(OllamaOptions);
