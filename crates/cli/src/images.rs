//! Images that the user names, and the plan of a model that reads them.

use std::path::Path;

use girih::{DecodeLimits, ImagePatches, Model, Picture, Plan, RunOptions};

use crate::error::{Error, Result};
use crate::input::image_bytes;
use crate::progress::Show;

/// The patches of the image in a file, as the model's tower reads them.
///
/// # Errors
/// When the file cannot be read or is no image, or the model reads none.
pub fn patches(model: &Model, path: &Path, show: Show) -> Result<ImagePatches> {
    // A model without a tower says so before the file is read.
    model.image_format()?;
    let limits = DecodeLimits::default();
    let bytes = image_bytes(path, limits.bytes as u64)?;
    let named = |error: girih::Error| Error::call(format!("{}: {error}", path.display()));
    let picture = Picture::decode(&bytes, &limits).map_err(named)?;
    if let Some(note) = picture.note() {
        show.note(format!("{}: {note}", path.display()));
    }
    Ok(model.image_patches(&picture)?)
}

/// `options` with images. A step has room for the rows of one image and a row of each other sequence.
///
/// # Errors
/// When the model reads no images.
pub fn options(model: &Model, options: RunOptions) -> Result<RunOptions> {
    // Beside each other sequence, of which each has a row.
    let rows = (model.image_format()?.rows() as u32).saturating_add(options.sequences.saturating_sub(1));
    Ok(RunOptions { images: true, chunk: options.chunk.max(rows), ..options })
}

/// The plan of a model with images, if it has a tower that its backend runs; else without. `plan` makes it.
///
/// # Errors
/// Those of `plan`.
pub fn plan_if_possible(
    model: &Model,
    without: RunOptions,
    show: Show,
    plan: impl Fn(RunOptions) -> Result<Plan>,
) -> Result<Plan> {
    if !model.files().may_have_tower() {
        return plan(without);
    }
    let why = match options(model, without.clone()).and_then(&plan) {
        Ok(plan) => match plan.refusals().first() {
            None => return Ok(plan),
            Some(_) => "the backend does not run the image tower".to_owned(),
        },
        Err(Error::Work(sentence) | Error::Call(sentence)) => sentence,
        Err(error) => return Err(error),
    };
    let plan = plan(without)?;
    show.detail(format!("images are off: {why}"));
    Ok(plan)
}
