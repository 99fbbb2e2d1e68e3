//! Dynamo's requests as girih's.

use dynamo_backend_common::{
    DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use girih::{Grammar, Model, Request, Sampling, Tenant};
use serde_json::Value;

use crate::error::{dynamo_error, refusal, refuse};

/// Names in `extra_args` that concern the frontend, or parsers of thinking of other engines. The salt stands in the routes, too.
const WITHOUT_EFFECT: [&str; 6] = [
    "reasoning_ended",
    "reasoning_parser_kwargs",
    "nvext.cache_salt",
    "nvext.extra_fields",
    "nvext.token_in",
    "sampling_options.detokenize",
];

/// girih's request to `model`, whose replies end with the tokens `own`, for Dynamo's.
///
/// # Errors
/// When it asks for what girih's worker cannot do.
pub fn girih_request(asked: PreprocessedRequest, model: &Model, own: &[u32]) -> Result<Request, DynamoError> {
    check(&asked)?;
    let mut sampling = girih_sampling(&asked.sampling_options, model.default_sampling())?;
    let stops = &asked.stop_conditions;
    if stops.ignore_eos == Some(true) {
        sampling.bias.extend(own.iter().map(|id| (*id, f32::NEG_INFINITY)));
    }
    let grammar = asked.sampling_options.guided_decoding.as_ref().map(grammar).transpose()?.flatten();
    let ends = &asked.eos_token_ids;
    let mut stop_tokens: Vec<u32> = stop_tokens(stops).chain(ends.iter().copied()).collect();
    // A grammar ends by itself. The frontend sends the ends of `config.json` in two lists, and they may differ from the model's own.
    stop_tokens.retain(|id| !(own.contains(id) || grammar.is_some() && ends.contains(id)));
    stop_tokens.sort_unstable();
    stop_tokens.dedup();

    // The frontend finds texts.
    let tokens = std::sync::Arc::unwrap_or_clone(asked.token_ids);
    let mut request = Request::new(tokens).without_text().sampling(sampling);
    request = match stops.max_tokens {
        Some(max) => request.max_tokens(max).cut_to_context(),
        None => request.fill_context(),
    };
    request = stop_tokens.into_iter().fold(request, Request::stop_token);
    if let Some(min) = stops.min_tokens {
        request = request.min_tokens(min);
    }
    if let Some(top) = asked.output_options.logprobs {
        request = request.logprobs(top);
    }
    if let Some(grammar) = grammar {
        request = request.grammar(grammar);
    }
    let Some(routing) = asked.routing else { return Ok(request) };
    if let Some(name) = routing.lora_name.filter(|name| !name.is_empty()) {
        request = request.adapter(name);
    }
    match routing.cache_namespace.filter(|salt| !salt.is_empty()) {
        Some(salt) if salt.len() > Tenant::MAX_NAME_BYTES => {
            let sentence =
                format!("cache_salt has {} bytes; the maximum is {}", salt.len(), Tenant::MAX_NAME_BYTES);
            Err(refusal(sentence))
        }
        Some(salt) => Ok(request.tenant(Tenant::new(&salt))),
        None => Ok(request),
    }
}

/// Refuses what has no counterpart.
fn check(asked: &PreprocessedRequest) -> Result<(), DynamoError> {
    let has_media = asked.multi_modal_data.as_ref().is_some_and(|media| !media.is_empty());
    refuse("prompt_embeds", asked.prompt_embeds.is_some())?;
    refuse("multi_modal_data", has_media)?;
    refuse("prefill_result", asked.prefill_result.is_some())?;
    refuse("encoder_result", asked.encoder_result.is_some())?;
    refuse("bootstrap_info", asked.bootstrap_info.is_some())?;
    refuse("require_reasoning", asked.require_reasoning)?;
    refuse("max_thinking_tokens", asked.stop_conditions.max_thinking_tokens.is_some())?;
    refuse("prompt_logprobs", asked.output_options.prompt_logprobs.is_some())?;
    let Some(extra) = &asked.extra_args else { return Ok(()) };
    for name in names(extra) {
        refuse(&format!("{name} of extra_args"), !WITHOUT_EFFECT.contains(&name.as_str()))?;
    }
    Ok(())
}

/// The names in an object: those of its two objects `nvext` and `sampling_options` behind theirs.
fn names(extra: &Value) -> impl Iterator<Item = String> {
    let entries = extra.as_object().into_iter().flatten();
    entries.flat_map(|(name, value)| match (name.as_str(), value) {
        ("nvext" | "sampling_options", Value::Object(inner)) => {
            inner.keys().map(|key| format!("{name}.{key}")).collect()
        }
        _ => vec![name.clone()],
    })
}

/// girih's settings of the samplers: those that are asked for, else `default`.
///
/// # Errors
/// When girih lacks a setting, or a value is outside its range.
pub fn girih_sampling(asked: &SamplingOptions, default: Sampling) -> Result<Sampling, DynamoError> {
    refuse("n other than 1", asked.n.is_some_and(|n| n != 1))?;
    refuse("best_of other than 1", asked.best_of.is_some_and(|best_of| best_of != 1))?;
    refuse("use_beam_search", asked.use_beam_search == Some(true))?;
    refuse("length_penalty", asked.length_penalty.is_some_and(|penalty| penalty != 1.0))?;
    let top_k = match asked.top_k {
        None => default.top_k,
        Some(-1) => 0,
        Some(top_k) => u32::try_from(top_k)
            .map_err(|_| refusal(format!("top_k is {top_k}; it is -1 for all, or the number of tokens")))?,
    };
    let sampling = Sampling {
        temperature: asked.temperature.unwrap_or(default.temperature),
        top_k,
        top_p: asked.top_p.unwrap_or(default.top_p),
        min_p: asked.min_p.unwrap_or(default.min_p),
        repetition_penalty: asked.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: asked.frequency_penalty.unwrap_or(default.frequency_penalty),
        // Each negative seed is one of its own.
        seed: asked.seed.map_or(default.seed, i64::cast_unsigned),
        ..default
    };
    sampling.check().map_err(dynamo_error)?;
    Ok(sampling)
}

/// The tokens that end the reply, of all three lists: the frontend decides which of them are shown.
fn stop_tokens(stops: &StopConditions) -> impl Iterator<Item = u32> {
    let lists = [&stops.stop_token_ids, &stops.stop_token_ids_visible, &stops.stop_token_ids_hidden];
    lists.into_iter().flatten().flatten().copied()
}

/// What the reply must be.
fn grammar(asked: &GuidedDecodingOptions) -> Result<Option<Grammar>, DynamoError> {
    refuse("backend of guided decoding", asked.backend.is_some())?;
    refuse("whitespace_pattern of guided decoding", asked.whitespace_pattern.is_some())?;
    refuse("structural_tag of guided decoding", asked.structural_tag.is_some())?;
    let schema = asked
        .json
        .as_ref()
        .filter(|json| !json.is_null())
        .map(|json| Grammar::JsonSchema(json.as_str().map_or_else(|| json.to_string(), str::to_owned)));
    let regex = asked.regex.clone().map(Grammar::Regex);
    let choice = asked.choice.clone().filter(|choices| !choices.is_empty()).map(Grammar::Choice);
    let text = asked.grammar.clone().map(Grammar::of_text);
    let mut given: Vec<Grammar> = [schema, regex, choice, text].into_iter().flatten().collect();
    refuse("several constraints of guided decoding", given.len() > 1)?;
    Ok(given.pop())
}
