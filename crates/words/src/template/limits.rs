//! The limits of one rendering.

use std::time::Duration;

use crate::limits::TextLimits;

/// The limits of one rendering.
#[derive(Clone, Debug)]
pub struct RenderLimits {
    /// Elapsed time. Real templates take less than 10 ms; the margin is for a busy
    /// machine and for starting the worker.
    pub time: Duration,
    /// Bytes of the template's source.
    pub template_bytes: usize,
    /// Bytes of messages, tools, documents and other variables, as JSON.
    pub input_bytes: usize,
    /// Bytes of output.
    pub output_bytes: usize,
}

impl Default for RenderLimits {
    fn default() -> RenderLimits {
        RenderLimits {
            time: Duration::from_secs(2),
            template_bytes: usize::try_from(TextLimits::DEFAULT.template_bytes)
                .expect("1 MiB fits every usize"),
            input_bytes: 16 << 20,
            output_bytes: 4 << 20,
        }
    }
}
