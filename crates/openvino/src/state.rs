//! The state of all sequences, in one of two forms.

use girih_graph::backend::{Block, State};
use girih_graph::{Graph, GroupId, RangeFault, ValueId};
use girih_tensor::{Error, Result};

use crate::kv_form::KvForm;
use crate::tokens::TokenState;
use crate::windows::WindowState;

/// The state of all sequences.
#[derive(Debug)]
pub struct OpenVinoState(Held);

#[derive(Debug)]
enum Held {
    /// Keys and values, in the host's memory.
    Windows(WindowState),
    /// The tokens whose keys and values requests hold.
    Tokens(TokenState),
}

impl OpenVinoState {
    /// The bytes of all state.
    pub(crate) fn plan(form: KvForm, graph: &Graph, blocks: &[u32]) -> u64 {
        match form {
            KvForm::Windows => WindowState::plan(graph, blocks),
            KvForm::Hidden => TokenState::plan(graph, blocks),
        }
    }

    /// Zeroed state.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(form: KvForm, graph: &Graph, blocks: &[u32]) -> Result<OpenVinoState> {
        Ok(OpenVinoState(match form {
            KvForm::Windows => Held::Windows(WindowState::new(graph, blocks)?),
            KvForm::Hidden => Held::Tokens(TokenState::new(graph, blocks)?),
        }))
    }

    /// Keys and values in the host's memory.
    pub(crate) fn windows(&mut self) -> Result<&mut WindowState> {
        match &mut self.0 {
            Held::Windows(windows) => Ok(windows),
            Held::Tokens(_) => Err(no_windows()),
        }
    }

    /// The numbers of the first lanes of a window.
    pub(crate) fn window(&self, id: ValueId, lanes: usize) -> Result<&[f32]> {
        match &self.0 {
            Held::Windows(windows) => windows.window(id, lanes),
            Held::Tokens(_) => Err(no_windows()),
        }
    }

    /// Tokens in the place of keys and values.
    pub(crate) fn tokens(&mut self) -> Result<&mut TokenState> {
        match &mut self.0 {
            Held::Tokens(tokens) => Ok(tokens),
            Held::Windows(_) => Err(Error::new("the state holds windows, no tokens; this is a bug in girih")),
        }
    }

    fn blocks(&mut self) -> &mut dyn State {
        match &mut self.0 {
            Held::Windows(windows) => &mut windows.blocks,
            Held::Tokens(tokens) => tokens,
        }
    }
}

fn no_windows() -> Error {
    Error::new("the state holds tokens, no windows; this is a bug in girih")
}

impl State for OpenVinoState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<()> {
        self.blocks().copy(group, from, to)
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<()> {
        self.blocks().zero(group, block)
    }

    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>> {
        self.blocks().export(group, block)
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<()> {
        self.blocks().import(group, block, bytes)
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        self.blocks().take_range_faults()
    }
}
