//! Starts of a small model with a folder of packed weights. A start that packs
//! reads bytes of the model's own files.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64};

use girih_cpu::{Cpu, CpuOptions};
use girih_graph::{Backend, Graph, Key, OutputKind, WeightSource};
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::DType;
use tempfile::TempDir;

use super::*;
use crate::progress::{Progress, ProgressCallback};

/// A folder with a copy of a small model and a cache of packed weights.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        home.copy_model("first");
        home
    }

    /// The folder of a new copy of the model.
    fn copy_model(&self, name: &str) -> PathBuf {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied");
        fs::create_dir_all(self.0.path().join(name)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(from.join(file), self.0.path().join(name).join(file)).unwrap();
        }
        self.0.path().join(name)
    }

    fn folder(&self) -> PackedFolder {
        PackedFolder::new(self.0.path().join("cache/packed"))
    }

    /// The names in the folder of packed weights.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.folder().entries().unwrap().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    }

    fn start(&self, name: &str, options: StoreOptions) -> u64 {
        self.start_above(0, name, options)
    }

    /// As [`Home::start`], with a minimum size of packed weights.
    fn start_above(&self, min_bytes: u64, name: &str, options: StoreOptions) -> u64 {
        start(&self.0.path().join(name), self.folder(), options, min_bytes)
    }
}

const ALL: StoreOptions = StoreOptions { writes: true, limit: Some(1 << 30) };

struct Counting<'a>(&'a dyn WeightSource, AtomicU64);

impl WeightSource for Counting<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        self.1.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.0.read(name, offset, into)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.0.identity()
    }
}

/// The graph of a small step.
fn graph(model: &ModelFiles) -> Graph {
    let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
    model.graph(key, DType::F32).unwrap()
}

/// Loads the weights of the model from `source`, with a store in `folder`.
fn load(
    model: &ModelFiles,
    source: &dyn WeightSource,
    folder: PackedFolder,
    (options, min_bytes): (StoreOptions, u64),
    control: Arc<LoadControl>,
) -> Result<()> {
    let path = model.weights.container().paths().next().unwrap();
    let mut store = FileStore::new(folder, options, SyncProcess::Own, path, control);
    store.min_bytes = min_bytes;
    let cpu =
        Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap().with_store(Box::new(store));
    cpu.load(&graph(model), source).map(|_| ())
}

/// Loads the model and returns the bytes of its matrices that were read from
/// its own files.
fn start(model: &Path, folder: PackedFolder, options: StoreOptions, min_bytes: u64) -> u64 {
    start_with(model, folder, (options, min_bytes), Arc::default())
}

/// As [`start`], with this connection to the program.
fn start_with(
    model: &Path,
    folder: PackedFolder,
    options: (StoreOptions, u64),
    control: Arc<LoadControl>,
) -> u64 {
    let model = ModelFiles::open(model, Vec::new(), &ModelLimits::DEFAULT).unwrap();
    let counting = Counting(&model.weights, AtomicU64::new(0));
    load(&model, &counting, folder, options, control).unwrap();
    let graph = graph(&model);
    let vectors = graph.weights().filter(|(_, value)| value.shape.extents().len() == 1);
    let vectors: usize = vectors.map(|(_, value)| value.dtype.bytes(&value.shape).unwrap()).sum();
    counting.1.into_inner() - vectors as u64
}

/// A connection to the program, and its notes.
fn noted() -> (Arc<LoadControl>, Arc<Mutex<Vec<String>>>) {
    let (control, notes) = (Arc::new(LoadControl::default()), Arc::new(Mutex::new(Vec::new())));
    let of_callback = Arc::clone(&notes);
    control.connect(ProgressCallback::new(move |progress| {
        if let Progress::Note(sentence) = progress {
            lock(&of_callback).push(sentence);
        }
    }));
    (control, notes)
}

/// Starts the model; returns the bytes as [`start`] does, and the notes.
fn noted_start(home: &Home, name: &str) -> (u64, Vec<String>) {
    let (control, notes) = noted();
    let bytes = start_with(&home.0.path().join(name), home.folder(), (ALL, 0), control);
    (bytes, std::mem::take(&mut *lock(&notes)))
}

#[test]
fn the_second_start_reads_the_packed_weights_of_the_first() {
    let home = Home::new();
    assert_ne!(home.start("first", ALL), 0, "the first start packs");
    let names = home.names();
    assert!(names.len() == 1 && names[0].starts_with("first-model-"), "{names:?}");
    assert_eq!(home.start("first", ALL), 0);
    assert_eq!(home.start("first", StoreOptions { writes: false, ..ALL }), 0);
    assert_eq!(home.names(), names);
    // Another file is another source, even with the same bytes.
    home.copy_model("second");
    assert_ne!(home.start("second", ALL), 0);
    assert_eq!(home.names().len(), 2);
    // A changed file is another source, too.
    home.copy_model("first");
    assert_ne!(home.start("first", ALL), 0);
}

