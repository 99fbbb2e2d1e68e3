//! A request's check against a model, and what becomes of it: what the engine gets, and what the reader needs.

use std::sync::Arc;

use girih_engine::text::Detokenize;
use girih_engine::{Constraint, Drafter, EngineLimits, Hooks, Stops, TokenRequest};
use girih_graph::{Error, ErrorKind, Result};

use super::{PromptPlaces, Request};
use crate::image::ImagePatches;
use crate::image_prompt::ImageRows;
use crate::image_tower::ImageTower;
use crate::model::Model;
use crate::prompt_map::PromptMap;
use crate::reply_format::{ReplyFormat, ReplySplitter};
use crate::reply_text::ReplyText;
use crate::request_rules::{check_rows_for_drafts, with_own_stops, with_way_out};
use crate::thinking_budget::ended_thinking;

/// A request that was checked, before the rows of its images are made.
pub(crate) struct CheckedRequest {
    pub request: TokenRequest,
    /// Where the parts of the conversation lie in the prompt, if it is one.
    map: PromptPlaces,
    format: Option<ReplyFormat>,
    constraints: Vec<Box<dyn Constraint>>,
    drafter: Option<Box<dyn Drafter>>,
    wants_text: bool,
    images: Vec<ImagePatches>,
    wanted: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// A request that was checked: what the engine gets, and what the reader needs.
pub(crate) struct PreparedRequest {
    pub request: TokenRequest,
    pub hooks: Hooks,
    /// Splits the text of the reply.
    pub splitter: Option<ReplySplitter>,
    /// Where the parts of the conversation lie in the prompt, if it is one.
    pub map: Option<Arc<PromptMap>>,
}

impl Request {
    /// This request to `model`, checked, for `count` replies.
    ///
    /// # Errors
    /// When the request exceeds the limits or contradicts itself, or its prompt cannot be
    /// converted to tokens.
    pub(crate) fn checked(
        mut self,
        model: &Model,
        limits: &EngineLimits,
        output_rows: u32,
        count: u32,
        tower: Option<&ImageTower>,
    ) -> Result<CheckedRequest> {
        let (mut tokens, format, map) = self.take_prompt(model)?;
        if let Some(end) = self.prompt_end {
            tokens.drain(..tokens.len().saturating_sub(end as usize));
        }
        let ImageRows { given, spans } = ImageRows::of(model, tower, &self.images, &tokens)?;
        let constraints = self.take_constraints(model, format.as_ref(), count)?;
        // A grammar of the caller begins with the first token, even if the prompt opens thinking.
        #[cfg(feature = "grammar")]
        let format = match (&self.grammar, format) {
            (None | Some(girih_grammar::Grammar::Call(_)), format) => format,
            (Some(_), format) => format.map(|format| format.content_only(model)).transpose()?,
        };
        let constraints = match self.thinking_budget {
            Some(max) if self.wants_text => ended_thinking(model, format.as_ref(), max, count, constraints)?,
            _ => constraints,
        };
        let max_new = self.max_new(tokens.len(), limits.context);
        let Request { logits, sampling, stop_tokens, .. } = self;
        let Request { stops, stop_rules, logprobs, prompt_logprobs, overflow, .. } = self;
        let Request { wants_text, drafter, draft_max, .. } = self;
        let Request { tenant, priority, time_limits, adapter, images, wanted, .. } = self;
        if !wants_text && !stops.is_empty() {
            let sentence =
                "the request has stop strings but no text to find them in: remove them, or keep the text";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        if drafter.is_some() {
            check_rows_for_drafts(output_rows, limits.sequences)?;
        }
        let stop_tokens = with_own_stops(model, wants_text, stop_tokens)?;
        let request = TokenRequest {
            tokens,
            adapter: adapter.map(|name| model.adapter_index(&name)).transpose()?,
            logits,
            sampling: sampling.unwrap_or_else(|| model.default_sampling()),
            max_new,
            stops: Stops { tokens: stop_tokens, strings: stops },
            stop_rules,
            logprobs,
            prompt_logprobs,
            overflow,
            draft_max,
            tenant,
            priority,
            time_limits,
            given,
            spans,
            ..TokenRequest::default()
        };
        let checked = request.check(limits, model.files().facts.sizes.vocabulary);
        checked.map_err(|error| with_way_out(error, limits.context, model.max_context()))?;
        Ok(CheckedRequest { request, map, format, constraints, drafter, wants_text, images, wanted })
    }

    /// As [`Request::checked`], with the rows of its images and a place for each reply. The seeds of the replies follow
    /// each other.
    ///
    /// # Errors
    /// As [`Request::checked`], and when the rows of an image cannot be made.
    pub(crate) fn prepare(
        self,
        model: &Model,
        limits: &EngineLimits,
        output_rows: u32,
        count: u32,
        tower: Option<&ImageTower>,
    ) -> Result<Vec<PreparedRequest>> {
        let checked = self.checked(model, limits, output_rows, count, tower)?;
        let CheckedRequest { mut request, map, format, constraints, mut drafter, .. } = checked;
        let CheckedRequest { wants_text, images, wanted, .. } = checked;
        if let Some(tower) = tower {
            request.images = tower.fill(&mut request.given, &request.tenant, images, wanted.as_deref())?;
        }
        let mut constraints = constraints.into_iter();
        let prepared = (0..count).map(|number| {
            let mut request = request.clone();
            request.sampling.seed = request.sampling.seed.wrapping_add(u64::from(number));
            let text = match (wants_text, &format) {
                (false, _) => None,
                (true, format) => Some(ReplyText::new(model, format.as_ref())?.after(&request.tokens)),
            };
            let detokenizer = text.map(|text| Box::new(text) as Box<dyn Detokenize>);
            let hooks = Hooks { detokenizer, constraint: constraints.next(), drafter: drafter.take() };
            let splitter = format.as_ref().filter(|_| wants_text).map(ReplyFormat::splitter);
            Ok(PreparedRequest { request, hooks, splitter, map: map.clone() })
        });
        prepared.collect()
    }
}
