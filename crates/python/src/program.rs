//! The program `girih` as a function of this library, which the wheel's launcher calls in a process without Python.
#![allow(unsafe_code)]

use std::panic::catch_unwind;
use std::process::{ExitCode, exit};

/// The exit code of a program in Rust that panicked.
const PANICKED: i32 = 101;

/// Runs the program with the arguments of this process, and ends the process.
// SAFETY: nothing else in a process has this name: the launcher looks it up in this library, and Python asks for
// `PyInit__girih` alone.
#[unsafe(no_mangle)]
extern "C" fn girih_main() -> ! {
    // `exit` writes what the standard output still holds: that of this library, which the launcher does not know.
    exit(catch_unwind(girih_cli::main).map_or(PANICKED, number))
}

/// The number of an exit code, which the standard library tells only the system.
fn number(code: ExitCode) -> i32 {
    let found = (0..=u8::MAX).find(|number| ExitCode::from(*number) == code);
    i32::from(found.expect("an exit code on Linux has eight bits"))
}
