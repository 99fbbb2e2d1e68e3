//! The code of a function on a core: the bytes that it takes, and the cycles of entering and leaving it. Both are upper
//! bounds by counted instructions: no two of them are issued in one cycle, except in loops over vectors.
//!
//! Widths and distances are those that llvm-aie publishes: formats of instruction words
//! (`aie2p/AIE2PCompositeFormats.td`), delay slots, and zero-overhead loops (`getZOLSupport` in `AIE2PInstrInfo.cpp`). Code has
//! the loops of its source. A compiler that unrolls them further makes more of it.

use super::chain::Chain;
use super::loop_schedule::{LoopBody, VectorUnit};

/// Cycles after a jump, a call or a return in which the instructions behind it are issued.
const DELAY_SLOTS: u32 = 5;

/// Cycles of a jump, a call or a return.
const JUMP: u32 = 1 + DELAY_SLOTS;

/// Cycles of the end of a loop around others: `jnzd` decrements and jumps.
pub(super) const LOOP_END: u32 = JUMP;

/// Cycles of an acquire or a release: its change is set, and the request holds the unit of locks for 4 cycles (`II_ACQ`
/// and `II_REL` in `AIE2PGenSchedule.td`). A load or a store keeps as far from it: it is in memory in its cycle 5, and the
/// core stalls from cycle 2 to 8 of the request (`LockDelays` in `AIEBaseSubtarget.cpp`).
pub(super) const LOCK_CYCLES: u32 = 1 + 4;

/// Cycles from a write to the cascade until the value that is read has arrived: `VMOV_CASCADE_WRITE` takes 1 and
/// `VMOV_CASCADE_READ` 7 (`AIE2Schedule.td`).
pub(super) const CASCADE_LATENCY: u32 = 1 + 7;

/// Instructions that set the begin, the end and the count of a zero-overhead loop.
const LOOP_REGISTERS: u32 = 3;

/// Instruction words from the last of them to the end of the loop, each of [`WORD_BYTES`].
const SETUP_WORDS: u32 = 7;

/// Bytes of the longest instruction word, to which functions, loops and their last words are aligned.
const WORD_BYTES: u32 = 16;

/// Bytes that an instruction adds to its word at most: a word of one has 4, of two up to 8, of six 16.
const INSTRUCTION_BYTES: u32 = 4;

/// Bytes of an instruction with a constant or an address of 32 bits.
const LONG_BYTES: u32 = 6;

/// Bytes of a `nop`, a word without instructions.
const NOP_BYTES: u32 = 2;

/// A constant in all lanes of a vector: a register is set, and broadcast.
pub(super) const CONSTANT: u32 = 2;

/// The setting of the rounding mode.
pub(super) const ROUNDING: u32 = 1;

/// A part of the code of a function.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CodePart {
    /// Instructions on addresses, counts and constants, one a cycle.
    Scalars(u32),
    /// A comparison and a jump, with this number of such instructions behind them, some of them in its delay slots.
    Guard(u32),
    /// Steps that wait for one another.
    Steps(Chain),
    /// Vectors that are loaded, computed and stored once.
    Straight(LoopBody),
    /// An inner loop: it ends without a jump.
    Loop(LoopBody),
    /// A loop with others in it, which ends in a jump.
    OuterLoop(Vec<CodePart>),
}

/// A function that an entry calls.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KernelFunction {
    /// How often a kernel calls the function.
    pub calls: u32,
    /// The loops that begin in a call beside the first one of each kind.
    pub loops: u32,
    /// Registers that are set for a call: pointers and numbers.
    pub arguments: u32,
    pub parts: Vec<CodePart>,
}

/// One call of one function.
pub(super) fn function(arguments: u32, parts: Vec<CodePart>) -> KernelFunction {
    KernelFunction { calls: 1, loops: 0, arguments, parts }
}

/// The bytes of a function.
pub(super) fn function_bytes(unit: VectorUnit, parts: &[CodePart]) -> u32 {
    let leave = INSTRUCTION_BYTES + DELAY_SLOTS * NOP_BYTES;
    WORD_BYTES + parts.iter().map(|part| part.bytes(unit)).sum::<u32>() + leave
}

/// The cycles of a call that no loop takes: arguments are set in the delay slots of the jump, as far as they suffice.
pub(super) fn call_cycles(unit: VectorUnit, arguments: u32, parts: &[CodePart]) -> u32 {
    let enter = 1 + DELAY_SLOTS.max(arguments);
    enter + parts.iter().map(|part| part.cycles_of_call(unit)).sum::<u32>() + JUMP
}

/// The cycles ahead of a loop without others to overlap with: its registers, and the words until it may end.
pub(super) const LOOP_PROLOGUE: u32 = LOOP_REGISTERS + SETUP_WORDS;

