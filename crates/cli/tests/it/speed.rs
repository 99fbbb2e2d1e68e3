//! `bench` and `profile`: their rows add up and describe what they measured.

use serde_json::Value;

use crate::program::{Call, Folder, girih};

/// The value of a number in a JSON object.
fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} is not a number in {value}"))
}

const SMALL: [&str; 10] = ["stories260k", "-p", "24,0", "-n", "8", "-d", "0,16", "-r", "3", "--quiet"];

#[test]
fn bench_prints_the_rows_of_llama_bench() {
    let ended = girih(&["bench"]).with(&SMALL).with(&["--json", "--threads", "2"]).done();
    let rows = ended.json();
    let rows = rows["rows"].as_array().expect("a list of rows");
    let tests: Vec<&str> = rows.iter().filter_map(|row| row["test"].as_str()).collect();
    assert_eq!(tests, ["pp24", "tg8", "pp24 @ d16", "tg8 @ d16"]);
    for row in rows {
        assert_eq!(row["samples_ts"].as_array().map(Vec::len), Some(3));
        let (min, median, max) = (number(row, "min_ts"), number(row, "median_ts"), number(row, "max_ts"));
        assert!(0.0 < min && min <= median && median <= max, "{row}");
        assert_eq!((number(row, "n_threads"), row["type_k"].as_str()), (2.0, Some("f16")));
        // The tied table counts once; girih computes the rotary frequencies itself.
        assert_eq!(number(row, "model_n_params"), 260_032.0, "{row}");
        // A model of a megabyte lies in the caches, and no share is above the limit.
        let fraction = row["fraction_of_limit"].as_f64();
        assert!(fraction.is_none_or(|fraction| 0.0 < fraction && fraction <= 1.0), "{row}");
        assert!(row["limit"].is_string(), "{row}");
        let start = row["start"].as_object().expect("phases");
        let names: Vec<&str> = start.keys().map(String::as_str).collect();
        assert_eq!(names, ["open", "plan", "weights", "state", "compile", "first_token", "total"]);
        assert_eq!(number(row, "first_token_seconds"), number(&row["start"], "total"));
    }
    // A generated token reads every matrix once, and at depth more keys and
    // values.
    let bytes = |index: usize| number(&rows[index], "bytes_per_token");
    assert!(bytes(3) > bytes(1), "{} {}", bytes(3), bytes(1));
}

/// Parallel sequences share the bytes of the weights.
#[test]
fn parallel_sequences_are_timed_together() {
    let bench =
        girih(&["bench", "stories260k", "-p", "0", "-n", "8", "-d", "70", "-r", "1", "--parallel", "4"]);
    let rows = bench.with(&["-o", "json", "--quiet", "--no-limits"]).done().json();
    assert_eq!((rows[0]["test"].as_str(), number(&rows[0], "n_parallel")), (Some("tg8 x4 @ d70"), 4.0));
    let alone = girih(&["bench", "stories260k", "-p", "0", "-n", "8", "-d", "70", "-r", "1"]);
    let alone = alone.with(&["-o", "json", "--quiet", "--no-limits"]).done().json();
    let bytes = |rows: &Value| number(&rows[0], "bytes_per_token");
    assert!(bytes(&rows) < bytes(&alone) && 4.0 * bytes(&rows) > bytes(&alone));
    assert_eq!(number(&rows[0], "operations_per_token"), number(&alone[0], "operations_per_token"));
}

