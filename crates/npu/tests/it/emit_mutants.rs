//! The verifier of emitted modules refuses 200 mutants of each design. Each mutant breaks a rule: of the values of
//! an attribute, of the operations that must be there, or of what they refer to.

use girih_npu::emit::mlir::{MlirAttribute, MlirModule, MlirOp};
use girih_npu::emit::verify;
use girih_tensor::Random;

use crate::emit::{designs, target};

/// The mutants of a design.
const MUTANTS: usize = 200;

/// A change that breaks a rule, of an operation that is not inside others than `inside` names.
struct Mutation {
    rule: &'static str,
    of: &'static str,
    inside: &'static [&'static str],
    change: Change,
}

/// What becomes of an operation.
enum Change {
    /// An attribute gets one of these values.
    Set(&'static str, &'static [i64]),
    /// It is removed.
    Remove,
    /// It is there twice.
    Repeat,
    /// Something else.
    By(fn(&mut MlirOp)),
}

const TOP: &[&str] = &[];
const MEMORY: &[&str] = &["aie.mem", "aie.memtile_dma"];
const CORE: &[&str] = &["aie.core", "scf.for"];
const SEQUENCE: &[&str] = &["aiex.runtime_sequence"];

const fn set(
    of: &'static str,
    inside: &'static [&'static str],
    name: &'static str,
    values: &'static [i64],
) -> Mutation {
    Mutation { rule: name, of, inside, change: Change::Set(name, values) }
}

const fn other(
    rule: &'static str,
    of: &'static str,
    inside: &'static [&'static str],
    change: Change,
) -> Mutation {
    Mutation { rule, of, inside, change }
}

