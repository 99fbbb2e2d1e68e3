//! Weights on this backend: matrices packed for the kernels, vectors as `f32`.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use girih_graph::backend::WeightTouch;
use girih_graph::store::Store;
use girih_graph::{Error, Graph, Op, OperandKind, Value, ValueId, WeightSource, multiplied_weights};
use girih_tensor::View;
use half::f16;

use crate::equal_weights::{EqualWeights, first_shared};
use crate::filling::{PackingClock, UnfilledWeight, fill_weights, planned, read_and_pack};
use crate::kernels::Table;
use crate::kernels::packed::{BAND, Layout, bands};
use crate::kernels::prefetch::PrefetchChoice;
use crate::memory::{Aligned, SharedBytes};
use crate::memory_policy::PagePlacement;
use crate::packed_matrix::{PackedMatrix, PackedShape};
use crate::packed_store::{KeptPack, ListedMatrix, PackContents, Residence, UnsavedPack};
use crate::pool::ThreadPool;
use crate::present::{FilledWeight, UnitGrid, ZeroBlocks};
use crate::rounded_floats::LARGEST_SUMMED_WEIGHT;
use crate::row_table::{RowTable, TablesInFile};

/// What decides how weights are packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackingRule<'a> {
    /// The tables that stay in their file.
    pub in_file: &'a TablesInFile,
    pub zero_blocks: ZeroBlocks,
    /// Where their pages lie, unless the system decides.
    pub placement: Option<&'a PagePlacement>,
    pub equal_weights: EqualWeights,
    /// Whether a store waits until it has written what was packed.
    pub awaited: AwaitPacked,
}

/// Which newly packed weights a store waits for until they are written, even if the program ends (does not affect results).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AwaitPacked {
    /// All.
    #[default]
    Always,
    /// Those whose packing took each thread at least a second, without reading the source. A program that ends before others are
    /// written does not keep them.
    IfSlow,
}

/// The time from which on packing is slow: about what a start with kept weights saves. To write them takes as long, or several
/// times as long on a slow disk.
const SLOW_PACKING: Duration = Duration::from_secs(1);

impl AwaitPacked {
    /// Whether weights whose packing took each thread this time are worth waiting for.
    fn is_worth(self, packing: Duration) -> bool {
        match self {
            AwaitPacked::Always => true,
            AwaitPacked::IfSlow => packing >= SLOW_PACKING,
        }
    }
}

/// All weights of a graph.
#[derive(Debug)]
pub struct CpuWeights {
    indexes: HashMap<String, usize>,
    tensors: Vec<LoadedWeight>,
}

#[derive(Debug)]
enum LoadedWeight {
    Matrix {
        matrix: PackedMatrix,
        packed: FilledWeight,
    },
    /// A matrix of each expert, one after another.
    Matrices {
        each: Vec<PackedMatrix>,
        packed: FilledWeight,
    },
    Vector {
        numbers: Aligned<f32>,
        columns: usize,
    },
    /// A table that stays in its file.
    InFile(RowTable),
}

/// How the nodes of a graph use a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightForm {
    /// As the second operand of `linear` or `embed`.
    Matrix,
    /// As a matrix for each expert.
    Matrices,
    /// As a norm's weight, a bias, or frequencies.
    Vector,
}

impl WeightForm {
    /// The form of operand `index` of `op`, if that is a weight.
    pub fn of(op: Op, index: usize) -> Option<WeightForm> {
        match op.spec().operands.get(index)? {
            OperandKind::Matrix => Some(WeightForm::Matrix),
            OperandKind::Matrices => Some(WeightForm::Matrices),
            OperandKind::Vector => Some(WeightForm::Vector),
            _ => None,
        }
    }

    /// Whether it is packed in bands.
    pub fn is_packed(self) -> bool {
        match self {
            WeightForm::Matrix | WeightForm::Matrices => true,
            WeightForm::Vector => false,
        }
    }

