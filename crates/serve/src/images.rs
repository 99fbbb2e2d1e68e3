//! Images in requests: from base64 in a message to the patches that the model's tower reads.
//!
//! An API writes an image as a part of a template's message ([`image_part`]), which holds the base64 until
//! [`take_images`] takes it out, before a template sees the message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
use girih::{Conversation, DecodeLimits, ErrorKind, ImagePatches, Model, Picture};
use serde_json::{Value, json};

use crate::error::ApiError;

/// The maximum number of images of a request: as many as a session keeps the rows of.
const MAX_IMAGES: usize = 16;

/// The maximum number of pixels of an image: decoding takes at most 12 bytes for each.
const MAX_PIXELS: u64 = 30_000_000;

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

/// Takes the images out of the messages, in their order.
pub fn take_images(conversation: &mut Conversation) -> Vec<EncodedImage> {
    let contents =
        conversation.messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut());
    let parts = contents.flatten().filter_map(Value::as_object_mut);
    let taken = parts.filter_map(|part| match (part.remove(PARAM), part.remove(DATA)) {
        (Some(Value::String(param)), Some(Value::String(base64))) => Some(EncodedImage { param, base64 }),
        _ => None,
    });
    taken.collect()
}

/// The patches of images, as the model's tower reads them.
///
/// # Errors
/// When there are too many, the model reads none, or one is broken or too large.
pub fn decoded(images: &[EncodedImage], model: &Model) -> Result<Vec<ImagePatches>, ApiError> {
    let Some(first) = images.first() else { return Ok(Vec::new()) };
    if let Err(error) = model.image_format() {
        let param = &first.param;
        return Err(ApiError::unsupported(param, format!("{param} is an image: {error}")));
    }
    if let Some(last) = images.get(MAX_IMAGES) {
        let message = format!("the request has {} images; the maximum is {MAX_IMAGES}", images.len());
        return Err(ApiError::invalid(&last.param, message));
    }
    images.iter().map(|image| image.decoded(model)).collect()
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
        let images = take_images(&mut conversation);
        assert_eq!((images.len(), images[0].param.as_str()), (1, "messages[0].content[0]"));
        assert_eq!(
            conversation.messages,
            [
                json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}),
                json!({"role": "user", "content": "a\nb"}),
            ]
        );
        assert!(take_images(&mut conversation).is_empty());
    }
}
