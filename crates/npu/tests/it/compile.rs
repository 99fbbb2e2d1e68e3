//! Llama graphs compile to schedules without faults, on every target.

use girih_graph::backend::Refusal;
use girih_graph::{Backend as _, Graph, Key, faults};
use girih_npu::driver::{Compiler, time_programs};
use girih_npu::form::groups::{AttendSizes, Groups, Kernel, StepAction};
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{
    ArrayMapping, AttentionPlacement, Grouping, NoDump, Policy, array_split, compile, groups,
};
use girih_npu::{Npu, NpuOptions, Target};

use crate::llama::{LLAMA_1B, LlamaSizes, SMALL, key, llama};

fn cut(sizes: &LlamaSizes, rows: u32, target: &Target, policy: Policy) -> Groups {
    let graph = llama(sizes, key(rows));
    assert_eq!(faults(&graph), vec![]);
    groups(&graph, target, &policy.into(), &mut NoDump)
        .unwrap_or_else(|error| panic!("{}: {error}", target.name))
}

#[test]
fn every_program_compiles_on_every_target() {
    for name in Target::names() {
        let target = Target::named(&name).unwrap();
        for (_, policy) in Policy::ALL {
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

/// The counts of the Llama-3.2-1B mapping by AMD's mlir-air: six programs. A layer
/// runs three in prefill and two in decode.
#[test]
fn layers_share_programs_that_are_bound_sixteen_times() {
    let target = Target::named("xdna2-strix").unwrap();
    let launches = |groups: &Groups| {
        let each = groups.programs.iter().map(|program| (program.name.clone(), program.launches.len()));
        each.collect::<Vec<_>>()
    };
    let named =
        |list: &[(&str, usize)]| list.iter().map(|(name, n)| (name.to_string(), *n)).collect::<Vec<_>>();
    let prefill = cut(&LLAMA_1B, 2048, &target, Policy::MLIR_AIR);
    let six = [("rms_gemms_rope", 6), ("flash_attn", 1), ("o_ffn", 8), ("lm_head_gemv", 8)];
    assert_eq!(launches(&prefill), named(&six));
    assert_eq!(prefill.submissions(1, 1), 49);
    let decode = cut(&LLAMA_1B, 1, &target, Policy::MLIR_AIR);
    let six = [("rms_gemv_rope", 6), ("o_gemv_ffn", 8), ("lm_head_gemv", 8)];
    assert_eq!(launches(&decode), named(&six));
    assert_eq!(decode.submissions(1, 1), 33);
    assert_eq!(prefill.programs[3], decode.programs[2], "prefill and decode share the head");
    let runs = |groups: &Groups, number: u32| {
        groups
            .steps
            .iter()
            .filter(|step| matches!(step, StepAction::Array { program, .. } if *program == number))
            .count()
    };
    assert_eq!((runs(&prefill, 0), runs(&prefill, 1), runs(&prefill, 2)), (16, 16, 16));
    assert_eq!((runs(&decode, 0), runs(&decode, 1)), (16, 16));
    let unstitched =
        cut(&LLAMA_1B, 2048, &target, Policy { grouping: Grouping::Unstitched, ..Policy::MLIR_AIR });
    assert_eq!(unstitched.submissions(1, 1), 16 * 15 + 1);
    for program in prefill.programs.iter().chain(&decode.programs) {
        let schedule = compile(program, &target, &mut NoDump).unwrap();
        let cores: Vec<usize> = schedule.launches.iter().map(|launch| launch.cores.len()).collect();
        let want: &[usize] = match program.name.as_str() {
            "rms_gemms_rope" => &[8, 32, 32, 32, 8, 8],
            "flash_attn" => &[32],
            "o_ffn" => &[32, 8, 8, 32, 32, 8, 32, 8],
            "rms_gemv_rope" => &[1, 8, 8, 8, 1, 1],
            "o_gemv_ffn" => &[8, 8, 1, 8, 8, 8, 8, 8],
            _ => &[8; 8],
        };
        assert_eq!(cores, want, "cores of {}", program.name);
    }
}

/// Widths, heads, feed-forward widths and vocabularies of public models: FFN widths with large prime
/// factors, groups of 1 to 8 query heads, heads of 64, 128 and 256.
#[test]
fn public_shapes_compile_with_attention_on_the_array() {
    let target = Target::named("xdna2-strix").unwrap();
    let of = |[width, heads, kv_heads, head]: [usize; 4], hidden, vocabulary| LlamaSizes {
        layers: 1,
        width,
        heads,
        kv_heads,
        head,
        hidden,
        vocabulary,
        window: None,
    };
    for sizes in [
        of([3072, 24, 8, 128], 8192, 128_256),
        of([4096, 32, 8, 128], 14_336, 128_256),
        of([1024, 16, 8, 128], 3072, 151_936),
        of([2560, 32, 8, 128], 9728, 151_936),
        of([896, 14, 2, 64], 4864, 151_936),
        of([1536, 12, 2, 128], 8960, 151_936),
        of([2048, 16, 2, 128], 11_008, 151_936),
        of([3584, 28, 4, 128], 18_944, 152_064),
        of([2048, 32, 32, 64], 8192, 49_152),
        of([1152, 4, 1, 256], 6912, 262_144),
        LlamaSizes { window: Some(512), ..of([2560, 8, 4, 256], 10_240, 262_208) },
        // The FFN width of Llama-3.1-70B: a row and its vector fit a core in 32 parts.
        of([8192, 64, 8, 128], 28_672, 128_256),
        // A chunk of keys for 16 heads of 256 needs all dimensions of a descriptor.
        of([4096, 16, 1, 256], 14_336, 100_352),
        // Widths, heads and groups of SmolLM2-135M and -360M.
        of([576, 9, 3, 64], 1536, 49_152),
        of([960, 15, 5, 64], 2560, 49_152),
        of([1280, 24, 8, 20], 3584, 50_257),
        of([768, 12, 2, 24], 2048, 32_001),
        // Heads of no power of two, groups of prime numbers, and an FFN width that nothing divides.
        of([4544, 71, 1, 64], 18_176, 65_024),
        of([1232, 11, 1, 112], 3333, 50_257),
        of([3200, 32, 8, 100], 8640, 32_000),
        of([2560, 8, 2, 320], 6912, 32_001),
        of([2048, 4, 1, 512], 6912, 32_001),
    ] {
        for (rows, grouping) in [(1, Grouping::Stitched), (1, Grouping::Resident), (2048, Grouping::Stitched)]
        {
            let policy = Policy { grouping, attention: AttentionPlacement::Array };
            let groups = cut(&sizes, rows, &target, policy);
            for program in &groups.programs {
                assert!(
                    program.launches.len() <= 20,
                    "{}: {} launches",
                    program.name,
                    program.launches.len()
                );
                let schedule = compile(program, &target, &mut NoDump);
                schedule.unwrap_or_else(|error| panic!("width {} rows {rows}: {error}", sizes.width));
            }
        }
    }
}

/// The sizes of Gemma 3 with 1 and with 4 billion parameters.
#[test]
fn the_published_gemma_mapping_compiles_with_a_pair_of_cores_for_each_kv_head() {
    let target = Target::named("xdna2-kraken").unwrap();
    let mapping = ArrayMapping::named("seed-001").unwrap();
    let one = LlamaSizes {
        layers: 1,
        width: 1152,
        heads: 4,
        kv_heads: 1,
        head: 256,
        hidden: 6912,
        vocabulary: 262_144,
        window: Some(512),
    };
    let four = LlamaSizes { width: 2560, heads: 8, kv_heads: 4, hidden: 10_240, vocabulary: 262_208, ..one };
    for (sizes, rows) in [one, four].into_iter().flat_map(|sizes| [1, 1024].map(|rows| (sizes, rows))) {
        let groups = groups(&llama(&sizes, key(rows)), &target, &mapping, &mut NoDump).unwrap();
        let mut attentions = 0;
        for program in &groups.programs {
            let schedule = compile(program, &target, &mut NoDump);
            let schedule = schedule.unwrap_or_else(|error| panic!("rows {rows}: {error}"));
            for task in &program.launches {
                let Kernel::Attend(AttendSizes { rows, .. }) = task.kernel else { continue };
                let launch = schedule.launches.iter().find(|launch| launch.name == task.name).unwrap();
                assert!(rows > 1 || launch.cores.len() == 2 * sizes.kv_heads, "{}", launch.cores.len());
                attentions += 1;
            }
        }
        assert!(attentions > 0, "rows {rows}: attention is on the array");
    }
}

/// Strides and sizes of larger tensors exceed 32 bits.
#[test]
fn a_tensor_that_is_too_large_is_refused_by_name() {
    let target = Target::named("toy").unwrap();
    for (sizes, rows, name) in [
        (LlamaSizes { hidden: 1 << 25, ..SMALL }, 64, "layers.0.gate.weight"),
        (LlamaSizes { hidden: 1 << 20, ..SMALL }, 4096, "layers.0.gate"),
    ] {
        let graph = llama(&sizes, Key { context: 4096, ..key(rows) });
        let error = groups(&graph, &target, &Policy::MLIR_AIR.into(), &mut NoDump).unwrap_err().to_string();
        assert!(error.starts_with(&format!("'{name}' has ")), "{error}");
        assert!(error.ends_with("values with padding; the maximum is 2147483647"), "{error}");
    }
    let largest = LlamaSizes { hidden: 1 << 19, ..SMALL };
    assert!(cut(&largest, 2048, &target, Policy::MLIR_AIR).programs.len() > 1);
}

/// Each kind of node on the host has a reason.
#[test]
fn a_host_fallback_has_a_reason() {
    let why = |key, policy| {
        let all = array_split(&llama(&SMALL, key), policy).host_work();
        let reason = |name: &str| {
            all.iter().find(|fallback| fallback.name == name).map(|fallback| fallback.reason.clone())
        };
        assert_eq!(reason("embed").as_deref(), Some("the host looks up the rows of tokens"));
        let heads = all.iter().find(|fallback| fallback.name == "mixed_heads");
        assert!(heads.is_none_or(|heads| heads.op == "attend" && heads.count == SMALL.layers), "{all:?}");
        reason("mixed_heads")
    };
    let host = Policy { attention: AttentionPlacement::Host, ..Policy::MLIR_AIR };
    assert_eq!(why(key(64), Policy::MLIR_AIR), None, "attention runs on the array");
    assert_eq!(why(key(64), host).unwrap(), "the policy runs attention on the host");
    assert!(why(key(1), Policy::MLIR_AIR).unwrap().contains("single rows"));
    let two = Key { sequences: 2, ..key(64) };
    assert!(why(two, Policy::MLIR_AIR).unwrap().contains("single rows"), "a sequence may have one");
    assert_eq!(why(two, Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR }), None);
}

/// Ops that the interpreter defines and the array has no program for run on the host, with a reason; a
/// strict backend refuses them by name.
#[test]
fn ops_without_a_program_run_on_the_host_or_are_refused() {
    let npu = |is_strict| Npu::new("toy", NpuOptions { is_strict, ..NpuOptions::default() }).unwrap();
    let check = |lines: &str, output: &str, name: &str, what: &str| {
        let text = format!(
            "graph rows 24 sequences 1 context 64 output_rows 1 -> {output}\n\
             input x: [rows 24, 4, 8] f32\nflat: [rows 24, 32] = reshape x\n{lines}"
        );
        let graph: Graph = text.parse().unwrap();
        assert_eq!(faults(&graph), []);
        let reason = format!("the array has no program for {what}");
        let refusals = [Refusal { node: name.to_owned(), reason: reason.clone() }];
        assert_eq!(npu(true).refuses(&graph), refusals);
        let lenient = npu(false);
        assert_eq!(lenient.refuses(&graph), []);
        let reasons: Vec<String> = lenient.host_work(&graph).into_iter().map(|work| work.reason).collect();
        assert!(reasons.contains(&reason), "{reasons:?}");
        let groups = groups(&graph, lenient.target(), &Policy::MLIR_AIR.into(), &mut NoDump).unwrap();
        let value = graph.find(name).unwrap();
        let is_of_node = |step: &StepAction| matches!(step, StepAction::Host { node } if graph.nodes[*node as usize].output == value);
        assert!(groups.steps.iter().any(is_of_node), "{groups}");
    };
    let last = "output z: [output_rows 1, 32] = gather y\n";
    for (what, line) in [
        ("'layer_norm'", "weight w: [32] f32\ny: [rows 24, 32] = layer_norm(epsilon=0.0) flat, w\n"),
        ("'activate' of silu", "y: [rows 24, 32] = activate(act=silu) flat\n"),
        ("'splice'", "input g: [rows 24, 32] f32\ny: [rows 24, 32] = splice flat, g\n"),
        ("'scale'", "y: [rows 24, 32] = scale(factor=2.0) flat\n"),
        ("'softcap'", "y: [rows 24, 32] = softcap(cap=2.0) flat\n"),
        ("a gate of gelu", "y: [rows 24, 32] = gate(act=gelu) flat, flat\n"),
        ("a gate of identity", "y: [rows 24, 32] = gate(act=identity) flat, flat\n"),
    ] {
        check(&format!("{line}{last}"), "hidden", "y", what);
    }
    let conv = "weight w: [3, 32] f32\nstate s: [2, 32] f32 in carried\n\
                y: [rows 24, 32] = short_conv flat, w, s\n";
    check(&format!("group carried carried\n{conv}{last}"), "hidden", "y", "'short_conv'");
    let attend = "seen: [rows 24, 4, 8] = attend(scale=1.0 span=mutual) x, x, x\n\
                  thick: [rows 24, 32] = reshape seen\ny: [rows 24, 32] = add thick, flat\n";
    check(&format!("{attend}{last}"), "hidden", "seen", "attention within spans of rows");
    check("output z: [sequences 1, 32] = pool(how=mean) flat\n", "pooled", "z", "'pool'");
}

#[test]
fn a_token_stays_configured_where_that_takes_less_time() {
    let target = Target::named("xdna2-strix").unwrap();
    let compiler = |policy| Compiler::new(target.clone(), policy, None);
    let cycles = |policy, graph: &Graph| {
        let compiled = compiler(policy).compile(graph, &mut NoDump).unwrap();
        let programs = time_programs(&compiled, &target).unwrap();
        programs.iter().map(|program| program.runs * program.report.cycles).sum::<u64>()
    };
    let single = llama(&LLAMA_1B, key(1));
    let chosen = compiler(Policy::BY_COST).policy_for(&single);
    assert_eq!(chosen.grouping, Grouping::Resident);
    let [joined, resident] = [Grouping::Joined, Grouping::Resident]
        .map(|grouping| cycles(Policy { grouping, ..Policy::BY_COST }, &single));
    assert!(resident < joined, "{resident} cycles, {joined} if each launch is configured");
    assert_eq!(cycles(Policy::BY_COST, &single), resident);
    let several = compiler(Policy::BY_COST).policy_for(&llama(&LLAMA_1B, key(64)));
    assert_eq!(several.grouping, Grouping::Joined);
}

#[test]
fn attention_on_the_host_has_its_reason() {
    let reason = |(head, target): (usize, &str), policy| {
        let graph = llama(&LlamaSizes { heads: 4, kv_heads: 2, head, ..SMALL }, key(1));
        let compiler = Compiler::new(Target::named(target).unwrap(), policy, None);
        compiler.compile(&graph, &mut NoDump).unwrap();
        let work = array_split(&graph, compiler.policy_for(&graph)).host_work();
        work.into_iter().find(|work| work.op == "attend").map(|work| work.reason)
    };
    let host = Policy { attention: AttentionPlacement::Host, ..Policy::BY_COST };
    for (shape, policy, want) in [
        ((16, "toy"), host, Some("the policy runs attention on the host")),
        ((8, "xdna2-strix"), Policy::BY_COST, Some("attention costs less on the host")),
        ((512, "toy"), Policy::BY_COST, Some("attention does not fit the array")),
        ((512, "xdna2-strix"), Policy::BY_COST, None),
    ] {
        assert_eq!(reason(shape, policy).as_deref(), want, "{shape:?}");
    }
}
