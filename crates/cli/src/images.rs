//! Images that the user names, and the plan of a model that reads them.

use std::path::{Path, PathBuf};

use girih::{DecodeLimits, ImagePatches, MAX_FRAMES, Model, Picture, Plan, RunOptions};
use girih_file::{ContainerKind, projector_files};

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
    let patches = model.image_patches(&picture(path, show)?)?;
    if let Some(note) = patches.note() {
        show.note(format!("{}: {note}", path.display()));
    }
    Ok(patches)
}

/// The picture in a file.
fn picture(path: &Path, show: Show) -> Result<Picture> {
    let limits = DecodeLimits::default();
    let bytes = image_bytes(path, limits.bytes as u64)?;
    let named = |error: girih::Error| Error::call(format!("{}: {error}", path.display()));
    let picture = Picture::decode(&bytes, &limits).map_err(named)?;
    if let Some(note) = picture.note() {
        show.note(format!("{}: {note}", path.display()));
    }
    Ok(picture)
}

/// The patches of a video, whose frames are the files of a folder in the order of their names, `fps` in a second.
///
/// # Errors
/// When the folder or a file cannot be read, a file is no image, there are too many, or the model reads no videos.
pub fn video(model: &Model, folder: &Path, fps: f64, show: Show) -> Result<ImagePatches> {
    // A model that reads no videos says so before files are read.
    model.check_videos()?;
    let named = |error: std::io::Error| Error::call(format!("{}: {error}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(named)?.take(MAX_FRAMES + 1);
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()
        .map_err(named)?;
    if files.len() > MAX_FRAMES {
        let sentence = format!(
            "{}: has more than {MAX_FRAMES} files; a video has at most {MAX_FRAMES} frames: leave some out",
            folder.display()
        );
        return Err(Error::call(sentence));
    }
    files.sort();
    let patches = model.video_patches_with(files.len(), fps, |index| picture(&files[index], show))?;
    if let Some(note) = patches.note() {
        show.note(format!("{}: {note}", folder.display()));
    }
    Ok(patches)
}

/// The patches of a video that a text states: the folder of its frames, and behind it how many come in a second; without that
/// number, as many as the model's files say.
///
/// # Errors
/// As [`video`].
pub fn stated_video(model: &Model, text: &str, show: Show) -> Result<ImagePatches> {
    let (folder, stated) = match text.rsplit_once(char::is_whitespace) {
        Some((folder, last)) => last.parse().map_or((text, None), |fps| (folder.trim_end(), Some(fps))),
        None => (text, None),
    };
    let fps = stated.map_or_else(|| model.video_rate(), Ok)?;
    video(model, Path::new(folder), fps, show)
}

/// `options` with images. A step has room for the rows of one image and a row of each other sequence; `show` says if that
/// raises the chunk.
///
/// # Errors
/// When the model reads no images.
pub fn options(model: &Model, options: RunOptions, show: Show) -> Result<RunOptions> {
    let with = with_images(model, options.clone())?;
    note_chunk(options.chunk, with.chunk, show);
    Ok(with)
}

fn with_images(model: &Model, options: RunOptions) -> Result<RunOptions> {
    // A step holds the rows of one image, if they attend to each other, and a row of each other sequence.
    let format = model.image_format()?;
    let rows = if format.mutual { format.rows() as u32 } else { 0 };
    let rows = rows.saturating_add(options.sequences.saturating_sub(1));
    Ok(RunOptions { images: true, chunk: options.chunk.max(rows), ..options })
}

/// Says that the chunk is larger than it was asked for.
fn note_chunk(asked: u32, chunk: u32, show: Show) {
    if chunk > asked {
        show.note(format!("the chunk is raised from {asked} to {chunk}: a step runs all rows of an image"));
    }
}

/// The plan of a model with images, if it has a tower that its backend runs; else without, and `show` says why. `plan` makes
/// it. A tower that is asked for by its file (`projector`) is not left out.
///
/// # Errors
/// Those of `plan`; with a `projector`, also when images are not possible.
pub fn plan_if_possible(
    model: &Model,
    projector: Option<&Path>,
    without: RunOptions,
    show: Show,
    plan: impl Fn(RunOptions) -> Result<Plan>,
) -> Result<Plan> {
    if projector.is_some() {
        return plan(options(model, without, show)?);
    }
    if !model.files().may_have_tower() {
        return plan(without);
    }
    let why = match with_images(model, without.clone()).and_then(&plan) {
        Ok(plan) => match plan.refusals().first() {
            None => {
                note_chunk(without.chunk, plan.options().chunk, show);
                return Ok(plan);
            }
            Some(_) => "the backend does not run the image tower".to_owned(),
        },
        Err(Error::Work(sentence) | Error::Call(sentence)) => sentence,
        Err(error) => return Err(error),
    };
    let plan = plan(without)?;
    let why = format!("images are off: {why}");
    if has_tower(model) {
        show.note(why)
    } else {
        show.detail(why)
    }
    Ok(plan)
}

/// Whether files of an image tower exist: a GGUF may have been downloaded without them.
pub fn has_tower(model: &Model) -> bool {
    let files = model.files();
    files.weights.container().kind() != ContainerKind::Gguf
        || projector_files(files.folder()).is_ok_and(|projectors| !projectors.is_empty())
}
