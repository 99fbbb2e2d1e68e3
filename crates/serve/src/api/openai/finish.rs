//! OpenAI's words for the end of a reply.

use crate::generation::FinishReason;

/// OpenAI's word for the end of a reply.
pub fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::End | FinishReason::StopString(_) => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}
