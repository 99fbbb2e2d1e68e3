//! Simulates the protocol of `pool.rs`, `barrier.rs` and `piece_queue.rs` on machines with many cores: what a task costs
//! beside its work.
//!
//! Each access to a cache line takes a time that depends on where the line is. **The times are made up**, in the proportions of
//! published measurements of servers with two sockets: they show what grows with the number of threads, not what
//! a machine will do.
//!
//! ```text
//! cargo test -p girih-cpu --lib pool_simulation -- --nocapture
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::barrier::workers_in_group;
use crate::piece_queue::PieceQueue;

/// How long a line takes from a core of the same complex (whose cores share an L3), of the same socket, and of another
/// socket, in nanoseconds.
const TRANSFER: [u64; 3] = [25, 100, 200];

/// How long a cache that hands out a line is busy with that, in nanoseconds, at each of these distances.
const SERVICE: [u64; 3] = [5, 10, 20];

/// An access to a line that the core has, and an atomic change of it.
const HIT: u64 = 1;
const ATOMIC: u64 = 5;

/// A call of `unpark` in the thread that makes it, and the time until the other thread runs.
const UNPARK: u64 = 2_000;
const WAKING: u64 = 10_000;

/// The lines with a task that each worker reads: the task, what it borrows, and the counts of its queue.
const TASK_LINES: usize = 4;

/// The pieces for each thread, the time of one, and the time between tasks in which the caller works alone.
const PIECES: usize = 4;
const PIECE: u64 = 2_000;
const BETWEEN: u64 = 500;

/// The tasks that are simulated, and the first ones that are not counted.
const TASKS: usize = 12;
const UNCOUNTED: usize = 2;

/// The tasks of a token (`a_token_takes_five_tasks_a_layer`): 16 and 32 layers.
const TASKS_OF_1B: u64 = 5 * 16 + 1;
const TASKS_OF_8B: u64 = 5 * 32 + 1;

/// The cores of a machine, numbered as the threads that are pinned to them.
#[derive(Clone, Copy, Debug)]
struct Machine {
    sockets: usize,
    /// In each socket.
    complexes: usize,
    /// In each complex.
    cores: usize,
}

impl Machine {
    fn threads(self) -> usize {
        self.sockets * self.complexes * self.cores
    }

    /// The index of the times of a transfer between complexes.
    fn distance(self, a: usize, b: usize) -> usize {
        if a == b { 0 } else { 1 + usize::from(a / self.complexes != b / self.complexes) }
    }
}

/// The places of what threads share, and how many accesses of the caller overlap.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// The workers whose seats share a line.
    seats: usize,
    /// The counters of pieces.
    counters: usize,
    /// The lines that the caller fetches at once: with 1, each access waits for the one before; processors that run ahead fetch more.
    in_flight: usize,
}

/// A line that several cores use.
#[derive(Clone, Debug)]
struct SharedLine {
    /// The core that has written it last.
    owner: usize,
    /// The cores that have a copy.
    has: Vec<bool>,
    /// For each complex, the time until which its copy is fetched or handed out.
    busy: Vec<u64>,
    /// The threads that wait until it changes.
    waiters: Vec<usize>,
}

impl SharedLine {
    fn new(machine: Machine) -> SharedLine {
        let mut has = vec![false; machine.threads()];
        has[0] = true;
        SharedLine { owner: 0, has, busy: vec![0; machine.sockets * machine.complexes], waiters: Vec::new() }
    }

    /// When a core has read it.
    fn read(&mut self, machine: Machine, core: usize, now: u64) -> u64 {
        if self.has[core] {
            return now + HIT;
        }
        let own = core / machine.cores;
        let is_near = self.has[own * machine.cores..][..machine.cores].iter().any(|has| *has);
        let from = if is_near { own } else { self.owner / machine.cores };
        let (start, distance) = (now.max(self.busy[from]), machine.distance(own, from));
        self.busy[from] = start + SERVICE[distance];
        let done = start + TRANSFER[distance];
        if !is_near {
            self.busy[own] = done;
        }
        self.has[core] = true;
        done
    }

    /// When a core has changed it, after all copies are gone; the threads that waited for it then look again.
    fn write(&mut self, machine: Machine, core: usize, now: u64, woken: &mut Vec<usize>) -> u64 {
        let own = core / machine.cores;
        let others = (0..self.has.len()).filter(|other| self.has[*other] || *other == self.owner);
        let others = others.filter(|other| *other != core);
        let farthest = others.map(|other| machine.distance(own, other / machine.cores)).max();
        let start = self.busy.iter().copied().fold(now, u64::max);
        let done = start + farthest.map_or(ATOMIC, |distance| TRANSFER[distance]);
        self.busy.fill(done);
        self.has.fill(false);
        (self.has[core], self.owner) = (true, core);
        woken.append(&mut self.waiters);
        done
    }
}

