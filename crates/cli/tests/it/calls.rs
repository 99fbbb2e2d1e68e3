//! The command line itself: help, wrong calls, sources of settings.

use serde_json::Value;

use crate::program::{Folder, fixture, girih, name};

/// Every command, as `--help` lists them.
fn commands() -> Vec<String> {
    let help = girih(&["--help"]).done().stdout;
    let indented = help.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = indented.filter_map(|line| line.split_whitespace().next());
    names.take_while(|name| !name.starts_with('-')).map(str::to_owned).collect()
}

#[test]
fn every_command_explains_itself() {
    let commands = commands();
    for command in
        ["run", "chat", "tokenize", "render", "inspect", "verify", "diagnose", "perplexity", "pull"]
    {
        assert!(commands.iter().any(|name| name == command), "{command} is not in {commands:?}");
    }
    for command in &commands {
        for flag in ["--help", "-h"] {
            let help = girih(&[command, flag]).done().stdout;
            assert!(help.contains(&format!("Usage: girih {command}")), "{help}");
        }
    }
    let version = girih(&["--version"]).done().stdout;
    assert_eq!(version, format!("girih {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_calls_end_with_2() {
    let none: [&str; 0] = [];
    girih(&none).fails(2, "Usage:");
    girih(&["walk"]).fails(2, "unknown command 'walk'");
    for command in &commands() {
        girih(&[command, "--no-such-flag"]).fails(2, "--no-such-flag");
    }
    girih(&["run", "--threads", "0"]).fails(2, "--threads");
    girih(&["run", "--kv", "q4_1"]).fails(2, "f32, f16, bf16, q8_0, q4_0");
    girih(&["run", "--backend", "abacus"]).fails(2, "cpu, interpreter");
    if cfg!(not(feature = "gpu")) {
        girih(&["run", "--backend", "gpu"]).fails(2, "this build of girih has no backend 'gpu'");
    }
    girih(&["run", "--logit-bias", "5"]).fails(2, "'5' is not ID=X");
    girih(&["run", "--seed", "soon"]).fails(2, "--seed");
    girih(&["run", "stories260k"]).fails(2, "no prompt");
    girih(&["run", "--context", "513"]).fails(2, "the model supports 512 tokens");
    girih(&["pull", "one-word"]).fails(2, "is not a model id");
    girih(&["rm", "a/b/c"]).fails(2, "is not a model id");
    girih(&["inspect", "stories260k", "--arch", "/nowhere.toml"]).fails(2, "/nowhere.toml: cannot be read");
}

#[test]
fn the_kv_cache_is_f16_unless_a_command_measures_accuracy() {
    let golden = fixture("stories260k/golden.safetensors");
    let golden = ["--golden", name(&golden)];
    let wide: [(&str, &[&str]); 4] = [
        ("verify", &golden),
        ("diagnose", &golden),
        ("diagnose", &["--reference", "interpreter", "--tokens", "4"]),
        ("perplexity", &[]),
    ];
    for (command, more) in wide {
        let call = || girih(&[command, "stories260k", "-q", "--json"]).with(more).stdin("Once upon a time");
        assert_eq!(call().done().json()["kv"], "f32", "{command}");
        assert_eq!(call().with(&["--kv", "f16"]).done().json()["kv"], "f16", "{command}");
    }
    let run = || girih(&["run", "stories260k", "Once", "-n", "1", "-q", "--json"]);
    let planned = |ended: &Value| ended["memory"]["state"].as_u64().unwrap();
    let (narrow, wide) = (run().done().json(), run().with(&["--kv", "f32"]).done().json());
    assert_eq!((&narrow["kv"], &wide["kv"]), (&"f16".into(), &"f32".into()));
    // f16 has some bytes more, for values beyond its range.
    let saved = 2 * planned(&narrow) - planned(&wide);
    assert!(saved < planned(&narrow) / 100, "{narrow} {wide}");
    let bench = ["bench", "stories260k", "-p", "4", "-n", "1", "-r", "1", "-q", "--json"];
    assert_eq!(girih(&bench).done().json()["rows"][0]["type_k"], "f16");
    let shown = girih(&["inspect", "stories260k"]).done().stdout;
    assert!(shown.contains("(f16) + scratch "), "{shown}");
    for (command, default) in [("run", "f16"), ("serve", "f16"), ("bench", "f16"), ("verify", "f32")] {
        let help = girih(&[command, "--help"]).done().stdout;
        assert!(help.contains(&format!("Type of the KV cache [default: {default}]")), "{command}: {help}");
    }
}

#[test]
fn an_allowed_key_is_ignored_by_every_command_and_listed() {
    let copy = Folder::of(&fixture("llama32_tied"), &["model.safetensors", "tokenizer.json"]);
    let config = crate::program::read(&fixture("llama32_tied/config.json"));
    copy.write("config.json", &config.replacen('{', "{\"logit_scale\": 0.5, \"clip_qkv\": 8,", 1));
    let words =
        "config.json sets 'clip_qkv' to 8, 'logit_scale' to 0.5, which architecture llama does not read";
    girih(&["inspect", copy.name()]).fails(2, words);
    let allow = ["--allow-key", "logit_scale", "--allow-key", "clip_qkv"];
    let shown = girih(&["inspect", copy.name()]).with(&allow).done().stdout;
    assert!(shown.contains("ignored key: 'clip_qkv'\nignored key: 'logit_scale'\n"), "{shown}");
    let listed = girih(&["inspect", copy.name(), "--json"]).with(&allow).done().json();
    assert_eq!(listed["ignored_keys"], serde_json::json!(["clip_qkv", "logit_scale"]));
    girih(&["run", copy.name(), "a", "-n", "1"]).with(&allow).done();
    girih(&["run", "stories260k", "a", "--allow-key", "logit_scale"]).fails(2, "config.json has no such key");
}

/// The number of tokens that a call generated.
fn generated(call: crate::program::Call) -> usize {
    let line = call.done().json();
    line["ids"].as_array().expect("a list").len() - line["prompt_tokens"].as_u64().expect("a count") as usize
}

#[test]
fn a_flag_overrides_a_variable_overrides_the_file_overrides_the_default() {
    let folder = Folder::new();
    let file = folder.write("girih.toml", "max-tokens = 7\ntemp = 0\nquiet = true\njson = true\n");
    let call = || girih(&["run"]).env("GIRIH_CONFIG", &file);
    let ended = call().done();
    assert_eq!(ended.stderr, "", "the file sets quiet");
    assert_eq!(generated(call()), 7);
    assert_eq!(generated(call().env("GIRIH_MAX_TOKENS", "5")), 5);
    assert_eq!(generated(call().env("GIRIH_MAX_TOKENS", "5").with(&["--max-tokens", "3"])), 3);
    assert_eq!(generated(girih(&["run", "--json"]).env("GIRIH_MAX_TOKENS", "5")), 5);
    assert!(generated(girih(&["run", "--json"])) > 256, "it may fill the context");
}

#[test]
fn the_configuration_file_is_found_at_its_default_path() {
    let text = "max-tokens = 4\n";
    assert_eq!(generated(girih(&["run", "--json"]).home_file(".config/girih/config.toml", text)), 4);
    let folder = Folder::new();
    std::fs::create_dir(folder.file("girih")).expect("the folder is new");
    folder.write("girih/config.toml", "max-tokens = 6\n");
    let call = || girih(&["run", "--json"]).home_file(".config/girih/config.toml", text);
    assert_eq!(generated(call().env("XDG_CONFIG_HOME", folder.path())), 6);
    // The specification has a relative path ignored.
    assert_eq!(generated(call().env("XDG_CONFIG_HOME", "elsewhere")), 4);
}

#[test]
fn a_wrong_setting_is_refused_with_its_name() {
    let folder = Folder::new();
    let config = |text: &str| girih(&["run"]).env("GIRIH_CONFIG", folder.write("girih.toml", text));
    config("help = true\n").fails(2, "'help': --help can be set on the command line only");
    config("max-tokens = [7]\n").fails(2, "'max-tokens' is a list or a table");
    config("max-tokens\n").fails(2, "is not valid TOML");
    config("max-tokens = \"many\"\n").fails(2, "many");
    config(&format!("# {}\n", "a".repeat(1 << 20))).fails(2, "girih.toml: is longer than 1048576 bytes");
    girih(&["run"]).env("GIRIH_CONFIG", "/nowhere.toml").fails(2, "/nowhere.toml: cannot be read");
    girih(&["run"]).env("GIRIH_MAX_TOKENS", "many").fails(2, "many");
}

/// A key sets its flag in every command that has it, even a required one.
#[test]
fn the_file_can_set_a_required_flag() {
    let folder = Folder::new();
    let golden = fixture("llama32_tied/golden.safetensors");
    let file = folder.write("girih.toml", &format!("golden = {:?}\n", name(&golden)));
    girih(&["verify", name(&fixture("llama32_tied"))]).env("GIRIH_CONFIG", &file).done();
    girih(&["doctor", "--json"]).env("GIRIH_CONFIG", &file).done();
}

#[test]
fn a_prompt_is_an_argument_or_standard_input() {
    let story = |call: crate::program::Call| call.with(&["-n", "8", "--quiet"]).done().stdout;
    let argument = story(girih(&["run", "stories260k", "Tom saw a"]));
    assert!(!argument.contains("Tom saw a"), "{argument}");
    for stdin in ["Tom saw a", "Tom saw a\n"] {
        assert_eq!(story(girih(&["run", "stories260k", "-"]).stdin(stdin)), argument);
        assert_eq!(story(girih(&["run", "stories260k"]).stdin(stdin)), argument);
    }
    let empty = girih(&["run", "stories260k", "", "-n", "8", "--json"]).done().json();
    assert_eq!(empty["prompt_tokens"], 1, "an empty prompt is the beginning-of-text token");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_the_arithmetic() {
    let prompt = "once upon a time ".repeat(200);
    let ended = girih(&["run", "stories260k", "-"]).stdin(&prompt).fails(2, "the context is 512");
    assert!(ended.stderr.contains("the prompt has") && ended.stderr.contains("by "), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "a failed call prints no result");
    // The context is named as a way out only where it can be larger.
    assert!(!ended.stderr.contains("enlarge"), "{}", ended.stderr);
    girih(&["run", "stories260k", "-", "-c", "100"])
        .stdin(&prompt)
        .fails(2, "in all, or enlarge the context (the model supports 512)");
    // The default number of tokens is reduced to fit.
    let prompt = "once upon a time ".repeat(75);
    let line = girih(&["run", "stories260k", "-", "--json"]).stdin(&prompt).done().json();
    assert_eq!(line["ids"].as_array().map(Vec::len), Some(512));
    girih(&["run", "-n", "500"]).fails(2, "500 more were requested; the context is 512");
}

/// `--affinity` changes no result.
#[test]
fn threads_are_pinned_for_the_cpu_backend_only() {
    let story = girih(&["run", "-q", "-n", "8"]).done().stdout;
    for policy in ["auto", "compact", "scatter", "none"] {
        let pinned = girih(&["run", "-q", "-n", "8", "--affinity", policy]);
        assert_eq!(pinned.done().stdout, story, "{policy}");
    }
    girih(&["run", "--affinity", "here"]).fails(2, "auto, compact, scatter, none");
    girih(&["run", "--backend", "interpreter", "--affinity", "none"]).fails(2, "only to the cpu backend");
}

/// The bug was that a variable or key for one command or backend stopped calls
/// of the others.
#[test]
fn a_setting_for_another_backend_stops_no_call() {
    let folder = Folder::new();
    let file = folder.write("girih.toml", "isa = \"portable\"\nblobs-limit = 1\nnpu-lengths = 8\n");
    let settings = [
        ("GIRIH_BLOBS", "off"),
        ("GIRIH_NPU_RUNTIME", "values=brokered"),
        ("GIRIH_ACT_PRECISION", "f32"),
        ("GIRIH_PACKED_CACHE", "off"),
    ];
    let set = |backend: &str| {
        let call = girih(&["run", "-q", "-n", "2", "--context", "32", "--kv", "bf16", "--backend", backend]);
        settings.iter().fold(call, |call, (name, value)| call.env(name, value)).env("GIRIH_CONFIG", &file)
    };
    for backend in ["cpu", "interpreter", "npu:toy"] {
        set(backend).done();
    }
    // On the command line it is an error.
    let of_the_cpu = ["--isa=avx2", "--act-precision=f32", "--affinity=none"];
    let of_its_weights = ["--packed-cache=off", "--packed-cache-limit=1", "--weights=mmap"];
    for option in of_the_cpu.iter().chain(&of_its_weights) {
        set("interpreter").with(&[option]).fails(2, "only to the cpu backend; omit it");
        set("npu:toy").with(&[option]).fails(2, option.split_once('=').expect("it has a value").0);
    }
    let of_runs = ["--npu-mapping=mlir-air-tiles", "--npu-runtime=values=brokered", "--npu-lengths=8"];
    for option in
        of_runs.iter().chain(&["--npu-contexts=8", "--npu-strict=on", "--blobs=off", "--blobs-limit=1"])
    {
        set("interpreter").with(&[option]).fails(2, "only to the npu backend; omit it");
        set("cpu").with(&[option]).fails(2, option.split_once('=').expect("it has a value").0);
    }
    let compare = |backend, reference| {
        let call = ["diagnose", "stories260k", "--context", "64", "--tokens", "8", "--kv", "bf16"];
        girih(&call).with(&["--backend", backend, "--reference", reference]).env("GIRIH_ISA", "portable")
    };
    compare("npu:toy", "cpu").done();
    girih(&["diagnose", "stories260k"])
        .fails(2, "add --reference interpreter (or another backend), or --golden FILE");
    // The option applies to the reference.
    compare("cpu", "npu:toy").with(&["--npu-mapping", "none"]).fails(2, "'none'");
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let whole = girih(&["run", "--quiet"]).done().stdout;
    let (before, _) = whole.split_once(" the park").expect("the story plays there");
    let stopped = ["run", "--quiet", "--stop", "never said", "--stop", " the park"];
    assert_eq!(girih(&stopped).done().stdout, format!("{before}\n"));
    let ended = girih(&stopped).with(&["--json"]).done().json();
    assert_eq!(before, ended["text"].as_str().expect("a text"), "{ended}");
    assert_eq!(ended["stop"]["string"], " the park");
    girih(&["run", "--stop", ""]).fails(2, "a stop string is empty");
}

/// The bug was that the search for a stop string started again, and an incomplete
/// character was dropped, when a reply continued in a new request.
#[test]
fn a_reply_of_several_requests_has_the_text_of_one() {
    let call = ["run", "stories260k", "Once upon a time", "--temp", "0", "--json", "--quiet", "-n", "40"];
    let cut = || girih(&call).with(&["--context", "12", "--overflow", "truncate"]);
    let whole = cut().done().json()["text"].as_str().expect("a text").to_owned();
    for start in (0..whole.len() - 24).filter(|at| at % 5 == 0) {
        let stop = &whole[start..start + 24];
        let ended = cut().with(&["--stop", "never said", "--stop", stop]).done().json();
        let before = &whole[..whole.find(stop).expect("it was taken from there")];
        assert_eq!((&ended["text"], &ended["stop"]["string"]), (&before.into(), &stop.into()));
    }
    // The text ends with all but the last character of this stop string.
    let stop = format!("{}#", &whole[4..]);
    assert_eq!(cut().with(&["--stop", &stop]).done().json()["text"], whole);
    // This token, <0xC3>, begins a character each time.
    let forced = ["--logit-bias", "198=inf"];
    let (cut, fits) = (cut().with(&forced).done().json(), girih(&call).with(&forced).done().json());
    assert_eq!(fits["text"], "\u{FFFD}".repeat(40));
    assert_eq!(cut["text"], fits["text"]);
}

#[test]
fn a_bias_forces_and_forbids() {
    let ids = |bias: &str| {
        let line = girih(&["run", "-n", "3", "--json", "--logit-bias", bias]).done().json();
        let first = line["prompt_tokens"].as_u64().expect("a count") as usize;
        line["ids"].as_array().expect("a list")[first..].to_vec()
    };
    let usual = ids("400=0");
    assert_eq!(ids("400=inf"), vec![Value::from(400); 3]);
    let forbidden = ids(&format!("{}=-inf", usual[0]));
    assert_ne!(forbidden[0], usual[0]);
    girih(&["run", "--logit-bias", "512=1"]).fails(2, "outside the vocabulary of 512");
}

#[test]
fn sampling_settings_outside_their_range_are_refused() {
    girih(&["run", "--temp", "-1"]).fails(2, "temperature is -1");
    girih(&["run", "--temp", "1", "--top-p", "1.5"]).fails(2, "top_p is 1.5");
    girih(&["run", "--temp", "nan"]).fails(2, "temperature");
    girih(&["run"]).env("GIRIH_TEMP", "-1").fails(2, "GIRIH_TEMP='-1': temperature is -1; it must be");
    let folder = Folder::new();
    let file = folder.write("config.toml", "quiet = true\ntop-p = 2\n");
    let of_file = || girih(&["run"]).env("GIRIH_CONFIG", &file);
    of_file().fails(2, "config.toml:2: top-p = 2: top_p is 2; it must be above 0 and at most 1");
    of_file().with(&["--top-p", "3"]).fails(2, "girih: top_p is 3");
}

/// A reader that stops early, as `head` does, causes no panic and no message.
#[test]
fn a_closed_pipe_ends_a_call_quietly() {
    for call in [
        girih(&["run", "--quiet"]),
        girih(&["run", "--quiet", "--json"]),
        girih(&["inspect", "stories260k", "--graph"]),
        girih(&["inspect", "stories260k", "--tensors"]),
        girih(&["tokenize", "stories260k", "--explain"]).stdin("a ".repeat(10_000)),
        girih(&["doctor"]),
    ] {
        let ended = call.unread();
        assert_eq!((ended.code, ended.stderr.as_str()), (1, ""));
    }
}

#[test]
fn no_colour_without_a_terminal_or_with_no_color() {
    let wrong = |call: crate::program::Call| call.fails(2, "unexpected argument").stderr;
    assert!(!wrong(girih(&["run", "--colour"])).contains('\u{1b}'), "a pipe is no terminal");
    let forced = girih(&["run", "--colour"]).env("CLICOLOR_FORCE", "1");
    assert!(!wrong(forced.env("NO_COLOR", "1")).contains('\u{1b}'));
}

#[test]
fn inspect_shows_a_model() {
    let text = girih(&["inspect", "stories260k"]).done().stdout;
    for text_part in [
        "architecture: llama",
        "width 64, vocabulary 512, context 512",
        "layers 0-4: kind full, mixer attend, heads 8, kv heads 4, head size 8, span full, rope (table full, ",
        "memory: weights",
    ] {
        assert!(text.contains(text_part), "'{text_part}' is not in: {text}");
    }
    assert!(girih(&["inspect", "stories260k", "--tensors"]).done().stdout.lines().count() > 40);
    let json = girih(&["inspect", "stories260k", "--json", "--tensors"]).done().json();
    assert_eq!(json["facts"]["layers"].as_array().map(Vec::len), Some(5));
    assert_eq!(json["refusals"], Value::Array(Vec::new()));
    let (memory, part) = (&json["memory"], |key: &str| json["memory"][key].as_u64().expect("a count"));
    assert_eq!(memory["total"], part("weights") + part("state") + part("scratch") + part("output"));
}

#[test]
fn inspect_lists_the_weights_of_an_assistant_and_refuses_to_compare_its_template() {
    let assistant = fixture("gemma4_assistant");
    let inspect = |more: &[&str]| girih(&["inspect", name(&assistant)]).with(more);
    let short = inspect(&[]).done().stdout;
    let long = inspect(&["--tensors"]).done().stdout;
    assert!(long.lines().count() > short.lines().count() + 10, "{long}");
    inspect(&["--source", name(&assistant)]).fails(2, "the model is an assistant, which has none");
}

#[test]
fn inspect_prints_a_description_with_what_it_is_based_on() {
    let printed = girih(&["inspect", "--arch", "qwen3"]).done().stdout;
    let line = "heads = { gguf = \"qwen3.attention.head_count\", hf = \"num_attention_heads\" }";
    assert!(printed.contains(line) && !printed.contains("based_on"), "{printed}");
    let folder = Folder::new();
    let file = folder.write("printed.toml", &printed);
    assert_eq!(girih(&["inspect", "--arch", name(&file)]).done().stdout, printed);
    let wrong = folder.write("wrong.toml", "based_on = \"nothing\"");
    girih(&["inspect", "--arch", name(&wrong)]).fails(1, "is based on 'nothing', which girih does not have");
    girih(&["inspect"]).fails(2, "MODEL");
}

/// The description of a Llama under another name is one line more than what it is based on.
#[test]
fn inspect_suggests_a_description_for_an_unknown_architecture() {
    let llama = fixture("llama_biased");
    let folder = Folder::of(&llama, &["model.safetensors"]);
    let config = std::fs::read_to_string(llama.join("config.json")).expect("the fixture has it");
    folder.write(
        "config.json",
        &config.replace("LlamaForCausalLM", "NewForCausalLM").replace("\"llama\"", "\"new\""),
    );
    girih(&["inspect", folder.name()]).fails(2, "unknown architecture 'NewForCausalLM'");
    let call = girih(&["inspect", folder.name(), "--suggest-arch"]).done();
    assert!(call.stderr.contains("the model opens with this description"), "{}", call.stderr);
    let file = folder.write("new.toml", &call.stdout);
    let golden = llama.join("golden.safetensors");
    let verify = ["verify", folder.name(), "--golden", name(&golden), "--arch", name(&file), "--quiet"];
    girih(&verify).done();
    girih(&["inspect", "stories260k", "--suggest-arch", "--graph"]).fails(2, "cannot be used with");
}

/// Layers with windows of 16 positions need the blocks that a step of 512 rows touches.
#[test]
fn layers_with_windows_need_fewer_blocks() {
    let gemma = fixture("gemma3_text");
    let json = girih(&["inspect", name(&gemma), "--json", "--context", "4096"]).done().json();
    let mut state: Vec<_> = json["state"].as_array().expect("a list").iter().map(Value::to_string).collect();
    state.sort();
    assert_eq!(state, [r#"{"span":"full","blocks":64}"#, r#"{"span":"window:16","blocks":10}"#]);
}

#[test]
fn a_printed_graph_can_be_parsed() {
    let qwen = fixture("qwen3");
    let gemma = fixture("gemma3_text");
    for model in ["stories260k", name(&qwen), name(&gemma)] {
        let text = girih(&["inspect", model, "--graph"]).done().stdout;
        let graph: girih_graph::Graph = text.parse().unwrap_or_else(|error| panic!("{model}: {error}"));
        assert_eq!(graph.to_string(), text, "{model}");
    }
}

#[test]
fn the_doctor_finds_this_program_healthy() {
    let found = girih(&["doctor", "--json"]).done().json();
    assert_eq!(found["built_in_model"], "works");
    assert_eq!(found["chat_templates"], "works");
    for layer in ["landlock", "seccomp"] {
        let state = found["template_worker"][layer].as_str().expect("on, or off with a reason");
        assert!(state == "on" || state.starts_with("off: "), "{layer}: {state}");
    }
    let npu = found["backends"].as_array().unwrap().iter().find(|backend| backend["name"] == "npu").unwrap();
    let names = npu["devices"].as_array().unwrap().iter().map(|device| device["name"].as_str().unwrap());
    assert!(names.collect::<Vec<_>>().contains(&"npu:toy"));
    let text = girih(&["doctor"]).done().stdout;
    assert!(text.contains("\nbackend npu:toy: a toy array for tests, cores 4\n"), "{text}");
    assert!(
        text.contains("built-in model: works") && text.contains("template worker: landlock is "),
        "{text}"
    );
}

#[test]
fn an_empty_cache_is_an_empty_list() {
    let listed = girih(&["list"]).done().stdout;
    assert!(listed.lines().count() == 2 && listed.contains("stories260k"), "{listed}");
    let listed = girih(&["list", "--json"]).done().json();
    assert_eq!(
        (listed["models"][0]["built_in"].as_bool(), listed["models"][1].is_null()),
        (Some(true), true)
    );
    girih(&["repair"]).done();
    girih(&["rm", "org/name"]).fails(2, "org/name");
}

#[test]
fn a_missing_model_is_refused_with_the_way_to_get_it() {
    girih(&["run", "org/name", "Hi"]).fails(2, "girih pull org/name");
    girih(&["run", "/nowhere/model", "Hi"]).fails(2, "/nowhere/model");
    girih(&["run", "./nowhere.gguf", "Hi"]).fails(2, "nowhere.gguf");
}

#[test]
fn repair_drops_what_was_packed_from_a_blob_that_it_removes() {
    let folder = Folder::new();
    let blobs = folder.file("hub/models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join("ab".repeat(32)), "not the bytes of this digest").unwrap();
    let packed = folder.file("cache/girih/packed");
    std::fs::create_dir_all(&packed).unwrap();
    for name in ["org--name@model-1.packed", "org--name-b@model-2.packed"] {
        std::fs::write(packed.join(name), "weights").unwrap();
    }
    let repair = || {
        let call = girih(&["repair"]).env("HF_HUB_CACHE", folder.file("hub"));
        call.env("XDG_CACHE_HOME", folder.file("cache")).done().stdout
    };
    let report = repair();
    assert!(
        report.contains(": its digest is ") && report.contains("removed 1 file of packed weights"),
        "{report}"
    );
    assert!(!packed.join("org--name@model-1.packed").exists());
    assert!(packed.join("org--name-b@model-2.packed").exists());
    assert!(!repair().contains("packed"));
}

/// A pipe must not make girih wait, and a link must not lead it out of the model's folder.
#[test]
fn a_companion_that_is_a_pipe_or_leads_elsewhere_is_refused_at_once() {
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let call = |name: &str, plant: &dyn Fn(&std::path::Path)| {
        let model = Folder::of(&fixture("llama32_tied"), &files);
        let _ = std::fs::remove_file(model.file(name));
        plant(&model.file(name));
        let begin = std::time::Instant::now();
        let ended = girih(&["run", model.name(), "a", "-n", "1"]).end();
        // It takes milliseconds on an idle machine.
        assert!(begin.elapsed() < std::time::Duration::from_secs(10), "{name}");
        assert_ne!(ended.code, 0, "{name}");
        ended.stderr
    };
    let pipe = |path: &std::path::Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let link = |path: &std::path::Path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        let error = call(name, &pipe);
        assert!(error.contains(name) && error.contains("is a pipe, a device or a folder"), "{error}");
        let error = call(name, &link);
        assert!(error.contains(name) && error.contains("leaves the model's folder"), "{error}");
        assert!(!error.contains("root:"), "{error}");
    }
}

#[test]
fn inspect_shows_what_repeats_among_the_weights() {
    let inspect = || girih(&["inspect", "stories260k", "--duplicates"]);
    let found = inspect().with(&["--json"]).done().json();
    let parts = found["duplicates"]["parts"].as_array().expect("a list of parts");
    let names: Vec<_> = parts.iter().filter_map(|part| part["part"].as_str()).collect();
    assert_eq!(names, ["tensor", "band of 32 rows", "block of 4 KiB", "group"]);
    assert!(found["duplicates"]["bytes"].as_u64() > Some(500_000), "{found}");
    assert_eq!(found["duplicates"]["pairs"].as_array().map(Vec::len), Some(0));
    let shown = inspect().done().stdout;
    assert!(shown.contains("repeated by tensor            0.00 % of "), "{shown}");
    inspect().with(&["--graph"]).fails(2, "cannot be used with");
}
