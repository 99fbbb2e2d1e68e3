//! The request for one reply: what the user set, else the library's defaults.

use girih::{Model, Prompt, Request, Sampling};

use crate::args::SamplingArgs;

/// A request to continue `prompt`.
pub fn request(prompt: impl Into<Prompt>, args: &SamplingArgs, model: &Model) -> Request {
    let request = Request::new(prompt).sampling(sampling(args, model)).overflow(args.overflow.overflow());
    let request = args.stop.iter().fold(request, |request, text| request.stop(text));
    match args.max_tokens {
        Some(0) => request.fill_context(),
        Some(max) => request.max_tokens(max),
        None => request,
    }
}

/// The settings of the samplers: the user's, else the model's, else greedy.
fn sampling(args: &SamplingArgs, model: &Model) -> Sampling {
    let default = model.default_sampling();
    Sampling {
        temperature: args.temp.unwrap_or(default.temperature),
        top_k: args.top_k.unwrap_or(default.top_k),
        top_p: args.top_p.unwrap_or(default.top_p),
        min_p: args.min_p.unwrap_or(default.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        bias: args.logit_bias.clone(),
        seed: args.seed,
    }
}
