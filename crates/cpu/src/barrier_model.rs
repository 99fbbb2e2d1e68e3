//! Explores every order of events of the protocol of `barrier.rs` and `pool.rs`: a caller, some workers, some
//! tasks and the end.
//!
//! In a group of two, the caller wakes one worker, which wakes the other one.
//!
//! An event is one access to an atomic number, one call of `park` or `unpark`, or one use of the task. All
//! accesses that the protocol rests on are sequentially consistent, so orders of events are all that can
//! happen. A thread that spins may give up at any time, and a park returns when the thread has been unparked
//! since its last park.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

const MAX_WORKERS: usize = 2;

/// The gate after the last task; in the program it is larger, and odd as well.
const CLOSED_FOR_GOOD: u8 = 15;

const OUTSIDE: u8 = 0;

/// No task, so none that may be used.
const NO_TASK: u8 = 0;

/// The next event of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerAt {
    /// Writes the task, or opens the gate for good.
    Begins,
    OpensGate,
    CountsSleepers,
    WakesWorker,
    SubtractsSleeper,
    UnparksWorker,
    ClosesGate,
    ReadsSeat,
    SaysItSleeps,
    ReadsSeatAgain,
    Parks,
    SaysItIsAwake,
    Ended,
}

/// The next event of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerAt {
    ReadsGate,
    AddsSleeper,
    SaysItSleeps,
    ReadsGateAgain,
    Parks,
    SaysItIsAwake,
    SubtractsSleeper,
    /// It was woken, and wakes the other worker of its group.
    WakesOther,
    SubtractsOther,
    UnparksOther,
    ReadsTaskNumber,
    WritesSeat,
    ConfirmsGate,
    BeginsTask,
    EndsTask,
    Leaves,
    ReadsCaller,
    WakesCaller,
    UnparksCaller,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct CallerState {
    at: CallerAt,
    /// Tasks that are closed.
    done: u8,
    /// The task that is open or being closed.
    task: u8,
    /// The worker that it looks at.
    worker: u8,
    is_asleep: bool,
    is_unparked: bool,
}

#[derive(Clone, Copy, Debug)]
struct WorkerState {
    at: WorkerAt,
    /// The last task that it has joined.
    last: u8,
    /// The task that it joins.
    task: u8,
    inside: u8,
    is_asleep: bool,
    is_unparked: bool,
}

#[derive(Clone, Copy, Debug)]
struct BarrierState {
    gate: u8,
    sleepers: u8,
    /// The number of the task that may be used: from before it is opened until it has been closed.
    usable: u8,
    caller: CallerState,
    workers: [WorkerState; MAX_WORKERS],
}

/// A check that is left out of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OmittedCheck {
    Nothing,
    /// A worker parks without reading the gate again.
    GateBeforePark,
    /// The caller parks without reading the seat again.
    SeatBeforePark,
    /// A worker enters a task without reading the gate again.
    GateBeforeTask,
    /// A worker that was woken leaves the other one of its group asleep.
    OtherOfGroup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BarrierFault {
    /// A thread waits for ever.
    Deadlock,
    /// A worker uses a task that may not be used.
    UsedAfterClose,
    /// There are fewer than no sleepers.
    NegativeSleepers,
}

struct BarrierModel {
    workers: usize,
    /// The number of workers in a group. The caller wakes one of them.
    group: usize,
    tasks: u8,
    omitted: OmittedCheck,
}

fn is_news(gate: u8, last: u8) -> bool {
    gate % 2 == 1 && gate != last
}

impl BarrierState {
    fn start() -> BarrierState {
        let caller = CallerState {
            at: CallerAt::Begins,
            done: 0,
            task: NO_TASK,
            worker: 0,
            is_asleep: false,
            is_unparked: false,
        };
        let worker = WorkerState {
            at: WorkerAt::ReadsGate,
            last: NO_TASK,
            task: NO_TASK,
            inside: OUTSIDE,
            is_asleep: false,
            is_unparked: false,
        };
        BarrierState { gate: 0, sleepers: 0, usable: NO_TASK, caller, workers: [worker; MAX_WORKERS] }
    }

