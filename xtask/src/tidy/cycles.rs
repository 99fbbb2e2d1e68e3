//! The rule against dependency cycles: within a crate, files depend on each
//! other in one direction.
//!
//! File A depends on file B when a path in A, in a `use` or in code, leads to
//! an item of B. A `mod` line is not a dependency, and neither is anything
//! under `#[cfg(test)]`. A path through a re-export leads to the file that the
//! re-export names, so `crate::Graph` leads to `graph.rs`, not to `lib.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::Fault;
use super::source::{Source, Token};
use super::tree::Tree;

/// The files that begin a crate, by the end of their path.
const ROOTS: [&str; 3] = ["src/lib.rs", "src/main.rs", "tests/it/main.rs"];

/// The maximum number of re-exports that a path is followed through.
const MAX_HOPS: usize = 8;

/// A module's path within its crate: `["kernels", "avx2"]`.
type Module = Vec<String>;

/// The files of a crate form no dependency cycle.
pub fn cycles(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (root, _) in tree.rust().filter(|(file, _)| ROOTS.iter().any(|end| file.path.ends_with(end))) {
        let folder = &root.path[..root.path.rfind('/').expect("a root lies in a folder") + 1];
        let files = Files::read(tree, folder, &root.path);
        for cycle in strongly_connected(&files.edges()) {
            let path = shortest_cycle(&files.edges(), &cycle);
            let names: Vec<&str> = path.iter().map(|path| &path[folder.len()..]).collect();
            let sentence = format!(
                "{} files form a dependency cycle, such as {}: move what they share into a file of its own",
                cycle.len(),
                names.join(" → ")
            );
            faults.push(Fault::new(path[0], 1, sentence));
        }
    }
    faults
}

/// The files of one crate.
struct Files<'a> {
    by_module: BTreeMap<Module, ModuleFile<'a>>,
}

/// One file and the paths in it.
struct ModuleFile<'a> {
    path: &'a str,
    /// Absolute paths that its code and its imports name.
    uses: Vec<Module>,
    /// The path that each imported name refers to: a path within the crate, or
    /// `None` for an item of another crate.
    imports: BTreeMap<String, Option<Module>>,
}

impl<'a> Files<'a> {
    fn read(tree: &'a Tree, folder: &str, root: &str) -> Files<'a> {
        let members = tree.rust().filter(|(file, _)| file.path.starts_with(folder));
        let sources: BTreeMap<Module, (&str, &Source)> = members
            .map(|(file, source)| (module_of(&file.path, folder, root), (&*file.path, source)))
            .collect();
        let modules: BTreeSet<&Module> = sources.keys().collect();
        let read = |(module, (path, source)): (&Module, &(&'a str, &Source))| {
            let mut scan = Scan { modules: &modules, file: module, inner: Vec::new(), found: Vec::new() };
            scan.run(&source.tokens_outside_tests());
            let mut file = ModuleFile { path, uses: Vec::new(), imports: BTreeMap::new() };
            for Found { path, name, at_top } in scan.found {
                if let (Some(name), true) = (name, at_top) {
                    file.imports.insert(name, path.clone());
                }
                file.uses.extend(path);
            }
            (module.clone(), file)
        };
        Files { by_module: sources.iter().map(read).collect() }
    }

    /// The files that each file depends on.
    fn edges(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let edges = self.by_module.values().map(|file| {
            let targets = file.uses.iter().filter_map(|path| self.file_of(path, MAX_HOPS));
            (file.path, targets.filter(|target| *target != file.path).collect())
        });
        edges.collect()
    }

    /// The file that defines what an absolute path names.
    fn file_of(&self, path: &[String], hops: usize) -> Option<&'a str> {
        let length = (0..=path.len()).rev().find(|&length| self.by_module.contains_key(&path[..length]))?;
        let file = &self.by_module[&path[..length]];
        let import = path.get(length).and_then(|name| file.imports.get(name));
        match import {
            Some(None) => None,
            Some(Some(target)) if hops > 0 => {
                let rest = &path[length + 1..];
                self.file_of(&[target, rest].concat(), hops - 1)
            }
            _ => Some(file.path),
        }
    }
}

/// The module that a file holds.
fn module_of(path: &str, folder: &str, root: &str) -> Module {
    if path == root {
        return Vec::new();
    }
    let inner = path[folder.len()..].trim_end_matches(".rs");
    let inner = inner.strip_suffix("/mod").unwrap_or(inner);
    inner.split('/').map(str::to_owned).collect()
}

/// A path that a file names.
struct Found {
    /// The absolute path; `None` for an item of another crate.
    path: Option<Module>,
    /// The name under which a `use` imports it.
    name: Option<String>,
    /// Whether it is in the file's own module, not in an inline one.
    at_top: bool,
}

/// Finds the paths of one file.
struct Scan<'a> {
    modules: &'a BTreeSet<&'a Module>,
    file: &'a Module,
    /// The inline modules around the current token, with the depth of braces
    /// at which each ends.
    inner: Vec<(String, usize)>,
    found: Vec<Found>,
}

