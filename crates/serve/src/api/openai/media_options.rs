//! How the media of a request are read, in vLLM's form (`media_io_kwargs`).

use serde::Deserialize;
use utoipa::ToSchema;

use crate::json_body::from_json_object;

/// How media are read.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct MediaOptions {
    /// How videos are read.
    pub video: Option<VideoOptions>,
}

/// How videos are read.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct VideoOptions {
    /// How many frames come in a second. Default what the model's files say.
    #[schema(exclusive_minimum = 0)]
    pub fps: Option<f64>,
}

impl MediaOptions {
    /// How many frames of videos come in a second, if it is set.
    pub fn frames_per_second(options: Option<&MediaOptions>) -> Option<f64> {
        options?.video.as_ref()?.fps
    }
}

from_json_object!(MediaOptions, VideoOptions);
