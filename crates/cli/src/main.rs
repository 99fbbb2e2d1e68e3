//! The binary.

use std::process::ExitCode;

use girih_model::words::template;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == template::WORKER_COMMAND) {
        return template::worker_main();
    }
    ExitCode::SUCCESS
}
