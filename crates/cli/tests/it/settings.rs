//! Variables and keys of the configuration file: their values, faults and misspellings.

use crate::program::{Call, Folder, fixture, girih, name};

/// A call with this configuration file.
fn configured(arguments: &[&str], folder: &Folder, text: &str) -> Call {
    girih(arguments).env("GIRIH_CONFIG", folder.write("config.toml", text))
}

/// The number of tokens that a call of `run` generates.
fn generated(call: Call) -> u64 {
    let line = call.with(&["--json"]).done().json();
    line["ids"].as_array().expect("a list").len() as u64 - line["prompt_tokens"].as_u64().expect("a count")
}

#[test]
fn a_switch_has_six_values_in_variables_and_keys() {
    let folder = Folder::new();
    let notes = |call: Call| call.done().stderr.lines().count();
    let call = || girih(&["run", "-n", "2"]);
    let loud = notes(call().env("GIRIH_VERBOSE", "1"));
    assert!(loud > 0, "-v prints notes");
    for value in ["1", "true", "YES"] {
        assert_eq!(notes(call().env("GIRIH_VERBOSE", value)), loud, "{value}");
        let file = format!("verbose = \"{value}\"\n");
        assert_eq!(notes(configured(&["run", "-n", "2"], &folder, &file)), loud, "{value}");
    }
    for value in ["0", "false", "no"] {
        assert_eq!(notes(call().env("GIRIH_VERBOSE", value)), 0, "{value}");
        // One that is off contradicts nothing.
        assert_eq!(notes(call().env("GIRIH_QUIET", value).env("GIRIH_VERBOSE", "yes")), loud, "{value}");
    }
    assert_eq!(notes(configured(&["run", "-n", "2"], &folder, "verbose = 1\n")), loud);
    assert_eq!(notes(configured(&["run", "-n", "2"], &folder, "verbose = true\nquiet = false\n")), loud);
    // The command line and a variable win.
    assert_eq!(notes(configured(&["run", "-n", "2", "-q"], &folder, "verbose = true\n")), 0);
    assert_eq!(
        notes(configured(&["run", "-n", "2"], &folder, "quiet = true\n").env("GIRIH_VERBOSE", "1")),
        loud
    );
    call()
        .env("GIRIH_QUIET", "maybe")
        .fails(2, "GIRIH_QUIET='maybe': use one of 1, 0, true, false, yes and no");
    let both = call().env("GIRIH_QUIET", "1").env("GIRIH_VERBOSE", "1");
    let refused = both.fails(2, "contradict each other; remove one of them").stderr;
    assert!(refused.contains("GIRIH_QUIET='1'") && refused.contains("GIRIH_VERBOSE='1'"), "{refused}");
}

#[test]
fn an_error_names_the_variable_or_the_file_and_line() {
    let folder = Folder::new();
    let run = |text: &str| configured(&["run"], &folder, text);
    girih(&["run"]).env("GIRIH_THREADS", "x").fails(2, "girih: GIRIH_THREADS='x': invalid digit");
    girih(&["run"])
        .env("GIRIH_KV", "f61")
        .fails(2, "GIRIH_KV='f61': use one of f32, f16, bf16, q8_0, q4_0; did you mean 'f16'?");
    let path = name(&folder.file("config.toml")).to_owned();
    run("# mine\n\nthreads = \"x\"\n").fails(2, &format!("girih: {path}:3: threads = \"x\": invalid digit"));
    run("quiet = 2\n").fails(2, &format!("{path}:1: quiet = 2: use one of 1, 0"));
    run("temp = 1\nstop = [\"a\"]\n").fails(2, &format!("{path}:2: 'stop' is a list or a table"));
    run("n = 3\nmax-tokens = 4\n").fails(2, &format!("{path}:1: 'n' sets the same option as 'max-tokens'"));
    // What is typed is judged as before, and keeps a wrong setting from mattering.
    girih(&["run", "-t", "x"]).env("GIRIH_THREADS", "y").fails(2, "invalid value 'x' for '--threads <N>'");
    girih(&["run", "-t", "1", "-n", "1"]).env("GIRIH_THREADS", "y").done();
    run("threads = \"x\"\n").with(&["-t", "1", "-n", "1"]).done();
    // Other commands do not use it.
    configured(&["list"], &folder, "threads = \"x\"\n").done();
}

