//! The model that ships with girih: 260,000 parameters that tell a story.
//! Its origin and licence are in `assets/stories260k/README.md`.

use girih_model::Embedded;

macro_rules! asset {
    ($include:ident, $file:literal) => {
        $include!(concat!("../assets/stories260k/", $file))
    };
}

/// The built-in model.
pub const STORIES: Embedded = Embedded {
    name: "stories260k",
    weights: asset!(include_bytes, "model.safetensors"),
    config: asset!(include_str, "config.json"),
    generation: asset!(include_str, "generation_config.json"),
    tokenizer: asset!(include_str, "tokenizer.json"),
};

/// The prompt of `girih run` if the user gives none.
pub const STORIES_PROMPT: &str = "Once upon a time, there was a little girl named Lily.";
