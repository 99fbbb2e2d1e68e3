//! A fixed set of threads that share the pieces of one task at a time.
//!
//! The caller is one of the threads. Idle threads take the next piece from a counter, so any thread
//! may compute a piece; results do not depend on it, because the piece alone determines which part of
//! the output it writes. A worker joins a task while it is open, and the caller waits only for
//! workers that have joined. So a worker whose CPU is used by another process delays a task by at most
//! the piece that it computes.
//!
//! This file upholds one of two guarantees on which the crate's shared borrows rest: threads stop using a
//! task before its borrows end ([`ThreadPool::everyone`]). The other one, that pieces write disjoint parts of
//! an output, is that of [`cut`](crate::cut).
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use girih_graph::{Error, ErrorKind};

use crate::affinity::{FormerAffinity, pin_to};
use crate::barrier::{Barrier, CachePadded};
use crate::cut::{CutGroups, CutOutput, DisjointSlice, RowCuts};
pub use crate::cut::{Grid, GroupTile, GroupedOutput, OutputTile};
use crate::piece_queue::{PieceQueue, first_piece};
use crate::prefetch::{PrefetchCursor, PrefetchTarget};
use crate::socket;

/// A task: called once in each thread, with the thread's index.
type TaskFn<'a> = &'a (dyn Fn(usize) + Sync);

/// Threads that wait for tasks, and the calling thread.
///
/// Not `Sync`, because there is one task at a time: two callers would write the same task, and free what
/// workers of the other one use.
#[derive(Debug)]
pub struct ThreadPool {
    crew: Arc<Crew>,
    workers: Vec<JoinHandle<()>>,
    /// Dropped after the workers have ended.
    former: Option<FormerAffinity>,
    /// What the caller has prefetched of the next task.
    cursor: Cell<PrefetchCursor>,
    /// Whatever the other fields are.
    _not_sync: PhantomData<Cell<()>>,
}

/// Does not compile if [`ThreadPool`] is `Sync`: then both implementations apply, and the case is ambiguous.
const _: () = {
    trait IsNotSync<Case> {
        const HOLDS: () = ();
    }
    impl<T: ?Sized> IsNotSync<()> for T {}
    impl<T: ?Sized + Sync> IsNotSync<u8> for T {}
    <ThreadPool as IsNotSync<_>>::HOLDS
};

