//! Rules about code that only certain files may contain.

use std::collections::BTreeSet;

use super::fault::Fault;
use super::source::Source;
use super::tree::File;
use super::tree::Tree;

/// The folders and files that may hold `unsafe`. The allocation test counts in
/// its own allocator, and the kernel tests put slices beside guard pages;
/// neither can be written in safe code.
const UNSAFE: &[&str] = &[
    // Pointers from C, and functions that C calls.
    "crates/capi/src/abi/",
    "crates/cpu/src/kernels/",
    "crates/cpu/src/cut.rs",
    "crates/cpu/src/pool.rs",
    "crates/cpu/src/os.rs",
    "crates/cpu/tests/it/allocation.rs",
    "crates/cpu/tests/it/guarded.rs",
    // CUDA's driver, whose functions are looked up in a library.
    "crates/gpu/src/cuda/",
    // The driver that tests load in its place.
    "crates/gpu/tests/it/emulated.rs",
    // Free memory, which wgpu does not tell.
    "crates/gpu/src/memory.rs",
    // Matrix units, which wgpu counts as experimental, and kernels without tests of their indices.
    "crates/gpu/src/trusted.rs",
    "crates/openvino/src/ffi.rs",
    // The buffer protocol of Python, by which numpy reads numbers without a copy.
    "crates/python/src/buffer.rs",
    // The program of the wheel: an exported function, and the launcher that looks it up.
    "crates/python/src/launcher.rs",
    "crates/python/src/program.rs",
];

/// The folders and files that may use `cfg(target_…)`, in addition to every
/// `ffi.rs`. System calls have other numbers on other processors; other systems lack the sandbox and files without names.
const TARGETS: &[&str] = &[
    "crates/cpu/src/kernels/",
    "crates/cpu/src/os.rs",
    "crates/file/src/staged.rs",
    "crates/girih/src/priority.rs",
    "crates/gpu/src/lib.rs",
    "crates/words/src/confinement/mod.rs",
    "crates/words/src/template/layers.rs",
    "crates/words/src/template/mod.rs",
];

/// The folders that may read the environment and the command line: those of programs. The library for C reads the model
/// of calls that name none.
const ENVIRONMENT: &[&str] = &[
    "crates/capi/src/environment.rs",
    "crates/cli/",
    "crates/girih/examples/",
    "crates/python/src/launcher.rs",
    "crates/serve/examples/",
    "deploy/dynamo/src/main.rs",
    "xtask/",
];

/// Calls that open any file, whatever it is and wherever it leads. `OpenOptions` of the standard
/// library is named by its import; `girih` has a type of this name.
const OPENINGS: [&str; 11] = [
    "File::open",
    "File::options",
    "File::create",
    "File::create_new",
    "fs::read",
    "fs::read_to_string",
    "fs::write",
    "fs::copy",
    "fs::OpenOptions",
    "OpenOptions::new",
    "OpenOptionsExt",
];

/// The folders and files that may open files themselves. All others call `girih_file`, which
/// refuses pipes, and links that leave a model's folder.
const OPENERS: &[&str] = &[
    "crates/file/src/outside.rs",
    // New files, and folders to be synced.
    "crates/file/src/staged.rs",
    "crates/hub/src/cache.rs",
    "crates/hub/src/transfer.rs",
    "crates/measure/src/record.rs",
    // Outputs that the user names.
    "crates/cli/src/cmd/chat/saved_file.rs",
    "crates/cli/src/cmd/npu/emit_folder.rs",
    "crates/cli/src/cmd/npu/report.rs",
    "crates/cli/src/cmd/npu/sweep.rs",
    "crates/cli/src/cmd/npu/trace.rs",
    "crates/cli/src/cmd/perplexity.rs",
    // Texts that the user names, which may be pipes.
    "crates/cli/src/input.rs",
    // `/proc` and `/sys`.
    "crates/cli/src/machine.rs",
    "crates/cpu/src/caches.rs",
    "crates/cpu/src/probe.rs",
    "crates/cpu/src/topology.rs",
    "crates/girih/src/free_memory.rs",
    // What the worker of templates must not be able to do.
    "crates/words/src/template/probe.rs",
    // Programs that show the library, and these rules.
    "crates/girih/examples/",
    "xtask/",
];