/// The mutations. Values are those next to a limit, and far from it.
const MUTATIONS: &[Mutation] = &[
    set("aie.tile", TOP, "col", &[8, 9, 255, 256, -1]),
    set("aie.tile", TOP, "row", &[6, 7, 255, 300, -1]),
    set("aie.lock", TOP, "lockID", &[64, 65, 1000, -1]),
    set("aie.lock", TOP, "init", &[64, 100, -1]),
    set("aie.buffer", TOP, "address", &[524_288, 524_285, 1, 2, 1_000_001, -4, i64::MAX]),
    set("aie.flow", TOP, "source_bundle", &[0, 2, 3, 7]),
    set("aie.flow", TOP, "dest_bundle", &[0, 2, 3, 7]),
    set("aie.flow", TOP, "source_channel", &[6, 7, -1]),
    set("aie.flow", TOP, "dest_channel", &[6, 7, -1]),
    set("aie.dma_start", MEMORY, "channel_dir", &[2, -1]),
    set("aie.dma_start", MEMORY, "channel_index", &[6, 100, -1]),
    set("aie.dma_start", MEMORY, "repeat_count", &[256, 1000, -1]),
    set("aie.dma_bd", MEMORY, "bd_id", &[48, 49, 255, -1]),
    set("aie.dma_bd", MEMORY, "len", &[0, -1, 131_072, 1 << 20]),
    set("aie.dma_bd", MEMORY, "offset", &[131_072, -1, 1 << 40]),
    set("aie.use_lock", MEMORY, "action", &[0, 3]),
    set("aie.use_lock", MEMORY, "value", &[64, 127, -1]),
    set("aie.use_lock", CORE, "action", &[0, 3]),
    set("aie.use_lock", CORE, "value", &[0, 64, -1]),
    set("aie.core", TOP, "stack_size", &[1025, 65_536, -1]),
    set("aiex.npu.writebd", SEQUENCE, "column", &[8, 100, -1]),
    set("aiex.npu.writebd", SEQUENCE, "row", &[1, 2]),
    set("aiex.npu.writebd", SEQUENCE, "bd_id", &[16, 17, -1]),
    set("aiex.npu.writebd", SEQUENCE, "buffer_length", &[0, -1, 1 << 31]),
    set("aiex.npu.writebd", SEQUENCE, "valid_bd", &[0, 2]),
    set("aiex.npu.writebd", SEQUENCE, "d0_size", &[1024, 5000, -1]),
    set("aiex.npu.writebd", SEQUENCE, "d1_size", &[1024, 5000, -1]),
    set("aiex.npu.writebd", SEQUENCE, "d1_stride", &[1 << 20, -1]),
    set("aiex.npu.writebd", SEQUENCE, "d2_size", &[1, 2]),
    set("aiex.npu.writebd", SEQUENCE, "d2_zero_after", &[1]),
    set("aiex.npu.writebd", SEQUENCE, "iteration_size", &[64, 65, -1]),
    set("aiex.npu.writebd", SEQUENCE, "iteration_stride", &[1 << 20, -1]),
    set("aiex.npu.writebd", SEQUENCE, "use_next_bd", &[1]),
    set("aiex.npu.address_patch", SEQUENCE, "addr", &[0, 0x1d000, 0x1d005, 1 << 40]),
    set("aiex.npu.address_patch", SEQUENCE, "arg_idx", &[5, 100, -1]),
    set("aiex.npu.address_patch", SEQUENCE, "arg_plus", &[1, 2, -4, 0x7fff_fffc, 1 << 31]),
    set("aiex.npu.push_queue", SEQUENCE, "direction", &[2, -1]),
    set("aiex.npu.push_queue", SEQUENCE, "channel", &[2, 3, -1]),
    set("aiex.npu.push_queue", SEQUENCE, "column", &[8, -1]),
    set("aiex.npu.push_queue", SEQUENCE, "row", &[1]),
    set("aiex.npu.push_queue", SEQUENCE, "repeat_count", &[256, 1000, -1]),
    set("aiex.npu.push_queue", SEQUENCE, "bd_id", &[16, -1]),
    set("aiex.npu.sync", SEQUENCE, "channel", &[2, -1]),
    set("aiex.npu.sync", SEQUENCE, "column", &[8, -1]),
    set("aiex.npu.sync", SEQUENCE, "column_num", &[0, 2]),
    other("a tile is declared", "aie.tile", TOP, Change::Remove),
    other("a tile is declared once", "aie.tile", TOP, Change::Repeat),
    other("a lock is declared", "aie.lock", TOP, Change::Remove),
    other("a lock is declared once", "aie.lock", TOP, Change::Repeat),
    other(
        "a descriptor moves a buffer",
        "aie.dma_bd",
        MEMORY,
        Change::By(|op| op.operands[0].number = u32::MAX),
    ),
    other("a channel has a flow", "aie.flow", TOP, Change::Remove),
    other("a channel receives one flow", "aie.flow", TOP, Change::Repeat),
    other("a cascade leads south or east", "aie.cascade_flow", TOP, Change::By(|op| op.operands.reverse())),
    other("a core has one cascade each way", "aie.cascade_flow", TOP, Change::Repeat),
    other("a function is declared", "func.func", TOP, Change::Remove),
    other("a tile has one memory", "aie.mem", TOP, Change::Repeat),
    other("a tile has one program", "aie.core", TOP, Change::Repeat),
    other("a device has a sequence", "aiex.runtime_sequence", TOP, Change::Remove),
    other("a device has one sequence", "aiex.runtime_sequence", TOP, Change::Repeat),
    other("a start is alone", "aie.dma_start", MEMORY, Change::Repeat),
    other("a block has its start", "aie.dma_start", MEMORY, Change::Remove),
    other("a start leads to a block", "aie.dma_start", MEMORY, Change::By(|op| op.successors[0] = 10_000)),
    other("no start leads to the entry", "aie.dma_start", MEMORY, Change::By(|op| op.successors[1] = 0)),
    other(
        "a start leads to a descriptor",
        "aie.dma_start",
        MEMORY,
        Change::By(|op| op.successors[0] = op.successors[1]),
    ),
    other("a descriptor leads to a block", "aie.next_bd", MEMORY, Change::By(|op| op.successors[0] = 10_000)),
    other("a descriptor is followed", "aie.next_bd", MEMORY, Change::Remove),
    other("a block has its descriptor", "aie.dma_bd", MEMORY, Change::Remove),
    other("a descriptor is alone", "aie.dma_bd", MEMORY, Change::Repeat),
    other("a descriptor changes two locks or none", "aie.use_lock", MEMORY, Change::Remove),
    other("a descriptor has one acquire", "aie.use_lock", MEMORY, Change::Repeat),
    other("a descriptor moves its words", "aie.dma_bd", MEMORY, Change::By(wider)),
    other("a call has its operands", "func.call", CORE, Change::By(|op| op.operands.truncate(1))),
    other("a call is of a function", "func.call", CORE, Change::By(rename)),
    other(
        "a core uses what is declared",
        "aie.use_lock",
        CORE,
        Change::By(|op| op.operands[0].number = u32::MAX),
    ),
    other(
        "a pointer is to a buffer",
        "memref.reinterpret_cast",
        CORE,
        Change::By(|op| op.operands[0].number = u32::MAX),
    ),
    other("a constant is defined", "arith.constant", CORE, Change::Remove),
    other("a program ends", "aie.end", CORE, Change::Remove),
    other("an address is patched", "aiex.npu.address_patch", SEQUENCE, Change::Remove),
    other("a token is waited for", "aiex.npu.sync", SEQUENCE, Change::Remove),
    other("a wait has a token", "aiex.npu.sync", SEQUENCE, Change::Repeat),
];

