//! The functions `girih_…`.
// The contract of each function is its comment, which the header repeats for C.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::pointers::{elements, elements_mut, optional_text, place, text};
use crate::calls::call;
use crate::model::{MODELS, OpenModel};
use crate::reply::{NextEvent, OpenReply, REPLIES, ReplyReader};
use crate::status::{Fault, Result, Status, last, name};
use crate::{capabilities, strings};

/// The version of this interface. It grows when a function is added; a function that is there keeps its form.
pub const GIRIH_ABI_VERSION: u32 = 1;

/// The version of the library, with a zero at its end.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// An open model. A handle is a number: one that was closed is refused, never followed.
#[derive(Debug)]
pub struct ModelHandle;

/// A reply that is polled. A handle is a number: one that was closed is refused, never followed.
#[derive(Debug)]
pub struct ReplyHandle;

/// Receives the events of a reply: one JSON object each, which lies there during the call. A result other than 0 cancels
/// the request. It must return: no exception and no longjmp may leave it.
pub type EventCallback = Option<unsafe extern "C" fn(event: *const c_char, user: *mut c_void) -> c_int>;

/// Returns the version of the interface that the library has.
#[unsafe(no_mangle)]
pub extern "C" fn girih_abi_version() -> u32 {
    GIRIH_ABI_VERSION
}

/// Checks that the library has what a program was compiled for: pass GIRIH_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn girih_check_abi(version: u32) -> Status {
    call(|| {
        if (1..=GIRIH_ABI_VERSION).contains(&version) {
            return Ok(());
        }
        let sentence = format!("the program needs ABI {version}, the library has 1 to {GIRIH_ABI_VERSION}");
        Err(Fault::new(Status::Refused, sentence))
    })
}

/// Returns the library's version, such as "0.1.0"; it must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn girih_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// Returns the sentence of the last fault of a call on this thread, empty before the first. It must not be freed, and
/// lies there until the next fault on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn girih_last_error() -> *const c_char {
    last()
}

/// Returns the name of a code, such as "not_found", or null if there is none; it must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn girih_status_name(status: c_int) -> *const c_char {
    name(status).map_or(ptr::null(), |name| name.as_ptr())
}

/// Frees a text that a function of this library stored. Null is allowed; a text that was freed is refused.
#[unsafe(no_mangle)]
pub extern "C" fn girih_string_free(text: *mut c_char) -> Status {
    call(|| if text.is_null() { Ok(()) } else { strings::free(text.addr()) })
}

/// Stores what the library has, as JSON: its version, its backends with their options. Free the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_capabilities(json: *mut *mut c_char) -> Status {
    // SAFETY: the place is null or the caller's.
    call(|| give(unsafe { place("json", json) }?, || Ok(capabilities::json(GIRIH_ABI_VERSION))))
}

/// Opens a model: its files are read, its weights are not yet. `options` is a JSON object, or null for the defaults; its
/// keys are in the documentation. Stores the model's handle, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_open(
    model: *const c_char,
    options: *const c_char,
    out: *mut *mut ModelHandle,
) -> Status {
    call(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("out", out) }?;
        *out = ptr::null_mut();
        // SAFETY: the text is null or the caller's.
        let model = unsafe { text("the model", model) }?;
        // SAFETY: as above.
        let options = unsafe { optional_text("the text of the options", options) }?;
        let handle = MODELS.insert(Arc::new(OpenModel::open(model, options)?))?;
        *out = ptr::without_provenance_mut(handle);
        Ok(())
    })
}

/// Closes a model. Calls that use it on other threads end as usual, and keep it until then; so do its open replies.
#[unsafe(no_mangle)]
pub extern "C" fn girih_close(model: *mut ModelHandle) -> Status {
    call(|| MODELS.remove(model.addr()).map(drop))
}

/// Loads a model, unless it is loaded, and returns when it can run. Other functions do so first where they need it.
#[unsafe(no_mangle)]
pub extern "C" fn girih_start(model: *mut ModelHandle) -> Status {
    call(|| MODELS.get(model.addr())?.start())
}

/// Stores what a model is, as JSON. Free the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_info(model: *mut ModelHandle, json: *mut *mut c_char) -> Status {
    // SAFETY: the place is null or the caller's.
    call(|| give(unsafe { place("json", json) }?, || Ok(MODELS.get(model.addr())?.info())))
}

/// Stores what running a model takes with its options, as JSON: context, arithmetic, memory. Nothing is loaded. Free the
/// text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_plan(model: *mut ModelHandle, json: *mut *mut c_char) -> Status {
    // SAFETY: the place is null or the caller's.
    call(|| give(unsafe { place("json", json) }?, || MODELS.get(model.addr())?.plan_json()))
}

/// Stores the token ids of a text and their number. With `special` other than 0, special tokens that the text spells are
/// parsed. If `capacity` is too small, only the number is stored, and the status is GIRIH_STATUS_BUFFER_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_tokenize(
    model: *mut ModelHandle,
    words: *const c_char,
    special: c_int,
    ids: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the place is null or the caller's.
        let count = unsafe { place("count", count) }?;
        *count = 0;
        // SAFETY: the buffer is null or the caller's, of `capacity` elements.
        let ids = unsafe { elements_mut("ids", ids, capacity) }?;
        // SAFETY: the text is null or the caller's.
        let words = unsafe { text("the text", words) }?;
        let tokens = MODELS.get(model.addr())?.tokenize(words, special != 0)?;
        *count = tokens.len();
        let room = ids.get_mut(..tokens.len()).ok_or_else(|| too_small("ids", capacity, tokens.len()))?;
        room.copy_from_slice(&tokens);
        Ok(())
    })
}

