//! Synchronizes the caller of a pool with its workers: workers *join* a task while its gate is open,
//! and the caller waits only for those that have joined. If the system has taken a worker off its
//! CPU when a task begins, the caller does not wait for it; it joins a later task.
//!
//! That a task is closed once, and left once by each worker that joined it, is the job of two values
//! whose drop does so: [`OpenTask`] and [`JoinedTask`]. `barrier_model.rs` explores the protocol.
//!
//! A thread waits in three stages: it spins, then spins and yields, then sleeps. Only a caller that
//! goes to sleep, and the worker that wakes it, take a lock.

use std::hint;
use std::mem::{self, ManuallyDrop};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins without yielding. Tasks of a step follow each other within microseconds; a
/// longer wait is for a thread that does not run.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// How long a thread waits before it sleeps; waking it takes 5 to 30 µs.
const AWAKE_TIME: Duration = Duration::from_micros(200);

/// The number of checks between two reads of the clock.
const CHECKS: u32 = 32;

/// The gate's number after the last task.
const CLOSED_FOR_GOOD: u64 = u64::MAX;

/// No task; tasks have odd numbers.
const OUTSIDE: u64 = 0;

/// Avoids false sharing: numbers that different threads write are in separate pairs of cache lines,
/// because processors fetch two lines at a time.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub T);

/// Workers of a group. The numbers of their tasks, of 8 bytes each, fill a cache line of 64 bytes.
pub(crate) const GROUP_WORKERS: usize = 8;

/// The minimum number of workers with groups. Below it, each worker has a cache line of its own.
const GROUPED_FROM: usize = 17;

/// The size of a group: its numbers of tasks share a cache line, and the caller wakes one worker, which wakes the others.
pub(crate) fn workers_in_group(workers: usize) -> usize {
    if workers < GROUPED_FROM { 1 } else { GROUP_WORKERS }
}

/// Synchronizes one caller and a fixed number of workers.
///
/// It must live until every worker has left its last task, not only until the caller has closed it: a
/// worker that leaves looks whether the caller sleeps after the caller may have gone on.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// Odd while a task may be joined; each opening and each closing increments it.
    gate: CachePadded<AtomicU64>,
    /// For each worker the task that it has joined, or will join if it is still open; those of a group lie together, so that
    /// the caller, which reads all of them, reads few lines.
    inside: Box<[CachePadded<[AtomicU64; GROUP_WORKERS]>]>,
    seats: Box<[CachePadded<Seat>]>,
    /// The number of workers in a group.
    group: usize,
    /// The number of workers that sleep or are about to.
    sleepers: CachePadded<AtomicUsize>,
    caller: CachePadded<Caller>,
}

/// The state of a worker that other threads read.
#[derive(Debug, Default)]
struct Seat {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
    is_taken: AtomicBool,
}

/// The state of the caller that workers read.
#[derive(Debug, Default)]
struct Caller {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// A task that workers may join; dropping it closes it, as [`OpenTask::close`] does.
#[derive(Debug)]
#[must_use = "dropping it closes the task"]
pub(crate) struct OpenTask<'a> {
    barrier: &'a Barrier,
    number: u64,
}

/// The place of one worker, which joins one task at a time.
#[derive(Debug)]
pub(crate) struct WorkerSeat<'a> {
    barrier: &'a Barrier,
    /// The index of the worker.
    worker: usize,
    /// The last task that it has joined.
    last: u64,
}

/// A task that a worker has joined; dropping it leaves the task.
#[derive(Debug)]
#[must_use = "dropping it leaves the task"]
pub(crate) struct JoinedTask<'a> {
    barrier: &'a Barrier,
    inside: &'a AtomicU64,
}

/// Ends the process if it is dropped.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        process::abort();
    }
}

impl Barrier {
    /// A barrier for a caller and `workers` workers.
    pub fn new(workers: usize) -> Barrier {
        Barrier::of_groups(workers, workers_in_group(workers))
    }

