//! The rules of the hardware: each is documented with a program that breaks it, and compiled
//! programs keep them on any array.

use std::collections::BTreeSet;
use std::path::Path;

use girih_npu::Target;
use girih_npu::form::PassForm as _;
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{NoDump, Policy, compile, groups, is_broken_rule};

use crate::llama::{LlamaSizes, SMALL, key, llama};

/// The table of rules names every program that breaks one, and no other.
#[test]
fn the_documented_rules_are_those_that_programs_break() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("../../docs/npu.md")).unwrap();
    let (_, table) = document.split_once("### Rules of the hardware\n").unwrap();
    let (table, _) = table.split_once("## ").unwrap();
    let files = std::fs::read_dir(root.join("tests/forms/check")).unwrap();
    let names = files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    let mut files: BTreeSet<String> = names.collect();
    assert!(files.remove("no-faults"));
    let rows = table.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
    let named = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|name| name.contains('-'));
    assert_eq!(files, named.map(str::to_owned).collect());
}

/// XDNA1 has a fifth column without a shim DMA.
#[test]
fn a_shim_without_a_dma_has_no_channels() {
    let figure = |value: u32| format!("{{ value = {value}, grade = \"guessed\", source = \"test\" }}");
    let target = format!(
        "name = \"five\"\ntitle = \"five columns\"\ncore = \"aie2\"\nextends = \"xdna1-phoenix\"\n\
         [array]\ncolumns = {}\nshim_columns = {}\n",
        figure(5),
        figure(4)
    );
    let target = Target::parse(&target, None).unwrap();
    let faults = |column: u32| {
        let text = format!(
            "schedule copy target five\nlaunch copy\n  route {column},0:mm2s:0 {column},2:s2mm:0@2\n  run {{\n  }}\n"
        );
        let faults = text.parse::<Schedule>().unwrap().faults(&target);
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(faults(3), [""; 0]);
    assert_eq!(faults(4), ["copy: route 0: uses 4,0:mm2s:0, which does not exist"]);
}

/// On arrays with smaller limits, programs keep them, or a pass says what does not fit.
#[test]
fn programs_keep_smaller_limits() {
    let dma = ["channels_in", "channels_out", "descriptors", "dimensions", "max_words", "max_stride_words"];
    let more = ["max_wrap", "max_iterations", "locks", "max_lock", "queue", "max_repeat"];
    let tiles = ["compute", "memory", "shim"];
    let dma =
        tiles.iter().flat_map(|tile| dma.iter().chain(&more).map(move |name| (format!("{tile}.dma"), *name)));
    let others = [("shim", "max_argument_bytes"), ("compute", "program_bytes"), ("array", "shim_columns")];
    let others = others.into_iter().map(|(table, name)| (table.to_owned(), name));
    let sizes = LlamaSizes { layers: 1, ..SMALL };
    let (mut fit, mut unfit) = (0, 0);
    for (table, name) in dma.chain(others) {
        for value in [1, 2, 7, 64, 5000] {
            let text = format!(
                "name = \"small\"\ntitle = \"small\"\ncore = \"aie2p\"\nextends = \"toy\"\n\
                 [{table}]\n{name} = {{ value = {value}, grade = \"guessed\", source = \"test\" }}\n"
            );
            let Ok(target) = Target::parse(&text, None) else { continue };
            for rows in [1, 16] {
                let all = groups(&llama(&sizes, key(rows)), &target, &Policy::MLIR_AIR.into(), &mut NoDump);
                for program in &all.unwrap().programs {
                    match compile(program, &target, &mut NoDump) {
                        Ok(_) => fit += 1,
                        Err(error) => {
                            assert!(!is_broken_rule(&error), "{table}.{name} = {value}: {error}");
                            unfit += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(fit > 400 && unfit > 100, "{fit} programs fit, {unfit} do not");
}
