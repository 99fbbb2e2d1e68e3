//! Images in the requests of each API: the reply is the library's, and what is no image is refused by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use girih::{Conversation, DecodeLimits, Model, OpenOptions, Picture, Request, RunOptions, Session};
use girih_serve::{ImageFetcher, ServeOptions, Server};
use serde_json::{Value, json};

use crate::client::HttpReply;
use crate::model_server::{get, options, post, refusal, shared};

/// Writes messages whose content is a text or parts, as the templates of models that read images do.
const TEMPLATE: &str = "<s>{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}\
    {% for part in message.content %}{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}\
    {% endfor %}{% endif %}{% endfor %}";

/// The tokens of an image in the committed model, by id from 509 on.
const TOKENS: [&str; 3] = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"];

/// A folder of the committed model that reads images, with the tokenizer of the built-in one, whose last three tokens
/// become those of images.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(written_folder)
}

fn written_folder() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap().keep();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(crates.join("../tests/fixtures/gemma3_vision").join(file), folder.join(file)).unwrap();
    }
    let text = fs::read_to_string(crates.join("girih/assets/stories260k/tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocabulary.retain(|_, id| id.as_u64().unwrap() < 509);
    for (id, token) in (509..).zip(TOKENS) {
        vocabulary.insert(token.to_owned(), json!(id));
    }
    for (id, token) in (509..).zip(TOKENS) {
        let mut added = tokenizer["added_tokens"][0].clone();
        (added["id"], added["content"], added["special"]) = (json!(id), json!(token), json!(true));
        tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    }
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn open_options() -> OpenOptions {
    OpenOptions { chat_template: Some(TEMPLATE.to_owned()), ..OpenOptions::default() }
}

fn run_options() -> RunOptions {
    RunOptions { images: true, context: Some(256), sequences: 2, ..RunOptions::default() }
}

fn serve_options() -> ServeOptions {
    let mut options = options();
    let model = &mut options.models[0];
    model.name = "sees".to_owned();
    model.source = folder().to_str().unwrap().to_owned();
    (model.open_options, model.run_options) = (open_options(), run_options());
    options
}

/// A server that the tests of this file share.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(serve_options()).unwrap())
}

fn ask(path: &str, body: &Value) -> HttpReply {
    post(server().address(), path, body)
}

/// The bytes of a committed image.
fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images").join(name)).unwrap()
}

fn base64(name: &str) -> String {
    STANDARD.encode(file(name))
}

fn url(name: &str) -> String {
    format!("data:image/png;base64,{}", base64(name))
}

