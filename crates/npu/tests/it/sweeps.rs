//! Attention on the array, as one program: leaving out keys that no row sees, dividing heads
//! among columns, and rows that attend to all keys.

use girih_npu::Target;
use girih_npu::form::groups::{ArrayProgram, AttendSizes, Kernel, KernelLaunch};
use girih_npu::form::schedule::{Argument, ArgumentRole, Schedule};
use girih_npu::form::tiling::{Across, AttendTiling, Tiling};
use girih_npu::memory::{Binding, Objects, SimMemory};
use girih_npu::pass::{NoDump, compile, tile};
use girih_npu::sim::{EventOrder, SimUnwatched, Simulator};
use girih_tensor::DType;

/// The sizes of an attention and the positions of its first row.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: u32,
    heads: u32,
    kv_heads: u32,
    size: u32,
    keys: u32,
    latest: u32,
    causal: bool,
    window: u32,
}

impl Case {
    fn kernel(self) -> Kernel {
        let Case { rows, heads, kv_heads, size, keys, latest, causal, window } = self;
        let scale = (size as f32).powf(-0.5);
        Kernel::Attend(AttendSizes { rows, heads, kv_heads, size, keys, latest, causal, window, scale })
    }

    /// The schedule with a tiling, or with the first that fits.
    fn schedule(self, tiling: Option<AttendTiling>, target: &Target) -> Schedule {
        let task = launch(self);
        let kernel = task.kernel;
        let role = |index| if index == 3 { ArgumentRole::Output } else { ArgumentRole::Input };
        let argument = |(index, bytes)| Argument { name: format!("a{index}"), role: role(index), bytes };
        let arguments = kernel.operand_bytes().into_iter().enumerate().map(argument).collect();
        let tiling = tiling.map(Tiling::Attend);
        let name = task.name.clone();
        let launches = vec![KernelLaunch { tiling, ..task }];
        compile(&ArrayProgram { name, arguments, launches }, target, &mut NoDump).unwrap()
    }

    /// The query, key and value elements, rounded to bf16: `[rows][heads][size]`, and
    /// `[block][head][keys or values][64][size]`.
    fn operands(self) -> [Vec<f32>; 2] {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut number = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            rounded((state >> 40) as f32 / 2f32.powi(23) - 1.0)
        };
        [self.rows * self.heads * self.size, self.keys * self.kv_heads * self.size * 2]
            .map(|count| (0..count).map(|_| number()).collect())
    }

    /// The results of a schedule for a first row at this position, in bits of bf16.
    fn run(self, schedule: &Schedule, target: &Target, start: u32, order: EventOrder) -> Vec<u8> {
        let mut simulator = Simulator::new(target).unwrap();
        let mut objects = Objects::new();
        let bytes = self.kernel().operand_bytes();
        let bindings: Vec<Binding> =
            bytes.iter().map(|&bytes| Binding { object: objects.add(bytes).unwrap(), offset: 0 }).collect();
        for (binding, numbers) in bindings.iter().zip(self.operands()) {
            DType::BF16.pack(&numbers, objects.bytes_mut(binding.object));
        }
        // One mutual span, of all positions, which counts only if the attention is not causal.
        for (at, word) in [(0, start), (3, u32::MAX >> 1)] {
            objects.bytes_mut(bindings[2].object)[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let mut memory = SimMemory::Values(&mut objects);
        simulator.run(schedule, &bindings, &mut memory, &mut SimUnwatched, order).unwrap();
        objects.bytes(bindings[3].object).to_vec()
    }

    /// The cycles of the launch alone.
    fn cycles(self, schedule: &Schedule, target: &Target) -> u64 {
        let mut simulator = Simulator::new(target).unwrap();
        let mut memory = SimMemory::TimeOnly;
        let report = simulator.run(schedule, &[], &mut memory, &mut SimUnwatched, EventOrder::Earliest);
        report.unwrap().launches[0].cycles
    }

    /// The attention by its definition, in f64.
    fn exact(self, start: u32) -> Vec<f64> {
        let [q, chunks] = self.operands();
        let [size, group] = [self.size, self.heads / self.kv_heads].map(|count| count as usize);
        let side = |key: usize, head: usize, which: usize| {
            let block = key / 64 * self.kv_heads as usize + head;
            let at = ((block * 2 + which) * 64 + key % 64) * size;
            chunks[at..at + size].iter().map(|x| f64::from(*x))
        };
        let mut all = Vec::new();
        for (index, q) in q.chunks_exact(size).enumerate() {
            let (row, head) = (index / self.heads as usize, index % self.heads as usize / group);
            let position = start as usize + row;
            let sees = |key: &usize| {
                let near = self.window == 0 || key + self.window as usize > position;
                !self.causal || (*key <= position && near)
            };
            let seen: Vec<usize> = (0..self.keys as usize).filter(sees).collect();
            let score = |key: &usize| {
                let product: f64 = side(*key, head, 0).zip(q).map(|(k, q)| k * f64::from(*q)).sum();
                (product / f64::from(self.size).sqrt()).exp()
            };
            let weights: Vec<f64> = seen.iter().map(score).collect();
            let mut sums = vec![0.0; size];
            for (key, weight) in seen.iter().zip(&weights) {
                sums.iter_mut().zip(side(*key, head, 1)).for_each(|(sum, v)| *sum += weight * v);
            }
            let total: f64 = weights.iter().sum();
            all.extend(sums.into_iter().map(|sum| if seen.is_empty() { 0.0 } else { sum / total }));
        }
        all
    }

    /// Checks that results are near the definition.
    fn assert_near(self, bits: &[u8], start: u32) {
        let mut found = vec![0.0; bits.len() / 2];
        DType::BF16.unpack(bits, &mut found);
        let worst = found.iter().zip(self.exact(start)).map(|(a, b)| (f64::from(*a) - b).abs());
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 0.02, "{self:?} from {start}: {worst}");
    }
}

