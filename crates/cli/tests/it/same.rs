//! Settings that must not change a result: threads, prefill chunks, and earlier
//! turns in the KV cache.

use serde_json::{Value, json};

use crate::program::{Ended, Folder, fixture, girih, name};
use crate::running_server::RunningServer;

/// More than a hundred tokens of a story, enough to divide among chunks and
/// threads.
const PROMPT: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. \
     One day, she saw a big, red ball. She wanted to play with it, but it was too high. Lily's mom said, \"Lily, \
     let's go to the park.\" Lily was sad and did not know what to do. She said, \"I will be your friend.\"";

/// A fixture with the tokenizer that all of them share.
fn model(folder: &str) -> Folder {
    let model = Folder::of(&fixture(folder), &["config.json", "model.safetensors"]);
    ["tokenizer.json", "tokenizer_config.json"]
        .iter()
        .for_each(|file| model.copy(&fixture("llama32_tied").join(file), file));
    model
}

/// Runs the prompt with several numbers of threads and chunk sizes; all print the same.
fn prints_the_same(model: &str, sampling: &[&str]) {
    let text = |threads: &str, chunk: &str| {
        let call = girih(&["run", model, PROMPT, "-n", "64", "--context", "256", "-v"]).with(sampling);
        call.with(&["--threads", threads, "--chunk", chunk]).done()
    };
    let first = text("1", "256");
    assert!(first.stdout.len() > 64, "{}", first.stdout);
    assert!(first.stderr.contains("prompt: 1"), "over a hundred tokens: {}", first.stderr);
    for threads in ["1", "2", "3"] {
        for chunk in ["1", "7", "64", "256"] {
            assert_eq!(text(threads, chunk).stdout, first.stdout, "{threads} threads, chunks of {chunk}");
        }
    }
}

#[test]
fn greedy_text_depends_on_no_setting() {
    prints_the_same("stories260k", &["--temp", "0"]);
}

#[test]
fn sampled_text_depends_on_no_setting_but_the_seed() {
    prints_the_same("stories260k", &["--temp", "0.9", "--top-k", "40", "--top-p", "0.95", "--seed", "7"]);
}

/// Gemma's windows of 16 positions are shorter than most chunks.
#[test]
fn sliding_windows_depend_on_no_setting() {
    prints_the_same(model("gemma3_text").name(), &["--temp", "0"]);
}

/// Likelihoods show differences that do not change the chosen tokens.
#[test]
fn likelihoods_have_the_same_bits() {
    let folder = Folder::new();
    let file = folder.write("text", PROMPT);
    let measured = |threads: &str, chunk: &str| {
        let call = girih(&["perplexity", "stories260k", name(&file), "--json", "--quiet"]);
        call.with(&["--threads", threads, "--chunk", chunk]).done().stdout
    };
    let first = measured("1", "256");
    for (threads, chunk) in [("2", "256"), ("3", "1"), ("1", "7"), ("2", "64")] {
        assert_eq!(measured(threads, chunk), first, "{threads} threads, chunks of {chunk}");
    }
}

