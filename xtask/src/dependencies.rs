//! Holds the packages of Cargo.lock to `deny.toml`: their licences, their sources, which of them may
//! be there twice, and that dependencies from a registry state a version.
//!
//! cargo-deny reads the same file and checks the same, and advisories, too; it takes a minute to
//! build. `.ci/long advisories` runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::licences::satisfied;
use crate::metadata::{self, array, text};

/// What `deny.toml` accepts.
#[derive(Debug)]
struct Rules {
    /// The systems whose packages count.
    targets: Vec<String>,
    /// The licences that any package may have.
    licences: Vec<String>,
    /// Further licences of one package, by its name.
    exceptions: BTreeMap<String, Vec<String>>,
    /// Packages of which a version may be left out of the count of versions: a name, and the
    /// beginning of the version.
    skipped: Vec<(String, String)>,
    /// The registries that packages may come from.
    registries: Vec<String>,
}

/// A package that is built or tested.
#[derive(Debug)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    /// The licence expression of its manifest.
    licence: Option<&'a str>,
    /// Where it comes from; `None` for a folder.
    source: Option<&'a str>,
    /// Dependencies on any version of a package that lies in no folder.
    wildcards: Vec<&'a str>,
}

/// Prints the number of packages and returns the faults.
///
/// # Errors
/// When cargo cannot list the packages, or `deny.toml` has another form.
pub fn report(root: &Path) -> Result<Vec<String>, String> {
    let file = std::fs::read_to_string(root.join("deny.toml"));
    let rules = rules(&file.map_err(|error| format!("deny.toml cannot be read: {error}"))?)?;
    let mut arguments = vec!["--all-features"];
    for target in &rules.targets {
        arguments.extend(["--filter-platform", target]);
    }
    let metadata = metadata::read(root, &arguments)?;
    let packages = packages(&metadata)?;
    let faults = faults(&packages, &rules);
    println!("dependencies: {} packages, {} faults", packages.len(), faults.len());
    Ok(faults)
}

/// The rules in the text of `deny.toml`. Keys that are not read here are cargo-deny's alone.
fn rules(text: &str) -> Result<Rules, String> {
    let file: toml::Table = text.parse().map_err(|error| format!("deny.toml cannot be parsed: {error}"))?;
    let list = |section: &str, key: &str| {
        let list = file.get(section).and_then(|section| section.get(key)).and_then(toml::Value::as_array);
        list.ok_or_else(|| format!("deny.toml has no list '{key}' in [{section}]"))
    };
    let exceptions = list("licenses", "exceptions")?.iter().map(|exception| {
        Ok((word(exception, "crate")?, words(exception.get("allow").and_then(toml::Value::as_array))?))
    });
    let skipped = list("bans", "skip")?.iter().map(|skip| {
        let name = word(skip, "crate")?;
        let (name, version) =
            name.split_once('@').ok_or_else(|| format!("the skip '{name}' has no version"))?;
        Ok((name.to_owned(), version.to_owned()))
    });
    Ok(Rules {
        targets: words(Some(list("graph", "targets")?))?,
        licences: words(Some(list("licenses", "allow")?))?,
        exceptions: exceptions.collect::<Result<_, String>>()?,
        skipped: skipped.collect::<Result<_, String>>()?,
        registries: words(Some(list("sources", "allow-registry")?))?,
    })
}

/// The text under `key` of a table.
fn word(table: &toml::Value, key: &str) -> Result<String, String> {
    let word = table.get(key).and_then(toml::Value::as_str);
    word.map(str::to_owned).ok_or_else(|| format!("an entry of deny.toml has no text '{key}'"))
}

/// The texts of a list.
fn words(list: Option<&Vec<toml::Value>>) -> Result<Vec<String>, String> {
    let texts = list.and_then(|list| list.iter().map(|word| word.as_str().map(str::to_owned)).collect());
    texts.ok_or_else(|| "an entry of deny.toml is not a list of texts".to_owned())
}

/// The packages that the output of `cargo metadata` resolves.
fn packages(metadata: &Value) -> Result<Vec<Package<'_>>, String> {
    let resolve = metadata.get("resolve").ok_or("cargo metadata resolved nothing")?;
    let nodes = array(resolve, "nodes")?.iter().map(|node| text(node, "id"));
    let used: BTreeSet<&str> = nodes.collect::<Result<_, _>>()?;
    let all = array(metadata, "packages")?.iter().map(|package| {
        let any = array(package, "dependencies")?.iter();
        let any = any.filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null());
        let of = Package {
            name: text(package, "name")?,
            version: text(package, "version")?,
            licence: package["license"].as_str(),
            source: package["source"].as_str(),
            wildcards: any.map(|dependency| text(dependency, "name")).collect::<Result<_, _>>()?,
        };
        Ok(used.contains(text(package, "id")?).then_some(of))
    });
    all.filter_map(Result::transpose).collect()
}