    /// A number of its own for each state.
    fn key(&self) -> u64 {
        let mut key = 0;
        let mut push = |number: u8, bits: u32| {
            debug_assert!(u32::from(number) < 1 << bits);
            key = key << bits | u64::from(number);
        };
        let BarrierState { gate, sleepers, usable, caller, workers } = *self;
        [(gate, 4), (sleepers, 2), (usable, 3)].into_iter().for_each(|(number, bits)| push(number, bits));
        let CallerState { at, done, task, worker, is_asleep, is_unparked } = caller;
        [(at as u8, 4), (done, 2), (task, 4), (worker, 2)]
            .into_iter()
            .for_each(|(number, bits)| push(number, bits));
        [is_asleep, is_unparked].into_iter().for_each(|flag| push(flag.into(), 1));
        for WorkerState { at, last, task, inside, is_asleep, is_unparked } in workers {
            push(at as u8, 5);
            [last, task, inside].into_iter().for_each(|number| push(number, 3));
            [is_asleep, is_unparked].into_iter().for_each(|flag| push(flag.into(), 1));
        }
        key
    }

    /// Counts one sleeper less.
    fn subtract_sleeper(&mut self) -> Result<(), BarrierFault> {
        self.sleepers = self.sleepers.checked_sub(1).ok_or(BarrierFault::NegativeSleepers)?;
        Ok(())
    }
}

impl BarrierModel {
    /// Visits every state that can be reached; returns their number.
    fn explore(&self) -> Result<usize, BarrierFault> {
        let start = BarrierState::start();
        let mut seen = HashSet::with_hasher(BuildHasherDefault::<KeyHasher>::default());
        seen.insert(start.key());
        let mut queue = VecDeque::from([start]);
        while let Some(state) = queue.pop_front() {
            let mut is_stuck = true;
            for thread in 0..=self.workers {
                let Some(next) = self.event(state, thread)? else { continue };
                is_stuck = false;
                if seen.insert(next.key()) {
                    queue.push_back(next);
                }
            }
            let have_ended = state.caller.at == CallerAt::Ended
                && state.workers[..self.workers].iter().all(|worker| worker.at == WorkerAt::Ended);
            if is_stuck && !have_ended {
                return Err(BarrierFault::Deadlock);
            }
        }
        Ok(seen.len())
    }

    /// The state after the next event of a thread, the caller or one of the workers; `None` if it has ended or
    /// waits to be unparked.
    fn event(&self, mut state: BarrierState, thread: usize) -> Result<Option<BarrierState>, BarrierFault> {
        let happens = match thread.checked_sub(1) {
            None => self.caller_event(&mut state)?,
            Some(worker) => self.worker_event(&mut state, worker)?,
        };
        Ok(happens.then_some(state))
    }

    fn caller_event(&self, state: &mut BarrierState) -> Result<bool, BarrierFault> {
        let worker = usize::from(state.caller.worker);
        let is_last = worker == self.workers;
        let task = state.caller.task;
        let next = match state.caller.at {
            CallerAt::Begins if state.caller.done == self.tasks => {
                (state.gate, state.caller.task) = (CLOSED_FOR_GOOD, CLOSED_FOR_GOOD);
                CallerAt::CountsSleepers
            }
            CallerAt::Begins => {
                state.usable = state.gate + 1;
                CallerAt::OpensGate
            }
            CallerAt::OpensGate => {
                state.gate += 1;
                state.caller.task = state.gate;
                CallerAt::CountsSleepers
            }
            CallerAt::CountsSleepers if state.sleepers > 0 => CallerAt::WakesWorker,
            CallerAt::WakesWorker if !is_last => {
                if std::mem::take(&mut state.workers[worker].is_asleep) {
                    CallerAt::SubtractsSleeper
                } else {
                    state.caller.worker += 1;
                    CallerAt::WakesWorker
                }
            }
            CallerAt::CountsSleepers | CallerAt::WakesWorker => {
                state.caller.worker = 0;
                if task == CLOSED_FOR_GOOD { CallerAt::Ended } else { CallerAt::ClosesGate }
            }
            CallerAt::SubtractsSleeper => {
                state.subtract_sleeper()?;
                CallerAt::UnparksWorker
            }
            CallerAt::UnparksWorker => {
                state.workers[worker].is_unparked = true;
                // The others of the group are left to this one.
                let next = (worker / self.group + 1) * self.group;
                state.caller.worker = next.min(self.workers) as u8;
                CallerAt::WakesWorker
            }
            CallerAt::ClosesGate => {
                state.gate += 1;
                CallerAt::ReadsSeat
            }
            CallerAt::Ended => return Ok(false),
            at => return Ok(self.close_event(state, at)),
        };
        state.caller.at = next;
        Ok(true)
    }

