//! A fixed set of threads that share the pieces of one task at a time.
//!
//! The caller is one of the threads. Idle threads take the next piece from a
//! counter, so who computes a piece is left to chance; what is computed is not,
//! because a piece alone decides which part of the output it writes. A worker
//! takes part in a task if it comes in time; the caller waits only for those
//! that did, so a worker whose processor is busy with something foreign delays
//! a task by no more than the piece that it holds.
//!
//! This file holds the crate's two promises to the compiler: that threads have
//! let go of a task before its borrows end ([`Pool::everyone`]), and that
//! pieces write apart from each other ([`Shared`]).
#![allow(unsafe_code)]

use std::any::Any;
use std::array;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, ThreadId};

use girih_graph::Error;

use crate::barrier::{Apart, Barrier};
use crate::coming::{Asking, Coming};
use crate::os;

/// Groups of threads that have a range of pieces to themselves, at most: few,
/// because who looks for left-over pieces looks at each.
const MOST_GROUPS: usize = 8;

/// A task as the threads see it: begun once in each, with the thread's index.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// Threads that wait for tasks; the thread that calls is one more of them.
///
/// Not `Sync`: there is one task at a time.
#[derive(Debug)]
pub struct Pool {
    crew: Arc<Crew>,
    workers: Vec<JoinHandle<()>>,
    /// Dropped after the workers have ended.
    _former: Option<FormerPlace>,
    /// What the caller has asked for of what comes next.
    asking: Cell<Asking>,
}

/// How a matrix of output is cut into pieces.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Values in a row.
    pub width: usize,
    /// Rows of a piece; those at the bottom may be shorter.
    pub row_step: usize,
    /// Columns of a piece; those at the right may be narrower.
    pub column_step: usize,
}