impl CodePart {
    fn bytes(&self, unit: VectorUnit) -> u32 {
        match self {
            CodePart::Scalars(count) => count * LONG_BYTES,
            CodePart::Guard(behind) => {
                (2 + behind) * LONG_BYTES + DELAY_SLOTS.saturating_sub(*behind) * NOP_BYTES
            }
            CodePart::Steps(chain) => {
                let nops = chain.cycles() as u32 - chain.instructions();
                chain.instructions() * INSTRUCTION_BYTES + nops * NOP_BYTES
            }
            CodePart::Straight(body) => straight_bytes(unit, body),
            CodePart::Loop(body) => {
                let ahead = LOOP_REGISTERS * LONG_BYTES + SETUP_WORDS * WORD_BYTES;
                let aligned = 2 * WORD_BYTES;
                // A pipelined loop begins and ends its first and last iterations outside; what they do is laid out once
                // for each further stage, in as many words as are filled.
                let further = (body.stages(unit) - 1) * body.instructions() * INSTRUCTION_BYTES;
                let drained = if further > 0 { body.length(unit) * NOP_BYTES } else { 0 };
                ahead + aligned + loop_bytes(unit, body) + further + drained
            }
            CodePart::OuterLoop(parts) => {
                let jump = LONG_BYTES + INSTRUCTION_BYTES + DELAY_SLOTS * NOP_BYTES;
                WORD_BYTES + LONG_BYTES + parts.iter().map(|part| part.bytes(unit)).sum::<u32>() + jump
            }
        }
    }

    fn cycles_of_call(&self, unit: VectorUnit) -> u32 {
        match self {
            CodePart::Scalars(count) => *count,
            CodePart::Guard(behind) => 2 + DELAY_SLOTS.max(*behind),
            CodePart::Steps(chain) => chain.cycles() as u32,
            CodePart::Straight(body) => body.length(unit),
            CodePart::Loop(body) => {
                let cycles = body.cycles(unit);
                LOOP_REGISTERS + SETUP_WORDS.saturating_sub(cycles) + body.length(unit) - cycles
            }
            // The passes of such a loop are in figures of their own.
            CodePart::OuterLoop(_) => 1,
        }
    }
}

/// The bytes of code that is scheduled once.
fn straight_bytes(unit: VectorUnit, body: &LoopBody) -> u32 {
    body.instructions() * INSTRUCTION_BYTES + body.nops(unit) * NOP_BYTES
}

/// The bytes of a loop's body; those of a pipelined one have no `nop`.
fn loop_bytes(unit: VectorUnit, body: &LoopBody) -> u32 {
    if body.stages(unit) > 1 {
        let words = body.interval(unit) * WORD_BYTES;
        words.min(body.instructions() * INSTRUCTION_BYTES)
    } else {
        straight_bytes(unit, body)
    }
}

#[cfg(test)]
mod tests {
    use super::super::loop_schedule::AIE2P;
    use super::*;

    /// The function `convert_bf16_to_bfp16` of `ore-hardware-loops.ll`, a test of llvm-aie, which prints 160, 64 and 80
    /// bytes for its entry, its loop of three stages, and its end.
    #[test]
    fn bytes_are_at_least_those_that_llvm_prints() {
        let mut body = LoopBody::new();
        let loads = [body.load(), body.load(), body.load()];
        let wide = [body.shuffle(&loads[1..2]), body.shuffle(&loads[2..])];
        let narrow = body.narrow(wide[1]);
        body.store(narrow);
        body.store(narrow);
        // Three values that are loaded, 12 settings of registers.
        let parts = [CodePart::Scalars(15), CodePart::Loop(body)];
        let (bytes, printed) = (function_bytes(AIE2P, &parts), 160 + 64 + 80);
        assert!((printed..printed * 3 / 2).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_call_takes_its_jumps_and_what_its_loops_need_once() {
        let mut body = LoopBody::new();
        let value = body.load();
        body.accumulate(value);
        assert_eq!(call_cycles(AIE2P, 3, &[]), 6 + 6);
        assert_eq!(call_cycles(AIE2P, 7, &[]), 8 + 6, "two arguments beside the delay slots");
        // Three registers, four words until the loop may end, and its first iteration, which takes 8 instead of 3.
        assert_eq!(call_cycles(AIE2P, 3, &[CodePart::Loop(body.clone())]), 12 + 3 + 4 + 5);
        let unknown = CodePart::Loop(body.with_unknown_trips());
        assert_eq!(call_cycles(AIE2P, 3, std::slice::from_ref(&unknown)), 12 + 3);
        // A comparison, a jump, and six instructions behind it, five of them in its delay slots.
        assert_eq!(call_cycles(AIE2P, 3, &[CodePart::Guard(6)]), 12 + 2 + 6);
        assert_eq!(call_cycles(AIE2P, 3, &[CodePart::Guard(0)]), 12 + 2 + 5);
    }

    #[test]
    fn bytes_are_those_counted_by_hand() {
        let mut body = LoopBody::new();
        let value = body.load();
        body.store(value);
        // Aligned, a loop of two instructions and six `nop` behind 3 long ones and 7 words, and the return.
        let (ahead, end) = (3 * 6 + 7 * 16, 4 + 5 * 2);
        let code = [CodePart::Loop(body)];
        assert_eq!(function_bytes(AIE2P, &code), 16 + ahead + 32 + 2 * 4 + 6 * 2 + end);
        assert_eq!(function_bytes(AIE2P, &[CodePart::Guard(2)]), 16 + 4 * 6 + 3 * 2 + end);
        let nested = [CodePart::OuterLoop(vec![CodePart::Scalars(2)])];
        assert_eq!(function_bytes(AIE2P, &nested), 16 + 16 + 6 + 12 + 6 + 4 + 10 + end);
    }
}
