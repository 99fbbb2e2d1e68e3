//! Transfers whose sizes exceed the registers of a descriptor are factored or divided among tasks,
//! and compute the same.

use girih_npu::Target;
use girih_npu::form::groups::{ArrayProgram, AttendSizes, Kernel, KernelLaunch};
use girih_npu::form::schedule::{Argument, ArgumentRole, ProcessorCommand, Schedule, TileKind};
use girih_npu::form::tiling::{GemmTiling, TileSpread, Tiling};
use girih_npu::form::weights::WeightLayout;
use girih_npu::memory::{Binding, Objects, SimMemory};
use girih_npu::pass::{NoDump, compile, is_broken_rule, tile};
use girih_npu::sim::{EventOrder, SimReport, SimUnwatched, Simulator};
use girih_tensor::DType;

/// A program of one launch.
fn program(kernel: Kernel, tiling: Option<Tiling>) -> ArrayProgram {
    let bytes = kernel.operand_bytes();
    let last = bytes.len() - 1;
    let role = |i| if i == last { ArgumentRole::Output } else { ArgumentRole::Input };
    let argument = |(i, bytes)| Argument { name: format!("a{i}"), role: role(i), bytes };
    let (name, arguments) = (kernel.name().to_owned(), (0..bytes.len() as u32).collect());
    let launches = vec![KernelLaunch { name: name.clone(), kernel, arguments, tiling, resident: false }];
    ArrayProgram { name, arguments: bytes.into_iter().enumerate().map(argument).collect(), launches }
}

/// The bytes of the result on small numbers.
fn result(schedule: &Schedule, target: &Target) -> Vec<u8> {
    ordered(schedule, target, EventOrder::Earliest)
}

/// The bytes of the result on small numbers with this order of events.
fn ordered(schedule: &Schedule, target: &Target, order: EventOrder) -> Vec<u8> {
    let mut objects = Objects::new();
    let mut bindings = Vec::new();
    for argument in &schedule.arguments {
        let object = objects.add(argument.bytes).unwrap();
        let given = argument.role == ArgumentRole::Input;
        // Sums of such numbers are rounded, so their bits show the order of the terms.
        let value = |i: u64| if given { ((i * 37 % 61) as f32 / 32.0 - 0.95).powi(5) } else { 0.0 };
        let values: Vec<f32> = (0..argument.bytes / 2).map(value).collect();
        DType::BF16.pack(&values, objects.bytes_mut(object));
        bindings.push(Binding { object, offset: 0 });
    }
    let mut simulator = Simulator::new(target).unwrap();
    let memory = &mut SimMemory::Values(&mut objects);
    simulator.run(schedule, &bindings, memory, &mut SimUnwatched, order).unwrap();
    objects.bytes(bindings.last().unwrap().object).to_vec()
}

/// Simulates the time of a product with a tiling.
fn timed(kernel: Kernel, tiling: Tiling, target: &Target) -> SimReport {
    let schedule = compile(&program(kernel, Some(tiling)), target, &mut NoDump).unwrap();
    let mut simulator = Simulator::new(target).unwrap();
    let memory = &mut SimMemory::TimeOnly;
    simulator.run(&schedule, &[], memory, &mut SimUnwatched, EventOrder::Earliest).unwrap()
}

/// The dimensions of all descriptors of tiles of a kind, as text.
fn dims(schedule: &Schedule, kind: TileKind) -> Vec<String> {
    let own = schedule.launches[0].descriptors.iter().filter(|one| one.tile.kind() == kind);
    own.map(|one| {
        one.dims.iter().map(|dim| format!("{}x{}", dim.size, dim.stride)).collect::<Vec<_>>().join(",")
    })
    .collect()
}

fn pushes(schedule: &Schedule) -> usize {
    let commands = &schedule.launches[0].commands;
    commands.iter().filter(|command| matches!(command, ProcessorCommand::Push(_))).count()
}

