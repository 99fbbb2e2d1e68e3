//! Images and videos in requests: from base64 in a message to the patches that the model's tower reads.
//!
//! An API writes one as a part of a template's message ([`image_part`], [`image_of_url`], [`video_part`]), which holds the
//! base64 until [`take_images`] takes it out, before a template sees the message. A part with a URL is replaced before, when it has been
//! fetched ([`crate::fetched_images`]).

use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_PAD_INDIFFERENT;
use girih::{
    Conversation, DecodeLimits, Error, ErrorKind, IMAGES_KEPT, ImagePatches, Model, Picture, Prompt,
};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::parameters::ParameterNotes;
use crate::videos::EncodedVideo;

/// The maximum number of pixels of an image: decoding takes at most 12 bytes for each.
const MAX_PIXELS: u64 = 30_000_000;

/// The maximum number of bytes that the patches of a request's images take: those of 16 images of Gemma 3 take 154 MB, of 9
/// of SmolVLM, each with 17 tiles, 480 MB.
const MAX_PATCH_BYTES: usize = 512 << 20;

/// Held while an image or a video is decoded: one at a time, of all requests, for its memory.
static DECODING: Mutex<()> = Mutex::new(());

/// The keys of a part in which an image waits, or the frames of a video.
const DATA: &str = "base64";
const URL: &str = "url";
const PARAM: &str = "param";
const FRAMES: &str = "frames";
const RATE: &str = "fps";

/// An image or a video of a request that is not decoded yet.
pub struct EncodedImage {
    /// The parameter that holds it.
    param: String,
    content: EncodedContent,
}

/// What is decoded.
enum EncodedContent {
    /// An image file in base64.
    Image(String),
    /// The frames of a video.
    Video(EncodedVideo),
}

/// A part of a template's message: the image that the parameter `param` holds as base64.
pub fn image_part(param: &str, base64: &str) -> Value {
    json!({"type": "image", PARAM: param, DATA: base64})
}

/// A part of a template's message: the video that the parameter `param` holds as frames in base64, with commas between them.
pub fn video_part(param: &str, frames: &str, frames_per_second: Option<f64>) -> Value {
    json!({"type": "video", PARAM: param, FRAMES: frames, RATE: frames_per_second})
}

/// A part of a template's message: a text.
pub fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The content of a template's message from its parts: a text, joined by newlines, unless there are images or videos.
/// Templates of models without images know only texts.
pub fn content(parts: Vec<Value>) -> Value {
    if parts.iter().any(|part| part["type"] != "text") {
        return Value::Array(parts);
    }
    let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
    texts.join("\n").into()
}

/// The image part of a data URL, or of a URL of http or https, which is to be fetched.
///
/// # Errors
/// When the URL is of another kind.
pub fn image_of_url(param: &str, url: &str) -> Result<Value, ApiError> {
    let after = |scheme: &str| {
        let has = url.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
        has.then(|| &url[scheme.len()..])
    };
    if after("http://").or(after("https://")).is_some() {
        return Ok(json!({"type": "image", PARAM: param, URL: url}));
    }
    let Some(data) = after("data:") else {
        let message = format!("{param} is a URL of an unknown kind; send data:image/png;base64,…");
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

/// The bytes of the images in the fields of a body, in the form of any API: what [`image_part`] and [`image_of_url`] are
/// given.
pub fn image_bytes(fields: &[(String, Value)]) -> usize {
    let texts = fields.iter().map(|(name, value)| match name.as_str() {
        "images" => strings(value),
        "messages" | "input" => {
            items(value).map(|message| strings(&message["images"]) + parts(&message["content"])).sum()
        }
        _ => 0,
    });
    texts.sum()
}

/// The items of a list; none if it is none.
fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The bytes of the texts in a list.
fn strings(list: &Value) -> usize {
    items(list).filter_map(Value::as_str).map(str::len).sum()
}

/// The bytes of the images among the parts of a message.
fn parts(content: &Value) -> usize {
    let of = |url: &Value| url.as_str().or(url["url"].as_str()).map(str::len);
    let data = |part: &Value| part["source"]["data"].as_str().map(str::len);
    let bytes =
        |part: &Value| of(&part["image_url"]).or_else(|| of(&part["video_url"])).or_else(|| data(part));
    items(content).filter_map(bytes).sum()
}

/// The parameter of the first image of these prompts that is not taken out yet.
pub fn first_image(prompts: &[Prompt]) -> Option<&str> {
    prompts.iter().find_map(|prompt| match prompt {
        Prompt::Conversation(conversation) => first_image_of_messages(&conversation.messages),
        Prompt::Text(_) | Prompt::Tokens(_) => None,
    })
}

/// The parameter of the first image of messages.
pub fn first_image_of_messages(messages: &[Value]) -> Option<&str> {
    first_part_with(messages, &[DATA, URL, FRAMES])
}

/// The parameter of the first video of these prompts that is not taken out yet.
pub fn first_video(prompts: &[Prompt]) -> Option<&str> {
    prompts.iter().find_map(|prompt| match prompt {
        Prompt::Conversation(conversation) => first_part_with(&conversation.messages, &[FRAMES]),
        Prompt::Text(_) | Prompt::Tokens(_) => None,
    })
}

/// The parameter of the first part of messages that has one of these keys.
fn first_part_with<'a>(messages: &'a [Value], keys: &[&str]) -> Option<&'a str> {
    let contents = messages.iter().filter_map(|message| message.get("content")?.as_array());
    let waits = |part: &&Value| keys.iter().any(|key| part.get(key).is_some());
    contents.flatten().find(waits)?.get(PARAM)?.as_str()
}

