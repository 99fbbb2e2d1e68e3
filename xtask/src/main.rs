//! Tasks of the repository, run as `cargo run -p xtask -- TASK`.
#![forbid(unsafe_code)]

mod dependencies;
mod licences;
mod metadata;
mod mutants;
mod packages;
mod sbom;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- tidy|packages|dependencies|sbom|mutants [PART]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(),
        ["packages"] => report(packages::report(&root())),
        ["dependencies"] => report(dependencies::report(&root())),
        ["sbom"] => sbom(),
        ["mutants"] => mutants(""),
        ["mutants", part] => mutants(part),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let tree = match tidy::Tree::from_git(&root()) {
        Ok(tree) => tree,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::FAILURE;
        }
    };
    let faults = tidy::faults(&tree);
    for fault in &faults {
        println!("{fault}");
    }
    println!("tidy: {} files, {} rules, {} faults", tree.files.len(), tidy::RULES.len(), faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Changes a copy of the sources, and prints which changes the conformance suite does not notice.
fn mutants(part: &str) -> ExitCode {
    let survivors = tidy::Tree::from_git(&root()).and_then(|tree| {
        let files: Vec<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
        mutants::run(&root(), &files, part)
    });
    report(survivors)
}

/// Prints `faults`, or the sentence that says why they cannot be found.
fn report(faults: Result<Vec<String>, String>) -> ExitCode {
    match faults {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            faults.iter().for_each(|fault| println!("{fault}"));
            ExitCode::FAILURE
        }
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the software bill of materials of the program.
fn sbom() -> ExitCode {
    match sbom::document(&root()) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("{sentence}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace. Cargo passes xtask's folder when it starts the
/// program; a compiled-in path would be wrong after the checkout has moved.
fn root() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("xtask is started by cargo, which sets it");
    Path::new(&folder).parent().expect("xtask lies one folder below the root").to_owned()
}