#[test]
fn short_names_are_keys() {
    let folder = Folder::new();
    assert_eq!(generated(configured(&["run"], &folder, "n = 3\n")), 3);
    assert_eq!(generated(configured(&["run"], &folder, "n = 3\nt = 1\nc = 64\n").with(&["-n", "4"])), 4);
    configured(&["run"], &folder, "c = 513\n").fails(2, "the model supports 512 tokens");
}

#[test]
fn a_misspelled_variable_or_key_warns_with_the_nearest_name() {
    let folder = Folder::new();
    let ended = girih(&["list"]).env("GIRIH_THRAEDS", "2").env("GIRIH_XYZZY_PLUGH", "2").done();
    assert_eq!(
        ended.stderr,
        "girih: warning: unknown variable 'GIRIH_THRAEDS'; did you mean GIRIH_THREADS?\n\
         girih: warning: unknown variable 'GIRIH_XYZZY_PLUGH'\n"
    );
    let path = name(&folder.file("config.toml")).to_owned();
    let ended = configured(&["list"], &folder, "\nmax_tokens = 7\nhoover = 1\n").done();
    assert_eq!(
        ended.stderr,
        format!(
            "girih: warning: {path}:3: 'hoover': unknown key\n\
             girih: warning: {path}:2: 'max_tokens': unknown key; did you mean 'max-tokens'?\n"
        )
    );
    // Not misspelled: what is no option, and an option of another command.
    let known = [("GIRIH_TEST_DATA", "/nowhere"), ("GIRIH_TRACE_EVENTS", "5"), ("GIRIH_TOP_K", "1")];
    let ended = known.iter().fold(girih(&["list"]), |call, (name, value)| call.env(name, value)).done();
    assert_eq!(ended.stderr, "");
    assert_eq!(girih(&["run", "-q", "-n", "1"]).env("GIRIH_THRAEDS", "2").done().stderr, "");
}

#[test]
fn nothing_is_deleted_or_written_because_of_a_variable_or_key() {
    let folder = Folder::new();
    let packed = folder.file("girih/packed");
    std::fs::create_dir_all(&packed).expect("the folder is new");
    folder.write("girih/packed/org--name@model-1.packed", "weights");
    let set = girih(&["rm"]).env("XDG_CACHE_HOME", folder.path()).env("GIRIH_PACKED", "1");
    assert!(
        set.fails(2, "required")
            .stderr
            .contains("GIRIH_PACKED is ignored: --packed can be set on the command line only")
    );
    let path = name(&folder.file("config.toml")).to_owned();
    let keys =
        ["packed", "logits", "record", "trace", "html", "dump", "yes", "remove", "output-folder", "output"];
    for key in keys.iter().filter(|key| **key != "yes") {
        let words = format!("{path}:1: '{key}': --{key} can be set on the command line only; remove the key");
        configured(&["list"], &folder, &format!("{key} = \"1\"\n")).fails(2, &words);
    }
    assert!(packed.join("org--name@model-1.packed").exists());
    let output = folder.file("written");
    let sweep = girih(&["npu", "sweep", "stories260k", "--target", "toy", "-c", "16"]);
    let ended = sweep.env("GIRIH_OUTPUT", name(&output)).done();
    assert!(ended.stderr.contains("GIRIH_OUTPUT is ignored: --output can be set"), "{}", ended.stderr);
    assert!(!output.exists());
}

