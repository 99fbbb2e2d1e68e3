//! The session of a model for a request. Requests that wait for a model hold no thread, so they keep nothing from the
//! other models.

use std::sync::Arc;
use std::time::{Duration, Instant};

use girih::{ErrorKind, Session};
use tokio::time::sleep;

use crate::background::in_background;
use crate::error::ApiError;
use crate::models::ListedModel;
use crate::state::{ServerPhase, ServerState};

/// The time between two attempts to load a model for which others in use leave no room.
const ROOM_CHECK: Duration = Duration::from_millis(100);

/// The session of a model. Loads it if it is not loaded, and returns when it is ready. A model for which others in use
/// leave no room waits until they have made it, at most for [`girih::RunOptions::max_wait`].
///
/// # Errors
/// As [`girih::ModelPool::session`], and when the wait is too long or the server ends.
pub async fn ready_session(state: &Arc<ServerState>, model: &ListedModel) -> Result<Session, ApiError> {
    let of_model = |error: girih::Error| match error.kind() {
        ErrorKind::DeviceFailed if state.models.down().contains(&model.name) => ApiError::engine_failed(),
        _ => ApiError::from(error),
    };
    // While its adapters change, there is none; the one of the pool has those of now.
    let unchanged = model.changing().read().await;
    let session = begun_session(state, model).await.map_err(|refused| match refused {
        Refused::Model(error) => of_model(error),
        Refused::Request(error) => error,
    })?;
    drop(unchanged);
    session.ready().await.map_err(|error| of_model(error.of(&model.name)))?;
    Ok(session)
}

/// Why there is no session.
enum Refused {
    /// The model cannot be used.
    Model(girih::Error),
    /// The request is refused.
    Request(ApiError),
}

/// As [`ready_session`], but returns as soon as the model is being loaded.
async fn begun_session(state: &Arc<ServerState>, model: &ListedModel) -> Result<Session, Refused> {
    let begun = Instant::now();
    loop {
        let error = match begin(state, &model.name).await? {
            Ok(session) => return Ok(session),
            Err(error) if error.kind() == ErrorKind::QueueFull => error,
            Err(error) => return Err(Refused::Model(error)),
        };
        if state.phase() == ServerPhase::Draining {
            return Err(Refused::Request(ApiError::shutting_down()));
        }
        if model.run_options.max_wait.is_some_and(|max| begun.elapsed() >= max) {
            return Err(Refused::Request(ApiError::queue_timeout(error.to_string())));
        }
        sleep(ROOM_CHECK).await;
    }
}

/// Begins to load a model if it is not loaded, while no other request does so.
async fn begin(state: &Arc<ServerState>, name: &str) -> Result<girih::Result<Session>, Refused> {
    match state.models.begun(name) {
        Ok(None) => {}
        Ok(Some(session)) => return Ok(Ok(session)),
        Err(error) => return Ok(Err(error)),
    }
    let loading = Arc::clone(&state.models.loading).lock_owned().await;
    let (state, name) = (Arc::clone(state), name.to_owned());
    let work = in_background(move || {
        // To the end of the work, also if the client leaves before.
        let _loading = loading;
        Ok(state.models.begin(&name))
    });
    work.await.map_err(Refused::Request)
}