#[test]
fn nothing_is_written_against_the_options() {
    let home = Home::new();
    for options in [
        StoreOptions { writes: false, ..ALL },
        StoreOptions { limit: Some(0), ..ALL },
        StoreOptions { limit: Some(1000), ..ALL },
    ] {
        assert_ne!(home.start("first", options), 0);
        assert_eq!(home.names(), [""; 0], "{options:?}");
    }
    assert_ne!(home.start_above(MIN_BYTES, "first", StoreOptions { limit: None, ..ALL }), 0);
    assert_eq!(home.names(), [""; 0], "a small model is packed again");
}

#[test]
fn the_least_recently_used_file_is_evicted_first() {
    let home = Home::new();
    home.start("first", ALL);
    let one: u64 = home.folder().files().unwrap().iter().map(|file| file.bytes).sum();
    let limit = StoreOptions { limit: Some(2 * one + one / 2), ..ALL };
    for name in ["second", "third"] {
        home.copy_model(name);
    }
    home.start("second", limit);
    assert_eq!(home.start("first", limit), 0, "it is now the most recently used");
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
    let path = home.0.path().join("cache/packed").join(&home.names()[0]);
    let whole = fs::read(&path).unwrap();
    let damaged =
        [Vec::new(), whole[..whole.len() / 2].to_vec(), [&whole[..], b"more"].concat(), vec![7; whole.len()]];
    for bytes in damaged {
        // The file itself is read-only.
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        assert_ne!(home.start("first", ALL), 0, "it is packed again");
        assert!(fs::read(&path).unwrap() == whole, "the file is complete again");
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"").unwrap();
    home.start("first", StoreOptions { writes: false, ..ALL });
    assert_eq!(fs::read(&path).unwrap(), b"", "a read-only store does not write");
}

/// An item that takes until nobody waits for it.
#[derive(Debug)]
struct Endless;

impl UnsavedItem for Endless {
    fn key(&self) -> String {
        "0".to_owned()
    }

    fn bytes(&self) -> u64 {
        MIN_BYTES
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn write(&self, to: &dyn StoreWriter) -> Result<bool> {
        loop {
            to.write(0, &[1])?;
            thread::yield_now();
        }
    }
}

#[test]
fn what_is_not_awaited_is_given_up() {
    let home = Home::new();
    let (control, notes) = noted();
    let store = FileStore::new(home.folder(), ALL, SyncProcess::Own, Path::new("model"), control);
    store.keep(Box::new(Endless));
    assert!(
        matches!(home.names().as_slice(), [name] if name.ends_with(PARTIAL_SUFFIX)),
        "{:?}",
        home.names()
    );
    drop(store);
    assert_eq!(home.names(), [""; 0]);
    assert_eq!(*lock(&notes), [""; 0]);
}

#[test]
fn packed_files_are_read_only() {
    let home = Home::new();
    home.start("first", ALL);
    let status = fs::metadata(home.0.path().join("cache/packed").join(&home.names()[0])).unwrap();
    assert_eq!(status.permissions().mode() & 0o777, 0o400);
}

#[test]
fn reading_fails_once_loading_is_cancelled() {
    let home = Home::new();
    home.start("first", ALL);
    let control = Arc::new(LoadControl::default());
    let file = File::open(home.folder().path().join(&home.names()[0])).unwrap();
    let reader = FileReader { length: file.metadata().unwrap().len(), file, control: Arc::clone(&control) };
    assert!(reader.read(0, &mut [0; 8]).is_ok());
    control.cancelled.store(true, Ordering::Relaxed);
    assert!(reader.read(0, &mut [0; 8]).is_err());
}

#[test]
fn simultaneous_starts_leave_one_complete_file() {
    let home = Home::new();
    let path = home.0.path().join("first");
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..4).for_each(|_| _ = start(&path, home.folder(), ALL, 0)));
        }
    });
    assert_eq!(home.names().len(), 1, "{:?}", home.names());
    assert_eq!(home.start("first", ALL), 0);
}

#[test]
fn an_unwritable_folder_is_no_failure() {
    let home = Home::new();
    fs::write(home.0.path().join("cache"), "a file where the folder would be").unwrap();
    assert_ne!(home.start("first", ALL), 0);
    assert_ne!(home.start("first", ALL), 0);
    assert!(!home.0.path().join("cache/packed").exists());
}

