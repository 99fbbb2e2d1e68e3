//! What kernels read of a step beside its values: sequences, positions, blocks, spans, rotations.
//!
//! A table of words. The header has the offsets of its parts; kernels know the places in the header.

use girih_graph::backend::GivenRows;
use girih_graph::{
    BLOCK_POSITIONS, Graph, Node, Op, Role, Sequence, Span, StateKind, Temperature, ValueId, rope_angle,
};

/// The first word of the header that belongs to a group of state.
const FIRST_GROUP: usize = 16;

/// What the table of a graph has, in the order of the header.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TableParts {
    /// The number of groups of state. Behind them is a group for keys and values of the step's own rows.
    groups: usize,
    spans: Vec<Span>,
    temperatures: Vec<Temperature>,
    rotations: Vec<GpuRotation>,
    /// The inputs of given rows.
    given: Vec<ValueId>,
}

/// What rows are rotated by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GpuRotation {
    /// The weight of frequencies.
    pub frequencies: ValueId,
    /// The input of positions, if they are not those of the sequence.
    pub positions: Option<ValueId>,
}

impl GpuRotation {
    /// The rotation of a node of the op `rope`.
    pub fn of(node: &Node) -> GpuRotation {
        GpuRotation { frequencies: node.inputs[1], positions: node.inputs.get(2).copied() }
    }

    /// The pairs of a head that it rotates.
    pub fn pairs(self, graph: &Graph) -> usize {
        let streams = self.positions.map_or(1, |id| graph.value(id).shape.columns());
        graph.value(self.frequencies).shape.elements() / streams.max(1)
    }
}

/// What a step brings.
pub(crate) struct TableStep<'a> {
    pub sequences: &'a [Sequence<'a>],
    /// One list for each input of given rows.
    pub given: &'a [&'a [GivenRows<'a>]],
    /// The frequencies of each table of rotations.
    pub frequencies: &'a [&'a [f32]],
    /// For each of these tables the positions of all rows, if they are not those of the sequences.
    pub positions: &'a [Option<&'a [f32]>],
    /// The width of the rows of each input of given rows.
    pub widths: &'a [usize],
}

fn added<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

fn place<T: PartialEq>(list: &[T], item: &T) -> usize {
    list.iter().position(|known| known == item).expect("the parts are those of the graph")
}

impl TableParts {
    /// The parts that a graph needs.
    pub fn of(graph: &Graph) -> TableParts {
        let mut parts = TableParts { groups: graph.groups.len(), ..TableParts::default() };
        for node in &graph.nodes {
            match node.op {
                Op::Attend { span, .. } | Op::AttendLatent { span, .. } => added(&mut parts.spans, span),
                Op::SelectKeys { .. } => added(&mut parts.spans, Span::Full),
                Op::Temper { beta, every, offset } => {
                    added(&mut parts.temperatures, Temperature { beta, every, offset });
                }
                Op::Rope { .. } => added(&mut parts.rotations, GpuRotation::of(node)),
                Op::Splice => added(&mut parts.given, node.inputs[1]),
                _ => {}
            }
        }
        parts
    }

    /// The place of the table of blocks of a group; of the step's own rows if it is none.
    pub fn group(&self, group: Option<u32>) -> u32 {
        (FIRST_GROUP + 2 * group.map_or(self.groups, |group| group as usize)) as u32
    }

    fn first_span(&self) -> usize {
        FIRST_GROUP + 2 * (self.groups + 1)
    }

    fn first_temperature(&self) -> usize {
        self.first_span() + self.spans.len()
    }

    fn first_rotation(&self) -> usize {
        self.first_temperature() + self.temperatures.len()
    }

    fn first_given(&self) -> usize {
        self.first_rotation() + self.rotations.len()
    }

    fn header(&self) -> usize {
        self.first_given() + self.given.len()
    }

    /// The place of the positions that rows see.
    pub fn span(&self, span: Span) -> u32 {
        (self.first_span() + place(&self.spans, &span)) as u32
    }

    /// The place of the factors of a temperature.
    pub fn temperature(&self, temperature: Temperature) -> u32 {
        (self.first_temperature() + place(&self.temperatures, &temperature)) as u32
    }

