//! Copies of hot weights: each socket of a machine reads its own.
//!
//! A thread begins with the bands that it filled, which lie near it. What it steals from a thread of another socket it
//! reads across the sockets' link, unless its socket has a copy.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use girih_graph::backend::Range32;
use girih_graph::{Error, ErrorKind, Graph, Outputs, Reads, Sequence, Value, ValueId};

use crate::affinity::pin_to;
use crate::equal_weights::first_shared;
use crate::kernels::packed::LINE;
use crate::memory::{Aligned, BytesOwner, SharedBytes};
use crate::memory_policy::PagePlacement;
use crate::packed_matrix::PackedShape;
use crate::row_table::TablesInFile;
use crate::weights::WeightForm;

/// A weight that may be copied.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    name: &'a str,
    /// The bytes of all its units.
    bytes: usize,
    /// The share of it that a token reads; above 1 if several nodes read it.
    share: f64,
}

impl Candidate<'_> {
    fn bytes_per_token(&self) -> f64 {
        self.share * self.bytes as f64
    }
}

/// The weights that are copied to each socket: those that a token reads most of. All copies together have at most
/// `limit` bytes. A weight is cold if a token reads less than a band of it, such as a table of embeddings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HotWeights {
    /// The names of the weights, the hottest first.
    pub names: Vec<String>,
    /// The bytes of a copy of all of them, with all their units.
    copy_bytes: usize,
}

impl HotWeights {
    /// Chooses among the weights of `graph`; none if there is one socket.
    pub fn of(graph: &Graph, in_file: &TablesInFile, limit: u64, sockets: usize) -> HotWeights {
        let mut hot = HotWeights::default();
        if sockets < 2 {
            return hot;
        }
        let mut all: Vec<Candidate<'_>> =
            graph.weights().filter_map(|(id, value)| candidate(graph, in_file, id, value)).collect();
        // Ties stay in the order of the graph.
        all.sort_by(|a, b| {
            let by_share = b.share.total_cmp(&a.share);
            by_share.then(b.bytes_per_token().total_cmp(&a.bytes_per_token()))
        });
        for Candidate { name, bytes, .. } in all {
            let Some(end) =
                hot.copy_bytes.checked_next_multiple_of(LINE).and_then(|end| end.checked_add(bytes))
            else {
                continue;
            };
            if Aligned::<u8>::bytes(end).saturating_mul(sockets as u64) <= limit {
                hot.names.push(name.to_owned());
                hot.copy_bytes = end;
            }
        }
        hot
    }

    /// The bytes that the copies for all sockets take at most.
    pub fn bytes(&self, sockets: usize) -> u64 {
        match self.copy_bytes {
            0 => 0,
            copy_bytes => Aligned::<u8>::bytes(copy_bytes).saturating_mul(sockets as u64),
        }
    }
}

/// A packed weight, if a token reads at least one of its bands.
fn candidate<'a>(
    graph: &Graph,
    in_file: &TablesInFile,
    id: ValueId,
    value: &'a Value,
) -> Option<Candidate<'a>> {
    let is_packed = WeightForm::in_graph(graph, id).is_some_and(WeightForm::is_packed);
    if !is_packed || in_file.has(value) {
        return None;
    }
    let (band, bytes) = PackedShape::of(graph, id).sizes(value).ok()?;
    let found = Candidate { name: &value.name, bytes, share: share_per_token(graph, id, value) };
    (bytes > 0 && found.bytes_per_token() >= band as f64).then_some(found)
}

/// The share of a weight that the nodes of a graph read for a token.
fn share_per_token(graph: &Graph, weight: ValueId, value: &Value) -> f64 {
    let outputs = Outputs::LastN(1);
    let token =
        [Sequence { blocks: &[], position: 0, rows: Range32 { start: 0, end: 1 }, outputs, spans: &[] }];
    let readers = graph.nodes.iter().filter(|node| node.inputs.contains(&weight));
    let shares = readers.flat_map(|node| {
        let reads = graph.work(node, &token).reads;
        node.inputs.iter().zip(reads).filter(|(id, _)| **id == weight).map(|(_, reads)| reads)
    });
    let share = |reads| match reads {
        Reads::Nothing | Reads::Positions(_) => 0.0,
        Reads::All => 1.0,
        Reads::Rows(rows) => rows as f64 / value.shape.rows().max(1) as f64,
    };
    shares.map(share).sum()
}