/// Stores the text of `count` token ids, without special tokens. Free the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_detokenize(
    model: *mut ModelHandle,
    ids: *const u32,
    count: usize,
    out: *mut *mut c_char,
) -> Status {
    call(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("out", out) }?;
        *out = ptr::null_mut();
        // SAFETY: the buffer is null or the caller's, of `count` elements.
        let ids = unsafe { elements("ids", ids, count) }?;
        *out = strings::give(&MODELS.get(model.addr())?.model().detokenize(ids)?);
        Ok(())
    })
}

/// Runs a request, a JSON object, and passes the events of its reply to `callback` on this thread; returns after the last
/// one. `callback` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_generate(
    model: *mut ModelHandle,
    request: *const c_char,
    callback: EventCallback,
    user: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the text is null or the caller's.
        let request = unsafe { text("the request", request) }?;
        let reply = MODELS.get(model.addr())?.submit(request)?;
        pass_on(reply, |event| {
            // SAFETY: the caller promises that the function may be called with `user` and a text.
            callback.is_some_and(|callback| unsafe { callback(event, user) } != 0)
        })
    })
}

/// Submits a request, a JSON object, and stores the handle of its reply, or null. Its events wait until they are polled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_submit(
    model: *mut ModelHandle,
    request: *const c_char,
    out: *mut *mut ReplyHandle,
) -> Status {
    call(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("out", out) }?;
        *out = ptr::null_mut();
        // SAFETY: the text is null or the caller's.
        let request = unsafe { text("the request", request) }?;
        let reply = OpenReply::new(MODELS.get(model.addr())?.submit(request)?);
        *out = ptr::without_provenance_mut(REPLIES.insert(Arc::new(reply))?);
        Ok(())
    })
}

/// Stores the next event of a reply, one JSON object, or null after the last one. Waits for at most `milliseconds`, or
/// without end if they are negative; the status is GIRIH_STATUS_TIMED_OUT if nothing has arrived. Free the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_next(
    reply: *mut ReplyHandle,
    milliseconds: i64,
    event: *mut *mut c_char,
) -> Status {
    call(|| {
        // SAFETY: the place is null or the caller's.
        let event = unsafe { place("event", event) }?;
        *event = ptr::null_mut();
        let time = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        match REPLIES.get(reply.addr())?.next_within(time)? {
            NextEvent::Event(value) => *event = strings::give(&value.to_string()),
            NextEvent::End => {}
            NextEvent::None => {
                let sentence = format!("no event has arrived within {milliseconds} ms; poll again");
                return Err(Fault::new(Status::TimedOut, sentence));
            }
        }
        Ok(())
    })
}

/// Cancels a reply from any thread: its last event says so. It stays open.
#[unsafe(no_mangle)]
pub extern "C" fn girih_cancel(reply: *mut ReplyHandle) -> Status {
    call(|| REPLIES.get(reply.addr()).map(|reply| reply.cancel()))
}

/// Closes a reply, and cancels it if it has not ended.
#[unsafe(no_mangle)]
pub extern "C" fn girih_reply_close(reply: *mut ReplyHandle) -> Status {
    call(|| REPLIES.remove(reply.addr()).map(|reply| reply.cancel()))
}

/// Stores one vector for each text of a request, one after another, and the number of all values. The request is
/// {"input": [...]} with a text or a list of token ids for each vector. If `capacity` is too small, only the number is
/// stored, and the status is GIRIH_STATUS_BUFFER_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_embed(
    model: *mut ModelHandle,
    request: *const c_char,
    values: *mut f32,
    capacity: usize,
    count: *mut usize,
) -> Status {
    call(|| {
        // SAFETY: the place is null or the caller's.
        let count = unsafe { place("count", count) }?;
        *count = 0;
        // SAFETY: the buffer is null or the caller's, of `capacity` elements.
        let values = unsafe { elements_mut("values", values, capacity) }?;
        // SAFETY: the text is null or the caller's.
        let request = unsafe { text("the request", request) }?;
        let stored = MODELS.get(model.addr())?.embed(request, values)?;
        *count = stored.unwrap_or_else(|needed| needed);
        stored.map(drop).map_err(|needed| too_small("values", capacity, needed))
    })
}

/// Stores a JSON text in a place, which is null if there is none.
fn give(out: &mut *mut c_char, json: impl FnOnce() -> Result<Value>) -> Result<()> {
    *out = ptr::null_mut();
    *out = strings::give(&json()?.to_string());
    Ok(())
}

/// Passes the events of a reply on, until `is_cancelled` says so; then those that are left.
fn pass_on(mut reply: ReplyReader, is_cancelled: impl Fn(*const c_char) -> bool) -> Result<()> {
    let cancel = reply.cancel_handle();
    while let NextEvent::Event(event) = reply.next_within(None)? {
        if is_cancelled(crate::status::c_text(&event.to_string()).as_ptr()) {
            cancel.cancel();
        }
    }
    Ok(())
}

fn too_small(what: &str, capacity: usize, needed: usize) -> Fault {
    let sentence = format!("{what} has room for {capacity} elements; {needed} are needed");
    Fault::new(Status::BufferTooSmall, sentence)
}
