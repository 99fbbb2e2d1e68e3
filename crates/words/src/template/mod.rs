//! Chat templates: convert messages to spans of text.
//!
//! A template is a program from an outside file. It runs in a separate process
//! ([`worker_main`]) with limits on memory, stack, time and output, because no
//! limit of minijinja bounds all of these; and without files, network and other
//! processes, where the kernel can forbid them ([`SandboxLayer`]). [`Renderer`] is the parent's
//! side. [`Renderer::in_process`] does without that process and bounds no memory.
//!
//! Only the template may produce special tokens. One in a user's text is marked
//! before rendering and becomes a separate span
//! ([`TextOrigin::User`](super::TextOrigin::User)), which is encoded as plain text; see
//! [`SpecialTokens`].

mod answer;
mod fuzz;
mod generation;
mod guard;
mod jinja;
mod json;
#[cfg(target_os = "linux")]
pub(crate) mod layers;
#[cfg(not(target_os = "linux"))]
#[path = "no_layers.rs"]
pub(crate) mod layers;
mod limits;
mod mark;
mod namespace;
mod probe;
mod protocol;
mod renderer;
mod request;
mod sandbox;
mod source;
mod strftime;
mod tags;
mod thread;
mod worker;

#[doc(hidden)]
pub use fuzz::fuzz;
pub use limits::RenderLimits;
pub use mark::SpecialTokens;
pub use probe::{PROBE_ARGUMENT, SandboxReport, probe_main};
pub use renderer::Renderer;
pub use request::{Conversation, RenderRequest};
pub use sandbox::{SandboxLayer, SandboxStates};
pub use source::ChatTemplate;
pub use worker::{WORKER_COMMAND, worker_main};
