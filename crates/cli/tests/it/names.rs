//! Names of models: aliases, and the nearest name of a misspelled one.

use std::os::unix::fs::PermissionsExt;

use crate::program::{Folder, fixture, girih, name, read};

/// A cache with one empty model.
fn cache_with(repo: &str) -> Folder {
    let folder = Folder::new();
    let model = format!("models--{}", repo.replace('/', "--"));
    std::fs::create_dir_all(folder.file(&model).join("snapshots")).expect("the folder is new");
    folder
}

#[test]
fn a_misspelled_model_is_answered_with_the_nearest_name() {
    girih(&["run", "storis260k", "a"]).fails(2, "did you mean 'stories260k'?");
    girih(&["tokenize", "stories26k", "a"]).fails(2, "did you mean 'stories260k'?");
    girih(&["inspect", "quite-another-name"]).fails(2, "quite-another-name");
    let cache = cache_with("Qwen/Qwen3-0.6B");
    let cached = |model: &str| girih(&["inspect", model]).env("HF_HUB_CACHE", cache.path());
    cached("Qwen/Qwen3-0.6b").fails(2, "did you mean 'Qwen/Qwen3-0.6B'?");
    cached("Qwen/Qwen-0.6B:Q4_0").fails(2, "did you mean 'Qwen/Qwen3-0.6B:Q4_0'?");
    assert!(!cached("Qwen/Qwen3-0.6B").fails(2, "girih pull").stderr.contains("did you mean"));
    let models = Folder::new();
    models.write("small-model.gguf", "");
    girih(&["inspect", name(&models.file("smal-model.gguf"))]).fails(2, "small-model.gguf'?");
}

#[test]
fn an_alias_is_used_wherever_a_model_is() {
    let folder = Folder::new();
    let file = folder.write("config.toml", "# mine\nn = 2 # two\n");
    let call = |words: &[&str]| girih(words).env("GIRIH_CONFIG", &file);
    let model = fixture("llama32_tied");
    call(&["alias", "tiny", name(&model)]).done();
    call(&["alias", "story", "stories260k"]).done();
    call(&["alias", "qwen", "Qwen/Qwen3-0.6B:Q8_0"]).done();
    let text = read(&file);
    assert!(text.starts_with("# mine\nn = 2 # two\n") && text.contains("[aliases]"), "{text}");
    let listed = call(&["alias"]).done().stdout;
    let whole = model.canonicalize().expect("it exists");
    assert_eq!(listed, format!("qwen   Qwen/Qwen3-0.6B:Q8_0\nstory  stories260k\ntiny   {}\n", name(&whole)));
    assert_eq!(call(&["alias", "--json"]).done().json()["story"], "stories260k");
    let all = call(&["list"]).done().stdout;
    assert!(all.contains("alias of Qwen/Qwen3-0.6B:Q8_0"), "{all}");
    assert_eq!(call(&["list", "--json"]).done().json()["aliases"]["story"], "stories260k");
    assert_eq!(call(&["alias", "story"]).done().stdout, "story  stories260k\n");
    call(&["run", "story", "Once", "-q"]).done();
    call(&["run", "-m", "tiny", "-p", "Once", "-q"]).done();
    assert_eq!(
        call(&["tokenize", "story", "a"]).done().stdout,
        call(&["tokenize", "stories260k", "a"]).done().stdout
    );
    call(&["inspect", "qwen"]).fails(2, "girih pull Qwen/Qwen3-0.6B:Q8_0");
    call(&["rm", "qwen"]).fails(2, "a single file (:Q8_0) cannot be removed");
    call(&["inspect", "stry"]).fails(2, "did you mean 'story'?");
    call(&["alias", "stry"]).fails(2, "unknown alias 'stry'; `girih alias` lists all; did you mean 'story'?");
    call(&["alias", "--remove", "story"]).done();
    call(&["alias", "--remove", "story"]).fails(2, "unknown alias 'story'");
    call(&["tokenize", "story", "a"]).fails(2, "story");
    assert_eq!(call(&["alias"]).done().stdout.lines().count(), 2);
    assert!(read(&file).starts_with("# mine\nn = 2 # two\n"));
}