    /// The form of `weight` in the graph; all its readers agree on it.
    pub fn in_graph(graph: &Graph, weight: ValueId) -> Option<WeightForm> {
        graph.nodes.iter().find_map(|node| {
            let index = node.inputs.iter().position(|&input| input == weight)?;
            WeightForm::of(node.op, index)
        })
    }
}

impl CpuWeights {
    /// The bytes that the weights of `graph` take, without those that stay in their file; sparse ones take less.
    pub(crate) fn plan(graph: &Graph, in_file: &TablesInFile) -> u64 {
        let vectors = of_form(graph, |form| form == WeightForm::Vector);
        let vectors = vectors.map(|(_, value)| Aligned::<f32>::bytes(value.shape.elements()));
        let packed = of_form(graph, WeightForm::is_packed).filter(|(_, value)| !in_file.has(value));
        vectors.fold(
            planned(packed.map(|(id, value)| unfilled(graph, id, value, ZeroBlocks::Keep))),
            u64::saturating_add,
        )
    }

    /// Loads the weights of `graph` on all threads: from `store` if it has them packed, otherwise
    /// from `source`. In the second case it hands the packed matrices to the store.
    ///
    /// # Errors
    /// If `source` fails or was changed meanwhile, or there is not enough memory; never because
    /// of the store.
    pub(crate) fn load(
        graph: &Graph,
        source: &dyn WeightSource,
        (store, residence): (Option<&dyn Store>, Residence),
        rule: PackingRule<'_>,
        (table, pool): (&Table, &ThreadPool),
    ) -> Result<CpuWeights, Error> {
        let contents = source.identity().and_then(|identity| contents(graph, &identity, rule));
        let clock = &PackingClock::default();
        let (Some(store), Some(contents)) = (store, contents) else {
            return CpuWeights::fill(graph, (source, clock), None, rule, (table, pool));
        };
        if let Some(reader) = store.find(&contents.key.to_string()) {
            let kept = KeptPack::open(&contents, &*reader, residence);
            let fill = |kept| CpuWeights::fill(graph, (source, clock), Some(&kept), rule, (table, pool));
            match kept.and_then(fill) {
                Ok(weights) => return Ok(weights),
                Err(error) => store.note(&error),
            }
        }
        let weights = CpuWeights::fill(graph, (source, clock), None, rule, (table, pool))?;
        source.check_unchanged()?;
        let matrix = |name: &str| {
            let index = weights.indexes.get(name).expect("a packed weight is a matrix of the graph");
            weights.packed(*index)
        };
        let is_awaited = rule.awaited.is_worth(clock.of_each(pool.threads()));
        let unsaved = Box::new(UnsavedPack::new(contents, matrix, is_awaited));
        // The store may start threads.
        pool.unpinned(|| store.keep(unsaved));
        Ok(weights)
    }

    /// Loads the weights of `graph`: matrices that `kept` has from there, all others from `source`.
    fn fill(
        graph: &Graph,
        (source, clock): (&dyn WeightSource, &PackingClock),
        kept: Option<&KeptPack<'_>>,
        rule: PackingRule<'_>,
        (table, pool): (&Table, &ThreadPool),
    ) -> Result<CpuWeights, Error> {
        let in_file = rule.in_file;
        let mapped = |value: &Value| kept.and_then(|kept| kept.mapped(&value.name));
        let unmapped = of_form(graph, WeightForm::is_packed)
            .filter(|(_, value)| mapped(value).is_none() && !in_file.has(value));
        let unfilled = unmapped.map(|(id, value)| UnfilledWeight {
            places: kept.and_then(|kept| kept.places(&value.name)),
            ..unfilled(graph, id, value, rule.zero_blocks)
        });
        let filled = fill_weights(
            unfilled,
            rule.placement,
            rule.equal_weights,
            (table, pool),
            &|(value, shape), band, stored, packed| match kept.filter(|kept| kept.contains(&value.name)) {
                Some(kept) => kept.read(&value.name, band, packed),
                None => read_and_pack((value, shape), (source, clock), band, stored, packed),
            },
        )?;
        let mut filled = filled.into_iter();
        let mut next = || filled.next().expect("each matrix that is not mapped was filled");
        let mut weights = CpuWeights { indexes: HashMap::new(), tensors: Vec::new() };
        for (id, value) in graph.weights() {
            let tensor = match WeightForm::in_graph(graph, id) {
                Some(WeightForm::Matrix) if in_file.has(value) => match in_file.table(value) {
                    Some(table) => LoadedWeight::InFile(table),
                    None => continue,
                },
                Some(WeightForm::Matrix) => {
                    let packed = mapped(value).unwrap_or_else(&mut next);
                    let mut matrices = matrices(graph, id, &packed);
                    LoadedWeight::Matrix { matrix: matrices.pop().expect("one matrix"), packed }
                }
                Some(WeightForm::Matrices) => {
                    let packed = mapped(value).unwrap_or_else(&mut next);
                    LoadedWeight::Matrices { each: matrices(graph, id, &packed), packed }
                }
                Some(WeightForm::Vector) => {
                    LoadedWeight::Vector { numbers: vector(value, source)?, columns: value.shape.columns() }
                }
                None => continue,
            };
            weights.indexes.insert(value.name.clone(), weights.tensors.len());
            weights.tensors.push(tensor);
        }
        Ok(weights)
    }

