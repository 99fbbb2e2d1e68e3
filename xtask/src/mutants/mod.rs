//! Whether the conformance suite notices a change in the definition of each op and in each kernel.
//!
//! A copy of the sources is changed, the suite of the CPU is built and run, and the op of each change must have a
//! fault in the report. The changes of a round are applied together: the suite reports by op.

mod list;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use list::{Mutant, ROUNDS};

/// Runs the rounds whose names contain `part`, and prints what became of each mutant. Returns the sentences of
/// those that survived.
pub fn run(root: &Path, files: &[&str], part: &str) -> Result<Vec<String>, String> {
    let copy = Copy::new(root, files)?;
    let sound = copy.broken_ops()?;
    if !sound.is_empty() {
        return Err(format!("the suite finds faults without mutants: {sound:?}"));
    }
    let (mut survivors, mut count) = (Vec::new(), 0);
    for (round, mutants) in ROUNDS.iter().filter(|(round, _)| round.contains(part)) {
        let begun = Instant::now();
        for mutant in *mutants {
            copy.change(mutant)?;
        }
        let broken = copy.broken_ops()?;
        for Mutant { op, file, new, .. } in *mutants {
            let is_killed = broken.contains(*op);
            println!("{:<8} {op:<11} {file}: {new}", if is_killed { "killed" } else { "SURVIVED" });
            if !is_killed {
                survivors.push(format!("no case of '{op}' notices in {file}: {new}"));
            }
        }
        count += mutants.len();
        println!("{round}: {} s", begun.elapsed().as_secs());
        for mutant in *mutants {
            copy.restore(mutant)?;
        }
    }
    println!("{} of {count} mutants killed", count - survivors.len());
    Ok(survivors)
}

/// A copy of the sources that is changed and built.
struct Copy {
    root: PathBuf,
    folder: PathBuf,
}

impl Copy {
    /// Copies the files to `target/mutants`. What did not change keeps its time, so that it is not built again.
    fn new(root: &Path, files: &[&str]) -> Result<Copy, String> {
        let copy = Copy { root: root.to_owned(), folder: root.join("target/mutants") };
        files.iter().try_for_each(|file| copy.take(file))?;
        Ok(copy)
    }

    /// Copies a file, unless the copy is the same.
    fn take(&self, file: &str) -> Result<(), String> {
        let (from, to) = (self.root.join(file), self.folder.join(file));
        let bytes = fs::read(&from).map_err(|error| format!("{file} cannot be read: {error}"))?;
        if fs::read(&to).is_ok_and(|old| old == bytes) {
            return Ok(());
        }
        let parent = to.parent().expect("a file lies in a folder");
        let written = fs::create_dir_all(parent).and_then(|()| fs::write(&to, bytes));
        written.map_err(|error| format!("{} cannot be written: {error}", to.display()))
    }

    fn change(&self, mutant: &Mutant) -> Result<(), String> {
        let file = self.folder.join(mutant.file);
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{} cannot be read: {error}", mutant.file))?;
        let changed = changed(&text, mutant)?;
        fs::write(&file, changed).map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }

    fn restore(&self, mutant: &Mutant) -> Result<(), String> {
        self.take(mutant.file)
    }

    /// Builds and runs the suite; returns the ops with faults.
    fn broken_ops(&self) -> Result<BTreeSet<String>, String> {
        let cargo = |arguments: &[&str]| {
            Command::new("cargo")
                .args(["test", "--locked", "-q", "-p", "girih-cpu", "--test", "it"])
                .args(arguments)
                .current_dir(&self.folder)
                .env("CARGO_TARGET_DIR", self.folder.join("target"))
                // Building takes longer than running.
                .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
                .env("CARGO_PROFILE_DEV_DEBUG", "none")
                .env_remove("RUST_BACKTRACE")
                .output()
                .map_err(|error| format!("cargo cannot be started: {error}"))
        };
        let built = cargo(&["--no-run"])?;
        if !built.status.success() {
            return Err(format!("a mutant does not compile:\n{}", String::from_utf8_lossy(&built.stderr)));
        }
        let ran = cargo(&["conformance::every_table", "--", "--nocapture"])?;
        let report = String::from_utf8_lossy(&ran.stdout).into_owned();
        let broken = ops_with_faults(&report);
        if broken.is_empty() && !ran.status.success() {
            let errors = String::from_utf8_lossy(&ran.stderr);
            return Err(format!("the suite fails without a fault of an op:\n{report}\n{errors}"));
        }
        Ok(broken)
    }
}

/// The text with the change; an error if what is changed does not occur once.
fn changed(text: &str, mutant: &Mutant) -> Result<String, String> {
    let Mutant { file, old, new, .. } = mutant;
    match text.matches(old).count() {
        1 => Ok(text.replacen(old, new, 1)),
        count => Err(format!("'{old}' occurs {count} times in {file}: name a text that occurs once")),
    }
}

/// The ops whose lines of a report end with a number of faults.
fn ops_with_faults(report: &str) -> BTreeSet<String> {
    let lines = report.lines().filter(|line| line.ends_with(" faults"));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The repository's root.
    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one folder below the root")
    }

    /// The names of the files of a folder, each of which is an op's, except `others`.
    fn ops_of(folder: &str, others: &[&str]) -> BTreeSet<String> {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        let names = entries.filter_map(|entry| {
            entry.unwrap().file_name().into_string().unwrap().strip_suffix(".rs").map(str::to_owned)
        });
        names.filter(|name| !others.contains(&name.as_str())).collect()
    }

    #[test]
    fn every_mutant_changes_one_text() {
        for mutant in ROUNDS.iter().flat_map(|(_, mutants)| *mutants) {
            let text = fs::read_to_string(root().join(mutant.file)).unwrap();
            changed(&text, mutant).unwrap_or_else(|error| panic!("{error}"));
        }
        let twice = Mutant { op: "a", file: "b", old: "x", new: "y" };
        assert!(changed("x x", &twice).is_err() && changed("", &twice).is_err());
    }

    #[test]
    fn every_op_has_a_mutant_of_its_definition_and_of_its_kernel() {
        let of = |folder: &str| -> BTreeSet<String> {
            let all = ROUNDS.iter().flat_map(|(_, mutants)| *mutants);
            all.filter(|mutant| mutant.file.starts_with(folder)).map(|mutant| mutant.op.to_owned()).collect()
        };
        assert_eq!(of("crates/graph/"), ops_of("crates/graph/src/ops", &["mod"]));
        let parts = [
            "mod",
            "adapter_terms",
            "adapters",
            "attend_piece",
            "attend_scratch",
            "attend_units",
            "executor",
            "product",
            "rows",
            "rotations",
            "sparse_product",
        ];
        assert_eq!(of("crates/cpu/src/ops/"), ops_of("crates/cpu/src/ops", &parts));
    }

    #[test]
    fn a_report_names_ops_with_faults() {
        let report = "norm          40 cases     80532 values, worst 0.1, 3 faults\nadd  4 cases 5 values, worst 0.0\n";
        assert_eq!(ops_with_faults(report), BTreeSet::from(["norm".to_owned()]));
    }
}
