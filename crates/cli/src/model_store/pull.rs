//! The process of one download: it tells its progress on standard output, and keeps what has arrived when it is killed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use girih::{Error, ErrorKind, Result};
use girih_hub::{HubEnv, ModelId, PullOptions, PullProgress, Pulled};
use girih_serve::ChangeProgress;

use super::message::{ChangeReport, End, write_line};
use super::place;
use crate::loading;

/// The hidden command of the process.
pub const PULL_COMMAND: &str = "store-pull";

/// The folder within the folder of models in which downloads arrive.
const ARRIVALS: &str = ".girih-hub";

/// The minimum time between two reports of one file.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// Downloads a model: the arguments are the number of the change, the folder of models, the maximum of bytes in it,
/// and the model's id.
pub fn pull_main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let [number, folder, cap, id] = arguments.as_slice() else { return ExitCode::from(2) };
    let (Ok(number), Ok(cap)) = (number.parse(), cap.parse()) else { return ExitCode::from(2) };
    let end = End::of(pulled(number, Path::new(folder), cap, id));
    let report = ChangeReport { number, end: Some(end), ..ChangeReport::default() };
    match write_line(io::stdout(), &report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Removes what a download of a model has left behind: it is linked from the model's own files.
pub fn forget(folder: &Path, name: &str) {
    if let Ok(id) = ModelId::parse(name) {
        let arrived = folder.join(ARRIVALS).join(format!("models--{}", id.repo().replace('/', "--")));
        // It may never have been there.
        let _ = fs::remove_dir_all(arrived);
    }
}

fn pulled(number: u64, folder: &Path, cap: u64, name: &str) -> Result<()> {
    place::check_name(name)?;
    let environment =
        loading::environment().map_err(|error| Error::with_kind(ErrorKind::Other, error.sentence()))?;
    let environment = HubEnv { cache: folder.join(ARRIVALS), ..environment };
    let id = ModelId::parse_at(name, &environment.endpoint)?;
    let mut reports = Reports { number, last: BTreeMap::new() };
    reports.status("pulling manifest");
    let used = place::used_bytes(folder)?;
    let options = PullOptions { max_fetched: Some(cap.saturating_sub(used)), ..PullOptions::default() };
    let pulled = girih_hub::pull(&id, &environment, &options, &mut |progress| reports.update(&progress))?;
    reports.status("verifying sha256 digest");
    reports.status("writing manifest");
    publish(folder, name, &pulled)
}

/// Gives the files of a download their names in the folder of models.
fn publish(folder: &Path, name: &str, pulled: &Pulled) -> Result<()> {
    let snapshot = &pulled.snapshot;
    // Entries of a snapshot are links to blobs, which have passed their check.
    let real = |path: &Path| {
        path.canonicalize().map_err(|error| {
            Error::with_kind(ErrorKind::Other, format!("{} cannot be read: {error}", path.display()))
        })
    };
    match &snapshot.gguf {
        Some(first) => {
            let parts = parts_of(first);
            let files = parts.iter().map(|path| real(path)).collect::<Result<Vec<PathBuf>>>()?;
            place::add_files(folder, name, &files)
        }
        None => {
            let unreadable = |error: io::Error| {
                Error::with_kind(
                    ErrorKind::Other,
                    format!("{} cannot be read: {error}", snapshot.folder.display()),
                )
            };
            let mut files = Vec::new();
            for entry in fs::read_dir(&snapshot.folder).map_err(unreadable)? {
                let path = entry.map_err(unreadable)?.path();
                if let (true, Some(file)) = (path.is_file(), path.file_name().and_then(|file| file.to_str()))
                {
                    files.push((file.to_owned(), real(&path)?));
                }
            }
            place::add_folder(folder, name, &files)
        }
    }
}

/// All parts of the GGUF file whose first part this is.
fn parts_of(first: &Path) -> Vec<PathBuf> {
    let file = first.file_name().and_then(|file| file.to_str()).unwrap_or_default();
    let Some((stem, count)) = file.split_once("-00001-of-") else { return vec![first.to_owned()] };
    // Five digits, as the names of parts have: another name is that of one file.
    let digits = count.strip_suffix(".gguf").filter(|digits| digits.len() == 5);
    let parts: u32 = digits.and_then(|digits| digits.parse().ok()).unwrap_or(1);
    (1..=parts).map(|number| first.with_file_name(format!("{stem}-{number:05}-of-{count}"))).collect()
}

/// Tells the progress of a download.
struct Reports {
    number: u64,
    /// When a file was last told of.
    last: BTreeMap<String, Instant>,
}

impl Reports {
    fn tell(&self, progress: ChangeProgress) {
        let report = ChangeReport { number: self.number, progress: Some(progress), end: None };
        // Nobody reads when the server is gone: then this process is ended, too.
        let _ = write_line(io::stdout(), &report);
    }

    fn status(&self, status: &str) {
        self.tell(ChangeProgress { status: status.to_owned(), ..ChangeProgress::default() });
    }

    fn update(&mut self, progress: &PullProgress<'_>) {
        let PullProgress::Received { digest, bytes, of, .. } = *progress else { return };
        let is_due = self.last.get(digest).is_none_or(|last| last.elapsed() >= REPORT_PAUSE);
        if is_due || bytes == of {
            self.last.insert(digest.to_owned(), Instant::now());
            let kind = if digest.len() == 64 { "sha256" } else { "sha1" };
            let short: String = digest.chars().take(12).collect();
            self.tell(ChangeProgress {
                status: format!("pulling {short}"),
                digest: Some(format!("{kind}:{digest}")),
                total: Some(of),
                completed: Some(bytes),
            });
        }
    }
}
