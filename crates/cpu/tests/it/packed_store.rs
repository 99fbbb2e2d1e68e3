//! Cached packed weights: loading them yields the same bits as packing. Anything else that a store
//! returns is refused with a reason, and the weights are packed again.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, MutexGuard};

use girih_cpu::kernels::packed::Layout;
use girih_cpu::{AwaitPacked, Cpu, CpuOptions, EqualWeights, Residence};
use girih_graph::backend::Input;
use girih_graph::store::{Store, StoreWriter, StoredItem, UnsavedItem};
use girih_graph::{Error, Graph, WeightSource, load};
use girih_tensor::DType;

use crate::fixture::{Random, Source, TestSequence, cpu, step};
use crate::two_layers::{Model, model};

/// A source with an identity that counts the bytes that are read from it.
struct Named<'a> {
    source: &'a Source,
    identity: [u8; 32],
    read: Mutex<usize>,
}

impl<'a> Named<'a> {
    fn new(source: &'a Source, identity: u8) -> Named<'a> {
        Named { source, identity: [identity; 32], read: Mutex::new(0) }
    }

    /// The bytes that were read since the last call.
    fn read(&self) -> usize {
        std::mem::take(&mut *self.read.lock().unwrap())
    }
}

impl WeightSource for Named<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        *self.read.lock().unwrap() += into.len();
        self.source.read(name, offset, into)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        Some(self.identity)
    }
}

/// A store in memory.
#[derive(Clone, Debug, Default)]
struct Shelf(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    files: HashMap<String, Vec<u8>>,
    notes: Vec<String>,
    /// Writes at or beyond this offset fail, if it is set.
    full_at: Option<u64>,
    /// The bytes returned for any key, if set.
    foreign: Option<Vec<u8>>,
    /// The number of threads that write.
    writers: usize,
    /// Whether the returned bytes are also available as a file.
    has_files: bool,
    /// Whether each item that was kept is awaited.
    awaited: Vec<bool>,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap()
    }

    /// The only file.
    fn file(&self) -> Vec<u8> {
        let kept = self.lock();
        assert_eq!(kept.files.len(), 1);
        kept.files.values().next().unwrap().clone()
    }

    fn replace(&self, bytes: Vec<u8>) {
        self.lock().files.values_mut().for_each(|file| file.clone_from(&bytes));
    }

    fn notes(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().notes)
    }
}

struct Bytes(Vec<u8>, Option<File>);

impl Bytes {
    /// Bytes that are also an open file without a name.
    fn in_file(bytes: Vec<u8>) -> Bytes {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        // Otherwise it is not mapped.
        file.set_permissions(Permissions::from_mode(0o400)).unwrap();
        Bytes(bytes, Some(file))
    }
}

impl StoredItem for Bytes {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let part = self.0.get(offset as usize..offset as usize + into.len());
        into.copy_from_slice(part.ok_or_else(|| Error::new("past the end"))?);
        Ok(())
    }

    fn file(&self) -> Option<&File> {
        self.1.as_ref()
    }
}

struct Draft {
    full_at: Option<u64>,
    bytes: Mutex<Vec<u8>>,
}

