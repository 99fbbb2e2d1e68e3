//! The program: reads the command line and the environment, calls the library, prints results. It is a library, so that
//! the wheel for Python can have it in the library of its module, and the code that both need once.
#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod adapter_args;
mod advice;
mod args;
mod backend_args;
mod base_folder;
mod cmd;
mod config_file;
mod confinement;
mod conversation_args;
mod draft_args;
mod editor;
mod error;
mod help;
mod helper_message;
mod helper_process;
mod image_fetch;
mod images;
mod input;
mod limits;
mod loading;
mod machine;
mod model_folder;
mod model_name;
mod model_store;
mod pack_args;
mod packed_weights;
mod phases;
mod process_limits;
mod progress;
mod reply_stream;
mod report;
mod request;
mod sandbox;
mod server_args;
mod settings;
mod short_name;
mod template_args;
mod typed_history;
mod typed_options;
mod visible;
mod word_wrap;

use std::process::ExitCode;

use girih_words::template;

use crate::cmd::outcome::Outcome;
use crate::error::Error;
use crate::settings::Invocation;

/// Runs the program with the arguments and the environment of this process.
pub fn main() -> ExitCode {
    // Chat templates run in a separate process of this same program, and so does the wait for the disk;
    // both must not read a configuration or an environment.
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next();
    if command.as_ref().is_some_and(|command| command == girih::SYNC_COMMAND) {
        return girih::sync_worker(arguments);
    }
    if command.as_ref().is_some_and(|command| command == model_store::WORKER_COMMAND) {
        return model_store::worker_main(arguments);
    }
    if command.as_ref().is_some_and(|command| command == model_store::PULL_COMMAND) {
        return model_store::pull_main(arguments);
    }
    if command.as_ref().is_some_and(|command| command == image_fetch::WORKER_COMMAND) {
        return image_fetch::worker_main(arguments);
    }
    if command.is_some_and(|command| command == template::WORKER_COMMAND) {
        let rest: Vec<String> = arguments.map(|name| name.to_string_lossy().into_owned()).collect();
        return match rest.split_first() {
            Some((first, names)) if first == template::PROBE_ARGUMENT => {
                template::probe_main(names.iter().map(String::as_str))
            }
            _ => template::worker_main(),
        };
    }
    let survives = process_limits::survive_file_limit().map_err(Error::from);
    let read = survives.and_then(|()| machine::check_process_room()).and_then(|()| settings::read());
    match read.and_then(|Invocation { cli, faults }| {
        cmd::dispatch(cli, faults, settings::command_line, settings::read_again)
    }) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) => report(error),
    }
}

/// Prints an error and returns its exit code.
fn report(error: Error) -> ExitCode {
    let (sentence, code) = match error {
        Error::Call(sentence) => (sentence, 2),
        Error::Work(sentence) => (sentence, 1),
        Error::Closed => return ExitCode::from(1),
        Error::Usage(error) => {
            // A closed pipe does not change the exit code.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    output::print_note(format_args!("girih: {sentence}"));
    ExitCode::from(code)
}