    /// The index of the weight of this name.
    pub(crate) fn index(&self, name: &str) -> Result<usize, Error> {
        let missing =
            || Error::new(format!("the weight '{name}' of the graph is not among the loaded weights"));
        self.indexes.get(name).copied().ok_or_else(missing)
    }

    /// The bytes of a weight.
    pub(crate) fn bytes(&self, index: usize) -> u64 {
        match &self.tensors[index] {
            LoadedWeight::Vector { numbers, .. } => size_of_val(&**numbers) as u64,
            LoadedWeight::InFile(table) => (table.rows * table.row_bytes()) as u64,
            packed => packed.matrices().iter().map(PackedMatrix::size).sum(),
        }
    }

    /// The bytes of a row.
    pub(crate) fn row_bytes(&self, index: usize) -> u64 {
        match &self.tensors[index] {
            LoadedWeight::Vector { columns, .. } => (columns * size_of::<f32>()) as u64,
            LoadedWeight::InFile(table) => table.row_bytes() as u64,
            packed => {
                let rows: usize = packed.matrices().iter().map(|matrix| matrix.rows / matrix.row_parts).sum();
                self.bytes(index) / rows.max(1) as u64
            }
        }
    }

    pub(crate) fn matrix(&self, index: usize) -> &PackedMatrix {
        match &self.tensors[index] {
            LoadedWeight::Matrix { matrix, .. } => matrix,
            LoadedWeight::Matrices { .. } | LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => {
                wrong_weights()
            }
        }
    }

