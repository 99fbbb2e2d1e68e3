//! Writes a software bill of materials: the packages in the program, as CycloneDX in JSON.
//!
//! It has the packages of the program on x86-64 Linux, as `cargo tree` lists them, with what
//! `cargo metadata` knows of them and the digests of Cargo.lock. The same commit gives the same
//! bytes, so it has no time and no serial number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::metadata::{self, array, text};
use crate::packages::{PLATFORM, Package, of_program};

/// The package of the program.
const PROGRAM: &str = "girih-cli";

/// The version of CycloneDX: <https://cyclonedx.org/docs/1.5/json/>.
const SPEC_VERSION: &str = "1.5";

/// Returns the document.
///
/// # Errors
/// When cargo cannot list the packages, or a package lacks a licence or a digest.
pub fn document(root: &Path) -> Result<String, String> {
    let metadata = metadata::read(root, &["--filter-platform", PLATFORM])?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock"));
    let lock = lock.map_err(|error| format!("Cargo.lock cannot be read: {error}"))?;
    let document = bill(&metadata, &lock, &of_program(root)?)?;
    Ok(format!("{document:#}"))
}

/// The document of the `built` packages, from the output of `cargo metadata` and the text of
/// Cargo.lock. Packages that only tests or their features bring are not built.
fn bill(metadata: &Value, lock: &str, built: &BTreeSet<Package>) -> Result<Value, String> {
    let digests = digests(lock)?;
    let packages: BTreeMap<&str, &Value> = array(metadata, "packages")?
        .iter()
        .map(|package| Ok((text(package, "id")?, package)))
        .collect::<Result<_, String>>()?;
    let nodes = metadata.get("resolve").ok_or("cargo metadata resolved nothing")?;
    let nodes: BTreeMap<&str, &Value> = array(nodes, "nodes")?
        .iter()
        .map(|node| Ok((text(node, "id")?, node)))
        .collect::<Result<_, String>>()?;
    let program = packages.iter().find(|(_, package)| package["name"] == PROGRAM);
    let (&program, _) = program.ok_or_else(|| format!("cargo metadata lists no package {PROGRAM}"))?;
    let is_built = |package: &Value| {
        built.iter().any(|one| package["name"] == *one.name && package["version"] == *one.version)
    };
    let unbuilt: BTreeSet<&str> =
        packages.iter().filter(|(_, package)| !is_built(package)).map(|(&id, _)| id).collect();
    let builds = reachable(program, &nodes, &[Value::Null, json!("build")], &unbuilt)?;
    if builds.len() != built.len() {
        return Err(format!("cargo metadata leads to {} of {} packages", builds.len(), built.len()));
    }
    let macros = packages.iter().filter(|(_, package)| is_macro(package)).map(|(&id, _)| id);
    let runs = reachable(program, &nodes, &[Value::Null], &unbuilt.iter().copied().chain(macros).collect())?;
    let package = |id: &str| packages.get(id).copied().ok_or_else(|| format!("{id} has no package"));
    let (mut components, mut dependencies) = (BTreeMap::new(), BTreeMap::new());
    for &id in &builds {
        let of = package(id)?;
        let uses = edges(nodes[id], &[Value::Null, json!("build")])?;
        let uses =
            uses.into_iter().filter(|other| builds.contains(other)).map(|other| reference(package(other)?));
        let uses: BTreeSet<String> = uses.collect::<Result<_, String>>()?;
        dependencies.insert(reference(of)?, json!({"ref": reference(of)?, "dependsOn": uses}));
        if id != program {
            // What only runs while girih is built is not in the program.
            let scope = if runs.contains(id) { "required" } else { "excluded" };
            components.insert(reference(of)?, component(of, "library", &digests, Some(scope))?);
        }
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": component(package(program)?, "application", &digests, None)?},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies.into_values().collect::<Vec<_>>(),
    }))
}

/// The packages that `start` reaches over edges of these kinds, itself included, but not those
/// of `without`.
fn reachable<'a>(
    start: &'a str,
    nodes: &BTreeMap<&'a str, &'a Value>,
    kinds: &[Value],
    without: &BTreeSet<&'a str>,
) -> Result<BTreeSet<&'a str>, String> {
    let (mut found, mut open) = (BTreeSet::from([start]), vec![start]);
    while let Some(id) = open.pop() {
        let node = nodes.get(id).ok_or_else(|| format!("cargo metadata did not resolve {id}"))?;
        open.extend(
            edges(node, kinds)?.into_iter().filter(|other| !without.contains(other) && found.insert(other)),
        );
    }
    Ok(found)
}

