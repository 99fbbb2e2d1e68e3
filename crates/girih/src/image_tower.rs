//! The image tower of a session: it is loaded when the first image comes, and keeps the rows of the last images of each
//! tenant.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use girih_engine::{EmbeddedRows, Tenant, TokenRate, Tower, TowerInputs};
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::{ImageGrid, TowerFacts};
use girih_model::{ImageInputs, TowerFiles};

use crate::image::ImagePatches;
use crate::image_tokens::{row_token, video_token};
use crate::model::Model;
use crate::progress::ProgressCallback;
use crate::tower_plan::{TowerPlan, images_kept, kept_rows};

/// The image tower of a session.
pub(crate) struct ImageTower {
    /// What it reads and makes.
    pub facts: TowerFacts,
    /// The token that stands for a row of an image.
    pub row: u32,
    /// That for a row of a video.
    pub video: Option<u32>,
    files: Arc<TowerFiles>,
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
    images: Vec<KeptImage>,
    /// The largest number of images.
    max_images: usize,
    /// The largest number of rows of all images together.
    max_rows: usize,
}

/// The rows of an image that a tenant sent.
struct KeptImage {
    tenant: Tenant,
    digest: [u8; 32],
    rows: usize,
    made: MadeRows,
}

/// What the tower makes of an image.
#[derive(Clone)]
struct MadeRows {
    values: Arc<[f32]>,
    added: Vec<Arc<[f32]>>,
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
        let (facts, files) = (plan.facts().clone(), Arc::clone(plan.shared_files()));
        let (row, video) = (row_token(model, &facts)?, video_token(model, &facts)?);
        let (max_images, max_rows) = (images_kept(&facts), kept_rows(&facts));
        let kept = KeptRows { images: Vec::new(), max_images, max_rows };
        let state = TowerState { stage: TowerStage::Planned(plan), kept };
        Ok(ImageTower { facts, row, video, files, callback, state: Mutex::new(state) })
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
            let grid = picture.grid_for(&self.facts)?;
            for (image, rows) in picture.each().zip(&mut given) {
                if wanted.is_some_and(|wanted| !wanted()) {
                    let sentence = "the request was given up before the rows of its images were made";
                    return Err(Error::with_kind(ErrorKind::Cancelled, sentence));
                }
                let MadeRows { values, added } = self.rows_of(tenant, grid, image, &mut made)?;
                (rows.values, rows.added) = (values, added);
            }
        }
        Ok(made)
    }

    /// The rows of an image of a tenant. They depend on its patches only. If the tower makes them, `counted` counts them.
    fn rows_of(
        &self,
        tenant: &Tenant,
        grid: ImageGrid,
        (patches, digest): (&[f32], [u8; 32]),
        counted: &mut TokenRate,
    ) -> Result<MadeRows> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let TowerState { stage, kept } = &mut *state;
        if let Some(rows) = kept.find(tenant, digest) {
            return Ok(rows);
        }
        let rows = self.facts.rows(grid);
        let ImageInputs { order, positions, position_rows, axes } = self.files.inputs(grid)?;
        let patches = order.as_read(patches);
        let inputs = TowerInputs {
            patches: &patches,
            positions: &positions,
            position_rows: &position_rows,
            axes: &axes,
            windows: &order.windows,
        };
        let tower = stage.loaded(&self.callback)?;
        let begun = Instant::now();
        let made = tower.rows_of(inputs, [grid.patches(), rows], Vec::new())?;
        counted.tokens += rows as u32;
        counted.time += begun.elapsed();
        let placed = |rows| Arc::from(order.in_place(rows));
        let made =
            MadeRows { values: placed(made.rows), added: made.added.into_iter().map(placed).collect() };
        kept.add(KeptImage { tenant: tenant.clone(), digest, rows, made: made.clone() });
        Ok(made)
    }
}

