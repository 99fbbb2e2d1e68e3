//! Images of `run` and `chat`: a small model that reads them, and what is refused.

use serde_json::{Value, json};

use crate::program::{Folder, fixture, girih, name, read_json};

/// Writes messages whose content is a text or parts.
const TEMPLATE: &str = "<s>{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}\
    {% for part in message.content %}{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}\
    {% endfor %}{% endif %}{% endfor %}";

/// The committed model that reads images, with a tokenizer whose last three tokens are those of images.
pub fn seeing_model() -> Folder {
    let model = Folder::of(&fixture("gemma3_vision"), &["config.json", "model.safetensors"]);
    let mut tokenizer = read_json(&fixture("llama32_tied").join("tokenizer.json"));
    let tokens = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"];
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocabulary.retain(|_, id| id.as_u64() < Some(509));
    (509..).zip(tokens).for_each(|(id, token)| drop(vocabulary.insert(token.to_owned(), json!(id))));
    for (id, token) in (509..).zip(tokens) {
        let mut added = tokenizer["added_tokens"][0].clone();
        (added["id"], added["content"], added["special"]) = (json!(id), json!(token), json!(true));
        tokenizer["added_tokens"].as_array_mut().expect("a list").push(added);
    }
    model.write("tokenizer.json", &tokenizer.to_string());
    model.write("chat_template.jinja", TEMPLATE);
    model
}

/// The path of a committed image.
fn image(file: &str) -> String {
    name(&fixture("../images").join(file)).to_owned()
}

fn reply(model: &Folder, images: &[&str], more: &[&str]) -> Value {
    let paths: Vec<String> = images.iter().map(|file| image(file)).collect();
    let images: Vec<&str> = paths.iter().flat_map(|path| ["--image", path]).collect();
    girih(&["run", model.name(), "Hi", "-n", "4", "--temp", "0", "--json"])
        .with(&images)
        .with(more)
        .done()
        .json()
}

#[test]
fn run_answers_about_images() {
    let model = seeing_model();
    let one = reply(&model, &["rgb.png"], &[]);
    let two = reply(&model, &["rgb.png", "lossless.webp"], &[]);
    let none = reply(&model, &[], &[]);
    let count = |reply: &Value| reply["prompt_tokens"].as_u64().expect("a number");
    // Four rows, a token before and one behind them, and line ends. The line ends between two images may be one token.
    assert!(count(&two) - count(&one) >= 10, "{two}");
    assert!(count(&one) - count(&none) >= 10, "{one}");
    let same = reply(&model, &["lossless.webp"], &["--threads", "1", "--chunk", "8"]);
    assert_eq!(same["ids"], one["ids"], "the same pixels in another file, in other chunks");
    assert_eq!(one["images"]["tokens"], 4, "rows that the tower made");
    let twice = reply(&model, &["rgb.png", "rgb.png"], &[]);
    assert_eq!(twice["images"]["tokens"], 4, "the rows of the second one are kept");
}

/// Frames of a video in a folder.
fn frames(files: &[&str]) -> Folder {
    Folder::of(&fixture("../images"), files)
}

/// The committed Qwen3-VL with the tokenizer and the settings of prompts by transformers' processor, and these.
fn watching_model() -> (Folder, Value) {
    let model = Folder::of(&fixture("qwen3_vl"), &["config.json", "model.safetensors"]);
    let golden = read_json(&fixture("../images/prompts").join("qwen3_vl.json"));
    for (file, content) in golden["files"].as_object().expect("an object") {
        model.write(file, &content.to_string());
    }
    (model, golden)
}

#[test]
fn run_answers_about_a_video_of_frames() {
    let (model, golden) = watching_model();
    let run = |model: &Folder, frames: &Folder, more: &[&str]| {
        let call =
            ["run", model.name(), "What moves?", "-n", "4", "--json", "--frames", frames.name(), "--fps"];
        girih(&call).with(more)
    };
    let three = frames(&["grey.png", "palette.png", "rgb.png"]);
    let reply = run(&model, &three, &["2"]).done().json();
    assert_eq!(reply["images"]["tokens"], 30, "two pairs of 15 rows");
    // By the golden, which has the same sizes and another order of frames.
    assert_eq!(
        reply["prompt_tokens"].as_u64().map(|count| count as usize),
        golden["videos"][0]["tokens"].as_array().map(Vec::len)
    );
    run(&model, &frames(&["rgb.png", "wide.png"]), &["2"]).fails(2, "give frames of one size");
    run(&model, &frames(&["rgb.png"]), &["2"])
        .fails(2, "a video has 1 frames, but 2 are one patch; give 2 or more");
    run(&model, &frames(&[]), &["2"]).fails(2, "a video has 0 frames");
    for rate in ["0", "-1", "NaN", "inf"] {
        run(&model, &three, &[rate]).fails(2, "frames per second; a number above 0 is needed");
    }
    let text = frames(&["grey.png", "rgb.png"]);
    text.write("notes.txt", "no image");
    run(&model, &text, &["2"]).fails(2, "notes.txt: the image is of an unknown format");
    run(&seeing_model(), &three, &["2"]).fails(2, "girih reads no videos of this model");
    girih(&["run", model.name(), "Hi", "--frames", three.name()]).fails(2, "--fps");
}