/// The crates of the backends.
const BACKENDS: [&str; 4] = ["girih_cpu", "girih_npu", "girih_gpu", "girih_openvino"];

/// The folders and files that may name a backend. `girih` chooses one, and the
/// crates themselves and `npu-lab`, which observes the array, lie below it.
/// The files of `cli` do not run models: its tools of the array's compiler call
/// that compiler, and the others describe this machine, which only `cpu` measures.
const BACKEND_USERS: &[&str] = &[
    "crates/girih/",
    "crates/cpu/",
    "crates/npu/",
    "crates/gpu/",
    "crates/npu-lab/",
    "crates/openvino/",
    "crates/cli/src/cmd/npu/",
    "crates/cli/src/cmd/bench/sparse.rs",
    "crates/cli/src/cmd/doctor.rs",
    "crates/cli/src/advice.rs",
    "crates/cli/src/limits.rs",
];

/// Only listed files contain `unsafe`.
pub fn unsafe_places(tree: &Tree) -> Vec<Fault> {
    let sentence =
        "`unsafe` is outside the files that tidy lists: use safe code, or extend the list and say why";
    faults(
        tree,
        |file, source| if lies_in(file, UNSAFE) { Vec::new() } else { unsafe_lines(source) },
        sentence,
    )
}

/// Each crate root forbids unsafe code; a crate with a listed file denies it,
/// so that the file can allow it again.
pub fn unsafe_ban(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        let Some((folder, "lib.rs" | "main.rs")) = file.path.rsplit_once('/') else { continue };
        let Some(member) = folder.strip_suffix("src") else { continue };
        let code: String = source.code.split_whitespace().collect();
        let listed = tree.files.iter().any(|other| other.path.starts_with(member) && lies_in(other, UNSAFE));
        let forbids = code.contains("#![forbid(unsafe_code)]");
        if !forbids && !listed {
            faults.push(Fault::new(&file.path, 1, "the crate lacks `#![forbid(unsafe_code)]`"));
        } else if !forbids && !code.contains("#![deny(unsafe_code)]") {
            faults.push(Fault::new(&file.path, 1, "the crate lacks `#![deny(unsafe_code)]`"));
        }
    }
    faults
}

/// Only kernels and foreign-function interfaces contain code for one kind of
/// machine.
pub fn target_conditions(tree: &Tree) -> Vec<Fault> {
    let sentence =
        "`cfg(target_…)` is outside the kernels and the foreign-function interfaces: call a function there";
    let find = |file: &File, source: &Source| {
        let allowed = lies_in(file, TARGETS) || file.path.ends_with("/ffi.rs");
        let conditions =
            ["cfg", "cfg_attr"].iter().flat_map(|word| source.words(word).map(|at| at + word.len()));
        let targets = conditions.filter(|&at| condition(&source.code[at..]).contains("target_"));
        targets.filter(|_| !allowed).map(|at| source.line(at)).collect()
    };
    faults(tree, find, sentence)
}

/// Only the command line crate reads the environment; tests may.
pub fn environment(tree: &Tree) -> Vec<Fault> {
    let sentence = "the environment is read outside the command line crate: take the value as an argument";
    let find = |file: &File, source: &Source| {
        if lies_in(file, ENVIRONMENT) || file.is_test() {
            return Vec::new();
        }
        let mentions = source.words("env").filter(|&at| {
            let statement = source.code[..at].rsplit(';').next().unwrap_or_default();
            statement.ends_with("std::") || statement.contains("use std::")
        });
        mentions.map(|at| source.line(at)).filter(|&line| !source.is_test(line)).collect()
    };
    faults(tree, find, sentence)
}

