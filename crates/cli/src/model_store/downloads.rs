//! A queue of downloads: one runs at a time, in the order of the requests.

use std::collections::VecDeque;
use std::io;
use std::process::{Child, ChildStdout};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The maximum number of downloads that run or wait.
pub const MAX_DOWNLOADS: usize = 8;

/// A download that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    /// The number of the change.
    pub number: u64,
    /// The model's id on the hub.
    pub model: String,
}

/// The downloads of a process. One thread runs them; others add and cancel them.
#[derive(Debug, Default)]
pub struct Downloads {
    queue: Mutex<Queue>,
    /// Told of when there is another one, or none any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Download>,
    running: Option<(Download, DownloadState)>,
    /// Whether no further ones are run.
    has_ended: bool,
}

/// What the download that was begun does.
#[derive(Debug)]
enum DownloadState {
    /// Its process downloads.
    Runs(Child),
    /// Its process has ended, and its files get their names.
    Arrived,
    /// It was cancelled.
    Cancelled,
}

impl Downloads {
    /// Adds a download; returns whether there was room.
    pub fn add(&self, download: Download) -> bool {
        let mut queue = self.queue();
        let has_room = queue.waiting.len() + usize::from(queue.running.is_some()) < MAX_DOWNLOADS;
        if has_room {
            queue.waiting.push_back(download);
            self.changed.notify_one();
        }
        has_room
    }

    /// Waits for the next download and starts its process; `None` when no further ones are run. [`Downloads::end`] has
    /// to follow.
    pub fn begin(
        &self,
        start: impl FnOnce(&Download) -> io::Result<Child>,
    ) -> Option<(Download, io::Result<Option<ChildStdout>>)> {
        let mut queue = self.queue();
        let download = loop {
            if queue.has_ended {
                return None;
            }
            match queue.waiting.pop_front() {
                Some(download) => break download,
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        // Within the lock: it is cancelled either while it waits or as a process.
        let (output, state) = match start(&download) {
            Ok(mut child) => (Ok(child.stdout.take()), DownloadState::Runs(child)),
            Err(error) => (Err(error), DownloadState::Arrived),
        };
        queue.running = Some((download.clone(), state));
        Some((download, output))
    }

    /// Notes that the process has told its end; returns whether it was not cancelled before.
    pub fn arrived(&self) -> bool {
        let mut queue = self.queue();
        let Some((_, state)) = &mut queue.running else { return false };
        if let DownloadState::Runs(child) = state {
            end_process(child);
            *state = DownloadState::Arrived;
        }
        matches!(state, DownloadState::Arrived)
    }

    /// Ends the download that was begun.
    pub fn end(&self) {
        self.queue().running = None;
    }

    /// Cancels a download that waits or whose process runs.
    pub fn cancel(&self, number: u64) {
        let mut queue = self.queue();
        queue.waiting.retain(|download| download.number != number);
        if let Some((download, state)) = &mut queue.running
            && download.number == number
        {
            cancel(state);
        }
    }

    /// Does something unless this model is being downloaded or waits for it; `None` if it is. Meanwhile no download
    /// is begun.
    pub fn without<T>(&self, model: &str, change: impl FnOnce() -> T) -> Option<T> {
        let queue = self.queue();
        let running = queue.running.iter().map(|(download, _)| download);
        let is_busy = queue.waiting.iter().chain(running).any(|download| download.model == model);
        (!is_busy).then(change)
    }

    /// Cancels all downloads, and runs no further ones.
    pub fn end_all(&self) {
        let mut queue = self.queue();
        queue.has_ended = true;
        queue.waiting.clear();
        if let Some((_, state)) = &mut queue.running {
            cancel(state);
        }
        self.changed.notify_all();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cancel(state: &mut DownloadState) {
    if let DownloadState::Runs(child) = state {
        end_process(child);
        *state = DownloadState::Cancelled;
    }
}

/// Ends a process that may have ended.
fn end_process(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn download(number: u64, model: &str) -> Download {
        Download { number, model: model.to_owned() }
    }

    fn sleeper(_: &Download) -> io::Result<Child> {
        Command::new("sleep").arg("600").stdout(Stdio::piped()).spawn()
    }

    #[test]
    fn what_is_cancelled_while_it_waits_never_begins() {
        let downloads = Downloads::default();
        assert!((0..8).all(|number| downloads.add(download(number, "a"))));
        assert!(!downloads.add(download(8, "b")), "eight are the most");
        (0..7).for_each(|number| downloads.cancel(number));
        assert_eq!(downloads.without("a", || ()), None);
        assert_eq!(downloads.without("b", || 1), Some(1));
        let (begun, output) = downloads.begin(sleeper).unwrap();
        assert_eq!(begun, download(7, "a"));
        // Its process ends at once, and what it has is not used.
        downloads.cancel(7);
        let mut text = String::new();
        output.unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.is_empty() && !downloads.arrived());
        assert_eq!(downloads.without("a", || ()), None, "its files are still looked at");
        downloads.end();
        assert_eq!(downloads.without("a", || 1), Some(1));
    }

    #[test]
    fn what_has_arrived_is_not_cancelled_any_more() {
        let downloads = Downloads::default();
        downloads.add(download(1, "a"));
        let started = downloads.begin(|_| Command::new("true").stdout(Stdio::piped()).spawn());
        assert!(started.is_some_and(|(_, output)| output.is_ok()) && downloads.arrived());
        downloads.cancel(1);
        assert!(downloads.arrived());
        downloads.end();
        downloads.add(download(2, "b"));
        let failed = downloads.begin(|_| Err(io::Error::other("no")));
        assert!(failed.is_some_and(|(_, output)| output.is_err()));
        downloads.end();
        downloads.add(download(3, "c"));
        downloads.end_all();
        assert!(downloads.begin(sleeper).is_none());
    }
}