    /// The table that rows of a step are read from.
    pub(crate) fn table(&self, index: usize) -> TableRows<'_> {
        match &self.tensors[index] {
            LoadedWeight::Matrix { matrix, .. } => TableRows::Packed(matrix),
            LoadedWeight::InFile(table) => TableRows::InFile(table),
            LoadedWeight::Matrices { .. } | LoadedWeight::Vector { .. } => wrong_weights(),
        }
    }

    /// Checks that all rows that a step read from files are those of the files that were opened.
    ///
    /// # Errors
    /// If one could not be read, or a file was changed.
    pub(crate) fn finish_rows(&self) -> Result<(), Error> {
        let finished = self.tensors.iter().map(|tensor| match tensor {
            LoadedWeight::InFile(table) => table.finish(),
            LoadedWeight::Matrix { .. } | LoadedWeight::Matrices { .. } | LoadedWeight::Vector { .. } => {
                Ok(())
            }
        });
        // All of them forget their errors, so that the next step begins without one.
        finished.fold(Ok(()), Result::and)
    }

    /// The matrices of all experts.
    pub(crate) fn experts(&self, index: usize) -> &[PackedMatrix] {
        match &self.tensors[index] {
            LoadedWeight::Matrices { each, .. } => each,
            LoadedWeight::Matrix { .. } | LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => {
                wrong_weights()
            }
        }
    }

    /// The bands of a packed weight.
    fn packed(&self, index: usize) -> &FilledWeight {
        match &self.tensors[index] {
            LoadedWeight::Matrix { packed, .. } | LoadedWeight::Matrices { packed, .. } => packed,
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => wrong_weights(),
        }
    }

    /// The bytes of the units of a weight that are present, and of all units; `None` if it is not packed.
    pub(crate) fn dense_bytes(&self, index: usize) -> Option<[u64; 2]> {
        let matrices = self.tensors[index].matrices();
        let sum = |bytes: fn(&PackedMatrix) -> u64| matrices.iter().map(bytes).sum::<u64>();
        (!matrices.is_empty()).then(|| [sum(PackedMatrix::size), sum(PackedMatrix::dense_size)])
    }

    /// The bytes of all sparse weights: of the units that are present, and of all units.
    pub(crate) fn sparse_bytes(&self) -> [u64; 2] {
        let sparse = self.matrices().filter(|matrix| matrix.is_sparse());
        sparse.fold([0, 0], |[present, all], matrix| [present + matrix.size(), all + matrix.dense_size()])
    }

    /// The sparse weights, by name, with the share of their units that are present.
    pub(crate) fn densities(&self) -> Vec<(String, f64)> {
        let density = |(name, index): (&String, &usize)| {
            let [present, dense] = self.dense_bytes(*index)?;
            (present < dense).then(|| (name.clone(), present as f64 / dense as f64))
        };
        let mut sparse: Vec<(String, f64)> = self.indexes.iter().filter_map(density).collect();
        sparse.sort_by(|a, b| a.0.cmp(&b.0));
        sparse
    }

    /// The packed weights that share their bytes with an earlier one: their number, and the bytes that memory has once.
    pub(crate) fn shared(&self) -> (usize, u64) {
        let packed: Vec<&[u8]> = self.tensors.iter().filter_map(LoadedWeight::packed).collect();
        let first = first_shared(&packed);
        let shared = (0..packed.len()).filter(|index| first[*index] < *index);
        shared.fold((0, 0), |(count, all), index| (count + 1, all + packed[index].len() as u64))
    }

    /// Reads some bytes of the packed matrices and returns their exclusive or; `None` if there are none. In each matrix the
    /// first byte that is walked over is read, and then each byte of the stride.
    pub(crate) fn touch(&self, touch: WeightTouch) -> Option<u8> {
        let matrices: Vec<&[u8]> = self.tensors.iter().filter_map(LoadedWeight::packed).collect();
        let total: u64 = matrices.iter().map(|bytes| bytes.len() as u64).sum();
        let (mut skip, mut left, mut checksum) = (touch.first.checked_rem(total)?, touch.bytes, 0);
        for bytes in matrices.iter().cycle() {
            let count = bytes.len() as u64;
            if skip >= count {
                skip -= count;
                continue;
            }
            let end = count.min(skip.saturating_add(left));
            let stride = usize::try_from(touch.stride.max(1)).unwrap_or(usize::MAX);
            let walked = &bytes[skip as usize..end as usize];
            checksum = walked.iter().step_by(stride).fold(checksum, |all, byte| all ^ byte);
            (left, skip) = (left - (end - skip), 0);
            if left == 0 {
                break;
            }
        }
        Some(checksum)
    }

    /// Lets each socket read its copy of the weights of these names; `copy` copies their bytes, once for each socket.
    ///
    /// # Errors
    /// As `copy`, or if a weight is missing.
    pub(crate) fn replicate(
        &mut self,
        names: &[String],
        copy: impl FnOnce(&[&[u8]]) -> Result<Vec<Vec<SharedBytes>>, Error>,
    ) -> Result<(), Error> {
        let indexes = names.iter().map(|name| self.index(name)).collect::<Result<Vec<usize>, Error>>()?;
        let bytes: Vec<&[u8]> = indexes.iter().map(|index| &*self.packed(*index).bytes).collect();
        let copies = copy(&bytes)?;
        for (index, copies) in indexes.iter().zip(&copies) {
            self.tensors[*index].matrices_mut().iter_mut().for_each(|matrix| matrix.set_copies(copies));
        }
        Ok(())
    }

    /// The number of matrices that sockets have copies of, and the bytes of all copies; matrices that share a copy count
    /// its bytes once.
    pub(crate) fn copied(&self) -> (usize, u64) {
        let copied = self.matrices().map(PackedMatrix::copies).filter(|copies| !copies.is_empty());
        let copied: Vec<&[SharedBytes]> = copied.collect();
        let all: Vec<&[u8]> = copied.iter().copied().flatten().map(|copy| &**copy).collect();
        let first = first_shared(&all);
        let distinct = (0..all.len()).filter(|index| first[*index] == *index);
        (copied.len(), distinct.map(|index| all[index].len() as u64).sum())
    }

    /// Sets how far ahead kernels prefetch matrices.
    pub(crate) fn set_prefetch(&mut self, choice: PrefetchChoice) {
        for matrix in self.tensors.iter_mut().flat_map(LoadedWeight::matrices_mut) {
            matrix.set_prefetch(choice);
        }
    }

    /// Refuses weights in half precision with a number too large for sums in half precision.
    pub(crate) fn check_fp16_sums(&self, graph: &Graph) -> Result<(), Error> {
        let largest = f16::from_f32(LARGEST_SUMMED_WEIGHT).to_bits();
        // Each once, though several nodes may read it.
        let weights: BTreeSet<ValueId> = multiplied_weights(graph).collect();
        for weight in weights.into_iter().map(|weight| graph.value(weight)) {
            if Layout::of(weight.dtype) != Layout::F16 {
                continue;
            }
            let matrices = self.tensors[self.index(&weight.name)?].matrices().iter();
            let mut numbers =
                matrices.flat_map(|matrix| matrix.bytes_on(0).as_chunks().0).copied().map(f16::from_le_bytes);
            if let Some(number) = numbers.find(|number| number.to_bits() & 0x7fff > largest) {
                let name = &weight.name;
                return Err(Error::new(format!(
                    "the weight '{name}' has the number {number}; sums in half precision need numbers between \
                     −{LARGEST_SUMMED_WEIGHT} and {LARGEST_SUMMED_WEIGHT}: choose activations in f32"
                )));
            }
        }
        Ok(())
    }

    /// All matrices, in the order of the graph.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.tensors.iter().flat_map(LoadedWeight::matrices)
    }

    pub(crate) fn vector(&self, index: usize) -> &[f32] {
        match &self.tensors[index] {
            LoadedWeight::Vector { numbers, .. } => numbers,
            LoadedWeight::Matrix { .. } | LoadedWeight::Matrices { .. } | LoadedWeight::InFile(_) => {
                wrong_weights()
            }
        }
    }
}