/// What is wrong with the packages, and which entries of the rules apply to none of them.
fn faults(packages: &[Package<'_>], rules: &Rules) -> Vec<String> {
    let mut faults: Vec<String> = packages.iter().flat_map(|package| faults_of(package, rules)).collect();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(package.name).or_default().insert(package.version);
    }
    let is_skipped = |name: &str, version: &str| {
        rules.skipped.iter().any(|(skipped, beginning)| name == skipped && begins(version, beginning))
    };
    for (name, versions) in &versions {
        let counted: Vec<&str> =
            versions.iter().copied().filter(|version| !is_skipped(name, version)).collect();
        if counted.len() > 1 {
            faults.push(format!(
                "{name} is there in versions {}: depend on one, or add the other to [bans] of deny.toml",
                counted.join(", ")
            ));
        }
    }
    let unused = rules.exceptions.keys().filter(|name| !versions.contains_key(name.as_str()));
    faults.extend(
        unused.map(|name| format!("deny.toml has an exception for {name}, which is gone: remove it")),
    );
    let twice = |name: &str| versions.get(name).is_some_and(|versions| versions.len() > 1);
    let unused = rules.skipped.iter().filter(|(name, _)| !twice(name));
    faults.extend(unused.map(|(name, version)| {
        format!("deny.toml skips {name}@{version}, but no version of it is there twice: remove it")
    }));
    faults
}

/// Whether a version begins with the numbers of `beginning`.
fn begins(version: &str, beginning: &str) -> bool {
    version.strip_prefix(beginning).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What is wrong with the licence and the source of a package.
fn faults_of(package: &Package<'_>, rules: &Rules) -> Vec<String> {
    let Package { name, version, licence, source, ref wildcards } = *package;
    let more = rules.exceptions.get(name).into_iter().flatten();
    let allowed: Vec<&str> = rules.licences.iter().chain(more).map(String::as_str).collect();
    let mut faults = Vec::new();
    match licence.map(|licence| (licence, satisfied(licence, &allowed))) {
        None => faults.push(format!("{name} {version} states no licence: do not use it")),
        Some((_, Ok(true))) => {}
        Some((licence, Ok(false))) => faults.push(format!(
            "{name} {version} is under '{licence}', which [licenses] of deny.toml does not allow"
        )),
        Some((_, Err(sentence))) => faults.push(format!("{name} {version}: {sentence}")),
    }
    let registry = source.map(|source| source.strip_prefix("registry+").unwrap_or(source));
    if let Some(registry) =
        registry.filter(|registry| !rules.registries.iter().any(|known| known == registry))
    {
        faults.push(format!(
            "{name} {version} comes from {registry}, which [sources] of deny.toml does not list"
        ));
    }
    faults.extend(
        wildcards
            .iter()
            .map(|other| format!("{name} {version} depends on any version of {other}: state a version")),
    );
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "[graph]\ntargets = [\"x86_64-unknown-linux-gnu\"]\n\
        [licenses]\nallow = [\"MIT\"]\nexceptions = [{ crate = \"fold\", allow = [\"Zlib\"] }]\n\
        [bans]\nskip = [{ crate = \"syn@2\" }]\n\
        [sources]\nallow-registry = [\"https://index\"]\n";

    fn package(name: &'static str, version: &'static str, licence: &'static str) -> Package<'static> {
        let source = Some("registry+https://index");
        Package { name, version, licence: Some(licence), source, wildcards: Vec::new() }
    }

    /// Packages that use each exception and each skip.
    fn accepted() -> Vec<Package<'static>> {
        vec![
            package("fold", "0.1.0", "Zlib"),
            package("syn", "2.0.1", "MIT OR Apache-2.0"),
            package("syn", "3.0.1", "MIT"),
        ]
    }

    fn faults_with(more: Vec<Package<'static>>) -> Vec<String> {
        let packages: Vec<_> = accepted().into_iter().chain(more).collect();
        faults(&packages, &rules(RULES).unwrap())
    }

    #[test]
    fn licences_sources_and_versions_are_held_to_the_rules() {
        let ours = Package { source: None, ..package("ours", "0.1.0", "MIT") };
        assert!(faults_with(vec![ours]).is_empty());
        let silent = Package { licence: None, ..package("silent", "1.0.0", "") };
        let foreign = Package { source: Some("git+https://elsewhere"), ..package("foreign", "1.0.0", "MIT") };
        let careless = Package { wildcards: vec!["syn"], ..package("careless", "1.0.0", "MIT") };
        for (wrong, sentence) in [
            (careless, "careless 1.0.0 depends on any version of syn"),
            (package("copyleft", "1.0.0", "GPL-3.0-only"), "copyleft 1.0.0 is under 'GPL-3.0-only'"),
            (package("unclear", "1.0.0", "MIT ISC"), "unclear 1.0.0: 'MIT ISC' is not"),
            (silent, "silent 1.0.0 states no licence"),
            (foreign, "foreign 1.0.0 comes from git+https://elsewhere"),
            (package("syn", "1.0.9", "MIT"), "syn is there in versions 1.0.9, 3.0.1"),
            (package("syn", "20.0.9", "MIT"), "syn is there in versions 20.0.9, 3.0.1"),
            (package("fold", "0.2.0", "Zlib"), "fold is there in versions 0.1.0, 0.2.0"),
        ] {
            let found = faults_with(vec![wrong]);
            assert!(found.len() == 1 && found[0].starts_with(sentence), "{sentence}: {found:?}");
        }
    }

    #[test]
    fn entries_that_apply_to_no_package_are_faults() {
        let rules = rules(RULES).unwrap();
        assert_eq!(faults(&[], &rules).len(), 2);
        assert_eq!(faults(&accepted()[..2], &rules).len(), 1, "one version of syn is left");
    }

    #[test]
    fn rules_of_another_form_are_refused() {
        for line in RULES.lines().filter(|line| line.contains('=')) {
            assert!(rules(&RULES.replace(line, "")).is_err(), "{line}");
        }
        assert!(rules(&RULES.replace("syn@2", "syn")).is_err());
    }

    #[test]
    fn the_packages_of_the_repository_are_accepted() {
        assert_eq!(report(&crate::root()), Ok(Vec::new()));
    }
}
