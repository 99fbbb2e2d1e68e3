//! Time: the queue of events, and the loop that lets every part go on that may.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::channel::{ChannelState, RouteState};
use super::control::Control;
use super::core::{CoreState, Doing};
use super::ddr::Ddr;
use super::hazard::Clock;
use super::lock::Lock;
use super::memory::Store;
use super::plan::Plan;
use super::watch::{CoreTotals, Event, LaunchReport, Totals, Watch};
use super::{Blocked, Cycle, Fault, FaultKind, Order, Prepared};
use crate::form::schedule::{Direction, TileKind};
use crate::kernel::Table;
use crate::target::Target;

/// Somebody who may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    Core(u32),
    Route(u32),
    Control,
}

/// What the queue announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A core's call is over.
    Core(u32),
    /// A stream has moved its words.
    Route(u32),
    /// A stream's words reach DRAM, or come from there.
    Join(u32),
    /// A transfer of DRAM ends, if nothing has changed since this version.
    Ddr(u64),
    /// The command processor is done with a command.
    Control,
    /// A token of a channel arrives.
    Token(u32),
}

/// One launch under way.
pub(super) struct Machine<'a> {
    pub plan: &'a Plan,
    pub target: &'a Target,
    pub table: &'a Table,
    pub now: Cycle,
    begin: Cycle,
    queue: BinaryHeap<Reverse<(Cycle, u64, Due)>>,
    sequence: u64,
    random: Option<u64>,
    pub locks: Vec<Lock>,
    pub channels: Vec<ChannelState>,
    pub routes: Vec<RouteState>,
    pub cores: Vec<CoreState>,
    pub control: Control,
    pub ddr: Ddr,
    pub woken: Vec<Agent>,
    pub store: Option<Store<'a>>,
    pub clocks: Option<Vec<Clock>>,
    pub totals: Totals,
    watch: &'a mut dyn Watch,
}

/// Events after which a launch counts as endless.
const MOST_EVENTS: u64 = 1 << 34;
/// The longest time that a seeded order draws, in cycles.
const LONGEST_DRAW: u64 = 4096;
/// Of those who wait in a deadlock so many are named; the others are counted.
const MOST_NAMED: usize = 8;

