//! A running launch: the event queue, and the loop that wakes agents.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::agent::{Agent, Blocked, Due};
use super::dram::DramServer;
use super::fault::{FaultKind, SimFault};
use super::hazard::{AgentClocks, TILE_AGENTS, VectorClock};
use super::plan::{ChannelPlan, CorePlan, LaunchPlan, PreparedSchedule};
use super::semaphore::Semaphore;
use super::state::{ChannelState, ControlState, CoreState, Doing, RouteState};
use super::store::LaunchMemory;
use super::time::{Cycle, EventOrder};
use super::watch::{CoreTotals, LaunchReport, SimEvent, SimWatch, Totals};
use crate::form::schedule::{Direction, Tile, TileKind};
use crate::kernel::KernelTimes;
use crate::target::Target;

/// One running launch.
pub(super) struct LaunchSim<'a> {
    pub plan: &'a LaunchPlan,
    pub target: &'a Target,
    pub table: &'a KernelTimes,
    pub now: Cycle,
    begin: Cycle,
    queue: BinaryHeap<Reverse<(Cycle, u64, Due)>>,
    sequence: u64,
    random: Option<u64>,
    pub locks: Vec<Semaphore>,
    pub channels: Vec<ChannelState>,
    pub routes: Vec<RouteState>,
    pub cores: Vec<CoreState>,
    pub control: ControlState,
    pub dram: DramServer,
    pub woken: Vec<Agent>,
    pub store: LaunchMemory<'a>,
    pub clocks: Option<AgentClocks>,
    pub totals: Totals,
    watch: &'a mut dyn SimWatch,
}

/// How a launch is checked for unordered accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HazardCheck {
    /// By the locks of each tile alone, where the launch allows it. Finds a suspicion.
    ByTile,
    /// By the whole order of the launch. Finds a fault.
    Exact,
}

/// The end of a launch.
pub(super) struct LaunchEnd {
    pub report: LaunchReport,
    /// Whether accesses may be unordered: an exact check decides.
    pub is_suspected: bool,
}

/// The number of events after which a launch counts as endless.
const MAX_EVENTS: u64 = 1 << 34;
/// The longest time drawn in a seeded order, in cycles.
const MAX_DRAWN_CYCLES: u64 = 4096;
/// The number of waiting agents that a deadlock message names; the others are
/// counted.
const MAX_NAMED: usize = 8;

impl<'a> LaunchSim<'a> {
    pub fn new(
        plan: &'a LaunchPlan,
        target: &'a Target,
        table: &'a KernelTimes,
        store: LaunchMemory<'a>,
        watch: &'a mut dyn SimWatch,
        order: EventOrder,
        begin: Cycle,
    ) -> LaunchSim<'a> {
        let max_value = |kind: TileKind| match kind {
            TileKind::Shim => target.shim.dma.max_lock,
            TileKind::Memory => target.memory.dma.max_lock,
            TileKind::Compute => target.compute.dma.max_lock,
        };
        let lock = |lock: &crate::form::schedule::TileLock| {
            let max = max_value(lock.tile.kind());
            Semaphore::new(u32::from(lock.initial).min(max), max)
        };
        LaunchSim {
            plan,
            target,
            table,
            now: 0,
            begin,
            queue: BinaryHeap::new(),
            sequence: 0,
            random: match order {
                EventOrder::Earliest => None,
                EventOrder::Seeded(seed) => Some(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            },
            locks: plan.locks.iter().map(lock).collect(),
            channels: plan.channels.iter().map(|_| ChannelState::default()).collect(),
            routes: plan.routes.iter().map(|_| RouteState::default()).collect(),
            cores: plan.cores.iter().map(|_| CoreState::default()).collect(),
            control: ControlState::default(),
            dram: DramServer::new(target.dram_bytes_per_cycle()),
            woken: Vec::new(),
            store,
            clocks: None,
            totals: Totals::default(),
            watch,
        }
    }