/// The body of a chat about these images.
fn chat(urls: &[String]) -> Value {
    let images =
        urls.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}}));
    let parts: Vec<Value> = images.chain([json!({"type": "text", "text": "Once upon a time"})]).collect();
    json!({"model": "sees", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": parts}]})
}

const CHAT: &str = "/v1/chat/completions";

/// The library's reply to [`chat`] and the number of tokens of its prompt.
fn expected(session: &Session, names: &[&str]) -> (String, u32) {
    let images = names.iter().map(|name| {
        let picture = Picture::decode(&file(name), &DecodeLimits::default()).unwrap();
        session.model().image_patches(&picture).unwrap()
    });
    let places = names.iter().map(|_| json!({"type": "image"}));
    let parts: Vec<Value> = places.chain([json!({"type": "text", "text": "Once upon a time"})]).collect();
    let mut conversation = Conversation::new();
    conversation.messages.push(json!({"role": "user", "content": parts}));
    let request = Request::new(conversation).images(images).sampling(girih::Sampling::greedy()).max_tokens(8);
    let reply = session.generate(request).unwrap();
    let tokens = reply.prompt_tokens();
    (reply.text().unwrap(), tokens)
}

#[test]
fn each_api_sends_the_images_to_the_model() {
    let model = Model::open_with(folder().to_str().unwrap(), &open_options()).unwrap();
    let session = model.plan(run_options()).unwrap().start(|_| {}).unwrap();
    let (text, tokens) = expected(&session, &["rgb.png", "grey.jpg"]);
    let (other, _) = expected(&session, &["grey.jpg", "rgb.png"]);
    assert_ne!(text, other, "the order of images matters");

    let reply = ask(CHAT, &chat(&[url("rgb.png"), url("grey.jpg")]));
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["choices"][0]["message"]["content"], text);
    assert_eq!(reply.json()["usage"]["prompt_tokens"], tokens);
    let swapped = ask(CHAT, &chat(&[url("grey.jpg"), url("rgb.png")]));
    assert_eq!(swapped.json()["choices"][0]["message"]["content"], other);

    let image = |name: &str| json!({"type": "input_image", "image_url": url(name), "detail": "auto"});
    let parts =
        json!([image("rgb.png"), image("grey.jpg"), {"type": "input_text", "text": "Once upon a time"}]);
    let input = json!([{"role": "user", "content": parts}]);
    let body =
        json!({"model": "sees", "input": input, "max_output_tokens": 8, "temperature": 0, "store": false});
    let reply = ask("/v1/responses", &body);
    assert_eq!(reply.json()["output"][0]["content"][0]["text"], text, "{reply:?}");

    let block = |name: &str| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": base64(name)});
        json!({"type": "image", "source": source})
    };
    let blocks = json!([block("rgb.png"), block("grey.jpg"), {"type": "text", "text": "Once upon a time"}]);
    let messages = json!([{"role": "user", "content": blocks}]);
    let body = json!({"model": "sees", "max_tokens": 8, "temperature": 0, "messages": messages});
    let reply = ask("/v1/messages", &body);
    assert_eq!(reply.json()["content"][0]["text"], text, "{reply:?}");
    let body = json!({"model": "sees", "messages": messages});
    assert_eq!(ask("/v1/messages/count_tokens", &body).json()["input_tokens"], tokens);

    let images = json!([base64("rgb.png"), base64("grey.jpg")]);
    let message = json!({"role": "user", "content": "Once upon a time", "images": images});
    let options = json!({"num_predict": 8, "temperature": 0});
    let body = json!({"model": "sees", "stream": false, "options": options, "messages": [message]});
    let reply = ask("/api/chat", &body);
    assert_eq!(reply.json()["message"]["content"], text, "{reply:?}");
    let body = json!({"model": "sees", "stream": false, "options": options, "prompt": "Once upon a time", "images": images});
    assert_eq!(ask("/api/generate", &body).json()["response"], text);
}

/// A network of the tests: the last part of a URL names a committed image.
#[derive(Debug, Default)]
struct Pictures {
    fetched: AtomicU32,
}

impl ImageFetcher for Pictures {
    fn fetch(&self, url: &str, max_bytes: u64, time: Duration) -> girih::Result<Vec<u8>> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        assert!(time > Duration::ZERO && max_bytes <= 32 << 20);
        match url.rsplit('/').next() {
            Some("a.svg") => Ok(b"<svg/>".to_vec()),
            Some("none.png") => {
                Err(girih::Error::with_kind(girih::ErrorKind::Refused, format!("{url} is not there")))
            }
            name => Ok(file(name.unwrap())),
        }
    }
}

/// A server that fetches images, and what it has fetched.
fn fetching() -> (Server, Arc<Pictures>) {
    let pictures = Arc::new(Pictures::default());
    let mut options = serve_options();
    let mut without = options.models[0].clone();
    (without.name, without.run_options.images) = ("without".to_owned(), false);
    options.models.extend(crate::model_server::options().models.into_iter().chain([without]));
    options.image_fetcher = Some(Arc::clone(&pictures) as Arc<dyn ImageFetcher>);
    (Server::start(options).unwrap(), pictures)
}

