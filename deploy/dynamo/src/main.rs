//! The program `girih-dynamo`: a worker of NVIDIA Dynamo over girih.

#![forbid(unsafe_code)]

use std::sync::Arc;

use clap::Parser as _;
use girih::OpenOptions;
use girih_dynamo::{GirihEngine, WorkerArgs};

fn main() -> anyhow::Result<()> {
    let options = OpenOptions::from_vars(|name| std::env::var(name).ok());
    let (engine, config) = GirihEngine::new(WorkerArgs::parse(), options)?;
    dynamo_backend_common::run(Arc::new(engine), config)
}