/// The error of a video that the model does not read, and why.
pub fn unread_video(param: &str, why: &str) -> ApiError {
    ApiError::unsupported(param, format!("{param} is a video: {why}"))
}

/// The error of an image that the model does not read, and why.
pub fn unread_image(param: &str, why: &str) -> ApiError {
    ApiError::unsupported(param, format!("{param} is an image: {why}"))
}

/// The parts of a conversation's messages that may be images.
pub fn image_parts(conversation: &mut Conversation) -> impl Iterator<Item = &mut Map<String, Value>> {
    let messages = conversation.messages.iter_mut();
    let contents = messages.filter_map(|message| message.get_mut("content")?.as_array_mut());
    contents.flatten().filter_map(Value::as_object_mut)
}

/// The parameter and the URL of an image that is to be fetched.
pub fn url_of(part: &Map<String, Value>) -> Option<(String, String)> {
    Some((part.get(PARAM)?.as_str()?.to_owned(), part.get(URL)?.as_str()?.to_owned()))
}

/// The error of a request with `count` images, of which `param` is the first that is too much.
pub fn too_many_images(param: &str, count: usize) -> ApiError {
    let message = format!("the request has {count} images; the maximum is {IMAGES_KEPT}");
    ApiError::invalid(param, message)
}

/// Takes the images out of the messages, in their order.
///
/// # Errors
/// When there are more than a session keeps the rows of, or one has not been fetched.
pub fn take_images(conversation: &mut Conversation) -> Result<Vec<EncodedImage>, ApiError> {
    if let Some((param, _)) = image_parts(conversation).find_map(|part| url_of(part)) {
        let message = format!(
            "{param} is a URL, which is not fetched to count tokens; send data:image/png;base64,… or base64"
        );
        return Err(ApiError::unsupported(param, message));
    }
    let taken: Vec<EncodedImage> = image_parts(conversation).filter_map(taken_out).collect();
    match taken.get(IMAGES_KEPT) {
        None => Ok(taken),
        Some(EncodedImage { param, .. }) => Err(too_many_images(param, taken.len())),
    }
}

/// The image or the video that a part holds, without which it stays.
fn taken_out(part: &mut Map<String, Value>) -> Option<EncodedImage> {
    let (image, frames, rate) = (part.remove(DATA), part.remove(FRAMES), part.remove(RATE));
    let content = match (image, frames) {
        (Some(Value::String(base64)), _) => EncodedContent::Image(base64),
        (_, Some(Value::String(frames))) => EncodedContent::Video(EncodedVideo {
            frames,
            frames_per_second: rate.as_ref().and_then(Value::as_f64),
        }),
        _ => return None,
    };
    match part.remove(PARAM) {
        Some(Value::String(param)) => Some(EncodedImage { param, content }),
        _ => None,
    }
}