/// The part of an output that one piece of a task writes.
#[derive(Debug)]
pub struct Tile<'a, T> {
    output: &'a Shared<'a, T>,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Pool {
    /// A pool of `threads`, the caller included, that run anywhere.
    ///
    /// # Errors
    /// When there are to be no threads, or the system gives no more.
    #[cfg(test)]
    pub fn new(threads: usize) -> Result<Pool, Error> {
        Pool::placed(threads, None)
    }

    /// A pool of `threads`, the caller included, each of which stays on the
    /// processors that `places` has for it, if any. The caller does so until
    /// the pool is dropped in the same thread.
    ///
    /// # Errors
    /// When there are to be no threads, or the system gives no more, or does
    /// not let them stay.
    ///
    /// # Panics
    /// When there are places for another number of threads.
    pub fn placed(threads: usize, places: Option<Vec<Vec<usize>>>) -> Result<Pool, Error> {
        if threads == 0 {
            return Err(Error::new("0 threads were asked for; at least 1 is needed"));
        }
        let crew = Crew {
            barrier: Barrier::new(threads - 1),
            coming: Apart::default(),
            task: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        };
        let _former = places.is_some().then(FormerPlace::of_this_thread).transpose()?;
        let mut pool = Pool { crew: Arc::new(crew), workers: Vec::new(), _former, asking: Cell::default() };
        if let Some(places) = &places {
            assert_eq!(places.len(), threads, "each thread has a place");
        }
        // A thread begins where the one that starts it is, so this thread goes
        // to each worker's place before its own.
        for index in (0..threads).rev() {
            if let Some(places) = &places {
                stay_on(&places[index])?;
            }
            if index > 0 {
                let crew = Arc::clone(&pool.crew);
                let builder = thread::Builder::new().name(format!("girih-cpu-{index}"));
                let worker = builder.spawn(move || crew.work(index - 1)).map_err(|error| {
                    Error::new(format!("of {threads} threads one cannot be started: {error}"))
                })?;
                pool.workers.push(worker);
            }
        }
        Ok(pool)
    }

    /// How many threads there are, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// How many tasks its threads were called to; those of one piece the caller
    /// does alone.
    pub fn tasks(&self) -> u64 {
        self.crew.barrier.tasks()
    }

    /// Tells threads what they will read in the pieces of the first output of a task
    /// to come: `bytes`, so many in each `piece`. While they wait, each asks memory for
    /// what it reads first.
    pub fn foresee(&self, bytes: &[u8], piece: usize) {
        self.crew.coming.0.set(bytes, piece);
    }

    /// Calls `body` once for each tile of `output`, with memory of the thread's
    /// own from `locals`.
    ///
    /// # Panics
    /// When there are fewer `locals` than threads, the output is no whole
    /// number of rows, or `body` panics.
    pub fn tiles<T: Send, L: Send>(
        &self,
        locals: &mut [L],
        output: &mut [T],
        grid: Grid,
        body: impl Fn(&mut Tile<'_, T>, &mut L) + Sync,
    ) {
        self.tiles_of(locals, [(output, grid)], |_, tile, local| body(tile, local));
    }

    /// As [`Pool::tiles`], for several outputs in one task; `body` is told
    /// which of them a tile belongs to.
    ///
    /// # Panics
    /// As [`Pool::tiles`].
    pub fn tiles_of<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        outputs: [(&mut [T], Grid); N],
        body: impl Fn(usize, &mut Tile<'_, T>, &mut L) + Sync,
    ) {
        let cuts = outputs.map(|(output, grid)| Cut::new(output, grid, None));
        self.cuts(locals, cuts, body);
    }

    /// As [`Pool::tiles_of`], for some rows of the outputs only, each of which
    /// makes pieces of its own.
    ///
    /// # Panics
    /// As [`Pool::tiles`], and when `rows` do not ascend or leave an output.
    pub fn tiles_of_rows<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        rows: &[usize],
        outputs: [(&mut [T], Grid); N],
        body: impl Fn(usize, &mut Tile<'_, T>, &mut L) + Sync,
    ) {
        let cuts = outputs.map(|(output, grid)| Cut::new(output, grid, Some(rows)));
        self.cuts(locals, cuts, body);
    }

    /// Calls `body` once for each tile.
    fn cuts<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        cuts: [Cut<'_, T>; N],
        body: impl Fn(usize, &mut Tile<'_, T>, &mut L) + Sync,
    ) {
        assert!(locals.len() >= self.threads(), "each thread has its own memory");
        let locals = Shared::new(locals);
        let counts = cuts.each_ref().map(Cut::count);
        let queue = Queue::new(counts, self.threads());
        let task = |index: usize| {
            // SAFETY: `everyone` gives each of its threads another index, so no
            // other thread has this element; the assertion above says it is one.
            let local = unsafe { &mut locals.part(index..index + 1)[0] };
            let mut group = queue.group(index);
            while let Some((output, piece)) = queue.next(&mut group) {
                body(output, &mut cuts[output].tile(piece), local);
            }
        };
        if counts.iter().sum::<usize>() <= 1 {
            task(0);
        } else {
            self.everyone(&task);
        }
    }

    /// Runs `task` in this thread, and in each worker that comes before this
    /// thread is through with it; returns when all of them are.
    fn everyone(&self, task: Task<'_>) {
        if self.workers.is_empty() {
            return task(0);
        }
        // SAFETY: the reference outlives its use: this function returns only
        // after `close` has seen every worker that joined leave the task,
        // whether it returned or panicked, and a worker that has not joined
        // does not read it.
        let unbounded = unsafe { mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: the gate is closed and all workers have left the last task,
        // since `close` returned or nothing was ever opened; and there is one
        // caller at a time, as a pool is not `Sync`.
        unsafe { *self.crew.task.get() = Some(unbounded) };
        self.crew.barrier.open();
        let own = panic::catch_unwind(AssertUnwindSafe(|| task(0)));
        let (crew, mut asking) = (&self.crew, self.asking.get());
        crew.barrier.close(|| asking.go_on(&crew.coming.0, |pieces| first_piece(pieces, 0, self.threads())));
        self.asking.set(asking);
        let theirs = self.crew.take_panic();
        if let Some(panic) = own.err().or(theirs) {
            panic::resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.crew.barrier.end();
        for worker in self.workers.drain(..) {
            worker.join().expect("workers catch the panics of their tasks");
        }
    }
}

/// Where a thread was allowed to run before it was kept elsewhere; it is again
/// when this is dropped in that thread.
#[derive(Debug)]
struct FormerPlace {
    thread: ThreadId,
    allowed: Vec<usize>,
}

impl FormerPlace {
    fn of_this_thread() -> Result<FormerPlace, Error> {
        let allowed = os::allowed_cpus().ok_or_else(|| {
            Error::new("this system cannot keep threads on processors: use the affinity 'none'")
        })?;
        Ok(FormerPlace { thread: thread::current().id(), allowed })
    }
}

impl Drop for FormerPlace {
    fn drop(&mut self) {
        if thread::current().id() == self.thread {
            // Where the system refuses, the thread stays where it computed.
            os::stay_on(&self.allowed).ok();
        }
    }
}

fn stay_on(place: &[usize]) -> Result<(), Error> {
    os::stay_on(place).map_err(|error| {
        Error::new(format!(
            "a thread cannot be kept on the processors {place:?}: {error}; use the affinity 'none'"
        ))
    })
}

/// What the caller and the workers share.
struct Crew {
    barrier: Barrier,
    /// What threads read first in the next task for which it is known.
    coming: Apart<Coming>,
    /// The task at hand. The caller writes it while no worker is in a task;
    /// workers read it while they are in one.
    task: UnsafeCell<Option<Task<'static>>>,
    /// Whether a worker has panicked in the present task, and with what.
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: of the fields only `task` is not `Sync` by itself, and the barrier
// keeps its writer and its readers apart in time, as `everyone` and `work` say.
unsafe impl Sync for Crew {}

impl Crew {
    /// The life of a worker, which is the thread `worker + 1` of the pool.
    fn work(&self, worker: usize) {
        let (mut last, mut asking) = (0, Asking::default());
        let first = |pieces| first_piece(pieces, worker + 1, self.barrier.workers() + 1);
        while let Some(number) = self.barrier.join(worker, last, || asking.go_on(&self.coming.0, first)) {
            last = number;
            // SAFETY: this worker has joined a task and not left it, so the
            // caller is between `open` and the end of `close` and does not write.
            let task = unsafe { *self.task.get() }.expect("set before the gate was opened");
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| task(worker + 1)));
            if let Err(panic) = outcome {
                self.panic().get_or_insert(panic);
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.barrier.leave(worker);
        }
    }

    fn panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().expect("nothing panics while it holds the lock")
    }

    /// What the first worker panicked with, once the barrier has closed; no
    /// lock is taken unless one did.
    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        if !self.panicked.load(Ordering::Relaxed) {
            return None;
        }
        self.panicked.store(false, Ordering::Relaxed);
        self.panic().take()
    }
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("barrier", &self.barrier).finish_non_exhaustive()
    }
}

/// The pieces of a task that nobody has taken, of `N` outputs. Each group of
/// threads begins with a range of its own of each output, so that threads seldom
/// take turns at one counter, stream through memory that lies together, and meet
/// the same part of a matrix in every step, whatever other matrices its task has;
/// who is through with them takes what others have left.
struct Queue<const N: usize> {
    /// The next of each group's pieces, counted over the ranges of all outputs.
    next: [Apart<AtomicUsize>; MOST_GROUPS],
    groups: usize,
    threads: usize,
    /// The pieces of each output.
    counts: [usize; N],
}

impl<const N: usize> Queue<N> {
    fn new(counts: [usize; N], threads: usize) -> Queue<N> {
        let groups = threads.min(MOST_GROUPS);
        Queue { next: array::from_fn(|_| Apart::default()), groups, threads, counts }
    }

    /// The group that a thread belongs to; neighbours share one.
    fn group(&self, thread: usize) -> usize {
        thread * self.groups / self.threads
    }

    /// The pieces of each output that `group` begins with.
    fn ranges(&self, group: usize) -> impl Iterator<Item = Range<usize>> {
        self.counts.iter().map(move |count| group * count / self.groups..(group + 1) * count / self.groups)
    }

    /// The output and the number of one of the pieces that `group` begins with.
    fn piece(&self, group: usize, mut index: usize) -> Option<(usize, usize)> {
        for (output, range) in self.ranges(group).enumerate() {
            if index < range.len() {
                return Some((output, range.start + index));
            }
            index -= range.len();
        }
        None
    }

    /// Takes a piece of the ranges of `group`, or, when those are used up, of the
    /// first group after it that has some left, which `group` then is.
    fn next(&self, group: &mut usize) -> Option<(usize, usize)> {
        for _ in 0..self.groups {
            let (next, count) = (&self.next[*group].0, self.ranges(*group).map(|range| range.len()).sum());
            // Looked at first, as a counter that all are done with is only read.
            if next.load(Ordering::Relaxed) < count
                && let Some(piece) = self.piece(*group, next.fetch_add(1, Ordering::Relaxed))
            {
                return Some(piece);
            }
            *group = (*group + 1) % self.groups;
        }
        None
    }
}

/// The piece of so many with which a thread begins, if threads come in their order.
fn first_piece(pieces: usize, thread: usize, threads: usize) -> Option<usize> {
    let queue = Queue::new([pieces], threads);
    let group = queue.group(thread);
    let before = (0..thread).rev().take_while(|&other| queue.group(other) == group).count();
    queue.ranges(group).next()?.nth(before)
}

/// An output and how it is cut.
struct Cut<'a, T> {
    output: Shared<'a, T>,
    grid: Grid,
    rows: usize,
    /// The rows that are cut if not all are, from the first to the last.
    listed: Option<&'a [usize]>,
    /// Pieces side by side.
    across: usize,
}

