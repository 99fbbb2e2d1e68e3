//! A step as a trace in the JSON of Chrome's trace viewer, which Perfetto opens:
//! complete events (`"ph": "X"`) with times in microseconds, and metadata that
//! names tracks. Google's "Trace Event Format" is the definition.
//!
//! | process | tracks |
//! |---|---|
//! | a step | the host, programs from dispatch to end, their launches |
//! | a step's `column N` | the cores of the column: kernel calls and waits; its DMA channels: transfers |
//!
//! What would be said again is left out: a program's tiles are traced in its
//! first run, and a launch that only works on other bytes than a former one is
//! not traced inside. Of a launch with more events than the limit the first
//! and the last are kept. The trace says what it lacks.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};

use girih_graph::Graph;
use girih_tensor::Result;
use serde::Serialize;

use super::walk::{Span, SpanKind, walk};
use crate::Target;
use crate::driver::{Compiled, Timed, costs};
use crate::form::groups::StepAction;
use crate::form::schedule::{
    Channel, Direction, DmaAddress, Launch, ProcessorCommand, Schedule, Tile, TileKind,
};
use crate::memory::Memory;
use crate::sim::{Cause, Cycle, Event, Order, Simulator, Watch};

/// A trace, to be written as one JSON object.
#[derive(Debug, Serialize)]
pub struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Entry>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    about: About,
    /// Events within a launch.
    #[serde(skip)]
    limit: usize,
    /// When the next step begins, in microseconds.
    #[serde(skip)]
    now: f64,
}

/// What a trace is of, and what it lacks.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// The array.
    pub target: String,
    /// Cycles of the array in a second.
    pub hertz: f64,
    /// The steps, one after another.
    pub steps: Vec<AboutStep>,
}

/// One step of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct AboutStep {
    /// What its processes are called after.
    pub name: String,
    /// The key of its graph.
    pub key: String,
    /// Sentences about what has been left out.
    pub left_out: Vec<String>,
}

/// One event of the format.
#[derive(Debug, Serialize)]
struct Entry {
    name: Cow<'static, str>,
    ph: &'static str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args>,
}

/// What is said of an event besides its time.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Args {
    Name { name: String },
    Order { sort_index: u32 },
    Call { macs: u64 },
    Move { bytes: u64, to: String },
    Launch { configure_us: f64, events: u64 },
    Lock { lock: String },
}

/// The process of a step as a whole, among those of the step.
const STEP: u32 = 1;
/// The process of the first column, among those of a step.
const COLUMNS: u32 = 2;
/// The numbers of processes that a step has.
const PROCESSES: u32 = 100;
/// The tracks of the step's process.
const HOST: u32 = 1;
const PROGRAMS: u32 = 2;
const LAUNCHES: u32 = 3;

impl Trace {
    /// An empty trace of steps on an array, which keeps at most `limit` events
    /// within each launch.
    pub fn new(target: &Target, limit: usize) -> Trace {
        let about = About { target: target.name.clone(), hertz: target.clock.hertz, steps: Vec::new() };
        Trace { events: Vec::new(), unit: "ns", about, limit, now: 0.0 }
    }