/// The patches of images and videos, as the model's tower reads them, while they are wanted. `notes` say what is left out or made smaller.
///
/// # Errors
/// When the model reads none, one is broken or too large, or they are not wanted any more.
pub fn decoded(
    images: Vec<EncodedImage>,
    model: &Model,
    notes: &ParameterNotes,
    is_wanted: impl Fn() -> bool,
) -> Result<Vec<ImagePatches>, ApiError> {
    let Some(first) = images.first() else { return Ok(Vec::new()) };
    if let Err(error) = model.image_format() {
        let unread = match first.content {
            EncodedContent::Image(_) => unread_image,
            EncodedContent::Video(_) => unread_video,
        };
        return Err(unread(&first.param, &error.to_string()));
    }
    let mut taken = 0;
    let patches = images.into_iter().map(|image| {
        let patches = image.patches(model, notes, &is_wanted)?;
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
    /// The patches, while they are wanted.
    fn patches(
        &self,
        model: &Model,
        notes: &ParameterNotes,
        is_wanted: impl Fn() -> bool,
    ) -> Result<ImagePatches, ApiError> {
        let _decoding = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        let (param, mut left_out) = (&self.param, None);
        let mut picture = |base64: &str| {
            let picture = decoded_file(base64, &is_wanted)?;
            left_out = left_out.or(picture.note());
            Ok(picture)
        };
        let patches = match &self.content {
            EncodedContent::Image(base64) => {
                picture(base64).and_then(|picture| model.image_patches(&picture))
            }
            EncodedContent::Video(video) => video.patches(model, picture),
        };
        let patches = patches.map_err(|error: Error| match error.kind() {
            ErrorKind::Refused => ApiError::invalid(param, format!("{param}: {error}")),
            _ => ApiError::from(error),
        })?;
        left_out.into_iter().chain(patches.note()).for_each(|note| notes.add_image(param, note));
        Ok(patches)
    }
}

/// The picture in a file, which is decoded if it is wanted.
fn decoded_file(base64: &str, is_wanted: impl Fn() -> bool) -> girih::Result<Picture> {
    let refused = |sentence: &str| Error::with_kind(ErrorKind::Refused, sentence);
    if !is_wanted() {
        return Err(refused("the client left before its images were decoded"));
    }
    // Clients leave padding out.
    let bytes = STANDARD_PAD_INDIFFERENT
        .decode(base64.trim_ascii())
        .map_err(|_| refused("the image is not base64; encode the bytes of its file"))?;
    let limits = DecodeLimits { pixels: MAX_PIXELS, ..DecodeLimits::default() };
    Picture::decode(&bytes, &limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_files_are_read_or_fetched() {
        let part = image_of_url("p", "data:image/png;base64,AAAA").unwrap();
        assert_eq!(part, image_part("p", "AAAA"));
        assert!(image_of_url("p", "DATA:;BASE64,AAAA").is_ok());
        for url in ["http://example.org/a.png", "HTTPS://example.org/a.png"] {
            let mut conversation = Conversation::new();
            let parts = vec![image_of_url("p", url).unwrap()];
            conversation.messages.push(json!({"role": "user", "content": content(parts)}));
            assert_eq!(first_image(&[Prompt::Conversation(conversation.clone())]), Some("p"));
            let part = image_parts(&mut conversation).next().unwrap();
            assert_eq!(url_of(part), Some(("p".to_owned(), url.to_owned())));
            let error = take_images(&mut conversation).err().unwrap();
            assert!(error.message.contains("is not fetched to count tokens"), "{}", error.message);
        }
        for url in
            ["ftp://example.org/a.png", "file:///etc/passwd", "data:image/png,AAAA", "", "dätä:,", "httpß"]
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
        let param = "messages[0].content[0]";
        assert_eq!(first_image(&[Prompt::Conversation(conversation.clone())]), Some(param));
        let images = take_images(&mut conversation).unwrap();
        assert_eq!((images.len(), images[0].param.as_str()), (1, param));
        assert_eq!(
            conversation.messages,
            [
                json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}),
                json!({"role": "user", "content": "a\nb"}),
            ]
        );
        assert_eq!(first_image(&[Prompt::Conversation(conversation.clone())]), None);
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
