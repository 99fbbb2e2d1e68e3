//! Golden files of the passes: `tests/forms/<pass>/*.npu` has a target, the input
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
use girih_npu::form::schedule::{Dim, Schedule, Tile};
use girih_npu::form::tiled::{L2Staging, Stream, Sweep, Tiled};
use girih_npu::pass::{Dump, NoDump, Policy, compile, groups, place, route, tile};

/// Returns the output of a pass, or its error.
fn run(pass: &str, target: &Target, policy: Policy, text: &str) -> String {
    let result = match pass {
        "partition" => partition(target, policy, text),
        "tile" => tiled(target, text).map(|tiled| shown(&tiled, target)),
        "compile" => compiled(target, text),
        "check" => check(target, text),
        _ => panic!("unknown pass {pass}"),
    };
    result.unwrap_or_else(|error| format!("refused: {error}\n"))
}

/// Returns a form as text, and its faults.
fn shown(form: &impl PassForm, target: &Target) -> String {
    let faults = form.faults(target);
    form.to_string() + &faults.iter().map(|fault| format!("fault: {fault}\n")).collect::<String>()
}

fn text_of(error: impl Display) -> String {
    error.to_string()
}

fn partition(target: &Target, policy: Policy, text: &str) -> Result<String, String> {
    let graph: Graph = text.parse().map_err(text_of)?;
    let groups = groups(&graph, target, &policy.into(), &mut NoDump).map_err(text_of)?;
    assert_eq!(groups.to_string().parse::<Groups>().unwrap(), groups, "parsed again");
    Ok(shown(&groups, target))
}

/// The first program of groups, with the best tiling of each launch.
fn tiled(target: &Target, text: &str) -> Result<Tiled, String> {
    let groups: Groups = text.parse().map_err(text_of)?;
    let program = &groups.programs[0];
    let best =
        |task| tile::candidates(task, target).into_iter().next().ok_or("nothing divides it".to_owned());
    let launches = program.launches.iter().map(best).collect::<Result<_, _>>()?;
    Ok(Tiled { name: program.name.clone(), arguments: program.arguments.clone(), launches })
}

/// Keeps the routed form, which has all that the forms before it have.
struct KeepsRouted(String);

impl Dump for KeepsRouted {
    fn form(&mut self, name: &str, _: &str, text: &dyn Display) {
        if name == "routed" {
            self.0 = text.to_string();
        }
    }
}

/// The routed form and the schedule of the first program of groups.
fn compiled(target: &Target, text: &str) -> Result<String, String> {
    let groups: Groups = text.parse().map_err(text_of)?;
    let mut routed = KeepsRouted(String::new());
    let schedule = compile(&groups.programs[0], target, &mut routed).map_err(text_of)?;
    assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule, "parsed again");
    Ok(routed.0 + &shown(&schedule, target))
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
    for pass in ["partition", "tile", "compile", "check"] {
        for entry in std::fs::read_dir(root.join(pass)).unwrap() {
            let file = entry.unwrap().path();
            assert_eq!(file.extension().and_then(|end| end.to_str()), Some("npu"), "{}", file.display());
            compare(pass, &file);
            count += 1;
        }
    }
    assert!(count >= 12, "{count} golden files");
}

/// The sum of two values of 2048 elements, on two cores.
fn add() -> Tiled {
    let text = "groups unstitched
        program add
        argument 0 in.0 input 4096
        argument 1 in.1 input 4096
        argument 2 out output 4096
        launch out add n=2048 : 0 1 2";
    tiled(&Target::named("toy").unwrap(), text).unwrap()
}

fn placed(tiled: Tiled, target: &Target) -> Result<Placed, String> {
    let Tiled { name, arguments, launches } = tiled;
    let launches = launches.into_iter().map(|launch| place::place("add: out", launch, target));
    Ok(Placed { launches: launches.collect::<Result<_, _>>().map_err(text_of)?, name, arguments })
}

fn routed(target: &Target) -> Routed {
    route::route(placed(add(), target).unwrap(), target).unwrap()
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let target = Target::named("toy").unwrap();
    let mut large = add();
    for stream in &mut large.launches[0].streams {
        stream.dims = vec![Dim { size: 1, stride: 4096 }, Dim { size: 4096, stride: 1 }];
    }
    let sentence = "place: add: out needs 98304 bytes of memory in tile 0,2; the target has 15872";
    assert_eq!(placed(large, &target).unwrap_err(), sentence);
    let mut three = add();
    three.launches[0].streams.iter_mut().for_each(|stream| stream.depth = 1);
    let third = Stream { name: "c".to_owned(), ..three.launches[0].streams[1].clone() };
    three.launches[0].streams.insert(2, third);
    let error = route::route(placed(three, &target).unwrap(), &target).unwrap_err();
    let sentence = "route: add: out needs 3 MM2S channels in the shim tile 0,0; the target has 2";
    assert_eq!(error.to_string(), sentence);
}

/// The faults of a form after a change.
fn faults_of<F: PassForm>(mut form: F, change: impl FnOnce(&mut F)) -> Vec<String> {
    let target = Target::named("toy").unwrap();
    assert_eq!(form.faults(&target), []);
    change(&mut form);
    form.faults(&target).iter().map(ToString::to_string).collect()
}