/// Only listed files open files without `girih_file`; tests may.
pub fn opened_files(tree: &Tree) -> Vec<Fault> {
    let sentence = "a file is opened without girih_file: call open_regular, read_companion or PrivateFolder";
    faults(tree, |file, source| mentions(file, source, &OPENINGS, OPENERS), sentence)
}

/// Only `girih` and listed files name a backend; tests may.
pub fn backends(tree: &Tree) -> Vec<Fault> {
    let sentence = "a backend is named outside the crate girih: use what girih offers for all backends";
    faults(tree, |file, source| mentions(file, source, &BACKENDS, BACKEND_USERS), sentence)
}

/// The lines of a crate's source that have one of `words`, outside tests and the `exempt` files.
fn mentions(file: &File, source: &Source, words: &[&str], exempt: &[&str]) -> Vec<usize> {
    let is_source = file.path.starts_with("crates/") && file.path.contains("/src/");
    if !is_source || file.is_test() || lies_in(file, exempt) {
        return Vec::new();
    }
    let found = words.iter().flat_map(|word| source.words(word));
    let lines: BTreeSet<usize> = found.map(|at| source.line(at)).collect();
    lines.into_iter().filter(|&line| !source.is_test(line)).collect()
}

/// One fault with the same sentence for each line that `find` returns.
fn faults(tree: &Tree, find: impl Fn(&File, &Source) -> Vec<usize>, sentence: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (file, source) in tree.rust() {
        faults.extend(find(file, source).into_iter().map(|line| Fault::new(&file.path, line, sentence)));
    }
    faults
}

fn lies_in(file: &File, places: &[&str]) -> bool {
    places.iter().any(|place| file.path == *place || (place.ends_with('/') && file.path.starts_with(place)))
}

fn unsafe_lines(source: &Source) -> Vec<usize> {
    source.words("unsafe").map(|at| source.line(at)).collect()
}

