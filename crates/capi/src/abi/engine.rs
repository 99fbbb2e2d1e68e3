//! The functions `ie_engine_…`: names, structures and codes of the engine in C whose programs they serve. They name no
//! model; it is the one that the variable `GIRIH_MODEL` names.
// The contract of each function is its comment, which the header repeats for C.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int};
use std::ptr;

use super::pointers::{elements_mut, optional_text, place, text, value};
use crate::calls::caught;
use crate::engine::{self, ENGINES, EngineSettings};
use crate::status::{Result, Status};

/// The call did what it says.
pub const IE_OK: c_int = 0;
/// An argument is wrong, or the engine was destroyed.
pub const IE_ERR_INVALID_ARGUMENT: c_int = 1;
/// The model cannot be found or read.
pub const IE_ERR_IO: c_int = 2;
/// A request or a setting is not supported.
pub const IE_ERR_UNSUPPORTED: c_int = 3;
/// Memory does not suffice, or girih failed.
pub const IE_ERR_INTERNAL: c_int = 255;

/// How a call ended: one of the codes IE_….
pub type EngineStatus = c_int;

/// An engine. A handle is a number: one that was destroyed is refused, never followed.
#[derive(Debug)]
pub struct GreedyEngineHandle;

/// The parameters of an engine. Null and empty texts are the defaults; unknown values are refused.
#[repr(C)]
#[derive(Debug)]
pub struct EngineParams {
    /// The number of threads; 0 is one for each core.
    pub threads: c_int,
    /// "auto", "compact", "scatter" or "none".
    pub affinity: *const c_char,
    /// "none", "woh", "wxh" or "all"; no effect, as weights are packed for the kernels.
    pub pretranspose: *const c_char,
    /// "auto" or "on"; no effect, as the distance is measured when the model is loaded.
    pub prefetch: *const c_char,
    /// Of activations: "fp32" or "bf16". The precision of weights is the model's own.
    pub precision: *const c_char,
}

/// The figures of an engine's last reply.
#[repr(C)]
#[derive(Debug)]
pub struct EngineMetrics {
    /// The tokens of the reply by the time of the call.
    pub tps_true: f64,
    /// The median of the times between two tokens, in milliseconds.
    pub latency_p50_ms: f64,
    /// Their 95th percentile.
    pub latency_p95_ms: f64,
    /// The peak of the process's resident memory in MiB.
    pub rss_peak_mb: usize,
    /// The tokens of the prompt whose state was kept of an earlier one.
    pub kv_hits: u64,
    /// The other tokens of the prompt.
    pub kv_misses: u64,
}

/// Loads the model of the variable GIRIH_MODEL; `p` may be null. Stores the engine's handle, or null. girih_last_error has
/// the sentence of a fault.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_engine_create(
    p: *const EngineParams,
    out: *mut *mut GreedyEngineHandle,
) -> EngineStatus {
    status(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("out", out) }?;
        *out = ptr::null_mut();
        let settings = match p.is_null() {
            true => EngineSettings::default(),
            // SAFETY: the parameters are the caller's, with texts that are null or the caller's.
            false => unsafe { settings(p) }?,
        };
        *out = ptr::without_provenance_mut(engine::open(settings)?);
        Ok(())
    })
}

/// The parameters.
///
/// # Safety
/// `p` points to parameters that do not change for as long as the result is used; each of their texts is null or ends with a
/// zero.
unsafe fn settings<'a>(p: *const EngineParams) -> Result<EngineSettings<'a>> {
    // SAFETY: the caller promises parameters that do not change.
    let p = unsafe { value("p", p) }?;
    Ok(EngineSettings {
        threads: p.threads,
        // SAFETY: the text is null or the caller's.
        affinity: unsafe { optional_text("affinity", p.affinity) }?,
        // SAFETY: as above.
        pretranspose: unsafe { optional_text("pretranspose", p.pretranspose) }?,
        // SAFETY: as above.
        prefetch: unsafe { optional_text("prefetch", p.prefetch) }?,
        // SAFETY: as above.
        precision: unsafe { optional_text("precision", p.precision) }?,
    })
}

/// Continues `prompt` by at most `max_new` tokens, the most likely one each time, until the model ends the text. Stores
/// the tokens in `out_tokens`, which has room for `max_new`, and their number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_engine_generate(
    h: *mut GreedyEngineHandle,
    prompt: *const c_char,
    max_new: usize,
    out_tokens: *mut u32,
    out_count: *mut u32,
) -> EngineStatus {
    status(|| {
        // SAFETY: the place is null or the caller's.
        let out_count = unsafe { place("out_count", out_count) }?;
        *out_count = 0;
        // SAFETY: the buffer is null or the caller's, of `max_new` elements.
        let tokens = unsafe { elements_mut("out_tokens", out_tokens, max_new) }?;
        // SAFETY: the text is null or the caller's.
        let prompt = unsafe { text("prompt", prompt) }?;
        let count = ENGINES.get(h.addr())?.generate(prompt, tokens)?;
        *out_count = u32::try_from(count).expect("the engine checks that the number fits");
        Ok(())
    })
}

/// Stores the figures of the last reply; zeros before the first, but for the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_engine_metrics(
    h: *const GreedyEngineHandle,
    out: *mut EngineMetrics,
) -> EngineStatus {
    status(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("out", out) }?;
        let (figures, peak) = ENGINES.get(h.addr())?.figures();
        *out = EngineMetrics {
            tps_true: figures.tokens_per_second,
            latency_p50_ms: figures.p50_ms,
            latency_p95_ms: figures.p95_ms,
            rss_peak_mb: usize::try_from(peak).unwrap_or(usize::MAX),
            kv_hits: figures.hits,
            kv_misses: figures.misses,
        };
        Ok(())
    })
}

/// Destroys an engine. Null is allowed, and a handle that was destroyed is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn ie_engine_destroy(h: *mut GreedyEngineHandle) {
    if !h.is_null() {
        // A fault is kept for girih_last_error.
        let _ = caught(|| ENGINES.remove(h.addr()).map(drop));
    }
}

/// Runs the work of a call and returns its code.
fn status(work: impl FnOnce() -> Result<()>) -> EngineStatus {
    let Err(fault) = caught(work) else { return IE_OK };
    match fault.status {
        Status::InvalidArgument | Status::InvalidHandle | Status::BufferTooSmall => IE_ERR_INVALID_ARGUMENT,
        Status::NotFound | Status::Other => IE_ERR_IO,
        Status::Refused | Status::TooLong | Status::OutOfRange => IE_ERR_UNSUPPORTED,
        _ => IE_ERR_INTERNAL,
    }
}
