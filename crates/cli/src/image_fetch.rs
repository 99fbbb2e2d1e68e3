//! `serve --fetch-images`: a process of its own fetches what requests name by URL, as the server itself cannot connect to
//! other machines. It was started before the server was confined, checks each address, and ends with the server.

mod client;
mod task;
mod worker;

pub use client::FetchProcess;
pub use worker::{WORKER_COMMAND, worker_main};