    /// A barrier whose groups have this number of workers.
    fn of_groups(workers: usize, group: usize) -> Barrier {
        Barrier {
            gate: CachePadded::default(),
            inside: (0..workers.div_ceil(group)).map(|_| CachePadded::default()).collect(),
            seats: (0..workers).map(|_| CachePadded::default()).collect(),
            group,
            sleepers: CachePadded::default(),
            caller: CachePadded::default(),
        }
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.seats.len()
    }

    /// The number of tasks that have been opened.
    pub fn tasks(&self) -> u64 {
        self.gate.0.load(Ordering::Relaxed) / 2
    }

    /// Lets workers join the next task.
    ///
    /// # Panics
    /// If the last task is not closed, or there are no more tasks.
    pub fn open(&self) -> OpenTask<'_> {
        let gate = self.gate.0.load(Ordering::Relaxed);
        assert!(gate.is_multiple_of(2), "a task is opened after the last one was closed");
        self.announce(gate + 1);
        OpenTask { barrier: self, number: gate + 1 }
    }

    /// Stops the workers.
    ///
    /// # Panics
    /// If a task is open.
    pub fn end(&self) {
        let gate = self.gate.0.load(Ordering::Relaxed);
        assert!(gate.is_multiple_of(2), "workers are stopped after the last task was closed");
        self.announce(CLOSED_FOR_GOOD);
    }

    /// The place of a worker, for its whole life.
    ///
    /// # Panics
    /// If it was taken before, or there is no such worker.
    pub fn seat(&self, worker: usize) -> WorkerSeat<'_> {
        let seat = &self.seats[worker].0;
        assert!(!seat.is_taken.swap(true, Ordering::Relaxed), "each worker has a seat of its own");
        WorkerSeat { barrier: self, worker, last: OUTSIDE }
    }

    /// The number of the task that a worker has joined.
    fn inside(&self, worker: usize) -> &AtomicU64 {
        &self.inside[worker / self.group].0[worker % self.group]
    }

    /// Joins a task that was open a moment ago; returns false if it has closed.
    fn enter(&self, inside: &AtomicU64, task: u64) -> bool {
        inside.store(task, Ordering::SeqCst);
        let is_open = self.gate.0.load(Ordering::SeqCst) == task;
        if !is_open {
            self.leave(inside);
        }
        is_open
    }

    /// Leaves the task that the worker has joined.
    fn leave(&self, inside: &AtomicU64) {
        inside.store(OUTSIDE, Ordering::SeqCst);
        self.caller.0.wake();
    }

    /// Changes the gate and wakes a sleeping worker of each group, which wakes the others of its group: to wake one takes the
    /// caller microseconds. A worker that the system delays then delays those of its group.
    fn announce(&self, gate: u64) {
        self.gate.0.store(gate, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        for group in self.seats.chunks(self.group) {
            let _ = group.iter().any(|seat| self.wake(&seat.0));
        }
    }

    /// Wakes a worker if it sleeps; returns whether it did.
    fn wake(&self, seat: &Seat) -> bool {
        let slept = seat.asleep.load(Ordering::SeqCst) && seat.asleep.swap(false, Ordering::SeqCst);
        if slept {
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
            seat.thread.get().expect("set before the worker first slept").unpark();
        }
        slept
    }

    /// Lets a worker sleep until it is woken, unless there is `news` already. One that was woken wakes the others of its group.
    fn sleep(&self, worker: usize, news: impl Fn() -> bool) {
        let seat = &self.seats[worker].0;
        seat.thread.get_or_init(thread::current);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        seat.asleep.store(true, Ordering::SeqCst);
        // A thread that changes the gate looks for sleepers afterwards.
        if !news() {
            thread::park();
        }
        if seat.asleep.swap(false, Ordering::SeqCst) {
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let first = worker / self.group * self.group;
        let group = &self.seats[first..self.seats.len().min(first + self.group)];
        group.iter().for_each(|seat| _ = self.wake(&seat.0));
    }
}

impl OpenTask<'_> {
    /// Closes the task and returns when all workers that joined it have left: then no worker is in the
    /// task. Calls `meanwhile` repeatedly while it spins.
    ///
    /// It never unwinds, because workers may use what the caller would then free: a panic of `meanwhile` ends
    /// the process.
    pub fn close(self, meanwhile: impl FnMut()) {
        ManuallyDrop::new(self).wait_until_left(meanwhile);
    }

    fn wait_until_left(&self, mut meanwhile: impl FnMut()) {
        let abort_on_unwind = AbortOnUnwind;
        let OpenTask { barrier, number } = *self;
        // Sequentially consistent operations have one total order. In it, a worker writes its seat and
        // then reads the gate, and this function writes the gate and then reads the seat, so at least
        // one of the two sees the other's number.
        barrier.gate.0.store(number + 1, Ordering::SeqCst);
        // A place without a worker is outside.
        for inside in barrier.inside.iter().flat_map(|group| &group.0[..barrier.group]) {
            let left = || inside.load(Ordering::SeqCst) != number;
            while !wait(left, &mut meanwhile) {
                barrier.caller.0.sleep(left);
            }
        }
        mem::forget(abort_on_unwind);
    }
}

