//! Starts of a small model with a folder of packed weights. Whether a start
//! packed is told by the bytes that it read of the model's own files.

use std::sync::atomic::{AtomicU64, AtomicUsize};

use girih_cpu::{Cpu, Options};
use girih_graph::{Backend, Key, Variant, WeightSource};
use girih_model::{Limits, Model};
use girih_tensor::DType;

use super::*;

/// A folder with a copy of a small model and a place for packed weights.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let home = std::env::temp_dir().join(format!("girih-packed-{}-{count}", std::process::id()));
        let home = Home(home);
        home.copy_model("first");
        home
    }

    /// The folder of a new copy of the model.
    fn copy_model(&self, name: &str) -> PathBuf {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied");
        fs::create_dir_all(self.0.join(name)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(from.join(file), self.0.join(name).join(file)).unwrap();
        }
        self.0.join(name)
    }

    fn folder(&self) -> Folder {
        Folder(self.0.join("cache/packed"))
    }

    /// The names in the folder of packed weights.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.folder().entries().unwrap().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    fn start(&self, name: &str, wishes: Wishes) -> u64 {
        start(&self.0.join(name), self.folder(), wishes)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ALL: Wishes = Wishes { writes: true, limit: Some(1 << 30), least: 0 };

struct Counting<'a>(&'a dyn WeightSource, AtomicU64);

impl WeightSource for Counting<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.0.read(name, offset, into)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.0.identity()
    }
}

/// Loads the model and yields the bytes of its matrices that were read of it.
fn start(model: &Path, folder: Folder, wishes: Wishes) -> u64 {
    let model = Model::open(model, Vec::new(), &Limits::DEFAULT).unwrap();
    let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, variant: Variant::GENERATE };
    let graph = model.graph(key, DType::F32).unwrap();
    let path = model.weights.container().paths().next().unwrap();
    let store = Store::new(folder, wishes, path, Show::Nothing, Arc::default());
    let cpu = Cpu::new(Options { threads: 2, ..Options::default() }).unwrap().with_store(Box::new(store));
    let counting = Counting(&model.weights, AtomicU64::new(0));
    cpu.load(&graph, &counting).unwrap();
    let vectors = graph.weights().filter(|(_, value)| value.shape.extents().len() == 1);
    let vectors: usize = vectors.map(|(_, value)| value.dtype.bytes(&value.shape).unwrap()).sum();
    counting.1.into_inner() - vectors as u64
}

#[test]
fn the_second_start_reads_what_the_first_has_kept() {
    let home = Home::new();
    assert_ne!(home.start("first", ALL), 0, "the first start packs");
    let names = home.names();
    assert!(names.len() == 1 && names[0].starts_with("first-model-"), "{names:?}");
    assert_eq!(home.start("first", ALL), 0);
    assert_eq!(home.start("first", Wishes { writes: false, ..ALL }), 0);
    assert_eq!(home.names(), names);
    // Another file, though of the same bytes, is another source.
    home.copy_model("second");
    assert_ne!(home.start("second", ALL), 0);
    assert_eq!(home.names().len(), 2);
    // So is the file after a change.
    home.copy_model("first");
    assert_ne!(home.start("first", ALL), 0);
}

#[test]
fn nothing_is_written_that_is_not_wanted() {
    let home = Home::new();
    for wishes in [
        Wishes { writes: false, ..ALL },
        Wishes { limit: Some(0), ..ALL },
        Wishes { limit: Some(1000), ..ALL },
        Wishes { least: 1 << 30, ..ALL },
        Wishes::new(true, None),
    ] {
        assert_ne!(home.start("first", wishes), 0);
        assert_eq!(home.names(), [""; 0], "{wishes:?}");
    }
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let home = Home::new();
    home.start("first", ALL);
    let one = bytes_of(&home.folder().files().unwrap());
    let limit = Wishes { limit: Some(2 * one + one / 2), ..ALL };
    for name in ["second", "third"] {
        home.copy_model(name);
    }
    home.start("second", limit);
    assert_eq!(home.start("first", limit), 0, "it is now the one that was used last");
    home.start("third", limit);
    let names = home.names();
    assert!(
        names.len() == 2 && names[0].starts_with("first-") && names[1].starts_with("third-"),
        "{names:?}"
    );
}

