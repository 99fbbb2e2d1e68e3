//! The file `girih` of the wheel: calls the program in the library beside it, so that the wheel has its code once. It starts
//! without a Python interpreter, because the workers that render chat templates must not have one.
#![deny(unsafe_code)]

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;

use libloading::Library;

/// The library for Python, as maturin names it.
const LIBRARY: &str = "_girih.abi3.so";

fn main() -> ExitCode {
    let Err(sentence) = library().and_then(run);
    eprintln!("girih: {sentence}");
    ExitCode::FAILURE
}

/// The path of the library beside this file.
///
/// # Errors
/// When the kernel does not tell where this file is, or it was replaced: the library beside it is another version then.
fn library() -> Result<PathBuf, String> {
    let unknown = |error| format!("the path of this program is unknown: {error}");
    let program = std::env::current_exe().map_err(unknown)?;
    if !program.exists() {
        let replaced = "the package was replaced or removed while its program ran: start the program again";
        return Err(replaced.to_owned());
    }
    Ok(program.with_file_name(LIBRARY))
}

/// Runs the program that the library has.
///
/// # Errors
/// When the library cannot be loaded, or has no program.
#[allow(unsafe_code)]
fn run(path: PathBuf) -> Result<Infallible, String> {
    let fault = |error| format!("the library of this program cannot be loaded: {error}");
    // SAFETY: initializers of the library are those of Rust's standard library and of C, which need nothing from Python.
    let library = unsafe { Library::new(path) }.map_err(fault)?;
    // SAFETY: `girih_main` in program.rs has this type.
    let main = unsafe { library.get::<extern "C" fn() -> !>(b"girih_main\0") }.map_err(fault)?;
    main()
}
