//! Rules about the manifests: who may depend on whom.

use super::fault::Fault;
use super::tree::{Manifest, Tree};

/// The crates of this workspace that each crate may depend on.
const EDGES: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("graph", &["tensor"]),
    ("file", &["tensor"]),
    ("words", &["tensor", "file"]),
    ("hub", &["tensor", "file"]),
    ("image", &["tensor"]),
    ("model", &["tensor", "file", "graph"]),
    ("convert", &["tensor", "file", "words", "graph", "model"]),
    ("cpu", &["tensor", "graph"]),
    ("npu", &["tensor", "graph", "file"]),
    ("gpu", &["tensor", "graph"]),
    ("openvino", &["tensor", "graph", "file"]),
    ("npu-lab", &["tensor", "graph", "model", "npu"]),
    ("engine", &["tensor", "graph"]),
    ("grammar", &["tensor", "words", "engine"]),
    ("measure", &["tensor", "file", "graph", "model", "engine"]),
    (
        "girih",
        &[
            "tensor", "graph", "file", "words", "hub", "image", "model", "engine", "grammar", "cpu", "npu",
            "gpu", "openvino",
        ],
    ),
    // Whatever the server lacks is missing in the library, for everybody.
    ("serve", &["girih"]),
    ("capi", &["girih"]),
    (
        "cli",
        &[
            "tensor", "file", "words", "hub", "graph", "model", "convert", "cpu", "npu", "npu-lab", "engine",
            "measure", "girih", "serve",
        ],
    ),
    // Measuring has the collector of hidden states, and the wheel brings the program.
    ("python", &["girih", "measure", "cli"]),
    ("xtask", &[]),
];

/// What the tests of a crate may depend on beside.
const TEST_EDGES: &[(&str, &[&str])] = &[("gpu", &["model", "engine", "measure"])];

const KINDS: [&str; 3] = ["dependencies", "build-dependencies", "dev-dependencies"];

/// Crates depend on each other along [`EDGES`] only, in tests also along [`TEST_EDGES`]. Only the rows
/// of `girih`, `cli` and `npu-lab` have a backend, so no other crate can name one.
pub fn edges(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for manifest in tree.members() {
        let name = manifest.name();
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            let sentence = format!(
                "{name} has no row in the table of allowed edges: add it to xtask and to ARCHITECTURE.md"
            );
            faults.push(Fault::new(manifest.path, 1, sentence));
            continue;
        };
        let of_tests =
            TEST_EDGES.iter().find(|(from, _)| *from == name).map_or(&[][..], |(_, allowed)| allowed);
        let all = KINDS.iter().flat_map(|kind| {
            manifest.dependencies(kind).into_iter().map(move |dependency| (kind, dependency))
        });
        for (kind, dependency) in all {
            let is_allowed = |to: &&str| allowed.contains(to) || *kind == KINDS[2] && of_tests.contains(to);
            if let Some(to) = member(&dependency).filter(|to| !is_allowed(to)) {
                let sentence = format!("{name} may not depend on {to}: see the map in ARCHITECTURE.md");
                faults.push(Fault::new(manifest.path, manifest.line(&dependency), sentence));
            }
        }
    }
    faults
}

/// The folder of the crate of this workspace that is called `package`; `None` for a
/// package from outside. `girih` and `xtask` have no prefix.
fn member(package: &str) -> Option<&str> {
    match package {
        "girih" | "xtask" => Some(package),
        _ => package.strip_prefix("girih-"),
    }
}

/// Each crate has the name of its folder, from which the other rules derive it.
pub fn package_names(tree: &Tree) -> Vec<Fault> {
    let fault = |manifest: Manifest<'_>| {
        let package = manifest.table.get("package")?.get("name")?.as_str()?;
        let sentence = || {
            let folder = manifest.name();
            format!("the package is called {package}, its folder {folder}: call it girih-{folder}")
        };
        (member(package) != Some(manifest.name()))
            .then(|| Fault::new(manifest.path, manifest.line("name"), sentence()))
    };
    tree.members().filter_map(fault).collect()
}

/// Each crate inherits the lints of the workspace.
pub fn lints(tree: &Tree) -> Vec<Fault> {
    let inherits = |table: &toml::Table| table.get("lints")?.get("workspace")?.as_bool();
    tree.members()
        .filter(|manifest| inherits(&manifest.table) != Some(true))
        .map(|manifest| {
            Fault::new(manifest.path, 1, "the lints are not inherited: add `[lints] workspace = true`")
        })
        .collect()
}

