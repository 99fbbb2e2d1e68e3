//! The end of a file of packed weights, in a process that the program does not wait for.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use girih_file::PrivateFolder;

use crate::folder::{PACKED_SUFFIX, PARTIAL_SUFFIX};
use crate::open_options::SyncProcess;
use crate::priority::set_lowest_priority;

/// The command of a program that calls [`sync_worker`], for [`SyncProcess::Worker`](crate::SyncProcess::Worker).
///
/// ```
/// assert_eq!(girih::SYNC_COMMAND, "sync-worker");
/// ```
pub const SYNC_COMMAND: &str = "sync-worker";

/// The names of a file: in its folder, while it is written, and when it is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileNames<'a> {
    pub folder: &'a Path,
    pub partial: &'a str,
    pub name: &'a str,
}

/// Starts the worker of `process` for a file that is written; `None` if there is none. The worker holds the lock
/// of the file, as it has the same open file.
pub(crate) fn start(
    process: &SyncProcess,
    file: &File,
    FileNames { folder, partial, name }: FileNames<'_>,
) -> io::Result<Option<Child>> {
    let SyncProcess::Worker { program, arguments } = process else { return Ok(None) };
    // With the streams of this process, a reader of its output would wait for the worker as well.
    let mut worker = Command::new(program);
    worker.args(arguments).arg(folder).args([partial, name]).env_clear();
    worker.stdin(file.try_clone()?).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(Some)
}

/// The main function of the process that waits for the disk, see [`SyncProcess::Worker`]. `arguments` are those
/// that follow the ones of the program. Standard input is the file.
///
/// ```no_run
/// // What it is given comes from girih; other calls fail.
/// let code = girih::sync_worker(std::env::args_os().skip(2));
/// ```
pub fn sync_worker(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A terminal that is closed must not end it. This fails only for a leader of a group, which it is not.
    let _ = rustix::process::setsid();
    set_lowest_priority();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let [folder, partial, name] = arguments.as_slice() else { return ExitCode::from(2) };
    let (Some(partial), Some(name)) = (partial.to_str(), name.to_str()) else { return ExitCode::from(2) };
    let names = FileNames { folder: Path::new(folder), partial, name };
    let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
    match file.and_then(|file| finish(&file, names)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Waits until the file is on the disk and gives it its name. If that fails, it is removed.
pub(crate) fn finish(file: &File, FileNames { folder, partial, name }: FileNames<'_>) -> io::Result<()> {
    let is_ours =
        name.ends_with(PACKED_SUFFIX) && partial.ends_with(PARTIAL_SUFFIX) && partial.starts_with(name);
    if !is_ours || partial.contains('/') {
        return Err(io::Error::other("the names are not those of packed weights"));
    }
    let folder = PrivateFolder::open(folder).map_err(io::Error::other)?.ok_or(io::ErrorKind::NotFound)?;
    let synced = file.sync_all().and_then(|()| folder.rename(partial, name));
    if synced.is_err() {
        let _ = folder.remove(partial);
    }
    // The name must reach the disk as well.
    synced.and_then(|()| folder.sync())
}