/// The built-in model has a context of 512 tokens.
#[test]
fn bench_fits_its_default_rows_into_the_context_and_refuses_others_before_it_measures() {
    let bench = || girih(&["bench", "stories260k", "-r", "1"]);
    let names = |more: &[&str]| -> Vec<String> {
        let rows = bench().with(&["--no-limits", "--json"]).with(more).done().json();
        let rows = rows["rows"].as_array().expect("a list").clone();
        rows.iter().map(|row| row["test"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&[]), ["pp511", "tg128"]);
    assert_eq!(names(&["-d", "450"]), ["pp61 @ d450", "tg61 @ d450"]);
    assert_eq!(names(&["-c", "100", "-n", "0"]), ["pp99"]);
    let refused = bench().with(&["-p", "512", "-n", "0"]).fails(2, "a context of 513 tokens");
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    bench().with(&["-d", "512"]).fails(2, "the model supports 512: time fewer tokens");
}

#[test]
fn bench_prints_csv_and_tables_and_appends_to_a_record() {
    let bench = || girih(&["bench"]).with(&SMALL).with(&["--no-limits"]);
    let csv = bench().with(&["-o", "csv"]).done().stdout;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5, "{csv}");
    assert!(lines[0].contains(",test,") && lines[1].contains(",pp24,"), "{csv}");
    let folder = Folder::new();
    let table = bench().with(&["--record", folder.name()]).done().stdout;
    assert_eq!(table.lines().count(), 6, "{table}");
    bench().with(&["--record", folder.name()]).done();
    let files: Vec<_> = std::fs::read_dir(folder.path()).expect("it is there").flatten().collect();
    assert_eq!(files.len(), 1);
    let record = std::fs::read_to_string(files[0].path()).expect("it is readable");
    assert_eq!(record.lines().count(), 9, "{record}");
    assert!(record.lines().next().is_some_and(|names| names.ends_with(",model_sha256")), "{record}");
    let digests: Vec<&str> = record.lines().skip(1).filter_map(|row| row.rsplit(',').next()).collect();
    assert!(digests.iter().all(|digest| digest.len() == 64 && *digest == digests[0]), "{record}");
}

/// Notes and bars would stand between the rows of a table on one terminal.
#[test]
fn bench_prints_its_heading_after_the_model_was_found_and_notes_after_the_table() {
    let missing = girih(&["bench", "stories260k", "./nowhere.gguf", "--no-limits"]).end();
    assert_eq!((missing.code, missing.stdout.as_str()), (2, ""));
    assert_eq!(missing.stderr.lines().count(), 1, "{}", missing.stderr);
    let bench = || girih(&["bench", "stories260k", "-p", "8", "-n", "4", "-r", "1"]).env("TERM", "xterm");
    let ended = bench().with(&["-v"]).done();
    assert_eq!(ended.stdout.lines().count(), 4, "{}", ended.stdout);
    assert!(ended.stderr.contains("stories260k: start: open "), "{}", ended.stderr);
    assert!(!bench().done().stderr.contains("start: "));
    for row in ended.stdout.lines().skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let share = cells[10].split(" % of ").next().unwrap_or_default();
        let percent = share.parse::<f64>();
        assert!(matches!(share, "in cache" | "–") || percent.is_ok_and(|percent| percent <= 100.0), "{row}");
        assert!(
            share != "in cache" || ended.stderr.contains("in cache: the processor's caches"),
            "{}",
            ended.stderr
        );
    }
}

/// How much work of this call shows a bar. It is shown after a second, and a fast machine does more work in one.
fn work_that_shows_a_bar(name: &str, call: impl Fn(usize) -> Call) -> usize {
    let mut seen = String::new();
    let shows = |work: &usize| {
        let shown = call(*work).stderr_on_terminal();
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        seen = shown.stderr;
        seen.contains(name) && seen.contains("s left")
    };
    [1, 2, 4, 8].into_iter().find(shows).unwrap_or_else(|| panic!("no bar: {seen:?}"))
}

#[test]
fn long_measurements_show_a_bar_with_the_time_left_on_a_terminal_only() {
    let folder = Folder::new();
    let call = |arguments: &[&str]| girih(arguments).with(&["--backend", "interpreter"]).env("TERM", "xterm");
    let score = |work: usize| {
        let text = "Once upon a time, there was a little girl named Lily. ".repeat(150 * work);
        call(&["perplexity", "stories260k", crate::program::name(&folder.write("text", &text))])
    };
    let bench = |work: usize| {
        let repetitions = (8 * work).to_string();
        call(&["bench", "stories260k", "-p", "0", "-n", "400", "-r", &repetitions, "--no-limits"])
    };
    let work = work_that_shows_a_bar("scoring [", score);
    work_that_shows_a_bar("measuring [", bench);
    let quiet = score(work).with(&["-q"]).stderr_on_terminal();
    assert_eq!((quiet.code, quiet.stderr.as_str()), (0, ""));
    assert!(!score(work).done().stderr.contains('['));
}

#[test]
fn bench_refuses_tests_that_it_cannot_time() {
    girih(&["bench", "stories260k", "-p", "0", "-n", "0"]).fails(2, "nothing to time");
    girih(&["bench", "stories260k", "-p", "4096", "--no-limits"]).fails(2, "the model supports 512");
    let long = ["bench", "stories260k", "-p", "200", "--context", "100", "--no-limits"];
    girih(&long).fails(2, "--context is 100");
    girih(&["bench", "stories260k", "-r", "0"]).fails(2, "--repetitions");
}

