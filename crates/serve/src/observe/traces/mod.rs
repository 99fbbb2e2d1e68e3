//! Traces of requests for an OpenTelemetry collector, by OTLP over HTTP. Programs that are built without
//! the feature `otlp` refuse to have one.

mod collector;
#[cfg(feature = "otlp")]
mod exporter;
#[cfg(feature = "otlp")]
mod span;
#[cfg(not(feature = "otlp"))]
mod without;

pub use collector::TraceCollector;
#[cfg(feature = "otlp")]
pub(crate) use {exporter::TraceExporter, span::TracedRequest};
#[cfg(not(feature = "otlp"))]
pub(crate) use {without::NoExporter as TraceExporter, without::NoTrace as TracedRequest};