impl LoadedWeight {
    /// The bytes of all bands, if it is packed.
    fn packed(&self) -> Option<&[u8]> {
        match self {
            LoadedWeight::Matrix { packed, .. } | LoadedWeight::Matrices { packed, .. } => {
                Some(&packed.bytes)
            }
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => None,
        }
    }

    fn matrices_mut(&mut self) -> &mut [PackedMatrix] {
        match self {
            LoadedWeight::Matrix { matrix, .. } => std::slice::from_mut(matrix),
            LoadedWeight::Matrices { each, .. } => each,
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => &mut [],
        }
    }

    /// Its matrices; a vector has none.
    fn matrices(&self) -> &[PackedMatrix] {
        match self {
            LoadedWeight::Matrix { matrix, .. } => std::slice::from_ref(matrix),
            LoadedWeight::Matrices { each, .. } => each,
            LoadedWeight::Vector { .. } | LoadedWeight::InFile(_) => &[],
        }
    }
}

/// A table that rows of a step are read from.
#[derive(Clone, Copy)]
pub(crate) enum TableRows<'a> {
    Packed(&'a PackedMatrix),
    InFile(&'a RowTable),
}

impl TableRows<'_> {
    /// The number of values in a row.
    pub fn columns(self) -> usize {
        match self {
            TableRows::Packed(matrix) => matrix.columns,
            TableRows::InFile(table) => table.columns,
        }
    }

    /// Decodes one row to `values`.
    pub fn row(self, index: usize, kernels: &Table, values: &mut [f32]) {
        match self {
            TableRows::Packed(matrix) => matrix.row(index, kernels, values),
            TableRows::InFile(table) => table.row(index, values),
        }
    }
}