    /// The place of cosines and sines.
    pub fn rotation(&self, rotation: GpuRotation) -> u32 {
        (self.first_rotation() + place(&self.rotations, &rotation)) as u32
    }

    /// The place of the numbers of given rows.
    pub fn given(&self, input: ValueId) -> u32 {
        (self.first_given() + place(&self.given, &input)) as u32
    }

    /// The rotations, in the order of their tables.
    pub fn rotations(&self) -> &[GpuRotation] {
        &self.rotations
    }

    /// The inputs of given rows, in the order of their tables.
    pub fn given_inputs(&self) -> &[ValueId] {
        &self.given
    }

    /// The bytes of the table of the largest step.
    pub fn bytes(&self, graph: &Graph) -> u64 {
        let key = graph.key;
        let blocks = u64::from(key.context).div_ceil(BLOCK_POSITIONS as u64) + 1;
        let pairs: usize = self.rotations.iter().map(|rotation| rotation.pairs(graph)).sum();
        let of_row = 2 + 2 * self.spans.len() + self.temperatures.len() + 2 * pairs + self.given.len();
        let words = self.header() as u64
            + u64::from(key.rows) * of_row as u64
            + u64::from(key.output_rows)
            + 2 * u64::from(key.rows / TILE_ROWS + key.sequences)
            + u64::from(key.sequences) * (3 + blocks * (self.groups as u64 + 1));
        words * 4
    }

    /// The words of a step.
    pub fn words(&self, step: &TableStep<'_>, words: &mut Vec<u32>) {
        words.clear();
        words.resize(self.header(), 0);
        let TableStep { sequences, given, frequencies, positions: given_positions, widths } = *step;
        let rows = sequences.last().map_or(0, |sequence| sequence.rows.end);
        words[0] = rows;
        words[2] = sequences.len() as u32;
        words[3] = words.len() as u32;
        for (index, sequence) in sequences.iter().enumerate() {
            words.extend(sequence.rows.indexes().map(|_| index as u32));
        }
        words[4] = words.len() as u32;
        words.extend(sequences.iter().flat_map(positions));
        words[5] = words.len() as u32;
        words.extend(sequences.iter().flat_map(Sequence::output_rows).map(|row| row as u32));
        words[1] = words.len() as u32 - words[5];
        words[6] = words.len() as u32;
        words.extend(sequences.iter().map(|sequence| sequence.rows.start));
        words[7] = words.len() as u32;
        words.extend(sequences.iter().map(|sequence| sequence.rows.end - sequence.rows.start));
        words[8] = words.len() as u32;
        words.extend(sequences.iter().map(|sequence| sequence.position));
        self.put_blocks(sequences, words);
        words[9] = words.len() as u32;
        words.extend(sequences.iter().flat_map(tiles).flatten());
        for (index, span) in self.spans.iter().enumerate() {
            words[self.first_span() + index] = words.len() as u32;
            for sequence in sequences {
                let seen = positions(sequence).map(|position| sequence.sees(*span, position as usize));
                words.extend(seen.flat_map(|seen| [seen.start as u32, seen.end as u32]));
            }
        }
        for (index, temperature) in self.temperatures.iter().enumerate() {
            words[self.first_temperature() + index] = words.len() as u32;
            let factors =
                sequences.iter().flat_map(positions).map(|position| temperature.at(position) as f32);
            words.extend(factors.map(f32::to_bits));
        }
        for (index, (frequencies, places)) in frequencies.iter().zip(given_positions).enumerate() {
            words[self.first_rotation() + index] = words.len() as u32;
            let streams = places.map_or(1, |places| places.len() / (rows as usize).max(1)).max(1);
            for (row, position) in sequences.iter().flat_map(positions).enumerate() {
                let own = [position as f32];
                let at = places.map_or(&own[..], |places| &places[row * streams..(row + 1) * streams]);
                words.extend(frequencies.chunks_exact(streams).flat_map(|frequencies| {
                    let (sin, cos) = f64::from(rope_angle(at, frequencies)).sin_cos();
                    [(cos as f32).to_bits(), (sin as f32).to_bits()]
                }));
            }
        }
        for (index, (given, width)) in given.iter().zip(widths).enumerate() {
            let first = words.len();
            words[self.first_given() + index] = first as u32;
            words.resize(first + rows as usize, u32::MAX);
            let mut next = 0;
            for GivenRows { first_row, values } in *given {
                for row in 0..values.len() / width {
                    words[first + *first_row as usize + row] = next;
                    next += 1;
                }
            }
        }
    }