/// The text within the parentheses that follow a `cfg`, or nothing.
fn condition(code: &str) -> &str {
    let Some(inner) = code.trim_start_matches('!').strip_prefix('(') else { return "" };
    let mut depth = 1_usize;
    for (at, c) in inner.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &inner[..at];
        }
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    const KERNEL: &str = "crates/cpu/src/kernels/avx2.rs";

    #[test]
    fn unsafe_stands_in_listed_places_only() {
        let text = "//! A.\nfn a() { unsafe { b() } }\n";
        assert_eq!(places(unsafe_places, &[("crates/graph/src/a.rs", text)]), ["crates/graph/src/a.rs:2"]);
        assert!(places(unsafe_places, &[(KERNEL, text)]).is_empty());
        let talk = "//! No unsafe.\n#![forbid(unsafe_code)]\nconst A: &str = \"unsafe\";\n";
        assert!(places(unsafe_places, &[("crates/graph/src/lib.rs", talk)]).is_empty());
    }

    #[test]
    fn each_crate_bans_unsafe_code() {
        let (forbids, denies, neither) = ("#![forbid(unsafe_code)]\n", "#![deny(unsafe_code)]\n", "//! A.\n");
        let graph = |text| places(unsafe_ban, &[("crates/graph/src/lib.rs", text)]);
        assert_eq!(graph(denies), ["crates/graph/src/lib.rs:1"]);
        assert_eq!(graph("// #![forbid(unsafe_code)]\n"), ["crates/graph/src/lib.rs:1"]);
        assert!(graph(forbids).is_empty());
        let cpu = |text| places(unsafe_ban, &[("crates/cpu/src/lib.rs", text), (KERNEL, "")]);
        assert_eq!(cpu(neither), ["crates/cpu/src/lib.rs:1"]);
        assert!(cpu(denies).is_empty());
    }

    #[test]
    fn only_kernels_and_foreign_interfaces_ask_for_the_target() {
        let path = "crates/engine/src/a.rs";
        for bad in ["#[cfg(target_os = \"linux\")]\n", "if cfg!(all(unix, target_arch = \"x86\")) {}\n"] {
            assert_eq!(places(target_conditions, &[(path, bad)]), [format!("{path}:1")], "{bad}");
            assert!(places(target_conditions, &[(KERNEL, bad), ("crates/gpu/src/ffi.rs", bad)]).is_empty());
        }
        assert!(places(target_conditions, &[(path, "#[cfg(unix)]\nfn a(target_rows: u32) {}\n")]).is_empty());
    }

    #[test]
    fn only_the_command_line_reads_the_environment() {
        let path = "crates/model/src/a.rs";
        for bad in ["use std::env;\n", "use std::{\nfs::{read}, env};\n", "let a = std::env::var(\"A\");\n"] {
            assert_eq!(places(environment, &[(path, bad)]).len(), 1, "{bad}");
            let allowed = [("crates/cli/src/a.rs", bad), ("crates/model/tests/main.rs", bad)];
            assert!(places(environment, &allowed).is_empty(), "{bad}");
        }
        let good = "// std::env\nconst A: &str = env!(\"A\");\nuse std::fs;\nfn a(env: u8) {}\nmod env;\nuse env::B;\n\
                    #[cfg(test)]\nmod tests {\n    use std::env;\n}\n";
        assert!(places(environment, &[(path, good)]).is_empty());
    }

    #[test]
    fn files_are_opened_by_one_function() {
        let path = "crates/words/src/a.rs";
        for bad in [
            "let a = File::open(b)?;\n",
            "let a = std::fs::read(b)?;\n",
            "fs::read_to_string(a)\n",
            "OpenOptions::new().read(true)\n",
            "let a = fs::OpenOptions::new();\n",
            "use std::os::unix::fs::OpenOptionsExt;\n",
            "let a = File::options();\n",
            "let a = File::create(b)?;\n",
            "let a = File::create_new(b)?;\n",
            "fs::write(a, b)?;\n",
            "fs::copy(a, b)?;\n",
        ] {
            assert_eq!(places(opened_files, &[(path, bad)]), [format!("{path}:1")], "{bad}");
            let allowed = [
                ("crates/file/src/outside.rs", bad),
                ("crates/words/tests/it/a.rs", bad),
                ("crates/girih/src/store/tests.rs", bad),
            ];
            assert!(places(opened_files, &allowed).is_empty(), "{bad}");
        }
        let good = "// File::open\nfs::read_dir(a);\nGoldenFile::open(a);\nfs::read_link(a);\n\
                    #[cfg(test)]\nmod tests {\n    fn a() { fs::read(b); }\n}\n";
        assert!(places(opened_files, &[(path, good)]).is_empty());
    }

    #[test]
    fn only_girih_and_listed_files_name_a_backend() {
        let text = "use girih_cpu::A;\nfn a() { girih_npu::b(girih_npu::C) }\n";
        let path = "crates/cli/src/backends.rs";
        assert_eq!(places(backends, &[(path, text)]), [format!("{path}:1"), format!("{path}:2")]);
        assert_eq!(places(backends, &[("crates/measure/src/lib.rs", text)]).len(), 2);
        for allowed in [
            "crates/girih/src/a.rs",
            "crates/cli/src/cmd/npu/a.rs",
            "crates/cli/tests/a.rs",
            "crates/cpu/src/a.rs",
        ] {
            assert!(places(backends, &[(allowed, text)]).is_empty(), "{allowed}");
        }
        let good = "//! girih_cpu\nconst A: &str = \"girih_npu\";\n#[cfg(test)]\nmod tests {\n    use girih_cpu::A;\n}\n";
        assert!(places(backends, &[(path, good)]).is_empty());
    }
}
