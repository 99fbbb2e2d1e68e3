//! The request for one reply: its prompt, and what the user set, else the library's defaults.

use std::collections::BTreeSet;

use girih::{BosEos, Conversation, Dry, ImagePatches, Model, ReplyFormat, Request, Sampling, TextOrigin};
use girih_file::quote;
use serde_json::{Value, json};

use crate::args::{OverflowMode, SamplingArgs, ShapeArgs};
use crate::config_file::{ConfigFile, variable_of};
use crate::error::{Error, Result};
use crate::typed_options::TypedOptions;

/// A prompt as tokens.
#[derive(Clone, Debug)]
pub struct TokenizedPrompt {
    /// The ids.
    pub tokens: Vec<u32>,
    /// How the reply is split, if a chat template wrote the prompt.
    pub format: Option<ReplyFormat>,
    /// Its images.
    pub images: Vec<ImagePatches>,
}

impl TokenizedPrompt {
    /// A text to continue; `origin` decides whether special tokens in it are parsed.
    ///
    /// # Errors
    /// When the model has no tokenizer, or the text is too long for it.
    pub fn of_text(model: &Model, text: &str, origin: TextOrigin) -> Result<TokenizedPrompt> {
        Ok(TokenizedPrompt { tokens: model.tokenize_as(text, origin)?, format: None, images: Vec::new() })
    }

    /// A conversation with its images, written by the model's chat template.
    ///
    /// # Errors
    /// When the model has no template, the template refuses the conversation, or it has tools that
    /// cannot be used.
    pub fn of_conversation(
        model: &Model,
        conversation: &Conversation,
        images: Vec<ImagePatches>,
    ) -> Result<TokenizedPrompt> {
        let spans = model.render_with_images(conversation, &images)?;
        let tokens = model.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit)?;
        Ok(TokenizedPrompt { tokens, format: Some(model.reply_format(conversation, &spans)?), images })
    }

    /// The prompt with the beginning of its reply.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn followed_by(mut self, model: &Model, reply: &[u32]) -> Result<TokenizedPrompt> {
        self.tokens.extend(reply);
        let format = self.format.map(|format| format.after_tokens(model, reply)).transpose()?;
        Ok(TokenizedPrompt { format, ..self })
    }
}

/// A message of the user as chat templates take it: a text after the places of these images and videos.
pub fn user_message(text: &str, images: &[ImagePatches]) -> Value {
    if images.is_empty() {
        return json!({"role": "user", "content": text});
    }
    let kind = |image: &ImagePatches| if image.seconds().is_some() { "video" } else { "image" };
    let places = images.iter().map(|image| json!({"type": kind(image)}));
    let parts: Vec<Value> = places.chain([json!({"type": "text", "text": text})]).collect();
    json!({"role": "user", "content": parts})
}

/// A request to continue `prompt`. Without a maximum, the reply may fill the context of `context`
/// tokens; if the oldest tokens are dropped instead, it has at most as many tokens as the context.
pub fn request(prompt: TokenizedPrompt, args: &SamplingArgs, model: &Model, context: u32) -> Request {
    let TokenizedPrompt { tokens, format, images } = prompt;
    let request = Request::new(tokens)
        .images(images)
        .sampling(sampling(args, model))
        .overflow(args.overflow.overflow());
    let request = match format {
        Some(format) => request.format(format),
        None => request,
    };
    let request = args.stop.iter().fold(request, |request, text| request.stop(text));
    match (args.max_tokens.filter(|max| *max > 0), args.overflow) {
        (Some(max), _) => request.max_tokens(max),
        (None, OverflowMode::Error) => request.fill_context(),
        (None, OverflowMode::Truncate) => request.max_tokens(context),
    }
}

