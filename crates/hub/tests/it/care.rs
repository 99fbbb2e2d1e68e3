//! Offline lookup, and the listing, removal and repair of cached models.

use std::fs;
use std::os::unix::fs::symlink;

use girih_hub::{HubEnv, RevisionFault, Unfinished, UnfinishedFiles, find, keep_only, list, remove, repair};
use girih_tensor::ErrorKind;

use super::{CONFIG, Cache, WEIGHTS, assert_says, id, pull_from, repo, weights};
use crate::server::{COMMIT, Repo, Server, blob_name};

/// A second commit, made by hand, that shares `config.json` and adds a file.
const OTHER: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const EXTRA: &[u8] = b"extra";

fn env(cache: &Cache) -> HubEnv {
    HubEnv::new(&cache.0, "http://127.0.0.1:1")
}

fn pulled() -> Cache {
    let cache = Cache::new();
    pull_from(&cache, &Server::of_repo(&repo())).unwrap();
    cache
}

fn add_other(cache: &Cache) {
    let snapshot = cache.repo().join("snapshots").join(OTHER);
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(cache.blob("extra.json", EXTRA), EXTRA).unwrap();
    for (name, bytes) in [("config.json", CONFIG), ("extra.json", EXTRA)] {
        symlink(format!("../../blobs/{}", blob_name(name, bytes)), snapshot.join(name)).unwrap();
    }
    fs::write(cache.repo().join("refs/v1"), OTHER).unwrap();
}

#[test]
fn the_error_of_a_missing_model_names_the_pull_command() {
    let cache = Cache::new();
    assert_says(find(&id("org/name"), &env(&cache)), "run `girih pull org/name`");
    assert_eq!(find(&id("org/name"), &env(&cache)).unwrap_err().kind(), ErrorKind::NotFound);
    let cache = pulled();
    for absent in ["org/name@v9", "org/name:Q4_0"] {
        assert_eq!(find(&id(absent), &env(&cache)).unwrap_err().kind(), ErrorKind::NotFound, "{absent}");
    }
    assert_says(find(&id("org/name@v9"), &env(&cache)), "run `girih pull org/name@v9`");
    assert_says(find(&id("org/name:Q4_0"), &env(&cache)), "the model has no GGUF files, so no Q4_0");
    assert_eq!(find(&id(&format!("org/name@{COMMIT}")), &env(&cache)).unwrap().path(), cache.file(""));
}

#[test]
fn a_ref_that_is_not_a_commit_is_refused() {
    let cache = pulled();
    fs::write(cache.repo().join("refs/main"), "../../../../etc").unwrap();
    assert_says(find(&id("org/name"), &env(&cache)), "is not a commit");
}

#[test]
fn an_incomplete_snapshot_is_refused() {
    let cache = pulled();
    fs::remove_file(cache.blob(WEIGHTS, &weights())).unwrap();
    assert_says(find(&id("org/name"), &env(&cache)), "model.safetensors is missing");

    let index =
        br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    let half =
        Repo::of(&[("model.safetensors.index.json", index), ("model-00001-of-00002.safetensors", b"x")]);
    let cache = Cache::new();
    pull_from(&cache, &Server::of_repo(&half)).unwrap();
    assert_says(find(&id("org/name"), &env(&cache)), "model-00002-of-00002.safetensors is missing");
}

#[test]
fn list_reports_revisions_bytes_and_missing_files() {
    let cache = pulled();
    add_other(&cache);
    fs::create_dir_all(cache.0.join("datasets--a--b")).unwrap();
    fs::remove_file(cache.blob(WEIGHTS, &weights())).unwrap();
    let models = list(&env(&cache)).unwrap();
    assert_eq!(models.len(), 1);
    assert_eq!(models[0].repo, "org/name");
    let [main, other] = models[0].revisions.as_slice() else { panic!("{models:?}") };
    assert_eq!((main.commit.as_str(), main.names.join(",").as_str()), (COMMIT, "main"));
    assert_eq!(main.fault, Some(RevisionFault::MissingFile(WEIGHTS.to_owned())));
    assert_eq!((other.names.join(","), other.files, other.bytes, &other.fault), ("v1".into(), 2, 27, &None));
    assert!(list(&HubEnv::new(cache.0.join("none"), "")).unwrap().is_empty());
}

