//! Turns of requests that wait for each other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// A turn, for which a request waits at most `max`.
///
/// # Errors
/// When that takes longer: status 429.
pub async fn turn_within(
    turns: &Arc<Semaphore>,
    max: Option<Duration>,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let turn = Arc::clone(turns).acquire_owned();
    let turn = match max {
        None => turn.await,
        Some(max) => timeout(max, turn).await.map_err(|_| {
            let seconds = max.as_secs_f64();
            let message = format!(
                "the request has waited {seconds:.0} s for its turn, which is the maximum; try again later"
            );
            ApiError::queue_timeout(message).retry_after(max)
        })?,
    };
    Ok(turn.expect("it is never closed"))
}
