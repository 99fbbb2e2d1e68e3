//! The drafters that the engine gives to requests without one: prompt lookup, a draft model, or layers of the model
//! that predict further tokens.

mod acceptance;
mod budget;
mod lookup;
mod model;
mod mtp;
mod rows_watch;
mod shared;
mod timing;
mod trials;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{Drafter, Result, Tenant};

pub use lookup::PromptLookup;
pub use model::DraftModel;
use model::ModelDrafter;
use mtp::MtpDrafter;
pub use mtp::{HiddenNames, MtpModel};
pub(crate) use rows_watch::RowsWatch;
use shared::lock;
pub(crate) use timing::measured;

/// How the engine drafts for requests without a drafter of their own.
pub enum DraftSource {
    /// With a [`PromptLookup`] for each request.
    PromptLookup,
    /// With a model that all requests share.
    Model(Arc<Mutex<DraftModel>>),
    /// With layers that read the model's hidden states: its own, or those of an assistant.
    Mtp(Arc<Mutex<MtpModel>>),
}

impl DraftSource {
    /// Returns the source that drafts with this model.
    pub fn model(model: DraftModel) -> DraftSource {
        DraftSource::Model(Arc::new(Mutex::new(model)))
    }

    /// Returns the source that drafts with these layers.
    pub fn mtp(model: MtpModel) -> DraftSource {
        DraftSource::Mtp(Arc::new(Mutex::new(model)))
    }

    /// Returns a drafter for a new request of a tenant, which drafts at most `max` tokens at once. Other requests share
    /// what it computes if `is_shared`: if the prompt has tokens only.
    pub fn drafter(&self, max: u32, tenant: &Tenant, is_shared: bool) -> Box<dyn Drafter> {
        match self {
            DraftSource::PromptLookup => Box::new(PromptLookup::new(max)),
            DraftSource::Model(model) => Box::new(ModelDrafter::new(Arc::clone(model), max, tenant.clone())),
            DraftSource::Mtp(model) => {
                Box::new(MtpDrafter::new(Arc::clone(model), max, tenant.clone(), is_shared))
            }
        }
    }

    /// The names of the model's values whose rows the drafters read.
    pub(crate) fn reads(&self) -> Option<Vec<String>> {
        match self {
            DraftSource::PromptLookup | DraftSource::Model(_) => None,
            DraftSource::Mtp(model) => Some(lock(model).reads().to_vec()),
        }
    }

    /// Measures the time of a drafted token in steps of the model, which take `step`; 0 for prompt lookup.
    pub(crate) fn measure(&self, step: Duration) -> Result<f32> {
        match self {
            DraftSource::PromptLookup => Ok(0.0),
            DraftSource::Model(model) => lock(model).measure(step),
            DraftSource::Mtp(model) => lock(model).measure(step),
        }
    }
}