impl<'a, T> Cut<'a, T> {
    fn new(output: &'a mut [T], grid: Grid, listed: Option<&'a [usize]>) -> Cut<'a, T> {
        assert_eq!(output.len() % grid.width, 0, "the output is whole rows");
        let (rows, across) = (output.len() / grid.width, grid.width.div_ceil(grid.column_step));
        if let Some(listed) = listed {
            let ascending = listed.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(ascending && listed.last().is_none_or(|&last| last < rows), "{listed:?} of {rows} rows");
        }
        Cut { output: Shared::new(output), grid, rows, listed, across }
    }

    /// How many pieces there are.
    fn count(&self) -> usize {
        let down = self.listed.map_or_else(|| self.rows.div_ceil(self.grid.row_step), <[usize]>::len);
        down * self.across
    }

    fn tile(&self, piece: usize) -> Tile<'_, T> {
        let Grid { width, row_step, column_step } = self.grid;
        let (down, left) = (piece / self.across, piece % self.across * column_step);
        let rows = match self.listed {
            None => down * row_step..self.rows.min((down * row_step).saturating_add(row_step)),
            Some(listed) => listed[down]..listed[down] + 1,
        };
        Tile { output: &self.output, width, rows, columns: left..width.min(left + column_step) }
    }
}

impl<T> Tile<'_, T> {
    /// The rows of the output that the tile covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The columns of the output that the tile covers.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The tile's part of `row`, which counts in the whole output.
    ///
    /// # Panics
    /// When the row is not one of the tile's.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} of a tile of the rows {:?}", self.rows);
        let start = row * self.width;
        // SAFETY: tiles do not overlap, because `Pool::cuts` makes one for each
        // piece of the grid, or of the listed rows, no two of which are equal, and
        // hands each piece out once; and of this tile only
        // one row is lent at a time, as the result borrows it mutably.
        unsafe { self.output.part(start + self.columns.start..start + self.columns.end) }
    }
}

