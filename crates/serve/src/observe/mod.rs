//! What the server tells of its work: metrics, and a log of requests.

mod access_log;
mod layer;
mod metrics;
mod record;

pub use access_log::AccessLog;
pub use layer::Observer;
pub(crate) use layer::observe;
pub use metrics::{Metrics, MetricsCompat};
pub(crate) use record::{ReplyRecord, RequestRecord};
