//! The backend opened by its description: it computes what one that is made
//! directly computes, and writes no file before it loads weights.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::description::{AnyBackend, BackendChoice, Services};
use girih_graph::store::{Store, StoreOptions};
use girih_graph::{Backend, Error, Outputs, Runner, Sequence, Step, load};
use girih_npu::driver::Runtime;
use girih_npu::pass::{ArrayMapping, array_split};
use girih_npu::{INFO, Npu, NpuOptions};
use tempfile::TempDir;

use crate::llama::{SMALL, key, llama};
use crate::random::RandomWeights;

/// A host with a cache in a temporary folder, which collects notes.
struct TestServices {
    folder: TempDir,
    notes: Mutex<Vec<String>>,
}

impl TestServices {
    fn new() -> Arc<TestServices> {
        Arc::new(TestServices { folder: tempfile::tempdir().unwrap(), notes: Mutex::default() })
    }

    fn names(&self) -> Vec<String> {
        names(self.folder.path())
    }
}

impl Services for TestServices {
    fn cache(&self) -> Option<PathBuf> {
        Some(self.folder.path().join("girih"))
    }

    fn store(&self, name: &str, _: StoreOptions) -> Option<Box<dyn Store>> {
        panic!("an array has no store '{name}'");
    }

    fn note(&self, sentence: &str) {
        self.notes.lock().unwrap().push(sentence.to_owned());
    }
}

fn names(folder: &Path) -> Vec<String> {
    folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn open(services: &Arc<TestServices>, options: &[(&str, &str)]) -> Box<dyn AnyBackend> {
    let choice = BackendChoice::parse(&[&INFO], "npu:toy").unwrap();
    let choice = options.iter().try_fold(choice, |choice, (name, value)| choice.with(name, value));
    let services: Arc<dyn Services> = services.clone();
    choice.unwrap().open(&services).unwrap()
}

fn loaded(backend: Box<dyn AnyBackend>) -> Result<Box<dyn Runner>, Error> {
    backend.load(&RandomWeights(7), key(24), &[32], &|key| Ok(llama(&SMALL, key)))
}

/// The bits of the logits after a few tokens.
fn bits(mut runner: Box<dyn Runner>) -> Vec<u32> {
    let tokens = [1, 17, 300, 4, 250];
    let blocks: Vec<Block> = (0..32).map(Block).collect();
    let rows = Range32 { start: 0, end: 5 };
    let sequence = Sequence { blocks: &[&blocks], position: 0, rows, outputs: Outputs::Last, spans: &[] };
    let (inputs, sequences) = (&[Input::Ids(&tokens)], &[sequence]);
    runner.step(Step { inputs, sequences, watch: &mut Unwatched }).unwrap();
    runner.output().rows(0..1).unwrap().iter().copied().map(f32::to_bits).collect()
}

#[test]
fn a_backend_opened_by_name_computes_the_same_bits_and_keeps_its_blobs() {
    let services = TestServices::new();
    let options = [("npu-mapping", "unstitched"), ("npu-runtime", "values=brokered"), ("npu-lengths", "8")];
    let npu = open(&services, &options);
    let graph = llama(&SMALL, key(24));
    assert!(npu.plan(&graph, &[32]).host.weights > 0);
    assert_eq!(npu.describe(&graph), "npu, target toy, simulated");
    let mapping = ArrayMapping::named("unstitched").unwrap();
    let runtime = Runtime::default().with("values=brokered").unwrap();
    let direct = NpuOptions { runtime, lengths: vec![8], ..NpuOptions::default() };
    let direct = Npu::new("toy", direct).unwrap().with_mapping(mapping.clone());
    let fallbacks = array_split(&graph, mapping.policy).host_work();
    assert!(!fallbacks.is_empty());
    assert_eq!(npu.host_work(&graph), fallbacks);
    assert_eq!(npu.ladder(key(24)), Backend::ladder(&direct, key(24)));
    assert_eq!(services.names(), [""; 0], "opening and planning write no files");
    let runner = loaded(npu).unwrap();
    let blobs = names(&services.cache().unwrap().join("blobs"));
    assert!(blobs.iter().any(|name| name.ends_with(".elf")), "{blobs:?}");
    let direct = load(direct, &RandomWeights(7), key(24), &[32], |key| Ok(llama(&SMALL, key))).unwrap();
    assert_eq!(bits(runner), bits(direct));
    assert_eq!(*services.notes.lock().unwrap(), [""; 0]);
}

#[test]
fn blobs_that_cannot_be_kept_are_an_error_only_in_a_named_folder() {
    let services = TestServices::new();
    fs::write(services.folder.path().join("girih"), "a file where the folder would be").unwrap();
    loaded(open(&services, &[])).map(drop).unwrap();
    let notes = std::mem::take(&mut *services.notes.lock().unwrap());
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].ends_with("; compiled programs are not kept"), "{notes:?}");
    let blobs = services.folder.path().join("girih/blobs").display().to_string();
    assert!(notes[0].starts_with(&blobs), "{notes:?}");
    let error = loaded(open(&services, &[("blobs", &blobs)])).map(drop).unwrap_err();
    assert!(error.to_string().starts_with(&blobs), "{error}");
    loaded(open(&services, &[("blobs", "off")])).map(drop).unwrap();
    assert_eq!(*services.notes.lock().unwrap(), [""; 0]);
}

#[test]
fn a_mapping_is_a_name_or_a_file() {
    let services = TestServices::new();
    let path = services.folder.path().join("mine.mapping");
    let text = path.display().to_string();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let choice = BackendChoice::parse(&[&INFO], "npu:toy").unwrap().with("npu-mapping", &text).unwrap();
        let services: Arc<dyn Services> = services.clone();
        choice.open(&services).map(drop).map_err(|error| error.to_string())
    };
    let named = ArrayMapping::named("mlir-air-tiles").unwrap();
    refused(named.to_string().as_bytes()).unwrap();
    assert_eq!(ArrayMapping::read(&text).unwrap(), named);
    let is = |bytes: &[u8], end: &str| {
        let error = refused(bytes).unwrap_err();
        assert!(error.starts_with(&format!("{text}: {end}")), "{error}");
    };
    is(&vec![b' '; (1 << 20) + 1], "is longer than 1048576 bytes, the maximum for such a text");
    is(b"\xff", "is not valid UTF-8");
    is(b"grouping stitched\n", "");
}
