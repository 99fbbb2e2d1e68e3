//! The image tower of a session: it is loaded when the first image comes, and keeps the rows of the last images of each
//! tenant.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use girih_engine::{EmbeddedRows, Tenant, TokenRate, Tower};
use girih_graph::backend::Unwatched;
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::TowerFacts;

use crate::image::ImagePatches;
use crate::image_tokens::row_token;
use crate::model::Model;
use crate::progress::ProgressCallback;
use crate::tower_plan::{TowerPlan, images_kept};

/// The image tower of a session.
pub(crate) struct ImageTower {
    /// What it reads and makes.
    pub facts: TowerFacts,
    /// The token that stands for a row of an image.
    pub row: u32,
    positions: Vec<u32>,
    callback: ProgressCallback,
    state: Mutex<TowerState>,
}

struct TowerState {
    stage: TowerStage,
    kept: KeptRows,
}

/// The rows of the last images, the image that was used last at the end. Tenants share none: the time that an image takes
/// would tell one what another sent.
struct KeptRows {
    rows: Vec<(Tenant, [u8; 32], Arc<[f32]>)>,
    /// The number of images.
    max: usize,
}

/// How far the tower is.
enum TowerStage {
    Planned(TowerPlan),
    Loaded(Tower),
    Failed(Error),
}

impl ImageTower {
    /// A tower that is not loaded yet; loading reports to `callback`.
    ///
    /// # Errors
    /// When the tokenizer has no tokens for images.
    pub fn new(model: &Model, plan: TowerPlan, callback: ProgressCallback) -> Result<ImageTower> {
        let facts = plan.facts().clone();
        let (row, positions) = (row_token(model, &facts)?, facts.positions());
        let state = TowerState {
            stage: TowerStage::Planned(plan),
            kept: KeptRows { rows: Vec::new(), max: images_kept(&facts) },
        };
        Ok(ImageTower { facts, row, positions, callback, state: Mutex::new(state) })
    }

    /// Fills in the values of `given`, the rows of these images, while `wanted` says that they are. The patches of a picture
    /// are dropped before those of the next one are read. Returns how many rows the tower made, and its time; loading it
    /// is no part of that.
    ///
    /// # Errors
    /// When the tower cannot be loaded, the patches are not those of an image of this model, or the device fails; of the kind
    /// [`ErrorKind::Cancelled`] when the images are not wanted any more.
    pub fn fill(
        &self,
        given: &mut [EmbeddedRows],
        tenant: &Tenant,
        images: Vec<ImagePatches>,
        wanted: Option<&(dyn Fn() -> bool + Send + Sync)>,
    ) -> Result<TokenRate> {
        let (mut given, mut made) = (given.iter_mut(), TokenRate::default());
        for picture in images {
            for (image, rows) in picture.each().zip(&mut given) {
                if wanted.is_some_and(|wanted| !wanted()) {
                    let sentence = "the request was given up before the rows of its images were made";
                    return Err(Error::with_kind(ErrorKind::Cancelled, sentence));
                }
                rows.values = self.rows_of(tenant, image, &mut made)?;
            }
        }
        Ok(made)
    }

    /// The rows of an image of a tenant. They depend on its patches only. If the tower makes them, `made` counts them.
    fn rows_of(
        &self,
        tenant: &Tenant,
        (values, digest): (&[f32], [u8; 32]),
        made: &mut TokenRate,
    ) -> Result<Arc<[f32]>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let TowerState { stage, kept } = &mut *state;
        if let Some(rows) = kept.find(tenant, digest) {
            return Ok(rows);
        }
        let tower = stage.loaded(&self.callback)?;
        let begun = Instant::now();
        let rows = tower.rows_of(values, &self.positions, [&mut Unwatched, &mut Unwatched])?;
        made.tokens += tower.rows() as u32;
        made.time += begun.elapsed();
        let rows: Arc<[f32]> = rows.into();
        kept.add(tenant, digest, Arc::clone(&rows));
        Ok(rows)
    }
}

