//! A compiled grammar at work on one reply.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use girih_engine::Constraint;
use girih_tensor::{Error, ErrorKind, Result};
use llguidance::TokenParser;
use llguidance::toktrie::SimpleVob;

use crate::finished::FinishedCheck;
use crate::limits::refused;
use crate::mask_thread::{MaskThread, MaskedParser, first_line};

/// The constraint of one reply. The mask of the next token is computed from the moment that a
/// token is accepted, while the model runs.
pub struct GrammarConstraint {
    masks: MaskThread,
    state: ParserState,
    stop_tokens: Vec<u32>,
    check: Arc<FinishedCheck>,
}

enum ParserState {
    /// The mask of the next token is being computed.
    Computing(Receiver<MaskedParser>),
    /// The mask was computed.
    Ready(Box<TokenParser>, SimpleVob),
    /// The reply is complete and was validated.
    Complete,
    /// A call failed; no token may follow.
    Failed,
}

impl GrammarConstraint {
    pub(crate) fn new(
        parser: Box<TokenParser>,
        masks: MaskThread,
        stop_tokens: Vec<u32>,
        check: Arc<FinishedCheck>,
    ) -> GrammarConstraint {
        let state = ParserState::Computing(masks.begin(parser));
        GrammarConstraint { masks, state, stop_tokens, check }
    }

    /// Waits for the mask and returns it with its parser; the state is then undefined.
    fn take(&mut self) -> Result<(Box<TokenParser>, SimpleVob)> {
        match std::mem::replace(&mut self.state, ParserState::Failed) {
            ParserState::Computing(mask) => mask.recv().map_err(|_| {
                Error::with_kind(ErrorKind::DeviceFailed, "the thread that computes masks has ended")
            })?,
            ParserState::Ready(parser, mask) => Ok((parser, mask)),
            ParserState::Complete => Err(refused("the reply is complete; no token may follow")),
            ParserState::Failed => Err(refused("the grammar failed before; no token may follow")),
        }
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        let (parser, mask) = self.take()?;
        let words = mask.as_slice();
        for (allowed, word) in allowed.chunks_mut(u32::BITS as usize).zip(words) {
            match *word {
                // Most words of a vocabulary are one of these two.
                0 => allowed.fill(false),
                u32::MAX => {}
                word => (0..).zip(allowed).for_each(|(bit, allowed)| *allowed &= word >> bit & 1 == 1),
            }
        }
        // The model may have more logits than the tokenizer has tokens.
        let known = mask.len().min(allowed.len());
        allowed[known..].fill(false);
        self.state = ParserState::Ready(parser, mask);
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        let (mut parser, mask) = self.take()?;
        if id as usize >= mask.len() || !mask.is_allowed(id) {
            return Err(refused(format!("the grammar does not allow token {id} here")));
        }
        let is_stop = self.stop_tokens.contains(&id);
        let failed = |error: &dyn std::fmt::Display| {
            refused(format!("the grammar is too complex here: {}", first_line(error)))
        };
        parser.consume_token(id).map_err(|error| failed(&error))?;
        let is_complete = parser.check_stop().map_err(|error| failed(&error))?;
        self.state = if is_stop || is_complete {
            self.check.validate(parser.final_bytes())?;
            ParserState::Complete
        } else {
            ParserState::Computing(self.masks.begin(parser))
        };
        Ok(())
    }

    fn is_complete(&self) -> bool {
        matches!(self.state, ParserState::Complete)
    }
}

#[cfg(test)]
mod tests {
    use girih_words::{TextLimits, Tokenizer};

    use super::*;
    use crate::compiler::{Grammar, GrammarCompiler};

    #[test]
    fn the_constraints_of_several_replies_come_from_one_compilation() {
        let fixture =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/llama32_tied/tokenizer.json");
        let text = std::fs::read(fixture).expect("a fixture");
        let tokenizer = Tokenizer::from_json(&text, &TextLimits::default()).expect("it is valid");
        let compiler = GrammarCompiler::new(&tokenizer, &[2]).expect("a thread is left");
        let compiled = compiler.compile_several(&Grammar::JsonObject, 3).expect("it is supported");
        assert_eq!(compiled.len(), 3);
        assert!(compiled.iter().all(|one| Arc::ptr_eq(&one.check, &compiled[0].check)));
        assert!(compiler.compile_several(&Grammar::JsonSchema("{".to_owned()), 3).is_err());
    }
}