#[test]
fn removing_a_revision_keeps_shared_blobs() {
    let cache = pulled();
    add_other(&cache);
    let removed = remove(&id("org/name@main"), &env(&cache)).unwrap();
    assert_eq!((removed.revisions, removed.files, removed.bytes), (1, 1, 300_000));
    assert!(!cache.blob(WEIGHTS, &weights()).exists() && !cache.repo().join("refs/main").exists());
    assert_eq!(
        fs::read(find(&id("org/name@v1"), &env(&cache)).unwrap().folder.join("config.json")).unwrap(),
        CONFIG
    );
    // Removing the last revision removes the model.
    remove(&id(&format!("org/name@{OTHER}")), &env(&cache)).unwrap();
    assert!(!cache.repo().exists());
    assert_says(remove(&id("org/name"), &env(&cache)), "is not in the cache");
    assert_eq!(remove(&id("org/name"), &env(&cache)).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(remove(&id("org/name:Q8_0"), &env(&cache)).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn keeping_one_commit_removes_all_else_of_the_model() {
    let cache = pulled();
    add_other(&cache);
    let unfinished = format!("{}.girih-partial", blob_name("new.safetensors", b"new"));
    fs::write(cache.repo().join("blobs").join(&unfinished), "ne").unwrap();
    let removed = keep_only(&id("org/name"), COMMIT, &env(&cache)).unwrap();
    assert_eq!((removed.revisions, removed.files, removed.bytes), (1, 2, 2 + EXTRA.len() as u64));
    assert!(find(&id("org/name@v1"), &env(&cache)).is_err());
    assert_eq!(find(&id("org/name"), &env(&cache)).unwrap().path(), cache.file(""));
    assert_eq!(keep_only(&id("org/name"), COMMIT, &env(&cache)).unwrap().files, 0);
}

#[test]
fn removing_a_model_touches_nothing_else() {
    let cache = pulled();
    let outside = cache.0.join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("kept"), b"kept").unwrap();
    symlink(&outside, cache.file("link-to-folder")).unwrap();
    symlink(&outside, cache.0.join("models--org--link")).unwrap();
    assert_says(remove(&id("org/link"), &env(&cache)), "is not in the cache");
    assert_says(remove(&id("org/name:Q4_0"), &env(&cache)), "a single file (:Q4_0) cannot be removed");
    remove(&id("org/name"), &env(&cache)).unwrap();
    assert!(!cache.repo().exists());
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
}

#[test]
fn repair_finds_a_flipped_bit_and_a_pull_restores_the_file() {
    let cache = pulled();
    let clean = repair(&env(&cache), UnfinishedFiles::Keep, &mut |_, _| {}).unwrap();
    assert_eq!((clean.good, clean.removed.len(), clean.pull_again.len()), (2, 0, 0));

    let mut bytes = weights();
    bytes[1234] ^= 1;
    fs::write(cache.blob(WEIGHTS, &weights()), bytes).unwrap();
    fs::write(cache.partial("x.json", b"x"), b"stale").unwrap();
    fs::write(cache.repo().join("blobs/not-a-digest"), b"?").unwrap();
    let mut seen = 0;
    let report = repair(&env(&cache), UnfinishedFiles::Remove, &mut |_, bytes| seen += bytes).unwrap();
    assert_eq!(seen, 300_022);
    assert_eq!((report.good, report.removed.len(), report.unverified.len()), (1, 3, 1));
    assert_eq!(report.pull_again, ["org/name@main"]);
    assert!(!cache.blob(WEIGHTS, &weights()).exists() && !cache.file(WEIGHTS).is_symlink());

    pull_from(&cache, &Server::of_repo(&repo())).unwrap();
    assert!(fs::read(cache.file(WEIGHTS)).unwrap() == weights());
}

#[test]
fn repair_keeps_what_a_pull_can_resume() {
    let cache = pulled();
    let partial = cache.partial("x.json", b"x");
    fs::write(&partial, b"half").unwrap();
    let foreign = cache.repo().join("blobs").join(format!("{}.incomplete", "0".repeat(64)));
    fs::write(&foreign, b"other").unwrap();
    let models = list(&env(&cache)).unwrap();
    assert_eq!(models[0].unfinished, Unfinished { files: 2, bytes: 9 });
    // That of huggingface_hub is young and may be in use; it is neither removed nor counted as kept.
    let report = repair(&env(&cache), UnfinishedFiles::Keep, &mut |_, _| {}).unwrap();
    assert_eq!((report.kept.as_slice(), report.removed.len()), ([partial.clone()].as_slice(), 0));
    assert!(partial.exists() && foreign.exists());
    let report = repair(&env(&cache), UnfinishedFiles::Remove, &mut |_, _| {}).unwrap();
    assert_eq!((report.kept.len(), report.removed.len()), (0, 1));
    assert!(!partial.exists() && foreign.exists());
}

#[test]
fn an_unfinished_model_without_a_revision_is_listed() {
    let cache = Cache::new();
    let partial = cache.partial(WEIGHTS, &weights());
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, [0; 1000]).unwrap();
    let models = list(&env(&cache)).unwrap();
    assert_eq!(models[0].unfinished, Unfinished { files: 1, bytes: 1000 });
    assert!(models[0].revisions.is_empty());
    assert_says(find(&id("org/name"), &env(&cache)), "its download is unfinished");
}

#[test]
fn a_pull_writes_through_no_planted_link() {
    let cache = Cache::new();
    let (partial, victim) = (cache.partial(WEIGHTS, &weights()), cache.0.join("victim"));
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&victim, vec![7; 400_000]).unwrap();
    let server = Server::of_repo(&repo());
    symlink(&victim, &partial).unwrap();
    let error = assert_says(pull_from(&cache, &server), "it is a link; a regular file");
    assert!(error.contains(".girih-partial"), "{error}");
    fs::remove_file(&partial).unwrap();
    fs::hard_link(&victim, &partial).unwrap();
    assert_says(pull_from(&cache, &server), "it is a file with other names; a regular file");
    fs::remove_file(&partial).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &partial, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert_says(pull_from(&cache, &server), "it is a pipe or a device; a regular file");
    fs::remove_file(&partial).unwrap();
    symlink(&victim, cache.repo().join(".girih-ref")).unwrap();
    pull_from(&cache, &server).unwrap();
    assert_eq!(fs::read_to_string(cache.repo().join("refs/main")).unwrap(), COMMIT);
    assert!(fs::read(&victim).unwrap() == vec![7; 400_000]);
    let names = fs::read_dir(cache.repo()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with(".girih-ref.")).count(), 0);
}