/// Gives the descriptor a dimension more than it has words for.
fn wider(op: &mut MlirOp) {
    let dims = MlirAttribute::Dims(vec![(2, 1), (3, 2), (5, 7), (600, 1), (1, 1)]);
    op.attributes.retain(|(name, _)| *name != "dimensions");
    op.attributes.push(("dimensions", dims));
}

fn rename(op: &mut MlirOp) {
    op.attributes = vec![("callee", MlirAttribute::Symbol("nothing".to_owned()))];
}

/// Calls a function with the operations of each block: those of devices, and those inside operations of these
/// names.
fn each_block(module: &mut MlirModule, inside: &[&str], act: &mut dyn FnMut(&mut Vec<MlirOp>)) {
    fn below(ops: &mut Vec<MlirOp>, inside: &[&str], act: &mut dyn FnMut(&mut Vec<MlirOp>)) {
        act(ops);
        let nested = ops.iter_mut().filter(|op| inside.contains(&op.name));
        let blocks = nested.flat_map(|op| &mut op.regions).flat_map(|region| &mut region.blocks);
        blocks.for_each(|block| below(&mut block.ops, inside, act));
    }
    module.devices.iter_mut().for_each(|device| below(&mut device.ops, inside, act));
}

/// Makes a mutant, if the module has such an operation; returns what was done.
fn mutate(module: &mut MlirModule, mutation: &Mutation, random: &mut Random) -> Option<String> {
    let mut count = 0;
    let is_meant = |op: &MlirOp| op.name == mutation.of;
    each_block(module, mutation.inside, &mut |ops| count += ops.iter().filter(|op| is_meant(op)).count());
    let mut left = random.below(count.checked_sub(1)? + 1);
    let mut done = None;
    each_block(module, mutation.inside, &mut |ops| {
        let places: Vec<usize> = (0..ops.len()).filter(|&at| is_meant(&ops[at])).collect();
        match places.get(left) {
            Some(&at) if done.is_none() => done = Some(changed(ops, at, mutation, random)),
            _ => left = left.saturating_sub(places.len()),
        }
    });
    done
}

/// Changes an operation, and returns what was done.
fn changed(ops: &mut Vec<MlirOp>, at: usize, mutation: &Mutation, random: &mut Random) -> String {
    let done = format!("{} of {} {at}", mutation.rule, mutation.of);
    match mutation.change {
        Change::Remove => drop(ops.remove(at)),
        Change::Repeat => ops.insert(at, ops[at].clone()),
        Change::By(change) => change(&mut ops[at]),
        Change::Set(name, values) => {
            let value = values[random.below(values.len())];
            let attribute = ops[at].attributes.iter_mut().find(|(of, _)| *of == name);
            match &mut attribute.expect("the operation has the attribute").1 {
                MlirAttribute::Int(number, _) => *number = value,
                _ => panic!("{name} is no number"),
            }
            return format!("{done} = {value}");
        }
    }
    done
}

#[test]
fn no_mutant_that_breaks_a_rule_is_accepted() {
    let target = target();
    for (seed, (name, programs)) in designs().into_iter().enumerate() {
        let mut random = Random(seed as u64 + 1);
        let mut used = vec![0; MUTATIONS.len()];
        let mut made = 0;
        while made < MUTANTS {
            let which = random.below(MUTATIONS.len());
            let mut module = programs[random.below(programs.len())].module.clone();
            let Some(done) = mutate(&mut module, &MUTATIONS[which], &mut random) else { continue };
            assert!(
                !verify::faults(&module, &target).is_empty(),
                "{name}, mutant {made}: {done} is accepted"
            );
            used[which] += 1;
            made += 1;
        }
        let kinds = used.iter().filter(|count| **count > 0).count();
        println!("{name}: {made} mutants of {kinds} kinds refused");
        assert!(kinds > MUTATIONS.len() / 2, "{name}: {kinds} kinds of mutations");
    }
}