    /// Checks for unordered accesses.
    pub fn look_for_hazards(&mut self, program: &PreparedSchedule, depth: HazardCheck) {
        let agents = self.cores.len() + self.channels.len() + 1;
        let mut before = VectorClock::new(agents);
        before.step(agents - 1);
        self.store.look_for_hazards(program, self.plan, &before, agents - 1);
        let places = (depth == HazardCheck::ByTile).then(|| self.places_in_tiles()).flatten();
        let (clocks, begun) = match places {
            Some(places) => (AgentClocks::by_tile(&places, &before), VectorClock::Tile([0; TILE_AGENTS])),
            None => (AgentClocks::exact(agents, &before), before),
        };
        self.locks.iter_mut().for_each(|lock| lock.begin(begun.clone()));
        self.clocks = Some(clocks);
    }

    /// The place of each agent among those of its tile; none for channels of shims and for the
    /// command processor. None at all if a core reaches into another tile.
    fn places_in_tiles(&self) -> Option<Vec<Option<usize>>> {
        if !self.plan.is_within_tiles() {
            return None;
        }
        let mut next: HashMap<Tile, usize> = HashMap::new();
        let channel = |plan: &ChannelPlan| {
            let tile = plan.channel.tile;
            let place = next.entry(tile).or_default();
            *place += usize::from(tile.kind() != TileKind::Shim);
            (*place > 0).then_some(*place)
        };
        let channels: Vec<Option<usize>> = self.plan.channels.iter().map(channel).collect();
        if channels.iter().flatten().any(|place| *place >= TILE_AGENTS) {
            return None;
        }
        let cores = std::iter::repeat_n(Some(0), self.plan.cores.len());
        Some(cores.chain(channels).chain([None]).collect())
    }

    /// Runs the launch to its end.
    pub fn run(mut self) -> Result<LaunchEnd, SimFault> {
        for &(channel, task) in &self.plan.starts {
            self.enqueue(channel, task, 0);
        }
        self.woken.push(Agent::Control);
        self.woken.extend((0..self.plan.routes.len() as u32).map(Agent::Route));
        self.woken.extend((0..self.plan.cores.len() as u32).map(Agent::Core));
        self.run_woken()?;
        let mut ended = self.ended();
        while let Some(Reverse((at, _, due))) = self.queue.pop() {
            if let (Some(end), Due::Route(_) | Due::DramEnd(_)) = (ended, due)
                && at > end
                && self.moves(due)
            {
                return Err(self.fault(FaultKind::Unfinished, self.unfinished_move(due)));
            }
            self.now = at;
            self.totals.events += 1;
            if self.totals.events > MAX_EVENTS {
                return Err(
                    self.fault(FaultKind::Deadlock, format!("the launch exceeds {MAX_EVENTS} events"))
                );
            }
            self.handle(due)?;
            self.run_woken()?;
            ended = ended.or_else(|| self.ended());
        }
        let Some(end) = ended else { return Err(self.deadlock()) };
        self.finished()?;
        let is_suspected = self.clocks.as_ref().is_some_and(|clocks| clocks.is_suspected);
        Ok(LaunchEnd { report: self.report(end), is_suspected })
    }

    fn handle(&mut self, due: Due) -> Result<(), SimFault> {
        match due {
            Due::Core(core) => {
                self.cores[core as usize].doing = Doing::Ready;
                self.woken.push(Agent::Core(core));
                Ok(())
            }
            Due::Route(route) => self.finish_move(route),
            Due::DramStart(route) => {
                self.start_dram_transfer(route);
                Ok(())
            }
            Due::DramEnd(version) => self.finish_dram_transfers(version),
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

    /// Runs agents that were woken until none can continue.
    fn run_woken(&mut self) -> Result<(), SimFault> {
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
                Agent::Core(core) => self.run_core(core)?,
                Agent::Route(route) => self.start_stream(route)?,
                Agent::Control => self.run_commands()?,
            }
        }
    }