/// The packages that a node depends on by edges of these kinds.
fn edges<'a>(node: &'a Value, kinds: &[Value]) -> Result<Vec<&'a str>, String> {
    let mut found = Vec::new();
    for edge in array(node, "deps")? {
        if array(edge, "dep_kinds")?.iter().any(|kind| kinds.contains(&kind["kind"])) {
            found.push(text(edge, "pkg")?);
        }
    }
    Ok(found)
}

/// One package as a component.
fn component(
    package: &Value,
    kind: &str,
    digests: &BTreeMap<(String, String), String>,
    scope: Option<&str>,
) -> Result<Value, String> {
    let (name, version) = (text(package, "name")?, text(package, "version")?);
    let licence = package["license"].as_str().ok_or_else(|| format!("{name} {version} states no licence"))?;
    let mut component = Map::new();
    let mut set = |key: &str, value: Value| component.insert(key.to_owned(), value);
    set("type", json!(kind));
    set("bom-ref", json!(reference(package)?));
    set("name", json!(name));
    set("version", json!(version));
    if let Some(scope) = scope {
        set("scope", json!(scope));
    }
    if !package["source"].is_null() {
        let digest = digests.get(&(name.to_owned(), version.to_owned()));
        let digest = digest.ok_or_else(|| format!("{name} {version} has no digest in Cargo.lock"))?;
        set("hashes", json!([{"alg": "SHA-256", "content": digest}]));
        set("purl", json!(reference(package)?));
    }
    // Old manifests write `/` for OR.
    let expression = licence.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
    set("licenses", json!([{"expression": expression}]));
    Ok(Value::Object(component))
}

/// The name of a package in the document: its package URL.
fn reference(package: &Value) -> Result<String, String> {
    Ok(format!("pkg:cargo/{}@{}", text(package, "name")?, text(package, "version")?))
}

/// Whether a package runs within the compiler.
fn is_macro(package: &Value) -> bool {
    let kinds = |target: &Value| target["kind"] == json!(["proc-macro"]);
    package["targets"].as_array().is_some_and(|targets| targets.iter().any(kinds))
}

