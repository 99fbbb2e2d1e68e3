//! Tables of embeddings that stay in their file: a step reads the rows that it needs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use girih_graph::backend::RowSource;
use girih_graph::description::Services;
use girih_graph::{Error, Graph, Op, Value, ValueId};
use girih_tensor::DType;

/// The bytes that are read at once: a row of embeddings per layer has fewer.
const PIECE: usize = 1 << 12;

/// The tables of a graph that stay in their file.
#[derive(Debug, Default)]
pub(crate) struct TablesInFile(BTreeMap<String, Arc<dyn RowSource>>);

impl TablesInFile {
    /// The tables that `services` lets stay in their file, because the graph only reads rows of them.
    pub fn of(graph: &Graph, services: Option<&dyn Services>) -> TablesInFile {
        let Some(services) = services else { return TablesInFile::default() };
        let table = |(id, value): (ValueId, &Value)| {
            let is_stored_by_row = value.dtype.tile().0 == 1 && value.dtype.block_bytes() <= PIECE;
            let rows = (is_stored_by_row && is_only_embedded(graph, id)).then(|| services.rows(&value.name));
            Some((value.name.clone(), rows??))
        };
        TablesInFile(graph.weights().filter_map(table).collect())
    }

    /// Whether a weight is one of them.
    pub fn has(&self, value: &Value) -> bool {
        self.0.contains_key(&value.name)
    }

    /// The bytes of all.
    pub fn bytes(&self, graph: &Graph) -> u64 {
        let own = graph.weights().filter(|(_, value)| self.has(value));
        own.filter_map(|(_, value)| Some(value.dtype.bytes(&value.shape).ok()? as u64)).sum()
    }

    /// A table of these.
    pub fn table(&self, value: &Value) -> Option<RowTable> {
        let source = Arc::clone(self.0.get(&value.name)?);
        let (columns, failure) = (value.shape.columns(), Mutex::default());
        Some(RowTable { source, dtype: value.dtype, rows: value.shape.rows(), columns, failure })
    }
}

/// Whether all readers of a weight take rows of it.
fn is_only_embedded(graph: &Graph, weight: ValueId) -> bool {
    let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&weight)).peekable();
    readers.peek().is_some() && readers.all(|node| node.op == Op::Embed && node.inputs[1] == weight)
}

/// A table whose rows are read in each step.
pub(crate) struct RowTable {
    source: Arc<dyn RowSource>,
    dtype: DType,
    pub rows: usize,
    pub columns: usize,
    /// The first error of a step.
    failure: Mutex<Option<Error>>,
}

impl fmt::Debug for RowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} {} in a file", self.rows, self.columns, self.dtype)
    }
}

impl RowTable {
    /// The bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.columns.div_ceil(self.dtype.tile().1.max(1)) * self.dtype.block_bytes()
    }

    /// Decodes one row to `values`. If it cannot be read, the step fails at its end.
    pub fn row(&self, index: usize, values: &mut [f32]) {
        let (mut piece, block) = ([0; PIECE], self.dtype.block_bytes());
        let (at_once, each) = (PIECE / block * block, self.dtype.tile().1);
        let pieces = values.chunks_mut(at_once / block * each).enumerate();
        for (number, values) in pieces {
            let bytes = &mut piece[..values.len() / each * block];
            match self.source.read(index, number * at_once, bytes) {
                Ok(()) => self.dtype.unpack(bytes, values),
                Err(error) => {
                    values.fill(0.0);
                    let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(error);
                    return;
                }
            }
        }
    }

    /// Checks that all rows of a step were read, from the file that was opened.
    ///
    /// # Errors
    /// If a row could not be read, or the file was changed.
    pub fn finish(&self) -> Result<(), Error> {
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => self.source.check_unchanged(),
        }
    }
}
