//! The folder of models of a server whose clients may change it. The server itself can neither write there nor
//! connect to other machines, so a process of its own, which was started before, makes the changes.

mod arrivals;
mod client;
mod downloads;
mod message;
mod names;
mod place;
mod pull;
mod worker;

pub use client::ModelStore;
pub use pull::{PULL_COMMAND, PullAccess, pull_main};
pub use worker::{WORKER_COMMAND, worker_main};
