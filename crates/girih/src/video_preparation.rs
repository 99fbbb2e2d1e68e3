//! How the frames of a video become the patches that a model's image tower reads: by the model's `video_preprocessor_config.json`.

use std::borrow::Borrow;

use girih_graph::{Error, ErrorKind, Result};
use girih_image::{Picture, Preprocess, TargetSize, video_size};
use girih_model::arch::schema::{AnySize, FrameSize};
use girih_model::arch::{ImageGrid, TowerFacts};
use serde_json::{Map, Value};

use crate::image::ImagePatches;
use crate::image_preparation::{config_of, largest, preprocess};
use crate::model::Model;

/// The files with the settings; the second one has them in a part of its own.
const FILES: [&str; 2] = ["video_preprocessor_config.json", "processor_config.json"];

/// The file of images, which counts for videos, too, where frames are resized as images and none of the others exists
/// (transformers' `get_video_processor_dict`).
const OF_IMAGES: &str = "preprocessor_config.json";

/// The name of that part.
const PART: &str = "video_processor";

/// The settings that say which frames of a file are taken. Frames come from the caller, so they have no effect; nor has the
/// last one without `cap_pixels_per_frame`.
const OF_SAMPLING: [&str; 9] = [
    "do_sample_frames",
    "fps",
    "num_frames",
    "min_frames",
    "max_frames",
    "return_metadata",
    "video_metadata",
    "video_processor_type",
    "max_video_tokens",
];

/// The maximum number of rows of a frame, if the file does not say it: that of transformers' `Gemma4VideoProcessor`.
const USUAL_SOFT_TOKENS: u64 = 70;

/// The maximum number of frames of a video, as transformers' `Qwen3VLVideoProcessor` samples.
///
/// ```
/// assert_eq!(girih::MAX_FRAMES, 768);
/// ```
pub const MAX_FRAMES: usize = 768;

/// The number of frames in a second for which videos are sampled, if nothing states it.
const USUAL_RATE: f64 = 2.0;

/// The maximum number of pixels of all frames, those of the published models of Qwen3-VL.
const MAX_PIXELS: u64 = 25_165_824;

impl Model {
    /// The patches of a video, for [`Request::images`](crate::Request::images): its frames, which are as far apart as
    /// `frames_per_second` says. A conversation has a part of type `video` for it. An odd last frame is read twice.
    ///
    /// ```no_run
    /// use girih::{Model, Picture};
    ///
    /// let model = Model::open("models/Qwen3-VL-2B-Instruct")?;
    /// let frames = [0, 90, 180, 255].map(|grey| Picture::from_rgb(64, 64, vec![grey; 64 * 64 * 3]));
    /// let frames = frames.into_iter().collect::<girih::Result<Vec<Picture>>>()?;
    /// let video = model.video_patches(&frames, 2.0)?;
    /// assert_eq!(video.seconds(), Some(&[0.25, 1.25][..]));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the model reads no videos, its files do not say how they are prepared, or the frames are too few, too many or of
    /// several sizes.
    pub fn video_patches(&self, frames: &[Picture], frames_per_second: f64) -> Result<ImagePatches> {
        self.video_patches_with(frames.len(), frames_per_second, |index| Ok::<_, Error>(&frames[index]))
    }

    /// As [`Model::video_patches`], of `count` frames that `frame` returns by their index, one after another. Each of them is
    /// dropped before the next one is asked for, so memory holds one frame, and the patches of a video, which have at most
    /// 25,165,824 pixels.
    ///
    /// ```no_run
    /// use girih::{DecodeLimits, Error, Model, Picture};
    ///
    /// let model = Model::open("models/Qwen3-VL-2B-Instruct")?;
    /// let video = model.video_patches_with(16, 2.0, |index| {
    ///     let file = std::fs::read(format!("frames/{index:04}.jpg")).expect("the file can be read");
    ///     Picture::decode(&file, &DecodeLimits::default())
    /// })?;
    /// assert_eq!(video.images(), 8);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::video_patches`], and those of `frame`.
    pub fn video_patches_with<P: Borrow<Picture>, E: From<Error>>(
        &self,
        count: usize,
        frames_per_second: f64,
        mut frame: impl FnMut(usize) -> std::result::Result<P, E>,
    ) -> std::result::Result<ImagePatches, E> {
        let facts = self.video_facts()?;
        check_frames(count, facts.frames, frames_per_second)?;
        let first = frame(0)?;
        let sides = [first.borrow().width(), first.borrow().height()];
        let (image, note) = frame_preparation(self, facts, count, sides)?;
        let frames = std::iter::once(Ok(first)).chain((1..count).map(frame));
        let rows = image.rows_of_frames(frames, facts.projector.cell as u32)?;
        let grid = ImageGrid { down: rows.down as usize, across: rows.across as usize };
        let seconds = group_seconds(count, facts.frames, frames_per_second);
        let step = facts.frames as f64 / frames_per_second;
        Ok(ImagePatches::video(rows.values, grid, seconds)?.with_step(step).with_note(note))
    }

    /// How many frames of a video come in a second, if nobody says it: what the model's files state for sampling, or 2, as in
    /// transformers' `Qwen3VLVideoProcessor` and Qwen's own programs.
    ///
    /// ```no_run
    /// assert_eq!(girih::Model::open("models/Qwen3-VL-2B-Instruct")?.video_rate()?, 2.0);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the model reads no videos, or its files do not say how they are prepared.
    pub fn video_rate(&self) -> Result<f64> {
        let (file, config) = video_config(self, self.video_facts()?)?;
        match config.get("fps") {
            None | Some(Value::Null) => Ok(USUAL_RATE),
            Some(stated) => stated.as_f64().filter(|rate| *rate > 0.0).ok_or_else(|| {
                let value: String = stated.to_string().chars().take(80).collect();
                refused(format!("{file}: the key 'fps' is {value}; a number above 0 is needed"))
            }),
        }
    }

