//! The server's side of the process that fetches.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use girih::{Error, ErrorKind, Result};
use girih_hub::check_own_addresses;
use girih_serve::ImageFetcher;

use super::task::FetchTask;
use super::worker;
use crate::helper_process::{HelperEvent, HelperProcess};

/// What a fetch may take longer than its time, before it is given up here.
const GRACE: Duration = Duration::from_secs(2);

/// The process that fetches for a server; it ends with this one.
#[derive(Debug)]
pub struct FetchProcess(HelperProcess<String>);

impl FetchProcess {
    /// Starts the process.
    ///
    /// # Errors
    /// When it cannot be started, or could not tell addresses of this machine from others.
    pub fn start() -> Result<FetchProcess> {
        check_own_addresses().map_err(|error| error.of("--fetch-images"))?;
        HelperProcess::start(worker::command(), "the process that fetches images").map(FetchProcess)
    }
}

impl ImageFetcher for FetchProcess {
    fn fetch(&self, url: &str, max_bytes: u64, time: Duration) -> Result<Vec<u8>> {
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let task = FetchTask { url: url.to_owned(), max_bytes, milliseconds };
        let (sender, events): (Sender<HelperEvent<String>>, _) = channel();
        // Nobody hears of a fetch that was given up.
        let listener = move |event| drop(sender.send(event));
        let _task = self.0.begin(&task, Box::new(listener))?;
        let deadline = Instant::now() + time + GRACE;
        let mut bytes = Vec::new();
        loop {
            match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(HelperEvent::Ended(result)) => return result.map(|()| bytes),
                Ok(HelperEvent::Progress(piece)) => {
                    let piece = STANDARD.decode(piece).map_err(|_| broken())?;
                    if (bytes.len() + piece.len()) as u64 > max_bytes {
                        return Err(broken());
                    }
                    bytes.extend_from_slice(&piece);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let sentence = format!("{url:?} did not arrive within {time:?}");
                    return Err(Error::with_kind(ErrorKind::Refused, sentence));
                }
            }
        }
    }
}

fn broken() -> Error {
    Error::new("the process that fetches images has sent what is no file")
}
