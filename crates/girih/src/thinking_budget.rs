//! A maximum number of tokens of thinking: after it, the thinking is ended as the model ends it.

use std::collections::VecDeque;
use std::sync::Arc;

use girih_engine::Constraint;
use girih_graph::Result;
use girih_words::reply::{ReplyDetokenizer, ReplyParser};
use girih_words::{BosEos, TextOrigin, Tokenizer};

use crate::model::Model;
use crate::reply_format::ReplyFormat;

/// The maximum number of tokens for which the end of thinking waits until a character is complete.
const MAX_WAIT: u32 = 3;

/// The constraints of `count` replies whose thinking has at most `max` tokens.
///
/// # Errors
/// As [`ThinkingBudget::new`]; constraints of the caller are returned as they are.
pub(crate) fn ended_thinking(
    model: &Model,
    format: Option<&ReplyFormat>,
    max: u32,
    count: u32,
    constraints: Vec<Box<dyn Constraint>>,
) -> Result<Vec<Box<dyn Constraint>>> {
    match format {
        // A grammar leaves no room for thinking.
        Some(format) if constraints.is_empty() => (0..count)
            .map(|_| Ok(Box::new(ThinkingBudget::new(model, format, max)?) as Box<dyn Constraint>))
            .collect(),
        _ => Ok(constraints),
    }
}

/// Ends the thinking of one reply.
pub(crate) struct ThinkingBudget {
    tokenizer: Arc<Tokenizer>,
    text: ReplyDetokenizer,
    parser: ReplyParser,
    max: u32,
    /// The tokens of thinking so far.
    used: u32,
    /// The tokens that come next; empty if any may.
    forced: VecDeque<u32>,
}

impl ThinkingBudget {
    /// The budget of a reply of `max` tokens of thinking in this format.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn new(model: &Model, format: &ReplyFormat, max: u32) -> Result<ThinkingBudget> {
        let tokenizer = Arc::clone(&model.text_processor()?.tokenizer);
        let (text, parser) = (format.detokenizer(model)?, format.parser());
        let mut budget = ThinkingBudget { tokenizer, text, parser, max, used: 0, forced: VecDeque::new() };
        if max == 0 {
            budget.end()?;
        }
        Ok(budget)
    }

    /// Forces the end of the thinking in which the reply is.
    fn end(&mut self) -> Result<()> {
        if let Some(end) = self.parser.thinking_end() {
            self.forced.extend(self.tokenizer.encode(end, TextOrigin::Template, BosEos::Omit)?);
        }
        Ok(())
    }
}

impl Constraint for ThinkingBudget {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        let Some(next) = self.forced.front() else { return Ok(()) };
        let is_next = |(id, allowed): (usize, &mut bool)| *allowed &= id == *next as usize;
        allowed.iter_mut().enumerate().for_each(is_next);
        Ok(())
    }

    fn allows_all(&self) -> bool {
        self.forced.is_empty()
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        let was_thinking = self.parser.thinking_end().is_some();
        let text = self.text.push(id);
        self.parser.push(&text);
        if self.forced.pop_front().is_some() || self.parser.thinking_end().is_none() {
            return Ok(());
        }
        self.used += u32::from(was_thinking);
        // A token may end within a character.
        if self.used >= self.max && (!text.is_empty() || self.used >= self.max.saturating_add(MAX_WAIT)) {
            self.end()?;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}