#[test]
fn a_damaged_file_is_replaced() {
    let home = Home::new();
    home.start("first", ALL);
    let path = home.0.join("cache/packed").join(&home.names()[0]);
    let whole = fs::read(&path).unwrap();
    let damaged =
        [Vec::new(), whole[..whole.len() / 2].to_vec(), [&whole[..], b"more"].concat(), vec![7; whole.len()]];
    for bytes in damaged {
        // Nobody may write to the file itself.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        assert_ne!(home.start("first", ALL), 0, "it is packed anew");
        assert!(fs::read(&path).unwrap() == whole, "the file is whole again");
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"").unwrap();
    home.start("first", Wishes { writes: false, ..ALL });
    assert_eq!(fs::read(&path).unwrap(), b"", "who only reads does not write");
}

#[test]
fn what_is_kept_is_not_to_be_written_to() {
    let home = Home::new();
    home.start("first", ALL);
    let status = fs::metadata(home.0.join("cache/packed").join(&home.names()[0])).unwrap();
    assert_eq!(status.permissions().mode() & 0o777, 0o400);
}

#[test]
fn nothing_is_read_for_those_who_want_it_no_longer() {
    let home = Home::new();
    home.start("first", ALL);
    let abandoned = Arc::new(AtomicBool::new(false));
    let file = File::open(home.folder().0.join(&home.names()[0])).unwrap();
    let reader = Reader { length: file.metadata().unwrap().len(), file, abandoned: abandoned.clone() };
    assert!(reader.read(0, &mut [0; 8]).is_ok());
    abandoned.store(true, Ordering::Relaxed);
    assert!(reader.read(0, &mut [0; 8]).is_err());
}

#[test]
fn starts_at_once_leave_one_whole_file() {
    let home = Home::new();
    let path = home.0.join("first");
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..4).for_each(|_| _ = start(&path, home.folder(), ALL)));
        }
    });
    assert_eq!(home.names().len(), 1, "{:?}", home.names());
    assert_eq!(home.start("first", ALL), 0);
}

#[test]
fn a_place_that_cannot_be_written_is_no_failure() {
    let home = Home::new();
    fs::write(home.0.join("cache"), "a file where the folder would be").unwrap();
    assert_ne!(home.start("first", ALL), 0);
    assert_ne!(home.start("first", ALL), 0);
    assert!(!home.0.join("cache/packed").exists());
}

#[test]
fn what_an_ended_process_left_is_swept() {
    let home = Home::new();
    fs::create_dir_all(home.folder().0).unwrap();
    let part = |name: &str, age: Duration| {
        let file = File::create(home.folder().0.join(name)).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    };
    part("old.packed.1.part", 2 * LEFT);
    part("new.packed.2.part", LEFT / 2);
    part("other.txt", 2 * LEFT);
    home.start("first", ALL);
    let names = home.names();
    assert!(names.len() == 3 && names[0].starts_with("first-"), "{names:?}");
    assert_eq!(names[1..], ["new.packed.2.part", "other.txt"]);
    assert_eq!(home.folder().clear().unwrap().0, 2);
    assert_eq!(home.names(), ["other.txt"]);
}

#[test]
fn a_model_is_called_what_a_person_calls_it() {
    let cases = [
        ("/m/llama-1b-Q4_0.gguf", "llama-1b-Q4_0"),
        ("/m/my llama/model-00001-of-00002.safetensors", "my_llama-model-00001-of-00002"),
        ("/h/models--org--name/snapshots/0123/a.gguf", "org--name-a"),
        ("a/é\n.gguf", "__"),
        ("/", "model-model"),
    ];
    for (path, name) in cases {
        assert_eq!(label(Path::new(path)), name);
    }
    assert_eq!(label(Path::new(&format!("/{}.gguf", "x".repeat(300)))).len(), NAME_LENGTH);
}
