//! Videos in requests, as frames in base64: the reply is the library's, and what is no video is refused by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use girih::{Conversation, DecodeLimits, Model, OpenOptions, Picture, Request, RunOptions};
use girih_serve::{ServeOptions, Server};
use serde_json::{Value, json};

use crate::client::HttpReply;
use crate::model_server::{get, options, post, refusal};

const CHAT: &str = "/v1/chat/completions";

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// Prompts with videos by transformers' processor, and the files that it reads.
fn golden() -> Value {
    let file = fs::read(tests().join("images/prompts/qwen3_vl.json")).unwrap();
    serde_json::from_slice(&file).unwrap()
}

/// A folder of the committed Qwen3-VL with the tokenizer and the settings of the golden.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(tests().join("fixtures/qwen3_vl").join(file), folder.join(file)).unwrap();
        }
        for (file, content) in golden()["files"].as_object().unwrap() {
            fs::write(folder.join(file), content.to_string()).unwrap();
        }
        folder
    })
}

fn run_options() -> RunOptions {
    RunOptions { images: true, context: Some(512), sequences: 2, ..RunOptions::default() }
}

/// A server that the tests of this file share, with the built-in model behind the one that reads videos.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let mut other = options();
        let mut model = other.models[0].clone();
        model.name = "sees".to_owned();
        model.source = folder().to_str().unwrap().to_owned();
        (model.open_options, model.run_options) = (OpenOptions::default(), run_options());
        other.models.insert(0, model);
        Server::start(ServeOptions { ..other }).unwrap()
    })
}

fn ask(path: &str, body: &Value) -> HttpReply {
    post(server().address(), path, body)
}

fn file(name: &str) -> Vec<u8> {
    fs::read(tests().join("images").join(name)).unwrap()
}

/// The URL of a video of these committed images.
fn url(names: &[&str]) -> String {
    let frames: Vec<String> = names.iter().map(|name| STANDARD.encode(file(name))).collect();
    format!("data:video/jpeg;base64,{}", frames.join(","))
}

/// The messages of a chat about a video.
fn messages(url: &str) -> Value {
    let parts =
        json!([{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "What moves?"}]);
    json!([{"role": "user", "content": parts}])
}

fn chat(url: &str, fps: Option<f64>) -> Value {
    let media = fps.map(|fps| json!({"video": {"fps": fps}}));
    json!({"model": "sees", "max_tokens": 8, "temperature": 0, "messages": messages(url), "media_io_kwargs": media})
}