#[test]
fn a_tiled_program_that_breaks_a_rule_has_a_fault() {
    let faults = |change: &dyn Fn(&mut Tiled)| faults_of(add(), change);
    let two = [Dim { size: 2, stride: 512 }, Dim { size: 512, stride: 1 }];
    let staging = || L2Staging::unsliced(1, vec![Dim { size: 512, stride: 1 }]);
    let sentence = |change: &dyn Fn(&mut Tiled)| {
        let faults = faults(change);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0].clone()
    };
    assert_eq!(
        faults(&|tiled| tiled.launches[0].herd.columns = 3)[0],
        "out: herd: is 3x1; the array has 2x2 cores"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].name = "c".to_owned()),
        "out: c: is not used by any call"
    );
    assert_eq!(
        faults(&|tiled| tiled.launches[0].streams[0].dims = two.to_vec())[0],
        "out: a: has the loops Some([2]); the calls that use it are in [1]"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].argument = 3),
        "out: a: is of argument 3, which the program does not have"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].base_bytes = 4),
        "out: a: ends at byte 4100 of argument in.0, which has 4096 bytes"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].ahead_of = Some("y".to_owned())),
        "out: a: is sent ahead of y, which cannot carry it"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].depth = 8),
        "out: core: needs 24576 bytes of memory; it has 15872"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].l2 = Some(L2Staging { slices: 0, ..staging() })),
        "out: a: has 0 slices in a transfer"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[2].l2 = Some(L2Staging { passes: 0, ..staging() })),
        "out: y: is sent from L2 0 times"
    );
    assert_eq!(
        sentence(
            &|tiled| tiled.launches[0].streams[0].l2 = Some(L2Staging { into: two.to_vec(), ..staging() })
        ),
        "out: a: has transfers of 512 words; 1024 are written to L2"
    );
    assert_eq!(
        sentence(&|tiled| tiled.launches[0].streams[0].l2 = Some(L2Staging::unsliced(1, two.to_vec()))),
        "out: a: has chunks of 512 words; 1024 are read from L2"
    );
}

#[test]
fn sweeps_that_break_a_rule_are_faults() {
    let text = "groups unstitched
        program flash_attn
        argument 0 in.0 input 4096
        argument 1 in.1 input 32768
        argument 2 in.2 input 64
        argument 3 flat output 4096
        launch flat attend rows=32 heads=4 kv_heads=2 size=16 keys=256 latest=256 causal=1 window=0 scale=0.25f \
         : 0 1 2 3";
    let attend = || tiled(&Target::named("toy").unwrap(), text).unwrap();
    let faults = |sweep: Sweep| faults_of(attend(), |tiled| tiled.launches[0].sweeps = vec![sweep]);
    let whole = Sweep { times: 1, first: 0, step: 0, count: 4 };
    assert_eq!(faults(whole), [""; 0]);
    assert_eq!(
        faults(Sweep { count: 3, ..whole }),
        ["flat: kv: has 6 chunks in its sweeps; the calls that use it need 8"]
    );
    assert_eq!(
        faults(Sweep { first: 1, ..whole }),
        ["flat: kv: has the sweep times 1 first 1 step 0 count 4, in Some(4) steps"]
    );
}

#[test]
fn a_placed_program_that_breaks_a_rule_has_a_fault() {
    let target = Target::named("toy").unwrap();
    let faults = |change: &dyn Fn(&mut Placed)| faults_of(placed(add(), &target).unwrap(), change);
    let at = |buffer: usize, tile: Tile, address: u32| {
        faults(&|placed: &mut Placed| {
            let buffer = &mut placed.launches[0].l1[buffer];
            (buffer.tile, buffer.address) = (tile, address);
        })
    };
    let core = Tile::new(0, 2);
    assert_eq!(
        at(0, core, 0x100),
        ["out: a in tile 0,2: is at 256..2304; whole words within 512..16384 are allowed"]
    );
    assert_eq!(
        at(0, core, 0x3a00),
        ["out: a in tile 0,2: is at 14848..16896; whole words within 512..16384 are allowed"]
    );
    assert_eq!(
        at(1, core, 0x600),
        ["out: b in tile 0,2: begins at 1536, before the end of another buffer at 2560"]
    );
    assert_eq!(at(0, Tile::new(5, 2), 0x200), ["out: a in tile 5,2: is outside the array"]);
    assert_eq!(at(0, Tile::new(0, 0), 0x200), ["out: a in tile 0,0: is in a shim tile, which has no memory"]);
}

#[test]
fn a_routed_program_that_breaks_a_rule_has_a_fault() {
    let target = Target::named("toy").unwrap();
    let faults = |change: &dyn Fn(&mut Routed)| faults_of(routed(&target), change);
    assert_eq!(
        faults(&|routed| routed.launches[0].circuits[0].shim.number = 2),
        ["out: 0,0:mm2s:2: the tile has 2 such channels"]
    );
    assert_eq!(
        faults(&|routed| routed.launches[0].circuits[0].shim.number = 1),
        ["out: 0,0:mm2s:1: two circuits use the channel"]
    );
    assert_eq!(
        faults(&|routed| drop(routed.launches[0].circuits.pop())),
        ["out: y: has 2 circuits; 1 are routed"]
    );
    assert_eq!(
        faults(&|routed| routed.launches[0].placed.l1[0].address = 1),
        ["out: a in tile 0,2: is at 1..2049; whole words within 512..16384 are allowed"]
    );
}