/// Checks a number of threads.
///
/// # Errors
/// If it is 0.
pub fn check_threads(threads: usize) -> Result<(), Error> {
    if threads == 0 {
        let sentence = "0 threads requested; at least 1 is needed";
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    Ok(())
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller included, that are not pinned.
    ///
    /// # Errors
    /// If `threads` is 0, or the system starts fewer.
    #[cfg(test)]
    pub fn new(threads: usize) -> Result<ThreadPool, Error> {
        ThreadPool::pinned(threads, None)
    }

    /// A pool of `threads` threads, the caller included, each pinned to its CPUs in `cpus`, if given. The
    /// caller stays pinned until the pool is dropped in the same thread.
    ///
    /// # Errors
    /// If `threads` is 0, or the system starts fewer or does not pin them.
    ///
    /// # Panics
    /// If `cpus` has another number of threads.
    pub fn pinned(threads: usize, cpus: Option<Vec<Vec<usize>>>) -> Result<ThreadPool, Error> {
        ThreadPool::on_sockets(threads, cpus, &[])
    }

    /// As [`ThreadPool::pinned`], with the socket of each thread, from 0 on; the caller's is 0. Without sockets all have 0.
    ///
    /// # Errors
    /// As [`ThreadPool::pinned`].
    ///
    /// # Panics
    /// As [`ThreadPool::pinned`], or if `sockets` has another number of threads, and not none.
    pub fn on_sockets(
        threads: usize,
        cpus: Option<Vec<Vec<usize>>>,
        sockets: &[usize],
    ) -> Result<ThreadPool, Error> {
        check_threads(threads)?;
        let socket_count = sockets.iter().max().map_or(1, |last| last + 1);
        if let Some(cpus) = &cpus {
            assert_eq!(cpus.len(), threads, "each thread has its CPUs");
        }
        assert!(sockets.is_empty() || sockets.len() == threads, "each thread has its socket");
        let crew = Crew {
            barrier: Barrier::new(threads - 1),
            targets: (0..socket_count).map(|_| CachePadded::default()).collect(),
            task: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        };
        let former = cpus.as_ref().map(|cpus| FormerAffinity::of_this_thread(&cpus[0])).transpose()?;
        let mut pool = ThreadPool {
            crew: Arc::new(crew),
            workers: Vec::new(),
            former,
            cursor: Cell::default(),
            _not_sync: PhantomData,
        };
        // A thread inherits the CPUs of the thread that starts it, so this thread is pinned to each
        // worker's CPUs before its own.
        for index in (0..threads).rev() {
            if let Some(cpus) = &cpus {
                let advised = |error| Error::new(format!("{error}; use the affinity 'none'"));
                pin_to(&cpus[index]).map_err(advised)?;
            }
            if index > 0 {
                let (crew, socket) = (Arc::clone(&pool.crew), sockets.get(index).copied().unwrap_or(0));
                let builder = thread::Builder::new().name(format!("girih-cpu-{index}"));
                let worker = builder
                    .spawn(move || crew.work(index - 1, socket))
                    .map_err(|error| Error::new(format!("cannot start {threads} threads: {error}")))?;
                pool.workers.push(worker);
            }
        }
        Ok(pool)
    }

    /// The number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The number of tasks that its threads have shared; the caller computes a task of one piece alone.
    pub fn tasks(&self) -> u64 {
        self.crew.barrier.tasks()
    }

    /// Calls `work` with the CPUs that this thread had before it was pinned. Threads that it starts inherit
    /// these, instead of the one CPU that the pool's caller keeps busy.
    pub fn unpinned<R>(&self, work: impl FnOnce() -> R) -> R {
        let _pinned_again = self.former.as_ref().map(FormerAffinity::lend);
        work()
    }

    /// Sets what idle threads prefetch: what the next task reads for its first output, `piece` bytes in each piece.
    /// `bytes` returns those that the threads of a socket read.
    pub fn prefetch<'a>(&self, bytes: impl Fn(usize) -> &'a [u8], piece: usize) {
        for (socket, target) in self.crew.targets.iter().enumerate() {
            target.0.set(bytes(socket), piece);
        }
    }

    /// Calls `body` once for each tile of `output`, with the thread's own memory from `locals`.
    ///
    /// # Panics
    /// If there are fewer `locals` than threads, the output does not consist of whole rows, or `body`
    /// panics.
    pub fn tiles<T: Send, L: Send>(
        &self,
        locals: &mut [L],
        output: &mut [T],
        grid: Grid,
        body: impl Fn(&mut OutputTile<'_, T>, &mut L) + Sync,
    ) {
        self.tiles_of(locals, [(output, grid)], |_, tile, local| body(tile, local));
    }

    /// As [`ThreadPool::tiles`], for several outputs in one task; `body` receives the index of the tile's
    /// output.
    ///
    /// # Panics
    /// As [`ThreadPool::tiles`].
    pub fn tiles_of<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        outputs: [(&mut [T], Grid); N],
        body: impl Fn(usize, &mut OutputTile<'_, T>, &mut L) + Sync,
    ) {
        let cuts = outputs.map(|(output, grid)| CutOutput::new(output, grid, RowCuts::Steps));
        self.cuts(locals, cuts, body);
    }

    /// As [`ThreadPool::tiles_of`], for some rows of the outputs only, each in pieces of its own.
    ///
    /// # Panics
    /// As [`ThreadPool::tiles`], and if `rows` are not ascending or exceed an output.
    pub fn tiles_of_rows<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        rows: &[usize],
        outputs: [(&mut [T], Grid); N],
        body: impl Fn(usize, &mut OutputTile<'_, T>, &mut L) + Sync,
    ) {
        let cuts = outputs.map(|(output, grid)| CutOutput::new(output, grid, RowCuts::Listed(rows)));
        self.cuts(locals, cuts, body);
    }

    /// As [`ThreadPool::tiles_of`], with pieces that have the rows of one group each; a group ends where the next
    /// one begins. Outputs without rows have no groups.
    ///
    /// # Panics
    /// As [`ThreadPool::tiles`], and if the `ends` of the groups are not ascending or exceed an output.
    pub fn tiles_of_groups<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        ends: &[u32],
        outputs: [(&mut [T], Grid); N],
        body: impl Fn(usize, &mut OutputTile<'_, T>, &mut L) + Sync,
    ) {
        let cuts = outputs.map(|(output, grid)| {
            let ends = if output.is_empty() { &[] } else { ends };
            CutOutput::new(output, grid, RowCuts::Groups(ends))
        });
        self.cuts(locals, cuts, body);
    }

    /// As [`ThreadPool::tiles_of_groups`], where a piece also writes columns of the same group's rows of another
    /// output, which is cut into as many columns.
    ///
    /// # Panics
    /// As [`ThreadPool::tiles_of_groups`], and if the other output has another number of groups or of pieces
    /// side by side, or a row twice.
    pub fn tiles_and_groups<T: Send, U: Send, L: Send>(
        &self,
        locals: &mut [L],
        ends: &[u32],
        (output, grid): (&mut [T], Grid),
        other: GroupedOutput<'_, U>,
        body: impl Fn(&mut OutputTile<'_, T>, &mut GroupTile<'_, U>, &mut L) + Sync,
    ) {
        let (across, other) = (grid.width.div_ceil(grid.column_step), CutGroups::new(other));
        assert_eq!((other.groups(), other.across()), (ends.len(), across), "groups, and pieces side by side");
        let cuts = [CutOutput::new(output, grid, RowCuts::Groups(ends))];
        self.cuts(locals, cuts, |_, tile, local| {
            let group =
                ends.binary_search(&(tile.rows().end as u32)).expect("a tile has the rows of a group");
            let piece = tile.columns().start / grid.column_step;
            // SAFETY: `cuts` makes one tile for each group and each of the pieces side by side.
            body(tile, &mut unsafe { other.tile(group, piece) }, local);
        });
    }

    /// Calls `body` once for each tile.
    fn cuts<T: Send, L: Send, const N: usize>(
        &self,
        locals: &mut [L],
        cuts: [CutOutput<'_, T>; N],
        body: impl Fn(usize, &mut OutputTile<'_, T>, &mut L) + Sync,
    ) {
        assert!(locals.len() >= self.threads(), "each thread has its own memory");
        let locals = DisjointSlice::new(locals);
        let counts = cuts.each_ref().map(CutOutput::count);
        let queue = PieceQueue::new(counts, self.threads());
        let task = |index: usize| {
            // SAFETY: `everyone` gives each of its threads another index, so no
            // other thread has this element; the assertion above checks that it exists.
            let local = unsafe { &mut locals.part(index..index + 1)[0] };
            let mut group = queue.group(index);
            while let Some((output, piece)) = queue.next(&mut group) {
                // SAFETY: the queue hands out each piece once.
                body(output, &mut unsafe { cuts[output].tile(piece) }, local);
            }
        };
        if counts.iter().sum::<usize>() <= 1 {
            task(0);
        } else {
            self.everyone(&task);
        }
    }

    /// Runs `task` in this thread and in each worker that joins before this thread has finished it;
    /// returns when all of them have finished.
    fn everyone(&self, task: TaskFn<'_>) {
        if self.workers.is_empty() {
            return task(0);
        }
        // SAFETY: the reference outlives its use: this function returns or
        // unwinds only after `close`, or the drop of `open`, has seen every
        // worker that joined leave the task, whether it returned or panicked;
        // neither ever unwinds; and a worker that has not joined does not read it.
        let unbounded = unsafe { mem::transmute::<TaskFn<'_>, TaskFn<'static>>(task) };
        // SAFETY: the gate is closed and all workers have left the last task,
        // since its `OpenTask` is gone or nothing was ever opened; and there is
        // one caller at a time, as a pool is not `Sync`.
        unsafe { *self.crew.task.get() = Some(unbounded) };
        let open = self.crew.barrier.open();
        let own = panic::catch_unwind(AssertUnwindSafe(|| task(0)));
        let (crew, mut cursor) = (&self.crew, self.cursor.get());
        open.close(|| cursor.advance(&crew.targets[0].0, |pieces| first_piece(pieces, 0, self.threads())));
        self.cursor.set(cursor);
        let theirs = self.crew.take_panic();
        match (own, theirs) {
            (Err(panic), theirs) => {
                mem::forget(theirs);
                panic::resume_unwind(panic);
            }
            (Ok(()), Some(panic)) => panic::resume_unwind(panic),
            (Ok(()), None) => {}
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.crew.barrier.end();
        for worker in self.workers.drain(..) {
            worker.join().expect("workers catch the panics of their tasks");
        }
    }
}

/// What the caller and the workers share.
struct Crew {
    barrier: Barrier,
    /// What idle threads of each socket prefetch.
    targets: Box<[CachePadded<PrefetchTarget>]>,
    /// The current task. The caller writes it while no worker is in a task; workers read it while they
    /// are in one.
    task: UnsafeCell<Option<TaskFn<'static>>>,
    /// Whether a worker has panicked in the current task, and with what.
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: only the field `task` is not `Sync` by itself, and the barrier
// separates its writer from its readers in time, as `everyone` and `work` explain.
unsafe impl Sync for Crew {}

impl Crew {
    /// The loop of a worker, which is thread `worker + 1` of the pool.
    fn work(&self, worker: usize, socket: usize) {
        socket::set_of_this_thread(socket);
        let target = &self.targets[socket].0;
        let (mut seat, mut cursor) = (self.barrier.seat(worker), PrefetchCursor::default());
        let first = |pieces| first_piece(pieces, worker + 1, self.barrier.workers() + 1);
        while let Some(_joined) = seat.join(|| cursor.advance(target, first)) {
            // SAFETY: this worker has joined a task and leaves it when `_joined` is
            // dropped, so the caller is between `open` and the end of `close` and does not write.
            let task = unsafe { *self.task.get() }.expect("set before the gate was opened");
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| task(worker + 1)));
            if let Err(panic) = outcome {
                self.keep_panic(panic);
            }
        }
    }

    /// Keeps the first panic of a task. Further ones are never dropped, because dropping one might panic
    /// as well, and end this worker.
    fn keep_panic(&self, panic: Box<dyn Any + Send>) {
        let mut kept = self.panic();
        match *kept {
            None => *kept = Some(panic),
            Some(_) => mem::forget(panic),
        }
        drop(kept);
        self.panicked.store(true, Ordering::Relaxed);
    }

    fn panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().expect("nothing panics while it holds the lock")
    }

    /// The panic of the first worker that panicked, after the barrier has closed; takes no lock if none
    /// did.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::cut::GroupedRows;
    use crate::os;

    /// Adds one to every value of a 37 × 53 matrix, by tiles of several sizes.
    fn count(pool: &ThreadPool, locals: &mut [usize], output: &mut [u32]) -> usize {
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
            let pool = ThreadPool::new(threads).unwrap();
            let mut locals = vec![0; threads];
            let mut output = vec![0; 37 * 53];
            let pieces: usize = (0..200).map(|_| count(&pool, &mut locals, &mut output)).sum();
            assert!(output.iter().all(|&value| value == 4 * 200), "{threads} threads");
            assert_eq!(locals.iter().sum::<usize>(), pieces, "{threads} threads");
        }
    }

    #[test]
    fn every_piece_of_a_group_runs_once() {
        for threads in 1..=3 {
            let pool = ThreadPool::new(threads).unwrap();
            let mut output = vec![0; 10 * 7];
            for ends in [&[1, 2, 9, 10][..], &[10], &[3]] {
                let before = output.clone();
                let grid = Grid { width: 7, row_step: 1, column_step: 3 };
                pool.tiles_of_groups(&mut vec![(); threads], ends, [(&mut output, grid)], |_, tile, ()| {
                    assert!(ends.contains(&(tile.rows().end as u32)), "{:?}", tile.rows());
                    for row in tile.rows() {
                        tile.row(row).iter_mut().for_each(|value| *value += 1);
                    }
                });
                let all = Grid { width: 7, row_step: 1, column_step: 7 };
                pool.tiles_of_groups(&mut vec![(); threads], ends, [(&mut output, all)], |_, tile, ()| {
                    assert_eq!(tile.whole().len(), tile.rows().len() * 7);
                    tile.whole().iter_mut().for_each(|value| *value += 1);
                });
                let rows = ends[ends.len() - 1] as usize;
                let added = before.iter().enumerate().map(|(at, old)| old + 2 * usize::from(at < rows * 7));
                assert!(output.iter().copied().eq(added), "{ends:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "groups end at [2, 2] of 3 rows")]
    fn empty_groups_are_no_groups() {
        let (pool, grid) = (ThreadPool::new(1).unwrap(), Grid { width: 1, row_step: 1, column_step: 1 });
        pool.tiles_of_groups(&mut [()], &[2, 2], [(&mut [0; 3], grid)], |_, _, ()| {});
    }

    #[test]
    fn a_piece_writes_its_columns_of_the_rows_of_its_group() {
        let grid = Grid { width: 5, row_step: 1, column_step: 2 };
        let run = |threads: usize, groups: &[&[usize]], ends: &[u32]| {
            let pool = ThreadPool::new(threads).unwrap();
            let (mut output, mut values, mut rows) = (vec![0; 20], vec![0; 5 * 9], GroupedRows::default());
            groups.iter().for_each(|group| rows.push(group.iter().copied()));
            let other = GroupedOutput { values: &mut values, width: 9, column_step: 4, rows: &mut rows };
            let output = (&mut output[..], grid);
            pool.tiles_and_groups(&mut vec![(); threads], ends, output, other, |tile, own, ()| {
                let mark = 10 * tile.rows().start + tile.columns().start;
                own.row(0).iter_mut().for_each(|value| *value += mark);
                (1..own.count()).for_each(|index| own.copy_to_next(index - 1));
            });
            values
        };
        for threads in 1..=3 {
            let values = run(threads, &[&[3, 0], &[2]], &[1, 4]);
            let rows: Vec<_> = values.chunks(9).collect();
            assert_eq!(rows[3], [0, 0, 0, 0, 2, 2, 2, 2, 4]);
            assert_eq!(rows[2], [10, 10, 10, 10, 12, 12, 12, 12, 14]);
            assert_eq!((rows[0], rows[1], rows[4]), (rows[3], &[0; 9][..], &[0; 9][..]));
        }
        for bad in [&[&[1][..], &[1]][..], &[&[1, 1], &[2]], &[&[5], &[2]], &[&[1]]] {
            assert!(panic::catch_unwind(AssertUnwindSafe(|| run(2, bad, &[1, 4]))).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_piece_of_several_outputs_runs_once() {
        for threads in 1..=3 {
            let pool = ThreadPool::new(threads).unwrap();
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
        let pool = ThreadPool::new(2).unwrap();
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
                let queue = PieceQueue::new(counts, threads);
                let mut taken = counts.map(|count| vec![0; count]);
                // The last thread runs alone at first; the others find the rest.
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
    fn each_group_begins_with_its_own_range() {
        let queue = PieceQueue::new([100], 4);
        let first = |thread| queue.next(&mut queue.group(thread)).unwrap().1;
        assert_eq!([0, 1, 2, 3].map(first), [0, 25, 50, 75]);
        // Each output has the same range as if it were a task of its own.
        let queue = PieceQueue::new([4, 8], 2);
        let mine = |thread| [(); 6].map(|()| queue.next(&mut queue.group(thread)).unwrap());
        assert_eq!(mine(0), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]);
        assert_eq!(mine(1), [(0, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]);
        let queue = PieceQueue::new([96], 192);
        assert_eq!([0, 23, 24, 191].map(|thread| queue.group(thread)), [0, 0, 1, 7]);
    }

    /// The piece that a thread prefetches is the piece that it takes.
    #[test]
    fn threads_that_arrive_in_order_take_their_first_pieces() {
        for threads in [1, 2, 3, 8, 9, 20] {
            for count in [threads + 7, 10 * threads] {
                let queue = PieceQueue::new([count, 5], threads);
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
    fn a_panic_in_any_thread_reaches_the_caller_and_the_pool_keeps_working() {
        for threads in 1..=4 {
            let pool = ThreadPool::new(threads).unwrap();
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

    /// What it panics with panics when it is dropped.
    #[test]
    fn a_payload_that_panics_when_dropped_stops_no_thread() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("the drop of a payload");
            }
        }
        const THREADS: usize = 3;
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let pool = ThreadPool::new(THREADS).unwrap();
            for bad in [0..THREADS, 1..THREADS] {
                // All threads are in the task before one of them panics.
                let all = std::sync::Barrier::new(THREADS);
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                    pool.everyone(&|index| {
                        all.wait();
                        if bad.contains(&index) {
                            panic::panic_any(Payload);
                        }
                    });
                }));
                let panic = outcome.unwrap_err();
                assert!(panic.is::<Payload>());
                mem::forget(panic);
            }
            // Every thread still works.
            let all = std::sync::Barrier::new(THREADS);
            pool.everyone(&|_| {
                all.wait();
            });
            tell.send(()).unwrap();
        });
        // A thread that has ended would leave the others waiting for ever.
        told.recv_timeout(std::time::Duration::from_secs(30)).expect("the pool works after the panics");
    }

    #[test]
    fn sleeping_threads_wake_up() {
        // As many as have groups, whose members wake each other.
        for threads in [3, 20] {
            let pool = ThreadPool::new(threads).unwrap();
            let mut locals = vec![0; threads];
            for _ in 0..3 {
                thread::sleep(std::time::Duration::from_millis(20));
                let mut output = vec![0; 37 * 53];
                count(&pool, &mut locals, &mut output);
                assert!(output.iter().all(|&value| value == 4));
            }
        }
    }

    #[test]
    fn the_caller_waits_for_a_slow_piece() {
        let pool = ThreadPool::new(2).unwrap();
        let mut output = vec![0; 8];
        let grid = Grid { width: 8, row_step: 1, column_step: 1 };
        pool.tiles(&mut [(); 2], &mut output, grid, |tile, ()| {
            thread::sleep(std::time::Duration::from_millis(3));
            tile.row(0)[0] = 1;
        });
        assert_eq!(output, [1; 8]);
    }

    /// Workers may be spinning, falling asleep, or asleep.
    #[test]
    fn a_pool_can_be_dropped_at_any_time() {
        for pause in 0..200 {
            let pool = ThreadPool::new(3).unwrap();
            count(&pool, &mut [0; 3], &mut vec![0; 37 * 53]);
            thread::sleep(std::time::Duration::from_micros(2 * pause));
        }
    }

    #[test]
    fn threads_are_pinned_until_the_pool_is_dropped() {
        let Some(allowed) = os::allowed_cpus() else { return };
        let cpus = |threads: usize| (0..threads).map(|index| vec![allowed[index % allowed.len()]]).collect();
        let pool = ThreadPool::pinned(3, Some(cpus(3))).unwrap();
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
        let inherited = pool.unpinned(|| thread::spawn(os::allowed_cpus).join().unwrap());
        assert_eq!(inherited.unwrap(), allowed, "a thread that has nothing to do with the pool");
        assert_eq!(os::allowed_cpus().unwrap(), allowed[..1], "pinned again");
        drop(pool);
        assert_eq!(os::allowed_cpus().unwrap(), allowed);
        let error = ThreadPool::pinned(1, Some(vec![vec![]])).unwrap_err();
        assert!(error.to_string().contains("use the affinity 'none'"), "{error}");
        assert_eq!(os::allowed_cpus().unwrap(), allowed);
    }

    #[test]
    fn a_pool_without_threads_is_refused() {
        assert!(ThreadPool::new(0).is_err());
    }
}
