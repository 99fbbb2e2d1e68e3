//! Synchronizes the caller of a pool with its workers: workers *join* a task while its gate is open,
//! and the caller waits only for those that have joined. If the system has taken a worker off its
//! CPU when a task begins, the caller does not wait for it; it joins a later task.
//!
//! A thread waits in three stages: it spins, then spins and yields, then sleeps. Only a caller that
//! goes to sleep, and the worker that wakes it, take a lock.

use std::hint;
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

/// Synchronizes one caller and a fixed number of workers.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// Odd while a task may be joined; each opening and each closing increments it.
    gate: CachePadded<AtomicU64>,
    seats: Box<[CachePadded<Seat>]>,
    /// The number of workers that sleep or are about to.
    sleepers: CachePadded<AtomicUsize>,
    caller: CachePadded<Caller>,
}

/// The state of a worker that other threads read.
#[derive(Debug, Default)]
struct Seat {
    /// The task that the worker has joined, or will join if it is still open.
    inside: AtomicU64,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The state of the caller that workers read.
#[derive(Debug, Default)]
struct Caller {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Barrier {
    /// A barrier for a caller and `workers` workers.
    pub fn new(workers: usize) -> Barrier {
        Barrier {
            gate: CachePadded::default(),
            seats: (0..workers).map(|_| CachePadded::default()).collect(),
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

    /// Lets workers join the next task. The caller calls it while the gate is closed.
    pub fn open(&self) {
        self.announce(self.gate.0.load(Ordering::Relaxed) + 1);
    }

    /// Stops the workers.
    pub fn end(&self) {
        self.announce(CLOSED_FOR_GOOD);
    }

    /// Closes the task and returns when all workers that joined it have left: then no worker is in the
    /// task. Calls `meanwhile` repeatedly while it spins.
    pub fn close(&self, mut meanwhile: impl FnMut()) {
        let task = self.gate.0.load(Ordering::Relaxed);
        // Sequentially consistent operations have one total order. In it, a worker writes its seat and
        // then reads the gate, and this function writes the gate and then reads the seat, so at least
        // one of the two sees the other's number.
        self.gate.0.store(task + 1, Ordering::SeqCst);
        for seat in &self.seats {
            let left = || seat.0.inside.load(Ordering::SeqCst) != task;
            while !wait(left, &mut meanwhile) {
                self.caller.0.sleep(left);
            }
        }
    }

    /// Waits for a task after `last` and joins it. Returns the task's number, which is the next call's
    /// `last`, or `None` when there are no more tasks. Calls `meanwhile` repeatedly while it spins.
    pub fn join(&self, worker: usize, last: u64, mut meanwhile: impl FnMut()) -> Option<u64> {
        let seat = &self.seats[worker].0;
        loop {
            let new = || is_news(self.gate.0.load(Ordering::SeqCst), last);
            while !wait(new, &mut meanwhile) {
                self.sleep(seat, new);
            }
            let task = self.gate.0.load(Ordering::Relaxed);
            if task == CLOSED_FOR_GOOD {
                return None;
            }
            if is_news(task, last) && self.enter(worker, task) {
                return Some(task);
            }
        }
    }

    /// Joins a task that was open a moment ago; returns false if it has closed.
    fn enter(&self, worker: usize, task: u64) -> bool {
        self.seats[worker].0.inside.store(task, Ordering::SeqCst);
        let is_open = self.gate.0.load(Ordering::SeqCst) == task;
        if !is_open {
            self.leave(worker);
        }
        is_open
    }

    /// Leaves the task that the worker has joined.
    pub fn leave(&self, worker: usize) {
        self.seats[worker].0.inside.store(OUTSIDE, Ordering::SeqCst);
        self.caller.0.wake();
    }

    /// Changes the gate and wakes sleeping workers.
    fn announce(&self, gate: u64) {
        self.gate.0.store(gate, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        for seat in &self.seats {
            if seat.0.asleep.swap(false, Ordering::SeqCst) {
                self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
                seat.0.thread.get().expect("set before the worker first slept").unpark();
            }
        }
    }

    /// Lets a worker sleep until it is woken, unless there is `news` already.
    fn sleep(&self, seat: &Seat, news: impl Fn() -> bool) {
        seat.thread.get_or_init(thread::current);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        seat.asleep.store(true, Ordering::SeqCst);
        // A thread that changes the gate looks for sleepers afterwards.
        if !news() {
            thread::park();
        }
        if seat.asleep.swap(false, Ordering::SeqCst) {
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        }
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
    use super::*;

    /// A task that no worker has joined ends at once: the caller does not wait for a thread that the
    /// system does not run.
    #[test]
    fn the_caller_does_not_wait_for_absent_workers() {
        let barrier = Barrier::new(1);
        for _ in 0..3 {
            barrier.open();
            barrier.close(|| ());
        }
        thread::scope(|scope| {
            let worker = scope.spawn(|| barrier.join(0, 0, || ()));
            thread::sleep(2 * AWAKE_TIME);
            assert!(!worker.is_finished(), "the tasks are over, so none of them can be joined");
            barrier.end();
            assert_eq!(worker.join().unwrap(), None);
        });
    }

    /// A worker can lose its CPU between reading the gate and joining.
    #[test]
    fn a_late_worker_cannot_join() {
        let barrier = Barrier::new(1);
        barrier.open();
        let seen = barrier.gate.0.load(Ordering::SeqCst);
        barrier.close(|| ());
        assert!(!barrier.enter(0, seen));
        barrier.open();
        assert!(!barrier.enter(0, seen), "the next task is another");
        assert!(barrier.enter(0, seen + 2));
        barrier.leave(0);
        barrier.close(|| ());
    }

    #[test]
    fn the_caller_waits_for_workers_that_have_joined() {
        for pause in [Duration::ZERO, SPIN_TIME, 3 * AWAKE_TIME, 20 * AWAKE_TIME] {
            let barrier = Barrier::new(1);
            let (joined, left) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(barrier.join(0, 0, || ()).is_some());
                    joined.store(true, Ordering::SeqCst);
                    thread::sleep(pause);
                    left.store(true, Ordering::SeqCst);
                    barrier.leave(0);
                });
                barrier.open();
                while !joined.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                barrier.close(|| ());
                assert!(left.load(Ordering::SeqCst), "closed while a worker was in the task");
            });
        }
    }