/// A run of 1024 words beside others needs two registers, so the descriptor has one fewer for
/// the loops, which become tasks; rows that are kept in L2 arrive in 1024 pieces of eight terms.
#[test]
fn factored_transfers_compute_the_same() {
    let target = Target::named("xdna2-strix").unwrap();
    let kernel = Kernel::Gemm { m: 64, n: 64, k: 8192, weights: WeightLayout::Rows };
    let compiled = |k, slices, keep| {
        let tiling = Tiling::Gemm(GemmTiling { m: 8, n: 8, k, slices, keep, spread: TileSpread::One });
        compile(&program(kernel, Some(tiling)), &target, &mut NoDump).unwrap()
    };
    let [plain, factored, kept] =
        [(256, 4, false), (256, 8, false), (64, 1, true)].map(|(k, slices, keep)| compiled(k, slices, keep));
    let has = |schedule: &Schedule, kind, part: &str| dims(schedule, kind).iter().any(|dims| dims == part);
    assert!(has(&plain, TileKind::Shim, "8x512,8x4096,512x1"), "{:?}", dims(&plain, TileKind::Shim));
    assert!(has(&factored, TileKind::Shim, "8x4096,2x512,512x1"), "{:?}", dims(&factored, TileKind::Shim));
    assert!(has(&kept, TileKind::Memory, "8x4,2x16384,512x32,4x1"), "{:?}", dims(&kept, TileKind::Memory));
    assert!(pushes(&factored) > pushes(&plain), "{} and {}", pushes(&factored), pushes(&plain));
    let want = result(&plain, &target);
    assert!(want.iter().any(|&byte| byte != 0));
    assert!(result(&factored, &target) == want, "factored");
    assert!(result(&kept, &target) == want, "kept");
}

/// A core may compute several tiles of a product together. The terms of each sum keep their order, in
/// any order of events.
#[test]
fn tiles_computed_together_have_the_same_bits() {
    let target = Target::named("xdna2-strix").unwrap();
    for (weights, side) in [(WeightLayout::Rows, 16), (WeightLayout::Groups, 32)] {
        let kernel = Kernel::Gemm { m: 16 * 8 * 4, n: side * 4 * 4, k: 512, weights };
        let computed = |slices, spread| {
            let tiling = Tiling::Gemm(GemmTiling { m: 16, n: side, k: 32, slices, keep: false, spread });
            let schedule = compile(&program(kernel, Some(tiling)), &target, &mut NoDump).unwrap();
            let first = result(&schedule, &target);
            for seed in 0..2 {
                assert!(
                    ordered(&schedule, &target, EventOrder::Seeded(seed)) == first,
                    "{spread:?}, seed {seed}"
                );
            }
            first
        };
        let want = computed(4, TileSpread::One);
        assert!(want.iter().any(|&byte| byte != 0));
        for slices in [1, 4] {
            for spread in
                [2, 4].into_iter().flat_map(|tiles| [TileSpread::Rows(tiles), TileSpread::Columns(tiles)])
            {
                assert!(computed(slices, spread) == want, "{weights:?}, {slices} slices, {spread:?}");
            }
        }
    }
}

