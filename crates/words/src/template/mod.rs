//! Chat templates: messages in, spans of text out.
//!
//! A template is a program from an outside file. It runs in a process of its
//! own ([`worker_main`]) with limits of memory, stack, time and output, because
//! no limit inside the template engine bounds all of these. The parent's side
//! is [`Renderer`].
//!
//! Special tokens come from the template only. A spelling of one in a user's
//! text is marked before rendering and comes back as a span of its own
//! ([`TextOrigin::User`](super::TextOrigin::User)), to be tokenized as plain text; see [`SpecialTokens`].

mod fuzz;
mod generation;
mod jinja;
mod json;
mod limits;
mod mark;
mod protocol;
mod renderer;
mod request;
mod source;
mod strftime;
mod worker;

#[doc(hidden)]
pub use fuzz::fuzz;
pub use limits::RenderLimits;
pub use mark::SpecialTokens;
pub use renderer::Renderer;
pub use request::{Conversation, RenderRequest};
pub use source::ChatTemplate;
pub use worker::{WORKER_COMMAND, worker_main};