/// The launch alone.
fn launch(case: Case) -> KernelLaunch {
    let (name, arguments) = ("attend".to_owned(), vec![0, 1, 2, 3]);
    KernelLaunch { name, kernel: case.kernel(), arguments, tiling: None, resident: false }
}

fn rounded(x: f32) -> f32 {
    let mut bytes = [0; 2];
    let mut back = [0.0];
    DType::BF16.pack(&[x], &mut bytes);
    DType::BF16.unpack(&bytes, &mut back);
    back[0]
}

const SMALL: Case =
    Case { rows: 64, heads: 4, kv_heads: 2, size: 16, keys: 512, latest: 0, causal: true, window: 0 };

/// The tilings of attention, best first.
fn tilings(case: Case, target: &Target) -> Vec<AttendTiling> {
    let tilings = tile::space(&case.kernel(), target).into_iter().map(|tiling| match tiling {
        Tiling::Attend(tiling) => tiling,
        other => panic!("{other} is no tiling of attention"),
    });
    tilings.collect()
}

#[test]
fn keys_that_no_row_sees_are_left_out_and_change_no_bit() {
    let window = |window, latest| Case { rows: 256, window, latest, ..SMALL };
    let cases = [
        Case { rows: 512, ..SMALL },
        Case { rows: 256, latest: 256, ..SMALL },
        Case { latest: 448, ..SMALL },
        window(64, 126),
        window(70, 132),
        window(3, 65),
        Case { rows: 128, heads: 6, latest: 100, ..SMALL },
    ];
    let mut shorter = 0;
    for (name, case) in ["toy", "xdna2-strix"].into_iter().flat_map(|name| cases.map(|case| (name, case))) {
        let target = Target::named(name).unwrap();
        for tiling in tilings(case, &target).into_iter().step_by(7) {
            let [part, all] =
                [true, false].map(|skip| case.schedule(Some(AttendTiling { skip, ..tiling }), &target));
            shorter += usize::from(part != all);
            for start in [0, case.latest / 2, case.latest] {
                let results = case.run(&part, &target, start, EventOrder::Earliest);
                let whole = case.run(&all, &target, start, EventOrder::Earliest);
                assert!(results == whole, "{case:?} {tiling:?} from {start} on {name}");
                case.assert_near(&results, start);
            }
            let seeded = case.run(&part, &target, case.latest, EventOrder::Seeded(5));
            assert!(seeded == case.run(&all, &target, case.latest, EventOrder::Earliest), "{case:?}");
        }
    }
    assert!(shorter > 20, "{shorter} tilings leave out keys");
}

