//! Images in requests: from base64 in a message to the patches that the model's tower reads.
//!
//! An API writes an image as a part of a template's message ([`image_part`]), which holds the base64 until
//! [`take_images`] takes it out, before a template sees the message.

use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
use girih::{Conversation, DecodeLimits, ErrorKind, IMAGES_KEPT, ImagePatches, Model, Picture, Prompt};
use serde_json::{Value, json};

use crate::error::ApiError;

/// The maximum number of pixels of an image: decoding takes at most 12 bytes for each.
const MAX_PIXELS: u64 = 30_000_000;

/// The maximum number of bytes that the patches of a request's images take: those of 16 images of Gemma 3 take 154 MB, of 9
/// of SmolVLM, each with 17 tiles, 480 MB.
const MAX_PATCH_BYTES: usize = 512 << 20;

/// Held while an image is decoded: one at a time, of all requests, for its memory.
static DECODING: Mutex<()> = Mutex::new(());

/// The keys of a part in which an image waits.
const DATA: &str = "base64";
const PARAM: &str = "param";

/// An image of a request that is not decoded yet.
pub struct EncodedImage {
    /// The parameter that holds it.
    param: String,
    base64: String,
}

/// A part of a template's message: the image that the parameter `param` holds as base64.
pub fn image_part(param: &str, base64: &str) -> Value {
    json!({"type": "image", PARAM: param, DATA: base64})
}

/// A part of a template's message: a text.
pub fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The content of a template's message from its parts: a text, joined by newlines, unless there are images. Templates of
/// models without images know only texts.
pub fn content(parts: Vec<Value>) -> Value {
    if parts.iter().any(|part| part["type"] == "image") {
        return Value::Array(parts);
    }
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n").into()
}

/// The image part of a data URL.
///
/// # Errors
/// When the URL is of another kind, which would have to be fetched.
pub fn image_of_url(param: &str, url: &str) -> Result<Value, ApiError> {
    let is_data = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let Some(data) = is_data.then(|| &url[5..]) else {
        let message = format!(
            "{param} is a URL that would have to be fetched, which girih does not do; send data:image/png;base64,…"
        );
        return Err(ApiError::unsupported(param, message));
    };
    match data.split_once(',') {
        Some((kind, base64)) if kind.to_ascii_lowercase().ends_with(";base64") => {
            Ok(image_part(param, base64))
        }
        _ => {
            let message = format!("{param} is a data URL without base64; send data:image/png;base64,…");
            Err(ApiError::invalid(param, message))
        }
    }
}

/// Whether one of these prompts has images that are not taken out yet.
pub fn has_images(prompts: &[Prompt]) -> bool {
    let conversations = prompts.iter().filter_map(|prompt| match prompt {
        Prompt::Conversation(conversation) => Some(&conversation.messages),
        Prompt::Text(_) | Prompt::Tokens(_) => None,
    });
    let contents = conversations.flatten().filter_map(|message| message.get("content")?.as_array());
    contents.flatten().any(|part| part.get(DATA).is_some())
}

/// Takes the images out of the messages, in their order.
///
/// # Errors
/// When there are more than a session keeps the rows of.
pub fn take_images(conversation: &mut Conversation) -> Result<Vec<EncodedImage>, ApiError> {
    let contents =
        conversation.messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut());
    let parts = contents.flatten().filter_map(Value::as_object_mut);
    let taken = parts.filter_map(|part| match (part.remove(PARAM), part.remove(DATA)) {
        (Some(Value::String(param)), Some(Value::String(base64))) => Some(EncodedImage { param, base64 }),
        _ => None,
    });
    let taken: Vec<EncodedImage> = taken.collect();
    match taken.get(IMAGES_KEPT) {
        None => Ok(taken),
        Some(EncodedImage { param, .. }) => {
            let message = format!("the request has {} images; the maximum is {IMAGES_KEPT}", taken.len());
            Err(ApiError::invalid(param, message))
        }
    }
}

