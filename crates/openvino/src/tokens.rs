//! State as tokens: a block has the ids of the tokens whose keys and values a request of the model holds.
//!
//! Keys and values of a model of text follow from the tokens before them, so tokens are what tells whether a request
//! continues a sequence, and what it is made of again if none does. All blocks of a group that attends to every earlier
//! position are kept as long as their sequence, so those of one such group have its tokens; other groups hold nothing.

use girih_graph::backend::{BLOCK_POSITIONS, Block, Sequence, State};
use girih_graph::{AppliedOp, Graph, GroupId, Node, RangeFault, Role, ValueId, out_of_range};
use girih_tensor::{Error, ErrorKind, Result};

use crate::kv_form::{held_type, token_group};
use crate::requests::Continued;
use crate::slots::most_slots;

/// Whether OpenVINO holds keys and values in the type that it is asked for: it does where a single attention, without a cap or sinks, is
/// fused with them.
fn is_fused(graph: &Graph, id: ValueId) -> bool {
    let is_plain = |node: &Node| {
        let op = graph.applied_op(node);
        matches!(op, Some(AppliedOp::Attend { softcap: None, sinks: None, .. }))
    };
    let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&id));
    readers.next().is_some_and(is_plain) && readers.next().is_none()
}

/// The tokens of a block.
type TokenBlock = [u32; BLOCK_POSITIONS];

/// The tokens of all sequences.
#[derive(Debug)]
pub(crate) struct TokenState {
    /// The group whose blocks have the tokens.
    group: GroupId,
    blocks: Vec<TokenBlock>,
    faults: Vec<RangeFault>,
}

impl TokenState {
    /// The bytes of tokens, and of what the requests of all sequences hold: the device doubles its room when it is full.
    pub fn plan(graph: &Graph, blocks: &[u32]) -> u64 {
        let state = graph.ids().filter(|(_, value)| matches!(value.role, Role::State(_)));
        let size = |id| {
            if is_fused(graph, id) {
                held_type(graph.value(id).dtype).block_bytes()
            } else {
                size_of::<f32>()
            }
        };
        let row: u64 = state.map(|(id, value)| (value.row_len() * size(id)) as u64).sum();
        let slots = most_slots(graph) as u64 * u64::from(graph.key.sequences);
        let tokens =
            blocks.iter().map(|count| u64::from(*count)).sum::<u64>() * size_of::<TokenBlock>() as u64;
        slots.saturating_mul(row).saturating_mul(2).saturating_add(tokens)
    }

    /// Blocks of zeros.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(graph: &Graph, blocks: &[u32]) -> Result<TokenState> {
        let group = token_group(graph)
            .ok_or_else(|| Error::new("no group of state has all tokens; this is a bug in girih"))?;
        let count = blocks[group.0 as usize] as usize;
        let mut tokens: Vec<TokenBlock> = Vec::new();
        tokens.try_reserve_exact(count).map_err(|_| {
            let sentence = format!("cannot allocate {count} blocks of tokens");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        })?;
        tokens.resize(count, [0; BLOCK_POSITIONS]);
        Ok(TokenState { group, blocks: tokens, faults: Vec::new() })
    }

    /// The blocks of a sequence that have its tokens.
    fn own<'a>(&self, sequence: &Sequence<'a>) -> &'a [Block] {
        sequence.blocks[self.group.0 as usize]
    }

    /// The tokens of a sequence before its first row in this step.
    fn history(&self, sequence: &Sequence<'_>) -> Vec<u32> {
        let all = self.own(sequence).iter().flat_map(|block| self.blocks[block.0 as usize]);
        all.take(sequence.position as usize).collect()
    }

    /// What a request must hold to continue a sequence.
    pub fn continued<'a>(&self, sequence: &Sequence<'a>) -> Continued<'a> {
        Continued {
            history: self.history(sequence),
            blocks: self.own(sequence),
            rows: sequence.rows.indexes().len(),
        }
    }

    /// Stores the tokens of the rows of a sequence.
    pub fn write(&mut self, sequence: &Sequence<'_>, tokens: &[u32]) {
        let own = self.own(sequence);
        for (position, token) in (sequence.position as usize..).zip(tokens) {
            let block = own[position / BLOCK_POSITIONS].0 as usize;
            self.blocks[block][position % BLOCK_POSITIONS] = *token;
        }
    }

    /// Looks for rows whose keys or values, of which `largest` has the largest magnitude of each row, are beyond the range
    /// of the state.
    pub fn check(&mut self, graph: &Graph, id: ValueId, sequence: &Sequence<'_>, largest: &[f32]) {
        let value = graph.value(id);
        for (row, magnitude) in (sequence.rows.start..).zip(largest) {
            if let Some(lost) = out_of_range(value.dtype, &[*magnitude]) {
                let (name, dtype) = (value.name.clone(), value.dtype);
                self.faults.push(RangeFault { row, name, dtype, value: lost });
            }
        }
    }
}

impl State for TokenState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<()> {
        if group == self.group {
            self.blocks[to.0 as usize] = self.blocks[from.0 as usize];
        }
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<()> {
        if group == self.group {
            self.blocks[block.0 as usize] = [0; BLOCK_POSITIONS];
        }
        Ok(())
    }

    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>> {
        let tokens = (group == self.group).then(|| self.blocks[block.0 as usize]);
        Ok(tokens.iter().flatten().flat_map(|token| token.to_le_bytes()).collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<()> {
        let need = if group == self.group { size_of::<TokenBlock>() } else { 0 };
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of tokens is {need} bytes; {have} were given")));
        }
        if group == self.group {
            let tokens = self.blocks[block.0 as usize].iter_mut().zip(bytes.as_chunks::<4>().0);
            tokens.for_each(|(token, bytes)| *token = u32::from_le_bytes(*bytes));
        }
        Ok(())
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        std::mem::take(&mut self.faults)
    }
}