/// The names of a case's frames.
fn frames(case: &Value) -> Vec<&str> {
    case["frames"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// The library's reply to [`chat`] about the frames of a case.
fn expected(case: &Value) -> String {
    let model = Model::open(folder().to_str().unwrap()).unwrap();
    let session = model.plan(run_options()).unwrap().start(|_| {}).unwrap();
    let pictures: Vec<Picture> = frames(case)
        .iter()
        .map(|name| Picture::decode(&file(name), &DecodeLimits::default()).unwrap())
        .collect();
    let video = model.video_patches(&pictures, case["frames_per_second"].as_f64().unwrap()).unwrap();
    let mut conversation = Conversation::new();
    conversation.messages = case["messages"].as_array().unwrap().clone();
    let request =
        Request::new(conversation).images([video]).sampling(girih::Sampling::greedy()).max_tokens(8);
    session.generate(request).unwrap().text().unwrap()
}

#[test]
fn chats_send_videos_to_the_model() {
    let golden = golden();
    for case in golden["videos"].as_array().unwrap() {
        let (url, rate) = (url(&frames(case)), case["frames_per_second"].as_f64());
        let body =
            json!({"model": "sees", "messages": messages(&url), "media_io_kwargs": {"video": {"fps": rate}}});
        assert_eq!(ask("/tokenize", &body).json()["tokens"], case["tokens"], "by transformers' processor");
        let reply = ask(CHAT, &chat(&url, rate));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.json()["choices"][0]["message"]["content"], expected(case));
        let tokens = case["tokens"].as_array().unwrap().len();
        assert_eq!(reply.json()["usage"]["prompt_tokens"], tokens);
    }
    let case = &golden["videos"][0];
    assert_eq!(case["frames_per_second"], 2.0);
    let unstated = json!({"model": "sees", "messages": messages(&url(&frames(case)))});
    assert_eq!(ask("/tokenize", &unstated).json()["tokens"], case["tokens"], "two frames a second");
}

#[test]
fn a_model_that_reads_videos_says_so() {
    let found = get(server().address(), "/v1/models/sees").json();
    assert_eq!(found["architecture"]["input_modalities"], json!(["text", "image", "video"]));
}

#[test]
fn equal_videos_share_the_prefix_cache() {
    let cached = |names: &[&str], text: &str| {
        let mut body = chat(&url(names), Some(2.0));
        body["messages"][0]["content"][1]["text"] = text.into();
        let reply = ask(CHAT, &body);
        let found = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        found.unwrap_or_else(|| panic!("{reply:?}"))
    };
    // Long enough that whole blocks of 64 positions are behind the video.
    let text = "Tell me all about it, please. ".repeat(6);
    let video = ["rgb.png", "grey.png", "rgb.png", "rgb.png"];
    cached(&video, &text);
    let (same, other) = (cached(&video, &format!("{text}!")), cached(&["rgb.png"; 4], &format!("{text}!")));
    assert!(same >= 64 && other < same, "{same} and {other}");
}

#[test]
fn a_video_stands_beside_images_in_their_order() {
    let image = json!({"type": "image_url", "image_url": format!("data:image/png;base64,{}", STANDARD.encode(file("rgb.png")))});
    let mut body = chat(&url(&["rgb.png", "grey.png"]), None);
    let text = |body: &Value| {
        let reply = ask(CHAT, body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["choices"][0]["message"]["content"].clone()
    };
    let parts = body["messages"][0]["content"].as_array_mut().unwrap();
    parts.insert(0, image.clone());
    let before = text(&body);
    let parts = body["messages"][0]["content"].as_array_mut().unwrap();
    parts.swap(0, 1);
    assert_ne!(text(&body), before);
}

#[test]
fn what_is_no_video_is_refused_by_name() {
    let refused = |url: &str, fps: Option<f64>, code: &str, words: &str| {
        let reply = ask(CHAT, &chat(url, fps));
        assert_eq!(refusal(&reply), (400, code.to_owned(), "messages[0].content[0]".to_owned()), "{url}");
        assert!(reply.body.contains(words), "{reply:?}");
    };
    let unsupported = "unsupported_parameter";
    refused("https://example.org/a.mp4", None, unsupported, "would have to be fetched and decoded");
    refused("data:video/mp4;base64,AAAA", None, unsupported, "another kind than frames");
    let invalid = "invalid_value";
    let png = STANDARD.encode(file("rgb.png"));
    refused("data:video/jpeg;base64,", None, invalid, "a video has 1 frames, but 2 are one patch");
    refused("data:video/jpeg;base64,@@,@@", None, invalid, "frame 1: the image is not base64");
    refused(&format!("data:video/jpeg;base64,{png},"), None, invalid, "frame 2: the image is empty");
    refused(
        &url(&["rgb.png", "wide.png"]),
        None,
        invalid,
        "frame 2 has 61 x 14 pixels, but the first one has",
    );
    refused(&format!("data:video/jpeg;base64,{}", ",".repeat(768)), None, invalid, "a video has 769 frames");
    let pair = url(&["rgb.png", "grey.png"]);
    for rate in [0.0, -2.0] {
        refused(&pair, Some(rate), invalid, "frames per second; a number above 0 is needed");
    }
    let mut body = chat(&pair, None);
    body["media_io_kwargs"] = json!({"video": {"num_frames": 4}});
    let reply = ask(CHAT, &body);
    assert!(reply.status == 400 && reply.body.contains("num_frames"), "{reply:?}");
    let mut body = chat(&pair, None);
    body["messages"][0]["role"] = json!("system");
    let reply = ask(CHAT, &body);
    assert!(reply.body.contains("is not of the user, whose messages alone have videos"), "{reply:?}");
    let mut body = chat(&pair, None);
    body["model"] = json!("stories260k");
    let reply = ask(CHAT, &body);
    assert_eq!(refusal(&reply), (400, unsupported.to_owned(), "messages[0].content[0]".to_owned()));
    let words = "messages[0].content[0] is a video: ";
    assert!(reply.body.contains(words) && reply.body.contains("reads no images"), "{reply:?}");
    let tokenized = json!({"model": "stories260k", "messages": body["messages"]});
    assert!(ask("/tokenize", &tokenized).body.contains(words));
}
