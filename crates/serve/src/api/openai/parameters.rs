//! The parameters that `/v1/chat/completions` and `/v1/completions` share, and their limits.

use std::collections::BTreeMap;

use girih::{Grammar, SchemaObjects};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::reasons::{AT_START, CACHE, CONTEXT, NEVER_CUT};
use crate::api::reply_form::{check_grammar, schema_text};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::json_body::from_json_object;
use crate::parameters::{AcceptedValues, ParameterNotes, ParameterWithoutEffect};

/// The maximum number of replies to a prompt.
pub const MAX_REPLIES: u32 = 8;

/// The maximum number of stop strings.
const MAX_STOPS: usize = 16;

/// The maximum length of a stop string in bytes.
const MAX_STOP_BYTES: usize = 256;

/// The maximum number of stop tokens; the engine has 64 places, and models have up to some ten of their own.
const MAX_STOP_TOKENS: usize = 32;

/// The maximum number of tokens with a bias.
const MAX_BIASES: usize = 1024;

/// The maximum number of texts that end a repetition for DRY, as for stop strings.
const MAX_BREAKERS: usize = 16;

/// The maximum number of texts in `structured_outputs.choice`.
const MAX_CHOICES: usize = 1024;

/// Parameters of `/v1/chat/completions` and `/v1/completions` that change nothing. `docs/server.md` lists them.
pub const WITHOUT_EFFECT: &[ParameterWithoutEffect] = &[
    ParameterWithoutEffect::any("metadata", "nothing is stored"),
    ParameterWithoutEffect::any("prompt_cache_key", CACHE),
    ParameterWithoutEffect::any("prompt_cache_retention", CACHE),
    ParameterWithoutEffect::any("cache_prompt", CACHE),
    ParameterWithoutEffect::any("cache_salt", "tenants share no cached prefixes"),
    ParameterWithoutEffect::any("id_slot", "the scheduler chooses the slot"),
    ParameterWithoutEffect::any("safety_identifier", "requests are told apart by their API keys"),
    ParameterWithoutEffect::any("user", "requests are told apart by their API keys"),
    ParameterWithoutEffect::any("request_id", "the header x-request-id sets the id"),
    ParameterWithoutEffect::any("service_tier", "there is one tier"),
    ParameterWithoutEffect::any("store", "nothing is stored"),
    ParameterWithoutEffect::any("prediction", "drafts are set when the server starts"),
    ParameterWithoutEffect::any("draft_model", "drafts are set when the server starts"),
    ParameterWithoutEffect::any("timings_per_token", "times are at /metrics"),
    ParameterWithoutEffect::any("return_progress", "times are at /metrics"),
    ParameterWithoutEffect::any("length_penalty", "it weighs beams, and there is no beam search"),
    ParameterWithoutEffect::any("num_ctx", CONTEXT),
    ParameterWithoutEffect::any("num_keep", NEVER_CUT),
    ParameterWithoutEffect::any("n_keep", NEVER_CUT),
    ParameterWithoutEffect::any("n_discard", NEVER_CUT),
    ParameterWithoutEffect::only("n_indent", &["0"], "a reply does not end by its indents"),
    ParameterWithoutEffect::only("t_max_predict_ms", &["0"], "a reply does not end by its time"),
    ParameterWithoutEffect::any("num_thread", AT_START),
    ParameterWithoutEffect::any("num_batch", AT_START),
    ParameterWithoutEffect::any("num_gpu", AT_START),
    ParameterWithoutEffect::any("main_gpu", AT_START),
    ParameterWithoutEffect::any("low_vram", AT_START),
    ParameterWithoutEffect::any("use_mmap", AT_START),
    ParameterWithoutEffect::any("use_mlock", AT_START),
    ParameterWithoutEffect::any("numa", AT_START),
    ParameterWithoutEffect::only("use_beam_search", &["false"], "there is no beam search"),
    ParameterWithoutEffect::only("early_stopping", &["false"], "there is no beam search"),
    ParameterWithoutEffect::only("modalities", &[r#"["text"]"#], "replies are text"),
    ParameterWithoutEffect::only(
        "reasoning_format",
        &[r#""auto""#, r#""deepseek""#],
        "thinking comes as reasoning_content",
    ),
    ParameterWithoutEffect::only("include_reasoning", &["true"], "thinking is never left out"),
    ParameterWithoutEffect::only(
        "spaces_between_special_tokens",
        &["true"],
        "special tokens are not written",
    ),
    ParameterWithoutEffect::only("skip_special_tokens", &["true"], "special tokens are not written"),
    ParameterWithoutEffect::only("penalize_newline", &["true"], "penalties count each token"),
    ParameterWithoutEffect::only("detokenize", &["true"], "replies are text"),
    ParameterWithoutEffect::only("return_token_ids", &["false"], "replies are text"),
    ParameterWithoutEffect::only("return_tokens_as_token_ids", &["false"], "replies are text"),
    ParameterWithoutEffect {
        name: "samplers",
        values: AcceptedValues::Where(is_own_order),
        why: "samplers run in the order penalties, dry, top_n_sigma, temperature, top_k, top_p, min_p, typ_p, xtc",
    },
];

/// The order of the samplers, in llama.cpp's words.
const SAMPLER_ORDER: [&str; 9] =
    ["penalties", "dry", "top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typ_p", "xtc"];

/// Whether a list names all samplers in girih's order. One that is left out would be switched off.
fn is_own_order(value: &Value) -> bool {
    let names = value.as_array().into_iter().flatten().map(|name| match name.as_str() {
        Some("typical_p") => "typ_p",
        Some(name) => name,
        None => "",
    });
    names.eq(SAMPLER_ORDER)
}

/// Options of a streamed reply.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StreamOptions {
    /// Whether a last chunk has the usage.
    pub include_usage: Option<bool>,
    /// Without effect: chunks are never padded.
    pub include_obfuscation: Option<bool>,
}

/// What a reply must be, under vLLM's names. One field is set.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StructuredOutputs {
    /// A JSON Schema.
    pub json: Option<Value>,
    /// `true`: any JSON object.
    pub json_object: Option<bool>,
    /// A regular expression that matches the whole reply.
    pub regex: Option<String>,
    /// The texts from which the reply is chosen.
    pub choice: Option<Vec<String>>,
    /// A context-free grammar in the syntax of Lark or of llama.cpp.
    pub grammar: Option<String>,
}

from_json_object!(StreamOptions, StructuredOutputs);

/// Defines the body of a request: the parameters given, and those that all requests share.
macro_rules! request_body {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, serde::Deserialize, utoipa::ToSchema)]
        #[serde(remote = "Self", deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            /// The model's id; without one, the first model answers.
            pub model: Option<String>,
            /// The number of replies, at most 8; their seeds follow each other. Default 1.
            #[schema(minimum = 1, maximum = 8)]
            pub n: Option<u32>,
            /// Whether the reply is sent in pieces as it is made.
            pub stream: Option<bool>,
            /// Options of a streamed reply.
            pub stream_options: Option<$crate::api::openai::parameters::StreamOptions>,
            /// The maximum number of tokens of the reply; it is lowered to what the context leaves. -1 is that much.
            #[schema(minimum = -1)]
            #[serde(alias = "n_predict")]
            pub max_tokens: Option<i64>,
            /// The number of tokens before which nothing ends the reply. Default 0.
            pub min_tokens: Option<u32>,
            /// Whether the reply goes on where the model would end it. Default false.
            pub ignore_eos: Option<bool>,
            /// Texts that end the reply, at most 16 of 256 bytes.
            pub stop: Option<$crate::api::one_or_many::OneOrMany>,
            /// Tokens that end the reply beside the model's own, at most 32.
            #[schema(max_items = 32)]
            pub stop_token_ids: Option<Vec<u32>>,
            /// Whether the reply ends after its stop string and not before it. Default false.
            pub include_stop_str_in_output: Option<bool>,
            /// Only this number of last tokens of the prompt are kept.
            #[schema(minimum = 1)]
            pub truncate_prompt_tokens: Option<u32>,
            /// How long the model stays loaded after the request: seconds, or a duration such as `5m`.
            #[serde(alias = "ttl")]
            pub keep_alive: Option<$crate::keep_alive::KeepAliveBody>,
            /// Requests of a higher number come after those of 0.
            pub priority: Option<i64>,
            /// The seed of the random numbers. Default 0: the same request gives the same reply.
            pub seed: Option<i64>,
            /// The temperature; 0 always picks the most likely token.
            #[schema(minimum = 0)]
            pub temperature: Option<f32>,
            /// Keep the most likely tokens up to this cumulative probability.
            #[schema(exclusive_minimum = 0, maximum = 1)]
            pub top_p: Option<f32>,
            /// Subtract this from the logits of tokens that occur in the reply.
            pub presence_penalty: Option<f32>,
            /// Subtract this from a token's logit once for each time it occurs in the reply.
            pub frequency_penalty: Option<f32>,
            /// Add a number to the logits of tokens, by id; at most 1024.
            #[schema(value_type = Option<std::collections::HashMap<String, f32>>)]
            pub logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            /// Keep this number of most likely tokens; 0 or -1 keeps all.
            #[schema(minimum = -1, maximum = 1_000_000)]
            pub top_k: Option<i64>,
            /// Keep tokens whose probability is at least this fraction of the most likely token's.
            #[schema(minimum = 0, maximum = 1)]
            pub min_p: Option<f32>,
            /// Keep tokens at most this number of standard deviations below the highest logit.
            #[schema(minimum = 0)]
            pub top_n_sigma: Option<f32>,
            /// Locally typical sampling, up to this cumulative probability.
            #[schema(exclusive_minimum = 0, maximum = 1)]
            pub typical_p: Option<f32>,
            /// XTC: probability that all tokens above the threshold except the least likely are excluded.
            #[schema(minimum = 0, maximum = 1)]
            pub xtc_probability: Option<f32>,
            /// XTC: minimum probability of the tokens that may be excluded.
            #[schema(minimum = 0, maximum = 1)]
            pub xtc_threshold: Option<f32>,
            /// Dynamic temperature: the range around `temperature`.
            #[schema(minimum = 0)]
            pub dynatemp_range: Option<f32>,
            /// Dynamic temperature: exponent of the normalized entropy.
            #[schema(exclusive_minimum = 0)]
            pub dynatemp_exponent: Option<f32>,
            /// 0 is no Mirostat, 2 is its version 2.
            pub mirostat: Option<u32>,
            /// Mirostat 2: target surprise in bits; 0 is off.
            #[schema(minimum = 0)]
            pub mirostat_tau: Option<f32>,
            /// Learning rate of Mirostat 2.
            #[schema(exclusive_minimum = 0, maximum = 1)]
            pub mirostat_eta: Option<f32>,
            /// Divide the logits of tokens that have occurred by this.
            #[schema(exclusive_minimum = 0)]
            #[serde(alias = "repeat_penalty")]
            pub repetition_penalty: Option<f32>,
            /// The number of last tokens that the three penalties count; -1 is all, and 0 switches the penalties
            /// off. Default -1.
            #[schema(minimum = -1)]
            pub repeat_last_n: Option<i64>,
            /// Penalty on tokens that would continue a repeated sequence (DRY); 0 is off.
            #[schema(minimum = 0)]
            pub dry_multiplier: Option<f32>,
            /// Factor of the DRY penalty for each further token of the repetition.
            #[schema(minimum = 1)]
            pub dry_base: Option<f32>,
            /// DRY: minimum length of a repeated sequence that is penalized.
            #[schema(minimum = 1)]
            pub dry_allowed_length: Option<u32>,
            /// DRY: number of last tokens in which repetitions are looked for; 0 is all.
            pub dry_range: Option<u32>,
            /// DRY: texts that end a repetition.
            #[schema(max_items = 16)]
            pub dry_breakers: Option<Vec<String>>,
            /// What the reply must be.
            pub structured_outputs: Option<$crate::api::openai::parameters::StructuredOutputs>,
            /// As `structured_outputs.grammar`, in the syntax of llama.cpp (GBNF).
            pub grammar: Option<String>,
            /// As `structured_outputs.grammar`.
            pub guided_grammar: Option<String>,
            /// As `structured_outputs.json`.
            #[serde(alias = "json_schema")]
            pub guided_json: Option<serde_json::Value>,
            /// As `structured_outputs.regex`.
            pub guided_regex: Option<String>,
            /// As `structured_outputs.choice`.
            pub guided_choice: Option<Vec<String>>,
        }

        $crate::json_body::from_json_object!($name);

        impl $name {
            /// The parameters that all requests share, as a neutral request without a prompt.
            ///
            /// # Errors
            /// When one is outside its range.
            pub fn generation(
                &self,
            ) -> Result<$crate::generation::GenerationRequest, $crate::error::ApiError> {
                use $crate::api::openai::parameters as shared;
                use $crate::sampling_settings::{DrySettings, SamplingSettings, mirostat_tau};
                let dry = DrySettings {
                    multiplier: self.dry_multiplier,
                    base: self.dry_base,
                    allowed_length: self.dry_allowed_length,
                    range: self.dry_range,
                    breakers: self.dry_breakers.clone(),
                };
                let sampling = SamplingSettings {
                    temperature: self.temperature,
                    top_k: self.top_k.map(shared::top_k).transpose()?,
                    top_p: self.top_p,
                    min_p: self.min_p,
                    top_n_sigma: self.top_n_sigma,
                    typical_p: self.typical_p,
                    xtc_probability: self.xtc_probability,
                    xtc_threshold: self.xtc_threshold,
                    dynatemp_range: self.dynatemp_range,
                    dynatemp_exponent: self.dynatemp_exponent,
                    mirostat_tau: mirostat_tau("mirostat", self.mirostat, self.mirostat_tau)?,
                    mirostat_eta: self.mirostat_eta,
                    repetition_penalty: self.repetition_penalty,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    penalty_range: None,
                    bias: shared::biases(self.logit_bias.as_ref())?,
                    seed: self.seed.map(i64::cast_unsigned),
                    dry,
                };
                let sampling = sampling.with_range("repeat_last_n", self.repeat_last_n)?;
                if self.stream_options.is_some() && self.stream != Some(true) {
                    let message = "stream_options needs stream: true; set it, or omit stream_options";
                    return Err($crate::error::ApiError::invalid("stream_options", message));
                }
                let request = $crate::generation::GenerationRequest {
                    model: self.model.clone(),
                    count: self.n.unwrap_or(1),
                    sampling,
                    min_tokens: self.min_tokens.unwrap_or(0),
                    stop_tokens: self.stop_token_ids.clone().unwrap_or_default(),
                    includes_stop: self.include_stop_str_in_output.unwrap_or(false),
                    prompt_end: self.truncate_prompt_tokens,
                    is_late: shared::is_late(self.priority),
                    keep_alive: self.keep_alive.as_ref().map(|keep| keep.checked("keep_alive")).transpose()?,
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    stops: self.stop.clone().map(|stop| stop.into_texts()).unwrap_or_default(),
                    grammar: self.outputs().grammar()?,
                    ..Default::default()
                };
                shared::check(&request)?;
                Ok(request)
            }

            /// What the reply must be, under vLLM's new name or another one.
            fn outputs(&self) -> $crate::api::openai::parameters::NamedOutputs<'_> {
                $crate::api::openai::parameters::NamedOutputs {
                    structured_outputs: self.structured_outputs.as_ref(),
                    guided_json: self.guided_json.as_ref(),
                    guided_regex: self.guided_regex.as_deref(),
                    guided_choice: self.guided_choice.as_deref(),
                    guided_grammar: self.guided_grammar.as_deref(),
                    // Clients of llama.cpp send an empty grammar for none.
                    grammar: self.grammar.as_deref().filter(|text| !text.is_empty()),
                }
            }

            /// Whether a streamed reply ends with a chunk that has the usage.
            pub fn includes_usage(&self) -> bool {
                self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
            }
        }
    };
}

