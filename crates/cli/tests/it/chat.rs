//! `girih chat` at a terminal and from a pipe.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::console::{CTRL_C, CTRL_D, Console};
use crate::first_run::{TEMPLATE, model_with_template};
use crate::program::{Ended, Folder, girih, name, read, read_json};

/// The last event of each turn.
fn ends(chat: &Ended) -> Vec<Value> {
    chat.json_lines().into_iter().filter(|event| event["event"] == "end").collect()
}

/// A chat at a terminal, after its first prompt.
fn opened(arguments: &[&str], home: &Folder, variables: &[(&str, &str)]) -> Console {
    let mut console = Console::start(&[&["chat"], arguments].concat(), home, variables);
    console.wait_for("/help lists the commands");
    console.wait_for("> ");
    console
}

#[test]
fn the_built_in_model_continues_a_story() {
    let call = girih(&["chat", "stories260k", "-n", "12", "--jsonl"]);
    let chat = call.stdin("Once upon a time\nThen Tom came\n/bye\n").done();
    assert!(chat.stderr.contains("messages and replies become one story"), "{}", chat.stderr);
    let turns = ends(&chat);
    let raw = |prompt: &str| girih(&["run", "stories260k", prompt, "-n", "12", "--json", "-q"]).done().json();
    assert_eq!(turns[0]["text"], raw("Once upon a time")["text"]);
    let story = format!("Once upon a time{} Then Tom came", turns[0]["text"].as_str().expect("a text"));
    assert_eq!(turns[1]["ids"], raw(&story)["ids"]);
    // The template is for chats only.
    girih(&["render", "stories260k", "Hi"]).fails(2, "no chat template");
}

#[test]
fn each_turn_is_a_stream_of_events() {
    let chat =
        girih(&["chat", "stories260k", "-n", "3", "--jsonl", "-q"]).stdin("Once\n/stats\nupon\n").done();
    let events = chat.json_lines();
    let described: Vec<String> = events
        .iter()
        .map(|event| format!("{} {}", event["event"].as_str().unwrap(), event["turn"]))
        .collect();
    let turn = |n: u32| ["start", "text", "text", "text", "end"].map(|event| format!("{event} {n}"));
    assert_eq!(described, [turn(1), turn(2)].concat());
    assert!(chat.stderr.contains("prefill"), "answers to commands are no events: {}", chat.stderr);
    girih(&["chat", "stories260k", "--json"]).fails(2, "--jsonl");
}

#[test]
fn a_reply_ends_at_the_context_and_a_full_one_has_ways_out() {
    let call = |more: &[&str]| girih(&["chat", "stories260k", "--context", "32", "-n", "100"]).with(more);
    let ended = call(&["--jsonl"]).stdin("Once upon a time\n").done();
    let turn = &ends(&ended)[0];
    assert_eq!(turn["ids"].as_array().map(Vec::len), Some(32), "prompt and reply fill the context");
    assert!(ended.stderr.contains("the reply ended because the context is full: /clear"), "{}", ended.stderr);
    let full = call(&[]).stdin("Once upon a time\nand\n").fails(2, "the context of 32 tokens is full");
    assert!(
        full.stderr.contains("/truncate") && full.stderr.contains("--overflow truncate"),
        "{}",
        full.stderr
    );
    let cleared = call(&["--jsonl"]).stdin("Once upon a time\n/clear\nOnce upon a time\n").done();
    let turns = ends(&cleared);
    assert_eq!(turns[0]["ids"], turns[1]["ids"]);
    assert!(cleared.stderr.contains("a new conversation began"), "{}", cleared.stderr);
    for (more, lines) in [
        (&[][..], "Once upon a time\n/truncate\nand\n"),
        (&["--overflow", "truncate"], "Once upon a time\nand\n"),
    ] {
        let turns = ends(&call(&["--jsonl"]).with(more).stdin(lines).done());
        let count = |key: &str| turns[1][key].as_array().map_or(0, Vec::len);
        assert_eq!(count("ids") as u64 - turns[1]["prompt_tokens"].as_u64().unwrap(), 100);
    }
}

