//! Graphs of Llama's form become schedules without faults, on every target.

mod llama;

use girih_npu::Target;
use girih_npu::form::groups::{Groups, Step};
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{NoDump, Policy, compile, groups};
use llama::{LLAMA_1B, SMALL, Sizes, key, llama};

fn cut(sizes: &Sizes, rows: u32, target: &Target, policy: Policy) -> Groups {
    let graph = llama(sizes, key(rows));
    assert_eq!(girih_graph::faults(&graph), vec![]);
    groups(&graph, target, policy, &mut NoDump).unwrap()
}

#[test]
fn every_program_compiles_on_every_target() {
    for name in Target::names() {
        let target = Target::named(&name).unwrap();
        for policy in Policy::ALL {
            for rows in [1, 64] {
                let groups = cut(&SMALL, rows, &target, *policy);
                assert_eq!(groups.to_string().parse::<Groups>().unwrap(), groups);
                for program in &groups.programs {
                    let schedule = compile(program, &target, &mut NoDump);
                    let schedule = schedule.unwrap_or_else(|error| panic!("{name} {rows}: {error}"));
                    assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
                }
            }
        }
    }
}

/// The counts of the Llama-3.2-1B mapping by AMD's mlir-air, with attention on
/// the host: two programs a layer and the head.
#[test]
fn layers_are_two_programs_compiled_once_and_bound_sixteen_times() {
    let target = Target::named("xdna2-strix").unwrap();
    let names =
        |groups: &Groups| groups.programs.iter().map(|program| program.name.clone()).collect::<Vec<_>>();
    let prefill = cut(&LLAMA_1B, 2048, &target, Policy::Stitched);
    assert_eq!(names(&prefill)[..2], ["rms_gemms_rope", "o_ffn"]);
    assert_eq!(prefill.programs[0].launches.len(), 6);
    assert_eq!(prefill.programs[1].launches.len(), 8);
    assert_eq!(prefill.submissions(1), 33);
    let decode = cut(&LLAMA_1B, 1, &target, Policy::Stitched);
    assert_eq!(names(&decode)[..2], ["rms_gemv_rope", "o_gemv_ffn"]);
    assert_eq!(decode.submissions(1), 33);
    let runs = |groups: &Groups, wanted: u32| {
        groups
            .steps
            .iter()
            .filter(|step| matches!(step, Step::Array { program, .. } if *program == wanted))
            .count()
    };
    assert_eq!((runs(&decode, 0), runs(&decode, 1)), (16, 16));
    for program in prefill.programs.iter().chain(&decode.programs) {
        compile(program, &target, &mut NoDump).unwrap();
    }
}