/// A quantized model's activations are rounded to int8, in every kernel in the
/// same way.
#[test]
fn likelihoods_of_a_quantized_model_are_the_same_to_the_last_bit() {
    let (folder, plain) = (Folder::new(), model("llama32_tied"));
    let file = folder.write("text", PROMPT);
    for format in ["q8_0", "q4_0"] {
        let copy = folder.file(&format!("{format}.gguf"));
        girih(&["quantize", plain.name(), name(&copy), "--type", format, "--quiet"]).done();
        for table in girih_cpu::kernels::tables() {
            let measured = |threads: &str, chunk: &str| {
                let call = girih(&["perplexity", name(&copy), name(&file), "--json", "--quiet"]);
                call.with(&["--isa", table.name, "--threads", threads, "--chunk", chunk]).done().stdout
            };
            let first = measured("1", "256");
            for (threads, chunk) in [("2", "16"), ("3", "1"), ("1", "3"), ("2", "512")] {
                let what = format!("{format}, {}: {threads} threads, chunks of {chunk}", table.name);
                assert_eq!(measured(threads, chunk), first, "{what}");
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let text =
        |seed: &str| girih(&["run", "--temp", "1", "-n", "40", "--quiet", "--seed", seed]).done().stdout;
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

/// The Python package's tests compare it with the program and the server in the same way.
#[test]
fn a_seed_gives_the_same_text_in_the_program_the_library_and_the_server() {
    let prompt = "Once upon a time";
    let call = girih(&["run", "stories260k", prompt, "--temp", "1", "--seed", "7", "-n", "40", "--json"]);
    let told = call.done().json()["text"].as_str().expect("a text").to_owned();

    let session =
        ::girih::Model::open("stories260k").and_then(|model| model.start()).expect("it is built in");
    let sampling = ::girih::Sampling { temperature: 1.0, seed: 7, ..::girih::Sampling::default() };
    let request = ::girih::Request::new(prompt).max_tokens(40).sampling(sampling);
    let reply = session.generate(request).expect("it is valid");
    assert_eq!(reply.text().expect("a reply"), told);

    let server = RunningServer::start(&Folder::new(), &["stories260k"]);
    let body = json!({"prompt": prompt, "temperature": 1, "seed": 7, "max_tokens": 40});
    assert_eq!(server.post("/v1/completions", &body)["choices"][0]["text"], *told);
    assert_eq!(server.end(), Some(0));
}

/// A template whose text is in the vocabulary of the small tokenizer.
const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
     {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// A model with a chat template.
fn chat_model() -> Folder {
    let folder = model("llama32_tied");
    folder.write("chat_template.jinja", TEMPLATE);
    folder
}

fn message(role: &str, content: impl Into<Value>) -> Value {
    json!({"role": role, "content": content.into()})
}

/// The last event of each turn of a chat.
fn ends(chat: &Ended) -> Vec<Value> {
    let events = chat.json_lines();
    events.into_iter().filter(|event| event["event"] == "end").collect()
}

/// Each turn must give the reply of a new process without a cache.
#[test]
fn turns_of_a_chat_equal_fresh_runs() {
    let model = chat_model();
    let questions = ["Hello there.", "What did Tom see?", "Why?"];
    let settings = ["--temp", "0", "-n", "12", "--quiet"];
    let chat = girih(&["chat", model.name(), "--jsonl"]).with(&settings).stdin(questions.join("\n")).done();
    let replies = ends(&chat);
    assert_eq!(replies.len(), questions.len(), "{}", chat.stdout);

    let mut messages = Vec::new();
    for (turn, (question, reply)) in questions.iter().zip(&replies).enumerate() {
        messages.push(message("user", *question));
        let request = json!({"messages": messages});
        let render = girih(&["render", model.name(), "--jsonl", "-"]).stdin(request.to_string());
        let prompt = render.done().json()["text"].as_str().expect("a text").to_owned();
        // `run` adds the first token itself.
        let prompt = prompt.strip_prefix("<s>").expect("the template begins with it");
        let fresh = girih(&["run", model.name(), prompt, "--raw", "--json"]).with(&settings).done().json();
        assert_eq!(reply["ids"], fresh["ids"], "turn {turn}");
        assert_eq!(reply["text"], fresh["text"], "turn {turn}");
        assert_eq!(fresh["cached_tokens"], 0, "a new process has an empty cache");
        let cached = reply["cached_tokens"].as_u64().expect("a count");
        assert_eq!(cached > 0, turn > 0, "turn {turn}: {cached} tokens are from the cache");
        let read = cached + reply["prefill"]["tokens"].as_u64().expect("a count");
        assert_eq!(reply["prompt_tokens"], read, "turn {turn}");
        messages.push(message("assistant", reply["text"].clone()));
    }
}

#[test]
fn a_chat_can_undo_a_turn_and_start_a_new_conversation() {
    let model = chat_model();
    let lines = "Hello there.\nWhy?\n/undo\nWhy?\n/clear\nHello there.\n/stats\n/quit\nnever read\n";
    let call = girih(&["chat", model.name(), "--temp", "0", "-n", "8", "--quiet", "--jsonl"]);
    let chat = call.stdin(lines).done();
    let replies = ends(&chat);
    assert_eq!(replies.len(), 4, "{}", chat.stdout);
    assert_eq!(replies[1]["ids"], replies[2]["ids"], "the question was undone and asked again");
    assert_eq!(replies[0]["ids"], replies[3]["ids"], "the conversation was cleared");
    assert_ne!(replies[0]["ids"], replies[1]["ids"]);
    assert!(chat.stderr.contains("prefill"), "/stats shows the counts and times: {}", chat.stderr);
}

#[test]
fn a_chat_from_a_pipe_ends_with_its_first_error() {
    let model = chat_model();
    let long = "a ".repeat(3000);
    girih(&["chat", model.name(), "--context", "256"])
        .stdin(format!("{long}\nHi\n"))
        .fails(2, "/clear starts a new conversation");
    girih(&["chat", model.name()])
        .stdin(vec![b'a'; (64 << 20) + 1])
        .fails(2, "standard input line 1: is longer than 67108864 bytes");
    girih(&["chat", model.name()]).stdin("/dance\n").fails(2, "unknown command '/dance'");
    girih(&["chat", model.name()]).stdin("\"\"\"\nHi\n").fails(2, "has no end");
}