    /// Schedules an event `cycles` from now; a seeded order draws the time
    /// instead.
    pub fn schedule(&mut self, cycles: Cycle, due: Due) {
        let cycles = match &mut self.random {
            // Draws a power of two first, then a time below it, so that short and long
            // times are equally frequent.
            Some(state) => {
                let scale = 1 << (draw(state) % (MAX_DRAWN_CYCLES.ilog2() as u64 + 1));
                1 + draw(state) % scale
            }
            None => cycles,
        };
        self.schedule_at(self.now + cycles, due);
    }

    /// Schedules an event at a fixed time.
    pub fn schedule_at(&mut self, at: Cycle, due: Due) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence, due)));
    }

    /// Whether times are drawn from a seed.
    pub fn seeded(&self) -> bool {
        self.random.is_some()
    }

    pub fn emit(&mut self, event: &SimEvent<'_>) {
        self.emit_at(self.now, event);
    }

    pub fn emit_at(&mut self, cycle: Cycle, event: &SimEvent<'_>) {
        self.watch.event(self.begin + cycle, event);
    }

    /// Converts a time of this launch to the time that observers see.
    pub fn observed_time(&self, cycle: Cycle) -> Cycle {
        self.begin + cycle
    }

    /// The end of the launch: all commands have run and all cores have halted.
    fn ended(&self) -> Option<Cycle> {
        let cores = self.cores.iter().map(|core| match core.doing {
            Doing::Halted => Some(core.free_at),
            _ => None,
        });
        cores.fold(self.control.ended, |end, core| Some(end?.max(core?)))
    }

    /// Whether the event is still valid.
    fn moves(&self, due: Due) -> bool {
        match due {
            Due::DramEnd(version) => version == self.dram.version,
            _ => true,
        }
    }

    fn unfinished_move(&self, due: Due) -> String {
        match due {
            Due::Route(route) => {
                let from = self.plan.routes[route as usize].from as usize;
                format!("channel {} is still sending when the launch ends", self.plan.channels[from].channel)
            }
            _ => "a transfer to or from DRAM is still running when the launch ends: wait for its token"
                .to_owned(),
        }
    }

    /// Checks that no channel has a partly moved pass or a task from the
    /// command processor.
    fn finished(&self) -> Result<(), SimFault> {
        for (state, plan) in self.channels.iter().zip(&self.plan.channels) {
            if let Some(text) = state.unfinished() {
                let sentence = format!("channel {} {text} when the launch ends", plan.channel);
                return Err(self.fault(FaultKind::Unfinished, sentence));
            }
        }
        Ok(())
    }

    /// Names the waiting agents and what they wait for: the command processor
    /// first, because there is only one, then cores and channels.
    fn deadlock(&self) -> SimFault {
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
        let (named, others) = waiting.split_at(waiting.len().min(MAX_NAMED));
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
                format!("a slot in the queue of {}", self.plan.channels[channel as usize].channel)
            }
            Blocked::Token { channel } => {
                format!("a token of {}", self.plan.channels[channel as usize].channel)
            }
        }
    }

    pub fn fault(&self, kind: FaultKind, text: String) -> SimFault {
        SimFault { kind, cycle: self.now, sentence: format!("launch {}: {text}", self.plan.name) }
    }

    fn report(self, end: Cycle) -> LaunchReport {
        let core = |(state, plan): (&CoreState, &CorePlan)| CoreTotals {
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

    /// The direction of a channel between the array and DRAM; none for channels
    /// inside the array.
    pub fn dram_direction(&self, channel: u32) -> Option<Direction> {
        let channel = self.plan.channels[channel as usize].channel;
        (channel.tile.kind() == TileKind::Shim).then_some(channel.direction)
    }

    /// The index of a channel's clock; a core's clock has the core's index.
    pub fn channel_clock(&self, channel: u32) -> usize {
        self.cores.len() + channel as usize
    }

    /// The index of the command processor's clock.
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
