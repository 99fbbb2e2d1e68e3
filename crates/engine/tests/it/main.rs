//! The engine from outside, over a runner that needs no weights.

mod cache;
mod filters;
mod generation;
mod oracle;
mod requests;
mod sampling;
mod stops;