#[test]
fn urls_are_fetched_where_the_operator_allows_it() {
    let (server, pictures) = fetching();
    let ask = |path: &str, body: &Value| post(server.address(), path, body);
    let fetched = || pictures.fetched.load(Ordering::Relaxed);
    let text = |reply: &HttpReply| reply.json()["choices"][0]["message"]["content"].clone();
    let sent = ask(CHAT, &chat(&[url("rgb.png"), url("grey.jpg")]));
    let of = |name: &str| format!("https://pictures.example/{name}");
    let reply = ask(CHAT, &chat(&[of("rgb.png"), url("grey.jpg")]));
    assert_eq!((reply.status, text(&reply)), (200, text(&sent)), "{reply:?}");
    let reply = ask(CHAT, &chat(&[url("rgb.png"), of("grey.jpg")]));
    assert_eq!((text(&reply), fetched()), (text(&sent), 2));

    let block = |name: &str| json!({"type": "image", "source": {"type": "url", "url": of(name)}});
    let blocks = json!([block("rgb.png"), block("grey.jpg"), {"type": "text", "text": "Once upon a time"}]);
    let messages = json!([{"role": "user", "content": blocks}]);
    let body = json!({"model": "sees", "max_tokens": 8, "temperature": 0, "messages": messages});
    let reply = ask("/v1/messages", &body);
    assert_eq!((&reply.json()["content"][0]["text"], fetched()), (&text(&sent), 4), "{reply:?}");
    let counted = ask("/v1/messages/count_tokens", &json!({"model": "sees", "messages": messages}));
    assert_eq!((counted.status, fetched()), (400, 4), "{counted:?}");
    let image = |name: &str| json!({"type": "input_image", "image_url": of(name)});
    let parts =
        json!([image("rgb.png"), image("grey.jpg"), {"type": "input_text", "text": "Once upon a time"}]);
    let body = json!({"model": "sees", "input": [{"role": "user", "content": parts}],
        "max_output_tokens": 8, "temperature": 0, "store": false});
    let reply = ask("/v1/responses", &body);
    assert_eq!(reply.json()["output"][0]["content"][0]["text"], text(&sent), "{reply:?}");

    let first = |code: &str| (400, code.to_owned(), "messages[0].content[0]".to_owned());
    let missing = ask(CHAT, &chat(&[of("none.png")]));
    assert_eq!(refusal(&missing), first("invalid_value"));
    assert!(missing.body.contains("none.png is not there"), "{missing:?}");
    assert_eq!(refusal(&ask(CHAT, &chat(&[of("a.svg")]))), first("invalid_value"));
    let before = fetched();
    let many = refusal(&ask(CHAT, &chat(&vec![of("rgb.png"); 17])));
    assert_eq!(many, (400, "invalid_value".to_owned(), "messages[0].content[16]".to_owned()));
    for model in ["stories260k", "without"] {
        let mut blind = chat(&[of("rgb.png")]);
        blind["model"] = json!(model);
        assert_eq!(refusal(&ask(CHAT, &blind)), first("unsupported_parameter"), "{model}");
    }
    assert_eq!(fetched(), before, "what is refused is not fetched");
}

