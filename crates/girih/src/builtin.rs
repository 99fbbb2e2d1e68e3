//! The model that ships with girih: 260,000 parameters that tell a story.
//! Its origin and licence are in `assets/stories260k/README.md`.

use girih_model::Embedded;

macro_rules! asset {
    ($include:ident, $file:literal) => {
        $include!(concat!("../assets/stories260k/", $file))
    };
}

/// The name of the built-in model.
///
/// ```
/// let model = girih::Model::open(girih::BUILT_IN)?;
/// # Ok::<(), girih::Error>(())
/// ```
pub const BUILT_IN: &str = "stories260k";

/// A prompt for the built-in model.
///
/// ```
/// let session = girih::Model::open(girih::BUILT_IN)?.start()?;
/// let story = session.generate(girih::Request::new(girih::BUILT_IN_PROMPT))?.text()?;
/// # Ok::<(), girih::Error>(())
/// ```
pub const BUILT_IN_PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

/// The size of the built-in model's weights, in bytes.
///
/// ```
/// assert!(girih::BUILT_IN_BYTES < 2_000_000);
/// ```
pub const BUILT_IN_BYTES: u64 = STORIES.weights.len() as u64;

/// The files of the built-in model.
pub(crate) const STORIES: Embedded = Embedded {
    name: BUILT_IN,
    weights: asset!(include_bytes, "model.safetensors"),
    config: asset!(include_str, "config.json"),
    generation: asset!(include_str, "generation_config.json"),
    tokenizer: asset!(include_str, "tokenizer.json"),
};
