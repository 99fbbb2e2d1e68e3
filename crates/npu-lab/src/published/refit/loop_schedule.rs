//! The cycles of a loop over vectors of 16 bf16 values on a core of AIE2P: an instruction is issued as soon as
//! its operands have arrived and its slot is free. Latencies and slots are those that llvm-aie publishes for
//! this core (`llvm/lib/Target/AIE/aie2p/AIE2PGenSchedule.td`); no figure here is fitted. AIE2 differs in what
//! [`VectorUnit`] has.

/// An instruction of a loop's body. Its operands are results of earlier instructions, given by position; constants
/// and values of earlier iterations have arrived, and are left out.
#[derive(Clone, Debug, PartialEq)]
struct LoopInstruction {
    kind: InstructionKind,
    operands: Vec<usize>,
}

/// Kinds of instructions that differ in latency or slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstructionKind {
    /// A vector from memory: `vlda`, `vldb`.
    Load,
    /// A product of vectors, in an accumulator: `vmul.f`, `vmac.f`.
    Product,
    /// A sum or difference of accumulators: `vadd.f`, `vsub.f`.
    Sum,
    /// From an accumulator to bf16: `vconv.bf16.fp32`.
    Narrow,
    /// From bf16 to an accumulator: `vconv.fp32.bf16`.
    Widen,
    /// A function of an accumulator: `vtanh`, `vexp2`.
    Function,
    /// Lanes in another order or width: `vshuffle`, `vunpack`, `vextract`, `vbcst`.
    Shuffle,
    /// A vector to memory: `vst`.
    Store,
}

/// A slot of the instruction word, with the number of instructions that it takes in a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstructionSlot {
    Loads,
    Vector,
    Move,
    Store,
}

const SLOTS: [(InstructionSlot, u32); 4] = [
    (InstructionSlot::Loads, 2),
    (InstructionSlot::Vector, 1),
    (InstructionSlot::Move, 1),
    (InstructionSlot::Store, 1),
];

/// Cycles until another instruction can use the result of a load, a product, a sum, a conversion to bf16, one
/// from bf16, or a function; and those of a store.
pub(super) const LOAD: u32 = 7;
pub(super) const PRODUCT: u32 = 6;
pub(super) const SUM: u32 = 6;
pub(super) const NARROW: u32 = 2;
pub(super) const WIDEN: u32 = 2;
pub(super) const FUNCTION: u32 = 2;
pub(super) const SHUFFLE: u32 = 2;
pub(super) const STORE: u32 = 1;

/// The vector unit of a kind of core: what differs between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VectorUnit {
    /// Bytes of a load or a store.
    pub bytes: u32,
    /// Cycles after which a sum reads its accumulators, when other operands are read in cycle 1.
    sum_reads_later: u32,
    /// Cycles from a sum to the next sum of the same accumulator.
    sum_after_sum: u32,
}

/// AIE2P: operand `acc1` of `vadd.f` is read in cycle 4.
pub(super) const AIE2P: VectorUnit = VectorUnit { bytes: 64, sum_reads_later: 3, sum_after_sum: 3 };

/// AIE2: `II_VACCf` of `AIE2Schedule.td` reads accumulators in cycle 3; all other latencies and slots are those of AIE2P.
pub(super) const AIE2: VectorUnit = VectorUnit { bytes: 32, sum_reads_later: 2, sum_after_sum: 4 };

impl VectorUnit {
    /// Loads or stores of this many bytes.
    pub fn vectors(self, bytes: u32) -> u32 {
        bytes.div_ceil(self.bytes)
    }
}

/// Stages behind the first that LLVM's pipeliner accepts (`pipeliner-max-stages`, which it compares with the number of the last stage).
/// Loops that would need more stay as they are scheduled.
const MAX_FURTHER_STAGES: u32 = 3;

impl InstructionKind {
    /// Cycles until another instruction can use the result.
    fn latency(self) -> u32 {
        match self {
            InstructionKind::Load => LOAD,
            InstructionKind::Product => PRODUCT,
            InstructionKind::Sum => SUM,
            InstructionKind::Narrow => NARROW,
            InstructionKind::Widen => WIDEN,
            InstructionKind::Function => FUNCTION,
            InstructionKind::Shuffle => SHUFFLE,
            InstructionKind::Store => STORE,
        }
    }