impl Scan<'_> {
    fn run(&mut self, tokens: &[Token<'_>]) {
        let (mut at, mut depth) = (0, 0);
        while at < tokens.len() {
            match tokens[at..] {
                [Token::Name("use"), ..] => {
                    let end = tokens[at..].iter().position(|token| *token == Token::Sign(';'));
                    let end = end.map_or(tokens.len(), |length| at + length);
                    self.import(&tokens[at + 1..end], &[]);
                    at = end;
                }
                [Token::Name("pub"), Token::Sign('('), Token::Name("in"), ..] => {
                    let end = tokens[at..].iter().position(|token| *token == Token::Sign(')'));
                    at = end.map_or(tokens.len(), |length| at + length);
                }
                [Token::Name("mod"), Token::Name(name), Token::Sign('{'), ..] => {
                    self.inner.push((name.to_owned(), depth));
                    depth += 1;
                    at += 3;
                }
                [Token::Sign('{'), ..] => {
                    depth += 1;
                    at += 1;
                }
                [Token::Sign('}'), ..] => {
                    depth = depth.saturating_sub(1);
                    self.inner.pop_if(|(_, ends)| *ends == depth);
                    at += 1;
                }
                [Token::Name(_), ..] => {
                    let path = leading_path(&tokens[at..]);
                    at += 2 * path.len() - 1;
                    if path.len() > 1 && self.is_ours(path[0]) {
                        self.add(&path, None);
                    }
                }
                _ => at += 1,
            }
        }
    }

    /// Adds each path of a `use` tree.
    fn import(&mut self, tree: &[Token<'_>], prefix: &[&str]) {
        let path = leading_path(tree);
        let rest = &tree[(2 * path.len()).saturating_sub(1).min(tree.len())..];
        let whole = [prefix, &path].concat();
        match rest {
            [Token::Name("as"), Token::Name(name), ..] => self.add(&whole, Some(name)),
            [Token::Path, Token::Sign('{'), inner @ .., Token::Sign('}')]
            | [Token::Sign('{'), inner @ .., Token::Sign('}')] => {
                for branch in branches(inner) {
                    self.import(branch, &whole);
                }
            }
            [Token::Path, Token::Sign('*'), ..] => self.add(&[&whole[..], &["*"]].concat(), None),
            _ => match whole.split_last() {
                Some((&"self", parent)) if !parent.is_empty() => self.add(parent, parent.last().copied()),
                _ => self.add(&whole, whole.last().copied()),
            },
        }
    }

    fn add(&mut self, path: &[&str], name: Option<&str>) {
        let name = name.filter(|name| *name != "_").map(str::to_owned);
        self.found.push(Found { path: self.absolute(path), name, at_top: self.inner.is_empty() });
    }

    /// Whether a path that begins with this name may lead into this crate.
    fn is_ours(&self, first: &str) -> bool {
        matches!(first, "crate" | "super" | "self") || self.is_child(first)
    }

    /// Whether a submodule of the current module has this name.
    fn is_child(&self, name: &str) -> bool {
        self.modules.contains(&[&self.current()[..], &[name.to_owned()]].concat())
    }

    fn current(&self) -> Module {
        self.file.iter().cloned().chain(self.inner.iter().map(|(name, _)| name.clone())).collect()
    }

    fn absolute(&self, path: &[&str]) -> Option<Module> {
        let mut module = self.current();
        let mut rest = path;
        match path.first() {
            Some(&"crate") => {
                module.clear();
                rest = &path[1..];
            }
            Some(&"self") => rest = &path[1..],
            Some(&"super") => {
                while let Some((&"super", others)) = rest.split_first() {
                    module.pop()?;
                    rest = others;
                }
            }
            Some(&first) if self.is_child(first) => {}
            _ => return None,
        }
        module.extend(rest.iter().map(|&name| name.to_owned()));
        Some(module)
    }
}

/// The names, joined by `::`, at the start of `tokens`.
fn leading_path<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let mut path = Vec::new();
    let mut rest = tokens;
    while let [Token::Name(name), others @ ..] = rest {
        path.push(*name);
        match others {
            [Token::Path, next @ ..] if matches!(next, [Token::Name(_), ..]) => rest = next,
            _ => break,
        }
    }
    path
}

