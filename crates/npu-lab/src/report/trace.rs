//! Writes steps as a trace in the JSON of Chrome's trace viewer, which Perfetto
//! opens: complete events (`"ph": "X"`) with times in microseconds, and metadata
//! that names tracks. Google's "Trace Event Format" defines it.
//!
//! | process | tracks |
//! |---|---|
//! | a step | the host, programs from dispatch to end, their launches |
//! | a step's `column N` | the cores of the column: kernel calls and waits; its DMA channels: transfers |
//!
//! Repetitions are left out: the trace has tiles only in the first run of each
//! program, and not in a launch that differs from an earlier one only in its
//! addresses. If a launch exceeds the limit of events, its first and last
//! events are kept. The trace lists what is left out.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::{CompiledGraph, TimedProgram, costs, settle};
use girih_npu::form::groups::StepAction;
use girih_npu::form::schedule::{
    Channel, Direction, DmaAddress, Launch, ProcessorCommand, Schedule, Tile, TileKind,
};
use girih_npu::memory::SimMemory;
use girih_npu::sim::{Cause, Cycle, EventOrder, SimEvent, SimWatch, Simulator};
use girih_tensor::{Error, Result};
use serde::Serialize;

use super::spans::{StepSpan, StepSpanKind, step_spans};

/// A trace; it serializes as one JSON object.
#[derive(Debug, Serialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<TraceEvent>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    about: TraceInfo,
    /// The maximum number of events within a launch.
    #[serde(skip)]
    limit: usize,
    /// The start of the next step, in microseconds.
    #[serde(skip)]
    now: f64,
}

/// The contents of a trace, and what is left out.
#[derive(Clone, Debug, Serialize)]
pub struct TraceInfo {
    /// The target's name.
    pub target: String,
    /// Array cycles per second.
    pub hertz: f64,
    /// The steps, in order.
    pub steps: Vec<TracedStep>,
}

/// One step of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct TracedStep {
    /// The name, which prefixes those of its processes.
    pub name: String,
    /// The key of its graph.
    pub key: String,
    /// Sentences that name what is left out.
    pub left_out: Vec<String>,
}

/// One event of the format.
#[derive(Debug, Serialize)]
struct TraceEvent {
    name: Cow<'static, str>,
    ph: &'static str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<EventArgs>,
}

/// Details of an event besides its time.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum EventArgs {
    Name { name: String },
    Order { sort_index: u32 },
    Call { macs: u64 },
    Move { bytes: u64, to: String },
    Launch { configure_us: f64, events: u64 },
    Lock { lock: String },
}

/// Process ids, relative to those of the step: the step, and its first column.
const STEP_PROCESS: u32 = 1;
const FIRST_COLUMN_PROCESS: u32 = 2;
/// Process ids that each step reserves.
const PROCESSES_PER_STEP: u32 = 100;
/// Tracks of the step's process.
const HOST_TRACK: u32 = 1;
const PROGRAMS_TRACK: u32 = 2;
const LAUNCHES_TRACK: u32 = 3;

impl Trace {
    /// An empty trace that keeps at most `limit` events of each launch.
    pub fn new(target: &Target, limit: usize) -> Trace {
        let about = TraceInfo { target: target.name.clone(), hertz: target.clock.hertz, steps: Vec::new() };
        Trace { events: Vec::new(), unit: "ns", about, limit, now: 0.0 }
    }

    /// Simulates a step of all rows of a graph, after `position` tokens, and
    /// appends it.
    ///
    /// # Errors
    /// When a schedule is faulty, or the step has several sequences.
    pub fn add(
        &mut self,
        name: &str,
        graph: &Graph,
        compiled: &CompiledGraph,
        target: &Target,
        position: u32,
    ) -> Result<()> {
        if graph.key.sequences > 1 {
            let sequences = graph.key.sequences;
            return Err(Error::new(format!("a trace shows steps of one sequence; {name} has {sequences}")));
        }
        let (mut recorded, mut programs) = (Vec::new(), Vec::new());
        let mut simulator = Simulator::new(target)?;
        let is_resident = settle(compiled, &mut simulator)?;
        let mut seen = BTreeSet::new();
        for schedule in &compiled.schedules {
            let mut recorder = Recorder::new(schedule, &mut seen, self.limit);
            let mut memory = SimMemory::TimeOnly;
            let report = simulator.run(schedule, &[], &mut memory, &mut recorder, EventOrder::Earliest)?;
            if !is_resident {
                simulator.forget();
            }
            programs.push(TimedProgram {
                name: schedule.name.clone(),
                runs: 1,
                again: report.clone(),
                report,
            });
            recorded.push(recorder.launches);
        }
        let costs = costs(graph, compiled, target, &programs, position);
        let spans = step_spans(graph, compiled, target, &costs);
        let cycles: Vec<Cycle> = programs.iter().map(|program| program.report.cycles).collect();
        let left_out = left_out(&recorded);
        self.about.steps.push(TracedStep { name: name.to_owned(), key: graph.key.to_string(), left_out });
        let from = self.events.len();
        self.spans(compiled, &spans, (recorded, &cycles), target);
        self.now += spans.last().map_or(0.0, |span| span.begin + span.seconds) * 1e6;
        self.tracks(name, from);
        Ok(())
    }

