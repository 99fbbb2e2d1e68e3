//! What the server tells of its work: metrics, a log of requests, and traces.

mod access_log;
mod layer;
mod metrics;
mod record;
mod traces;

pub use access_log::AccessLog;
pub use layer::Observer;
pub(crate) use layer::observe;
pub use metrics::{Metrics, MetricsCompat};
pub(crate) use record::{ReplyRecord, RequestRecord};
pub use traces::TraceCollector;
pub(crate) use traces::TraceExporter;