/// A slice of which several threads change parts that do not overlap.
#[derive(Debug)]
struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a shared slice gives out `&mut T` in other threads and nothing else,
// which is what `T: Send` allows; that no two overlap, `part` asks its callers.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    fn new(slice: &'a mut [T]) -> Shared<'a, T> {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// When the range leaves the slice.
    ///
    /// # Safety
    /// No element may be in two results that live at the same time.
    #[allow(clippy::mut_from_ref)] // which is what the type is for
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: the range lies in the slice that `new` borrowed for longer
        // than this result lives, and the caller lets no other result have it.
        unsafe { slice::from_raw_parts_mut(self.start.wrapping_add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds one to every value of a 37 × 53 matrix, by tiles of several sizes.
    fn count(pool: &Pool, locals: &mut [usize], output: &mut [u32]) -> usize {
        let mut pieces = 0;
        for (row_step, column_step) in [(1, 53), (5, 7), (37, 1), (64, 64)] {
            pool.tiles(locals, output, Grid { width: 53, row_step, column_step }, |tile, local| {
                *local += 1;
                for row in tile.rows() {
                    assert_eq!(tile.row(row).len(), tile.columns().len());
                    tile.row(row).iter_mut().for_each(|value| *value += 1);
                }
            });
            pieces += 37usize.div_ceil(row_step) * 53usize.div_ceil(column_step);
        }
        pieces
    }

    #[test]
    fn every_piece_runs_once() {
        for threads in 1..=4 {
            let pool = Pool::new(threads).unwrap();
            let mut locals = vec![0; threads];
            let mut output = vec![0; 37 * 53];
            let pieces: usize = (0..200).map(|_| count(&pool, &mut locals, &mut output)).sum();
            assert!(output.iter().all(|&value| value == 4 * 200), "{threads} threads");
            assert_eq!(locals.iter().sum::<usize>(), pieces, "{threads} threads");
        }
    }

    #[test]
    fn every_piece_of_several_outputs_runs_once() {
        for threads in 1..=3 {
            let pool = Pool::new(threads).unwrap();
            let (mut first, mut second) = (vec![0; 40 * 3], vec![0; 7]);
            let grids = [(3, 1, 2), (7, 1, 3)];
            let grids = grids.map(|(width, row_step, column_step)| Grid { width, row_step, column_step });
            for _ in 0..100 {
                let outputs = [(&mut first[..], grids[0]), (&mut second[..], grids[1]), (&mut [], grids[0])];
                pool.tiles_of(&mut vec![(); threads], outputs, |output, tile, ()| {
                    for row in tile.rows() {
                        tile.row(row).iter_mut().for_each(|value| *value += 1 + output);
                    }
                });
            }
            assert!(first.iter().all(|&value| value == 100), "{threads} threads");
            assert!(second.iter().all(|&value| value == 200), "{threads} threads");
        }
    }

    #[test]
    fn only_listed_rows_are_cut() {
        let pool = Pool::new(2).unwrap();
        let grid = Grid { width: 3, row_step: 1, column_step: 2 };
        let run = |rows: &[usize]| {
            let mut output = vec![0; 12];
            pool.tiles_of_rows(&mut [(); 2], rows, [(&mut output[..], grid)], |_, tile, ()| {
                let row = tile.rows().start;
                tile.row(row).iter_mut().for_each(|value| *value += 1);
            });
            output
        };
        assert_eq!(run(&[0, 3]), [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(run(&[]), [0; 12]);
        for bad in [&[1, 1][..], &[2, 1], &[4]] {
            assert!(panic::catch_unwind(AssertUnwindSafe(|| run(bad))).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn queues_hand_out_each_piece_once() {
        for threads in [1, 2, 3, 8, 9, 192] {
            for count in [0, 1, 2, 7, 8, 9, 1000] {
                let counts = [count, 0, count / 3, 1];
                let queue = Queue::new(counts, threads);
                let mut taken = counts.map(|count| vec![0; count]);
                // The last thread comes alone, then the others find the rest.
                for thread in (0..threads).rev() {
                    let mut group = queue.group(thread);
                    let some = if thread == 0 { usize::MAX } else { count / 3 };
                    for _ in 0..some {
                        let Some((output, piece)) = queue.next(&mut group) else { break };
                        taken[output][piece] += 1;
                    }
                }
                let once = taken.iter().flatten().all(|&times| times == 1);
                assert!(once, "{counts:?} pieces, {threads} threads");
            }
        }
    }

    #[test]
    fn each_group_begins_with_a_range_of_its_own() {
        let queue = Queue::new([100], 4);
        let first = |thread| queue.next(&mut queue.group(thread)).unwrap().1;
        assert_eq!([0, 1, 2, 3].map(first), [0, 25, 50, 75]);
        // Of each output the same range as if it were a task of its own.
        let queue = Queue::new([4, 8], 2);
        let mine = |thread| [(); 6].map(|()| queue.next(&mut queue.group(thread)).unwrap());
        assert_eq!(mine(0), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]);
        assert_eq!(mine(1), [(0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]);
        let queue = Queue::new([96], 192);
        assert_eq!([0, 23, 24, 191].map(|thread| queue.group(thread)), [0, 0, 1, 7]);
    }

    /// What a thread is told to foresee is the piece that it takes.
    #[test]
    fn threads_that_come_in_order_begin_with_their_first_pieces() {
        for threads in [1, 2, 3, 8, 9, 20] {
            for count in [threads + 7, 10 * threads] {
                let queue = Queue::new([count, 5], threads);
                for thread in 0..threads {
                    let piece = queue.next(&mut queue.group(thread));
                    let first = first_piece(count, thread, threads).map(|first| (0, first));
                    assert!(
                        first.is_none() || piece == first,
                        "thread {thread} of {threads}, {count} pieces"
                    );
                }
                assert_eq!(first_piece(count, 0, threads), Some(0));
            }
        }
        assert_eq!([0, 1, 2, 3].map(|thread| first_piece(3, thread, 4)), [None, Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_panic_in_any_thread_is_the_callers_and_the_pool_goes_on() {
        for threads in 1..=4 {
            let pool = Pool::new(threads).unwrap();
            let mut locals = vec![0usize; threads];
            for bad in [0, 13, 39] {
                let mut output = vec![0; 40];
                let grid = Grid { width: 1, row_step: 1, column_step: 1 };
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                    pool.tiles(&mut locals, &mut output, grid, |tile, _| {
                        assert_ne!(tile.rows().start, bad, "a bad piece");
                        tile.row(tile.rows().start)[0] = 1;
                    });
                }));
                let panic = outcome.unwrap_err();
                let text = panic.downcast_ref::<String>().expect("the assertion's text");
                assert!(text.contains("a bad piece"), "{text}");
                count(&pool, &mut locals, &mut vec![0; 37 * 53]);
            }
        }
    }

    #[test]
    fn sleeping_threads_wake_up() {
        let pool = Pool::new(3).unwrap();
        let mut locals = vec![0; 3];
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(20));
            let mut output = vec![0; 37 * 53];
            count(&pool, &mut locals, &mut output);
            assert!(output.iter().all(|&value| value == 4));
        }
    }

    #[test]
    fn a_slow_piece_is_waited_for() {
        let pool = Pool::new(2).unwrap();
        let mut output = vec![0; 8];
        let grid = Grid { width: 8, row_step: 1, column_step: 1 };
        pool.tiles(&mut [(); 2], &mut output, grid, |tile, ()| {
            thread::sleep(std::time::Duration::from_millis(3));
            tile.row(0)[0] = 1;
        });
        assert_eq!(output, [1; 8]);
    }

    /// Whether workers are still spinning, fall asleep, or sleep already.
    #[test]
    fn pools_close_at_any_time() {
        for pause in 0..200 {
            let pool = Pool::new(3).unwrap();
            count(&pool, &mut [0; 3], &mut vec![0; 37 * 53]);
            thread::sleep(std::time::Duration::from_micros(2 * pause));
        }
    }

    #[test]
    fn threads_stay_at_their_places_until_the_pool_is_gone() {
        let Some(allowed) = os::allowed_cpus() else { return };
        let places =
            |threads: usize| (0..threads).map(|index| vec![allowed[index % allowed.len()]]).collect();
        let pool = Pool::placed(3, Some(places(3))).unwrap();
        let mut seen = vec![Vec::new(); 3];
        let mut output = vec![0u8; 300];
        let grid = Grid { width: 300, row_step: 1, column_step: 1 };
        pool.tiles(&mut seen, &mut output, grid, |_, seen| {
            *seen = os::allowed_cpus().unwrap();
            thread::sleep(std::time::Duration::from_micros(100));
        });
        for (index, seen) in seen.iter().enumerate().filter(|(_, seen)| !seen.is_empty()) {
            assert_eq!(*seen, [allowed[index % allowed.len()]], "thread {index}");
        }
        drop(pool);
        assert_eq!(os::allowed_cpus().unwrap(), allowed);
        let error = Pool::placed(1, Some(vec![vec![]])).unwrap_err();
        assert!(error.to_string().contains("use the affinity 'none'"), "{error}");
        assert_eq!(os::allowed_cpus().unwrap(), allowed);
    }

    #[test]
    fn a_pool_without_threads_is_refused() {
        assert!(Pool::new(0).is_err());
    }
}