#[test]
fn partial_files_that_nobody_writes_are_removed_at_once() {
    let home = Home::new();
    PrivateFolder::create(home.folder().path()).unwrap();
    let partial = |name: &str| {
        let file = File::create(home.folder().path().join(name)).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        file.set_len(1000).unwrap();
        file
    };
    drop(partial("killed.packed.1.part"));
    let written = partial("written.packed.2.part");
    assert!(try_lock_file(&written).unwrap());
    drop(partial("other.txt"));
    home.start("first", ALL);
    let names = home.names();
    assert!(names.len() == 3 && names[0].starts_with("first-"), "{names:?}");
    assert_eq!(names[1..], ["other.txt", "written.packed.2.part"]);
    // A file that is being written counts.
    let bytes = home.folder().files().unwrap()[0].bytes;
    home.folder().make_room(0, bytes + 1000).unwrap();
    assert_eq!(home.names().len(), 3);
    home.folder().make_room(0, bytes + 999).unwrap();
    assert_eq!(home.names(), ["other.txt", "written.packed.2.part"]);
    drop(written);
    home.start("first", ALL);
    assert_eq!(home.names().len(), 2, "its writer has ended");
    assert_eq!(home.folder().clear().unwrap().0, 1);
    assert_eq!(home.names(), ["other.txt"]);
}

/// Anybody can give a file the name of a blob of an honest model.
#[test]
fn a_foreign_blob_of_the_same_name_does_not_replace_a_model() {
    let home = Home::new();
    let (commit, digest) = ("0123456789abcdef0123456789abcdef01234567", "ab".repeat(32));
    let repository = |cache: &str, bytes: &[u8]| {
        let repository = home.0.path().join(cache).join("models--org--name");
        let snapshot = repository.join("snapshots").join(commit);
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(repository.join("blobs")).unwrap();
        fs::write(repository.join("blobs").join(&digest), bytes).unwrap();
        symlink(format!("../../blobs/{digest}"), snapshot.join("model.safetensors")).unwrap();
        fs::copy(home.0.path().join("first/config.json"), snapshot.join("config.json")).unwrap();
        snapshot
    };
    let honest = fs::read(home.0.path().join("first/model.safetensors")).unwrap();
    let mut foreign = honest.clone();
    foreign.iter_mut().rev().take(1 << 12).for_each(|byte| *byte ^= 1);
    let (foreign, honest) = (repository("foreign", &foreign), repository("hub", &honest));
    let start = |model: &Path| start(model, home.folder(), ALL, 0);
    assert_ne!(start(&foreign), 0);
    assert_ne!(start(&honest), 0, "the honest model is packed from its own file");
    assert_eq!((start(&foreign), start(&honest)), (0, 0));
    let packed = |name: &String| fs::read(home.0.path().join("cache/packed").join(name)).unwrap();
    let names = home.names();
    assert!(names.len() == 2 && names.iter().all(|name| name.starts_with("org--name@")), "{names:?}");
    assert_ne!(packed(&names[0]), packed(&names[1]));
}

/// Changes a byte of its file before the first read.
struct Overwriting<'a> {
    source: &'a dyn WeightSource,
    path: PathBuf,
    done: AtomicBool,
}

impl WeightSource for Overwriting<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        if !self.done.swap(true, Ordering::Relaxed) {
            let file = File::options().write(true).open(&self.path).unwrap();
            file.write_all_at(b"\x01", file.metadata().unwrap().len() - 1).unwrap();
        }
        self.source.read(name, offset, into)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.source.identity()
    }

    fn check_unchanged(&self) -> Result<()> {
        self.source.check_unchanged()
    }
}

#[test]
fn a_model_that_is_overwritten_while_it_is_packed_is_refused_and_not_kept() {
    let home = Home::new();
    let path = home.0.path().join("first/model.safetensors");
    let model = ModelFiles::open(&home.0.path().join("first"), Vec::new(), &ModelLimits::DEFAULT).unwrap();
    let source = Overwriting { source: &model.weights, path, done: AtomicBool::new(false) };
    let error = load(&model, &source, home.folder(), (ALL, 0), Arc::default()).unwrap_err().to_string();
    assert!(error.ends_with("model.safetensors: was changed while it was read; load it again"), "{error}");
    assert_eq!(home.names(), [""; 0]);
}

