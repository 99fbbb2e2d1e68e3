//! Cores: programs of loops, locks and kernel calls, and the cascade between
//! neighbours.

use super::agent::{Agent, Blocked, Due};
use super::fault::{FaultKind, SimFault};
use super::launch::LaunchSim;
use super::plan::{self, CallPlan, CoreOp};
use super::state::{CoreState, Doing};
use super::time::Cycle;
use super::watch::{Cause, SimEvent};
use crate::form::schedule::BufferId;
use crate::kernel::{CascadeUse, ENTRIES, OperandExtent};

/// The number of loop and lock operations without a call or a push after which a program
/// counts as endless.
pub(super) const MAX_IDLE_OPS: u64 = 1 << 24;

impl LaunchSim<'_> {
    /// Runs a core until it calls, waits or halts.
    pub fn run_core(&mut self, core: u32) -> Result<(), SimFault> {
        if matches!(self.cores[core as usize].doing, Doing::Calling | Doing::Halted) {
            return Ok(());
        }
        let plan = &self.plan.cores[core as usize];
        let unit = &self.target.core_unit;
        for _ in 0..MAX_IDLE_OPS {
            let state = &mut self.cores[core as usize];
            state.doing = Doing::Ready;
            let Some(&op) = plan.code.get(state.at) else {
                state.doing = Doing::Halted;
                state.free_at = state.free_at.max(self.now);
                return Ok(());
            };
            match op {
                CoreOp::Enter { count: 0, end } => state.at = end as usize + 1,
                CoreOp::Enter { .. } => {
                    state.counters.push(0);
                    state.at += 1;
                }
                CoreOp::Repeat { start } => {
                    repeat(state, &plan.code, start as usize);
                    self.spend(core, u64::from(unit.loop_cycles));
                }
                CoreOp::Acquire(lock, value) => {
                    if let Err(blocked) = self.locks[lock as usize].ready(lock, value) {
                        self.locks[lock as usize].wait(Agent::Core(core));
                        self.block(core, blocked);
                        return Ok(());
                    }
                    self.end_wait(core, self.now, Cause::Lock(lock));
                    let clock = self.clocks.as_mut().map(|clocks| clocks.of(core as usize));
                    self.locks[lock as usize].acquire(value, clock);
                    self.cores[core as usize].at += 1;
                    self.spend(core, u64::from(unit.lock_cycles));
                }
                CoreOp::Release(lock, value) => {
                    self.release(lock, value, core as usize)?;
                    self.cores[core as usize].at += 1;
                    self.spend(core, u64::from(unit.lock_cycles));
                }
                CoreOp::Call(call) => return self.call(core, call),
            }
        }
        let text = format!("core {} runs {MAX_IDLE_OPS} loop and lock operations without a call", plan.tile);
        Err(self.fault(FaultKind::Deadlock, text))
    }

    fn spend(&mut self, core: u32, cycles: Cycle) {
        let state = &mut self.cores[core as usize];
        state.free_at = state.free_at.max(self.now) + cycles;
    }

    /// Stops a core that cannot continue.
    fn block(&mut self, core: u32, blocked: Blocked) {
        let now = self.now;
        let state = &mut self.cores[core as usize];
        state.doing = Doing::Waiting(blocked);
        state.waits_since.get_or_insert(state.free_at.max(now));
    }

    /// Ends the wait of a core at `until`, if it was waiting.
    fn end_wait(&mut self, core: u32, until: Cycle, cause: Cause) {
        let Some(begin) = self.cores[core as usize].waits_since.take() else { return };
        if begin < until {
            let (tile, begin) = (self.plan.cores[core as usize].tile, self.observed_time(begin));
            self.emit_at(until, &SimEvent::Wait { tile, cause, begin });
        }
    }

    fn call(&mut self, core: u32, call: u32) -> Result<(), SimFault> {
        let plan = &self.plan.calls[call as usize];
        let entry = &ENTRIES[plan.entry];
        let at = core as usize;
        let drawn;
        let numbers: &[u32] = match &plan.constant {
            Some(numbers) => numbers,
            None => {
                let values = plan::values(entry, &plan.numbers, &self.cores[at].counters);
                let malformed =
                    |error: girih_tensor::Error| self.fault(FaultKind::Malformed, error.to_string());
                drawn = values.map_err(malformed)?;
                entry.check(&drawn).map_err(malformed)?;
                &drawn
            }
        };
        match entry.cascade {
            CascadeUse::None => {
                let cycles = self.cycles(core, call, numbers);
                self.compute(core, plan, numbers)?;
                self.begin_call(core, call, numbers, cycles);
                Ok(())
            }
            CascadeUse::Send => self.reach_cascade(core, core, call, numbers),
            CascadeUse::Receive => self.reach_cascade(core, sender_to(self, core), call, numbers),
        }
    }

    fn begin_call(&mut self, core: u32, call: u32, numbers: &[u32], cycles: Cycle) {
        let entry = &ENTRIES[self.plan.calls[call as usize].entry];
        self.spend(core, cycles);
        let macs = (entry.macs)(numbers);
        let state = &mut self.cores[core as usize];
        (state.at, state.doing) = (state.at + 1, Doing::Calling);
        state.busy += cycles;
        state.calls += 1;
        state.macs += macs;
        let wait = state.free_at - self.now;
        self.totals.macs += macs;
        let begin = self.now + wait - cycles;
        let (begin, end) = (self.observed_time(begin), self.observed_time(begin + cycles));
        let tile = self.plan.cores[core as usize].tile;
        self.emit(&SimEvent::Call { tile, entry: entry.name, begin, end, macs });
        self.schedule(wait, Due::Core(core));
    }

    /// Cycles of a call; looked up if its parameters are constant and it has
    /// run with the same slots before.
    fn cycles(&mut self, core: u32, call: u32, numbers: &[u32]) -> Cycle {
        let plan = &self.plan.calls[call as usize];
        let mut slots = 0;
        if plan.constant.is_some() {
            let counters = &self.cores[core as usize].counters;
            for operand in &plan.operands {
                let count = operand.slots.len() as i64;
                let turn = if count == 1 { 0 } else { operand.slot.at(counters).rem_euclid(count) };
                slots = slots * count as u32 + turn as u32;
            }
            let known = self.cores[core as usize].known.iter().find(|(key, _)| *key == (call, slots));
            if let Some((_, cycles)) = known {
                return *cycles;
            }
        }
        let counters = &self.cores[core as usize].counters;
        let bytes = ENTRIES[plan.entry].bytes(numbers);
        let extent = |(operand, bytes): (&crate::form::schedule::CallOperand, u64)| {
            let (BufferId(buffer), offset) = operand.at(counters);
            let buffer = &self.plan.buffers[buffer as usize];
            OperandExtent {
                tile: u32::from(buffer.tile.column) << 8 | u32::from(buffer.tile.row),
                address: buffer.address.saturating_add(offset.clamp(0, i64::from(u32::MAX)) as u32),
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            }
        };
        let extents: Vec<OperandExtent> = plan.operands.iter().zip(bytes).map(extent).collect();
        let cycles = self.table.cycles(plan.entry, numbers, &extents);
        if plan.constant.is_some() {
            self.cores[core as usize].known.push(((call, slots), cycles));
        }
        cycles
    }

    /// Brings a core to the cascade; words move when both ends have arrived.
    fn reach_cascade(&mut self, core: u32, sender: u32, call: u32, numbers: &[u32]) -> Result<(), SimFault> {
        let Some(receiver) = self.plan.cores.get(sender as usize).and_then(|plan| plan.sends_to) else {
            let text = format!("core {} has no such cascade link", self.plan.cores[core as usize].tile);
            return Err(self.fault(FaultKind::Malformed, text));
        };
        let other = if core == sender { receiver } else { sender };
        let state = &self.cores[other as usize];
        let waits = state.doing == Doing::Waiting(Blocked::Cascade);
        let theirs = match self.plan.cores[other as usize].code.get(state.at) {
            Some(&CoreOp::Call(theirs)) if waits => theirs,
            _ => {
                self.block(core, Blocked::Cascade);
                return Ok(());
            }
        };
        let needed = if core == sender { CascadeUse::Receive } else { CascadeUse::Send };
        let plan = &self.plan.calls[theirs as usize];
        if ENTRIES[plan.entry].cascade != needed {
            // The other core is in a chain and waits at its other link.
            self.block(core, Blocked::Cascade);
            return Ok(());
        }
        if plan.constant.as_deref() != Some(numbers) {
            let tiles = (self.plan.cores[sender as usize].tile, self.plan.cores[receiver as usize].tile);
            let text =
                format!("cores {} and {} send and receive with different parameters", tiles.0, tiles.1);
            return Err(self.fault(FaultKind::Malformed, text));
        }
        let (send, receive) = if core == sender { (call, theirs) } else { (theirs, call) };
        self.send_over_cascade(sender, receiver, send, receive, numbers)
    }

    fn send_over_cascade(
        &mut self,
        sender: u32,
        receiver: u32,
        send: u32,
        receive: u32,
        numbers: &[u32],
    ) -> Result<(), SimFault> {
        let cascade = &self.target.cascade;
        let bytes = u64::from(numbers[0]) * 4;
        let link = bytes.div_ceil(u64::from(cascade.bytes_per_cycle)) + u64::from(cascade.latency_cycles);
        let (out, back) = (self.cycles(sender, send, numbers), self.cycles(receiver, receive, numbers));
        self.copy_over_cascade(sender, receiver, send, receive, bytes)?;
        let begin =
            self.cores[sender as usize].free_at.max(self.cores[receiver as usize].free_at).max(self.now);
        for core in [sender, receiver] {
            self.end_wait(core, begin, Cause::Cascade);
            self.cores[core as usize].free_at = begin;
        }
        self.begin_call(sender, send, numbers, out + link);
        self.begin_call(receiver, receive, numbers, back + link);
        Ok(())
    }

    /// The buffer index and byte offset of an operand.
    pub fn operand(&self, core: u32, call: &CallPlan, operand: usize) -> (usize, i64) {
        let (BufferId(buffer), offset) = call.operands[operand].at(&self.cores[core as usize].counters);
        (buffer as usize, offset)
    }
}

/// The core that sends to `core`, or `u32::MAX` if there is no link.
fn sender_to(launch: &LaunchSim<'_>, core: u32) -> u32 {
    launch.plan.cores[core as usize].receives_from.unwrap_or(u32::MAX)
}

fn repeat(state: &mut CoreState, code: &[CoreOp], start: usize) {
    let CoreOp::Enter { count, .. } = code[start] else {
        unreachable!("a plan's repeat points to its enter")
    };
    let counter = state.counters.last_mut().expect("a repeat is inside its loop");
    *counter += 1;
    if *counter < count {
        state.at = start + 1;
    } else {
        state.counters.pop();
        state.at += 1;
    }
}
