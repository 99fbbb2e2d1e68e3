//! Compiled models that are kept: the next start imports them and computes the same bytes, and damaged ones are not imported.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use girih_graph::OpName;
use girih_graph::backend::WeightSource;
use girih_graph::description::{BackendChoice, Services};
use girih_graph::store::{Store, StoreOptions, StoreWriter, StoredItem, UnsavedItem};
use girih_graph::testing::{Case, Roundoff, WeightTable, draw};
use girih_tensor::{DType, Error, Result};

use crate::opened::wrapped;

/// Items in memory, and what was said of them.
#[derive(Clone, Debug, Default)]
struct Memory {
    items: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    notes: Arc<Mutex<Vec<String>>>,
    folder: PathBuf,
}

struct Item(Vec<u8>);

impl StoredItem for Item {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
        Ok(())
    }
}

struct Written(Mutex<Vec<u8>>);

impl StoreWriter for Written {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Store for Memory {
    fn find(&self, key: &str) -> Option<Box<dyn StoredItem>> {
        let found = self.items.lock().unwrap().get(key).cloned()?;
        Some(Box::new(Item(found)))
    }

    fn keep(&self, item: Box<dyn UnsavedItem>) {
        let written = Written(Mutex::new(vec![0; item.bytes() as usize]));
        assert!(item.write(&written).unwrap() && !item.write(&written).unwrap());
        self.items.lock().unwrap().insert(item.key(), written.0.into_inner().unwrap());
    }

    fn note(&self, why: &Error) {
        self.notes.lock().unwrap().push(why.to_string());
    }
}

impl Services for Memory {
    fn cache(&self) -> Option<PathBuf> {
        Some(self.folder.clone())
    }

    fn store(&self, _: &str, _: StoreOptions) -> Option<Box<dyn Store>> {
        Some(Box::new(self.clone()))
    }

    fn note(&self, sentence: &str) {
        self.notes.lock().unwrap().push(sentence.to_owned());
    }
}

/// Weights with an identity.
struct Identified<'a>(&'a WeightTable, u8);

impl WeightSource for Identified<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        self.0.read(name, offset, into)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        Some([self.1; 32])
    }
}

fn run(choice: &BackendChoice, memory: &Memory, case: &Case, identity: u8) -> Vec<f32> {
    let services: Arc<dyn Services> = Arc::new(memory.clone());
    let backend = choice.open(&services).unwrap();
    let build = |key| Ok(case.graph_at(key));
    let source = Identified(&case.weights, identity);
    let mut runner = backend.load(&source, case.graph.key, &case.blocks(), &build).unwrap();
    case.run(&mut *runner, &case.whole()).unwrap()
}

#[test]
fn a_kept_model_computes_the_same_bytes_and_a_damaged_one_is_compiled_again() {
    let Some(choice) = wrapped() else { return };
    let choice = choice.with("openvino-blobs", "on").unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("openvino-blobs");
    let _ = std::fs::remove_dir_all(&folder);
    let memory = Memory { folder: folder.clone(), ..Memory::default() };
    // NPUW is compared with weights in floats and in Q4_0.
    let is_single = |case: &Case| case.graph.weights().all(|(_, value)| value.dtype == DType::F32);
    let mut cases = (1..).map(|seed| draw(OpName::Linear, seed, Roundoff::SINGLE));
    let case = cases.find(is_single).expect("some weights are single");
    let first = run(&choice, &memory, &case, 7);
    let kept = memory.items.lock().unwrap().clone();
    assert!(!kept.is_empty() && memory.notes.lock().unwrap().is_empty(), "{:?}", memory.notes);
    assert_eq!(
        std::fs::read_dir(folder.join("packed")).unwrap().count(),
        0,
        "nothing is left beside the store"
    );
    assert_eq!(run(&choice, &memory, &case, 7), first, "imported");
    assert!(memory.notes.lock().unwrap().is_empty(), "{:?}", memory.notes);
    assert_eq!(*memory.items.lock().unwrap(), kept, "nothing was compiled again");
    for blob in memory.items.lock().unwrap().values_mut() {
        let middle = blob.len() / 2;
        blob[middle] ^= 1;
    }
    assert_eq!(run(&choice, &memory, &case, 7), first, "compiled again");
    let notes = memory.notes.lock().unwrap().clone();
    assert_eq!(notes, vec!["a compiled model is damaged: it is not used"; kept.len()]);
    run(&choice, &memory, &case, 8);
    assert_eq!(memory.items.lock().unwrap().len(), 2 * kept.len(), "other weights are other models");
}

#[test]
fn models_of_the_processor_are_not_kept() {
    let Some(choice) = crate::opened::fixed() else { return };
    let choice = choice.with("openvino-blobs", "on").unwrap();
    let services: Arc<dyn Services> = Arc::new(Memory::default());
    let error = choice.open(&services).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("--openvino-blobs on gains nothing on openvino:CPU"), "{error}");
}