pub(super) use request_body;

/// Checks a neutral request against the limits of this API.
///
/// # Errors
/// When a number is outside its range.
pub fn check(request: &GenerationRequest) -> Result<(), ApiError> {
    let GenerationRequest { count, stops, sampling, .. } = request;
    if *count == 0 || *count > MAX_REPLIES {
        return Err(ApiError::invalid("n", format!("n is {count}; it must be 1 to {MAX_REPLIES}")));
    }
    texts("stop", stops, MAX_STOPS, MAX_STOP_BYTES)?;
    let tokens = request.stop_tokens.len();
    if tokens > MAX_STOP_TOKENS {
        let message = format!("stop_token_ids has {tokens} tokens; the maximum is {MAX_STOP_TOKENS}");
        return Err(ApiError::invalid("stop_token_ids", message));
    }
    if request.prompt_end == Some(0) {
        let message = "truncate_prompt_tokens is 0; it must be 1 or more";
        return Err(ApiError::invalid("truncate_prompt_tokens", message));
    }
    if request.grammar.is_some() {
        check_stops_of_grammar(request)?;
    }
    let breakers = sampling.dry.breakers.as_deref().unwrap_or_default();
    texts("dry_breakers", breakers, MAX_BREAKERS, MAX_STOP_BYTES)
}

