//! The request for one reply: what the user set, else what the model's
//! generation_config.json sets, else the defaults here.

use girih_engine::{Overflow, Request, Sampling, Stops};
use girih_model::{Generation, Model};
use girih_words::TextProcessor;

use crate::args::SamplingArgs;

/// The maximum number of tokens of a reply if the user sets none.
const DEFAULT_MAX_TOKENS: u32 = 256;

/// The settings of the samplers: the user's, else the model's, else greedy.
fn sampling(args: &SamplingArgs, generation: Option<&Generation>) -> Sampling {
    let shipped = generation.cloned().unwrap_or_default();
    let samples = shipped.do_sample.unwrap_or(false);
    let temperature = if samples { shipped.temperature.unwrap_or(1.0) } else { 0.0 };
    let neutral = Sampling::default();
    Sampling {
        temperature: args.temp.unwrap_or(temperature),
        top_k: args.top_k.or(shipped.top_k).unwrap_or(neutral.top_k),
        top_p: args.top_p.or(shipped.top_p).unwrap_or(neutral.top_p),
        min_p: args.min_p.or(shipped.min_p).unwrap_or(neutral.min_p),
        repetition_penalty: args
            .repetition_penalty
            .or(shipped.repetition_penalty)
            .unwrap_or(neutral.repetition_penalty),
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        bias: args.logit_bias.clone(),
        seed: args.seed,
    }
}

/// A request to continue `tokens` in a context of `context` tokens.
pub fn request(
    tokens: Vec<u32>,
    args: &SamplingArgs,
    model: &Model,
    processor: &TextProcessor,
    context: u32,
) -> Request {
    // The default is cut to what the context leaves; only the user's number can be refused.
    let room = (context as usize).saturating_sub(tokens.len()).max(1);
    let overflow = args.overflow.rule();
    let default = match overflow {
        Overflow::Error => room.min(DEFAULT_MAX_TOKENS as usize) as u32,
        Overflow::Truncate => DEFAULT_MAX_TOKENS,
    };
    Request {
        sampling: sampling(args, model.generation.as_ref()),
        max_new: Some(args.max_tokens.unwrap_or(default)).filter(|max| *max > 0),
        tokens,
        stops: Stops { tokens: stop_tokens(model, processor), strings: args.stop.clone() },
        overflow,
        ..Request::default()
    }
}

/// The tokens that end a text: those of generation_config.json and those of the
/// tokenizer.
fn stop_tokens(model: &Model, processor: &TextProcessor) -> Vec<u32> {
    let listed = model.generation.as_ref().map(|generation| generation.eos_token_id.list().to_vec());
    let metadata = model.weights.container().metadata();
    let end_of_turn = metadata.get::<u32>("tokenizer.ggml.eot_token_id").ok().flatten();
    let mut tokens: Vec<u32> = listed.unwrap_or_default();
    tokens.extend(processor.tokenizer.named().eos.into_iter().chain(end_of_turn));
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}
