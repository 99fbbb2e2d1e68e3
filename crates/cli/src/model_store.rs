//! The folder of models of a server whose clients may change it. The server itself can neither write there nor
//! connect to other machines, so a process of its own, which was started before, makes the changes.

mod client;
mod message;
mod place;
mod pull;
mod worker;

pub use client::ModelStore;
pub use pull::{PULL_COMMAND, pull_main};
pub use worker::{WORKER_COMMAND, worker_main};
