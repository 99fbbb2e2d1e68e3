//! What all pieces of a reply of OpenAI's API have in common.

use serde::Serialize;
use utoipa::ToSchema;

use crate::calendar::since_1970;
use crate::generation::Generation;
use crate::request_id::new_id;

/// The `finish_reason` of a reply that failed while others of its request went on.
pub const FAILED: &str = "error";

/// What all pieces of a reply have in common.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ReplyHead {
    /// The reply's id.
    pub id: String,
    /// The type of the object.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created: u64,
    /// The model's id.
    pub model: String,
    /// What decides the reply besides the request and the model: the version of girih, the backend, its kernels,
    /// the precision of activations and the type of the KV cache.
    pub system_fingerprint: String,
}

impl ReplyHead {
    /// The head of a reply that begins now. Its id begins with `prefix`.
    pub fn new(prefix: &str, object: &'static str, generation: &Generation) -> ReplyHead {
        ReplyHead {
            id: format!("{prefix}-{}", new_id()),
            object,
            created: since_1970().as_secs(),
            model: generation.model_name.to_string(),
            system_fingerprint: format!("girih-{}-{}", env!("CARGO_PKG_VERSION"), generation.arithmetic()),
        }
    }
}
