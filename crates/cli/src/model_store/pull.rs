//! The process of one download: it tells its progress on standard output, and keeps what has arrived when it is killed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use girih::{Error, ErrorKind, Result};
use girih_hub::{HubEnv, ModelId, PullOptions, PullProgress};
use girih_serve::ChangeProgress;

use super::message::ChangeReport;
use super::{arrivals, names, place};
use crate::helper_message::{End, write_line};
use crate::loading;

/// The hidden command of the process.
pub const PULL_COMMAND: &str = "store-pull";

/// The minimum time between two reports of one file.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// As who models are downloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullAccess {
    /// As anybody: only what is public.
    Public,
    /// With the operator's token: also what the operator alone may read.
    WithToken,
}

impl PullAccess {
    /// The word of the command line.
    pub fn argument(self) -> &'static str {
        match self {
            PullAccess::Public => "public",
            PullAccess::WithToken => "with-token",
        }
    }

    /// The access of a word; `None` if it is none.
    pub fn of(argument: &OsStr) -> Option<PullAccess> {
        [PullAccess::Public, PullAccess::WithToken].into_iter().find(|access| argument == access.argument())
    }
}

/// The command of a download.
///
/// # Errors
/// When the path of this program is unknown.
pub fn command(number: u64, folder: &Path, cap: u64, access: PullAccess, model: &str) -> io::Result<Command> {
    let mut command = Command::new(loading::own_program()?);
    command.arg(PULL_COMMAND).arg(number.to_string()).arg(folder);
    command.arg(cap.to_string()).arg(access.argument()).arg(model);
    Ok(command)
}

/// Downloads a model: the arguments are the number of the change, the folder of models, the maximum of bytes in it,
/// the access, and the model's id. It ends with its standard input, which another process holds.
pub fn pull_main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.collect();
    let [number, folder, cap, access, id] = arguments.as_slice() else { return ExitCode::from(2) };
    let read = |text: &OsStr| text.to_str().and_then(|text| text.parse::<u64>().ok());
    let (Some(number), Some(cap), Some(access), Some(id)) =
        (read(number), read(cap), PullAccess::of(access), id.to_str())
    else {
        return ExitCode::from(2);
    };
    if thread::Builder::new().spawn(end_with_input).is_err() {
        return ExitCode::FAILURE;
    }
    let end = End::of(pulled(number, Path::new(folder), cap, access, id));
    let report = ChangeReport { number, end: Some(end), ..ChangeReport::default() };
    match write_line(io::stdout(), &report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Ends this process when the one that has started it is gone, also when that was killed.
fn end_with_input() {
    let mut some = [0; 64];
    while matches!(io::stdin().read(&mut some), Ok(1..)) {}
    std::process::exit(1);
}

fn pulled(number: u64, folder: &Path, cap: u64, access: PullAccess, name: &str) -> Result<()> {
    names::check_target(name)?;
    let environment =
        loading::environment().map_err(|error| Error::with_kind(ErrorKind::Other, error.sentence()))?;
    let id = ModelId::parse_at(name, &environment.endpoint)?;
    let Some(cache) = arrivals::cache(folder, name) else {
        return Err(Error::with_kind(ErrorKind::Refused, format!("{name} is no id of a model on the hub")));
    };
    let token = environment.token.filter(|_| access == PullAccess::WithToken);
    let environment = HubEnv { cache, token, ..environment };
    arrivals::check_count(folder, name)?;
    let mut reports = Reports { number, last: BTreeMap::new() };
    reports.status("pulling manifest");
    let used = place::used_bytes(folder)?;
    let options = PullOptions { max_fetched: Some(cap.saturating_sub(used)), ..PullOptions::default() };
    let pulled = girih_hub::pull(&id, &environment, &options, &mut |progress| reports.update(&progress));
    pulled.map_err(|error| with_token_hint(error, access))?;
    reports.status("verifying sha256 digest");
    reports.status("writing manifest");
    Ok(())
}

/// An error of a download; if it asks for a token, with what the operator can do.
fn with_token_hint(error: Error, access: PullAccess) -> Error {
    if access == PullAccess::WithToken || !error.to_string().contains("HF_TOKEN") {
        return error;
    }
    let hint = "the server uses its token only if it was started with --allow-pull-token";
    Error::with_kind(error.kind(), format!("{error} ({hint})"))
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
        if write_line(io::stdout(), &report).is_err() {
            // Nobody waits for the model any more.
            std::process::exit(1);
        }
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
