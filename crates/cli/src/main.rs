//! The program `girih`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    girih_cli::main()
}
