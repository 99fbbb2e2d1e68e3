//! Counts the packages that each feature set of the crate `girih` brings, and holds
//! the default set to a limit.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The feature sets, smallest first. Without features, only the interpreter is
/// there.
const FEATURE_SETS: [&str; 5] = ["", "cpu", "npu", "hub", "cpu,npu,hub"];

/// The feature set with limits: what a dependency on girih enables by default.
const LIMITED: &str = "cpu";

/// The maximum number of packages of [`LIMITED`], the workspace's own included.
const MAX_PACKAGES: usize = 119;

/// Packages that [`LIMITED`] may not bring: TLS, and the other backend.
const BANNED: [&str; 7] =
    ["rustls", "ring", "native-tls", "openssl", "openssl-sys", "aws-lc-rs", "girih-npu"];

/// A package of a dependency tree.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    /// Whether it is a crate of this workspace.
    is_ours: bool,
}

/// Prints the table and returns the faults.
///
/// # Errors
/// When cargo cannot list the packages of a feature set.
pub fn report(root: &Path) -> Result<Vec<String>, String> {
    println!("{:<14}{:>9}{:>10}", "features", "packages", "with ours");
    let mut faults = Vec::new();
    for features in FEATURE_SETS {
        let packages = parse(&cargo_tree(root, features)?)?;
        let foreign = packages.iter().filter(|package| !package.is_ours).count();
        let name = if features.is_empty() { "(none)" } else { features };
        println!("{name:<14}{foreign:>9}{:>10}", packages.len());
        if features == LIMITED {
            faults = faults_of(&packages);
        }
    }
    Ok(faults)
}

/// The output of `cargo tree` for one feature set.
fn cargo_tree(root: &Path, features: &str) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["tree", "--locked", "--offline", "-p", "girih", "--no-default-features"]);
    command.args(["-e", "normal,build", "--prefix", "none", "--features", features]);
    let output = command.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo tree failed for the features '{features}': {}", reason.trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| "cargo tree printed text that is not UTF-8".to_owned())
}

/// The packages in the output of `cargo tree --prefix none`. A line is
/// `name vVERSION`, and in parentheses, if they apply: `proc-macro`, the folder of
/// a crate of the workspace or the source of a package, and `*` for a repetition.
fn parse(tree: &str) -> Result<BTreeSet<Package>, String> {
    let mut packages = BTreeSet::new();
    for line in tree.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let name = words.next();
        let version = words.next().and_then(|word| word.strip_prefix('v'));
        let (Some(name), Some(version)) = (name, version) else {
            return Err(format!("cargo tree printed '{line}', which names no package and version"));
        };
        let is_ours = words.any(|word| word.starts_with("(/"));
        packages.insert(Package { name: name.to_owned(), version: version.to_owned(), is_ours });
    }
    if packages.is_empty() {
        return Err("cargo tree printed no package".to_owned());
    }
    Ok(packages)
}

/// What is wrong with the packages of [`LIMITED`].
fn faults_of(packages: &BTreeSet<Package>) -> Vec<String> {
    let mut faults = Vec::new();
    if packages.len() > MAX_PACKAGES {
        faults.push(format!(
            "the features '{LIMITED}' bring {} packages, the maximum is {MAX_PACKAGES}: remove a dependency",
            packages.len()
        ));
    }
    for package in packages.iter().filter(|package| BANNED.contains(&package.name.as_str())) {
        faults.push(format!("the features '{LIMITED}' bring {}: make it optional", package.name));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "girih v0.1.0 (/src/crates/girih)\n\
        girih-cpu v0.1.0 (/src/crates/cpu)\n\
        half v2.7.1\n\
        serde v1.0.2\n\
        serde_derive v1.0.2 (proc-macro)\n\
        half v2.7.1 (*)\n\
        \n\
        half v1.8.0\n\
        girih-cpu v0.1.0 (/src/crates/cpu) (*)\n";

    #[test]
    fn each_version_of_a_package_counts_once() {
        let packages = parse(TREE).unwrap();
        let names: Vec<(&str, &str, bool)> =
            packages.iter().map(|package| (&*package.name, &*package.version, package.is_ours)).collect();
        assert_eq!(
            names,
            [
                ("girih", "0.1.0", true),
                ("girih-cpu", "0.1.0", true),
                ("half", "1.8.0", false),
                ("half", "2.7.1", false),
                ("serde", "1.0.2", false),
                ("serde_derive", "1.0.2", false),
            ]
        );
        assert!(faults_of(&packages).is_empty());
    }

    #[test]
    fn output_of_another_form_is_refused() {
        for bad in ["", "\n", "half\n", "half 2.7.1\n", "├── half v2.7.1\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_banned_package_and_one_package_too_many_are_faults() {
        let tls = parse(&format!("{TREE}rustls v0.23.1\ngirih-npu v0.1.0 (/src/crates/npu)\n")).unwrap();
        let faults = faults_of(&tls);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("girih-npu") && faults[1].contains("rustls"), "{faults:?}");
        let rows = |count: usize| (0..count).map(|n| format!("a{n} v1.0.0\n")).collect::<String>();
        assert!(faults_of(&parse(&rows(MAX_PACKAGES)).unwrap()).is_empty());
        assert_eq!(faults_of(&parse(&rows(MAX_PACKAGES + 1)).unwrap()).len(), 1);
    }
}