impl<'a> Machine<'a> {
    pub fn new(
        plan: &'a Plan,
        target: &'a Target,
        table: &'a Table,
        store: Option<Store<'a>>,
        watch: &'a mut dyn Watch,
        order: Order,
        begin: Cycle,
    ) -> Machine<'a> {
        let most = |kind: TileKind| match kind {
            TileKind::Shim => target.shim.dma.most_lock,
            TileKind::Memory => target.memory.dma.most_lock,
            TileKind::Compute => target.compute.dma.most_lock,
        };
        let lock = |lock: &crate::form::schedule::TileLock| {
            let most = most(lock.tile.kind());
            Lock::new(u32::from(lock.initial).min(most), most)
        };
        Machine {
            plan,
            target,
            table,
            now: 0,
            begin,
            queue: BinaryHeap::new(),
            sequence: 0,
            random: match order {
                Order::Earliest => None,
                Order::Seeded(seed) => Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            },
            locks: plan.locks.iter().map(lock).collect(),
            channels: plan.channels.iter().map(|_| ChannelState::default()).collect(),
            routes: plan.routes.iter().map(|_| RouteState::default()).collect(),
            cores: plan.cores.iter().map(|_| CoreState::default()).collect(),
            control: Control::default(),
            ddr: Ddr::new(target.dram_bytes_per_cycle()),
            woken: Vec::new(),
            store,
            clocks: None,
            totals: Totals::default(),
            watch,
        }
    }

    /// Looks for accesses that nothing orders, if values are computed.
    pub fn look_for_hazards(&mut self, program: &Prepared) {
        let Some(store) = &mut self.store else { return };
        let agents = self.cores.len() + self.channels.len() + 1;
        let mut before = Clock::new(agents);
        before.step(agents - 1);
        store.look_for_hazards(program, self.plan, &before, agents - 1);
        self.locks.iter_mut().for_each(|lock| lock.begin(before.clone()));
        let clock = |agent: usize| {
            let mut clock = before.clone();
            clock.step(agent);
            clock
        };
        self.clocks = Some((0..agents).map(clock).collect());
    }

    /// Runs the launch to its end.
    pub fn run(mut self) -> Result<LaunchReport, Fault> {
        for &(channel, task) in &self.plan.starts {
            self.enqueue(channel, task, 0);
        }
        self.woken.push(Agent::Control);
        self.woken.extend((0..self.plan.routes.len() as u32).map(Agent::Route));
        self.woken.extend((0..self.plan.cores.len() as u32).map(Agent::Core));
        self.settle()?;
        let mut ended = self.ended();
        while let Some(Reverse((at, _, due))) = self.queue.pop() {
            if let (Some(end), Due::Route(_) | Due::Ddr(_)) = (ended, due)
                && at > end
                && self.moves(due)
            {
                return Err(self.fault(FaultKind::Unfinished, self.under_way(due)));
            }
            self.now = at;
            self.totals.events += 1;
            if self.totals.events > MOST_EVENTS {
                return Err(self.fault(FaultKind::Deadlock, "the launch does not end".to_owned()));
            }
            self.happen(due)?;
            self.settle()?;
            ended = ended.or_else(|| self.ended());
        }
        let Some(end) = ended else { return Err(self.deadlock()) };
        self.finished()?;
        Ok(self.report(end))
    }

    fn happen(&mut self, due: Due) -> Result<(), Fault> {
        match due {
            Due::Core(core) => {
                self.cores[core as usize].doing = Doing::Ready;
                self.woken.push(Agent::Core(core));
                Ok(())
            }
            Due::Route(route) => self.moved(route),
            Due::Join(route) => {
                self.join(route);
                Ok(())
            }
            Due::Ddr(version) => self.served(version),
            Due::Control => {
                self.control.free = true;
                self.woken.push(Agent::Control);
                Ok(())
            }
            Due::Token(channel) => {
                self.token(channel);
                Ok(())
            }
        }
    }

    /// Lets everybody go on who has been woken, until nobody can.
    fn settle(&mut self) -> Result<(), Fault> {
        loop {
            let pick = match &mut self.random {
                None => 0,
                Some(_) if self.woken.len() < 2 => 0,
                Some(state) => draw(state) as usize % self.woken.len(),
            };
            if self.woken.is_empty() {
                return Ok(());
            }
            match self.woken.remove(pick) {
                Agent::Core(core) => self.go_on(core)?,
                Agent::Route(route) => self.flow(route)?,
                Agent::Control => self.command()?,
            }
        }
    }

    /// Announces something in so many cycles.
    pub fn announce(&mut self, cycles: Cycle, due: Due) {
        let cycles = match &mut self.random {
            // Short and long times alike: a power of two, then a part of it.
            Some(state) => {
                let scale = 1 << (draw(state) % (LONGEST_DRAW.ilog2() as u64 + 1));
                1 + draw(state) % scale
            }
            None => cycles,
        };
        self.announce_at(self.now + cycles, due);
    }

    /// Announces something at a time that is not drawn.
    pub fn announce_at(&mut self, at: Cycle, due: Due) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence, due)));
    }

    /// Whether times are drawn from a seed.
    pub fn seeded(&self) -> bool {
        self.random.is_some()
    }

    pub fn tell(&mut self, event: &Event<'_>) {
        self.tell_at(self.now, event);
    }

    pub fn tell_at(&mut self, cycle: Cycle, event: &Event<'_>) {
        self.watch.event(self.begin + cycle, event);
    }

    /// A time of this launch as observers count it.
    pub fn told(&self, cycle: Cycle) -> Cycle {
        self.begin + cycle
    }

    /// When the launch ended: the commands have run and all cores have halted.
    fn ended(&self) -> Option<Cycle> {
        let cores = self.cores.iter().map(|core| match core.doing {
            Doing::Halted => Some(core.free_at),
            _ => None,
        });
        cores.fold(self.control.ended, |end, core| Some(end?.max(core?)))
    }

    /// Whether the announcement is still true.
    fn moves(&self, due: Due) -> bool {
        match due {
            Due::Ddr(version) => version == self.ddr.version,
            _ => true,
        }
    }

    fn under_way(&self, due: Due) -> String {
        match due {
            Due::Route(route) => {
                let from = self.plan.routes[route as usize].from as usize;
                format!("channel {} still sends when the launch has ended", self.plan.channels[from].channel)
            }
            _ => "a transfer to or from DRAM is under way when the launch has ended: wait for its token"
                .to_owned(),
        }
    }

    /// No channel may be within a pass of which words have moved, or hold a
    /// task that the command processor gave it.
    fn finished(&self) -> Result<(), Fault> {
        for (state, plan) in self.channels.iter().zip(&self.plan.channels) {
            if let Some(text) = state.unfinished() {
                let sentence = format!("channel {} {text} when the launch has ended", plan.channel);
                return Err(self.fault(FaultKind::Unfinished, sentence));
            }
        }
        Ok(())
    }

    /// Names who waits, and for what: the command processor first, as there is
    /// one of it only, then cores and channels.
    fn deadlock(&self) -> Fault {
        let control = self.control.blocked.map(|blocked| ("the command processor".to_owned(), blocked));
        let cores = self.cores.iter().zip(&self.plan.cores).filter_map(|(state, plan)| match state.doing {
            Doing::Waiting(blocked) => Some((format!("core {}", plan.tile), blocked)),
            _ => None,
        });
        let channels = self.channels.iter().zip(&self.plan.channels);
        let channels = channels.filter_map(|(state, plan)| match state.blocked {
            Some(blocked @ Blocked::Lock { .. }) => Some((format!("channel {}", plan.channel), blocked)),
            _ => None,
        });
        let waiting: Vec<(String, Blocked)> = control.into_iter().chain(cores).chain(channels).collect();
        let (named, others) = waiting.split_at(waiting.len().min(MOST_NAMED));
        let named = named.iter().map(|(who, blocked)| format!("{who} waits for {}", self.cause(*blocked)));
        let others = (!others.is_empty()).then(|| format!("{} more wait", others.len()));
        let waits: Vec<String> = named.chain(others).collect();
        self.fault(FaultKind::Deadlock, waits.join("; "))
    }

    fn cause(&self, blocked: Blocked) -> String {
        match blocked {
            Blocked::Idle => "a task".to_owned(),
            Blocked::Lock { lock, needs, has } => {
                let tile = self.plan.locks[lock as usize].tile;
                format!("lock l{lock} of tile {tile}, which is {has} and must be {needs}")
            }
            Blocked::Cascade => "its neighbour in the cascade".to_owned(),
            Blocked::Queue { channel } => {
                format!("a place in the queue of {}", self.plan.channels[channel as usize].channel)
            }
            Blocked::Token { channel } => {
                format!("a token of {}", self.plan.channels[channel as usize].channel)
            }
        }
    }

    pub fn fault(&self, kind: FaultKind, text: String) -> Fault {
        Fault { kind, cycle: self.now, sentence: format!("launch {}: {text}", self.plan.name) }
    }

    fn report(self, end: Cycle) -> LaunchReport {
        let core = |(state, plan): (&CoreState, &super::plan::CorePlan)| CoreTotals {
            tile: plan.tile,
            busy: state.busy,
            calls: state.calls,
            macs: state.macs,
        };
        LaunchReport {
            name: self.plan.name.clone(),
            begin: self.begin,
            cycles: end,
            cores: self.cores.iter().zip(&self.plan.cores).map(core).collect(),
            totals: self.totals,
        }
    }

    /// Which way a channel's bytes go through DRAM, if they do.
    pub fn dram(&self, channel: u32) -> Option<Direction> {
        let channel = self.plan.channels[channel as usize].channel;
        (channel.tile.kind() == TileKind::Shim).then_some(channel.direction)
    }

    /// The place of a core's or a channel's clock.
    pub fn channel_clock(&self, channel: u32) -> usize {
        self.cores.len() + channel as usize
    }

    /// The place of the command processor's clock.
    pub fn control_clock(&self) -> usize {
        self.cores.len() + self.channels.len()
    }

    /// The name of the agent with this clock.
    pub fn agent_name(&self, clock: usize) -> String {
        if let Some(core) = self.plan.cores.get(clock) {
            return format!("core {}", core.tile);
        }
        match self.plan.channels.get(clock - self.plan.cores.len()) {
            Some(plan) => format!("channel {}", plan.channel),
            None => "the command processor".to_owned(),
        }
    }
}

/// The next number of a xorshift generator (Marsaglia 2003).
fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}
