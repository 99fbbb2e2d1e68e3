//! Mappings: they can be printed and parsed, they are part of the key of a
//! blob, and every tiling that a search may choose computes the same values.

use girih_npu::Target;
use girih_npu::blob::BlobCache;
use girih_npu::form::groups::{ArrayProgram, GateAct, Kernel, KernelLaunch};
use girih_npu::form::schedule::{Argument, ArgumentRole};
use girih_npu::form::tiling::Tiling;
use girih_npu::form::weights::WeightLayout;
use girih_npu::memory::{Binding, Objects, SimMemory};
use girih_npu::pass::{ArrayMapping, NoDump, TileRule, compile, groups, tile};
use girih_npu::sim::{EventOrder, SimUnwatched, Simulator};
use girih_tensor::DType;

use crate::llama::{LLAMA_1B, SMALL, key, llama};

/// A program of one launch of this kernel.
fn program(kernel: Kernel, tiling: Option<Tiling>) -> ArrayProgram {
    let roles = [ArgumentRole::Input, ArgumentRole::Input, ArgumentRole::Output];
    let arguments = kernel.operand_bytes().into_iter().zip(roles).enumerate();
    let arguments = arguments.map(|(i, (bytes, role))| Argument { name: format!("a{i}"), role, bytes });
    let launches = vec![KernelLaunch {
        name: "one".to_owned(),
        kernel,
        arguments: vec![0, 1, 2],
        tiling,
        resident: false,
    }];
    ArrayProgram { name: "one".to_owned(), arguments: arguments.collect(), launches }
}

/// The result of a launch with this tiling on small numbers; none if the tiling
/// does not fit. An unordered access fails the test.
fn result(kernel: Kernel, tiling: Option<Tiling>, target: &Target) -> Option<Vec<u8>> {
    let schedule = compile(&program(kernel, tiling), target, &mut NoDump);
    let schedule = match schedule {
        Ok(schedule) => schedule,
        Err(error) if error.to_string().contains("bug in girih") => panic!("{tiling:?}: {error}"),
        Err(_) => return None,
    };
    let mut simulator = Simulator::new(target).unwrap();
    let mut objects = Objects::new();
    let mut bindings = Vec::new();
    for argument in &schedule.arguments {
        let object = objects.add(argument.bytes).unwrap();
        let given = argument.role == ArgumentRole::Input;
        let values =
            (0..argument.bytes / 2).map(|i| if given { (i * 37 % 64) as f32 / 32.0 - 1.0 } else { 0.0 });
        DType::BF16.pack(&values.collect::<Vec<f32>>(), objects.bytes_mut(object));
        bindings.push(Binding { object, offset: 0 });
    }
    let mut memory = SimMemory::Values(&mut objects);
    let run = simulator.run(&schedule, &bindings, &mut memory, &mut SimUnwatched, EventOrder::Seeded(7));
    run.unwrap_or_else(|fault| panic!("{tiling:?}: {fault}"));
    Some(objects.bytes(bindings[2].object).to_vec())
}

#[test]
fn every_tiling_gives_the_same_result() {
    let target = Target::named("toy").unwrap();
    let pairing = girih_graph::Pairing::Halves;
    let kernels = [
        (Kernel::Gemm { m: 64, n: 64, k: 64, weights: WeightLayout::Rows }, 30),
        (Kernel::Gemv { first: 0, n: 64, k: 64, weights: WeightLayout::Rows }, 4),
        (Kernel::Gemm { m: 64, n: 64, k: 256, weights: WeightLayout::Groups }, 30),
        (Kernel::Gemm { m: 64, n: 128, k: 512, weights: WeightLayout::Q4nx }, 1),
        (Kernel::Gemv { first: 0, n: 128, k: 512, weights: WeightLayout::Q4nx }, 6),
        (Kernel::RmsNorm { rows: 16, n: 32, width: 24, epsilon: 1e-5 }, 8),
        (Kernel::Rope { rows: 16, heads: 2, size: 16, pairing }, 8),
        (Kernel::Rope { rows: 1, heads: 8, size: 16, pairing }, 4),
        (Kernel::Add { n: 512 }, 8),
        (Kernel::Gate { n: 512, act: GateAct::Silu }, 8),
    ];
    for (kernel, min) in kernels {
        let want = result(kernel, None, &target).expect("the default fits");
        let space = tile::space(&kernel, &target);
        let mut fit = 0;
        for tiling in &space {
            if let Some(found) = result(kernel, Some(*tiling), &target) {
                assert!(found == want, "{kernel}: {tiling}");
                fit += 1;
            }
        }
        println!("{kernel}: {fit} of {} tilings fit", space.len());
        assert!(fit >= min, "{kernel}: {fit} of {} tilings fit", space.len());
    }
}