    /// Simulates a step of all rows of a graph, after `position` tokens, and
    /// adds it behind the steps that are there.
    ///
    /// # Errors
    /// When a schedule is faulty.
    pub fn add(
        &mut self,
        name: &str,
        graph: &Graph,
        compiled: &Compiled,
        target: &Target,
        position: u32,
    ) -> Result<()> {
        let (mut recorded, mut programs) = (Vec::new(), Vec::new());
        let mut simulator = Simulator::new(target)?;
        let mut seen = BTreeSet::new();
        for schedule in &compiled.schedules {
            let mut recorder = Recorder::new(schedule, &mut seen, self.limit);
            let mut memory = Memory::TimeOnly;
            let report = simulator.run(schedule, &[], &mut memory, &mut recorder, Order::Earliest)?;
            simulator.forget();
            programs.push(Timed { name: schedule.name.clone(), runs: 1, report });
            recorded.push(recorder.launches);
        }
        let costs = costs(graph, compiled, target, &programs, position);
        let spans = walk(graph, compiled, target, &costs);
        let cycles: Vec<Cycle> = programs.iter().map(|program| program.report.cycles).collect();
        let left_out = missing(&recorded);
        self.about.steps.push(AboutStep { name: name.to_owned(), key: graph.key.to_string(), left_out });
        let from = self.events.len();
        self.spans(compiled, &spans, (recorded, &cycles), target);
        self.now += spans.last().map_or(0.0, |span| span.begin + span.seconds) * 1e6;
        self.tracks(name, from);
        Ok(())
    }

    /// What the trace is of, and what it lacks.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// How many events it has.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds the spans of a step, and what has been recorded of its programs,
    /// each of which takes so many cycles by itself.
    fn spans(
        &mut self,
        compiled: &Compiled,
        spans: &[Span],
        (mut recorded, cycles): (Vec<Vec<Recorded>>, &[Cycle]),
        target: &Target,
    ) {
        for span in spans {
            let (begin, long) = (self.now + span.begin * 1e6, span.seconds * 1e6);
            let track = if span.kind == SpanKind::Array { PROGRAMS } else { HOST };
            self.complete(span.name.clone().into(), (STEP, track), begin, long, None);
            let part = span.part.filter(|_| span.kind == SpanKind::Array);
            if let Some(StepAction::Array { program, .. }) = part.map(|part| &compiled.groups.steps[part]) {
                let program = *program as usize;
                // A run that follows another one has a shorter dispatch.
                let alone = target.seconds(cycles[program]) * 1e6;
                self.run(&mut recorded[program], begin, long - alone, cycles[program], target);
            }
        }
    }

    /// Adds the launches of a run that ends at `end`, `early` microseconds from
    /// where it would stand by itself.
    fn run(&mut self, launches: &mut [Recorded], begin: f64, early: f64, end: Cycle, target: &Target) {
        let micros = |cycles: Cycle| target.seconds(cycles) * 1e6;
        let base = begin + early;
        if let Some(first) = launches.first() {
            let long = micros(first.configured_at) + early;
            self.complete("dispatch".into(), (STEP, LAUNCHES), begin, long.max(0.0), None);
        }
        let ends: Vec<Cycle> = launches.iter().map(|one| one.configured_at).skip(1).chain([end]).collect();
        for (one, until) in launches.iter_mut().zip(ends) {
            let from = one.configured_at + one.configure;
            if one.configure > 0 {
                let (at, long) = (base + micros(one.configured_at), micros(one.configure));
                self.complete("configure".into(), (STEP, LAUNCHES), at, long, None);
            }
            let events = one.dropped + one.kept() as u64;
            let args = Args::Launch { configure_us: round(micros(one.configure)), events };
            let (at, long) = (base + micros(from), micros(until.saturating_sub(from)));
            self.complete(one.name.clone().into(), (STEP, LAUNCHES), at, long, Some(args));
            for detail in one.head.drain(..).chain(one.tail.drain(..)) {
                self.detail(&detail, base, &micros);
            }
        }
    }