/// The next access of a thread; the caller is thread 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadAt {
    ResetsCounters(usize),
    WritesTask(usize),
    OpensGate,
    ReadsGate,
    TakesSeat,
    ConfirmsGate,
    ReadsTask(usize),
    /// After this many counters without pieces.
    ReadsCounter(usize),
    TakesPiece,
    LeavesSeat,
    ClosesGate,
    ReadsSeat(usize),
}

/// What a task cost, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TaskCost {
    /// Until the last thread has its first piece.
    opening: u64,
    /// From the end of the last piece on.
    end: u64,
    /// All of it but the pieces of one thread.
    whole: u64,
}

struct PoolSimulation {
    machine: Machine,
    places: Places,
    gate: (SharedLine, u64),
    seats: Vec<SharedLine>,
    /// When the caller has the lines of seats that it fetches.
    arrivals: Vec<u64>,
    counters: Vec<(SharedLine, usize)>,
    task: Vec<SharedLine>,
    threads: Vec<SimulatedThread>,
    /// When the task began, when the last thread got its first piece, and when the last piece ended.
    begun: u64,
    last_first: u64,
    last_end: u64,
    costs: Vec<TaskCost>,
}

#[derive(Clone, Copy, Debug)]
struct SimulatedThread {
    at: ThreadAt,
    /// The task that it has joined last, and the one in which it is.
    last: u64,
    inside: u64,
    counter: usize,
    has_piece: bool,
}

impl PoolSimulation {
    fn new(machine: Machine, places: Places) -> PoolSimulation {
        let lines = |count: usize| vec![SharedLine::new(machine); count];
        let thread =
            SimulatedThread { at: ThreadAt::ReadsGate, last: 0, inside: 0, counter: 0, has_piece: false };
        let mut threads = vec![thread; machine.threads()];
        threads[0].at = ThreadAt::ResetsCounters(0);
        let seats = (machine.threads() - 1).div_ceil(places.seats);
        PoolSimulation {
            machine,
            places,
            gate: (SharedLine::new(machine), 0),
            seats: lines(seats),
            arrivals: vec![0; seats],
            counters: lines(places.counters).into_iter().map(|line| (line, 0)).collect(),
            task: lines(TASK_LINES),
            threads,
            begun: 0,
            last_first: 0,
            last_end: 0,
            costs: Vec::new(),
        }
    }

    /// The mean cost of a task, once all lines are where tasks leave them.
    fn cost(mut self) -> TaskCost {
        let mut events: BinaryHeap<Reverse<(u64, usize)>> =
            (0..self.threads.len()).map(|thread| Reverse((0, thread))).collect();
        let mut woken = Vec::new();
        while self.costs.len() < TASKS {
            let Reverse((now, thread)) = events.pop().expect("a thread goes on until all tasks are done");
            let Some(done) = self.event(thread, now, &mut woken) else { continue };
            events.extend(woken.drain(..).map(|waiter| Reverse((done, waiter))));
            events.push(Reverse((done, thread)));
        }
        let counted = &self.costs[UNCOUNTED..];
        let mean = |part: fn(&TaskCost) -> u64| counted.iter().map(part).sum::<u64>() / counted.len() as u64;
        TaskCost {
            opening: mean(|cost| cost.opening),
            end: mean(|cost| cost.end),
            whole: mean(|cost| cost.whole),
        }
    }

    /// When the next access of a thread is done; `None` if it waits until a line changes.
    fn event(&mut self, thread: usize, now: u64, woken: &mut Vec<usize>) -> Option<u64> {
        match self.threads[thread].at {
            ThreadAt::ResetsCounters(_) | ThreadAt::WritesTask(_) | ThreadAt::OpensGate => {
                Some(self.opening_event(now, woken))
            }
            ThreadAt::ClosesGate | ThreadAt::ReadsSeat(_) => self.closing_event(now, woken),
            ThreadAt::ReadsCounter(_) | ThreadAt::TakesPiece => Some(self.piece_event(thread, now, woken)),
            _ => self.worker_event(thread, now, woken),
        }
    }

