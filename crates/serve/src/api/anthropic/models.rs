//! The list of models in Anthropic's form.

use std::sync::Arc;
use std::time::Duration;

use girih::Plan;
use serde::Serialize;

use crate::api::ollama::timestamp::rfc3339;
use crate::models::ListedModel;
use crate::state::ServerState;

/// The header that each client of Anthropic's API sends.
pub const ANTHROPIC_VERSION: &str = "anthropic-version";

/// The served models. All of them are on one page.
#[derive(Debug, Serialize)]
pub struct AnthropicModels {
    data: Vec<AnthropicModel>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// A served model.
#[derive(Debug, Serialize)]
pub struct AnthropicModel {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    created_at: String,
    /// Always `active`: it can be used.
    lifecycle: &'static str,
    /// The maximum number of tokens of a prompt and its reply.
    max_input_tokens: u32,
    /// The same.
    max_tokens: u32,
}

impl AnthropicModels {
    /// All models.
    pub fn of(state: &ServerState, models: &[Arc<ListedModel>]) -> AnthropicModels {
        let data: Vec<AnthropicModel> =
            models.iter().map(|served| AnthropicModel::of(state, served)).collect();
        let id = |model: Option<&AnthropicModel>| model.map(|model| model.id.clone());
        AnthropicModels { has_more: false, first_id: id(data.first()), last_id: id(data.last()), data }
    }
}

impl AnthropicModel {
    /// A model.
    pub fn of(state: &ServerState, served: &ListedModel) -> AnthropicModel {
        let context = Plan::context_of(&served.model, &served.run_options);
        let created_at = rfc3339(Duration::from_secs(state.models.created()));
        AnthropicModel {
            kind: "model",
            id: served.id().to_owned(),
            display_name: served.id().to_owned(),
            created_at,
            lifecycle: "active",
            max_input_tokens: context,
            max_tokens: context,
        }
    }
}
