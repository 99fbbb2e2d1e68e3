//! Checks that a server's name can be resolved, before requests are sent and retried.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use girih_tensor::{Error, Result};

use super::address::Address;

/// The time in which a name must be resolved: `pull` reports an unknown host within 3 s.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Checks that the host of `endpoint` has an address.
///
/// # Errors
/// When the name is unknown, or the name server does not answer in time.
pub(super) fn check_resolves(endpoint: &Address) -> Result<()> {
    let (sender, receiver) = sync_channel(1);
    let resolved = endpoint.clone();
    // The system's lookup has no timeout. A thread that still waits ends with the process.
    let started = std::thread::Builder::new().spawn(move || {
        // The receiver is gone if the time was over.
        let _ = sender.send(resolved.resolve());
    });
    started
        .map_err(|error| Error::new(format!("no thread can be started to resolve {endpoint}: {error}")))?;
    let why = match receiver.recv_timeout(RESOLVE_TIMEOUT) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {RESOLVE_TIMEOUT:?}"),
    };
    let host = endpoint.host();
    Err(Error::new(format!("the host {host} cannot be resolved ({why}); check the network and HF_ENDPOINT")))
}
