//! Tests of the engine's public interface, over a runner that needs no weights.

mod batches;
mod cache;
mod filters;
mod generation;
mod oracle;
mod requests;
mod sampling;
mod schedule;
mod stops;
