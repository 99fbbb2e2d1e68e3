//! The thread that computes masks while the model runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

use girih_tensor::{Error, ErrorKind, Result};
use llguidance::TokenParser;
use llguidance::toktrie::SimpleVob;

use crate::limits::STACK_BYTES;

/// A parser, and the tokens that it allows next.
pub(crate) type MaskedParser = Result<(Box<TokenParser>, SimpleVob)>;

/// A parser whose mask is wanted, and where it goes.
type MaskJob = (Box<TokenParser>, std::sync::mpsc::SyncSender<MaskedParser>);

/// One thread, which computes the masks of all constraints of a compiler in the order in which
/// they are asked for. It ends with its last handle.
#[derive(Clone)]
pub(crate) struct MaskThread(Sender<MaskJob>);

impl MaskThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start() -> Result<MaskThread> {
        let (sender, jobs) = channel::<MaskJob>();
        let run = move || {
            for (parser, reply) in jobs {
                // Nobody waits for the mask of a request that has ended.
                let _ = reply.send(masked(parser));
            }
        };
        let builder = thread::Builder::new().name("girih-masks".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(run).map_err(|error| {
            let sentence = format!("the thread that computes masks cannot be started: {error}");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        })?;
        Ok(MaskThread(sender))
    }

    /// Begins to compute the mask of a parser.
    pub fn begin(&self, parser: Box<TokenParser>) -> Receiver<MaskedParser> {
        let (sender, mask) = sync_channel(1);
        // If the thread has ended, the receiver learns of it.
        let _ = self.0.send((parser, sender));
        mask
    }
}

/// Computes the mask of a parser; a panic is an error.
fn masked(mut parser: Box<TokenParser>) -> MaskedParser {
    let mask = catch_unwind(AssertUnwindSafe(|| parser.compute_mask()));
    match mask {
        Ok(Ok(mask)) => Ok((parser, mask)),
        Ok(Err(error)) => Err(Error::with_kind(
            ErrorKind::Refused,
            format!("the grammar allows no token here, or is too complex: {}", first_line(&error)),
        )),
        Err(_) => Err(panicked()),
    }
}

/// The error of a panic in the grammar's code.
pub(crate) fn panicked() -> Error {
    Error::with_kind(ErrorKind::DeviceFailed, "the grammar's code panicked: simplify the grammar")
}

/// The first line of a dependency's message, at most 200 characters.
pub(crate) fn first_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}