#[test]
fn a_printed_mapping_parses_to_itself() {
    for name in ArrayMapping::names() {
        let mapping = ArrayMapping::named(name).unwrap();
        assert_eq!(mapping.to_string().parse::<ArrayMapping>().unwrap(), mapping, "{name}");
    }
    let together = "mapping x\ngrouping stitched\nattention prefill\n\
                    tile gemm : m=64 n=64 k=32 slices=8 keep=0 columns=2\n\
                    tile gemm m=2048 n=64 k=64 : m=64 n=64 k=32 slices=8 keep=0 rows=4\n";
    assert_eq!(together.parse::<ArrayMapping>().unwrap().to_string(), together);
    let error = ArrayMapping::named("fastest").unwrap_err().to_string();
    assert!(error.contains("unknown mapping 'fastest'") && error.contains("mlir-air-tiles"), "{error}");
    let head = "mapping x\ngrouping stitched\nattention prefill\n";
    for (line, part) in [
        ("tile gemm : m=32 n=0 k=32 slices=1 keep=0", "line 4 has n=0"),
        ("tile gemm : m=32 n=32 k=32 slices=1 keep=2", "line 4 has keep=2"),
        ("tile gemm : m=32 n=32 k=32 slices=1 keep=0 rows=1", "line 4 has rows=1: at least 2 tiles"),
        ("tile gemm : m=32 n=32 k=32 slices=1 keep=0 columns=two", "line 4 has 'two'"),
        ("tile gemm : m=32 n=32 k=32 slices=1 keep=0 spread=2", "line 4 has 'spread=2' where rows="),
        ("tile conv : herd=1x1 step=1", "has 'conv', which is not a kernel"),
        ("tile add n=64", "line 4 ends"),
        ("tile add : herd=0x1 chunk=16", "where herd is needed"),
    ] {
        let error = format!("{head}{line}\n").parse::<ArrayMapping>().unwrap_err().to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn the_tiling_of_a_mapping_is_part_of_the_groups_and_of_the_blob_key() {
    let target = Target::named("toy").unwrap();
    let mut mapping = ArrayMapping::named("mlir-air").unwrap();
    let cut =
        |mapping: &ArrayMapping| groups(&llama(&SMALL, key(64)), &target, mapping, &mut NoDump).unwrap();
    let before = cut(&mapping);
    let task = before.programs[0].launches[0].clone();
    let tiling = *tile::space(&task.kernel, &target).last().unwrap();
    mapping.tiles.push(TileRule::of(&task.kernel, tiling));
    let after = cut(&mapping);
    assert_eq!(after.programs[0].launches[0].tiling, Some(tiling));
    assert!(after.to_string().contains(&format!("tile {tiling}")));
    assert_eq!(after.to_string().parse::<girih_npu::form::groups::Groups>().unwrap(), after);
    let keys = [before, after].map(|groups| BlobCache::key(&groups.programs[0], &target));
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn a_tile_that_does_not_divide_is_refused_by_name() {
    let kernel = Kernel::Add { n: 48 };
    let tiling = "mapping x\ngrouping stitched\nattention prefill\ntile add : herd=2x1 chunk=32\n";
    let tiling = tiling.parse::<ArrayMapping>().unwrap().tiling(&kernel);
    let error = compile(&program(kernel, tiling), &Target::named("toy").unwrap(), &mut NoDump).unwrap_err();
    assert!(error.to_string().contains("herd=2x1 chunk=32, that divide it"), "{error}");
}

#[test]
fn the_published_mapping_has_the_published_program_counts() {
    let target = Target::named("xdna2-strix").unwrap();
    let published = ArrayMapping::named("mlir-air-tiles").unwrap();
    for (rows, submissions) in [(2048, 49), (1, 33)] {
        let groups = groups(&llama(&LLAMA_1B, key(rows)), &target, &published, &mut NoDump).unwrap();
        assert_eq!(groups.submissions(1, 1), submissions);
        let launches = groups.programs.iter().map(|program| program.launches.len()).collect::<Vec<_>>();
        assert_eq!(launches, if rows > 1 { vec![6, 1, 8, 8] } else { vec![6, 8, 8] });
        let tasks = groups.programs.iter().flat_map(|program| &program.launches);
        assert!(tasks.into_iter().all(|task| task.tiling.is_some()), "a launch is left to the tile pass");
        for program in &groups.programs {
            compile(program, &target, &mut NoDump).unwrap();
        }
    }
}