#[test]
fn without_n_a_reply_may_fill_the_context() {
    // The most likely text of this model has no end before the context of 512 tokens has.
    let call = || girih(&["run", "stories260k", "Once", "--temp", "0", "--json", "--logit-bias", "1=-inf"]);
    let whole = call().with(&["--logit-bias", "2=-inf"]).done().json();
    assert_eq!(whole["ids"].as_array().map(Vec::len), Some(512));
    assert_eq!(whole["stop"], "context");
    let truncated =
        call().with(&["--logit-bias", "2=-inf", "-c", "40", "--overflow", "truncate"]).done().json();
    let prompt = truncated["prompt_tokens"].as_u64().expect("a count") as usize;
    assert_eq!(truncated["ids"].as_array().map(Vec::len), Some(prompt + 40), "{truncated}");
    let chat = girih(&["chat", "stories260k", "--jsonl", "--logit-bias", "1=-inf", "--logit-bias", "2=-inf"]);
    let chat = chat.stdin("Once\n").done();
    assert_eq!(ends(&chat)[0]["ids"].as_array().map(Vec::len), Some(512));
    assert!(chat.stderr.contains("because the context is full: /clear"), "{}", chat.stderr);
}

#[test]
fn commands_answer() {
    let model = model_with_template(TEMPLATE);
    let lines =
        "/system\n/system Be kind.\n/system\n/undo\nHello there.\n/undo\n/undo\n/stats\n/help\n/quit\n";
    let shown = girih(&["chat", model.name(), "-n", "2", "-q"]).stdin(lines).done().stdout;
    let mut rest = shown.as_str();
    for answer in [
        "no system message; /system TEXT sets one\n",
        "system message set; a new conversation began\n",
        "system message: Be kind.\n",
        "no message to remove\n",
        "removed 'Hello there.' and its reply\n",
        "no message to remove\n",
        "prompt: ",
        "/truncate ",
    ] {
        rest = rest.split_once(answer).unwrap_or_else(|| panic!("{answer:?} is not in {rest:?}")).1;
    }
    for command in ["/undo", "/regen", "/save FILE", "/load FILE", "/bye", "/quit", "\"\"\"", "Ctrl-C"] {
        assert!(shown.contains(command), "{command}");
    }
    girih(&["chat", model.name()]).stdin("/clera\n").fails(2, "did you mean /clear?");
    girih(&["chat", model.name()]).stdin("/save\n").fails(2, "/save FILE");
}

#[test]
fn several_lines_are_one_message() {
    let model = model_with_template("{% for message in messages %}[{{ message.content }}]{% endfor %}");
    let file = model.file("saved.json");
    let lines = format!("\"\"\"\n/clear\n\nlast\n\"\"\"\n/save {}\n", name(&file));
    girih(&["chat", model.name(), "-n", "1"]).stdin(lines).done();
    assert_eq!(read_json(&file)["messages"][0]["content"], "/clear\n\nlast");
}