/// The patches of images, as the model's tower reads them, while they are wanted.
///
/// # Errors
/// When the model reads none, one is broken or too large, or they are not wanted any more.
pub fn decoded(
    images: Vec<EncodedImage>,
    model: &Model,
    is_wanted: impl Fn() -> bool,
) -> Result<Vec<ImagePatches>, ApiError> {
    let Some(first) = images.first() else { return Ok(Vec::new()) };
    if let Err(error) = model.image_format() {
        let param = &first.param;
        return Err(ApiError::unsupported(param, format!("{param} is an image: {error}")));
    }
    let mut taken = 0;
    let patches = images.into_iter().map(|image| {
        let _decoding = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_wanted() {
            return Err(ApiError::invalid(&image.param, "the client left before its images were decoded"));
        }
        let patches = image.decoded(model)?;
        taken += size_of_val(patches.values());
        if taken > MAX_PATCH_BYTES {
            let message = format!(
                "the request's images take {taken} bytes up to {}; the maximum is {MAX_PATCH_BYTES}: send fewer",
                image.param
            );
            return Err(ApiError::invalid(&image.param, message));
        }
        Ok(patches)
    });
    patches.collect()
}

impl EncodedImage {
    fn decoded(&self, model: &Model) -> Result<ImagePatches, ApiError> {
        let param = &self.param;
        // Clients leave padding out.
        let bytes = STANDARD_PAD_INDIFFERENT.decode(self.base64.trim_ascii()).map_err(|_| {
            ApiError::invalid(param, format!("{param} is not base64; encode the bytes of the image file"))
        })?;
        let limits = DecodeLimits { pixels: MAX_PIXELS, ..DecodeLimits::default() };
        let patches = Picture::decode(&bytes, &limits).and_then(|picture| model.image_patches(&picture));
        patches.map_err(|error| match error.kind() {
            ErrorKind::Refused => ApiError::invalid(param, format!("{param}: {error}")),
            _ => ApiError::from(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_urls_are_read() {
        let part = image_of_url("p", "data:image/png;base64,AAAA").unwrap();
        assert_eq!(part, image_part("p", "AAAA"));
        assert!(image_of_url("p", "DATA:;BASE64,AAAA").is_ok());
        for url in ["https://example.org/a.png", "file:///etc/passwd", "data:image/png,AAAA", "", "dätä:,"]
        {
            let error = image_of_url("p", url).unwrap_err();
            assert!(error.message.contains("data:image/png;base64"), "{url}: {}", error.message);
        }
    }

    #[test]
    fn images_are_taken_out_before_a_template_sees_them() {
        let parts = vec![image_part("messages[0].content[0]", "AAAA"), text_part("What is it?")];
        let mut conversation = Conversation::new();
        conversation.messages.push(json!({"role": "user", "content": content(parts)}));
        conversation
            .messages
            .push(json!({"role": "user", "content": content(vec![text_part("a"), text_part("b")])}));
        assert!(has_images(&[Prompt::Conversation(conversation.clone())]));
        let images = take_images(&mut conversation).unwrap();
        assert_eq!((images.len(), images[0].param.as_str()), (1, "messages[0].content[0]"));
        assert_eq!(
            conversation.messages,
            [
                json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}),
                json!({"role": "user", "content": "a\nb"}),
            ]
        );
        assert!(!has_images(&[Prompt::Conversation(conversation.clone())]));
        assert!(take_images(&mut conversation).unwrap().is_empty());
    }

    #[test]
    fn too_many_images_are_refused() {
        let with = |count: usize| {
            let parts =
                (0..count).map(|number| image_part(&format!("messages[0].content[{number}]"), "AAAA"));
            let mut conversation = Conversation::new();
            conversation.messages.push(json!({"role": "user", "content": content(parts.collect())}));
            take_images(&mut conversation)
        };
        assert_eq!(with(IMAGES_KEPT).ok().map(|images| images.len()), Some(IMAGES_KEPT));
        let error = with(IMAGES_KEPT + 1).err().unwrap();
        assert_eq!(error.message, "the request has 17 images; the maximum is 16");
        assert_eq!(error.param.as_deref(), Some("messages[0].content[16]"));
    }
}