    /// The events of the caller from closing a task to the next one; returns false while it waits to be
    /// unparked.
    fn close_event(&self, state: &mut BarrierState, at: CallerAt) -> bool {
        let worker = usize::from(state.caller.worker);
        let is_last = worker == self.workers;
        let has_left = !is_last && state.workers[worker].inside != state.caller.task;
        state.caller.at = match at {
            CallerAt::ReadsSeat if is_last => {
                state.usable = NO_TASK;
                (state.caller.done, state.caller.worker) = (state.caller.done + 1, 0);
                CallerAt::Begins
            }
            CallerAt::ReadsSeat if has_left => {
                state.caller.worker += 1;
                CallerAt::ReadsSeat
            }
            CallerAt::ReadsSeat => CallerAt::SaysItSleeps,
            CallerAt::SaysItSleeps => {
                state.caller.is_asleep = true;
                CallerAt::ReadsSeatAgain
            }
            CallerAt::ReadsSeatAgain if has_left && self.omitted != OmittedCheck::SeatBeforePark => {
                CallerAt::SaysItIsAwake
            }
            CallerAt::ReadsSeatAgain => CallerAt::Parks,
            CallerAt::Parks => {
                if !std::mem::take(&mut state.caller.is_unparked) {
                    return false;
                }
                CallerAt::SaysItIsAwake
            }
            CallerAt::SaysItIsAwake => {
                state.caller.is_asleep = false;
                CallerAt::ReadsSeat
            }
            _ => unreachable!("the events before are those of `caller_event`"),
        };
        true
    }

    fn worker_event(&self, state: &mut BarrierState, index: usize) -> Result<bool, BarrierFault> {
        let worker = &mut state.workers[index];
        let has_news = is_news(state.gate, worker.last);
        let at = worker.at;
        let next = match at {
            WorkerAt::ReadsGate if has_news => WorkerAt::ReadsTaskNumber,
            WorkerAt::ReadsGate => WorkerAt::AddsSleeper,
            WorkerAt::AddsSleeper => {
                state.sleepers += 1;
                WorkerAt::SaysItSleeps
            }
            WorkerAt::SaysItSleeps => {
                worker.is_asleep = true;
                WorkerAt::ReadsGateAgain
            }
            WorkerAt::ReadsGateAgain if has_news && self.omitted != OmittedCheck::GateBeforePark => {
                WorkerAt::SaysItIsAwake
            }
            WorkerAt::ReadsGateAgain => WorkerAt::Parks,
            WorkerAt::Parks => {
                if !std::mem::take(&mut worker.is_unparked) {
                    return Ok(false);
                }
                WorkerAt::SaysItIsAwake
            }
            WorkerAt::SaysItIsAwake if std::mem::take(&mut worker.is_asleep) => WorkerAt::SubtractsSleeper,
            WorkerAt::SaysItIsAwake if self.other(index).is_some() => WorkerAt::WakesOther,
            WorkerAt::SaysItIsAwake => WorkerAt::ReadsGate,
            WorkerAt::SubtractsSleeper => {
                state.subtract_sleeper()?;
                WorkerAt::ReadsGate
            }
            WorkerAt::WakesOther | WorkerAt::SubtractsOther | WorkerAt::UnparksOther => {
                self.wake_event(state, index, at)?
            }
            WorkerAt::ReadsTaskNumber if state.gate == CLOSED_FOR_GOOD => WorkerAt::Ended,
            WorkerAt::ReadsTaskNumber if has_news => {
                worker.task = state.gate;
                WorkerAt::WritesSeat
            }
            WorkerAt::ReadsTaskNumber => WorkerAt::ReadsGate,
            _ => return self.task_event(state, index, at),
        };
        state.workers[index].at = next;
        Ok(true)
    }

