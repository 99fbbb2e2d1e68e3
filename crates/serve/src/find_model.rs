//! The model that a request names, and the list of models: a folder of models is read again for them.

use std::sync::Arc;

use crate::background::in_background;
use crate::error::ApiError;
use crate::models::ListedModel;
use crate::state::ServerState;

/// The model of this name; without a name, the first one. If no model has the name, the folder is read again.
///
/// # Errors
/// When no model has the name: status 404.
pub async fn find_model(state: &Arc<ServerState>, name: Option<&str>) -> Result<Arc<ListedModel>, ApiError> {
    match state.models.find(name) {
        Err(_) if state.models.folder().is_some() => {
            read_folder(state).await?;
            state.models.find(name)
        }
        found => found,
    }
}

/// The models that are served, after the folder was read again.
///
/// # Errors
/// When the server has no thread for it.
pub async fn current_models(state: &Arc<ServerState>) -> Result<Arc<Vec<Arc<ListedModel>>>, ApiError> {
    if state.models.folder().is_some() {
        read_folder(state).await?;
    }
    Ok(state.models.list())
}

/// Reads the folder again.
///
/// # Errors
/// When the server has no thread for it.
pub async fn read_folder(state: &Arc<ServerState>) -> Result<(), ApiError> {
    // Opening models takes time; requests that wait for it hold no thread.
    let reading = Arc::clone(&state.models.reading).lock_owned().await;
    let state = Arc::clone(state);
    in_background(move || {
        let _reading = reading;
        state.models.read_folder();
        Ok(())
    })
    .await
}
