//! Packed weights: who writes them, and when.

use std::time::{Duration, Instant};

use crate::program::{Folder, girih};
use crate::random_model::random_llama;

/// The names in the folder of packed weights.
fn names(home: &Folder) -> Vec<String> {
    let entries = home.file(".cache/girih/packed").read_dir().expect("the run has made it");
    entries.map(|entry| entry.expect("it reads").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_process_of_its_own_ends_the_file_of_packed_weights() {
    let (model, home) = (random_llama(512, 4), Folder::new());
    let run = |mode| {
        let call = ["run", model.name(), "Hi", "-n", "1", "-q", "--packed-cache", mode];
        girih(&call).env("HOME", home.name()).done()
    };
    let cold = run("on");
    let begun = Instant::now();
    while names(&home).iter().any(|name| name.ends_with(".part")) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", names(&home));
        std::thread::sleep(Duration::from_millis(10));
    }
    let kept = names(&home);
    assert!(kept.len() == 1 && kept[0].ends_with(".packed"), "{kept:?}");
    assert_eq!(run("auto").stdout, cold.stdout);
    assert_eq!(names(&home), kept, "the second start read it");
    // The command is girih's own.
    girih(&["sync-worker", "one"]).fails(2, "");
    assert!(!girih(&["--help"]).done().stdout.contains("sync-worker"));
}
