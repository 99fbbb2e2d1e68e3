//! The drafters that the engine gives to requests without one: prompt lookup, or a draft model.

mod acceptance;
mod lookup;
mod model;

use std::sync::{Arc, Mutex};

use crate::{Drafter, Tenant};

pub use lookup::PromptLookup;
pub use model::DraftModel;
use model::ModelDrafter;

/// How the engine drafts for requests without a drafter of their own.
pub enum DraftSource {
    /// With a [`PromptLookup`] for each request.
    PromptLookup,
    /// With a model that all requests share.
    Model(Arc<Mutex<DraftModel>>),
}

impl DraftSource {
    /// Returns the source that drafts with this model.
    pub fn model(model: DraftModel) -> DraftSource {
        DraftSource::Model(Arc::new(Mutex::new(model)))
    }

    /// Returns a drafter for a new request of a tenant, which drafts at most `max` tokens at once.
    pub fn drafter(&self, max: u32, tenant: &Tenant) -> Box<dyn Drafter> {
        match self {
            DraftSource::PromptLookup => Box::new(PromptLookup::new(max)),
            DraftSource::Model(model) => Box::new(ModelDrafter::new(Arc::clone(model), max, tenant.clone())),
        }
    }
}
