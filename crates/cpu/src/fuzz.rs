//! The entry point of the fuzz target `packed`: a file of packed weights that anybody may
//! have written.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, OnceLock};

use girih_graph::backend::{Input, Outputs, Range32, Sequence, Step, Unwatched, WeightSource};
use girih_graph::store::{Store, StoreWriter, StoredItem, UnsavedItem};
use girih_graph::{Error, Graph, load};
use girih_tensor::{DType, Random};

use crate::affinity::Affinity;
use crate::backend::{Cpu, CpuOptions};
use crate::equal_weights::EqualWeights;
use crate::kernels::packed::Layout;
use crate::os::memory_file;
use crate::packed_store::Residence;
use crate::present::ZeroBlocks;
use crate::row_table::TablesInFile;
use crate::weights::{AwaitPacked, PackingRule, contents};

/// The columns of each matrix: one block of the largest formats.
const COLUMNS: usize = 256;

/// The source's identity.
const IDENTITY: [u8; 32] = [7; 32];

/// Flags in the first byte of an input.
const EDITS: u8 = 1;
const RENEW_TABLE: u8 = 2;
const RENEW_BANDS: u8 = 4;
const MAP: u8 = 8;

/// Loads a model with a matrix of each packed format and runs a step. The first byte is
/// flags. The rest is the file, or with `EDITS` edits of the right file: an offset of four
/// bytes and a byte. Digests may then be made to match, and the file may be mapped.
///
/// # Panics
/// If a file whose bands are checked and not forged changes a result.
pub fn packed(bytes: &[u8]) {
    static MODEL: OnceLock<(Graph, Vec<u8>, Vec<u32>)> = OnceLock::new();
    let (graph, right, want) = MODEL.get_or_init(|| {
        let (graph, shelf) = (graph(), Shelf::default());
        let want = run(&graph, &shelf, Residence::Memory);
        let right = std::mem::take(&mut *shelf.kept());
        (graph, right, want)
    });
    let Some((&flags, rest)) = bytes.split_first() else { return };
    let has = |flag: u8| flags & flag != 0;
    let mut file = if has(EDITS) { right.clone() } else { rest.to_vec() };
    if has(EDITS) {
        for [at @ .., byte] in rest.as_chunks::<5>().0 {
            file[u32::from_le_bytes(*at) as usize % right.len()] = *byte;
        }
        if has(RENEW_TABLE) {
            let rule = PackingRule {
                in_file: &TablesInFile::default(),
                zero_blocks: ZeroBlocks::Skip,
                placement: None,
                equal_weights: EqualWeights::Share,
                awaited: AwaitPacked::Always,
            };
            let contents = contents(graph, &IDENTITY, rule).expect("the graph has matrices");
            contents.renew_digests(&mut file, has(RENEW_BANDS));
        }
    }
    let residence = if has(MAP) { Residence::File } else { Residence::Memory };
    let shelf = Shelf { kept: Arc::new(Mutex::new(file)), has_file: has(MAP) };
    let found = run(graph, &shelf, residence);
    if !has(MAP) && !has(RENEW_BANDS) {
        assert!(found == *want, "a damaged file changed a result");
    }
}

/// The sum of products of one row with a matrix of each packed format.
fn graph() -> Graph {
    let packed = |dtype: &&DType| !matches!(Layout::of(**dtype), Layout::Stored(_));
    let mut text = format!(
        "graph rows 2 sequences 1 context 64 output_rows 2 -> hidden\ninput embed: [rows 2, {COLUMNS}] f32\n"
    );
    let mut sum: Option<String> = None;
    let dtypes: Vec<&DType> = DType::ALL.iter().filter(packed).collect();
    for (index, dtype) in dtypes.iter().enumerate() {
        text += &format!("weight w{index}: [64, {COLUMNS}] {dtype}\n");
        text += &format!("y{index}: [rows 2, 64] = linear embed, w{index}\n");
        if let Some(before) = sum {
            text += &format!("sum{index}: [rows 2, 64] = add {before}, y{index}\n");
        }
        sum = Some(if index == 0 { "y0".to_owned() } else { format!("sum{index}") });
    }
    text += &format!("output rows: [output_rows 2, 64] = gather {}\n", sum.expect("there are formats"));
    text.parse().expect("the text of a graph")
}