/// A BMP of three bytes a pixel, in which each pixel differs from the one before.
fn bmp(side: u32) -> Vec<u8> {
    let row = (side * 3).next_multiple_of(4);
    let mut bytes = b"BM".to_vec();
    for number in [54 + row * side, 0, 54, 40, side, side, 1 | 24 << 16, 0, row * side, 2835, 2835, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend((0..row * side).map(|at| (at * 7 / 3) as u8));
    bytes
}

/// A phone's picture is larger than what a text may be.
#[test]
fn a_picture_of_12_mb_passes_and_a_text_of_5_mb_does_not() {
    let picture = format!("data:image/bmp;base64,{}", STANDARD.encode(bmp(2000)));
    assert!(picture.len() > 16_000_000);
    let reply = ask(CHAT, &chat(&[picture]));
    assert_eq!(reply.status, 200, "{reply:?}");
    let mut wordy = chat(&[url("rgb.png")]);
    wordy["messages"][0]["content"][1]["text"] = json!("a ".repeat(2_500_000));
    let reply = ask(CHAT, &wordy);
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (413, Some("body_too_large")));
    assert!(reply.body.contains("bytes besides its images; the maximum is 4000000"), "{reply:?}");
    let hidden = json!({"model": "sees", "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "a ".repeat(2_500_000)}}]});
    assert_eq!(ask(CHAT, &hidden).status, 413);
    let large = json!({"model": "sees", "prompt": "a", "stop": ["a".repeat(5_000_000)]});
    assert_eq!(ask("/v1/completions", &large).status, 413, "a route without images");
}

/// The lists of models say which of them read images.
#[test]
fn models_that_read_images_say_so() {
    let modalities = |address, id: &str| {
        get(address, &format!("/v1/models/{id}")).json()["architecture"]["input_modalities"].clone()
    };
    assert_eq!(modalities(server().address(), "sees"), json!(["text", "image"]));
    assert_eq!(modalities(shared(), "stories260k"), json!(["text"]));
    let capabilities =
        |address, id: &str| post(address, "/api/show", &json!({"model": id})).json()["capabilities"].clone();
    let sees = capabilities(server().address(), "sees");
    assert!(sees.as_array().unwrap().contains(&json!("vision")), "{sees}");
    let blind = capabilities(shared(), "stories260k");
    assert!(!blind.as_array().unwrap().contains(&json!("vision")), "{blind}");
    let mut without = serve_options();
    without.models[0].run_options.images = false;
    let server = Server::start(without).unwrap();
    assert_eq!(modalities(server.address(), "sees"), json!(["text"]), "--no-images");
}

/// What a user writes stays text, whatever it spells.
#[test]
fn a_text_that_spells_an_image_is_a_text() {
    let text = |text: &str| json!({"model": "sees", "max_tokens": 1, "messages": [{"role": "user", "content": text}]});
    for spelled in ["<start_of_image>", "<image_soft_token>"] {
        let reply = ask(CHAT, &text(spelled));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

#[test]
fn an_image_that_is_read_otherwise_than_its_file_says_is_named() {
    let reply = ask(CHAT, &chat(&[url("rgb.png"), url("animated.gif")]));
    let note = "messages[0].content[1]: the image is animated; only its first frame is used";
    assert_eq!((reply.status, reply.header("x-girih-images")), (200, Some(note)), "{reply:?}");
    assert_eq!(ask(CHAT, &chat(&[url("rgb.png")])).header("x-girih-images"), None);
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let refused = |urls: &[String]| refusal(&ask(CHAT, &chat(urls)));
    let first = |code: &str| (400, code.to_owned(), "messages[0].content[0]".to_owned());
    let data = |bytes: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(bytes));
    assert_eq!(refused(&["https://example.org/a.png".to_owned()]), first("unsupported_parameter"));
    assert_eq!(refused(&["data:image/png,a".to_owned()]), first("invalid_value"));
    assert_eq!(refused(&["data:image/png;base64,@@".to_owned()]), first("invalid_value"));
    assert_eq!(refused(&[data(b"<svg/>")]), first("invalid_value"));
    assert_eq!(refused(&[data(&file("rgb.png")[..100])]), first("invalid_value"));
    let many = refused(&vec![url("1.bmp"); 17]);
    assert_eq!(many, (400, "invalid_value".to_owned(), "messages[0].content[16]".to_owned()));
    let mut of_system = chat(&[url("rgb.png")]);
    of_system["messages"][0]["role"] = json!("system");
    assert_eq!(refusal(&ask(CHAT, &of_system)), first("invalid_value"));
}

/// A model without a tower says so, in a sentence that names the parameter.
#[test]
fn a_model_without_a_tower_refuses_images() {
    let mut body = chat(&[url("rgb.png")]);
    body["model"] = json!("stories260k");
    let reply = post(shared(), CHAT, &body);
    let expected = (400, "unsupported_parameter".to_owned(), "messages[0].content[0]".to_owned());
    assert_eq!(refusal(&reply), expected);
    assert!(reply.body.contains("reads no images"), "{reply:?}");
}