    /// The contents of the trace, and what is left out.
    pub fn about(&self) -> &TraceInfo {
        &self.about
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it has no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds the spans of a step and the recorded activity of its programs.
    /// `cycles` is the time of each program alone.
    fn spans(
        &mut self,
        compiled: &CompiledGraph,
        spans: &[StepSpan],
        (mut recorded, cycles): (Vec<Vec<RecordedLaunch>>, &[Cycle]),
        target: &Target,
    ) {
        for span in spans {
            let (begin, long) = (self.now + span.begin * 1e6, span.seconds * 1e6);
            let track = if span.kind == StepSpanKind::Array { PROGRAMS_TRACK } else { HOST_TRACK };
            self.complete(span.name.clone().into(), (STEP_PROCESS, track), begin, long, None);
            let part = span.part.filter(|_| span.kind == StepSpanKind::Array);
            if let Some(StepAction::Array { program, .. }) = part.map(|part| &compiled.groups.steps[part]) {
                let program = *program as usize;
                // A run that directly follows another has a shorter dispatch.
                let alone = target.seconds(cycles[program]) * 1e6;
                self.run(&mut recorded[program], begin, long - alone, cycles[program], target);
            }
        }
    }

    /// Adds the launches of a run. `end` is its last cycle; `early` is the
    /// difference in microseconds to the start of a run alone.
    fn run(&mut self, launches: &mut [RecordedLaunch], begin: f64, early: f64, end: Cycle, target: &Target) {
        let micros = |cycles: Cycle| target.seconds(cycles) * 1e6;
        let base = begin + early;
        if let Some(first) = launches.first() {
            let long = micros(first.configured_at) + early;
            self.complete("dispatch".into(), (STEP_PROCESS, LAUNCHES_TRACK), begin, long.max(0.0), None);
        }
        let ends: Vec<Cycle> = launches.iter().map(|one| one.configured_at).skip(1).chain([end]).collect();
        for (one, until) in launches.iter_mut().zip(ends) {
            let from = one.configured_at + one.configure;
            if one.configure > 0 {
                let (at, long) = (base + micros(one.configured_at), micros(one.configure));
                self.complete("configure".into(), (STEP_PROCESS, LAUNCHES_TRACK), at, long, None);
            }
            let events = one.dropped + one.kept() as u64;
            let args = EventArgs::Launch { configure_us: round(micros(one.configure)), events };
            let (at, long) = (base + micros(from), micros(until.saturating_sub(from)));
            self.complete(one.name.clone().into(), (STEP_PROCESS, LAUNCHES_TRACK), at, long, Some(args));
            for detail in one.head.drain(..).chain(one.tail.drain(..)) {
                self.detail(&detail, base, &micros);
            }
        }
    }

    fn detail(&mut self, detail: &Detail, base: f64, micros: &dyn Fn(Cycle) -> f64) {
        let (begin, long) = (base + micros(detail.begin), micros(detail.end - detail.begin));
        match &detail.activity {
            Activity::Call { tile, entry, macs } => {
                let args = Some(EventArgs::Call { macs: *macs });
                self.complete((*entry).into(), core_track(*tile), begin, long, args);
            }
            Activity::Wait { tile, lock } => {
                let (name, args) = match lock {
                    Some((at, id)) => {
                        ("wait for lock", Some(EventArgs::Lock { lock: format!("{at} #{id}") }))
                    }
                    None => ("wait for cascade", None),
                };
                self.complete(name.into(), core_track(*tile), begin, long, args);
            }
            Activity::Move { from, to, bytes } => {
                let args = EventArgs::Move { bytes: *bytes, to: to.to_string() };
                let name = if from.tile.kind() == TileKind::Shim { "from DRAM" } else { "send" };
                self.complete(name.into(), channel_track(*from), begin, long, Some(args));
                let args = EventArgs::Move { bytes: *bytes, to: to.to_string() };
                let name = if to.tile.kind() == TileKind::Shim { "to DRAM" } else { "receive" };
                self.complete(name.into(), channel_track(*to), begin, long, Some(args));
            }
        }
    }

    fn complete(
        &mut self,
        name: Cow<'static, str>,
        at: (u32, u32),
        ts: f64,
        dur: f64,
        args: Option<EventArgs>,
    ) {
        let (pid, tid) = (self.process_base() + at.0, at.1);
        let (ts, dur) = (Some(round(ts)), Some(round(dur)));
        self.events.push(TraceEvent { name, ph: "X", pid, tid, ts, dur, args });
    }

    /// The first process id of the last step.
    fn process_base(&self) -> u32 {
        PROCESSES_PER_STEP * (self.about.steps.len() as u32).saturating_sub(1)
    }

    /// Names and orders the processes and tracks of all events from `from` on.
    fn tracks(&mut self, step: &str, from: usize) {
        let first = self.process_base();
        let used: BTreeSet<(u32, u32)> =
            self.events[from..].iter().map(|event| (event.pid, event.tid)).collect();
        let processes: BTreeSet<u32> = used.iter().map(|(pid, _)| *pid).collect();
        for pid in processes {
            let name = match pid - first {
                STEP_PROCESS => step.to_owned(),
                column => format!("{step}: column {}", column - FIRST_COLUMN_PROCESS),
            };
            self.meta("process_name", (pid, 0), EventArgs::Name { name });
            self.meta("process_sort_index", (pid, 0), EventArgs::Order { sort_index: pid });
        }
        for (pid, tid) in used {
            self.meta("thread_name", (pid, tid), EventArgs::Name { name: track_name((pid - first, tid)) });
            self.meta("thread_sort_index", (pid, tid), EventArgs::Order { sort_index: tid });
        }
    }

    fn meta(&mut self, name: &'static str, (pid, tid): (u32, u32), args: EventArgs) {
        let (name, args) = (name.into(), Some(args));
        self.events.push(TraceEvent { name, ph: "M", pid, tid, ts: None, dur: None, args });
    }
}

/// Sentences that name what is left out.
fn left_out(recorded: &[Vec<RecordedLaunch>]) -> Vec<String> {
    let mut all =
        vec!["repeated runs; tiles and channels are traced in the first run of each program".to_owned()];
    let launches = recorded.iter().flatten();
    let alike: Vec<&str> = launches.clone().filter(|one| one.alike).map(|one| one.name.as_str()).collect();
    if !alike.is_empty() {
        all.push(format!("events within launches that repeat an earlier one: {}", alike.join(", ")));
    }
    for one in launches.filter(|one| one.dropped > 0) {
        let (name, dropped, events) = (&one.name, one.dropped, one.dropped + one.kept() as u64);
        all.push(format!("{name}: {dropped} of {events} events, from the middle of the launch"));
    }
    all
}

/// Rounds microseconds to 0.1 ns, which is less than a cycle.
fn round(micros: f64) -> f64 {
    (micros * 1e4).round() / 1e4
}

/// Track ids that a tile reserves: the core, then channels by direction and number.
const TRACKS_PER_TILE: u32 = 32;

fn core_track(tile: Tile) -> (u32, u32) {
    (FIRST_COLUMN_PROCESS + u32::from(tile.column), TRACKS_PER_TILE * (1 + u32::from(tile.row)))
}

fn channel_track(channel: Channel) -> (u32, u32) {
    let (pid, tid) = core_track(channel.tile);
    let side = if channel.direction == Direction::S2mm { 1 } else { TRACKS_PER_TILE / 2 };
    (pid, tid + side + u32::from(channel.number).min(TRACKS_PER_TILE / 2 - 2))
}

fn track_name((pid, tid): (u32, u32)) -> String {
    if pid == STEP_PROCESS {
        return ["", "host", "programs", "launches"][tid as usize].to_owned();
    }
    let tile = Tile::new((pid - FIRST_COLUMN_PROCESS) as u8, (tid / TRACKS_PER_TILE - 1) as u8);
    let kind = match tile.kind() {
        TileKind::Shim => "shim",
        TileKind::Memory => "memory",
        TileKind::Compute => "core",
    };
    match tid % TRACKS_PER_TILE {
        0 => format!("{kind} {tile}"),
        side if side < TRACKS_PER_TILE / 2 => format!("{kind} {tile} in {}", side - 1),
        side => format!("{kind} {tile} out {}", side - TRACKS_PER_TILE / 2),
    }
}

/// The recorded activity of a launch.
struct RecordedLaunch {
    name: String,
    /// Whether it repeats an earlier launch, so that its inside is not recorded.
    alike: bool,
    /// The cycle at which its configuration starts.
    configured_at: Cycle,
    configure: Cycle,
    head: Vec<Detail>,
    tail: VecDeque<Detail>,
    dropped: u64,
}

/// Activity of a core or a channel, with its time.
struct Detail {
    begin: Cycle,
    end: Cycle,
    activity: Activity,
}

enum Activity {
    Call {
        tile: Tile,
        entry: &'static str,
        macs: u64,
    },
    /// A wait, for a lock of a tile or for the cascade.
    Wait {
        tile: Tile,
        lock: Option<(Tile, u8)>,
    },
    Move {
        from: Channel,
        to: Channel,
        bytes: u64,
    },
}

impl RecordedLaunch {
    fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn keep(&mut self, detail: Detail, limit: usize) {
        let head_max = limit.div_ceil(2);
        if self.head.len() < head_max {
            self.head.push(detail);
            return;
        }
        self.tail.push_back(detail);
        if self.tail.len() > limit - head_max {
            self.tail.pop_front();
            self.dropped += 1;
        }
    }
}

/// Watches one run of a program.
struct Recorder<'a> {
    schedule: &'a Schedule,
    alike: Vec<bool>,
    limit: usize,
    launches: Vec<RecordedLaunch>,
}