fn wrong_weights() -> ! {
    panic!("programs run with the weights that they were compiled for")
}
/// The weights of `graph` that it uses in such a form.
fn of_form(graph: &Graph, is_it: fn(WeightForm) -> bool) -> impl Iterator<Item = (ValueId, &Value)> {
    let of_form = move |(id, _): &(ValueId, _)| WeightForm::in_graph(graph, *id).is_some_and(is_it);
    graph.weights().filter(of_form)
}

/// A weight as it is before it is filled.
fn unfilled<'a>(graph: &Graph, id: ValueId, value: &'a Value, zeros: ZeroBlocks) -> UnfilledWeight<'a> {
    let shape = PackedShape::of(graph, id);
    UnfilledWeight { value, shape, grid: grid(graph, id, zeros), places: None }
}

/// The units that a weight may leave out.
fn grid(graph: &Graph, id: ValueId, zeros: ZeroBlocks) -> Option<UnitGrid> {
    match zeros {
        ZeroBlocks::Keep => None,
        ZeroBlocks::Skip => PackedShape::of(graph, id).grid(graph, id),
    }
}

/// The matrices of a filled weight.
fn matrices(graph: &Graph, id: ValueId, packed: &FilledWeight) -> Vec<PackedMatrix> {
    let value = graph.value(id);
    PackedMatrix::of_weight(&value.name, Layout::of(value.dtype), PackedShape::of(graph, id), packed)
}

/// The matrices of a graph that are worth caching: those that are packed. All other weights can be
/// read from their source just as fast.
pub(crate) fn contents(graph: &Graph, identity: &[u8], rule: PackingRule<'_>) -> Option<PackContents> {
    let matrices = graph.weights().filter_map(|(id, value)| {
        let layout = Layout::of(value.dtype);
        let is_packed = WeightForm::in_graph(graph, id).is_some_and(WeightForm::is_packed)
            && !matches!(layout, Layout::Stored(_))
            && !rule.in_file.has(value);
        // Those of an expert may be filled up to whole bands.
        let PackedShape { experts, rows, columns, row_parts: _ } = PackedShape::of(graph, id);
        let grid = grid(graph, id, rule.zero_blocks);
        let rows = if experts > 1 { experts * bands(rows) * BAND } else { rows };
        is_packed.then_some(ListedMatrix { name: &value.name, layout, rows, columns, grid })
    });
    PackContents::of(&matrices.collect::<Vec<_>>(), identity)
}

/// Reads a weight as `f32`.
fn vector(value: &Value, source: &dyn WeightSource) -> Result<Aligned<f32>, Error> {
    let mut bytes = Aligned::<u8>::zeroed(value.dtype.bytes(&value.shape)?, &value.name)?;
    source.read(&value.name, 0, &mut bytes)?;
    let view = View::new(value.dtype, value.shape.rows(), value.shape.columns(), &bytes)?;
    let mut values = Aligned::zeroed(value.shape.elements(), &value.name)?;
    view.unpack_rows(0..view.rows(), &mut values);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_weights_that_are_packed_slowly_are_worth_waiting_for() {
        let almost = SLOW_PACKING - Duration::from_nanos(1);
        assert!(AwaitPacked::IfSlow.is_worth(SLOW_PACKING) && !AwaitPacked::IfSlow.is_worth(almost));
        assert!(AwaitPacked::Always.is_worth(Duration::ZERO));
    }
}