    /// The blocks of each sequence in each group; then those of the step's own rows.
    fn put_blocks(&self, sequences: &[Sequence<'_>], words: &mut Vec<u32>) {
        let count = |sequence: &Sequence<'_>| {
            let end = sequence.position as usize + sequence.rows.indexes().len();
            end.div_ceil(BLOCK_POSITIONS)
        };
        let stride = sequences.iter().map(count).max().unwrap_or(0);
        for group in 0..=self.groups {
            let at = FIRST_GROUP + 2 * group;
            words[at] = words.len() as u32;
            words[at + 1] = stride as u32;
            let mut next = 0;
            for sequence in sequences {
                let blocks = count(sequence);
                for index in 0..stride {
                    let block = match sequence.blocks.get(group) {
                        _ if index >= blocks => 0,
                        Some(list) if group < self.groups => list[index].0,
                        _ => next + index as u32,
                    };
                    words.push(block);
                }
                next += blocks as u32;
            }
        }
    }
}

/// Rows of a sequence that a workgroup of attention takes together.
const TILE_ROWS: u32 = 8;

/// The tiles of a sequence's rows: the first row and the number of rows of each.
fn tiles(sequence: &Sequence<'_>) -> impl Iterator<Item = [u32; 2]> {
    let rows = sequence.rows;
    (rows.start..rows.end)
        .step_by(TILE_ROWS as usize)
        .map(move |first| [first, TILE_ROWS.min(rows.end - first)])
}

/// The number of tiles of rows of a step, if most of them are filled by half or more.
pub(crate) fn filled_tiles(sequences: &[Sequence<'_>]) -> Option<u32> {
    let count = sequences.iter().flat_map(tiles).count() as u32;
    let rows = sequences.last().map_or(0, |sequence| sequence.rows.end);
    (count > 0 && count * (TILE_ROWS / 2) <= rows).then_some(count)
}

/// The positions of a sequence's rows.
fn positions(sequence: &Sequence<'_>) -> std::ops::Range<u32> {
    sequence.position..sequence.position + (sequence.rows.end - sequence.rows.start)
}

/// The largest number of chunks of 256 positions that a row of a step sees with this span.
pub(crate) fn most_chunks(graph: &Graph, span: Span) -> u64 {
    let whole = u64::from(graph.key.context).div_ceil(CHUNK) + 1;
    let rows = u64::from(graph.key.rows).div_ceil(CHUNK) + 1;
    match span {
        Span::Full | Span::Past => whole,
        Span::All | Span::Mutual => rows,
        // A mutual span may reach beyond a window.
        Span::Window(length) | Span::Chunk(length) => whole.min(u64::from(length).div_ceil(CHUNK) + rows + 1),
    }
}

/// Positions of a chunk of attention.
pub(crate) const CHUNK: u64 = 256;

/// The number of chunks that some row of a step sees.
pub(crate) fn chunks_seen(sequences: &[Sequence<'_>], span: Span) -> u32 {
    let chunk = CHUNK as usize;
    let of_row = |sequence: &Sequence<'_>, position: u32| {
        let seen = sequence.sees(span, position as usize);
        seen.end.div_ceil(chunk) - seen.start / chunk
    };
    let of_rows = sequences.iter().flat_map(|sequence| positions(sequence).map(|at| of_row(sequence, at)));
    of_rows.max().unwrap_or(0) as u32
}

/// The group of a state value, and what its blocks hold.
pub(crate) fn group_of(graph: &Graph, id: ValueId) -> Option<(u32, StateKind)> {
    match graph.value(id).role {
        Role::State(group) => Some((group.0, graph.groups[group.0 as usize].kind)),
        _ => None,
    }
}