/// The bug: GIRIH_OUTPUT and the key `output`, which name no file, were the format of `bench`.
#[test]
fn the_format_of_bench_has_a_name_of_its_own() {
    let words = ["bench", "stories260k", "-p", "4", "-n", "0", "-r", "1", "--no-limits"];
    let csv = girih(&words).env("GIRIH_FORMAT", "csv").done().stdout;
    assert!(csv.lines().next().is_some_and(|line| line.contains(',') && !line.contains('|')), "{csv}");
    let folder = Folder::new();
    assert_eq!(
        configured(&words, &folder, "format = \"csv\"\n").done().stdout.lines().next(),
        csv.lines().next()
    );
    girih(&words).env("GIRIH_FORMAT", "xml").fails(2, "GIRIH_FORMAT='xml': use one of md, csv, json");
    let ended = girih(&words).env("GIRIH_OUTPUT", "csv").done();
    assert!(ended.stdout.contains('|'), "{}", ended.stdout);
    assert!(ended.stderr.contains("GIRIH_OUTPUT is ignored"), "{}", ended.stderr);
    // As typed for llama-bench.
    assert_eq!(girih(&words).with(&["--output", "csv"]).done().stdout.lines().next(), csv.lines().next());
}

#[test]
fn a_faulty_configuration_does_not_stop_the_doctor_nor_help() {
    let folder = Folder::new();
    let path = name(&folder.file("config.toml")).to_owned();
    let text = "threads = \"x\"\ntmep = 1\nmax-tokens = \"many\"\nlogits = \"a\"\n";
    let found = configured(&["doctor", "--json"], &folder, text).env("GIRIH_KV", "f61").done().json();
    let found: Vec<&str> = found["settings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line.as_str().expect("a text"))
        .collect();
    for words in [
        format!("{path}:1: threads = \"x\": invalid digit"),
        format!("{path}:2: 'tmep': unknown key; did you mean 'temp'?"),
        format!("{path}:3: max-tokens = \"many\": invalid digit"),
        format!("{path}:4: 'logits': --logits can be set on the command line only"),
        "GIRIH_KV='f61': use one of".to_owned(),
    ] {
        assert_eq!(found.iter().filter(|line| line.starts_with(&words)).count(), 1, "{words}: {found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
    let shown = configured(&["doctor"], &folder, "not TOML\n").done().stdout;
    assert!(shown.contains(&format!("setting: {path}: is not valid TOML")), "{shown}");
    let healthy = configured(&["doctor", "--json"], &folder, "threads = 1\n").done().json();
    assert_eq!(healthy["settings"], serde_json::json!([]));
    for call in [&["run", "--help"][..], &["--version"], &["help", "chat"]] {
        configured(call, &folder, "not TOML\n").done();
    }
    configured(&["list"], &folder, "not TOML\n").fails(2, "is not valid TOML");
}

#[test]
fn sizes_have_units() {
    let run = |size: &str| girih(&["run", "-q", "-n", "1", "--packed-cache-limit", size]);
    for size in ["5GB", "5GiB", "1.5gib", "200KB", "7"] {
        run(size).done();
    }
    run("5 parsecs").fails(2, "must be a size, such as 5GB, 5GiB or a number of bytes");
    let folder = Folder::new();
    configured(&["run", "-n", "1"], &folder, "packed-cache-limit = \"5GiB\"\n").done();
    configured(&["run"], &folder, "packed-cache-limit = \"5 parsecs\"\n")
        .fails(2, ":1: packed-cache-limit = \"5 parsecs\": must be");
    let npu = ["npu", "sim", "stories260k", "--target", "toy", "-c", "16"];
    girih(&npu).with(&["--blobs", folder.name(), "--blobs-limit", "1MiB"]).done();
    girih(&npu).with(&["--blobs-limit", "much"]).fails(2, "must be a size");
}

/// A key sets a required option, and one of two that exclude each other does not stop the other.
#[test]
fn settings_give_way_to_what_is_typed() {
    let folder = Folder::new();
    let model = fixture("llama32_tied");
    let golden = model.join("golden.safetensors");
    let file = format!("golden = {:?}\nreference = \"interpreter\"\n", name(&golden));
    configured(&["diagnose", name(&model), "--golden", name(&golden)], &folder, &file).done();
    configured(&["verify", name(&model)], &folder, &file).done();
}
