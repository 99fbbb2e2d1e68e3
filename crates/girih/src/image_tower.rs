//! The image tower of a session: it is loaded when the first image comes, and keeps the rows of the last images.

use std::sync::{Arc, Mutex, PoisonError};

use girih_engine::Tower;
use girih_graph::backend::Unwatched;
use girih_graph::{Error, ErrorKind, Result};

use crate::image::ImagePatches;
use crate::progress::ProgressCallback;
use crate::tower_plan::{IMAGES_KEPT, TowerPlan};

/// The image tower of a session.
pub(crate) struct ImageTower {
    positions: Vec<u32>,
    callback: ProgressCallback,
    state: Mutex<TowerState>,
}

struct TowerState {
    stage: TowerStage,
    /// The rows of the last images by digest, the one that was used last at the end.
    kept: Vec<([u8; 32], Arc<[f32]>)>,
}

/// How far the tower is.
enum TowerStage {
    Planned(TowerPlan),
    Loaded(Tower),
    Failed(Error),
}

impl ImageTower {
    /// A tower that is not loaded yet; loading reports to `callback`.
    pub fn new(plan: TowerPlan, callback: ProgressCallback) -> ImageTower {
        let positions = plan.facts().positions();
        let stage = TowerStage::Planned(plan);
        ImageTower { positions, callback, state: Mutex::new(TowerState { stage, kept: Vec::new() }) }
    }

    /// The rows of an image. They depend on its patches only.
    ///
    /// # Errors
    /// When the tower cannot be loaded, the patches are not those of an image of this model, or the device fails.
    pub fn rows_of(&self, image: &ImagePatches) -> Result<Arc<[f32]>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let TowerState { stage, kept } = &mut *state;
        if let Some(index) = kept.iter().position(|(digest, _)| *digest == image.digest()) {
            let found = kept.remove(index);
            let rows = Arc::clone(&found.1);
            kept.push(found);
            return Ok(rows);
        }
        let rows = stage.loaded(&self.callback)?.rows_of(
            image.values(),
            &self.positions,
            [&mut Unwatched, &mut Unwatched],
        )?;
        let rows: Arc<[f32]> = rows.into();
        if kept.len() == IMAGES_KEPT {
            kept.remove(0);
        }
        kept.push((image.digest(), Arc::clone(&rows)));
        Ok(rows)
    }
}

impl TowerStage {
    /// The tower, which is loaded if it is not yet.
    fn loaded(&mut self, callback: &ProgressCallback) -> Result<&mut Tower> {
        if let TowerStage::Planned(_) = self {
            // What a panic of the load would leave.
            let sentence = "the image tower could not be loaded; load the model again";
            let failed = TowerStage::Failed(Error::with_kind(ErrorKind::DeviceFailed, sentence));
            if let TowerStage::Planned(plan) = std::mem::replace(self, failed) {
                *self = match plan.load_with(callback) {
                    Ok(tower) => TowerStage::Loaded(tower),
                    Err(error) => TowerStage::Failed(error),
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