/// Loads the graph with what the shelf has as packed weights; returns the bits of a step's rows.
fn run(graph: &Graph, shelf: &Shelf, residence: Residence) -> Vec<u32> {
    let options = CpuOptions { threads: 1, affinity: Affinity::None, residence, ..CpuOptions::default() };
    let cpu = Cpu::new(options).expect("one thread").with_store(Box::new(shelf.clone()));
    let mut runner =
        load(cpu, &Source, graph.key, &[], |_| Ok(graph.clone())).expect("bad packed weights are replaced");
    let values: Vec<f32> = (0..2 * COLUMNS).map(|at| (at % 17) as f32 / 8.0 - 1.0).collect();
    let rows = Range32 { start: 0, end: 2 };
    let sequence = Sequence { blocks: &[], position: 0, rows, outputs: Outputs::All, spans: &[] };
    let step = Step { inputs: &[Input::Rows(&values)], sequences: &[sequence], watch: &mut Unwatched };
    runner.step(step).expect("a step of two rows");
    let rows = runner.output().rows(0..2).expect("two rows");
    rows.iter().map(|value| value.to_bits()).collect()
}

/// Weights that depend on their name and position only.
struct Source;

impl WeightSource for Source {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let name = name.bytes().fold(0, |sum: u64, byte| sum * 31 + u64::from(byte));
        for (at, byte) in (offset..).zip(into) {
            // Small numbers in each format: no exponent has its highest bits.
            *byte = Random(name << 32 | at).below(256) as u8 & 0x3b;
        }
        Ok(())
    }

    fn identity(&self) -> Option<[u8; 32]> {
        Some(IDENTITY)
    }
}

/// A store that has the same bytes for every key.
#[derive(Clone, Debug, Default)]
struct Shelf {
    kept: Arc<Mutex<Vec<u8>>>,
    has_file: bool,
}

impl Shelf {
    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.kept.lock().expect("nothing panics while it holds the lock")
    }
}

impl Store for Shelf {
    fn find(&self, _: &str) -> Option<Box<dyn StoredItem>> {
        let bytes = self.kept().clone();
        let mut file = None;
        if self.has_file {
            let file = file.insert(memory_file().expect("the kernel has memory files"));
            file.write_all(&bytes).expect("there is memory for half a megabyte");
            // Otherwise it is not mapped.
            file.set_permissions(Permissions::from_mode(0o400)).expect("the file is this process's");
        }
        Some(Box::new(PackedBytes { bytes, file }))
    }

    fn keep(&self, item: Box<dyn UnsavedItem>) {
        *self.kept() = vec![0; item.bytes() as usize];
        assert!(item.write(self).is_ok_and(|is_last| is_last), "one thread writes all pieces");
    }

    fn note(&self, _: &Error) {}
}

impl StoreWriter for Shelf {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.kept()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

struct PackedBytes {
    bytes: Vec<u8>,
    file: Option<File>,
}

impl StoredItem for PackedBytes {
    fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let part = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..)?.get(..into.len()));
        into.copy_from_slice(part.ok_or_else(|| Error::new("past the end"))?);
        Ok(())
    }

    fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of every kind that the target tells apart.
    #[test]
    fn damaged_and_forged_files_are_refused_or_computed() {
        let edits: Vec<u8> =
            (0..400_u32).flat_map(|n| [&(n * 997).to_le_bytes()[..], &[0xff]].concat()).collect();
        for flags in 0..16 {
            packed(&[&[flags], &edits[..]].concat());
            packed(&[flags]);
        }
        packed(&[]);
    }
}