    /// A worker in a task sees the same number until it leaves; the caller changes the number whenever
    /// no worker may see it. The caller is so fast that workers often arrive as the gate closes; now and
    /// then it pauses, so that they yield or sleep.
    #[test]
    fn no_worker_is_in_a_closed_task() {
        const WORKERS: usize = 2;
        let barrier = Barrier::new(WORKERS);
        let (current, visits) = (AtomicU64::new(0), AtomicU64::new(0));
        let spin = |count: u64| (0..count).for_each(|_| hint::spin_loop());
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (barrier, current, visits) = (&barrier, &current, &visits);
                scope.spawn(move || {
                    let mut last = 0;
                    while let Some(task) = barrier.join(worker, last, || ()) {
                        assert_ne!(task, last, "a task is joined once");
                        last = task;
                        let seen = current.load(Ordering::Relaxed);
                        assert_ne!(seen, 0, "no task is open");
                        hint::spin_loop();
                        assert_eq!(current.load(Ordering::Relaxed), seen, "the task has ended");
                        visits.fetch_add(1, Ordering::Relaxed);
                        barrier.leave(worker);
                    }
                });
            }
            for task in 1..=100_000u64 {
                current.store(task, Ordering::Relaxed);
                barrier.open();
                spin(task % 7);
                barrier.close(|| ());
                current.store(0, Ordering::Relaxed);
                spin(task % 5);
                if task % 10_000 == 0 {
                    thread::sleep(2 * AWAKE_TIME);
                }
            }
            barrier.end();
        });
        assert!(visits.load(Ordering::Relaxed) > 0, "no worker has joined a task");
    }
}