    /// The events of the caller until a task is open.
    fn opening_event(&mut self, now: u64, woken: &mut Vec<usize>) -> u64 {
        let (machine, count) = (self.machine, self.places.in_flight);
        let write = |lines: &mut dyn Iterator<Item = &mut SharedLine>, woken: &mut Vec<usize>| {
            lines.take(count).map(|line| line.write(machine, 0, now, woken)).fold(now, u64::max)
        };
        let (next, done) = match self.threads[0].at {
            ThreadAt::ResetsCounters(first) => {
                if first == 0 {
                    (self.begun, self.last_first, self.last_end) = (now, now, now);
                    self.threads.iter_mut().for_each(|thread| thread.has_piece = false);
                }
                self.counters.iter_mut().skip(first).take(count).for_each(|(_, next)| *next = 0);
                let done = write(&mut self.counters.iter_mut().skip(first).map(|(line, _)| line), woken);
                let is_last = first + count >= self.counters.len();
                let next =
                    if is_last { ThreadAt::WritesTask(0) } else { ThreadAt::ResetsCounters(first + count) };
                (next, done)
            }
            ThreadAt::WritesTask(first) => {
                let done = write(&mut self.task.iter_mut().skip(first), woken);
                let is_last = first + count >= self.task.len();
                (if is_last { ThreadAt::OpensGate } else { ThreadAt::WritesTask(first + count) }, done)
            }
            _ => {
                self.gate.1 += 1;
                self.threads[0].counter = 0;
                (ThreadAt::ReadsCounter(0), self.gate.0.write(machine, 0, now, woken))
            }
        };
        self.threads[0].at = next;
        done
    }

    /// The events of the caller until all workers have left.
    fn closing_event(&mut self, now: u64, woken: &mut Vec<usize>) -> Option<u64> {
        let ThreadAt::ReadsSeat(worker) = self.threads[0].at else {
            let done = self.gate.0.write(self.machine, 0, now, woken);
            self.gate.1 += 1;
            self.threads[0].at = ThreadAt::ReadsSeat(1);
            return Some(done);
        };
        if worker == self.threads.len() {
            self.costs.push(TaskCost {
                opening: self.last_first - self.begun,
                end: now - self.last_end,
                whole: now - self.begun - PIECES as u64 * PIECE,
            });
            self.threads[0].at = ThreadAt::ResetsCounters(0);
            return Some(now + BETWEEN);
        }
        let line = (worker - 1) / self.places.seats;
        if (worker - 1).is_multiple_of(self.places.seats) && line.is_multiple_of(self.places.in_flight) {
            let ahead = line..self.seats.len().min(line + self.places.in_flight);
            ahead.for_each(|line| self.arrivals[line] = self.seats[line].read(self.machine, 0, now));
        }
        let done = self.seats[line].read(self.machine, 0, now).max(self.arrivals[line]);
        if self.threads[worker].inside + 1 == self.gate.1 {
            self.seats[line].waiters.push(0);
            return None;
        }
        self.threads[0].at = ThreadAt::ReadsSeat(worker + 1);
        Some(done)
    }

    /// The pieces that a counter hands out.
    fn pieces(&self, counter: usize) -> usize {
        let (all, counters) = (PIECES * self.threads.len(), self.places.counters);
        (counter + 1) * all / counters - counter * all / counters
    }

    /// The events of a thread that takes pieces and computes them.
    fn piece_event(&mut self, thread: usize, now: u64, woken: &mut Vec<usize>) -> u64 {
        let SimulatedThread { at, counter, .. } = self.threads[thread];
        let (count, counters) = (self.pieces(counter), self.places.counters);
        let (line, next) = &mut self.counters[counter];
        let own = &mut self.threads[thread];
        if let ThreadAt::ReadsCounter(empty) = at {
            let done = line.read(self.machine, thread, now);
            if *next < count {
                own.at = ThreadAt::TakesPiece;
            } else if empty + 1 < counters {
                (own.counter, own.at) = ((counter + 1) % counters, ThreadAt::ReadsCounter(empty + 1));
            } else {
                own.at = if thread == 0 { ThreadAt::ClosesGate } else { ThreadAt::LeavesSeat };
            }
            return done;
        }
        let done = line.write(self.machine, thread, now, woken);
        *next += 1;
        own.at = ThreadAt::ReadsCounter(0);
        if *next > count {
            return done;
        }
        if !std::mem::replace(&mut own.has_piece, true) {
            self.last_first = self.last_first.max(done);
        }
        self.last_end = self.last_end.max(done + PIECE);
        done + PIECE
    }