/// The parts of a braced `use` list, split at its own commas.
fn branches<'a, 'b>(tokens: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let mut depth = 0_usize;
    let parts = tokens.split(|token| {
        match token {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *token == Token::Sign(',')
    });
    parts.filter(|part| !part.is_empty()).collect()
}

type Edges<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The files reachable from `start` by one or more edges.
fn reachable<'a>(edges: &Edges<'a>, start: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = edges[start].iter().copied().collect();
    while let Some(file) = open.pop() {
        if seen.insert(file) {
            open.extend(&edges[file]);
        }
    }
    seen
}

/// The groups of two or more files that reach each other.
fn strongly_connected<'a>(edges: &Edges<'a>) -> Vec<BTreeSet<&'a str>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|file| (*file, reachable(edges, file))).collect();
    let mut groups: Vec<BTreeSet<&str>> = Vec::new();
    for (file, targets) in reach.iter().filter(|(file, targets)| targets.contains(*file)) {
        if !groups.iter().any(|group| group.contains(file)) {
            groups.push(targets.iter().copied().filter(|target| reach[target].contains(file)).collect());
        }
    }
    groups
}

/// A shortest cycle through the first file of `group`, which is at both ends.
fn shortest_cycle<'a>(edges: &Edges<'a>, group: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let start = *group.first().expect("a group holds two files");
    let mut paths = vec![vec![start]];
    let mut seen = BTreeSet::new();
    loop {
        let mut longer = Vec::new();
        for path in &paths {
            let last = path.last().expect("a path begins with its first file");
            for &next in edges[last].intersection(group) {
                if next == start {
                    return [&path[..], &[start]].concat();
                }
                if seen.insert(next) {
                    longer.push([&path[..], &[next]].concat());
                }
            }
        }
        assert!(!longer.is_empty(), "each file of a group is on a cycle");
        paths = longer;
    }
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    const ROOT: &str = "crates/a/src/lib.rs";
    const ONE: &str = "crates/a/src/one.rs";
    const TWO: &str = "crates/a/src/two/mod.rs";

    fn found(one: &str, two: &str) -> bool {
        !places(cycles, &[(ROOT, "mod one;\nmod two;\n"), (ONE, one), (TWO, two)]).is_empty()
    }

    #[test]
    fn paths_in_imports_and_in_code_are_edges() {
        for one in [
            "use crate::two::Two;\n",
            "use super::two::{self, Two};\n",
            "use crate::{two::{Two as T}, other};\n",
            "use crate::two::*;\n",
            "fn a() { crate::two::two(); }\n",
            "fn a() -> super::two::Two { todo() }\n",
            "mod inner { use super::super::two::Two; }\n",
        ] {
            assert!(found(one, "use crate::one::One;\n"), "{one}");
            assert!(!found(one, "use std::fmt;\n"), "{one}");
        }
    }

    #[test]
    fn tests_visibilities_and_mod_lines_are_no_edges() {
        assert!(!found("pub(in super::two) struct One;\n", "use crate::one::One;\n"));
        assert!(!found("#[cfg(test)]\nmod tests { use crate::two::Two; }\n", "use crate::one::One;\n"));
        let child =
            [(ROOT, "mod two;\n"), (TWO, "mod three;\n"), ("crates/a/src/two/three.rs", "use super::A;\n")];
        assert!(places(cycles, &child).is_empty());
    }

    #[test]
    fn a_parent_that_uses_its_child_is_an_edge() {
        let files = [(TWO, "mod three;\nuse three::B;\n"), ("crates/a/src/two/three.rs", "use super::A;\n")];
        assert_eq!(places(cycles, &[(ROOT, "mod two;\n"), files[0], files[1]]), [format!("{TWO}:1")]);
    }

    #[test]
    fn a_path_leads_through_re_exports() {
        let root = "mod one;\nmod two;\npub use one::One;\npub use std::io::Result;\n";
        let files = |two| [(ROOT, root), (ONE, "use crate::Result;\n"), (TWO, two)];
        assert!(places(cycles, &files("use crate::{One, Result};\n")).is_empty());
        let one = (ONE, "use crate::two::Two;\n");
        assert_eq!(places(cycles, &[(ROOT, root), one, (TWO, "use crate::One;\n")]), [format!("{ONE}:1")]);
    }
}