impl Drop for OpenTask<'_> {
    fn drop(&mut self) {
        self.wait_until_left(|| ());
    }
}

impl WorkerSeat<'_> {
    /// Waits for a task that this worker has not joined, and joins it; `None` when there are no more tasks.
    /// Calls `meanwhile` repeatedly while it spins.
    pub fn join(&mut self, mut meanwhile: impl FnMut()) -> Option<JoinedTask<'_>> {
        let WorkerSeat { barrier, worker, last } = *self;
        let inside = barrier.inside(worker);
        loop {
            let new = || is_news(barrier.gate.0.load(Ordering::SeqCst), last);
            while !wait(new, &mut meanwhile) {
                barrier.sleep(worker, new);
            }
            let task = barrier.gate.0.load(Ordering::Relaxed);
            if task == CLOSED_FOR_GOOD {
                return None;
            }
            if is_news(task, last) && barrier.enter(inside, task) {
                self.last = task;
                return Some(JoinedTask { barrier, inside });
            }
        }
    }
}

impl Drop for JoinedTask<'_> {
    fn drop(&mut self) {
        self.barrier.leave(self.inside);
    }
}

impl Caller {
    fn sleep(&self, ready: impl Fn() -> bool) {
        *self.thread.lock().expect("nothing panics while it holds the lock") = Some(thread::current());
        self.asleep.store(true, Ordering::SeqCst);
        if !ready() {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            let thread = self.thread.lock().expect("nothing panics while it holds the lock");
            thread.as_ref().expect("set before the caller first slept").unpark();
        }
    }
}

/// Whether a worker whose last task was `last` has something to do at this gate.
fn is_news(gate: u64, last: u64) -> bool {
    gate % 2 == 1 && gate != last
}