/// The bug: of two calls that read the file at once, the second one's file lacked the first one's alias.
#[test]
fn aliases_that_are_set_in_parallel_are_all_kept() {
    let folder = Folder::new();
    let file = folder.file("new/config.toml");
    std::thread::scope(|scope| {
        for number in 0..24 {
            let call = girih(&["alias", &format!("a{number}"), "a/b"]).env("GIRIH_CONFIG", &file);
            scope.spawn(move || call.done());
        }
    });
    let listed = girih(&["alias", "--json"]).env("GIRIH_CONFIG", &file).done().json();
    let listed = listed.as_object().expect("aliases with their models");
    assert_eq!(listed.len(), 24, "{listed:?}");
}

#[test]
fn a_short_name_stands_for_the_vendors_id_which_is_printed() {
    let refused = girih(&["run", "qwen3:0.6b", "hi"]).fails(2, "girih pull Qwen/Qwen3-0.6B");
    assert!(refused.stderr.starts_with("qwen3:0.6b is Qwen/Qwen3-0.6B\n"), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 2, "{}", refused.stderr);
    let offline = |name: &str| girih(&["pull", name]).env("HF_HUB_OFFLINE", "1");
    let pulled = offline("llama3.2").end().stderr;
    assert!(pulled.starts_with("llama3.2 is meta-llama/Llama-3.2-3B-Instruct\n"), "{pulled}");
    offline("qwen3:0.5b").fails(2, "did you mean 'qwen3:0.6b'?");
    girih(&["run", "lama3.2", "hi"]).fails(2, "did you mean 'llama3.2'?");
    // An alias and a file come first.
    let folder = Folder::new();
    let file = folder.write("config.toml", "[aliases]\n\"qwen3:0.6b\" = \"stories260k\"\n");
    let ended = girih(&["tokenize", "qwen3:0.6b", "a"]).env("GIRIH_CONFIG", &file).done();
    assert_eq!(ended.stderr, "");
}

#[test]
fn an_alias_hides_no_model_and_no_file() {
    let folder = Folder::new();
    let file = folder.file("new/config.toml");
    let call = |words: &[&str]| girih(words).env("GIRIH_CONFIG", &file);
    call(&["alias", "stories260k", "a/b"]).fails(2, "'stories260k': is the name of the built-in model");
    // The tests run in the crate's folder.
    call(&["alias", "Cargo.toml", "a/b"]).fails(2, "is the name of a file here");
    for wrong in ["a/b", "./a", "~a", "a b", ""] {
        call(&["alias", wrong, "a/b"]).fails(2, "choose another name");
    }
    call(&["alias", "mine", "one-word"]).fails(2, "is not a model id");
    call(&["alias", "mine", "/nowhere/model.gguf"]).fails(2, "name a model that exists");
    assert!(!file.exists(), "a refused alias writes nothing");
    // One that was written by hand does nothing.
    let folder = Folder::new();
    let by_hand = folder.write("config.toml", "[aliases]\nstories260k = \"a/b\"\n");
    let ended = girih(&["tokenize", "stories260k", "a"]).env("GIRIH_CONFIG", &by_hand).done();
    assert!(ended.stderr.contains("the alias 'stories260k' is never used"), "{}", ended.stderr);
    // No alias is built in.
    let none = girih(&["alias"]).done();
    assert_eq!(
        (none.stdout.as_str(), none.stderr.as_str()),
        ("", "no aliases; `girih alias NAME MODEL` adds one\n")
    );
}

#[test]
fn the_file_keeps_its_mode_and_a_link_stays() {
    let folder = Folder::new();
    let file = folder.write("config.toml", "n = 2\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    girih(&["alias", "s", "stories260k"]).env("GIRIH_CONFIG", &file).done();
    assert_eq!(std::fs::metadata(&file).expect("it exists").permissions().mode() & 0o777, 0o600);
    let link = folder.file("link.toml");
    std::os::unix::fs::symlink(&file, &link).expect("it is ours");
    girih(&["alias", "t", "stories260k"])
        .env("GIRIH_CONFIG", &link)
        .fails(1, "link.toml: is a link and was kept");
    assert!(link.symlink_metadata().expect("it exists").is_symlink() && !read(&file).contains("t ="));
    folder.write("config.toml", "aliases = 3\n");
    girih(&["alias", "t", "stories260k"]).env("GIRIH_CONFIG", &file).fails(2, "must be a table");
    // In the default place, the folder is made.
    let home = Folder::new();
    girih(&["alias", "s", "stories260k"]).env("XDG_CONFIG_HOME", home.path()).done();
    assert_eq!(read(&home.file("girih/config.toml")), "[aliases]\ns = \"stories260k\"\n");
}