    /// The other worker of the group of this one.
    fn other(&self, index: usize) -> Option<usize> {
        let group = index / self.group * self.group..self.workers.min((index / self.group + 1) * self.group);
        group.into_iter().find(|other| *other != index)
    }

    /// The next event of a worker that wakes the other one of its group.
    fn wake_event(
        &self,
        state: &mut BarrierState,
        index: usize,
        at: WorkerAt,
    ) -> Result<WorkerAt, BarrierFault> {
        let other = self.other(index).expect("a worker alone in its group wakes none");
        Ok(match at {
            WorkerAt::SubtractsOther => {
                state.subtract_sleeper()?;
                WorkerAt::UnparksOther
            }
            WorkerAt::UnparksOther => {
                state.workers[other].is_unparked = true;
                WorkerAt::ReadsGate
            }
            _ if self.omitted == OmittedCheck::OtherOfGroup => WorkerAt::ReadsGate,
            _ if std::mem::take(&mut state.workers[other].is_asleep) => WorkerAt::SubtractsOther,
            _ => WorkerAt::ReadsGate,
        })
    }

    /// The events of a worker from joining a task to leaving it.
    fn task_event(&self, state: &mut BarrierState, index: usize, at: WorkerAt) -> Result<bool, BarrierFault> {
        let worker = &mut state.workers[index];
        let next = match at {
            WorkerAt::WritesSeat => {
                worker.inside = worker.task;
                WorkerAt::ConfirmsGate
            }
            WorkerAt::ConfirmsGate
                if state.gate == worker.task || self.omitted == OmittedCheck::GateBeforeTask =>
            {
                worker.last = worker.task;
                WorkerAt::BeginsTask
            }
            WorkerAt::ConfirmsGate => WorkerAt::Leaves,
            WorkerAt::BeginsTask | WorkerAt::EndsTask => {
                if state.usable != worker.task {
                    return Err(BarrierFault::UsedAfterClose);
                }
                if at == WorkerAt::BeginsTask { WorkerAt::EndsTask } else { WorkerAt::Leaves }
            }
            WorkerAt::Leaves => {
                (worker.inside, worker.task) = (OUTSIDE, NO_TASK);
                WorkerAt::ReadsCaller
            }
            WorkerAt::ReadsCaller if state.caller.is_asleep => WorkerAt::WakesCaller,
            WorkerAt::WakesCaller if std::mem::take(&mut state.caller.is_asleep) => WorkerAt::UnparksCaller,
            WorkerAt::ReadsCaller | WorkerAt::WakesCaller => WorkerAt::ReadsGate,
            WorkerAt::UnparksCaller => {
                state.caller.is_unparked = true;
                WorkerAt::ReadsGate
            }
            _ => return Ok(false),
        };
        worker.at = next;
        Ok(true)
    }
}

/// Mixes the bits of a key; the keys of few states are equal in their low bits.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is one number");
    }

    fn write_u64(&mut self, key: u64) {
        // The constant is 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4).
        let product = u128::from(key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[test]
fn no_order_of_events_blocks_a_thread_or_uses_a_closed_task() {
    for (workers, group, tasks) in [(1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2)] {
        let model = BarrierModel { workers, group, tasks, omitted: OmittedCheck::Nothing };
        let states = model.explore();
        let what = format!("{workers} workers in groups of {group}, {tasks} tasks");
        assert!(states.is_ok_and(|states| states > 500), "{what}: {states:?}");
        println!("{what}: {states:?} states");
    }
}

/// The exploration finds what each check prevents.
#[test]
fn no_check_of_the_protocol_may_be_omitted() {
    let explore = |(workers, group), omitted| BarrierModel { workers, group, tasks: 2, omitted }.explore();
    for workers in [(1, 1), (2, 1), (2, 2)] {
        assert_eq!(explore(workers, OmittedCheck::GateBeforePark), Err(BarrierFault::Deadlock));
        assert_eq!(explore(workers, OmittedCheck::SeatBeforePark), Err(BarrierFault::Deadlock));
        assert_eq!(explore(workers, OmittedCheck::GateBeforeTask), Err(BarrierFault::UsedAfterClose));
    }
    assert_eq!(explore((2, 2), OmittedCheck::OtherOfGroup), Err(BarrierFault::Deadlock));
}
