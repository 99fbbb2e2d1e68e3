//! Tests of the engine's public interface, over a runner that needs no weights.

mod batches;
mod cache;
mod carried;
mod constraints;
mod draft_sources;
mod drafts;
mod encoders;
mod failures;
mod filters;
mod generation;
mod given;
mod mtp;
mod oracle;
mod overflow;
mod picks;
mod prompt_logprobs;
mod requests;
mod samplers;
mod sampling;
mod scheduler;
mod scheduler_simulation;
mod serving;
mod simulation;
mod step_rows;
mod stops;
mod tenants;
