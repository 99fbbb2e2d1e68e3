//! Text and tokens: what a model's vocabulary and chat template say.

pub mod template;
