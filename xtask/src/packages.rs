//! Counts the packages that the program and each feature set of the crate `girih` bring, and
//! holds each to a limit.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The system for which packages are listed.
pub const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// A crate with a choice of its features.
struct FeatureSet {
    name: &'static str,
    package: &'static str,
    features: &'static str,
    /// The maximum number of packages, the workspace's own and those of the build included.
    max_packages: usize,
    /// Lists of packages that it may not bring.
    banned: &'static [&'static [&'static str]],
}

const TLS: &[&str] = &["rustls", "ring", "native-tls", "openssl", "openssl-sys", "aws-lc-rs"];

const CPU: &[&str] = &["girih-cpu"];
const NPU: &[&str] = &["girih-npu"];

/// The feature sets, smallest first. Without features, only the interpreter is
/// there.
const FEATURE_SETS: [FeatureSet; 10] = [
    of_girih("(none)", "", 63, &[TLS, NPU, CPU]),
    // What a dependency on girih enables by default.
    of_girih("cpu", "cpu", 64, &[TLS, NPU]),
    of_girih("npu", "npu", 66, &[TLS]),
    of_girih("hub", "hub", 92, &[NPU, CPU]),
    // 9 packages are llguidance's.
    of_girih("grammar", "grammar", 73, &[TLS, NPU, CPU]),
    // 13 packages are decoders of images.
    of_girih("image", "image", 78, &[TLS, NPU, CPU]),
    of_girih("cpu,npu,hub", "cpu,npu,hub", 96, &[]),
    // 40 packages are wgpu's.
    of_girih("gpu", "gpu", 104, &[TLS]),
    // Traces add 17: the messages of OTLP, what encodes them, and hyper's client.
    FeatureSet { name: "otlp", package: "girih-cli", features: "otlp", max_packages: 208, banned: &[] },
    // The server adds 32: axum, hyper, tokio, utoipa, and what they need.
    FeatureSet { name: "the program", package: "girih-cli", features: "", max_packages: 191, banned: &[] },
];

const fn of_girih(
    name: &'static str,
    features: &'static str,
    max_packages: usize,
    banned: &'static [&'static [&'static str]],
) -> FeatureSet {
    FeatureSet { name, package: "girih", features, max_packages, banned }
}

/// A package of a dependency tree.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// Whether it is a crate of this workspace.
    pub is_ours: bool,
}

/// Prints the table and returns the faults.
///
/// # Errors
/// When cargo cannot list the packages of a feature set.
pub fn report(root: &Path) -> Result<Vec<String>, String> {
    println!("{:<14}{:>9}{:>10}{:>8}", "features", "packages", "with ours", "limit");
    let mut faults = Vec::new();
    for set in &FEATURE_SETS {
        let packages = parse(&cargo_tree(root, set)?)?;
        let foreign = packages.iter().filter(|package| !package.is_ours).count();
        println!("{:<14}{foreign:>9}{:>10}{:>8}", set.name, packages.len(), set.max_packages);
        faults.extend(faults_of(set, &packages));
    }
    Ok(faults)
}

/// The packages of the program.
///
/// # Errors
/// When cargo cannot list them.
pub fn of_program(root: &Path) -> Result<BTreeSet<Package>, String> {
    let [.., program] = &FEATURE_SETS;
    parse(&cargo_tree(root, program)?)
}

/// The output of `cargo tree` for one feature set.
fn cargo_tree(root: &Path, set: &FeatureSet) -> Result<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args([
        "tree",
        "--locked",
        "--offline",
        "-p",
        set.package,
        "--no-default-features",
    ]);
    command.args([
        "--target",
        PLATFORM,
        "-e",
        "normal,build",
        "--prefix",
        "none",
        "--features",
        set.features,
    ]);
    let output = command.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo tree failed for the features '{}': {}", set.name, reason.trim()));
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

/// What is wrong with the packages of a feature set.
fn faults_of(set: &FeatureSet, packages: &BTreeSet<Package>) -> Vec<String> {
    let mut faults = Vec::new();
    let FeatureSet { name, max_packages, .. } = set;
    if packages.len() > *max_packages {
        faults.push(format!(
            "the features '{name}' bring {} packages, the maximum is {max_packages}: remove a dependency",
            packages.len()
        ));
    }
    let is_banned = |package: &&Package| set.banned.iter().any(|list| list.contains(&package.name.as_str()));
    for package in packages.iter().filter(is_banned) {
        faults.push(format!("the features '{name}' bring {}: make it optional", package.name));
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
        // girih-cpu is banned where the feature is off.
        for set in &FEATURE_SETS {
            let faults = faults_of(set, &packages);
            let needed = usize::from(["(none)", "hub", "grammar", "image"].contains(&set.name));
            assert_eq!(faults.len(), needed, "{}: {faults:?}", set.name);
        }
    }

    #[test]
    fn output_of_another_form_is_refused() {
        for bad in ["", "\n", "half\n", "half 2.7.1\n", "├── half v2.7.1\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_banned_package_and_one_package_too_many_are_faults_of_every_set() {
        let rows = |count: usize| (0..count).map(|n| format!("a{n} v1.0.0\n")).collect::<String>();
        let faults = |set, tree: &str| faults_of(set, &parse(tree).unwrap());
        for set in &FEATURE_SETS {
            assert!(faults(set, &rows(set.max_packages)).is_empty());
            assert_eq!(faults(set, &rows(set.max_packages + 1)).len(), 1, "{}", set.name);
        }
        let tls = format!("{TREE}rustls v0.23.1\ngirih-npu v0.1.0 (/src/crates/npu)\n");
        let counts = FEATURE_SETS.each_ref().map(|set| faults(set, &tls).len());
        // TREE has girih-cpu.
        assert_eq!(counts, [3, 2, 1, 2, 3, 3, 0, 1, 0, 0]);
    }
}