/// Copies the bytes of weights once for each socket, by a thread on the socket's CPUs, so that the copy lies there.
/// Returns the copies of each weight, one for each socket; weights that share memory share their copies.
///
/// # Errors
/// If there is not enough memory, or the system does not start or pin a thread.
pub(crate) fn copies(weights: &[&[u8]], cpus: &[Vec<usize>]) -> Result<Vec<Vec<SharedBytes>>, Error> {
    let copied = thread::scope(|scope| {
        let copying = cpus.iter().map(|cpus| {
            let builder = thread::Builder::new().name("girih-copy".to_owned());
            let started = builder.spawn_scoped(scope, || pin_to(cpus).and_then(|()| copy(weights)));
            started.map_err(|error| Error::new(format!("cannot start a thread for each socket: {error}")))
        });
        // All of them are started before any is waited for.
        let copying: Vec<_> = copying.collect();
        let joined = copying.into_iter().map(|thread| thread?.join().expect("copying does not panic"));
        joined.collect::<Result<Vec<Vec<SharedBytes>>, Error>>()
    })?;
    Ok((0..weights.len()).map(|index| copied.iter().map(|own| own[index].clone()).collect()).collect())
}

/// A copy of each weight, in one memory near this thread; weights that share memory share their copy.
fn copy(weights: &[&[u8]]) -> Result<Vec<SharedBytes>, Error> {
    let first = first_shared(weights);
    let mut end: usize = 0;
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(weights.len());
    for (index, bytes) in weights.iter().enumerate() {
        if first[index] < index {
            ranges.push(ranges[first[index]].clone());
            continue;
        }
        let start = end.next_multiple_of(LINE);
        end = start + bytes.len();
        ranges.push(start..end);
    }
    let mut memory = memory_nearby(end)?;
    for index in (0..weights.len()).filter(|index| first[*index] == *index) {
        memory[ranges[index].clone()].copy_from_slice(weights[index]);
    }
    let memory = BytesOwner::Memory(Arc::new(memory));
    Ok(ranges.into_iter().map(|range| SharedBytes::part(memory.clone(), range)).collect())
}

