//! The prompt of a request as the model reads it, for programs that decide where the request runs.

use std::ops::Range;

use girih_engine::TokenRequest;

/// The prompt of a request as the model reads it: what the prefix cache compares.
///
/// ```
/// use girih::{Model, Request};
///
/// let session = Model::open("stories260k")?.start()?;
/// let rendered = session.render(Request::new("Once upon a time").max_tokens(20))?;
/// assert_eq!(rendered.tokens, session.model().tokenize("Once upon a time")?);
/// assert_eq!((rendered.max_tokens, rendered.images.len()), (20, 0));
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderedPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The maximum number of tokens of the reply.
    pub max_tokens: u32,
    /// The images, and the groups of frames of videos, in order.
    pub images: Vec<RenderedImage>,
}

/// An image of a prompt, or a group of frames of a video.
///
/// ```
/// fn rows(image: &girih::RenderedImage) -> usize {
///     image.place.len()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderedImage {
    /// The indexes of the tokens that its rows replace.
    pub place: Range<usize>,
    /// A SHA-256 that identifies its rows.
    pub content: [u8; 32],
}

impl RenderedPrompt {
    /// That of a checked request, in a context of this number of tokens.
    pub(crate) fn of(request: &TokenRequest, context: u32) -> RenderedPrompt {
        let left = context.saturating_sub(request.tokens.len() as u32);
        let images = request.given.iter().map(|rows| RenderedImage {
            place: rows.first as usize..(rows.first + rows.rows) as usize,
            content: rows.content,
        });
        RenderedPrompt {
            tokens: request.tokens.clone(),
            max_tokens: request.max_new.unwrap_or(left),
            images: images.collect(),
        }
    }
}