    fn slot(self) -> InstructionSlot {
        match self {
            InstructionKind::Load => InstructionSlot::Loads,
            InstructionKind::Product | InstructionKind::Sum => InstructionSlot::Vector,
            InstructionKind::Widen | InstructionKind::Function | InstructionKind::Shuffle => {
                InstructionSlot::Move
            }
            InstructionKind::Narrow | InstructionKind::Store => InstructionSlot::Store,
        }
    }
}

/// The body of a loop, in the order of its source.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LoopBody {
    instructions: Vec<LoopInstruction>,
    /// Whether a sum goes on in the next iteration.
    is_reduction: bool,
    /// Whether the compiler knows the number of iterations, without which it does not pipeline.
    has_known_trips: bool,
}

impl LoopBody {
    pub fn new() -> LoopBody {
        LoopBody { has_known_trips: true, ..LoopBody::default() }
    }

    /// A loop whose number of iterations is an argument of its function.
    pub fn with_unknown_trips(self) -> LoopBody {
        LoopBody { has_known_trips: false, ..self }
    }

    fn issue(&mut self, kind: InstructionKind, operands: &[usize]) -> usize {
        self.instructions.push(LoopInstruction { kind, operands: operands.to_vec() });
        self.instructions.len() - 1
    }

    pub fn load(&mut self) -> usize {
        self.issue(InstructionKind::Load, &[])
    }

    /// Loads this many vectors, at least one, and returns the last to arrive.
    pub fn load_vectors(&mut self, vectors: u32) -> usize {
        (0..vectors).map(|_| self.load()).last().expect("at least one vector is loaded")
    }

    pub fn store(&mut self, value: usize) {
        self.issue(InstructionKind::Store, &[value]);
    }

    /// Stores this many vectors of what a register has from before the loop.
    pub fn store_constants(&mut self, vectors: u32) {
        for _ in 0..vectors {
            self.issue(InstructionKind::Store, &[]);
        }
    }

    /// A product in an accumulator.
    pub fn product(&mut self, operands: &[usize]) -> usize {
        self.issue(InstructionKind::Product, operands)
    }

    /// A sum of accumulators, in an accumulator.
    pub fn sum(&mut self, operands: &[usize]) -> usize {
        self.issue(InstructionKind::Sum, operands)
    }

    pub fn narrow(&mut self, value: usize) -> usize {
        self.issue(InstructionKind::Narrow, &[value])
    }

    /// What a register has from before, rounded to bf16.
    pub fn narrow_constant(&mut self) -> usize {
        self.issue(InstructionKind::Narrow, &[])
    }

    /// A product that is rounded to bf16.
    pub fn rounded_product(&mut self, operands: &[usize]) -> usize {
        let product = self.product(operands);
        self.narrow(product)
    }

    /// A sum of bf16 values that is rounded to bf16.
    pub fn rounded_sum(&mut self, operands: &[usize]) -> usize {
        let wide: Vec<usize> =
            operands.iter().map(|&operand| self.issue(InstructionKind::Widen, &[operand])).collect();
        let sum = self.sum(&wide);
        self.narrow(sum)
    }

    /// A function of bf16 values; its result is bf16.
    pub fn function(&mut self, value: usize) -> usize {
        let wide = self.issue(InstructionKind::Widen, &[value]);
        self.issue(InstructionKind::Function, &[wide])
    }

    /// A function of an accumulator; its result is bf16.
    pub fn function_of_sum(&mut self, sum: usize) -> usize {
        self.issue(InstructionKind::Function, &[sum])
    }

    /// Lanes of a value in another order or width.
    pub fn shuffle(&mut self, operands: &[usize]) -> usize {
        self.issue(InstructionKind::Shuffle, operands)
    }

    /// A product that is added to an accumulator that all iterations share.
    pub fn accumulate_product(&mut self, operands: &[usize]) {
        self.product(operands);
        self.is_reduction = true;
    }

    /// Adds bf16 values to an accumulator that all iterations share.
    pub fn accumulate(&mut self, value: usize) {
        let wide = self.issue(InstructionKind::Widen, &[value]);
        self.sum(&[wide]);
        self.is_reduction = true;
    }

    /// The number of instructions.
    pub fn instructions(&self) -> u32 {
        self.instructions.len() as u32
    }