    /// The events of a worker but those of its pieces.
    fn worker_event(&mut self, thread: usize, now: u64, woken: &mut Vec<usize>) -> Option<u64> {
        let (machine, gate) = (self.machine, self.gate.1);
        let seat = &mut self.seats[(thread - 1) / self.places.seats];
        let own = &mut self.threads[thread];
        let (next, done) = match own.at {
            ThreadAt::ReadsGate => {
                let done = self.gate.0.read(machine, thread, now);
                if gate.is_multiple_of(2) || gate == own.last {
                    self.gate.0.waiters.push(thread);
                    return None;
                }
                (ThreadAt::TakesSeat, done)
            }
            ThreadAt::TakesSeat => {
                own.inside = gate;
                (ThreadAt::ConfirmsGate, seat.write(machine, thread, now, woken))
            }
            ThreadAt::ConfirmsGate if gate == own.inside && !gate.is_multiple_of(2) => {
                own.last = gate;
                own.counter = thread * self.places.counters / machine.threads();
                (ThreadAt::ReadsTask(0), self.gate.0.read(machine, thread, now))
            }
            ThreadAt::ConfirmsGate => (ThreadAt::LeavesSeat, self.gate.0.read(machine, thread, now)),
            ThreadAt::ReadsTask(TASK_LINES) => (ThreadAt::ReadsCounter(0), now),
            ThreadAt::ReadsTask(line) => {
                (ThreadAt::ReadsTask(line + 1), self.task[line].read(machine, thread, now))
            }
            _ => {
                own.inside = 0;
                (ThreadAt::ReadsGate, seat.write(machine, thread, now, woken))
            }
        };
        own.at = next;
        Some(done)
    }
}

/// How long the caller is busy waking all workers, of whom it wakes one in each group, and until the last one runs, in
/// microseconds.
fn waking(workers: usize, group: usize) -> [u64; 2] {
    let groups = workers.div_ceil(group) as u64;
    let last = groups * UNPARK + WAKING;
    let others = if group > 1 { (group as u64 - 1) * UNPARK + WAKING } else { 0 };
    [groups * UNPARK, last + others].map(|time| time / 1000)
}

/// The places in the program.
fn places(threads: usize, in_flight: usize) -> Places {
    let counters = PieceQueue::new([threads], threads).group(threads - 1) + 1;
    Places { seats: workers_in_group(threads - 1), counters, in_flight }
}

const MACHINES: [(&str, Machine); 5] = [
    ("8 cores", Machine { sockets: 1, complexes: 1, cores: 8 }),
    ("16 cores", Machine { sockets: 1, complexes: 2, cores: 8 }),
    ("64 cores", Machine { sockets: 1, complexes: 8, cores: 8 }),
    ("2 x 64 cores, complexes of 8", Machine { sockets: 2, complexes: 8, cores: 8 }),
    ("2 x 64 cores, one L3 a socket", Machine { sockets: 2, complexes: 1, cores: 64 }),
];

/// Places that the program does not have, for `docs/kernels.md`.
fn print_alternatives(name: &str, machine: Machine, in_flight: usize) {
    let now = places(machine.threads(), in_flight);
    for other in [Places { seats: 8, ..now }, Places { counters: 16.min(machine.threads()), ..now }] {
        let whole = PoolSimulation::new(machine, other).cost().whole;
        let Places { seats, counters, .. } = other;
        println!(
            "{name}, {in_flight} in flight, {seats} seats in a line, {counters} counters: in all {whole} ns"
        );
    }
}

/// Prints the table of `docs/kernels.md`.
#[test]
fn pool_simulation() {
    for (name, machine) in MACHINES {
        let threads = machine.threads();
        for in_flight in [1, 10] {
            let now = places(threads, in_flight);
            let [before, after] =
                [Places { seats: 1, ..now }, now].map(|places| PoolSimulation::new(machine, places).cost());
            for (what, cost) in [("before", before), ("now", after)] {
                let TaskCost { opening, end, whole } = cost;
                let [small, large] = [TASKS_OF_1B, TASKS_OF_8B].map(|tasks| (tasks * whole) as f64 / 1e6);
                println!(
                    "{name}, {in_flight} in flight, {what}: opening {opening} ns, end {end} ns, in all {whole} ns; a token of 1B \
                     {small:.2} ms, of 8B {large:.2} ms"
                );
            }
            print_alternatives(name, machine, in_flight);
            // What the change was made for, and that it costs others nothing.
            assert!(after.whole <= before.whole + before.whole / 20, "{name}: {after:?} after {before:?}");
            assert!(in_flight > 1 || threads < 100 || 2 * after.whole < before.whole, "{name}: {after:?}");
        }
        let [before, after] = [1, workers_in_group(threads - 1)].map(|group| waking(threads - 1, group));
        println!("{name}, waking: caller and last worker {before:?} us before, {after:?} us now");
        assert!(after[0] <= before[0] && after[1] <= before[1], "{name}: {after:?} after {before:?}");
    }
}
