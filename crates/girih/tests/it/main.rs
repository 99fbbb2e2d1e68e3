//! Tests of the library on the built-in model.

mod adapters;
mod arithmetic;
mod drafts;
mod equal_bytes;
#[cfg(feature = "grammar")]
mod forced_calls;
mod given;
mod hooks;
#[cfg(feature = "image")]
mod image_prompts;
mod image_replies;
mod images;
mod images_any_size;
mod json;
mod kv_range;
mod model_pool;
mod mtp;
mod prompt_cache;
mod prompt_logprobs;
mod replies;
mod sessions;
mod stages;
mod starts;
#[cfg(feature = "grammar")]
mod structured;