    /// Cycles of an iteration.
    pub fn cycles(&self, unit: VectorUnit) -> u32 {
        if self.stages(unit) > 1 { self.interval(unit) } else { self.length(unit) }
    }

    /// Iterations that are under way at once; one if the loop is not pipelined.
    pub fn stages(&self, unit: VectorUnit) -> u32 {
        let further = (self.length(unit) - 1) / self.interval(unit);
        if self.has_known_trips && further <= MAX_FURTHER_STAGES { 1 + further } else { 1 }
    }

    /// Cycles from the first instruction to the last one, both included.
    pub fn length(&self, unit: VectorUnit) -> u32 {
        self.issue_cycles(unit).into_iter().max().map_or(1, |last| last + 1)
    }

    /// Cycles of the length in which nothing is issued.
    pub fn nops(&self, unit: VectorUnit) -> u32 {
        let mut issued = self.issue_cycles(unit);
        issued.sort_unstable();
        issued.dedup();
        self.length(unit) - issued.len() as u32
    }

    /// The cycle of each instruction.
    fn issue_cycles(&self, unit: VectorUnit) -> Vec<u32> {
        let mut issued: Vec<u32> = Vec::with_capacity(self.instructions.len());
        for (at, instruction) in self.instructions.iter().enumerate() {
            let arrival = |operand: &usize| {
                let latency = self.instructions[*operand].kind.latency();
                let is_sum = instruction.kind == InstructionKind::Sum;
                issued[*operand] + if is_sum { latency.saturating_sub(unit.sum_reads_later) } else { latency }
            };
            let mut cycle = instruction.operands.iter().map(arrival).max().unwrap_or_default();
            let slot = instruction.kind.slot();
            let in_cycle = |cycle: u32| {
                let before = self.instructions[..at].iter().zip(&issued);
                before.filter(|(other, when)| other.kind.slot() == slot && **when == cycle).count() as u32
            };
            while in_cycle(cycle) >= per_cycle(slot) {
                cycle += 1;
            }
            issued.push(cycle);
        }
        issued
    }

    /// The least number of cycles between iterations: the fullest slot, or the sum of the iteration before.
    pub fn interval(&self, unit: VectorUnit) -> u32 {
        let uses = |(slot, per_cycle): (InstructionSlot, u32)| {
            let uses = self.instructions.iter().filter(|one| one.kind.slot() == slot).count() as u32;
            uses.div_ceil(per_cycle)
        };
        let fullest = SLOTS.into_iter().map(uses).max().unwrap_or_default();
        fullest.max(if self.is_reduction { unit.sum_after_sum } else { 1 })
    }
}

fn per_cycle(slot: InstructionSlot) -> u32 {
    let found = SLOTS.into_iter().find(|(one, _)| *one == slot);
    found.expect("the table has all slots").1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_wait_for_operands_and_slots() {
        // Three loads: two in a cycle. The last arrives after 1 + 7, its product after 6, and is rounded in 2.
        let mut body = LoopBody::new();
        let loads = [body.load(), body.load(), body.load()];
        let product = body.rounded_product(&loads[1..]);
        body.store(product);
        assert_eq!(body.length(AIE2P), 1 + 7 + 6 + 2 + 1);
        assert_eq!(body.interval(AIE2P), 2, "two loads a cycle; a conversion and a store share a slot");
        assert_eq!(body.cycles(AIE2P), 17, "eight stages are not pipelined");
        assert_eq!((body.stages(AIE2P), body.instructions(), body.nops(AIE2P)), (1, 6, 12));
    }

    #[test]
    fn a_short_reduction_is_pipelined_if_its_trips_are_known() {
        let mut body = LoopBody::new();
        let value = body.load();
        body.accumulate(value);
        assert_eq!(body.length(AIE2P), 8, "a sum reads the accumulator that is widened beside it");
        assert_eq!((body.cycles(AIE2P), body.stages(AIE2P)), (3, 3));
        assert_eq!(body.with_unknown_trips().cycles(AIE2P), 8);
    }

    #[test]
    fn sums_of_products_wait_three_cycles() {
        let mut body = LoopBody::new();
        let product = body.product(&[]);
        let sum = body.sum(&[product]);
        body.store(sum);
        assert_eq!(body.length(AIE2P), 3 + 6 + 1);
        assert_eq!(body.length(AIE2), 4 + 6 + 1, "a core of AIE2 reads accumulators a cycle earlier");
    }
}