/// Refuses conditions that would end a constrained reply before it is complete, or keep it from ending.
///
/// # Errors
/// When there is one.
pub fn check_stops_of_grammar(request: &GenerationRequest) -> Result<(), ApiError> {
    let param = match request {
        GenerationRequest { min_tokens: 1.., .. } => "min_tokens",
        GenerationRequest { stop_tokens, .. } if !stop_tokens.is_empty() => "stop_token_ids",
        _ => return Ok(()),
    };
    let message =
        format!("{param} cannot be kept by a reply that has a schema, a grammar or a forced call; omit it");
    Err(ApiError::unsupported(param, message))
}

/// A maximum number of tokens, at least `least`; -1 and -2 are as many as the context leaves.
///
/// # Errors
/// When it is outside its range.
pub fn token_limit(param: &str, max: Option<i64>, least: i64) -> Result<Option<u32>, ApiError> {
    match max {
        None => Ok(None),
        Some(-2 | -1) => Ok(Some(u32::MAX)),
        Some(count) if count >= least => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
        Some(count) => {
            let message =
                format!("{param} is {count}; it must be {least} or more, or -1 for what the context leaves");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// Whether a request comes after others of its tenant.
pub(super) fn is_late(priority: Option<i64>) -> bool {
    let priority = priority.unwrap_or(0);
    if priority < 0 {
        ParameterNotes::current().add("priority", "no request puts itself before others");
    }
    priority > 0
}

fn texts(param: &str, texts: &[String], max: usize, max_bytes: usize) -> Result<(), ApiError> {
    let count = texts.len();
    if count > max {
        return Err(ApiError::invalid(param, format!("{param} has {count} texts; the maximum is {max}")));
    }
    match texts.iter().map(String::len).find(|bytes| *bytes == 0 || *bytes > max_bytes) {
        None => Ok(()),
        Some(bytes) => {
            let message = format!("a text of {param} has {bytes} bytes; it must have 1 to {max_bytes}");
            Err(ApiError::invalid(param, message))
        }
    }
}

pub(super) fn top_k(top_k: i64) -> Result<u32, ApiError> {
    let count = if top_k == -1 { 0 } else { top_k };
    u32::try_from(count)
        .map_err(|_| ApiError::invalid("top_k", format!("top_k is {top_k}; it must be -1, 0 or more")))
}

pub(super) fn biases(biases: Option<&BTreeMap<String, f32>>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(biases) = biases else { return Ok(Vec::new()) };
    if biases.len() > MAX_BIASES {
        let message = format!("logit_bias has {} tokens; the maximum is {MAX_BIASES}", biases.len());
        return Err(ApiError::invalid("logit_bias", message));
    }
    let bias = |(id, bias): (&String, &f32)| {
        let number = id.parse::<u32>().map_err(|_| {
            let id: String = id.chars().take(50).collect();
            ApiError::invalid("logit_bias", format!("logit_bias has the key {id:?}; keys are ids of tokens"))
        });
        Ok((number?, *bias))
    };
    biases.iter().map(bias).collect()
}

/// What a reply must be, under each name.
pub(super) struct NamedOutputs<'a> {
    pub structured_outputs: Option<&'a StructuredOutputs>,
    pub guided_json: Option<&'a Value>,
    pub guided_regex: Option<&'a str>,
    pub guided_choice: Option<&'a [String]>,
    pub guided_grammar: Option<&'a str>,
    pub grammar: Option<&'a str>,
}

impl NamedOutputs<'_> {
    /// The name of the one that is set.
    ///
    /// # Errors
    /// When two are.
    pub fn param(&self) -> Result<Option<&'static str>, ApiError> {
        let all = [
            ("structured_outputs", self.structured_outputs.is_some()),
            ("guided_json", self.guided_json.is_some()),
            ("guided_regex", self.guided_regex.is_some()),
            ("guided_choice", self.guided_choice.is_some()),
            ("guided_grammar", self.guided_grammar.is_some()),
            ("grammar", self.grammar.is_some()),
        ];
        let mut set = all.into_iter().filter(|(_, is_set)| *is_set).map(|(param, _)| param);
        match (set.next(), set.next()) {
            (Some(first), Some(second)) => {
                let message = format!("{first} and {second} are both set; omit one of them");
                Err(ApiError::invalid(second, message))
            }
            (first, _) => Ok(first),
        }
    }

    /// The grammar that is asked for.
    ///
    /// # Errors
    /// When there are two, or it is too long.
    pub fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let Some(param) = self.param()? else { return Ok(None) };
        let grammar = if let Some(outputs) = self.structured_outputs {
            grammar_of(param, outputs)?
        } else if let Some(schema) = self.guided_json {
            Grammar::JsonSchema(schema_text(schema, SchemaObjects::AsWritten))
        } else if let Some(pattern) = self.guided_regex {
            Grammar::Regex(pattern.to_owned())
        } else if let Some(texts) = self.guided_choice {
            one_of(param, param, texts)?
        } else {
            Grammar::of_text(self.guided_grammar.or(self.grammar).unwrap_or_default().to_owned())
        };
        check_grammar(param, grammar).map(Some)
    }
}