/// Pan and scan.
#[test]
fn pictures_become_the_whole_and_crops() {
    let model = seeing_model();
    let rows = |reply: &Value| reply["images"]["tokens"].as_u64();
    assert_eq!(rows(&reply(&model, &["wide.png"], &[])), Some(4));
    let mut config = json!({"do_pan_and_scan": true, "pan_and_scan_min_crop_size": 9});
    model.write("preprocessor_config.json", &config.to_string());
    // 61 x 14 pixels have four crops.
    let crops = reply(&model, &["wide.png"], &[]);
    assert_eq!(rows(&crops), Some(20));
    let same = reply(&model, &["wide.png"], &["--threads", "1", "--chunk", "8"]);
    assert_eq!(same["ids"], crops["ids"], "in other chunks");
    config["pan_and_scan_max_num_crops"] = json!(2);
    model.write("preprocessor_config.json", &config.to_string());
    assert_eq!(rows(&reply(&model, &["wide.png"], &[])), Some(12));
    assert_eq!(rows(&reply(&model, &["orientation6.png"], &[])), Some(4), "too small for crops");
}

#[test]
fn profile_lists_the_operators_of_the_tower() {
    let model = seeing_model();
    let profiled = girih(&["profile", model.name(), "--image", "--no-limits", "--json"]).done().json();
    let image = &profiled["profile"]["image"];
    assert_eq!(image["tokens"], 4);
    let rows = image["rows"].as_array().expect("a list");
    for nodes in ["layers.*.mixer.heads", "projector"] {
        assert!(rows.iter().any(|row| row["nodes"] == nodes), "{nodes} is missing: {image}");
    }
    girih(&["profile", "stories260k", "--image", "--no-limits"]).fails(2, "reads no images");
}

/// The committed model that cuts pictures into tiles, with a tokenizer that has its tokens of images.
fn tiling_model() -> Folder {
    let model = Folder::of(&fixture("idefics3"), &["config.json", "model.safetensors"]);
    let mut tokenizer = read_json(&fixture("llama32_tied").join("tokenizer.json"));
    let tokens = ["<global-img>", "<fake_token_around_image>", "<image>"];
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocabulary.retain(|_, id| id.as_u64() < Some(509));
    (509..).zip(tokens).for_each(|(id, token)| drop(vocabulary.insert(token.to_owned(), json!(id))));
    for (id, token) in (509..).zip(tokens) {
        let mut added = tokenizer["added_tokens"][0].clone();
        (added["id"], added["content"], added["special"]) = (json!(id), json!(token), json!(true));
        tokenizer["added_tokens"].as_array_mut().expect("a list").push(added);
    }
    model.write("tokenizer.json", &tokenizer.to_string());
    model.write("chat_template.jinja", TILES_TEMPLATE);
    model
}

/// As that of SmolVLM, it knows only lists of parts.
const TILES_TEMPLATE: &str = "<s>{% for message in messages %}{{ message.role | capitalize }}\
    {{ ':' if message.content[0]['type'] == 'image' else ': ' }}{% for part in message.content %}\
    {% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}<image>{% endif %}{% endfor %}\
    {% endfor %}";

