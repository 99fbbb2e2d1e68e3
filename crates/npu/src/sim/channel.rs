//! DMA channels and the streams between them.
//!
//! A stream moves words while each of its ends is in a pass of a descriptor,
//! and stops when the first of these passes ends. So the hand-off of a buffer
//! is one event, whatever its size.

use super::agent::{Agent, Blocked, Due};
use super::fault::{FaultKind, SimFault};
use super::launch::LaunchSim;
use super::plan::TaskPlan;
use super::state::{DescriptorPass, RunningTask};
use super::time::Cycle;
use super::watch::SimEvent;
use crate::form::schedule::Direction;

impl LaunchSim<'_> {
    /// Queues a task.
    pub fn enqueue(&mut self, channel: u32, task: TaskPlan, at: Cycle) {
        self.channels[channel as usize].queue.push_back((task, at));
    }

    /// Starts a stream if all its ends are ready.
    pub fn start_stream(&mut self, route: u32) -> Result<(), SimFault> {
        if self.routes[route as usize].moving {
            return Ok(());
        }
        let plan = &self.plan.routes[route as usize];
        let mut words = u64::MAX;
        let (mut ready, mut fresh, mut blocked) = (self.now, false, false);
        for &end in std::iter::once(&plan.from).chain(&plan.to) {
            fresh |= self.channels[end as usize].pass.is_none();
            match self.begin_pass(end, route) {
                Ok(at) => ready = ready.max(at),
                Err(why) => {
                    self.channels[end as usize].blocked = Some(why);
                    blocked = true;
                    continue;
                }
            }
            let pass = self.channels[end as usize].pass.expect("a pass has just begun");
            words = words.min(self.plan.descriptors[pass.descriptor as usize].words - pass.done);
        }
        if !blocked {
            self.start_move(route, words, ready, fresh);
        }
        Ok(())
    }

    /// Begins a pass of a channel unless one is running. Returns the cycle at
    /// which its first word can move.
    fn begin_pass(&mut self, channel: u32, route: u32) -> Result<Cycle, Blocked> {
        let at = channel as usize;
        if self.channels[at].pass.is_some() {
            return Ok(self.channels[at].ready);
        }
        if self.channels[at].task.is_none() {
            self.take_task(channel)?;
        }
        let task = self.channels[at].task.expect("a task has been taken");
        let descriptor = &self.plan.descriptors[task.descriptor as usize];
        if let Some((lock, value)) = descriptor.acquire {
            let state = &mut self.locks[lock as usize];
            if let Err(blocked) = state.ready(lock, value) {
                state.wait(Agent::Route(route));
                return Err(blocked);
            }
            let clock = self.cores.len() + at;
            state.acquire(value, self.clocks.as_mut().map(|clocks| clocks.of(clock)));
        }
        let state = &mut self.channels[at];
        let step =
            descriptor.iteration.map_or(0, |(size, stride)| (task.passes % size * stride * 4).cast_signed());
        state.pass = Some(DescriptorPass {
            descriptor: task.descriptor,
            done: 0,
            offset: task.plan.offset.wrapping_add(step),
        });
        state.blocked = None;
        Ok(state.ready)
    }

    fn take_task(&mut self, channel: u32) -> Result<(), Blocked> {
        let plan = &self.plan.channels[channel as usize];
        let state = &mut self.channels[channel as usize];
        let Some((task, pushed)) = state.queue.pop_front() else { return Err(Blocked::Idle) };
        state.task =
            Some(RunningTask { plan: task, descriptor: task.descriptor, left: task.repeats, passes: 0 });
        // The latency counts from the push, because a queued task is prefetched.
        state.ready = pushed + plan.latency;
        let given = if task.pushed { state.given.pop_front() } else { None };
        if let Some(clock) = given {
            let at = self.channel_clock(channel);
            self.join_clock(at, &clock);
        }
        if self.control.blocked == Some(Blocked::Queue { channel }) {
            self.woken.push(Agent::Control);
        }
        Ok(())
    }

    /// Starts a move. A stream that continues without a stop has no latency.
    fn start_move(&mut self, route: u32, words: u64, ready: Cycle, fresh: bool) {
        let plan = &self.plan.routes[route as usize];
        let (dma, stream) = (&self.target.dma, &self.target.stream);
        let continues = self.routes[route as usize].stopped == Some(self.now);
        let overhead = match (continues, fresh) {
            (true, false) => 0,
            (true, true) => u64::from(dma.switch_cycles),
            (false, _) => u64::from(dma.start_cycles) + plan.hops * u64::from(stream.hop_cycles),
        };
        let dram = self.crosses_dram(route);
        let begin = if dram && continues { ready } else { ready.max(self.now + overhead) };
        let state = &mut self.routes[route as usize];
        (state.moving, state.words, state.begin) = (true, words, begin);
        if self.seeded() || !dram {
            let cycles = (words * 4).div_ceil(u64::from(stream.bytes_per_cycle));
            self.schedule(begin - self.now + cycles, Due::Route(route));
        } else if begin == self.now {
            self.start_dram_transfer(route);
        } else {
            self.schedule_at(begin, Due::DramStart(route));
        }
    }

    fn crosses_dram(&self, route: u32) -> bool {
        let plan = &self.plan.routes[route as usize];
        std::iter::once(&plan.from).chain(&plan.to).any(|&end| self.dram_direction(end).is_some())
    }

    /// Adds a stream's words to the DRAM server.
    pub fn start_dram_transfer(&mut self, route: u32) {
        let plan = &self.plan.routes[route as usize];
        let bytes = (self.routes[route as usize].words * 4) as f64;
        let mut cost = 0.0;
        for &end in std::iter::once(&plan.from).chain(&plan.to) {
            if let (Some(_), Some(pass)) = (self.dram_direction(end), self.channels[end as usize].pass) {
                let run = self.plan.descriptors[pass.descriptor as usize].order.run as f64 * 4.0;
                cost += 1.0 / self.target.dram.efficiency(run);
            }
        }
        let cap = f64::from(self.target.stream.bytes_per_cycle);
        self.totals.dram_service += (bytes * cost) as u64;
        self.dram.join(self.now, route, bytes, cap, cost);
        self.schedule_dram_end();
    }

    /// Schedules the next end of a DRAM transfer.
    fn schedule_dram_end(&mut self) {
        if let Some(at) = self.dram.next_end() {
            self.schedule_at(at, Due::DramEnd(self.dram.version));
        }
    }

    /// Finishes DRAM transfers, unless the event is stale.
    pub fn finish_dram_transfers(&mut self, version: u64) -> Result<(), SimFault> {
        if version != self.dram.version {
            return Ok(());
        }
        let mut ended = Vec::new();
        self.dram.remove_ended(self.now, &mut ended);
        self.schedule_dram_end();
        ended.into_iter().try_for_each(|route| self.finish_move(route))
    }

    /// Finishes a move: copies and checks the words and ends completed passes.
    pub fn finish_move(&mut self, route: u32) -> Result<(), SimFault> {
        let plan = &self.plan.routes[route as usize];
        let state = &mut self.routes[route as usize];
        let (words, begin) = (state.words, state.begin);
        (state.moving, state.stopped) = (false, Some(self.now));
        self.move_words(route, words)?;
        self.totals.streamed += words * 4;
        let (from, to) = (plan.from, plan.to[0]);
        let event = SimEvent::Move {
            from: self.plan.channels[from as usize].channel,
            to: self.plan.channels[to as usize].channel,
            bytes: words * 4,
            begin: self.observed_time(begin.min(self.now)),
        };
        self.emit(&event);
        for &end in std::iter::once(&plan.from).chain(&plan.to) {
            match self.dram_direction(end) {
                Some(Direction::Mm2s) => self.totals.dram_read += words * 4,
                Some(Direction::S2mm) => self.totals.dram_written += words * 4,
                None => (),
            }
            let pass = self.channels[end as usize].pass.as_mut().expect("a stream moves within passes");
            pass.done += words;
            if pass.done == self.plan.descriptors[pass.descriptor as usize].words {
                self.end_pass(end)?;
            }
        }
        self.woken.push(Agent::Route(route));
        Ok(())
    }

    fn end_pass(&mut self, channel: u32) -> Result<(), SimFault> {
        self.check_pass(channel)?;
        let at = channel as usize;
        let pass = self.channels[at].pass.take().expect("the pass has just moved words");
        let descriptor = &self.plan.descriptors[pass.descriptor as usize];
        if let Some((lock, value)) = descriptor.release {
            self.release(lock, value, self.channel_clock(channel))?;
        }
        let state = &mut self.channels[at];
        let task = state.task.as_mut().expect("a pass belongs to a task");
        task.passes += u64::from(pass.descriptor == task.plan.descriptor);
        if let Some(next) = descriptor.next {
            task.descriptor = next;
            return Ok(());
        }
        task.left -= 1;
        if task.left > 0 {
            task.descriptor = task.plan.descriptor;
            return Ok(());
        }
        let token = task.plan.token;
        state.task = None;
        if token {
            self.yield_token(channel);
        }
        Ok(())
    }

    /// Sends a token; the token of a write leaves after DRAM has acknowledged.
    fn yield_token(&mut self, channel: u32) {
        if self.clocks.is_some() {
            let clock = self.publish(self.channel_clock(channel));
            self.channels[channel as usize].ended.push_back(clock);
        }
        let wait = match self.dram_direction(channel) {
            Some(Direction::S2mm) => self.plan.channels[channel as usize].latency,
            _ => 0,
        };
        self.schedule(wait, Due::Token(channel));
    }

    /// Releases units of a lock.
    pub fn release(&mut self, lock: u32, value: u32, agent: usize) -> Result<(), SimFault> {
        let clock = self.clocks.is_some().then(|| self.publish(agent));
        if self.locks[lock as usize].release(value, clock.as_ref(), &mut self.woken) {
            return Ok(());
        }
        let (name, tile) = (self.agent_name(agent), self.plan.locks[lock as usize].tile);
        let has = self.locks[lock as usize].value();
        let text = format!("{name} releases {value} of lock l{lock} of tile {tile}, which is {has} already");
        Err(self.fault(FaultKind::Overrun, text))
    }
}