impl KeptRows {
    /// The rows of an image that this tenant has sent, which becomes the one that was used last.
    fn find(&mut self, tenant: &Tenant, image: [u8; 32]) -> Option<MadeRows> {
        let index = self.images.iter().position(|kept| kept.tenant == *tenant && kept.digest == image)?;
        let found = self.images.remove(index);
        let made = found.made.clone();
        self.images.push(found);
        Some(made)
    }

    /// Keeps the rows of an image. While there are too many, the oldest of the tenant that has the most gives way: none is
    /// left without rows because another sends many images. Of two that have as many, it is this one's.
    fn add(&mut self, image: KeptImage) {
        let rows = |images: &[KeptImage]| images.iter().map(|kept| kept.rows).sum::<usize>();
        while !self.images.is_empty()
            && (self.images.len() >= self.max_images || rows(&self.images) + image.rows > self.max_rows)
        {
            let count = |of: &Tenant| self.images.iter().filter(|kept| kept.tenant == *of).count();
            let most = self.images.iter().map(|kept| count(&kept.tenant)).max();
            let has_most = |kept: &&KeptImage| Some(count(&kept.tenant)) == most;
            let own = self.images.iter().position(|kept| kept.tenant == image.tenant && has_most(&kept));
            let index = own.or_else(|| self.images.iter().position(|kept| has_most(&kept)));
            self.images.remove(index.unwrap_or(0));
        }
        self.images.push(image);
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

    fn keep(kept: &mut KeptRows, tenant: &Tenant, images: std::ops::Range<u8>) {
        for image in images {
            let made = MadeRows { values: vec![f32::from(image)].into(), added: Vec::new() };
            kept.add(KeptImage { tenant: tenant.clone(), digest: [image; 32], rows: 1, made });
        }
    }

    fn none() -> KeptRows {
        KeptRows { images: Vec::new(), max_images: IMAGES_KEPT, max_rows: 1000 }
    }

    #[test]
    fn tenants_share_no_rows_of_images() {
        let (alice, bob) = (Tenant::new("alice"), Tenant::new("bob"));
        let mut kept = none();
        keep(&mut kept, &alice, 0..2);
        assert!(kept.find(&bob, [0; 32]).is_none(), "bob has not sent it");
        assert!(kept.find(&Tenant::default(), [0; 32]).is_none());
        assert_eq!(kept.find(&alice, [1; 32]).unwrap().values[..], [1.0]);
    }

    #[test]
    fn many_images_of_a_tenant_evict_its_own() {
        let (alice, bob) = (Tenant::new("alice"), Tenant::new("bob"));
        let mut kept = none();
        keep(&mut kept, &bob, 0..2);
        keep(&mut kept, &alice, 0..100);
        assert_eq!(kept.images.len(), IMAGES_KEPT);
        assert!(kept.find(&bob, [0; 32]).is_some() && kept.find(&bob, [1; 32]).is_some());
        assert!(kept.find(&alice, [99; 32]).is_some() && kept.find(&alice, [85; 32]).is_none());
        // bob gets as much as alice has, and no more.
        keep(&mut kept, &bob, 2..100);
        let own = kept.images.iter().filter(|kept| kept.tenant == bob).count();
        assert_eq!((kept.images.len(), own), (IMAGES_KEPT, IMAGES_KEPT / 2));
    }

    #[test]
    fn large_images_evict_others_before_there_are_many() {
        let (alice, mut kept) = (Tenant::new("alice"), KeptRows { max_rows: 3, ..none() });
        keep(&mut kept, &alice, 0..5);
        assert_eq!(kept.images.len(), 3);
        let made = MadeRows { values: vec![9.0].into(), added: Vec::new() };
        kept.add(KeptImage { tenant: alice.clone(), digest: [9; 32], rows: 2, made });
        assert!(kept.find(&alice, [3; 32]).is_none() && kept.find(&alice, [4; 32]).is_some());
    }
}