    fn detail(&mut self, detail: &Detail, base: f64, micros: &dyn Fn(Cycle) -> f64) {
        let (begin, long) = (base + micros(detail.begin), micros(detail.end - detail.begin));
        match &detail.what {
            What::Call { tile, entry, macs } => {
                let args = Some(Args::Call { macs: *macs });
                self.complete((*entry).into(), core_track(*tile), begin, long, args);
            }
            What::Wait { tile, lock } => {
                let (name, args) = match lock {
                    Some((at, id)) => ("wait for lock", Some(Args::Lock { lock: format!("{at} #{id}") })),
                    None => ("wait for cascade", None),
                };
                self.complete(name.into(), core_track(*tile), begin, long, args);
            }
            What::Move { from, to, bytes } => {
                let args = Args::Move { bytes: *bytes, to: to.to_string() };
                let name = if from.tile.kind() == TileKind::Shim { "from DRAM" } else { "send" };
                self.complete(name.into(), channel_track(*from), begin, long, Some(args));
                let args = Args::Move { bytes: *bytes, to: to.to_string() };
                let name = if to.tile.kind() == TileKind::Shim { "to DRAM" } else { "receive" };
                self.complete(name.into(), channel_track(*to), begin, long, Some(args));
            }
        }
    }

    fn complete(&mut self, name: Cow<'static, str>, at: (u32, u32), ts: f64, dur: f64, args: Option<Args>) {
        let (pid, tid) = (self.first_process() + at.0, at.1);
        let (ts, dur) = (Some(round(ts)), Some(round(dur)));
        self.events.push(Entry { name, ph: "X", pid, tid, ts, dur, args });
    }

    /// The number before those of the last step's processes.
    fn first_process(&self) -> u32 {
        PROCESSES * (self.about.steps.len() as u32).saturating_sub(1)
    }

    /// Names and orders the processes and tracks of the events from `from` on.
    fn tracks(&mut self, step: &str, from: usize) {
        let first = self.first_process();
        let used: BTreeSet<(u32, u32)> =
            self.events[from..].iter().map(|event| (event.pid, event.tid)).collect();
        let processes: BTreeSet<u32> = used.iter().map(|(pid, _)| *pid).collect();
        for pid in processes {
            let name = match pid - first {
                STEP => step.to_owned(),
                column => format!("{step}: column {}", column - COLUMNS),
            };
            self.meta("process_name", (pid, 0), Args::Name { name });
            self.meta("process_sort_index", (pid, 0), Args::Order { sort_index: pid });
        }
        for (pid, tid) in used {
            self.meta("thread_name", (pid, tid), Args::Name { name: track_name((pid - first, tid)) });
            self.meta("thread_sort_index", (pid, tid), Args::Order { sort_index: tid });
        }
    }

    fn meta(&mut self, name: &'static str, (pid, tid): (u32, u32), args: Args) {
        let (name, args) = (name.into(), Some(args));
        self.events.push(Entry { name, ph: "M", pid, tid, ts: None, dur: None, args });
    }
}

/// Sentences about what is left out.
fn missing(recorded: &[Vec<Recorded>]) -> Vec<String> {
    let mut lack = vec!["tiles and channels are traced in the first run of each program".to_owned()];
    let launches = recorded.iter().flatten();
    let alike: Vec<&str> = launches.clone().filter(|one| one.alike).map(|one| one.name.as_str()).collect();
    if !alike.is_empty() {
        lack.push(format!("launches like a former one are not traced inside: {}", alike.join(", ")));
    }
    for one in launches.filter(|one| one.dropped > 0) {
        let (name, dropped, all) = (&one.name, one.dropped, one.dropped + one.kept() as u64);
        lack.push(format!("{name}: {dropped} of {all} events, from the middle of the launch"));
    }
    lack
}

/// Microseconds to the tenth of a nanosecond, below which no cycle lies.
fn round(micros: f64) -> f64 {
    (micros * 1e4).round() / 1e4
}

/// Tracks of a tile: the core, then channels by direction and number.
const TRACKS: u32 = 32;

fn core_track(tile: Tile) -> (u32, u32) {
    (COLUMNS + u32::from(tile.column), TRACKS * (1 + u32::from(tile.row)))
}

fn channel_track(channel: Channel) -> (u32, u32) {
    let (pid, tid) = core_track(channel.tile);
    let side = if channel.direction == Direction::S2mm { 1 } else { TRACKS / 2 };
    (pid, tid + side + u32::from(channel.number).min(TRACKS / 2 - 2))
}