#[test]
fn a_conversation_is_saved_and_loaded() {
    let model = model_with_template(TEMPLATE);
    let path = model.file("saved.json");
    let file = name(&path);
    let call = |lines: &str| girih(&["chat", model.name(), "-n", "6", "--jsonl", "-q"]).stdin(lines);
    let lines = format!("/system Be kind.\nHello there.\n/save {file}\nWhy?\n");
    let whole = ends(&call(&lines).done());
    let saved = read_json(&path);
    let roles: Vec<&str> = saved["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    let loaded = call(&format!("/load {file}\nWhy?\n")).done();
    assert!(loaded.stderr.contains("loaded 3 messages"), "{}", loaded.stderr);
    assert_eq!(ends(&loaded)[0]["ids"], whole[1]["ids"]);
    // Its own file is overwritten: one that it wrote or loaded, and that nobody has changed.
    let mine = name(&model.file("mine.json")).to_owned();
    call(&format!("Hi\n/save {mine}\nWhy?\n/save {mine}\n")).done();
    let count = |file: &str| read_json(std::path::Path::new(file))["messages"].as_array().unwrap().len();
    assert_eq!(count(&mine), 4);
    call(&format!("/load {mine}\n/undo\n/save {mine}\n")).done();
    assert_eq!(count(&mine), 2);
    // Nothing else is overwritten, and nothing else is loaded.
    let before = read(&path);
    call(&format!("Hi\n/save {file}\n")).fails(2, "already exists; choose another path");
    assert_eq!(read(&path), before);
    let refuse = |text: &str, words: &str| {
        let bad = model.write("bad.json", text);
        call(&format!("/load {}\n", name(&bad))).fails(2, words);
    };
    refuse("{}", "is not a saved conversation: missing field `messages`");
    refuse(&json!({"messages": [{"role": "tool", "content": "a"}]}).to_string(), "has the role 'tool'");
    call("/load /dev/zero\n").fails(2, "a regular file is needed");
    call("/load /nowhere.json\n").fails(2, "/nowhere.json");
}

#[test]
fn regen_has_another_seed() {
    let model = model_with_template(TEMPLATE);
    let call = |temp: &str, lines: &str| {
        girih(&["chat", model.name(), "-n", "12", "--temp", temp, "--seed", "7", "--jsonl"])
            .stdin(lines)
            .done()
    };
    let sampled = call("1", "Hello there.\n/regen\n/regen\nWhy?\n");
    let turns = ends(&sampled);
    assert_ne!(turns[0]["text"], turns[1]["text"]);
    assert_ne!(turns[1]["text"], turns[2]["text"]);
    let kept = format!("assistant: {}", turns[2]["text"].as_str().unwrap());
    assert!(turns[3]["prompt_tokens"].as_u64() > turns[2]["prompt_tokens"].as_u64(), "{kept}");
    // The seeds follow the first one.
    let next = girih(&["chat", model.name(), "-n", "12", "--temp", "1", "--seed", "8", "--jsonl"]);
    assert_eq!(ends(&next.stdin("Hello there.\n").done())[0]["text"], turns[1]["text"]);
    let greedy = call("0", "Hello there.\n/regen\n");
    assert!(greedy.stderr.contains("the temperature is 0"), "{}", greedy.stderr);
    let none = girih(&["chat", model.name()]).stdin("/regen\n").done().stdout;
    assert_eq!(none, "no message to reply to\n");
}

#[test]
fn thinking_is_dimmed_on_a_terminal_only() {
    let opens = model_with_template(&format!("{TEMPLATE}<think>\n"));
    let home = Folder::new();
    let run = ["run", opens.name(), "Hi", "-n", "3", "-q", "--logit-bias", "400=inf"];
    let dim = "\u{1b}[2m";
    let shown = girih(&run).stdout_on_terminal().stdout;
    assert!(shown.starts_with(dim) && shown.ends_with("\u{1b}[22m\n"), "{shown:?}");
    let plain = girih(&run).done().stdout;
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let thought = shown.replace(dim, "").replace("\u{1b}[22m", "");
    assert_eq!(format!("<think>\n{}\n</think>\n", thought.trim_end()), plain);
    assert_eq!(girih(&run).env("NO_COLOR", "1").stdout_on_terminal().stdout, plain);
    assert_eq!(girih(&run).env("TERM", "dumb").stdout_on_terminal().stdout, plain);
    let mut console = opened(&[opens.name(), "-n", "3", "--logit-bias", "400=inf"], &home, &[]);
    console.line("Hi");
    console.wait_for(dim);
    console.wait_for("maximum length");
    console.keys(CTRL_D);
    assert_eq!(console.end(), Some(0));
}

/// What is generated for minutes.
const ENDLESS: [&str; 5] = ["stories260k", "-n", "100000000", "--overflow", "truncate"];

#[test]
fn ctrl_c_stops_a_reply_and_nothing_follows() {
    let home = Folder::new();
    let mut console = opened(&ENDLESS, &home, &[]);
    let file = home.file("saved.json");
    console.line("Once upon a time");
    console.wait_for(" the ");
    console.keys(CTRL_C);
    let shown = console.wait_for("> ");
    // Nothing follows the prompt: the model would write a thousand words in this time.
    std::thread::sleep(Duration::from_millis(500));
    let rest = console.shown();
    let rest = rest.rsplit("> ").next().expect("the prompt was shown");
    assert!(!rest.contains(' '), "{rest:?}");
    // The reply stays as far as it was shown. The terminal shows the key itself, too.
    console.line(&format!("/save {}", name(&file)));
    console.wait_for("saved 2 messages");
    let kept = read_json(&file)["messages"][1]["content"].as_str().expect("a text").to_owned();
    let shown = shown.replace("^C", "").replace("\r\n", "\n");
    let (shown, _) = shown.rsplit_once('\n').expect("the prompt has a line of its own");
    // A terminal discards what it has not shown yet when it sees the key, so characters may lack.
    let mut all = kept.chars();
    assert!(shown.chars().all(|c| all.any(|kept| kept == c)), "{shown:?} is not a part of {kept:?}");
    // On a busy machine that is many lines. A reply that went on would grow as far within a second or two.
    assert!(all.as_str().len() < 8192, "{kept:?} goes on after {shown:?}");
    // It is ready for another reply.
    console.line("Then");
    console.wait_for(" the ");
    console.keys(CTRL_C);
    console.wait_for("> ");
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
}

#[test]
fn ctrl_c_clears_a_line_with_text_and_leaves_only_on_empty_lines() {
    let home = Folder::new();
    let mut console = opened(&["stories260k", "-n", "2"], &home, &[]);
    console.line("/stats");
    console.wait_for("no reply yet");
    console.wait_for("> ");
    // However often a line with text is cleared, the chat goes on.
    for text in ["half a line", "another half line"] {
        console.keys(text);
        console.wait_for("line");
        console.keys(CTRL_C);
        console.wait_for("> ");
    }
    // Neither does the key that ends a search of the history, or a message of several lines.
    console.keys(CTRL_R);
    console.wait_for("search");
    console.keys(CTRL_C);
    console.wait_for("> ");
    console.line("\"\"\"");
    console.wait_for(". ");
    console.line("a message");
    console.wait_for(". ");
    console.keys(CTRL_C);
    console.wait_for("> ");
    console.line("/undo");
    console.wait_for("no message to remove");
    console.wait_for("> ");
    assert!(!console.shown().contains("Ctrl-C again"), "{}", console.shown());
    // A line in between begins anew.
    console.keys(CTRL_C);
    console.wait_for("Ctrl-C again");
    console.wait_for("> ");
    console.keys("text");
    console.wait_for("text");
    console.keys(CTRL_C);
    console.wait_for("> ");
    console.keys(CTRL_C);
    console.wait_for("Ctrl-C again");
    console.wait_for("> ");
    console.keys(CTRL_C);
    assert_eq!(console.end(), Some(0));
}

/// Ctrl-R.
const CTRL_R: &str = "\u{12}";

#[test]
fn a_reply_that_was_cut_is_continued_as_if_it_had_not_been() {
    for template in [TEMPLATE.to_owned(), format!("{TEMPLATE}<think>\n")] {
        let model = model_with_template(&template);
        let file = model.file("saved.json");
        let call = |n: &str, lines: &str| {
            let call = girih(&["chat", model.name(), "-n", n, "--temp", "0", "--jsonl", "-q"]);
            call.stdin(format!("Hello there.\n{lines}/save {}\n", name(&file))).done()
        };
        let content = || read_json(&file)["messages"][1]["content"].clone();
        let whole = ends(&call("12", "")).remove(0);
        let kept = content();
        std::fs::remove_file(&file).unwrap();
        let parts = ends(&call("5", "/set n 7\n/continue\n"));
        assert_eq!(parts[1]["ids"], whole["ids"]);
        assert_eq!(content(), kept);
        std::fs::remove_file(&file).unwrap();
        let texts: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
        assert_eq!(texts, whole["text"].as_str().unwrap());
    }
    let chat = |lines: &str| girih(&["chat", "stories260k", "-n", "2"]).stdin(lines).done().stdout;
    for lines in ["/continue\n", "Once\n/undo\n/continue\n", "Once\n/clear\n/continue\n"] {
        assert!(chat(lines).contains("no reply to continue"), "{lines:?}");
    }
}

#[test]
fn tab_completes_commands_and_settings() {
    let home = Folder::new();
    let mut console = opened(&["stories260k", "-n", "2"], &home, &[]);
    console.keys("/und\t\r");
    console.wait_for("no message to remove");
    console.wait_for("> ");
    console.keys("/set tem\t0.25\r");
    console.wait_for("temp 0.25, ");
    console.wait_for("> ");
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
}

#[test]
fn settings_change_during_a_chat_and_are_shown() {
    let call = |lines: &str| girih(&["chat", "stories260k", "--jsonl", "-c", "64", "-n", "5"]).stdin(lines);
    let ended = call("Once\n/set n 3\n/set temp 0.5\n/show\nupon\n/set\n/?\n").done();
    let turns = ends(&ended);
    let count =
        |turn: &Value| turn["ids"].as_array().unwrap().len() as u64 - turn["prompt_tokens"].as_u64().unwrap();
    assert_eq!((count(&turns[0]), count(&turns[1])), (5, 3));
    for answer in [
        "model: stories260k\ncontext: ",
        " of 64 tokens used, ",
        "settings: temp 0.5, top-k ",
        "n 3, overflow error; /set NAME VALUE changes one",
        "/show          show the model",
        "maximum length: /continue goes on, /set n sets another",
    ] {
        assert!(ended.stderr.contains(answer), "{answer:?} is not in {}", ended.stderr);
    }
    call("/set tmep 1\n").fails(2, "there is no setting 'tmep'; did you mean temp?");
    call("/set temp -1\n").fails(2, "temperature is -1");
}

/// The upper arrow key.
const UP: &str = "\u{1b}[A";

#[test]
fn typed_lines_are_remembered_across_runs() {
    let home = Folder::new();
    let model = model_with_template(TEMPLATE);
    let chat = |more: &[&str], variables: &[(&str, &str)]| {
        opened(&[&[model.name(), "-n", "1"][..], more].concat(), &home, variables)
    };
    let mut console = chat(&[], &[]);
    console.line("/system Be kind.");
    console.wait_for("system message set");
    console.wait_for("> ");
    console.keys(CTRL_D);
    assert_eq!(console.end(), Some(0));
    let file = home.file(".local/state/girih/history");
    assert_eq!(read(&file), "/system Be kind.\n");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    let mut console = chat(&[], &[]);
    console.keys(UP);
    console.wait_for("/system Be kind.");
    console.keys("\r");
    console.wait_for("system message set");
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
    // Without a history nothing is read or written.
    let before = read(&file);
    let mut console = chat(&["--no-history"], &[]);
    console.line("/undo");
    console.wait_for("no message to remove");
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
    assert_eq!(read(&file), before);
    // Another folder.
    let state = home.file("state");
    let mut console = chat(&[], &[("XDG_STATE_HOME", name(&state))]);
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
    assert_eq!(read(&state.join("girih/history")), "/bye\n");
}

/// The bug: the editor's codes were in the pipe.
#[test]
fn a_chat_that_is_typed_into_a_pipe_writes_only_replies_to_it() {
    let home = Folder::new();
    // An editor that moves the cursor, and a terminal that has none.
    for term in ["xterm", "dumb"] {
        let variables = [("TERM", term)];
        let arguments = ["chat", "stories260k", "-n", "4", "--temp", "0"];
        let (mut console, mut pipe) = Console::start_piped(&arguments, &home, &variables);
        console.wait_for("> ");
        console.line("Once upon a time");
        console.wait_for("> ");
        console.line("/bye");
        assert_eq!(console.end(), Some(0), "{term}");
        drop(console);
        let mut written = String::new();
        pipe.read_to_string(&mut written).expect("the program has ended");
        let piped = girih(&arguments).stdin("Once upon a time\n/bye\n").done().stdout;
        assert_eq!(written, piped, "{term}");
        assert!(!written.trim().is_empty());
    }
}

#[test]
fn a_long_history_is_shortened_and_a_foreign_one_is_not_used() {
    let home = Folder::new();
    let folder = home.file("girih");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    let lines: String = (0..3000).map(|number| format!("line {number}\n")).collect();
    let file = folder.join("history");
    std::fs::write(&file, lines).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let variables = [("XDG_STATE_HOME", home.name())];
    let chat = || Console::start(&["chat", "stories260k"], &home, &variables);
    let mut console = chat();
    console.wait_for("/help lists the commands");
    console.wait_for("> ");
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
    let kept = read(&file);
    assert_eq!(kept.lines().count(), 1001);
    assert!(kept.starts_with("line 2000\n") && kept.ends_with("line 2999\n/bye\n"), "{kept}");
    // A link may lead to a file that must not be changed.
    let target = home.write("target", "theirs\n");
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    let mut console = chat();
    console.wait_for("the history of typed lines is not used: ");
    console.wait_for("history: is a link");
    console.wait_for("> ");
    console.line("/bye");
    assert_eq!(console.end(), Some(0));
    assert_eq!(read(&target), "theirs\n");
    // So may a file that others can write to.
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "planted\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let mut console = chat();
    console.wait_for("has the mode 0666, so others can write to it");
    console.wait_for("> ");
    console.keys(CTRL_D);
    assert_eq!(console.end(), Some(0));
    assert_eq!(read(&file), "planted\n");
}
