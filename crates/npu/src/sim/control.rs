//! The command processor: pushes tasks to channels, one register write after
//! another, and waits for their tokens.

use super::agent::{Agent, Blocked, Due};
use super::core::MAX_IDLE_OPS;
use super::fault::{FaultKind, SimFault};
use super::hazard::VectorClock;
use super::launch::LaunchSim;
use super::plan::{ControlOp, TaskPlan};
use super::watch::SimEvent;
use crate::form::schedule::TileKind;

impl LaunchSim<'_> {
    /// Runs commands until one takes time or has to wait.
    pub fn run_commands(&mut self) -> Result<(), SimFault> {
        if self.control.ended.is_some() || (self.control.busy && !self.control.free) {
            return Ok(());
        }
        (self.control.busy, self.control.free, self.control.blocked) = (false, false, None);
        let plan = self.plan;
        for _ in 0..MAX_IDLE_OPS {
            match plan.commands.get(self.control.at) {
                None => {
                    self.control.ended = Some(self.now);
                    return self.idle_shims();
                }
                Some(&ControlOp::Enter { count: 0, end }) => self.control.at = end as usize + 1,
                Some(ControlOp::Enter { .. }) => {
                    self.control.counters.push(0);
                    self.control.at += 1;
                }
                Some(&ControlOp::Repeat { start }) => self.repeat(start as usize),
                Some(ControlOp::Push(channel, task, offset)) => {
                    let offset = offset.at(&self.control.counters);
                    if !self.push(*channel, TaskPlan { offset, ..*task }) {
                        return Ok(());
                    }
                }
                Some(&ControlOp::Wait { channel, is_last }) => {
                    if !self.wait(channel, is_last) {
                        return Ok(());
                    }
                }
            }
        }
        let text = format!("the command processor runs {MAX_IDLE_OPS} loop operations without a push");
        Err(self.fault(FaultKind::Deadlock, text))
    }

    /// Checks that no shim channel has a task: the next launch writes its descriptors.
    fn idle_shims(&self) -> Result<(), SimFault> {
        for (state, plan) in self.channels.iter().zip(&self.plan.channels) {
            if plan.channel.tile.kind() == TileKind::Shim
                && let Some(text) = state.unfinished()
            {
                let sentence = format!("channel {} {text} when the commands end: wait for it", plan.channel);
                return Err(self.fault(FaultKind::Unfinished, sentence));
            }
        }
        Ok(())
    }

    fn repeat(&mut self, start: usize) {
        let ControlOp::Enter { count, .. } = self.plan.commands[start] else {
            unreachable!("a plan's repeat points to its enter")
        };
        let counter = self.control.counters.last_mut().expect("a repeat is inside its loop");
        *counter += 1;
        if *counter < count {
            self.control.at = start + 1;
        } else {
            self.control.counters.pop();
            self.control.at += 1;
        }
    }

    /// Writes a task's registers, then queues the task. Returns false until
    /// that is finished.
    fn push(&mut self, channel: u32, task: TaskPlan) -> bool {
        if !self.control.writing {
            let control = &self.target.control;
            let cycles = self.target.cycles((control.block_write_ns + control.write_ns) * 1e-9);
            self.control.writing = true;
            self.control.busy = true;
            self.schedule(cycles, Due::Control);
            return false;
        }
        if let Err(blocked) =
            self.channels[channel as usize].room(channel, &self.plan.channels[channel as usize])
        {
            self.control.blocked = Some(blocked);
            return false;
        }
        self.control.writing = false;
        self.control.at += 1;
        self.enqueue(channel, task, self.now);
        if self.clocks.is_some() {
            let at = self.control_clock();
            let clock = self.publish(at);
            self.channels[channel as usize].given.push_back(clock);
        }
        self.totals.pushes += 1;
        let plan = &self.plan.channels[channel as usize];
        let event = SimEvent::Push { channel: plan.channel };
        self.woken.push(Agent::Route(plan.route));
        self.emit(&event);
        true
    }

    /// Takes a token. Returns false if the token is missing, or if taking it takes time: that of the
    /// last token of a command.
    fn wait(&mut self, channel: u32, is_last: bool) -> bool {
        let state = &mut self.channels[channel as usize];
        if let Err(blocked) = state.has_token(channel) {
            self.control.blocked = Some(blocked);
            return false;
        }
        state.tokens -= 1;
        if let Some(clock) = state.ended.pop_front() {
            let at = self.control_clock();
            self.join_clock(at, &clock);
        }
        self.control.at += 1;
        let event = SimEvent::Token { channel: self.plan.channels[channel as usize].channel };
        self.emit(&event);
        if is_last {
            self.control.busy = true;
            self.schedule(self.target.cycles(self.target.control.poll_ns * 1e-9), Due::Control);
        }
        !is_last
    }

    /// Delivers a token to the command processor.
    pub fn token(&mut self, channel: u32) {
        self.channels[channel as usize].tokens += 1;
        if self.control.blocked == Some(Blocked::Token { channel }) {
            self.woken.push(Agent::Control);
        }
    }

    /// Returns the clock of an agent, then starts its next step.
    pub fn publish(&mut self, agent: usize) -> VectorClock {
        self.clocks.as_mut().expect("hazards are checked").publish(agent)
    }

    /// Joins another clock into the clock of an agent.
    pub fn join_clock(&mut self, agent: usize, clock: &VectorClock) {
        if let Some(clocks) = &mut self.clocks {
            clocks.of(agent).join(clock);
        }
    }
}