#[test]
fn a_prompt_from_the_first_position_costs_little_more_than_half() {
    let llama = Case { rows: 2048, heads: 32, kv_heads: 8, size: 64, keys: 2048, ..SMALL };
    let gemma = Case { rows: 1024, heads: 8, kv_heads: 4, size: 256, keys: 1024, ..SMALL };
    let local = Case { rows: 1024, keys: 1792, latest: 574, window: 512, ..gemma };
    for (name, case, most) in [
        ("xdna2-strix", llama, 0.6),
        ("xdna2-kraken@cap-2025", gemma, 0.62),
        ("xdna2-strix", gemma, 0.62),
        ("xdna2-strix", Case { heads: 4, kv_heads: 1, ..gemma }, 0.66),
        ("xdna2-strix", local, 0.75),
    ] {
        let target = Target::named(name).unwrap();
        let best = tilings(case, &target)[0];
        let [part, all] = [true, false].map(|skip| {
            let schedule = case.schedule(Some(AttendTiling { skip, ..best }), &target);
            case.cycles(&schedule, &target) as f64
        });
        println!("{name} {case:?}: {part} of {all} cycles, {:.3}", part / all);
        assert!(part <= most * all, "{name} {case:?}: {:.3}", part / all);
    }
}

#[test]
fn kv_heads_are_divided_among_columns_and_their_keys_among_the_rest() {
    let target = Target::named("xdna2-strix").unwrap();
    for (heads, kv_heads, size) in
        [(4, 1, 256), (14, 2, 64), (6, 3, 64), (8, 4, 256), (8, 8, 64), (32, 16, 16)]
    {
        let case = Case { rows: 1, heads, kv_heads, size, latest: 511, ..SMALL };
        let best = tilings(case, &target)[0];
        for (columns, chunk) in [(8, 16), (4, 8), (2, 16), (1, 8)] {
            let tiling = AttendTiling { across: Across::Heads, columns, chunk, ..best };
            let schedule = case.schedule(Some(tiling), &target);
            assert!(schedule.launches[0].cores.len() <= columns as usize, "{tiling:?}");
            for start in [0, 130, 511] {
                let results = case.run(&schedule, &target, start, EventOrder::Earliest);
                case.assert_near(&results, start);
                assert!(results == case.run(&schedule, &target, start, EventOrder::Seeded(3)), "{case:?}");
            }
        }
    }
}

/// FlowKV: a pair of cores for each KV head.
const PAIRS: AttendTiling = AttendTiling {
    across: Across::Heads,
    columns: 4,
    queries: 1,
    depth: 2,
    chunk: 8,
    skip: true,
    pair: true,
};

#[test]
fn a_pair_of_cores_computes_the_bits_of_one() {
    for (name, heads, kv_heads, size) in [
        ("toy", 4, 2, 16),
        ("toy", 8, 4, 64),
        ("toy", 4, 1, 128),
        ("xdna2-strix", 4, 1, 256),
        ("xdna2-strix", 8, 4, 256),
        ("xdna2-strix", 14, 2, 64),
    ] {
        let target = Target::named(name).unwrap();
        let latest = Case { rows: 1, heads, kv_heads, size, latest: 511, ..SMALL };
        for case in [latest, Case { window: 70, ..latest }, Case { causal: false, ..latest }] {
            // As many columns as KV heads, so that keys are not divided without pairs either.
            let pairs = AttendTiling { columns: kv_heads.min(target.array.shim_columns), ..PAIRS };
            let [paired, alone] =
                [true, false].map(|pair| case.schedule(Some(AttendTiling { pair, ..pairs }), &target));
            assert_eq!(paired.launches[0].cores.len(), 2 * alone.launches[0].cores.len(), "{case:?}");
            for start in [0, 130, 511] {
                let results = case.run(&paired, &target, start, EventOrder::Earliest);
                assert!(results == case.run(&alone, &target, start, EventOrder::Earliest), "{case:?}");
                for seed in 0..5 {
                    let seeded = case.run(&paired, &target, start, EventOrder::Seeded(seed));
                    assert!(results == seeded, "{case:?}, seed {seed}");
                }
                case.assert_near(&results, start);
            }
        }
    }
}

