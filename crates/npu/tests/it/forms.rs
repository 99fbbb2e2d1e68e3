//! Golden files of each pass: `tests/forms/<pass>/*.npu` has a target, the input
//! and the output. `UPDATE=1` rewrites the output.
//!
//! ```text
//! target toy
//! policy mlir-air                     (of partition only)
//! === in
//! …
//! === out
//! …
//! ```

use std::fmt::Display;
use std::path::Path;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::form::PassForm;
use girih_npu::form::groups::Groups;
use girih_npu::form::placed::Placed;
use girih_npu::form::routed::Routed;
use girih_npu::form::schedule::Schedule;
use girih_npu::form::tiled::Tiled;
use girih_npu::pass::{NoDump, Policy, groups, place, route, schedule, tile};

/// Returns the output of a pass, or its error.
fn run(pass: &str, target: &Target, policy: Policy, text: &str) -> String {
    let result = match pass {
        "partition" => partition(target, policy, text),
        "tile" => tile_best(target, text),
        "place" => place_all(target, text),
        "route" => route_all(target, text),
        "schedule" => schedule_all(target, text),
        "check" => check(target, text),
        _ => panic!("unknown pass {pass}"),
    };
    result.unwrap_or_else(|error| format!("refused: {error}\n"))
}

/// Returns a form as text, which must parse to an equal form, and its faults.
fn shown<F: PassForm + PartialEq + std::fmt::Debug>(form: &F, target: &Target) -> String {
    let text = form.to_string();
    assert_eq!(&text.parse::<F>().unwrap(), form, "parsed again");
    let faults = form.faults(target);
    text + &faults.iter().map(|fault| format!("fault: {fault}\n")).collect::<String>()
}

fn partition(target: &Target, policy: Policy, text: &str) -> Result<String, String> {
    let graph: Graph = text.parse().map_err(|error: girih_graph::Error| error.to_string())?;
    let groups = groups(&graph, target, &policy.into(), &mut NoDump).map_err(|error| error.to_string())?;
    Ok(shown(&groups, target))
}

fn text_of(error: impl Display) -> String {
    error.to_string()
}

fn tile_best(target: &Target, text: &str) -> Result<String, String> {
    let groups: Groups = text.parse().map_err(text_of)?;
    let program = &groups.programs[0];
    let best =
        |task| tile::candidates(task, target).into_iter().next().ok_or("nothing divides it".to_owned());
    let launches = program.launches.iter().map(best).collect::<Result<_, _>>()?;
    let tiled = Tiled { name: program.name.clone(), arguments: program.arguments.clone(), launches };
    Ok(shown(&tiled, target))
}

fn place_all(target: &Target, text: &str) -> Result<String, String> {
    let tiled: Tiled = text.parse().map_err(text_of)?;
    let mut placed =
        Placed { name: tiled.name.clone(), arguments: tiled.arguments.clone(), launches: Vec::new() };
    for launch in tiled.launches {
        let group = format!("{}: {}", tiled.name, launch.name);
        placed.launches.push(place::place(&group, launch, target).map_err(text_of)?);
    }
    Ok(shown(&placed, target))
}

fn route_all(target: &Target, text: &str) -> Result<String, String> {
    let placed: Placed = text.parse().map_err(text_of)?;
    Ok(shown(&route::route(placed, target).map_err(text_of)?, target))
}

fn schedule_all(target: &Target, text: &str) -> Result<String, String> {
    let routed: Routed = text.parse().map_err(text_of)?;
    Ok(shown(&schedule::schedule(&routed, target).map_err(text_of)?, target))
}

/// Returns the faults of a schedule, without the schedule.
fn check(target: &Target, text: &str) -> Result<String, String> {
    let schedule: Schedule = text.parse().map_err(text_of)?;
    Ok(schedule.faults(target).iter().map(|fault| format!("{fault}\n")).collect())
}

fn compare(pass: &str, file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let (head, rest) = text.split_once("=== in\n").expect("a case has an input");
    let (input, want) = rest.split_once("=== out\n").expect("a case has an output");
    let word = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let target = Target::named(word("target ").expect("a case names its target")).unwrap();
    let policy = word("policy ").unwrap_or("mlir-air");
    let policy = Policy::ALL.iter().find(|(name, _)| *name == policy).expect("a known policy").1;
    let found = run(pass, &target, policy, input);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, format!("{head}=== in\n{input}=== out\n{found}")).unwrap();
    } else {
        assert_eq!(found, want, "{}: UPDATE=1 rewrites the output", file.display());
    }
}

#[test]
fn every_pass_matches_its_golden_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forms");
    let mut count = 0;
    for pass in ["partition", "tile", "place", "route", "schedule", "check"] {
        for entry in std::fs::read_dir(root.join(pass)).unwrap() {
            let file = entry.unwrap().path();
            assert_eq!(file.extension().and_then(|end| end.to_str()), Some("npu"), "{}", file.display());
            compare(pass, &file);
            count += 1;
        }
    }
    assert!(count >= 12, "{count} golden files");
}