/// The grammar that a field of `structured_outputs` asks for.
fn grammar_of(param: &str, outputs: &StructuredOutputs) -> Result<Grammar, ApiError> {
    let StructuredOutputs { json, json_object, regex, choice, grammar } = outputs;
    let any_object = json_object.unwrap_or(false);
    let count = [json.is_some(), any_object, regex.is_some(), choice.is_some(), grammar.is_some()];
    if count.iter().filter(|is_set| **is_set).count() != 1 {
        let message = format!("{param} needs one of json, json_object, regex, choice and grammar");
        return Err(ApiError::invalid(param, message));
    }
    Ok(match outputs {
        StructuredOutputs { json: Some(schema), .. } => {
            Grammar::JsonSchema(schema_text(schema, SchemaObjects::AsWritten))
        }
        StructuredOutputs { regex: Some(pattern), .. } => Grammar::Regex(pattern.clone()),
        StructuredOutputs { choice: Some(texts), .. } => one_of(param, &format!("{param}.choice"), texts)?,
        StructuredOutputs { grammar: Some(text), .. } => Grammar::of_text(text.clone()),
        _ => Grammar::JsonObject,
    })
}

/// The choice of one of these texts.
fn one_of(param: &str, field: &str, texts: &[String]) -> Result<Grammar, ApiError> {
    if texts.is_empty() || texts.len() > MAX_CHOICES {
        let message = format!("{field} has {} texts; it must have 1 to {MAX_CHOICES}", texts.len());
        return Err(ApiError::invalid(param, message));
    }
    Ok(Grammar::Choice(texts.to_vec()))
}
