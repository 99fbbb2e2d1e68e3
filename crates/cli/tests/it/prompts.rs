//! `--prompt-cache`: what a later call finds, and where it does not apply.

use std::fs;

use crate::program::{Folder, fixture, girih};

#[test]
fn a_later_run_computes_only_what_is_new() {
    let (folder, model) = (Folder::new(), fixture("llama32_tied"));
    let prompts = format!("{}/prompts", folder.name());
    let run = |prompt: &str| {
        let call = girih(&["run", model.to_str().unwrap(), prompt, "--raw", "-n", "8", "--json"]);
        call.with(&["--context", "128"])
    };
    let text = "one two three four five six seven eight nine ten";
    let alone = run(text).done().json();
    let first = run(text).with(&["--prompt-cache", &prompts]).done().json();
    let second = run(text).env("GIRIH_PROMPT_CACHE", &prompts).done().json();
    for reply in [&first, &second] {
        assert_eq!(reply["ids"], alone["ids"]);
    }
    let tokens = alone["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        (first["cached_tokens"].as_u64(), second["cached_tokens"].as_u64()),
        (Some(0), Some(tokens - 1))
    );
    let bounded =
        run("another text").env("GIRIH_PROMPT_CACHE", &prompts).env("GIRIH_PROMPT_CACHE_LIMIT", "1");
    bounded.done();
    assert_eq!(fs::read_dir(&prompts).unwrap().count(), 1, "what exceeds the limit is not kept");
}

#[test]
fn the_built_in_model_has_no_prompt_cache() {
    let folder = Folder::new();
    let run = || girih(&["run", "stories260k", "Once", "-n", "2"]);
    run().with(&["--prompt-cache", folder.name()]).fails(2, "stories260k is not read from a file");
    run().env("GIRIH_PROMPT_CACHE", folder.name()).done();
    run().with(&["--prompt-cache-limit", "much"]).fails(2, "must be a size");
}