/// Each dependency that the workspace declares is used by one of its crates.
pub fn unused(tree: &Tree) -> Vec<Fault> {
    let Some(workspace) = tree.workspace() else { return Vec::new() };
    let declared = workspace.table.get("workspace").and_then(|table| table.get("dependencies")?.as_table());
    let used: Vec<String> = tree
        .members()
        .flat_map(|manifest| KINDS.iter().flat_map(|kind| manifest.dependencies(kind)).collect::<Vec<_>>())
        .collect();
    declared
        .into_iter()
        .flat_map(toml::Table::keys)
        .filter(|name| !used.contains(name))
        .map(|name| {
            Fault::new(workspace.path, workspace.line(name), format!("no crate uses {name}: remove it"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    #[test]
    fn an_edge_that_is_not_in_the_table_is_a_fault() {
        let bad = "[package]\nname = \"girih-model\"\n[dependencies]\ngirih-tensor.workspace = true\ngirih-cpu.workspace = true\n";
        assert_eq!(places(edges, &[("crates/model/Cargo.toml", bad)]), ["crates/model/Cargo.toml:5"]);
        let good = "[dependencies]\ngirih-tensor.workspace = true\nserde.workspace = true\n";
        assert!(places(edges, &[("crates/model/Cargo.toml", good)]).is_empty());
    }

    #[test]
    fn an_edge_of_tests_or_of_one_target_or_by_another_name_is_an_edge() {
        for bad in [
            "[dev-dependencies]\ngirih-cpu.workspace = true\n",
            "[target.'cfg(unix)'.dependencies]\ngirih-cpu.workspace = true\n",
            "[dependencies]\nfast = { package = \"girih-cpu\", path = \"../cpu\" }\n",
        ] {
            assert_eq!(places(edges, &[("crates/engine/Cargo.toml", bad)]).len(), 1, "{bad}");
            assert!(places(edges, &[("crates/cli/Cargo.toml", bad)]).is_empty(), "{bad}");
        }
    }

    #[test]
    fn a_crate_that_is_not_in_the_table_is_a_fault() {
        assert_eq!(places(edges, &[("crates/abacus/Cargo.toml", "")]), ["crates/abacus/Cargo.toml:1"]);
    }

    #[test]
    fn the_crate_without_a_prefix_has_edges_too() {
        let bad = "[dependencies]\ngirih.workspace = true\n";
        assert_eq!(places(edges, &[("crates/engine/Cargo.toml", bad)]), ["crates/engine/Cargo.toml:2"]);
        assert!(places(edges, &[("crates/cli/Cargo.toml", bad)]).is_empty());
        let convert = "[dependencies]\ngirih-convert.workspace = true\n";
        assert_eq!(places(edges, &[("crates/girih/Cargo.toml", convert)]), ["crates/girih/Cargo.toml:2"]);
        let hub = "[dependencies]\ngirih-hub = { workspace = true, optional = true }\n";
        assert!(places(edges, &[("crates/girih/Cargo.toml", hub)]).is_empty());
    }

    #[test]
    fn a_package_is_called_like_its_folder() {
        let named = |name: &str| format!("[package]\nname = \"{name}\"\n");
        let found = |path, name| places(package_names, &[(path, &*named(name))]);
        assert_eq!(found("crates/cpu/Cargo.toml", "girih"), ["crates/cpu/Cargo.toml:2"]);
        assert_eq!(found("crates/cpu/Cargo.toml", "cpu"), ["crates/cpu/Cargo.toml:2"]);
        assert!(found("crates/cpu/Cargo.toml", "girih-cpu").is_empty());
        assert!(found("crates/girih/Cargo.toml", "girih").is_empty());
        assert!(found("xtask/Cargo.toml", "xtask").is_empty());
    }

    #[test]
    fn lints_are_inherited() {
        assert_eq!(places(lints, &[("xtask/Cargo.toml", "[package]\n")]), ["xtask/Cargo.toml:1"]);
        assert!(places(lints, &[("xtask/Cargo.toml", "[lints]\nworkspace = true\n")]).is_empty());
    }

    #[test]
    fn an_unused_workspace_dependency_is_a_fault() {
        let root = ("Cargo.toml", "[workspace.dependencies]\nhalf = \"2\"\nserde = \"1\"\n");
        let half = ("crates/tensor/Cargo.toml", "[dependencies]\nhalf.workspace = true\n");
        let serde = ("crates/model/Cargo.toml", "[dev-dependencies]\nserde.workspace = true\n");
        assert_eq!(places(unused, &[root, half]), ["Cargo.toml:3"]);
        assert!(places(unused, &[root, half, serde]).is_empty());
    }
}