/// The digests of Cargo.lock, by name and version.
fn digests(lock: &str) -> Result<BTreeMap<(String, String), String>, String> {
    let lock: toml::Table = lock.parse().map_err(|error| format!("Cargo.lock cannot be parsed: {error}"))?;
    let packages = lock.get("package").and_then(toml::Value::as_array).ok_or("Cargo.lock has no packages")?;
    let word =
        |package: &toml::Value, key: &str| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    let known = packages.iter().filter_map(|package| {
        Some(((word(package, "name")?, word(package, "version")?), word(package, "checksum")?))
    });
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"half\"\nversion = \"2.7.1\"\nchecksum = \"ab12\"\n\
        [[package]]\nname = \"quote\"\nversion = \"1.0.0\"\nchecksum = \"cd34\"\n\
        [[package]]\nname = \"derive\"\nversion = \"1.0.0\"\nchecksum = \"ef56\"\n";

    fn metadata() -> Value {
        let package = |name: &str, version: &str, source: Value, kind: &str| {
            json!({"id": name, "name": name, "version": version, "source": source, "license": "MIT/Apache-2.0",
                "targets": [{"kind": [kind]}]})
        };
        let edge = |to: &str, kind: Value| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [
                package("girih-cli", "0.1.0", Value::Null, "bin"),
                package("half", "2.7.1", json!("registry"), "lib"),
                package("quote", "1.0.0", json!("registry"), "lib"),
                package("tested", "1.0.0", json!("registry"), "lib"),
                package("derive", "1.0.0", json!("registry"), "proc-macro"),
            ],
            "resolve": {"nodes": [
                {"id": "girih-cli", "deps": [edge("half", Value::Null), edge("derive", Value::Null),
                    edge("tested", json!("dev"))]},
                {"id": "half", "deps": [edge("quote", json!("build"))]},
                {"id": "derive", "deps": [edge("quote", Value::Null)]},
                {"id": "quote", "deps": []},
                {"id": "tested", "deps": []},
            ]},
        })
    }

    fn built() -> BTreeSet<Package> {
        let package = |(name, version): (&str, &str)| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            is_ours: name == PROGRAM,
        };
        let names = [("girih-cli", "0.1.0"), ("derive", "1.0.0"), ("half", "2.7.1"), ("quote", "1.0.0")];
        names.map(package).into()
    }

    #[test]
    fn the_packages_of_the_program_are_listed_with_licence_digest_and_edges() {
        let bill = bill(&metadata(), LOCK, &built()).unwrap();
        assert_eq!(bill["metadata"]["component"]["name"], "girih-cli");
        let component = |name: &str, version: &str, digest: &str, scope: &str| {
            let url = format!("pkg:cargo/{name}@{version}");
            json!({"type": "library", "bom-ref": url, "name": name, "version": version, "scope": scope,
                "hashes": [{"alg": "SHA-256", "content": digest}], "purl": url,
                "licenses": [{"expression": "MIT OR Apache-2.0"}]})
        };
        let want = [
            component("derive", "1.0.0", "ef56", "excluded"),
            component("half", "2.7.1", "ab12", "required"),
            component("quote", "1.0.0", "cd34", "excluded"),
        ];
        assert_eq!(bill["components"], json!(want));
        assert_eq!(
            bill["dependencies"],
            json!([
                {"ref": "pkg:cargo/derive@1.0.0", "dependsOn": ["pkg:cargo/quote@1.0.0"]},
                {"ref": "pkg:cargo/girih-cli@0.1.0", "dependsOn": ["pkg:cargo/derive@1.0.0", "pkg:cargo/half@2.7.1"]},
                {"ref": "pkg:cargo/half@2.7.1", "dependsOn": ["pkg:cargo/quote@1.0.0"]},
                {"ref": "pkg:cargo/quote@1.0.0", "dependsOn": []},
            ])
        );
    }

    #[test]
    fn a_package_without_licence_or_digest_is_refused() {
        let mut unlicensed = metadata();
        unlicensed["packages"][1]["license"] = Value::Null;
        assert_eq!(bill(&unlicensed, LOCK, &built()), Err("half 2.7.1 states no licence".to_owned()));
        let unlocked = LOCK.replace("2.7.1", "2.7.0");
        assert_eq!(
            bill(&metadata(), &unlocked, &built()),
            Err("half 2.7.1 has no digest in Cargo.lock".to_owned())
        );
        assert!(bill(&json!({}), LOCK, &built()).is_err());
        let mut unlisted = metadata();
        unlisted["resolve"]["nodes"][1]["deps"] = json!([]);
        unlisted["resolve"]["nodes"][2]["deps"] = json!([]);
        let found = bill(&unlisted, LOCK, &built());
        assert_eq!(found, Err("cargo metadata leads to 3 of 4 packages".to_owned()));
    }

    /// Every reference of the repository's own document names one of its components.
    #[test]
    fn the_bill_of_the_repository_is_complete() {
        let text = document(&crate::root()).unwrap();
        assert_eq!(document(&crate::root()).unwrap(), text, "it is the same each time");
        let bill: Value = serde_json::from_str(&text).unwrap();
        let program = &bill["metadata"]["component"];
        let components = array(&bill, "components").unwrap().iter().chain([program]);
        let known: BTreeSet<&str> = components.clone().map(|one| text_of(one, "bom-ref")).collect();
        assert_eq!(known.len(), components.count(), "a reference is used twice");
        let dependencies = array(&bill, "dependencies").unwrap();
        assert_eq!(known, dependencies.iter().map(|one| text_of(one, "ref")).collect());
        let used = dependencies.iter().flat_map(|one| array(one, "dependsOn").unwrap());
        let used: BTreeSet<&str> = used.map(|name| name.as_str().unwrap()).collect();
        assert_eq!(known.difference(&used).copied().collect::<Vec<_>>(), [text_of(program, "bom-ref")]);
        assert!(!text.contains("/tokenizers@"), "packages of tests are not in the program");
    }

    fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
        text(value, key).unwrap()
    }
}
