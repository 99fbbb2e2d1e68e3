//! The state of a cached prefix outside the model, to be kept between runs of a program.

use girih_graph::GroupId;

use crate::cache::SequenceId;
use crate::cached_runner::CachedRunner;
use crate::position_key::PositionKey;
use crate::{Error, ErrorKind, Result, Tenant};

/// The tokens of a sequence and their state. It is of use only to an engine of the same model with
/// the same kernels and types; the caller makes sure of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPrefix {
    /// The tenant that may find it.
    pub tenant: Tenant,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The state of each group.
    pub groups: Vec<SavedBlocks>,
}

/// The blocks of one state group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedBlocks {
    /// The index of the first block; those before it lie behind a window.
    pub first: u32,
    /// The bytes of each block.
    pub blocks: Vec<Vec<u8>>,
}

impl CachedRunner {
    /// Copies the state of a sequence; `None` if it holds given rows or mutual spans, whose contents
    /// a later run cannot compare.
    pub fn export(&mut self, id: SequenceId) -> Result<Option<SavedPrefix>> {
        let (tenant, keys) = self.cache.content(id);
        let token = |key: &PositionKey| match key {
            PositionKey::Token(token) => Some(*token),
            PositionKey::Content(_) => None,
        };
        let Some(tokens) = keys.iter().map(token).collect::<Option<Vec<u32>>>() else { return Ok(None) };
        let tenant = tenant.clone();
        let backend = self.inner().backend();
        let held: Vec<_> =
            self.cache.held(id).into_iter().map(|(first, blocks)| (first, blocks.to_vec())).collect();
        let mut groups = Vec::new();
        for (group, (first, blocks)) in (0..).zip(held) {
            let copy = |block| self.state().export(GroupId(group), block);
            let blocks = blocks.into_iter().map(copy).collect::<Result<_>>().map_err(|error| {
                let sentence = format!("the backend {backend} cannot export state: {error}");
                Error::with_kind(ErrorKind::Refused, sentence)
            })?;
            groups.push(SavedBlocks { first: first as u32, blocks });
        }
        Ok(Some(SavedPrefix { tenant, tokens, groups }))
    }

    /// Adds a saved prefix to the cache; `false` if too few blocks are free, or if it has another
    /// shape than the model's state.
    pub fn import(&mut self, saved: SavedPrefix) -> Result<bool> {
        let SavedPrefix { tenant, tokens, groups } = saved;
        let firsts: Vec<usize> = groups.iter().map(|group| group.first as usize).collect();
        let keys = tokens.into_iter().map(PositionKey::Token).collect();
        let Some(id) = self.cache.restore(tenant, keys, &firsts) else { return Ok(false) };
        let held: Vec<_> = self.cache.held(id).into_iter().map(|(_, blocks)| blocks.to_vec()).collect();
        for (number, (blocks, saved)) in (0..).zip(held.iter().zip(&groups)) {
            let has_all = blocks.len() == saved.blocks.len();
            let mut pairs = blocks.iter().zip(&saved.blocks);
            let written =
                pairs.try_for_each(|(block, bytes)| self.state().import(GroupId(number), *block, bytes));
            if !has_all || written.is_err() {
                self.cache.discard(id);
                return written.map(|()| false);
            }
        }
        Ok(true)
    }
}