#[test]
fn pictures_become_tiles_and_the_whole() {
    let model = tiling_model();
    let count = |images: &[&str]| reply(&model, images, &[])["prompt_tokens"].as_u64().expect("a number");
    let (none, tiles) = (count(&[]), count(&["rgb.png"]));
    // 37 x 23 pixels become 120 x 75: three rows of four tiles, and the whole, with four rows each.
    assert!(tiles - none >= 13 * 4, "{tiles} and {none}");
    // The text is there: the template alone would drop it.
    let rendered =
        girih(&["chat", model.name(), "-n", "1", "--temp", "0", "--jsonl"]).stdin("Hi\n").done().json_lines();
    let longer = girih(&["chat", model.name(), "-n", "1", "--temp", "0", "--jsonl"])
        .stdin("Hi Hi Hi Hi\n")
        .done()
        .json_lines();
    assert!(
        longer[0]["prompt_tokens"].as_u64() > rendered[0]["prompt_tokens"].as_u64(),
        "{longer:?} {rendered:?}"
    );
    let settings = json!({"do_image_splitting": false, "size": {"longest_edge": 60}}).to_string();
    model.write("preprocessor_config.json", &settings);
    let whole = count(&["rgb.png"]);
    assert!((4..13 * 4).contains(&(whole - none)), "{whole} and {none}");
    model.write("preprocessor_config.json", &json!({"max_image_size": {"longest_edge": 60}}).to_string());
    let words = "preprocessor_config.json: the key 'max_image_size' is";
    girih(&["run", model.name(), "Hi", "--image", &image("rgb.png")]).fails(2, words);
}

#[test]
fn what_the_user_asks_for_is_not_left_out_silently() {
    let model = seeing_model();
    let raised =
        girih(&["run", model.name(), "Hi", "-n", "1", "--chunk", "2", "--image", &image("rgb.png")]).done();
    assert!(raised.stderr.contains("the chunk is raised from 2 to 4"), "{}", raised.stderr);
    // A tokenizer without the tokens of images.
    let tokenizer = read_json(&fixture("llama32_tied").join("tokenizer.json"));
    model.write("tokenizer.json", &tokenizer.to_string());
    let chat = ["chat", model.name(), "-n", "1", "--temp", "0"];
    let fell_back = girih(&chat).stdin("Hi\n").done();
    let words = "images are off: the tokenizer has no special token '<start_of_image>'";
    assert!(fell_back.stderr.contains(words), "{}", fell_back.stderr);
    let other = model.write("mmproj-other.gguf", "no GGUF");
    girih(&chat).with(&["--mmproj", name(&other)]).stdin("Hi\n").fails(1, "mmproj-other.gguf");
}

#[test]
fn chat_adds_images_to_the_next_message() {
    let model = seeing_model();
    let chat = girih(&["chat", model.name(), "-n", "4", "--temp", "0", "--jsonl"]);
    let line = format!("/image {}\nHi\nAgain\n", image("rgb.png"));
    let events = chat.stdin(&line).done().json_lines();
    let starts: Vec<&Value> = events.iter().filter(|event| event["event"] == "start").collect();
    let alone = reply(&model, &["rgb.png"], &[]);
    assert_eq!(starts[0]["prompt_tokens"], alone["prompt_tokens"]);
    assert!(starts[1]["prompt_tokens"].as_u64() > starts[0]["prompt_tokens"].as_u64(), "the image stays");
    girih(&["chat", model.name(), "--no-images"]).stdin(&line).fails(2, "without its image tower");
}

#[test]
fn chat_adds_videos_to_the_next_message() {
    let (model, golden) = watching_model();
    let three = frames(&["grey.png", "palette.png", "rgb.png"]);
    let chat = girih(&["chat", model.name(), "-n", "1", "--temp", "0", "--jsonl"]);
    let folder = three.name();
    let lines = format!(
        "/frames {folder}\nWhat moves?\n/clear\n/frames {folder} 20\nWhat moves?\n/frames {folder} 0\n/bye\n"
    );
    let ended = chat.stdin(&lines).end();
    let events: Vec<Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let starts: Vec<&Value> = events.iter().filter(|event| event["event"] == "start").collect();
    let count = golden["videos"][0]["tokens"].as_array().map(Vec::len);
    for start in &starts {
        let found = start["prompt_tokens"].as_u64().map(|count| count as usize);
        assert_eq!((found, starts.len()), (count, 2), "{events:?}");
    }
    assert!(ended.stderr.contains("a video has 0 frames per second"), "{}", ended.stderr);
    assert!(ended.stderr.contains("the next message has 1 video"), "{}", ended.stderr);
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let model = seeing_model();
    let fails = |model: &str, path: &str, words: &str| {
        girih(&["run", model, "Hi", "--image", path]).fails(2, words);
    };
    let text = model.write("a.png", "no image");
    fails(
        model.name(),
        name(&text),
        "a.png: the image is of an unknown format; girih reads PNG, JPEG, WebP, GIF",
    );
    fails(model.name(), "missing.png", "missing.png: cannot be read");
    fails("stories260k", &image("rgb.png"), "reads no images");
    model.write("preprocessor_config.json", &json!({"do_center_crop": true}).to_string());
    fails(model.name(), &image("rgb.png"), "preprocessor_config.json: the key 'do_center_crop' is true");
}