/// Zeros on the node of the thread that first writes them, whatever policy the process has. A system that refuses to be
/// told so follows the policy of the process.
fn memory_nearby(bytes: usize) -> Result<Aligned<u8>, Error> {
    let purpose = "a socket's copy of hot weights";
    match Aligned::zeroed_on(bytes, purpose, Some(&PagePlacement::Local)) {
        Err(error) if error.kind() == ErrorKind::Refused => Aligned::zeroed(bytes, purpose),
        placed => placed,
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::{Act, Builder, Graph, Key, Op, OutputKind, RouterScore, Weighed};
    use girih_tensor::{DType, Shape};

    use super::*;
    use crate::kernels::packed::{BAND, Layout};
    use crate::packed_matrix::PackedMatrix;
    use crate::present::{BandPlaces, FilledWeight};
    use crate::socket;

    const KEY: Key = Key { rows: 8, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Hidden };

    /// A table of embeddings, four experts (a token uses one), and two matrices that a token reads whole.
    fn graph() -> Graph {
        let mut builder = Builder::new(KEY);
        let tokens = builder.input("tokens", &[], DType::I32);
        let table = builder.weight("table", Shape::matrix(500, 64), DType::F32);
        let x = builder.shaped("x", Op::Embed, &[tokens, table], &[64]);
        let small = builder.weight("small", Shape::matrix(64, 64), DType::F32);
        let x = builder.shaped("y", Op::Linear, &[x, small], &[64]);
        let router = builder.weight("router", Shape::matrix(4, 64), DType::F32);
        let scores = builder.shaped("scores", Op::Linear, &[x, router], &[4]);
        let score = RouterScore::Softmax;
        let route =
            Op::Route { score, near: None, used: 1, normalized: Some(0.0), groups: None, factor: None };
        let chosen = builder.same("chosen", route, &[scores]);
        let stack = |rows, columns| Shape::new(&[4, rows, columns]).unwrap();
        let up = builder.weight("up", stack(32, 64), DType::F32);
        let down = builder.weight("down", stack(64, 32), DType::F32);
        let op =
            Op::Experts { used: 1, act: Act::Silu, limit: None, offset: None, weighed: Weighed::Results };
        let x = builder.shaped("z", op, &[x, chosen, up, down], &[64]);
        let taken = builder.gather("taken", x);
        let large = builder.weight("large", Shape::matrix(128, 64), DType::F32);
        let y = builder.shaped("logits", Op::Linear, &[taken, large], &[128]);
        builder.finish(y)
    }

    fn hot(limit: u64, sockets: usize) -> HotWeights {
        let graph = graph();
        HotWeights::of(&graph, &TablesInFile::of(&graph, None), limit, sockets)
    }

    #[test]
    fn the_share_that_a_token_reads_decides() {
        let all = hot(u64::MAX, 2);
        // A token reads a row of the table, and one of four experts.
        assert_eq!(all.names, ["large", "small", "router", "up", "down"]);
        assert_eq!(hot(u64::MAX, 1), HotWeights::default(), "one socket");
        assert_eq!(hot(0, 2), HotWeights::default());
        let large = Aligned::<u8>::bytes(128 * 64 * 4);
        assert_eq!(hot(2 * large, 2).names, ["large"]);
        assert_eq!(hot(2 * large, 2).bytes(2), 2 * large);
        let few = hot(2 * large - 1, 2);
        assert!(few.bytes(2) < 2 * large && few.names[0] == "small", "what fits: {few:?}");
        assert_eq!(hot(3 * large, 4).names, ["small"], "more sockets need more copies");
    }

    #[test]
    fn a_thread_reads_the_copy_of_its_socket() {
        let whole: Vec<u8> = (0..2 * BAND * 4 * 8).map(|at| at as u8).collect();
        let memory = copy(&[&whole]).unwrap().pop().unwrap();
        let band_bytes = Layout::F32.band_bytes(8).unwrap();
        let filled = FilledWeight { bytes: memory, places: BandPlaces::Equal(band_bytes) };
        let shape = PackedShape { experts: 2, rows: BAND, columns: 8, row_parts: 1 };
        let mut matrices = PackedMatrix::of_weight("w", Layout::F32, shape, &filled);
        let here = crate::os::allowed_cpus().unwrap_or_default();
        if here.is_empty() {
            return;
        }
        // Both sockets are on the same CPUs, and the second has other bytes.
        let own = copies(&[&whole], &[here.clone(), here]).unwrap().pop().unwrap();
        assert_eq!([&*own[0], &*own[1]], [&whole[..], &whole[..]]);
        let other = copy(&[&vec![9; whole.len()]]).unwrap().pop().unwrap();
        matrices.iter_mut().for_each(|matrix| matrix.set_copies(&[own[0].clone(), other.clone()]));
        let second = || matrices[1].band(0).bytes.to_vec();
        assert_eq!(second(), whole[band_bytes..]);
        let on_other = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                socket::set_of_this_thread(1);
                second()
            });
            thread.join().unwrap()
        });
        assert_eq!(on_other, vec![9; band_bytes]);
        assert_eq!(matrices[0].copies().iter().map(|copy| copy.len()).sum::<usize>(), 2 * band_bytes);
    }

    #[test]
    fn weights_in_the_same_memory_share_a_copy() {
        let (a, b) = (vec![1; 100], vec![2; 100]);
        let copied = copy(&[&a, &b, &a]).unwrap();
        let addresses = [0, 1, 2].map(|index| copied[index].as_ptr());
        assert!(addresses[0] == addresses[2] && addresses[0] != addresses[1]);
        assert_eq!(copied.iter().map(|copy| &**copy).collect::<Vec<_>>(), [&a, &b, &a]);
    }
}