    /// Checks that the model reads videos.
    ///
    /// ```no_run
    /// girih::Model::open("models/Qwen3-VL-2B-Instruct")?.check_videos()?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When it does not.
    pub fn check_videos(&self) -> Result<()> {
        self.video_facts().map(drop)
    }

    /// The facts of a tower that reads videos.
    fn video_facts(&self) -> Result<&TowerFacts> {
        let facts = &self.tower_files()?.tower;
        match facts.image_tokens.texts.video {
            Some(_) => Ok(facts),
            None => Err(refused("girih reads no videos of this model: give frames as images")),
        }
    }
}

/// Checks the number of a video's frames and their rate. A patch has `group` frames.
fn check_frames(count: usize, group: usize, frames_per_second: f64) -> Result<()> {
    if !(frames_per_second.is_finite() && frames_per_second > 0.0) {
        return Err(refused(format!(
            "a video has {frames_per_second} frames per second; a number above 0 is needed"
        )));
    }
    if count > MAX_FRAMES {
        return Err(refused(format!("a video has {count} frames; give {MAX_FRAMES} or fewer")));
    }
    if count < group.max(1) {
        let sentence = format!("a video has {count} frames, but {group} are one patch; give {group} or more");
        return Err(refused(sentence));
    }
    Ok(())
}

/// What the model's files say of videos, and the name of the file.
fn video_config(model: &Model, facts: &TowerFacts) -> Result<(&'static str, Map<String, Value>)> {
    if let Some(found) = config_of(model, FILES, PART)? {
        return Ok(found);
    }
    let as_images = facts.frame_size == FrameSize::Alone && facts.sized == AnySize::Nearest;
    match config_of(model, [OF_IMAGES, FILES[1]], PART)? {
        Some(found) if as_images => Ok(found),
        _ => Err(refused(
            "the model has no video_preprocessor_config.json, which says how its videos are prepared; download it, too",
        )),
    }
}

/// How this number of frames with these sides becomes patches, and a note if they become smaller than the model's files say.
fn frame_preparation(
    model: &Model,
    facts: &TowerFacts,
    count: usize,
    sides: [u32; 2],
) -> Result<(Preprocess, Option<String>)> {
    let (file, mut config) = video_config(model, facts)?;
    config.retain(|key, value| {
        !OF_SAMPLING.contains(&key.as_str())
            && (key, &*value) != (&"cap_pixels_per_frame".to_owned(), &Value::Bool(false))
    });
    let read = match facts.sized {
        AnySize::Largest => largest(facts, &config, USUAL_SOFT_TOKENS),
        AnySize::Nearest => preprocess(facts, &config),
    };
    let found = read.map_err(|error| error.of(file))?;
    let [stated, [width, height]] = frame_sizes(found.stated, facts, count, sides)?;
    let of_frame = max_frame_pixels(facts);
    let note = (stated != [width, height]).then(|| {
        format!(
            "the frames become {width} x {height} pixels, and {} x {} by the model's files: girih reads videos of at most \
             {MAX_PIXELS} pixels, in frames of at most {of_frame}",
            stated[0], stated[1]
        )
    });
    Ok((Preprocess { size: TargetSize::Fixed { width, height }, ..found.image }, note))
}

/// The largest number of pixels of a frame that the tower takes.
fn max_frame_pixels(facts: &TowerFacts) -> u64 {
    (facts.max_patches() * facts.patch * facts.patch) as u64
}

/// The width and height that frames with these sides become by the model's files, and within girih's bounds.
fn frame_sizes(
    stated: TargetSize,
    facts: &TowerFacts,
    count: usize,
    sides: [u32; 2],
) -> Result<[[u32; 2]; 2]> {
    let (group, of_frame) = (facts.frames.max(1), max_frame_pixels(facts));
    // With the frames that are read twice.
    let most = of_frame.min(MAX_PIXELS / count.next_multiple_of(group) as u64);
    match (stated, facts.frame_size) {
        (TargetSize::Within { multiple, min, max }, FrameSize::Together) => {
            let (count, group) = (count as u32, group as u32);
            // So that no frame has more patches than the tower takes, whichever number of frames the size is computed for.
            let groups = (f64::from(count) / f64::from(group)).round_ties_even() as u32;
            let most = MAX_PIXELS.min(u64::from(count.min(groups * group)) * of_frame);
            let size = |max: u64| video_size(count, group, sides, multiple, [min.min(max), max]);
            Ok([size(max)?, size(max.min(most))?])
        }
        (TargetSize::Within { multiple, min, max }, FrameSize::Alone) => {
            let size = |max: u64| TargetSize::Within { multiple, min: min.min(max), max }.of(sides);
            Ok([size(max)?, size(max.min(most))?])
        }
        (TargetSize::Largest { multiple, max }, _) => {
            let size = |max: u64| TargetSize::Largest { multiple, max }.of(sides);
            Ok([size(max)?, size(max.min(most))?])
        }
        (TargetSize::Fixed { .. }, _) => Err(refused("videos of images of one size are not supported")),
    }
}

/// The time of each group of frames: the mean of those of its first and its last frame (transformers'
/// `Qwen3VLProcessor._calculate_timestamps`).
fn group_seconds(frames: usize, group: usize, frames_per_second: f64) -> Vec<f64> {
    let time = |frame: usize| frame.min(frames - 1) as f64 / frames_per_second;
    (0..frames).step_by(group).map(|first| (time(first) + time(first + group - 1)) / 2.0).collect()
}

fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence.into())
}
