//! Where the caller of a pool and its workers meet: workers *join* a task while
//! its gate is open, and the caller waits for those that have joined, and for
//! nobody else. A worker that the system has taken off its processor when a
//! task begins is thus not waited for; it joins a later one.
//!
//! Waiting goes in three stages: watching a number, then watching it and
//! offering the processor to others in between, then sleep. Nothing locks but
//! a caller that goes to sleep, and its waker.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread only watches. Tasks of a step follow each other within
/// microseconds; whoever waits longer waits for a thread that does not run.
const WATCH: Duration = Duration::from_micros(50);

/// How long a thread waits before it sleeps, which costs 5 to 30 microseconds
/// of waking.
const PATIENCE: Duration = Duration::from_micros(200);

/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

/// The gate's number once there are no more tasks.
const OVER: u64 = u64::MAX;

/// No task; tasks have odd numbers.
const OUTSIDE: u64 = 0;

/// Keeps numbers that different threads write out of each other's cache lines,
/// of which processors fetch two at a time.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub T);

/// The meeting place of one caller and a fixed number of workers.
#[derive(Debug)]
pub(crate) struct Barrier {
    /// Odd while a task may be joined; grows with each opening and closing.
    gate: Apart<AtomicU64>,
    seats: Box<[Apart<Seat>]>,
    /// Workers that sleep, or are about to.
    sleepers: Apart<AtomicUsize>,
    caller: Apart<Caller>,
}

/// What the others must know of a worker.
#[derive(Debug, Default)]
struct Seat {
    /// The task that the worker is in, or about to look whether it may be in.
    inside: AtomicU64,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// What workers must know of the caller.
#[derive(Debug, Default)]
struct Caller {
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Barrier {
    /// A barrier for a caller and so many workers.
    pub fn new(workers: usize) -> Barrier {
        Barrier {
            gate: Apart::default(),
            seats: (0..workers).map(|_| Apart::default()).collect(),
            sleepers: Apart::default(),
            caller: Apart::default(),
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.seats.len()
    }

    /// How many tasks have been opened.
    pub fn tasks(&self) -> u64 {
        self.gate.0.load(Ordering::Relaxed) / 2
    }

    /// Lets workers join the next task. For the caller, while the gate is closed.
    pub fn open(&self) {
        self.announce(self.gate.0.load(Ordering::Relaxed) + 1);
    }

    /// Sends the workers home.
    pub fn end(&self) {
        self.announce(OVER);
    }

    /// Lets no more workers join, and returns when those that have joined have
    /// left: from then on no worker is in the task. As long as the caller watches
    /// for that, it does some of `meanwhile` again and again.
    pub fn close(&self, mut meanwhile: impl FnMut()) {
        let task = self.gate.0.load(Ordering::Relaxed);
        // In the one order of sequentially consistent operations, a worker
        // writes its seat and then reads the gate, and this writes the gate and
        // then reads the seat: at least one of the two sees the other's number.
        self.gate.0.store(task + 1, Ordering::SeqCst);
        for seat in &self.seats {
            let left = || seat.0.inside.load(Ordering::SeqCst) != task;
            while !wait(left, &mut meanwhile) {
                self.caller.0.sleep(left);
            }
        }
    }

    /// Waits for a task after `last` and joins it: the number of the task, which
    /// is to be the next call's `last`, or nothing when there are no more. As long
    /// as it watches, it does some of `meanwhile` again and again.
    pub fn join(&self, worker: usize, last: u64, mut meanwhile: impl FnMut()) -> Option<u64> {
        let seat = &self.seats[worker].0;
        loop {
            let new = || is_news(self.gate.0.load(Ordering::SeqCst), last);
            while !wait(new, &mut meanwhile) {
                self.sleep(seat, new);
            }
            let task = self.gate.0.load(Ordering::Relaxed);
            if task == OVER {
                return None;
            }
            if is_news(task, last) && self.enter(worker, task) {
                return Some(task);
            }
        }
    }

    /// Takes the seat in a task that was open a moment ago; false when it has
    /// closed meanwhile.
    fn enter(&self, worker: usize, task: u64) -> bool {
        self.seats[worker].0.inside.store(task, Ordering::SeqCst);
        let is_open = self.gate.0.load(Ordering::SeqCst) == task;
        if !is_open {
            self.leave(worker);
        }
        is_open
    }

    /// Says that the worker is through with the task that it joined.
    pub fn leave(&self, worker: usize) {
        self.seats[worker].0.inside.store(OUTSIDE, Ordering::SeqCst);
        self.caller.0.wake();
    }

    /// Changes the gate and wakes who sleeps.
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
        // Whoever announces first changes the gate and then looks for sleepers.
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

/// Whether a worker that was in the task `last` has something to do at this gate.
fn is_news(gate: u64, last: u64) -> bool {
    gate % 2 == 1 && gate != last
}

/// Watches for `ready`, and does some of `meanwhile` between two looks; false when
/// it is time to sleep.
fn wait(ready: impl Fn() -> bool, mut meanwhile: impl FnMut()) -> bool {
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            meanwhile();
            hint::spin_loop();
        }
        let waited = start.get_or_insert_with(Instant::now).elapsed();
        if waited > PATIENCE {
            return ready();
        }
        if waited > WATCH {
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task that no worker has joined ends at once, although a worker exists:
    /// nobody waits for a thread that the system does not run.
    #[test]
    fn absent_workers_are_not_waited_for() {
        let barrier = Barrier::new(1);
        for _ in 0..3 {
            barrier.open();
            barrier.close(|| ());
        }
        thread::scope(|scope| {
            let worker = scope.spawn(|| barrier.join(0, 0, || ()));
            thread::sleep(2 * PATIENCE);
            assert!(!worker.is_finished(), "the tasks are over, so none of them can be joined");
            barrier.end();
            assert_eq!(worker.join().unwrap(), None);
        });
    }

    /// Between seeing a gate and taking a seat, a worker can lose its processor.
    #[test]
    fn a_worker_that_comes_late_is_turned_away() {
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
    fn workers_that_have_joined_are_waited_for() {
        for pause in [Duration::ZERO, WATCH, 3 * PATIENCE, 20 * PATIENCE] {
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

    /// A worker in a task sees the same number as long as it is there, and the
    /// caller changes the number whenever no worker is to see it. The caller is
    /// so quick that workers often come as the gate closes; now and then it
    /// pauses, so that they yield or sleep.
    #[test]
    fn nobody_is_in_a_task_that_is_closed() {
        const WORKERS: usize = 2;
        let barrier = Barrier::new(WORKERS);
        let (current, visits) = (AtomicU64::new(0), AtomicU64::new(0));
        let spin = |turns: u64| (0..turns).for_each(|_| hint::spin_loop());
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
                        assert_eq!(current.load(Ordering::Relaxed), seen, "the task has ended meanwhile");
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
                    thread::sleep(2 * PATIENCE);
                }
            }
            barrier.end();
        });
        assert!(visits.load(Ordering::Relaxed) > 0, "no worker ever came");
    }
}
