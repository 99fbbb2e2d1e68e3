//! Videos in requests: frames in base64, as vLLM takes them, and the patches that the model's tower reads.

use girih::{Error, ErrorKind, ImagePatches, Model, Picture, Result};

use crate::error::ApiError;

/// The type of a data URL whose data are image files in base64, one for each frame, with commas between them (vLLM's
/// `VideoMediaIO.load_base64`).
const FRAMES: &str = "video/jpeg;base64";

/// The maximum number of pixels of the files of all frames: those of the images of a request.
const MAX_PIXELS: u64 = 480_000_000;

/// A video of a request that is not decoded yet.
pub struct EncodedVideo {
    /// The frames in base64, with commas between them.
    pub frames: String,
    /// How many frames come in a second; `None` for what the model's files say.
    pub frames_per_second: Option<f64>,
}

/// The frames in base64 that a data URL has.
///
/// # Errors
/// When the URL is of another kind.
pub fn frames_of_url<'a>(param: &str, url: &'a str) -> Result<&'a str, ApiError> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    let found = match (scheme.to_ascii_lowercase().as_str(), rest.split_once(',')) {
        ("http" | "https", _) => "a URL that would have to be fetched and decoded, which girih does not do",
        ("data", Some((kind, frames))) if kind.eq_ignore_ascii_case(FRAMES) => return Ok(frames),
        ("data", _) => "a data URL of another kind than frames, which girih does not decode",
        _ => "a URL of an unknown kind",
    };
    let message = format!("{param} is {found}; send the video as data:video/jpeg;base64,FRAME,FRAME,…");
    Err(ApiError::unsupported(param, message))
}

impl EncodedVideo {
    /// The patches of the video, whose frames `decoded` decodes. One frame is in memory at once.
    ///
    /// # Errors
    /// When the model reads no videos, a frame is broken, or there are too many pixels.
    pub fn patches(
        &self,
        model: &Model,
        mut decoded: impl FnMut(&str) -> Result<Picture>,
    ) -> Result<ImagePatches> {
        let count = self.frames.split(',').count();
        let mut frames = self.frames.split(',');
        let rate = self.frames_per_second.map_or_else(|| model.video_rate(), Ok)?;
        model.video_patches_with(count, rate, |index| {
            let named =
                |error: Error| Error::with_kind(error.kind(), format!("frame {}: {error}", index + 1));
            let picture = decoded(frames.next().unwrap_or_default()).map_err(named)?;
            check_pixels(&picture, count)?;
            Ok(picture)
        })
    }
}

/// Checks the number of pixels of a video, all of whose frames have the size of this one.
fn check_pixels(frame: &Picture, count: usize) -> Result<()> {
    let pixels = u64::from(frame.width()).saturating_mul(u64::from(frame.height()));
    let pixels = pixels.saturating_mul(count as u64);
    if pixels <= MAX_PIXELS {
        return Ok(());
    }
    let sentence = format!(
        "the {count} frames have {pixels} pixels; the maximum is {MAX_PIXELS}: send fewer or smaller ones"
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_urls_of_frames_are_videos() {
        assert_eq!(frames_of_url("p", "data:video/jpeg;base64,AA,BB").unwrap(), "AA,BB");
        assert_eq!(frames_of_url("p", "DATA:Video/JPEG;BASE64,").unwrap(), "");
        for (url, words) in [
            ("https://example.org/a.mp4", "p is a URL that would have to be fetched"),
            ("HTTP://example.org", "p is a URL that would have to be fetched"),
            ("data:video/mp4;base64,AAAA", "p is a data URL of another kind than frames"),
            ("data:video/jpeg,AAAA", "p is a data URL of another kind"),
            ("data:video/jpeg;base64", "p is a data URL of another kind"),
            ("file:///etc/passwd", "p is a URL of an unknown kind"),
            ("", "p is a URL of an unknown kind"),
        ] {
            let message = frames_of_url("p", url).unwrap_err().message;
            assert!(message.contains(words) && message.contains("FRAME,FRAME"), "{url}: {message}");
        }
    }

    #[test]
    fn frames_of_too_many_pixels_are_refused() {
        let frame = Picture::from_rgb(1000, 1000, vec![0; 3_000_000]).unwrap();
        assert!(check_pixels(&frame, 480).is_ok());
        let error = check_pixels(&frame, 481).unwrap_err().to_string();
        assert_eq!(
            error,
            "the 481 frames have 481000000 pixels; the maximum is 480000000: send fewer or smaller ones"
        );
    }
}