/// Equation 5 of "Mapping Gemma3 onto an Edge Dataflow Architecture", for 8×4 cores:
/// `N/(4·e_x·n)·|x| + M/(8·e_y·m)·|w|`. It holds for every shape, tile and spread that the tiles divide.
#[test]
fn reads_of_tiles_computed_together_equal_the_published_equation() {
    let target = Target::named("xdna2-strix").unwrap();
    // The shape of the product, and the tile.
    let products = [
        ([2048, 1024, 1024], [32, 64, 32]),
        ([768, 512, 4096], [16, 32, 64]),
        ([256, 3072, 2560], [8, 128, 64]),
        ([1536, 768, 1152], [64, 32, 32]),
    ];
    let mut simulated = 0;
    for ([m, n, k], [tile_m, tile_n, tile_k]) in products {
        for weights in [WeightLayout::Rows, WeightLayout::Groups] {
            let kernel = Kernel::Gemm { m, n, k, weights };
            let spreads =
                [2, 3, 4].into_iter().flat_map(|tiles| [TileSpread::Rows(tiles), TileSpread::Columns(tiles)]);
            for spread in spreads.chain([TileSpread::One]) {
                let [e_y, e_x] = spread.tiles();
                let (down, across) = (8 * e_y * tile_m, 4 * e_x * tile_n);
                let sums = tile_m * tile_n * e_y * e_x * 4;
                if !m.is_multiple_of(down) || !n.is_multiple_of(across) || sums > 32 << 10 {
                    continue;
                }
                let slices = if weights == WeightLayout::Groups { 256 / tile_k } else { 4 };
                let (slices, keep) = (if k.is_multiple_of(tile_k * slices) { slices } else { 1 }, false);
                let tiling =
                    Tiling::Gemm(GemmTiling { m: tile_m, n: tile_n, k: tile_k, slices, keep, spread });
                let read = timed(kernel, tiling, &target).totals.dram_read;
                let [x, w] = [m, n].map(|rows| u64::from(rows) * u64::from(k) * 2);
                let equation = u64::from(n / across) * x + u64::from(m / down) * w;
                assert_eq!(read, equation, "{m}×{n}×{k}, {tile_m}×{tile_n}×{tile_k}, {weights:?} {spread:?}");
                simulated += 1;
            }
        }
    }
    assert!(simulated >= 30, "{simulated} tilings are simulated");
}

/// Compiles every tiling that a search may propose. Each keeps the rules of the target, or a pass
/// says what does not fit. Returns the numbers of both.
fn space(kernel: Kernel, target: &Target) -> [usize; 2] {
    let mut counts = [0, 0];
    for tiling in tile::space(&kernel, target) {
        match compile(&program(kernel, Some(tiling)), target, &mut NoDump) {
            Ok(_) => counts[0] += 1,
            Err(error) => {
                assert!(!is_broken_rule(&error), "{kernel} {tiling} on {}: {error}", target.name);
                counts[1] += 1;
            }
        }
    }
    counts
}

fn every_tiling(names: &[&str], kernels: &[Kernel]) {
    for name in names {
        let target = Target::named(name).unwrap();
        for &kernel in kernels {
            let [fit, unfit] = space(kernel, &target);
            println!("{name}: {kernel}: {fit} tilings keep the rules, {unfit} do not fit");
            assert!(fit > 0, "{name}: {kernel}");
        }
    }
}

/// Widths with large prime factors, and numbers of rows above the registers.
#[test]
fn every_tiling_of_a_search_keeps_the_rules() {
    let attend = Kernel::Attend(AttendSizes {
        rows: 512,
        heads: 6,
        kv_heads: 2,
        size: 64,
        keys: 2048,
        latest: 1536,
        causal: true,
        window: 0,
        scale: 0.1,
    });
    every_tiling(
        &["toy", "xdna2-strix", "xdna1-phoenix"],
        &[
            Kernel::Gemv { first: 0, n: 1536, k: 2816, weights: WeightLayout::Rows },
            Kernel::Gemv { first: 0, n: 1536, k: 2816, weights: WeightLayout::Q4nx },
            Kernel::Dequant { n: 1536, k: 2816 },
            Kernel::Bias { rows: 2048, n: 896 },
            Kernel::Add { n: 1 << 20 },
            Kernel::Gelu { n: 1 << 20 },
            Kernel::LayerNorm { rows: 4096, n: 1152, width: 1152, epsilon: 1e-6 },
            Kernel::RmsNorm { rows: 2048, n: 1152, width: 1152, epsilon: 1e-6 },
            attend,
        ],
    );
}

/// ```text
/// cargo test --release --locked -p girih-npu --test it registers -- --ignored --nocapture
/// ```
#[test]
#[ignore = "compiles some ten thousand tilings and takes a minute"]
fn every_tiling_of_public_products_keeps_the_rules() {
    let layouts = [WeightLayout::Rows, WeightLayout::Groups];
    let sizes = [[2048, 2048], [8192, 2048], [2048, 8192], [2048, 11_008], [11_008, 2048], [3584, 18_944]];
    for weights in layouts {
        every_tiling(&["xdna2-strix"], &sizes.map(|[n, k]| Kernel::Gemm { m: 2048, n, k, weights }));
    }
}