/// Checks the settings of the samplers.
///
/// # Errors
/// When a number is outside its range; the sentence names the variable, or the file and line, of an
/// option that was not typed.
pub fn check_sampling(args: &SamplingArgs, typed: &TypedOptions) -> Result<()> {
    let none = Sampling::greedy;
    let ShapeArgs { typical_p, top_n_sigma, xtc_probability, xtc_threshold, .. } = args.shape;
    let ShapeArgs { dynatemp_range, dynatemp_exponent, mirostat_tau, mirostat_eta, .. } = args.shape;
    let ShapeArgs { dry_multiplier, dry_base, dry_allowed_length, .. } = args.shape;
    let dry = |dry| Sampling { dry, ..none() };
    let each = [
        ("temp", Sampling { temperature: args.temp.unwrap_or_default(), ..none() }),
        ("top-p", Sampling { top_p: args.top_p.unwrap_or(1.0), ..none() }),
        ("min-p", Sampling { min_p: args.min_p.unwrap_or_default(), ..none() }),
        (
            "repetition-penalty",
            Sampling { repetition_penalty: args.repetition_penalty.unwrap_or(1.0), ..none() },
        ),
        ("presence-penalty", Sampling { presence_penalty: args.presence_penalty, ..none() }),
        ("frequency-penalty", Sampling { frequency_penalty: args.frequency_penalty, ..none() }),
        ("logit-bias", Sampling { bias: args.logit_bias.clone(), ..none() }),
        ("typical-p", Sampling { typical_p, ..none() }),
        ("top-n-sigma", Sampling { top_n_sigma, ..none() }),
        ("xtc-probability", Sampling { xtc_probability, ..none() }),
        ("xtc-threshold", Sampling { xtc_threshold, ..none() }),
        ("dynatemp-range", Sampling { dynatemp_range, ..none() }),
        ("dynatemp-exponent", Sampling { dynatemp_exponent, ..none() }),
        ("mirostat-tau", Sampling { mirostat_tau, ..none() }),
        ("mirostat-eta", Sampling { mirostat_eta, ..none() }),
        ("dry-multiplier", dry(Dry { multiplier: dry_multiplier, ..Dry::default() })),
        ("dry-base", dry(Dry { base: dry_base, ..Dry::default() })),
        ("dry-allowed-length", dry(Dry { allowed_length: dry_allowed_length, ..Dry::default() })),
    ];
    for (option, sampling) in each {
        if let Err(error) = sampling.check() {
            let place = place_of(option, typed)?.map_or(String::new(), |place| format!("{place}: "));
            return Err(Error::call(format!("{place}{error}")));
        }
    }
    Ok(())
}

/// The variable or the line of the configuration file that sets an option; `None` if it was typed.
fn place_of(option: &str, typed: &TypedOptions) -> Result<Option<String>> {
    let variable = variable_of(option);
    if typed.has(option) {
        return Ok(None);
    }
    if let Some(value) = std::env::var_os(&variable) {
        return Ok(Some(format!("{variable}={}", quote(&value.to_string_lossy()))));
    }
    let file = ConfigFile::read_if_present()?;
    let is_key = file.keys().any(|key| key == option);
    Ok(is_key.then(|| file.assignment_of(option)))
}

/// The settings of the samplers: the user's, else the model's, else greedy.
pub fn sampling(args: &SamplingArgs, model: &Model) -> Sampling {
    let default = model.default_sampling();
    Sampling {
        temperature: args.temp.unwrap_or(default.temperature),
        top_k: args.top_k.unwrap_or(default.top_k),
        top_p: args.top_p.unwrap_or(default.top_p),
        min_p: args.min_p.unwrap_or(default.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        penalty_range: default.penalty_range,
        bias: args.logit_bias.clone(),
        seed: args.seed,
        typical_p: args.shape.typical_p,
        top_n_sigma: args.shape.top_n_sigma,
        xtc_probability: args.shape.xtc_probability,
        xtc_threshold: args.shape.xtc_threshold,
        dynatemp_range: args.shape.dynatemp_range,
        dynatemp_exponent: args.shape.dynatemp_exponent,
        mirostat_tau: args.shape.mirostat_tau,
        mirostat_eta: args.shape.mirostat_eta,
        dry: dry(&args.shape, model),
    }
}

/// The settings of DRY. Its breakers are the tokens that contain one of the texts.
fn dry(args: &ShapeArgs, model: &Model) -> Dry {
    let default = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
    let texts = if args.dry_breaker.is_empty() { default() } else { args.dry_breaker.clone() };
    // Without a tokenizer, the prompt is refused.
    let breakers = match model.text_processor() {
        Ok(text) if args.dry_multiplier > 0.0 => {
            texts.iter().flat_map(|breaker| text.tokenizer.tokens_containing(breaker)).collect()
        }
        _ => BTreeSet::new(),
    };
    Dry {
        multiplier: args.dry_multiplier,
        base: args.dry_base,
        allowed_length: args.dry_allowed_length,
        range: args.dry_range,
        breakers,
    }
}