impl<'a> Recorder<'a> {
    /// A recorder. `seen` holds the launches that are already traced.
    fn new(schedule: &'a Schedule, seen: &mut BTreeSet<String>, limit: usize) -> Recorder<'a> {
        let alike = schedule.launches.iter().map(|launch| !seen.insert(without_addresses(launch))).collect();
        Recorder { schedule, alike, limit, launches: Vec::new() }
    }
}

impl SimWatch for Recorder<'_> {
    fn event(&mut self, at: Cycle, event: &SimEvent<'_>) {
        if let SimEvent::Launch { name, configure } = *event {
            self.launches.push(RecordedLaunch {
                name: name.to_owned(),
                alike: self.alike[self.launches.len()],
                configured_at: at,
                configure,
                head: Vec::new(),
                tail: VecDeque::new(),
                dropped: 0,
            });
        }
        let launch = self.launches.len().wrapping_sub(1);
        let Some(recorded) = self.launches.last_mut().filter(|one| !one.alike) else { return };
        let (begin, end, activity) = match *event {
            SimEvent::Call { tile, entry, begin, end, macs } => {
                (begin, end, Activity::Call { tile, entry, macs })
            }
            SimEvent::Wait { tile, cause, begin } => {
                let locks = &self.schedule.launches[launch].locks;
                let lock = match cause {
                    Cause::Lock(lock) => locks.get(lock as usize).map(|lock| (lock.tile, lock.id)),
                    Cause::Cascade => None,
                };
                (begin, at, Activity::Wait { tile, lock })
            }
            SimEvent::Move { from, to, bytes, begin } => (begin, at, Activity::Move { from, to, bytes }),
            SimEvent::Launch { .. } | SimEvent::Push { .. } | SimEvent::Token { .. } => return,
        };
        recorded.keep(Detail { begin, end, activity }, self.limit);
    }
}

/// The text of a launch without its name and DRAM addresses.
fn without_addresses(launch: &Launch) -> String {
    let mut launch = Launch { name: String::new(), ..launch.clone() };
    for descriptor in &mut launch.descriptors {
        if let DmaAddress::Argument(..) = descriptor.address {
            descriptor.address = DmaAddress::Argument(0, 0);
        }
    }
    forget_offsets(&mut launch.commands);
    launch.to_string()
}

/// Recurses into loops of commands; the passes nest them a few levels deep.
fn forget_offsets(commands: &mut [ProcessorCommand]) {
    for command in commands {
        match command {
            ProcessorCommand::Loop { body, .. } => forget_offsets(body),
            ProcessorCommand::Push(push) => push.offset.constant = 0,
            ProcessorCommand::Wait(_) => {}
        }
    }
}