fn track_name((pid, tid): (u32, u32)) -> String {
    if pid == STEP {
        return ["", "host", "programs", "launches"][tid as usize].to_owned();
    }
    let tile = Tile::new((pid - COLUMNS) as u8, (tid / TRACKS - 1) as u8);
    let kind = match tile.kind() {
        TileKind::Shim => "shim",
        TileKind::Memory => "memory",
        TileKind::Compute => "core",
    };
    match tid % TRACKS {
        0 => format!("{kind} {tile}"),
        side if side < TRACKS / 2 => format!("{kind} {tile} in {}", side - 1),
        side => format!("{kind} {tile} out {}", side - TRACKS / 2),
    }
}

/// What has been recorded of a launch.
struct Recorded {
    name: String,
    /// Whether its inside is that of a former launch.
    alike: bool,
    /// When configuring it begins.
    configured_at: Cycle,
    configure: Cycle,
    head: Vec<Detail>,
    tail: VecDeque<Detail>,
    dropped: u64,
}

/// Something that a core or a channel did.
struct Detail {
    begin: Cycle,
    end: Cycle,
    what: What,
}

enum What {
    Call {
        tile: Tile,
        entry: &'static str,
        macs: u64,
    },
    /// For a lock of a tile, or for the cascade.
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

impl Recorded {
    fn kept(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn keep(&mut self, detail: Detail, limit: usize) {
        let most = limit.div_ceil(2);
        if self.head.len() < most {
            self.head.push(detail);
            return;
        }
        self.tail.push_back(detail);
        if self.tail.len() > limit - most {
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
    launches: Vec<Recorded>,
}

impl<'a> Recorder<'a> {
    /// `seen` are the launches that have been traced already.
    fn new(schedule: &'a Schedule, seen: &mut BTreeSet<String>, limit: usize) -> Recorder<'a> {
        let alike = schedule.launches.iter().map(|launch| !seen.insert(likeness(launch))).collect();
        Recorder { schedule, alike, limit, launches: Vec::new() }
    }
}

impl Watch for Recorder<'_> {
    fn event(&mut self, at: Cycle, event: &Event<'_>) {
        if let Event::Launch { name, configure } = *event {
            self.launches.push(Recorded {
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
        let (begin, end, what) = match *event {
            Event::Call { tile, entry, begin, end, macs } => (begin, end, What::Call { tile, entry, macs }),
            Event::Wait { tile, cause, begin } => {
                let locks = &self.schedule.launches[launch].locks;
                let lock = match cause {
                    Cause::Lock(lock) => locks.get(lock as usize).map(|lock| (lock.tile, lock.id)),
                    Cause::Cascade => None,
                };
                (begin, at, What::Wait { tile, lock })
            }
            Event::Move { from, to, bytes, begin } => (begin, at, What::Move { from, to, bytes }),
            Event::Launch { .. } | Event::Push { .. } | Event::Token { .. } => return,
        };
        recorded.keep(Detail { begin, end, what }, self.limit);
    }
}

/// Equal for launches that do the same to other bytes.
fn likeness(launch: &Launch) -> String {
    let mut launch = Launch { name: String::new(), ..launch.clone() };
    for descriptor in &mut launch.descriptors {
        if let DmaAddress::Argument(..) = descriptor.address {
            descriptor.address = DmaAddress::Argument(0, 0);
        }
    }
    forget_offsets(&mut launch.commands);
    launch.to_string()
}

/// Loops of commands lie as deep as passes make them, a few levels.
fn forget_offsets(commands: &mut [ProcessorCommand]) {
    for command in commands {
        match command {
            ProcessorCommand::Loop { body, .. } => forget_offsets(body),
            ProcessorCommand::Push(push) => push.offset.constant = 0,
            ProcessorCommand::Wait(_) => {}
        }
    }
}