/// Spins until `ready`, calling `meanwhile` between checks; returns false when it is time to sleep.
fn wait(ready: impl Fn() -> bool, mut meanwhile: impl FnMut()) -> bool {
    let mut start = None;
    loop {
        for _ in 0..CHECKS {
            if ready() {
                return true;
            }
            meanwhile();
            hint::spin_loop();
        }
        let waited = start.get_or_insert_with(Instant::now).elapsed();
        if waited > AWAKE_TIME {
            return ready();
        }
        if waited > SPIN_TIME {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{self, AssertUnwindSafe};
    use std::process::Command;

    use super::*;

    /// A task that no worker has joined ends at once: the caller does not wait for a thread that the
    /// system does not run.
    #[test]
    fn the_caller_does_not_wait_for_absent_workers() {
        let barrier = Barrier::new(1);
        for _ in 0..3 {
            barrier.open().close(|| ());
        }
        thread::scope(|scope| {
            let worker = scope.spawn(|| barrier.seat(0).join(|| ()).is_some());
            thread::sleep(2 * AWAKE_TIME);
            assert!(!worker.is_finished(), "the tasks are over, so none of them can be joined");
            barrier.end();
            assert!(!worker.join().unwrap());
        });
    }

    /// A worker can lose its CPU between reading the gate and joining.
    #[test]
    fn a_late_worker_cannot_join() {
        let barrier = Barrier::new(1);
        let seat = barrier.inside(0);
        let task = barrier.open();
        let seen = task.number;
        task.close(|| ());
        assert!(!barrier.enter(seat, seen));
        let task = barrier.open();
        assert!(!barrier.enter(seat, seen), "the next task is another");
        assert!(barrier.enter(seat, seen + 2));
        barrier.leave(seat);
        task.close(|| ());
    }

    #[test]
    fn the_caller_waits_for_workers_that_have_joined() {
        let pauses = [Duration::ZERO, SPIN_TIME, 3 * AWAKE_TIME, 20 * AWAKE_TIME];
        for (pause, is_dropped) in pauses.into_iter().flat_map(|pause| [(pause, false), (pause, true)]) {
            let barrier = Barrier::new(1);
            let (joined, left) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    let mut seat = barrier.seat(0);
                    let _task = seat.join(|| ()).expect("a task is opened");
                    joined.store(true, Ordering::SeqCst);
                    thread::sleep(pause);
                    left.store(true, Ordering::SeqCst);
                });
                let task = barrier.open();
                while !joined.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                // Both ways to close it wait.
                if is_dropped {
                    drop(task)
                } else {
                    task.close(|| ())
                }
                assert!(left.load(Ordering::SeqCst), "closed while a worker was in the task");
                worker.join().unwrap();
            });
        }
    }

    /// A worker in a task sees the same number until it leaves; the caller changes the number whenever
    /// no worker may see it. The caller is so fast that workers often arrive as the gate closes; now and
    /// then it pauses, so that they yield or sleep.
    #[test]
    fn no_worker_is_in_a_closed_task() {
        [1, 2].into_iter().for_each(check_closed_tasks);
    }

    fn check_closed_tasks(group: usize) {
        let barrier = Barrier::of_groups(2, group);
        let (current, visits) = (AtomicU64::new(0), AtomicU64::new(0));
        let spin = |count: u64| (0..count).for_each(|_| hint::spin_loop());
        thread::scope(|scope| {
            let workers = [0, 1].map(|worker| {
                let (barrier, current, visits) = (&barrier, &current, &visits);
                scope.spawn(move || {
                    let (mut seat, mut last) = (barrier.seat(worker), 0);
                    while let Some(joined) = seat.join(|| ()) {
                        let task = joined.inside.load(Ordering::Relaxed);
                        assert_ne!(task, last, "a task is joined once");
                        last = task;
                        let seen = current.load(Ordering::Relaxed);
                        assert_ne!(seen, 0, "no task is open");
                        hint::spin_loop();
                        assert_eq!(current.load(Ordering::Relaxed), seen, "the task has ended");
                        visits.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            // A machine that is busy with other processes may not run the workers for that long.
            let begun = Instant::now();
            let is_enough = |task: u64| {
                task > 50_000
                    && (visits.load(Ordering::Relaxed) > 0 || begun.elapsed() > Duration::from_secs(20))
            };
            for task in (1..).take_while(|task| !is_enough(*task)) {
                current.store(task, Ordering::Relaxed);
                let open = barrier.open();
                spin(task % 7);
                open.close(|| ());
                current.store(0, Ordering::Relaxed);
                spin(task % 5);
                if task % 10_000 == 0 {
                    thread::sleep(2 * AWAKE_TIME);
                }
            }
            barrier.end();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
        assert!(visits.load(Ordering::Relaxed) > 0, "no worker has joined a task");
    }

    /// The caller wakes a worker of each group, and that one the others.
    #[test]
    fn all_workers_of_a_group_wake_up() {
        const WORKERS: usize = 5;
        for (round, group) in [1, 2, 4, 8].into_iter().cycle().take(16).enumerate() {
            let (barrier, visits) = (Barrier::of_groups(WORKERS, group), AtomicUsize::new(0));
            thread::scope(|scope| {
                for worker in 0..WORKERS {
                    let (barrier, visits) = (&barrier, &visits);
                    scope.spawn(move || {
                        let mut seat = barrier.seat(worker);
                        while let Some(_joined) = seat.join(|| ()) {
                            visits.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                // Workers sleep, or are about to.
                thread::sleep(AWAKE_TIME * round as u32 / 4);
                let task = barrier.open();
                while visits.load(Ordering::Relaxed) < WORKERS {
                    thread::yield_now();
                }
                task.close(|| ());
                thread::sleep(AWAKE_TIME * round as u32 / 4);
                barrier.end();
            });
            assert_eq!(barrier.sleepers.0.load(Ordering::Relaxed), 0, "groups of {group}");
        }
    }

    #[test]
    fn calls_in_another_order_are_refused() {
        let refused = |call: &dyn Fn(&Barrier)| {
            let barrier = Barrier::new(1);
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| call(&barrier)));
            *outcome.unwrap_err().downcast::<&str>().unwrap()
        };
        let second = refused(&|barrier| {
            let _open = barrier.open();
            let _second = barrier.open();
        });
        assert_eq!(second, "a task is opened after the last one was closed");
        let after = refused(&|barrier| {
            barrier.end();
            barrier.open().close(|| ());
        });
        assert_eq!(after, "a task is opened after the last one was closed");
        let end = refused(&|barrier| {
            let _open = barrier.open();
            barrier.end();
        });
        assert_eq!(end, "workers are stopped after the last task was closed");
        let seat = refused(&|barrier| {
            let _first = barrier.seat(0);
            let _second = barrier.seat(0);
        });
        assert_eq!(seat, "each worker has a seat of its own");
    }

    /// A worker that unwinds out of its task leaves it.
    #[test]
    fn unwinding_leaves_and_closes() {
        let (barrier, joined) = (Barrier::new(1), AtomicBool::new(false));
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut seat = barrier.seat(0);
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                    let _task = seat.join(|| ()).expect("a task is opened");
                    joined.store(true, Ordering::SeqCst);
                    panic!("a bad piece");
                }));
                assert!(outcome.is_err());
                seat.join(|| ()).is_some()
            });
            let caller = panic::catch_unwind(AssertUnwindSafe(|| {
                let _task = barrier.open();
                while !joined.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                panic!("a bad piece of the caller");
            }));
            assert!(caller.is_err());
            assert!(barrier.gate.0.load(Ordering::SeqCst).is_multiple_of(2), "the task is closed");
            barrier.end();
            assert!(!worker.join().unwrap(), "there are no more tasks");
        });
    }

    /// A caller that unwound would free what the worker uses.
    #[test]
    fn a_panic_while_a_task_closes_ends_the_process() {
        /// The signal of `abort`, the same on every Unix.
        const SIGABRT: i32 = 6;
        let program = std::env::current_exe().expect("the test's own program");
        let child = ["barrier::tests::panics_while_a_task_closes", "--exact", "--ignored"];
        let output = Command::new(program).args(child).output().expect("the program starts");
        assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
    }

    #[test]
    #[ignore = "ends its process on purpose; the test above runs it in one of its own"]
    fn panics_while_a_task_closes() {
        let barrier = Barrier::new(1);
        let task = barrier.open();
        assert!(barrier.enter(barrier.inside(0), task.number));
        task.close(|| panic!("while the worker is in the task"));
    }
}
