//! Checks of `aie.core`.

use std::collections::BTreeSet;

use super::declared::{Checked, Declared, operand, within};
use crate::emit::mlir::{MlirAttribute, MlirOp, MlirRegion, MlirType, MlirValue};
use crate::form::schedule::check::calls::can_access;
use crate::form::schedule::{Tile, TileKind};

/// Checks the program of a core.
///
/// * it is on a compute tile: `CoreOp::verify`;
/// * each operand is defined before, with its type;
/// * locks and buffers are those that the core reaches: `UsesAreAccessible` and `isLegalMemAffinity`;
/// * calls are of declared functions, with their types;
/// * changes of locks have six bits.
pub(super) fn core(op: &MlirOp, declared: &Declared<'_>) -> Checked {
    let tile = declared.tile(op, 0)?;
    if tile.kind() != TileKind::Compute {
        return Err(format!("is on tile {tile}, which has no core"));
    }
    within(op, "stack_size", 0..=declared.target.compute.reserved.into())?;
    let [region] = op.regions.as_slice() else { return Err("needs one region".to_owned()) };
    let ends =
        |name| region.blocks.last().and_then(|block| block.ops.last()).is_some_and(|op| op.name == name);
    if region.blocks.len() != 1 || !ends("aie.end") {
        return Err("does not end with aie.end".to_owned());
    }
    let mut check = CoreCheck { tile, declared, defined: BTreeSet::new() };
    check.region(region)
}

/// The program of a core being checked.
struct CoreCheck<'a> {
    tile: Tile,
    declared: &'a Declared<'a>,
    defined: BTreeSet<MlirValue>,
}

impl CoreCheck<'_> {
    fn region(&mut self, region: &MlirRegion) -> Checked {
        let outside = self.defined.clone();
        for block in &region.blocks {
            self.defined.extend(block.arguments.iter().copied());
            for op in &block.ops {
                self.op(op)?;
                self.defined.extend(op.result);
            }
        }
        self.defined = outside;
        Ok(())
    }

    fn op(&mut self, op: &MlirOp) -> Checked {
        match op.name {
            "aie.use_lock" => return self.change(op),
            "memref.reinterpret_cast" => return self.pointer(op),
            "func.call" => self.call(op)?,
            "scf.for" | "scf.index_switch" | "scf.yield" | "aie.end" | "arith.constant" | "arith.muli"
            | "arith.addi" | "arith.remui" | "arith.index_cast" => {}
            _ => return Err(format!("has {}, which is not emitted", op.name)),
        }
        if let Some(value) = op.operands.iter().find(|value| !self.defined.contains(value)) {
            return Err(format!("{} uses %{}, which is not defined before", op.name, value.number));
        }
        op.regions.iter().try_for_each(|region| self.region(region))
    }

    fn change(&self, op: &MlirOp) -> Checked {
        within(op, "action", 1..=2)?;
        within(op, "value", 1..=self.declared.target.compute.dma.max_lock.into())?;
        match self.declared.locks.get(&operand(op, 0)?) {
            Some((of, _)) if can_access(self.tile, *of) => Ok(()),
            _ => Err("uses a lock that it cannot reach".to_owned()),
        }
    }

    fn pointer(&self, op: &MlirOp) -> Checked {
        match self.declared.buffers.get(&operand(op, 0)?) {
            Some((of, ..)) if can_access(self.tile, *of) => Ok(()),
            _ => Err("uses a buffer that it cannot reach".to_owned()),
        }
    }

    fn call(&self, op: &MlirOp) -> Checked {
        let Some(MlirAttribute::Symbol(name)) = op.attribute("callee") else {
            return Err("calls nothing".to_owned());
        };
        let types = self.declared.functions.get(name.as_str());
        let types = types.ok_or_else(|| format!("calls {name}, which is not declared"))?;
        let given: Vec<MlirType> = op.operands.iter().map(|value| value.of).collect();
        if given == *types { Ok(()) } else { Err(format!("calls {name} with other types than it has")) }
    }
}
