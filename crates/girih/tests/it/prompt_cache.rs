//! The prompt cache: a later session computes only what an earlier one has not, with the same bytes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use girih::{DType, ErrorKind, Event, Model, Progress, PromptCache, Request, Result, RunOptions, Tenant};
use tempfile::TempDir;

/// A model, and a folder for its prompt cache.
struct Workplace {
    model: &'static str,
    folder: Arc<TempDir>,
}

impl Workplace {
    fn new(model: &'static str) -> Workplace {
        Workplace { model, folder: Arc::new(tempfile::tempdir().unwrap()) }
    }

    /// The folder of the prompt cache, which a session makes.
    fn cache(&self) -> PathBuf {
        self.folder.path().join("prompts")
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cache()).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn options(&self, limit: u64) -> RunOptions {
        let prompt_cache = Some(PromptCache { folder: self.cache(), limit });
        RunOptions { prompt_cache, ..RunOptions::default() }
    }

    /// The ids of a reply in a session of its own, the number of cached tokens, and the notes.
    fn ask(&self, options: RunOptions, request: Request) -> (Vec<u32>, u32, Vec<String>) {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&notes);
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let model = Model::open(fixtures.join(self.model).to_str().unwrap()).unwrap();
        let tell = move |progress| {
            if let Progress::Note(note) = progress {
                sink.lock().unwrap().push(note);
            }
        };
        let session = model.plan(options).unwrap().start(tell).unwrap();
        let (mut ids, mut cached) = (Vec::new(), 0);
        for event in session.generate(request).unwrap() {
            match event.unwrap() {
                Event::Token { id, .. } => ids.push(id),
                Event::Finished { stats, .. } => cached = stats.cached,
                _ => {}
            }
        }
        drop(session);
        let notes = notes.lock().unwrap().clone();
        (ids, cached, notes)
    }
}

const LIMIT: u64 = 1 << 30;

fn request() -> Request {
    let tokens: Vec<u32> = (0..200).map(|i| 3 + i * 37 % 250).collect();
    Request::new(tokens).max_tokens(20).without_text()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_later_session_finds_the_prompts_of_an_earlier_one() {
    // The layers of the second have windows.
    ["llama32_tied", "gemma3_text"].into_iter().for_each(finds_the_prompts_of_an_earlier_session);
}

fn finds_the_prompts_of_an_earlier_session(model: &'static str) {
    let place = Workplace::new(model);
    let alone = place.ask(RunOptions::default(), request());
    let options = || place.options(LIMIT);
    assert_eq!(place.ask(options(), request()), (alone.0.clone(), 0, vec![]));
    let files = place.files();
    assert_eq!((files.len(), mode(&place.cache()), mode(&files[0])), (1, 0o700, 0o400));
    assert_eq!(place.ask(options(), request()), (alone.0.clone(), 199, vec![]));
    assert_eq!(place.files(), files, "the same tokens are kept once");
    // With other threads and chunks, the state is the same.
    let chunked = RunOptions { chunk: 9, sequences: 3, ..options() };
    assert_eq!(place.ask(chunked, request()), (alone.0.clone(), 199, vec![]));
    let of_another = request().tenant(Tenant::new("other"));
    assert_eq!(place.ask(options(), of_another), (alone.0.clone(), 0, vec![]));
    assert_eq!(place.ask(options(), request().tenant(Tenant::new("other"))).1, 199);
    assert_eq!(place.files().len(), 2);
}

#[test]
fn prompts_saved_with_another_type_of_kv_cache_are_named_and_not_used() {
    let place = Workplace::new("llama32_tied");
    let options = |kv| RunOptions { kv, ..place.options(LIMIT) };
    let (wide, _, notes) = place.ask(options(Some(DType::F32)), request());
    assert_eq!(notes, [] as [&str; 0]);
    let (_, cached, notes) = place.ask(options(None), request());
    assert_eq!(cached, 0);
    let [note] = &notes[..] else { panic!("one note: {notes:?}") };
    let sentence = "1 of the saved prompts are not used: their keys and values are f32, and the KV cache is f16; \
                    use --kv f32, or remove the files ";
    assert!(note.contains(sentence), "{note}");
    // The default is f16, whose files are used now, and the others with their own type.
    assert_eq!(place.ask(options(Some(DType::F16)), request()).1, 199);
    assert_eq!(place.ask(options(None), request()).1, 199);
    let (ids, cached, notes) = place.ask(options(Some(DType::F32)), request());
    assert_eq!((ids, cached, notes.len()), (wide, 199, 1));
    assert!(notes[0].contains("their keys and values are f16, and the KV cache is f32"), "{notes:?}");
    // Files of another model say nothing.
    let other = Workplace { model: "qwen3", folder: Arc::clone(&place.folder) };
    assert_eq!(other.ask(other.options(LIMIT), request()).2, [] as [&str; 0]);
}

#[test]
fn a_damaged_or_foreign_file_is_named_and_not_used() {
    let place = Workplace::new("llama32_tied");
    let options = || place.options(LIMIT);
    let alone = place.ask(options(), request()).0;
    let file = place.files().remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::remove_file(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o400)).unwrap();
    let (ids, cached, notes) = place.ask(options(), request());
    assert_eq!((ids, cached), (alone.clone(), 0));
    assert!(notes.iter().any(|note| note.contains("is damaged and was removed")), "{notes:?}");
    // Others could have written the folder.
    fs::set_permissions(place.cache(), Permissions::from_mode(0o777)).unwrap();
    let (ids, cached, notes) = place.ask(options(), request());
    assert_eq!((ids, cached), (alone, 0));
    assert!(notes.iter().any(|note| note.contains("others can write")), "{notes:?}");
}

#[test]
fn the_least_recently_used_prompts_are_removed_first() {
    let place = Workplace::new("llama32_tied");
    let other =
        |first: u32| Request::new((first..first + 150).collect::<Vec<u32>>()).max_tokens(5).without_text();
    place.ask(place.options(LIMIT), other(10));
    let one = fs::metadata(&place.files()[0]).unwrap().len();
    place.ask(place.options(LIMIT), other(20));
    // The first is used again, so the second is removed.
    assert_eq!(place.ask(place.options(LIMIT), other(10)).1, 149);
    place.ask(place.options(2 * one + one / 2), other(30));
    assert_eq!(place.files().len(), 2);
    assert_eq!(place.ask(place.options(LIMIT), other(20)).1, 0);
    let tiny = Workplace::new("llama32_tied");
    tiny.ask(tiny.options(1000), other(10));
    assert_eq!(tiny.files(), [] as [PathBuf; 0], "what exceeds the limit is not kept");
}

#[test]
fn a_model_without_a_file_has_no_prompt_cache() -> Result<()> {
    let place = Workplace::new("llama32_tied");
    let plan = Model::open("stories260k")?.plan(place.options(LIMIT))?;
    let error = plan.start(|_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("stories260k is not read from a file"), "{error}");
    Ok(())
}