#[test]
fn packed_files_that_others_could_have_written_are_ignored_and_named() {
    let home = Home::new();
    home.start("first", ALL);
    let (name, folder) = (home.names().remove(0), home.folder().path().to_owned());
    let path = folder.join(&name);
    let elsewhere = home.0.path().join("elsewhere");
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let link = || {
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
    };
    let pipe = || {
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
    };
    let plants: [(&dyn Fn(), &str); 3] = [
        (&|| mode(&path, 0o666), "has the mode 0666"),
        (&link, "is a link"),
        (&pipe, "is not a regular file"),
    ];
    for (plant, why) in plants {
        assert_eq!(noted_start(&home, "first"), (0, vec![]));
        plant();
        let (bytes, notes) = noted_start(&home, "first");
        assert_ne!(bytes, 0, "it is packed again");
        assert!(notes.len() == 1 && notes[0].contains(&format!("ignored: {name}: {why}")), "{notes:?}");
    }
    assert_eq!(noted_start(&home, "first"), (0, vec![]), "it was replaced");
    mode(&folder, 0o777);
    let (bytes, notes) = noted_start(&home, "first");
    assert_ne!(bytes, 0);
    assert!(notes.iter().all(|note| note.contains("the folder has the mode 0777")), "{notes:?}");
    assert_eq!(notes.len(), 1, "it is neither read nor written, and one note says so");
}

/// An item of one byte.
#[derive(Debug)]
struct OneByte;

impl UnsavedItem for OneByte {
    fn key(&self) -> String {
        "byte".to_owned()
    }
    fn bytes(&self) -> u64 {
        1
    }
    fn write(&self, to: &dyn StoreWriter) -> Result<bool> {
        to.write(0, b"x").map(|()| true)
    }
}

/// The bug: a program of one token ran on for seconds, until its packed weights were on the disk.
#[test]
fn a_worker_ends_a_file_after_the_store_is_dropped() {
    let home = Home::new();
    let go = home.0.path().join("go");
    // It holds its standard input, the file, until it may go on, or until a test that failed has removed its folder.
    let script = format!(
        "while [ -d '{}' ] && [ ! -e '{}' ]; do /bin/sleep 0.01; done; /bin/mv \"$0/$1\" \"$0/$2\"",
        home.0.path().display(),
        go.display()
    );
    let sync = SyncProcess::Worker { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] };
    let mut store = FileStore::new(home.folder(), ALL, sync, Path::new("model"), Arc::default());
    store.min_bytes = 0;
    store.keep(Box::new(OneByte));
    drop(store);
    let names = home.names();
    assert!(names.len() == 1 && names[0].ends_with(PARTIAL_SUFFIX), "{names:?}");
    let folder = PrivateFolder::open(home.folder().path()).unwrap().expect("it exists");
    home.folder().sweep(&folder).unwrap();
    assert_eq!(home.names(), names, "the worker has the lock");
    fs::write(&go, "").unwrap();
    let begun = std::time::Instant::now();
    while !home.names().iter().all(|name| name.ends_with(PACKED_SUFFIX)) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", home.names());
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_worker_names_only_packed_weights_and_removes_what_it_cannot_name() {
    let home = Home::new();
    fs::create_dir_all(home.folder().path()).unwrap();
    fs::set_permissions(home.folder().path(), Permissions::from_mode(0o700)).unwrap();
    let path = home.folder().path().to_owned();
    let end = |partial: &str, name: &str| {
        let file = File::create(path.join(partial)).unwrap();
        sync_worker::finish(&file, FileNames { folder: &path, partial, name })
    };
    end("a.packed.1.part", "a.packed").unwrap();
    assert_eq!(home.names(), ["a.packed"]);
    for (partial, name) in [("b.part", "b"), ("b.packed.1.part", "a.packed"), ("b.packed", "b.packed")] {
        assert!(end(partial, name).is_err(), "{partial}");
        fs::remove_file(path.join(partial)).unwrap();
    }
    fs::create_dir(path.join("c.packed")).unwrap();
    assert!(end("c.packed.1.part", "c.packed").is_err());
    assert_eq!(home.names(), ["a.packed"]);
}

/// Each thread that writes finds the same disk full.
#[test]
fn one_note_says_why_a_file_is_not_kept() {
    #[derive(Debug)]
    struct Unwritable;
    impl UnsavedItem for Unwritable {
        fn key(&self) -> String {
            "unwritable".to_owned()
        }
        fn bytes(&self) -> u64 {
            1
        }
        fn write(&self, _: &dyn StoreWriter) -> Result<bool> {
            Err(Error::new("not kept: the disk is full"))
        }
    }
    let home = Home::new();
    let (control, notes) = (Arc::new(LoadControl::default()), Arc::new(Mutex::new(Vec::new())));
    let of_callback = Arc::clone(&notes);
    control.connect(ProgressCallback::new(move |progress| {
        if let Progress::Note(sentence) = progress {
            lock(&of_callback).push(sentence);
        }
    }));
    let mut store = FileStore::new(home.folder(), ALL, SyncProcess::Own, Path::new("model"), control);
    store.min_bytes = 0;
    store.keep(Box::new(Unwritable));
    drop(store);
    let notes = lock(&notes);
    assert!(matches!(&notes[..], [note] if note.ends_with(": not kept: the disk is full")), "{notes:?}");
}
