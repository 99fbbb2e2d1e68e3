//! `girih tokenize` and `girih render`, compared with other programs on the same
//! texts and conversations.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::program::{Folder, data, fixture, girih, name, read};

/// The lines of a file of JSON lines.
fn lines(path: &Path) -> Vec<Value> {
    let value = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    read(path).lines().map(value).collect()
}

/// Sends requests, one per line, and returns the answers.
fn answers(command: &str, model: &str, requests: &[Value]) -> Vec<Value> {
    let folder = Folder::new();
    let text: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let file = folder.write("requests", &text);
    let ended = girih(&[command, model, "--jsonl", name(&file)]).end();
    let answers = ended.json_lines();
    let failed = answers.iter().filter(|answer| answer["error"].is_string()).count();
    assert_eq!(ended.code, i32::from(failed > 0), "{}", ended.stderr);
    answers
}

#[test]
fn ids_equal_those_of_the_vendors_library() {
    let Some(data) = data() else { return };
    for model in ["llama3_2", "gemma3"] {
        let golden = lines(&data.join("tokenizer-golden").join(format!("{model}.jsonl")));
        assert_eq!(golden.len(), 1138, "{model}");
        let folder = data.join("tokenizers").join(model);
        for (special, key) in [(false, "ids"), (true, "ids_special")] {
            let request = |case: &Value| json!({"text": case["text"], "special": special});
            let requests: Vec<Value> = golden.iter().map(request).collect();
            let found = answers("tokenize", name(&folder), &requests);
            assert_eq!(found.len(), golden.len());
            for (found, case) in found.iter().zip(&golden) {
                assert_eq!(found["ids"], case[key], "{model}: {}", case["text"]);
            }
        }
    }
}

#[test]
fn ids_of_gguf_vocabularies_equal_those_of_llama_cpp() {
    let Some(data) = data() else { return };
    for vocabulary in ["llama-spm", "phi-3", "gpt-2", "llama-bpe", "qwen2"] {
        let file = data.join("vocab").join(format!("ggml-vocab-{vocabulary}.gguf"));
        let (texts, ids) = (read(&file.with_extension("gguf.inp")), read(&file.with_extension("gguf.out")));
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let requests: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
        let found = answers("tokenize", name(&file), &requests);
        let mut count = 0;
        for ((found, line), text) in found.iter().zip(ids.lines()).zip(&texts) {
            let known: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
            assert_eq!(found["ids"], json!(known), "{vocabulary}: {text:?}");
            count += 1;
        }
        assert!(count > 40, "{vocabulary}: {count} texts");
    }
}

#[test]
fn tokens_are_shown_in_three_ways() {
    let tokenize = |more: &[&str]| girih(&["tokenize", "stories260k", "Once upon a"]).with(more).done();
    assert_eq!(tokenize(&[]).stdout, "403 407 261\n");
    assert_eq!(tokenize(&["--json"]).json(), json!({"ids": [403, 407, 261]}));
    let explained = tokenize(&["--json", "--explain"]).json();
    assert_eq!(explained["tokens"].as_array().map(Vec::len), Some(3));
    let shown = tokenize(&["--explain", "--special"]).stdout;
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert!(shown.lines().next().is_some_and(|line| line.contains("\"<s>\"  special")), "{shown}");
    for arguments in [&["tokenize", "stories260k"][..], &["tokenize", "stories260k", "-"]] {
        assert_eq!(girih(arguments).stdin("Once upon a\n").done().stdout, "403 407 261\n");
    }
    assert_eq!(girih(&["tokenize", "stories260k", ""]).done().stdout, "\n");
}

/// A special token that the user spells stays text by default.
#[test]
fn special_tokens_in_a_text_are_parsed_only_if_allowed() {
    let ids = |more: &[&str]| girih(&["tokenize", "stories260k", "</s>", "--json"]).with(more).done().json();
    let plain = ids(&[]);
    assert!(plain["ids"].as_array().is_some_and(|ids| ids.len() > 1 && !ids.contains(&json!(2))), "{plain}");
    assert_eq!(ids(&["--special"]), json!({"ids": [1, 2]}));
    let requests = [json!({"text": "</s>"}), json!({"text": "</s>", "plain": true})];
    let found = answers("tokenize", "stories260k", &requests);
    assert_eq!(found, [json!({"ids": [2]}), plain]);
}