#[test]
fn only_single_rows_over_heads_have_pairs() {
    let target = Target::named("xdna2-strix").unwrap();
    let case = Case { rows: 1, latest: 511, ..SMALL };
    let of = |case: Case, tiling| tile::build(&launch(case), Tiling::Attend(tiling), &target);
    assert!(of(case, PAIRS).is_some());
    assert!(of(SMALL, PAIRS).is_none());
    assert!(of(case, AttendTiling { across: Across::Queries, ..PAIRS }).is_none());
}

/// The bug of a tiling chosen for each context: its cores summed in another order.
#[test]
fn the_keys_are_divided_alike_in_every_context() {
    let target = Target::named("xdna2-strix").unwrap();
    let llama = Case { heads: 32, kv_heads: 8, size: 64, ..SMALL };
    let gemma = Case { heads: 4, kv_heads: 1, size: 256, ..SMALL };
    for case in [llama, gemma] {
        for rows in [&[1][..], &[64, 256, 1024]] {
            let contexts = rows.iter().flat_map(|&rows| [1024, 8192, 32768].map(|keys| (rows, keys)));
            let division = |(rows, keys)| {
                let best = tilings(Case { rows, keys, latest: keys - rows, ..case }, &target)[0];
                (best.across, best.columns, best.chunk)
            };
            let all: Vec<_> = contexts.map(division).collect();
            assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        }
    }
}

/// The bug of a single KV head: one column of cores read all keys and values, at four streams.
#[test]
fn dram_limits_the_attention_of_a_token() {
    let read = |name: &str, case: Case, tiling: Option<AttendTiling>| {
        let target = Target::named(name).unwrap();
        let cycles = case.cycles(&case.schedule(tiling, &target), &target);
        let bytes = u64::from(case.keys) * u64::from(case.kv_heads) * u64::from(case.size) * 4;
        let rate = bytes as f64 / cycles as f64;
        println!("{name} {case:?}: {:.1} GB/s", rate * target.clock.hertz * 1e-9);
        rate / target.dram_bytes_per_cycle()
    };
    let gemma_1b = Case { rows: 1, heads: 4, kv_heads: 1, size: 256, keys: 32768, latest: 32767, ..SMALL };
    let gemma_4b = Case { heads: 8, kv_heads: 4, ..gemma_1b };
    let llama = Case { heads: 32, kv_heads: 8, size: 64, ..gemma_1b };
    for case in [gemma_1b, gemma_4b, llama] {
        assert!(read("xdna2-kraken@cap-2025", case, None) > 0.95, "{case:?}");
        assert!(read("xdna2-strix", case, None) > 0.8, "{case:?}");
    }
    // As in the paper, whose KV head has one pair of cores with a stream each.
    let pair = AttendTiling { columns: 1, chunk: 32, ..PAIRS };
    let share = read("xdna2-kraken@cap-2025", gemma_1b, Some(pair));
    assert!((0.3..0.4).contains(&share), "two streams of 7.2 GB/s: {share}");
}

#[test]
fn groups_of_any_size_fill_the_matrix_unit() {
    let target = Target::named("xdna2-strix").unwrap();
    for size in [64, 128] {
        for group in 1..=16 {
            let case = Case { rows: 1024, heads: 2 * group, size, keys: 1024, ..SMALL };
            let best = tilings(case, &target)[0];
            let own = best.queries * group;
            let filled = f64::from(own) / f64::from(own.next_multiple_of(16));
            let least = if 48 % group == 0 { 1.0 } else { 0.75 };
            assert!(filled >= least, "groups of {group} heads of {size}: {own} rows, {best:?}");
        }
    }
}

/// The rows of an image attend to all others.
#[test]
fn rows_may_attend_to_all_keys() {
    let case = Case { keys: 256, causal: false, ..SMALL };
    for (name, case) in [
        ("toy", case),
        ("xdna2-strix", case),
        ("xdna2-strix", Case { rows: 256, size: 72, heads: 2, ..case }),
    ] {
        let target = Target::named(name).unwrap();
        let schedule = case.schedule(None, &target);
        let results = case.run(&schedule, &target, 0, EventOrder::Earliest);
        case.assert_near(&results, 0);
        assert!(results == case.run(&schedule, &target, 1000, EventOrder::Seeded(1)), "no position counts");
    }
}