impl KeptRows {
    /// The rows of an image that this tenant has sent, which becomes the one that was used last.
    fn find(&mut self, tenant: &Tenant, image: [u8; 32]) -> Option<Arc<[f32]>> {
        let index = self.rows.iter().position(|(owner, digest, _)| owner == tenant && *digest == image)?;
        let found = self.rows.remove(index);
        let rows = Arc::clone(&found.2);
        self.rows.push(found);
        Some(rows)
    }

    /// Keeps the rows of an image. If there are too many, the oldest of the tenant that has the most gives way: none is left
    /// without rows because another sends many images. Of two that have as many, it is this one's.
    fn add(&mut self, tenant: &Tenant, image: [u8; 32], rows: Arc<[f32]>) {
        if self.rows.len() >= self.max {
            let count = |of: &Tenant| self.rows.iter().filter(|(owner, ..)| owner == of).count();
            let most = self.rows.iter().map(|(owner, ..)| count(owner)).max();
            let is_first = |owner: &Tenant| owner == tenant && Some(count(owner)) == most;
            let own = self.rows.iter().position(|(owner, ..)| is_first(owner));
            let index = own.or_else(|| self.rows.iter().position(|(owner, ..)| Some(count(owner)) == most));
            self.rows.remove(index.unwrap_or(0));
        }
        self.rows.push((tenant.clone(), image, rows));
    }
}

impl TowerStage {
    /// The tower, which is loaded if it is not yet.
    fn loaded(&mut self, callback: &ProgressCallback) -> Result<&mut Tower> {
        if let TowerStage::Planned(_) = self {
            // Stays if loading panics.
            let sentence = "the image tower could not be loaded; load the model again";
            let failed = TowerStage::Failed(Error::with_kind(ErrorKind::DeviceFailed, sentence));
            if let TowerStage::Planned(plan) = std::mem::replace(self, failed) {
                *self = match plan.load_with(callback) {
                    Ok(tower) => TowerStage::Loaded(tower),
                    Err(error) => TowerStage::Failed(stays(error)),
                };
            }
        }
        match self {
            TowerStage::Loaded(tower) => Ok(tower),
            TowerStage::Failed(error) => Err(error.clone()),
            TowerStage::Planned(_) => unreachable!("it was loaded or has failed"),
        }
    }
}

/// The error of a load, which is not tried again.
fn stays(error: Error) -> Error {
    Error::with_kind(error.kind(), format!("{error}; load the model again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tower_plan::IMAGES_KEPT;

    fn none() -> KeptRows {
        KeptRows { rows: Vec::new(), max: IMAGES_KEPT }
    }

    fn keep(kept: &mut KeptRows, tenant: &Tenant, images: std::ops::Range<u8>) {
        images.for_each(|image| kept.add(tenant, [image; 32], vec![f32::from(image)].into()));
    }

    #[test]
    fn tenants_share_no_rows_of_images() {
        let (alice, bob) = (Tenant::new("alice"), Tenant::new("bob"));
        let mut kept = none();
        keep(&mut kept, &alice, 0..2);
        assert!(kept.find(&bob, [0; 32]).is_none(), "bob has not sent it");
        assert!(kept.find(&Tenant::default(), [0; 32]).is_none());
        assert_eq!(kept.find(&alice, [1; 32]).unwrap()[..], [1.0]);
    }

    #[test]
    fn many_images_of_a_tenant_evict_its_own() {
        let (alice, bob) = (Tenant::new("alice"), Tenant::new("bob"));
        let mut kept = none();
        keep(&mut kept, &bob, 0..2);
        keep(&mut kept, &alice, 0..100);
        assert_eq!(kept.rows.len(), IMAGES_KEPT);
        assert!(kept.find(&bob, [0; 32]).is_some() && kept.find(&bob, [1; 32]).is_some());
        assert!(kept.find(&alice, [99; 32]).is_some() && kept.find(&alice, [85; 32]).is_none());
        // bob gets as much as alice has, and no more.
        keep(&mut kept, &bob, 2..100);
        let own = kept.rows.iter().filter(|(owner, ..)| *owner == bob).count();
        assert_eq!((kept.rows.len(), own), (IMAGES_KEPT, IMAGES_KEPT / 2));
    }
}