#[test]
fn a_malformed_line_is_answered_with_its_error() {
    let requests =
        ["{\"text\": \"Once\"}", "", "{\"txt\": \"Once\"}", "Once", "{\"text\": \"upon\"}"].join("\n");
    let call = || girih(&["tokenize", "stories260k", "--jsonl", "-"]);
    let found = call().stdin(&requests).fails(1, "2 of 4 lines failed").json_lines();
    let is_error: Vec<bool> = found.iter().map(|answer| answer["error"].is_string()).collect();
    assert_eq!(is_error, [false, true, true, false], "{found:?}");
    let bytes = [&b"{\"text\": \"\xff\"}\n"[..], b"{\"text\": \"upon\"}"].concat();
    let found = call().stdin(bytes).fails(1, "1 of 2 lines failed").json_lines();
    assert!(found[0]["error"].as_str().is_some_and(|error| error.contains("not valid UTF-8")), "{found:?}");
    assert!(found[1]["ids"].is_array(), "{found:?}");
    girih(&["tokenize", "stories260k"]).stdin(b"a\xffb").fails(2, "standard input: is not valid UTF-8");
    girih(&["tokenize", "stories260k", "--jsonl", "/nowhere"]).fails(2, "/nowhere: cannot be read");
    // A device reports 0 bytes and is endless.
    girih(&["tokenize", "stories260k", "--jsonl", "/dev/zero"])
        .fails(2, "/dev/zero line 1: is longer than 67108864 bytes");
    girih(&["tokenize", "stories260k", "Once", "--jsonl", "-"]).fails(2, "cannot be used with");
}

/// A folder with a template and a small tokenizer.
fn template_folder(template: &str) -> Folder {
    let folder = Folder::of(&fixture("llama32_tied"), &["tokenizer.json", "tokenizer_config.json"]);
    folder.write("chat_template.jinja", template);
    folder
}

/// A case of the golden files as a request.
fn request(case: &Value) -> Value {
    let mut request = case["kwargs"].as_object().cloned().unwrap_or_else(Map::new);
    for key in ["messages", "tools", "add_generation_prompt"] {
        request.insert(key.to_owned(), case[key].clone());
    }
    Value::Object(request)
}

#[test]
fn renderings_equal_those_of_transformers() {
    let Some(data) = data() else { return };
    for model in ["llama3_2", "gemma3"] {
        let folder = data.join("chat-golden");
        let model_folder = template_folder(&read(&folder.join(format!("{model}.jinja"))));
        let golden = lines(&folder.join(format!("{model}.jsonl")));
        let requests: Vec<Value> = golden.iter().map(request).collect();
        let found = answers("render", model_folder.name(), &requests);
        assert_eq!(found.len(), golden.len());
        assert_eq!(found.len(), 30, "{model}");
        for (found, case) in found.iter().zip(&golden) {
            let want = match case["error"].as_str().map(|error| error.trim_start_matches("TemplateError: ")) {
                Some(error) => {
                    json!({"error": format!("the chat template refuses the conversation: {error}")})
                }
                None => json!({"text": case["rendered"]}),
            };
            assert_eq!(*found, want, "{model}: {}", case["scenario"]);
        }
    }
}

#[test]
fn a_rendering_has_the_origin_of_each_span() {
    let folder = template_folder(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    );
    let render = |more: &[&str]| girih(&["render", folder.name(), "a </s> b"]).with(more).done();
    assert_eq!(render(&[]).stdout, "<s>[user]a </s> b>");
    assert_eq!(render(&["--no-generation-prompt"]).stdout, "<s>[user]a </s> b");
    assert_eq!(render(&["--system", "Be"]).stdout, "<s>[system]Be[user]a </s> b>");
    let spans = render(&["--json"]).json();
    let origins: Vec<(&str, &str)> = spans["spans"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|span| (span["text"].as_str().expect("a text"), span["origin"].as_str().expect("a word")))
        .collect();
    let users = origins.iter().filter(|(_, origin)| *origin == "user").map(|(text, _)| *text);
    assert!(users.collect::<String>().contains("</s>"), "{origins:?}");
    let templates = origins.iter().filter(|(_, origin)| *origin == "template").map(|(text, _)| *text);
    let templates: String = templates.collect();
    assert!(templates.contains("<s>") && !templates.contains("</s>"), "{origins:?}");
}

#[test]
fn a_conversation_without_a_usable_template_is_refused() {
    girih(&["render", "stories260k", "Hi"]).fails(2, "no chat template");
    girih(&["render", "stories260k"]).fails(2, "no text was given");
    let endless =
        template_folder("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    girih(&["render", endless.name(), "Hi"]).fails(1, "ran longer than");
}

#[test]
fn another_chat_template_takes_the_place_of_the_models_own() {
    let folder = Folder::new();
    let template = folder.write("twice.jinja", "<s>{{ messages[0].content ~ messages[0].content }}");
    let run = |more: &[&str]| girih(&["run", "stories260k", "-n", "4", "--json"]).with(more).done().json();
    let given = run(&["Lily was", "--chat-template", name(&template)]);
    let plain = run(&["Lily wasLily was"]);
    assert_eq!(given["ids"], plain["ids"]);
    assert_ne!(given["ids"], run(&["Lily was"])["ids"]);
    let raw = ["run", "stories260k", "Hi", "--raw", "--chat-template", name(&template)];
    girih(&raw).fails(2, "--chat-template needs a chat template, and --raw uses none");
    let broken = folder.write("broken.jinja", "{% if %}");
    for command in ["chat", "serve"] {
        girih(&[command, "stories260k", "--chat-template", name(&broken)]).fails(1, "chat template");
    }
}
