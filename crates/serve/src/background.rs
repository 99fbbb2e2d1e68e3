//! Work that takes more than a moment, on threads that serve no connections.

use tokio::sync::Semaphore;

use crate::body_room::BodyRoom;
use crate::error::ApiError;

/// The number of threads. Some of them may wait for a model to be loaded.
static BACKGROUND_THREADS: Semaphore = Semaphore::const_new(64);

/// Runs work that takes more than a moment on a thread that serves no connections. A client that leaves
/// while its work waits for a thread takes it back; work that runs keeps its thread, and the
/// room of the request's body, to the end.
///
/// # Errors
/// Those of the work; when it panics, status 500.
pub async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let thread = BACKGROUND_THREADS.acquire().await.expect("it is never closed");
    let room = BodyRoom::current();
    let outcome = tokio::task::spawn_blocking(move || {
        let _held = (thread, room);
        work()
    });
    let outcome = outcome.await;
    outcome.unwrap_or_else(|_| Err(ApiError::internal("the request met a fault of the server")))
}
