//! The programs of cores: `aie.core` with loops, locks and calls of functions.
//!
//! A kernel entry becomes a function that C++ defines. Each operand is passed as a pointer to words
//! and a byte offset, each parameter as an `i32` or an `f32`, in the entry's order.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};

use super::mlir::{MlirAttribute, MlirBlock, MlirOp, MlirRegion, MlirType, MlirValue};
use super::resources::{ACQUIRE_GREATER_EQUAL, Numbering, RELEASE, Resources};
use crate::form::schedule::{Affine, BufferId, CallOperand, Core, CoreCall, CoreInstruction, ParameterValue};
use crate::kernel::{self, KernelEntry, ParamKind};

/// The object file that cores are linked with: the functions of all entries.
pub(super) const KERNEL_OBJECT: &str = "kernels.o";

/// The entries that the cores of a launch call.
pub(super) type UsedEntries = BTreeMap<&'static str, &'static KernelEntry>;

/// Returns the types of a function's arguments.
pub(super) fn signature(entry: &KernelEntry) -> Vec<MlirType> {
    let operands = entry.operands.iter().flat_map(|_| [MlirType::Words(1), MlirType::I32]);
    let params = entry.params.iter().map(|param| match param.kind {
        ParamKind::Real => MlirType::F32,
        ParamKind::Size | ParamKind::Index => MlirType::I32,
    });
    operands.chain(params).collect()
}

/// Returns the declaration of an entry's function.
pub(super) fn declaration(entry: &KernelEntry) -> MlirOp {
    let op = MlirOp::new("func.func").region(MlirRegion::default());
    let op = op.with("sym_name", MlirAttribute::Text(entry.name.to_owned()));
    let op = op.with("function_type", MlirAttribute::Function(signature(entry)));
    op.with("sym_visibility", MlirAttribute::Text("private".to_owned()))
}

/// Returns the operation of a core.
///
/// # Errors
/// When the dialect cannot express an instruction.
pub(super) fn core(
    core: &Core,
    stack_bytes: u32,
    resources: &Resources,
    numbering: &mut Numbering,
    used: &mut UsedEntries,
) -> Result<MlirOp> {
    let mut emitter = CoreEmitter {
        resources,
        numbering,
        used,
        head: Vec::new(),
        constants: BTreeMap::new(),
        pointers: BTreeMap::new(),
        loops: Vec::new(),
    };
    let body = emitter.instructions(&core.program)?;
    let mut ops = emitter.head;
    ops.extend(body);
    ops.push(MlirOp::new("aie.end"));
    let op = MlirOp::new("aie.core").uses([resources.tiles[&core.tile]]);
    let op = op.region(MlirRegion::of(MlirBlock::of(ops))).int("stack_size", stack_bytes);
    let op = op.with("link_with", MlirAttribute::Text(KERNEL_OBJECT.to_owned()));
    Ok(op.defines(numbering.value(MlirType::Index)))
}

/// A core's program on its way into operations.
struct CoreEmitter<'a> {
    resources: &'a Resources,
    numbering: &'a mut Numbering,
    used: &'a mut UsedEntries,
    /// Constants and pointers, before everything else.
    head: Vec<MlirOp>,
    constants: BTreeMap<(MlirType, i64), MlirValue>,
    pointers: BTreeMap<BufferId, MlirValue>,
    /// The counters of the enclosing loops.
    loops: Vec<MlirValue>,
}