#[test]
fn the_nodes_of_a_profile_add_up() {
    let profile = || girih(&["profile", "stories260k", "-p", "40", "-n", "12", "-d", "8", "--chunk", "16"]);
    let ended = profile().with(&["--json"]).done().json();
    for (name, tokens, steps) in [("prefill", 40.0, 3.0), ("decode", 12.0, 12.0)] {
        let part = &ended["profile"][name];
        assert_eq!((number(part, "tokens"), number(part, "steps")), (tokens, steps));
        let rows = part["rows"].as_array().expect("a list of rows");
        let sum: f64 = rows.iter().map(|row| number(row, "seconds")).sum();
        assert!((sum - number(part, "node_seconds")).abs() < 1e-9);
        assert!(sum <= number(part, "wall_seconds"));
        // 5 layers, each with a down projection whose result is added to the residual stream.
        let down = rows.iter().filter(|row| row["nodes"] == "layers.*.ffn.down+out");
        assert_eq!(down.map(|row| number(row, "count")).sum::<f64>(), 5.0 * steps);
    }
    let text = profile().with(&["--no-limits"]).done().stdout;
    assert!(text.contains("decode: 12 tokens in 12 steps"), "{text}");
    assert!(text.contains("all nodes: "), "{text}");
    let short = girih(&["profile", "stories260k", "--no-limits"]).done().stdout;
    assert!(short.contains("prefill: 480 tokens "), "512 positions less 32 decoded ones: {short}");
    girih(&["profile", "stories260k", "-p", "600"]).fails(2, "the model supports 512");
    girih(&["profile", "stories260k", "-p", "0", "-n", "0"]).fails(2, "0 tokens cannot be run");
}

#[test]
fn touched_weights_are_timed_apart() {
    let bench =
        || girih(&["bench", "stories260k", "-p", "4", "-n", "8", "-r", "2", "--no-limits", "--quiet"]);
    let rows = |more: &[&str]| bench().with(&["-o", "json"]).with(more).done().json();
    let alone = rows(&[]);
    let touched = rows(&["--touch", "3MB:64"]);
    assert!(alone[1]["touch"].is_null() && touched[0]["touch"].is_null(), "{alone}{touched}");
    let touch = &touched[1]["touch"];
    // Two repetitions of eight tokens.
    assert_eq!((number(touch, "bytes"), number(touch, "stride")), (16.0 * 3e6, 64.0));
    assert!(number(touch, "seconds") > 0.0 && touch["checksum"].is_number(), "{touch}");
    let seconds = |rows: &Value| {
        rows[1]["samples_ns"].as_array().expect("samples").iter().filter_map(Value::as_f64).sum::<f64>() / 1e9
    };
    let whole = rows(&["--touch", "30MB:64", "--touch-in-window"]);
    assert!(seconds(&whole) >= number(&whole[1]["touch"], "seconds"), "{whole}");
    // The same bytes give the same sum, whatever the tokens are.
    assert_eq!(rows(&["--touch", "3MB:64"])[1]["touch"]["checksum"], touch["checksum"]);
    bench().with(&["--touch", "0"]).fails(2, "at least one byte");
    bench().with(&["--touch", "1MB:x"]).fails(2, "must be a size");
    bench().with(&["--touch", "1MB", "--parallel", "2"]).fails(2, "omit --parallel or --touch");
    bench().with(&["--touch-in-window"]).fails(2, "--touch");
    bench().with(&["--touch", "1MB", "--backend", "interpreter"]).fails(1, "use backend cpu");
}

#[test]
fn a_row_counts_the_bytes_that_its_tokens_read() {
    let rows = girih(&["bench", "stories260k", "-p", "0", "-n", "8", "-r", "2", "--no-limits", "--quiet"]);
    let rows = rows.with(&["-o", "json"]).done().json();
    let row = &rows[0];
    let per_token = number(row, "bytes_per_token");
    assert!((number(row, "bytes_touched") - 8.0 * per_token).abs() < 1.0, "{row}");
    let coverage = per_token / number(row, "model_size");
    assert!((number(row, "coverage") - coverage).abs() < 1e-9, "{row}");
    assert!(number(row, "effective_gb_s") > 0.0, "{row}");
    assert_eq!(number(&row["latency_ms"], "samples"), 16.0);
}