impl StoreWriter for Draft {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.full_at.is_some_and(|full| offset >= full) {
            return Err(Error::new("the shelf is full"));
        }
        self.bytes.lock().unwrap()[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl Store for Shelf {
    fn find(&self, key: &str) -> Option<Box<dyn StoredItem>> {
        let kept = self.lock();
        let file = kept.foreign.as_ref().or_else(|| kept.files.get(key))?.clone();
        Some(Box::new(if kept.has_files { Bytes::in_file(file) } else { Bytes(file, None) }))
    }

    fn keep(&self, weights: Box<dyn UnsavedItem>) {
        let mut kept = self.lock();
        kept.awaited.push(weights.is_awaited());
        let draft = Draft { full_at: kept.full_at, bytes: Mutex::new(vec![0; weights.bytes() as usize]) };
        let write = || weights.write(&draft);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..kept.writers.max(1)).map(|_| scope.spawn(write)).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let whole = outcomes.iter().filter(|outcome| matches!(outcome, Ok(true))).count();
        assert!(whole <= 1, "one call completes the pack");
        kept.notes.extend(outcomes.into_iter().filter_map(Result::err).map(|error| error.to_string()));
        if whole == 1 {
            kept.files.insert(weights.key(), draft.bytes.into_inner().unwrap());
        }
    }

    fn note(&self, why: &Error) {
        self.lock().notes.push(why.to_string());
    }
}

/// The bits of the logits of a few tokens.
fn logits(graph: &Graph, source: &dyn WeightSource, shelf: Option<&Shelf>, threads: usize) -> Vec<u32> {
    logits_of(
        match shelf {
            Some(shelf) => cpu(threads).with_store(Box::new(shelf.clone())),
            None => cpu(threads),
        },
        graph,
        source,
    )
}

fn logits_of(cpu: Cpu, graph: &Graph, source: &dyn WeightSource) -> Vec<u32> {
    let blocks = vec![2; graph.groups.len()];
    let mut runner = load(cpu, source, graph.key, &blocks, |_| Ok(graph.clone())).unwrap();
    let tokens = [3, 1, 4, 1, 5];
    let output = step(&mut *runner, Input::Ids(&tokens), &[TestSequence::new(0, 0, 5)]);
    output.into_iter().map(f32::to_bits).collect()
}

fn q4_0() -> (Graph, Source) {
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    let source = Source::random(&graph, &mut Random(9));
    (graph, source)
}

#[test]
fn kept_weights_compute_the_same_bits() {
    let packed = [DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::BF16, DType::F16, DType::F32];
    for dtype in packed {
        let graph = model(Model { width: 256, weights: dtype, ..Model::default() });
        let source = Source::random(&graph, &mut Random(dtype as u64));
        let (named, shelf) = (Named::new(&source, 1), Shelf::default());
        let want = logits(&graph, &source, None, 2);
        assert_eq!(logits(&graph, &named, Some(&shelf), 1), want, "{dtype}, packed and cached");
        let (all, file) = (named.read(), shelf.file());
        for threads in 1..4 {
            assert_eq!(logits(&graph, &named, Some(&shelf), threads), want, "{dtype} from the store");
        }
        // Now only vectors are read from the source.
        let read = named.read();
        assert!(read < all / 10, "{dtype}: {read} of {all} bytes were read again");
        assert_eq!(shelf.notes(), [""; 0]);
        // The bytes do not depend on the threads that packed and wrote them.
        let other = Shelf::default();
        other.lock().writers = 4;
        logits(&graph, &named, Some(&other), 3);
        assert!(other.file() == file, "{dtype}: the bytes depend on the threads");
    }
}

#[test]
fn damaged_weights_are_refused_and_packed_again() {
    let (graph, source) = q4_0();
    let (named, shelf) = (Named::new(&source, 1), Shelf::default());
    let want = logits(&graph, &named, Some(&shelf), 2);
    let whole = shelf.file();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let end_of_table = whole[..4096].iter().rposition(|&byte| byte != 0).expect("the table is there");
    let longer = [&whole[..], &[0]].concat();
    let zeros = vec![0; whole.len()];
    let cases = [
        (Vec::new(), "0 bytes instead of"),
        (whole[..whole.len() - 1].to_vec(), "bytes instead of"),
        (longer, "bytes instead of"),
        (zeros, "belong to another model or version"),
        (flipped(0), "belong to another model or version"),
        (flipped(8), "belong to another model or version"),
        (flipped(12), "belong to another model or version"),
        (flipped(20), "belong to another model or version"),
        (flipped(60), "belong to another model or version"),
        (flipped(end_of_table), "damaged: their table"),
        (flipped(whole.len() - 1), "damaged: band "),
        (flipped(whole.len() / 2), "damaged: band "),
    ];
    for (bytes, words) in cases {
        shelf.replace(bytes);
        assert_eq!(logits(&graph, &named, Some(&shelf), 2), want, "{words}");
        let notes = shelf.notes();
        assert!(notes.len() == 1 && notes[0].contains(words), "{words}: {notes:?}");
        assert!(shelf.file() == whole, "{words}: it was not packed again");
    }
}

/// Every byte that matters is compared or covered by a digest: a flipped byte is refused, or it is
/// padding and changes nothing.
#[test]
fn no_flipped_byte_is_accepted() {
    let (graph, source) = q4_0();
    let (named, shelf) = (Named::new(&source, 1), Shelf::default());
    let want = logits(&graph, &named, Some(&shelf), 1);
    let whole = shelf.file();
    let mut random = Random(11);
    for _ in 0..200 {
        let (at, bit) = (random.bits() as usize % whole.len(), random.bits() % 8);
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        shelf.replace(bytes);
        assert_eq!(logits(&graph, &named, Some(&shelf), 1), want, "byte {at}, bit {bit}");
        let was_repacked = shelf.file() == whole;
        assert_eq!(shelf.notes().len(), usize::from(was_repacked), "byte {at}, bit {bit}");
    }
}

#[test]
fn weights_of_another_source_or_shape_are_refused() {
    let (graph, source) = q4_0();
    let shelf = Shelf::default();
    logits(&graph, &Named::new(&source, 1), Some(&shelf), 2);
    let other = Source::random(&graph, &mut Random(10));
    let want = logits(&graph, &other, None, 2);
    assert_eq!(logits(&graph, &Named::new(&other, 2), Some(&shelf), 2), want);
    assert_eq!(shelf.notes(), [""; 0]);
    assert_eq!(shelf.lock().files.len(), 2);
    // The same size, of another identity, for any key.
    let shelf_of_first = Shelf::default();
    logits(&graph, &Named::new(&source, 1), Some(&shelf_of_first), 2);
    let foreign = shelf_of_first.file();
    shelf.lock().foreign = Some(foreign);
    assert_eq!(logits(&graph, &Named::new(&other, 2), Some(&shelf), 2), want);
    assert!(shelf.notes()[0].contains("another model"));
    let wider = model(Model { width: 512, weights: DType::Q4_0, ..Model::default() });
    let source = Source::random(&wider, &mut Random(9));
    let want = logits(&wider, &source, None, 2);
    assert_eq!(logits(&wider, &Named::new(&source, 1), Some(&shelf), 2), want);
    assert!(shelf.notes()[0].contains("another model"));
}

/// What is left out of memory is left out of the file, too.
#[test]
fn sparse_weights_are_kept_without_their_zeros() {
    for dtype in [DType::Q4_0, DType::BF16] {
        let graph = model(Model { width: 256, weights: dtype, ..Model::default() });
        let mut source = Source::random(&graph, &mut Random(9));
        let shelf = Shelf::default();
        logits(&graph, &Named::new(&source, 1), Some(&shelf), 2);
        let whole = shelf.file().len();
        source.zero_units(&graph, 32, &mut Random(10));
        let (named, shelf) = (Named::new(&source, 2), Shelf::default());
        let want = logits(&graph, &named, Some(&shelf), 2);
        let (file, all) = (shelf.file(), named.read());
        assert!(file.len() * 10 < whole * 7, "{dtype}: {} of {whole} bytes", file.len());
        assert_eq!(logits(&graph, &named, Some(&shelf), 1), want, "{dtype} from the store");
        shelf.lock().has_files = true;
        let options = CpuOptions { threads: 2, residence: Residence::File, ..CpuOptions::default() };
        let mapped = Cpu::new(options).unwrap().with_store(Box::new(shelf.clone()));
        assert_eq!(logits_of(mapped, &graph, &named), want, "{dtype} in the file");
        let read = named.read();
        assert!(read < all / 5, "{dtype}: {read} of {all} bytes were read again");
        assert_eq!(shelf.notes(), [""; 0]);
        shelf.replace(file[..file.len() - 1].to_vec());
        assert_eq!(logits(&graph, &named, Some(&shelf), 1), want, "{dtype}");
        assert!(shelf.notes()[0].contains("bytes instead of"));
    }
}

/// A store does not wait for weights that are packed fast, but reads them if it has them.
#[test]
fn weights_that_are_packed_fast_are_not_awaited() {
    let (graph, source) = q4_0();
    let (named, shelf) = (Named::new(&source, 1), Shelf::default());
    let start = |await_packed| {
        let cpu = Cpu::new(CpuOptions { threads: 2, await_packed, ..CpuOptions::default() }).unwrap();
        (logits_of(cpu.with_store(Box::new(shelf.clone())), &graph, &named), named.read())
    };
    let (want, packed) = start(AwaitPacked::IfSlow);
    let (found, read) = start(AwaitPacked::IfSlow);
    assert!(found == want && read < packed, "{read} of {packed} bytes");
    shelf.lock().files.clear();
    assert_eq!(start(AwaitPacked::Always), (want, packed));
    assert_eq!(shelf.lock().awaited, [false, true]);
    assert_eq!(shelf.notes(), [""; 0]);
}

/// Weights of doubled layers are in memory and in the file once.
#[test]
fn equal_weights_are_kept_once() {
    for (dtype, zeros) in [(DType::Q4_0, false), (DType::BF16, false), (DType::Q4_0, true)] {
        let graph = model(Model { width: 256, weights: dtype, ..Model::default() });
        let mut source = Source::random(&graph, &mut Random(9));
        if zeros {
            source.zero_units(&graph, 32, &mut Random(10));
        }
        let shelf = Shelf::default();
        logits(&graph, &Named::new(&source, 1), Some(&shelf), 2);
        let different = shelf.file().len();
        source.double_layer();
        let (named, shelf) = (Named::new(&source, 2), Shelf::default());
        let options = |equal_weights, residence| CpuOptions {
            threads: 2,
            equal_weights,
            residence,
            ..CpuOptions::default()
        };
        let own = Cpu::new(options(EqualWeights::Keep, Residence::Memory)).unwrap();
        let want = logits_of(own, &graph, &source);
        assert_eq!(logits(&graph, &named, Some(&shelf), 2), want, "{dtype}");
        let file = shelf.file();
        assert!(file.len() * 4 < different * 3, "{dtype}: {} of {different} bytes", file.len());
        for residence in [Residence::Memory, Residence::File] {
            shelf.lock().has_files = residence == Residence::File;
            for equal_weights in [EqualWeights::Share, EqualWeights::Keep] {
                let cpu = Cpu::new(options(equal_weights, residence)).unwrap();
                let cpu = cpu.with_store(Box::new(shelf.clone()));
                assert_eq!(logits_of(cpu, &graph, &named), want, "{dtype} {residence:?} {equal_weights:?}");
            }
        }
        assert_eq!(shelf.notes(), [""; 0]);
        let runner = load(
            Cpu::new(options(EqualWeights::Share, Residence::Memory)).unwrap(),
            &source,
            graph.key,
            &vec![2; graph.groups.len()],
            |_| Ok(graph.clone()),
        );
        let tuning = runner.unwrap().tuning().unwrap();
        assert!(tuning.contains("weights share the memory of earlier equal ones"), "{tuning}");
    }
}

#[test]
fn loading_succeeds_if_the_store_fails() {
    let (graph, source) = q4_0();
    let (named, shelf) = (Named::new(&source, 1), Shelf::default());
    let want = logits(&graph, &source, None, 2);
    for (full_at, writers) in [(0, 1), (4096, 1), (20_000, 1), (4096, 3)] {
        shelf.lock().full_at = Some(full_at);
        shelf.lock().writers = writers;
        assert_eq!(logits(&graph, &named, Some(&shelf), 2), want);
        let notes = shelf.notes();
        assert!(!notes.is_empty() && notes.iter().all(|note| note == "the shelf is full"), "{notes:?}");
        assert!(shelf.lock().files.is_empty());
    }
}

/// Mapped weights are not read and yield the same bits; incomplete ones are refused before they are
/// mapped.
#[test]
fn mapped_weights_compute_the_same_bits() {
    let (graph, source) = q4_0();
    let (named, shelf) = (Named::new(&source, 1), Shelf::default());
    let want = logits(&graph, &named, Some(&shelf), 2);
    let (all, whole) = (named.read(), shelf.file());
    shelf.lock().has_files = true;
    let mapped = || {
        let options = CpuOptions { threads: 2, residence: Residence::File, ..CpuOptions::default() };
        let cpu = Cpu::new(options).unwrap().with_store(Box::new(shelf.clone()));
        logits_of(cpu, &graph, &named)
    };
    assert_eq!(mapped(), want);
    let read = named.read();
    assert!(read < all / 10, "{read} of {all} bytes were read again");
    for bytes in [whole[..whole.len() - 1].to_vec(), vec![0; whole.len()]] {
        shelf.replace(bytes);
        assert_eq!(mapped(), want);
        assert_eq!(shelf.notes().len(), 1);
        assert!(named.read() == all && shelf.file() == whole, "it is packed again");
    }
}

/// A damaged band is noticed when weights are read, not when they are mapped, as the documentation of
/// `Residence` states.
#[test]
fn mapped_weights_are_not_checked() {
    let (graph, source) = q4_0();
    let (named, shelf) = (Named::new(&source, 1), Shelf::default());
    let want = logits(&graph, &named, Some(&shelf), 2);
    let mut spoiled = shelf.file();
    let half = spoiled.len() / 2;
    spoiled[half..].fill(0x11);
    shelf.replace(spoiled);
    shelf.lock().has_files = true;
    let options = CpuOptions { threads: 2, residence: Residence::File, ..CpuOptions::default() };
    let cpu = Cpu::new(options).unwrap().with_store(Box::new(shelf.clone()));
    assert_ne!(logits_of(cpu, &graph, &named), want);
    assert_eq!(shelf.notes(), [""; 0]);
}

#[test]
fn a_source_without_identity_is_not_kept() {
    let (graph, source) = q4_0();
    let shelf = Shelf::default();
    logits(&graph, &source, Some(&shelf), 2);
    assert!(shelf.lock().files.is_empty());
}

#[test]
fn unpacked_weights_are_not_kept() {
    let stored = |dtype: &DType| {
        matches!(Layout::of(*dtype), Layout::Stored(_)) && dtype.writes() && dtype.tile().0 == 1
    };
    let Some(&weights) = DType::ALL.iter().find(|dtype| stored(dtype)) else { return };
    let graph = model(Model { width: 256, weights, ..Model::default() });
    let source = Source::random(&graph, &mut Random(9));
    let shelf = Shelf::default();
    logits(&graph, &Named::new(&source, 1), Some(&shelf), 2);
    let kept = &shelf.lock().files;
    assert!(kept.is_empty(), "{weights}");
}