impl CoreEmitter<'_> {
    fn instructions(&mut self, body: &[CoreInstruction]) -> Result<Vec<MlirOp>> {
        let mut ops = Vec::new();
        for instruction in body {
            match instruction {
                CoreInstruction::Loop { count, body } => ops.push(self.repeated(*count, body)?),
                CoreInstruction::Acquire(change) => {
                    ops.push(self.resources.use_lock(*change, ACQUIRE_GREATER_EQUAL)?);
                }
                CoreInstruction::Release(change) => ops.push(self.resources.use_lock(*change, RELEASE)?),
                CoreInstruction::Call(call) => self.call(call, &mut ops)?,
            }
        }
        Ok(ops)
    }

    fn repeated(&mut self, count: u32, body: &[CoreInstruction]) -> Result<MlirOp> {
        let bounds = [0, count.into(), 1].map(|number| self.constant(MlirType::Index, number));
        let counter = self.numbering.value(MlirType::Index);
        self.loops.push(counter);
        let mut ops = self.instructions(body)?;
        self.loops.pop();
        ops.push(MlirOp::new("scf.yield"));
        let block = MlirBlock { arguments: vec![counter], ops };
        Ok(MlirOp::new("scf.for").uses(bounds).region(MlirRegion::of(block)))
    }

    fn call(&mut self, call: &CoreCall, ops: &mut Vec<MlirOp>) -> Result<()> {
        let entry = kernel::entry(&call.entry)
            .ok_or_else(|| Error::new(format!("{} is not a kernel entry", call.entry)))?;
        self.used.insert(entry.name, entry);
        let mut arguments = Vec::new();
        for operand in &call.operands {
            arguments.push(self.pointer(operand, ops)?);
            arguments.push(self.word(&operand.offset, ops)?);
        }
        for parameter in &call.parameters {
            arguments.push(match &parameter.value {
                ParameterValue::Int(value) => self.word(value, ops)?,
                ParameterValue::Float(value) => self.constant(MlirType::F32, value.to_bits().into()),
            });
        }
        let op = MlirOp::new("func.call").uses(arguments);
        ops.push(op.with("callee", MlirAttribute::Symbol(entry.name.to_owned())));
        Ok(())
    }

    /// Returns the pointer to an operand's buffer, which a loop may alternate.
    fn pointer(&mut self, operand: &CallOperand, ops: &mut Vec<MlirOp>) -> Result<MlirValue> {
        let pointers = operand.slots.iter().map(|&slot| self.buffer_pointer(slot));
        let pointers = pointers.collect::<Result<Vec<_>>>()?;
        let count = pointers.len() as i64;
        let (slot, terms) = (operand.slot.constant, &operand.slot.terms);
        if pointers.is_empty() || slot < 0 || terms.iter().any(|term| term.factor < 0) {
            return Err(Error::new(format!("the operand {operand} has no buffer, or counts backwards")));
        }
        if terms.is_empty() || count == 1 {
            return Ok(pointers[(slot % count) as usize]);
        }
        let turn = self.affine(&operand.slot, ops)?;
        let count = self.constant(MlirType::Index, count);
        let index = self.numbering.value(MlirType::Index);
        ops.push(MlirOp::new("arith.remui").uses([turn, count]).defines(index));
        let chosen = self.numbering.value(MlirType::Words(1));
        let mut op = MlirOp::new("scf.index_switch").uses([index]).defines(chosen);
        // The first region is the default: the last buffer, as the index is below their number.
        let last = pointers.len() - 1;
        for pointer in [last].into_iter().chain(0..last).map(|index| pointers[index]) {
            let block = MlirBlock::of(vec![MlirOp::new("scf.yield").uses([pointer])]);
            op = op.region(MlirRegion::of(block));
        }
        ops.push(op.with("cases", MlirAttribute::Array((0..last as i64).collect(), "i64")));
        Ok(chosen)
    }

    /// Returns the pointer to a buffer, of one type for buffers of all sizes, so that an entry has
    /// one function.
    fn buffer_pointer(&mut self, buffer: BufferId) -> Result<MlirValue> {
        if let Some(pointer) = self.pointers.get(&buffer) {
            return Ok(*pointer);
        }
        let pointer = self.numbering.value(MlirType::Words(1));
        let array = |values: &[i64], of| MlirAttribute::Array(values.to_vec(), of);
        let op = MlirOp::new("memref.reinterpret_cast").uses([self.resources.buffer(buffer)?]);
        let op = op.with("operandSegmentSizes", array(&[1, 0, 0, 0], "i32"));
        let op = op.with("static_offsets", array(&[0], "i64")).with("static_sizes", array(&[1], "i64"));
        self.head.push(op.with("static_strides", array(&[1], "i64")).defines(pointer));
        self.pointers.insert(buffer, pointer);
        Ok(pointer)
    }

    /// Returns a number as an `i32`.
    fn word(&mut self, value: &Affine, ops: &mut Vec<MlirOp>) -> Result<MlirValue> {
        if value.terms.is_empty() {
            if i32::try_from(value.constant).is_err() {
                return Err(Error::new(format!("the number {} exceeds 32 bits", value.constant)));
            }
            return Ok(self.constant(MlirType::I32, value.constant));
        }
        let index = self.affine(value, ops)?;
        let word = self.numbering.value(MlirType::I32);
        ops.push(MlirOp::new("arith.index_cast").uses([index]).defines(word));
        Ok(word)
    }

    /// Returns a number that depends on the enclosing loops.
    fn affine(&mut self, value: &Affine, ops: &mut Vec<MlirOp>) -> Result<MlirValue> {
        let mut sum = self.constant(MlirType::Index, value.constant);
        for term in &value.terms {
            let counter = self.loops.get(usize::from(term.depth)).copied();
            let outside = || Error::new(format!("loop {} is not around the call", term.depth));
            let counter = counter.ok_or_else(outside)?;
            let factor = self.constant(MlirType::Index, term.factor);
            let (product, next) =
                (self.numbering.value(MlirType::Index), self.numbering.value(MlirType::Index));
            ops.push(MlirOp::new("arith.muli").uses([counter, factor]).defines(product));
            ops.push(MlirOp::new("arith.addi").uses([sum, product]).defines(next));
            sum = next;
        }
        Ok(sum)
    }

    /// Returns a constant; that of a float has its bits.
    fn constant(&mut self, of: MlirType, number: i64) -> MlirValue {
        if let Some(value) = self.constants.get(&(of, number)) {
            return *value;
        }
        let value = self.numbering.value(of);
        let attribute = match of {
            MlirType::Index => MlirAttribute::Int(number, "index"),
            MlirType::F32 => MlirAttribute::Float(f32::from_bits(number as u32)),
            _ => MlirAttribute::Int(number, "i32"),
        };
        self.head.push(MlirOp::new("arith.constant").with("value", attribute).defines(value));
        self.constants.insert((of, number), value);
        value
    }
}
