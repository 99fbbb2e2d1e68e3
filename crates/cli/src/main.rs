//! The binary: reads the command line and the environment, chooses backends,
//! prints. What it prints about is computed in the other crates.
#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod advice;
mod args;
mod array;
mod backends;
mod builtin;
mod cmd;
mod error;
mod generate;
mod input;
mod limits;
mod loading;
mod machine;
mod overflow;
mod packed_cache;
mod phases;
mod progress;
mod settings;

use std::process::ExitCode;

use girih_words::template;

fn main() -> ExitCode {
    // Chat templates run in a process of their own, which is this program
    // again; it must not read a configuration or an environment.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == template::WORKER_COMMAND) {
        return template::worker_main();
    }
    let outcome = settings::read().and_then(cmd::dispatch);
    match outcome {
        Ok(cmd::Outcome::Done) => ExitCode::SUCCESS,
        Ok(cmd::Outcome::Failed) => ExitCode::from(1),
        Err(error) => error.report(),
    }
}
