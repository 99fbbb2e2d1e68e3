//! Adapters that clients load and unload while the server runs, from a folder that the operator names.
//!
//! What a backend prepares for the adapters of a model, it prepares for all of them together. So a change opens the model
//! again, with the other list: its requests end first, new ones wait meanwhile, and its prefix cache is empty afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use girih::AdapterSource;
use tokio::time::{sleep, timeout};

use crate::background::in_background;
use crate::error::ApiError;
use crate::models::{ListedModel, Replaced};
use crate::ready_session::ready_session;
use crate::state::{ServerPhase, ServerState};

/// The time between two looks whether a model is still in use.
const USE_CHECK: Duration = Duration::from_millis(20);

/// The time that a change waits for the requests of a model without [`girih::RunOptions::max_wait`].
const USUAL_WAIT: Duration = Duration::from_secs(300);

/// Loads an adapter beside the model `base`, by default the first one; `path` lies below `folder`.
///
/// # Errors
/// When the path or the name cannot be used, the adapter is not one of the model, the model with it does not fit into memory,
/// or the model's requests do not end in time. The model is then as before.
pub async fn load(
    state: Arc<ServerState>,
    folder: &Path,
    base: Option<&str>,
    name: String,
    path: &str,
) -> Result<(), ApiError> {
    let _one_at_a_time = Arc::clone(&state.changing_adapters).lock_owned().await;
    let path = path_below(folder, path)?;
    let base = base_model(&state, base)?;
    state.models.check_is_no_encoder(&base.name).map_err(ApiError::from)?;
    if state.models.list().iter().any(|model| model.id() == name) {
        let message = format!(
            "lora_name: a model or an adapter is named {name:?} already; unload it, or choose another"
        );
        return Err(ApiError::invalid("lora_name", message));
    }
    let mut adapters = base.open_options.adapters.clone();
    adapters.push(AdapterSource { name, path });
    change(&state, &base, adapters).await
}

/// Unloads an adapter that lies below `folder`.
///
/// # Errors
/// When there is none of this name, it lies elsewhere, or the model's requests do not end in time.
pub async fn unload(state: Arc<ServerState>, folder: &Path, name: &str) -> Result<(), ApiError> {
    let _one_at_a_time = Arc::clone(&state.changing_adapters).lock_owned().await;
    let list = state.models.list();
    let Some(adapter) = list.iter().find(|model| model.adapter.as_deref() == Some(name)) else {
        let message = format!("there is no adapter {name:?}");
        let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
        return Err(ApiError { param: Some("lora_name".to_owned()), ..error });
    };
    let base = base_model(&state, Some(&adapter.name))?;
    let mut adapters = base.open_options.adapters.clone();
    let gone: Vec<AdapterSource> = adapters.extract_if(.., |adapter| adapter.name == name).collect();
    let folder = folder.canonicalize().map_err(|_| outside("lora_name"))?;
    if gone.iter().any(|adapter| !adapter.path.starts_with(&folder)) {
        return Err(outside("lora_name"));
    }
    change(&state, &base, adapters).await
}

/// The file or folder of an adapter: below `folder`, wherever links lead.
fn path_below(folder: &Path, path: &str) -> Result<PathBuf, ApiError> {
    let real = folder.canonicalize().and_then(|folder| Ok((folder.join(path).canonicalize()?, folder)));
    match real {
        Ok((path, folder)) if path != folder && path.starts_with(&folder) => Ok(path),
        _ => Err(outside("lora_path")),
    }
}

/// The error of a path that is not below the folder, or not there: it does not tell which.
fn outside(param: &str) -> ApiError {
    let message = format!("{param} names no adapter below the folder of --allow-adapters");
    ApiError::invalid(param, message)
}

/// The entry of a model without an adapter.
fn base_model(state: &ServerState, name: Option<&str>) -> Result<Arc<ListedModel>, ApiError> {
    let found = state.models.find(name)?;
    match found.adapter {
        None => Ok(found),
        Some(_) => {
            let message = format!("base_model_name: {} is an adapter; name its model", found.id());
            Err(ApiError::invalid("base_model_name", message))
        }
    }
}

/// Opens a model again with these adapters, and loads it.
async fn change(
    state: &Arc<ServerState>,
    base: &Arc<ListedModel>,
    adapters: Vec<AdapterSource>,
) -> Result<(), ApiError> {
    let (models, old) = (Arc::clone(state), Arc::clone(base));
    let entries = in_background(move || {
        let model = old.with_other_adapters(adapters);
        let model = model.map_err(|error| ApiError::invalid("lora_path", format!("lora_path: {error}")))?;
        models.models.check_fits(&model)?;
        Ok(model.with_adapters())
    })
    .await?;
    let before: Vec<Arc<ListedModel>> =
        state.models.list().iter().filter(|model| model.name == base.name).cloned().collect();
    put(state, base, entries.clone()).await?;
    let Err(error) = ready_session(state, &entries[0]).await else { return Ok(()) };
    // Nothing is lost but the time: the model is as before.
    put(state, &entries[0], before).await?;
    Err(error)
}

/// Puts entries in the place of a model and its adapters, when nobody uses it. New requests wait meanwhile.
async fn put(
    state: &Arc<ServerState>,
    old: &Arc<ListedModel>,
    entries: Vec<Arc<ListedModel>>,
) -> Result<(), ApiError> {
    let (begun, max) = (Instant::now(), old.run_options.max_wait.unwrap_or(USUAL_WAIT));
    let in_use = || {
        let (name, seconds) = (&old.name, max.as_secs_f64());
        let message = format!("requests of {name} have not ended within {seconds:.0} s; try again later");
        ApiError::queue_timeout(message)
    };
    let _others_wait = timeout(max, old.changing().write()).await.map_err(|_| in_use())?;
    loop {
        // So that the folder of models is not read in between.
        let reading = Arc::clone(&state.models.reading).lock_owned().await;
        let (models, replaced, entries) = (Arc::clone(state), Arc::clone(old), entries.clone());
        let replaced = in_background(move || {
            let _reading = reading;
            models.models.replace(&replaced, entries).map_err(ApiError::from)
        });
        match replaced.await? {
            Replaced::Done => return Ok(()),
            Replaced::Gone => {
                let message = format!("{} was changed or removed meanwhile; try again", old.name);
                return Err(ApiError::invalid("base_model_name", message));
            }
            Replaced::InUse => {}
        }
        if state.phase() == ServerPhase::Draining {
            return Err(ApiError::shutting_down());
        }
        if begun.elapsed() >= max {
            return Err(in_use());
        }
        sleep(USE_CHECK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
        let below = |path: &str| path_below(&folder, path).map_err(|error| error.message);
        assert_eq!(below("openai"), Ok(folder.canonicalize().unwrap().join("openai")));
        assert_eq!(below(folder.join("openai").to_str().unwrap()), below("openai"));
        assert_eq!(below("openai/../ollama"), below("ollama"));
        for path in ["", ".", "..", "../lib.rs", "openai/../../lib.rs", "/etc/passwd", "nothing", "a\0b"] {
            let error = below(path).unwrap_err();
            assert_eq!(error, "lora_path names no adapter below the folder of --allow-adapters", "{path:?}");
        }
    }
}
