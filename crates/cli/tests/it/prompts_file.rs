//! `run --prompts-file` and `--compat-ie`: replies to several prompts, their counts and their latencies.

use serde_json::Value;

use crate::program::{Ended, Folder, girih, name};

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} is not a number in {value}"))
}

fn lines(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn each_prompt_of_each_round_has_a_line_and_all_have_totals() {
    let folder = Folder::new();
    let prompts = folder.write("prompts", "Once upon a time\n\nThe dog\r\n");
    let call = ["run", "stories260k", "--prompts-file", name(&prompts), "--rounds", "2", "-n", "8", "-q"];
    let lines = lines(&girih(&call).done());
    let (totals, replies) = lines.split_last().expect("there are lines");
    let places: Vec<_> =
        replies.iter().map(|line| (line["round"].as_u64(), line["prompt"].as_u64())).collect();
    let expected = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(round, prompt)| (Some(round), Some(prompt)));
    assert_eq!(places, expected);
    let alone = girih(&["run", "stories260k", "The dog", "-n", "8", "--json", "-q"]).done().json();
    for index in [1, 3] {
        assert_eq!(replies[index]["ids"], alone["ids"]);
    }
    // The second round finds all but the last token of each prompt.
    let tokens = number(&replies[0], "prompt_tokens");
    assert_eq!(number(&replies[2]["kv_cache"], "hits"), tokens - 1.0);
    assert_eq!(number(&replies[2]["kv_cache"], "misses"), 1.0);
    for line in replies.iter().chain([&alone]) {
        let latency = &line["latency_ms"];
        let [p50, p95, p99, max] = ["p50", "p95", "p99", "max"].map(|name| number(latency, name));
        assert!(0.0 < p50 && p50 <= p95 && p95 <= p99 && p99 <= max, "{latency}");
        assert_eq!(number(latency, "samples"), number(&line["decode"], "tokens"));
        let decode = number(&line["decode"], "seconds");
        assert!(max <= 1e3 * decode && number(line, "wall_seconds") >= decode, "{line}");
    }
    let totals = &totals["totals"];
    let sum = |of: &dyn Fn(&Value) -> f64| replies.iter().map(of).sum::<f64>();
    assert_eq!((number(totals, "prompts"), number(totals, "rounds")), (2.0, 2.0));
    assert_eq!(number(totals, "generated_tokens"), 32.0);
    assert_eq!(number(&totals["latency_ms"], "samples"), sum(&|line| number(&line["latency_ms"], "samples")));
    assert_eq!(number(&totals["kv_cache"], "hits"), sum(&|line| number(&line["kv_cache"], "hits")));
    let wall = sum(&|line| number(line, "wall_seconds"));
    assert!((number(totals, "wall_seconds") - wall).abs() <= 1e-9 * wall);
    assert!(number(&totals["memory"], "peak_resident") > 0.0);
}

#[test]
fn the_line_of_ie_core_has_its_keys_and_nothing_that_was_not_measured() {
    let folder = Folder::new();
    let line = girih(&["run", "stories260k", "Once", "-n", "6", "--compat-ie", "-q"]).done().json();
    let mut keys: Vec<&String> = line.as_object().expect("an object").keys().collect();
    keys.sort();
    assert_eq!(
        keys,
        [
            "kv_hits",
            "kv_misses",
            "latency_p50_ms",
            "latency_p95_ms",
            "rss_peak_mb",
            "tokens",
            "tokens_generated",
            "tps_true",
            "wall_time_s"
        ]
    );
    assert_eq!((number(&line, "tokens_generated"), line["tokens"].as_array().map(Vec::len)), (6.0, Some(6)));
    let rate = 6.0 / number(&line, "wall_time_s");
    assert!((number(&line, "tps_true") - rate).abs() <= 1e-9 * rate, "{line}");
    assert!(number(&line, "latency_p50_ms") <= number(&line, "latency_p95_ms"));
    let one = folder.write("one", "Once\n");
    let call = ["run", "stories260k", "--prompts-file", name(&one), "--compat-ie", "-n", "1", "-q"];
    let line = girih(&call).done().json();
    assert!(line["latency_p50_ms"].is_null(), "one token has no latency after a first one: {line}");
}

#[test]
fn what_does_not_fit_prompts_of_a_file_is_refused() {
    let folder = Folder::new();
    let (empty, one) = (folder.write("empty", "\n\n"), folder.write("one", "Once\n"));
    let run = |more: &[&str]| girih(&["run", "stories260k"]).with(more);
    run(&["--prompts-file", name(&empty)]).fails(2, "has no prompt; write one on each line");
    run(&["--prompts-file", "/no/such/file"]).fails(2, "/no/such/file");
    run(&["--rounds", "2", "Once"]).fails(2, "cannot be used with");
    run(&["--rounds", "2"]).fails(2, "--prompts-file");
    for more in [&["--jsonl"][..], &["Once"], &["--image", "x.png"]] {
        run(&[&["--prompts-file", name(&one)], more].concat()).fails(2, "cannot be used with");
    }
    run(&["Once", "--compat-ie", "--json"]).fails(2, "cannot be used with");
}

#[test]
fn options_of_ie_core_mean_the_same_or_say_what_to_do() {
    let folder = Folder::new();
    let prompts = folder.write("prompts", "Once\n");
    let words = [
        "run",
        "--model-dir",
        "stories260k",
        "--prompts-file",
        name(&prompts),
        "--max-new",
        "3",
        "--compat-ie",
        "-q",
    ];
    assert_eq!(number(&girih(&words).done().json(), "tokens_generated"), 3.0);
    let run = |option: &str| girih(&["run", "stories260k", "Once", option, "x"]);
    run("--precision").fails(2, "the model's files decide");
    run("--pretranspose").fails(2, "girih always packs weights; remove --pretranspose");
    run("--prefetch").fails(2, "measures the distance");
}
