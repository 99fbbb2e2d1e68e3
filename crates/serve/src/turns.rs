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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_its_turn_at_most_as_long_as_it_may() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (turns, max) = (Arc::new(Semaphore::new(1)), Some(Duration::from_millis(1)));
            let held = turn_within(&turns, None).await.unwrap();
            let error = turn_within(&turns, max).await.unwrap_err();
            assert_eq!(error.code, "queue_timeout");
            drop(held);
            assert!(turn_within(&turns, max).await.is_ok());
        });
    }
}
