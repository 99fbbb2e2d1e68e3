//! Runs of whole texts while no request is active: the logits of every position, or of the last one.

use girih_graph::backend::Range32;
use girih_graph::{Outputs, Watch};

use crate::cache::SequenceId;
use crate::cached_runner::{StepTokens, failed};
use crate::given_inputs;
use crate::prompt_content::PromptContent;
use crate::{Engine, Error, ErrorKind, Result, TokenPrompt, TokenRequest};

impl Engine {
    /// Runs `tokens` as one new sequence, in chunks, and passes each position with its
    /// logits, which may be NaN, to `each`. The sequence stays in the prefix cache.
    ///
    /// # Errors
    /// When a request is active, the tokens do not fit, the state cannot hold a key or value, or the
    /// device fails; then the sequence is discarded.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        watch: &mut dyn Watch,
        each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.logits_of(TokenPrompt::plain(tokens), watch, each)
    }

    /// As [`Engine::logits`], of a prompt that may have given rows and mutual spans. No chunk cuts a span.
    ///
    /// # Errors
    /// As [`Engine::logits`]; of the kind [`ErrorKind::Refused`] when the given rows or the spans are not within the
    /// tokens, or a span has more rows than a step.
    pub fn logits_of(
        &mut self,
        prompt: TokenPrompt<'_>,
        watch: &mut dyn Watch,
        each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let TokenPrompt { tokens, given, spans } = prompt;
        let request = TokenRequest {
            tokens: tokens.to_vec(),
            given: given.to_vec(),
            spans: spans.to_vec(),
            ..TokenRequest::default()
        };
        if !(given.is_empty() && spans.is_empty()) {
            request.check_content(&self.limits)?;
            given_inputs::check(&request, self.runner().inputs())?;
        }
        let content = PromptContent::new(request.given, request.spans, self.adapter);
        self.alone(tokens, |engine, sequence| engine.read(sequence, tokens, &content, watch, each))
    }

    /// As [`Engine::logits`], but computes only the logits that follow the last token, so
    /// chunks are as large as possible. Returns zeros if `tokens` is empty.
    ///
    /// # Errors
    /// As [`Engine::logits`].
    pub fn last_logits(&mut self, tokens: &[u32], watch: &mut dyn Watch) -> Result<Vec<f32>> {
        let all_content = PromptContent::new(Vec::new(), Vec::new(), self.adapter);
        self.alone(tokens, |engine, sequence| {
            let (mut end, all) = (0, tokens.len());
            for tokens in tokens.chunks(engine.limits.chunk as usize) {
                let start = end as u32;
                end += tokens.len();
                let room = engine.runner.reserve(sequence, end as u32)?;
                assert!(room, "one sequence within the limits fits into the state");
                let outputs = if end == all { Outputs::Last } else { Outputs::None };
                let content = all_content.part(Range32 { start, end: end as u32 });
                let step = StepTokens { content, ..StepTokens::plain(sequence, tokens, outputs) };
                engine.runner.run_one(step, watch)?;
            }
            match all {
                0 => Ok(vec![0.0; engine.runner().width()]),
                _ => Ok(engine.runner.output().rows(0..1).map_err(failed)?.to_vec()),
            }
        })
    }

    /// Calls `run` with an empty sequence that has room for `tokens` while no request is
    /// active. The sequence stays in the prefix cache unless `run` fails.
    fn alone<T>(
        &mut self,
        tokens: &[u32],
        run: impl FnOnce(&mut Engine, SequenceId) -> Result<T>,
    ) -> Result<T> {
        self.require_idle("no other sequence can be run")?;
        if tokens.len() > self.limits.context as usize {
            let (have, max) = (tokens.len(), self.limits.context);
            let sentence = format!("the text has {have} tokens; the context is {max}: split it into windows");
            return Err(Error::with_kind(ErrorKind::TooLong, sentence));
        }
        self.runner.cache.forget();
        let (sequence, _) = self.runner.cache.begin(&[]);
        let result = run(self, sequence);
        match result {
            Ok(_) => self.runner.cache.end(sequence),
            Err(_) => self.runner.cache.discard(sequence),
        }
        result
    }

    /// Runs `tokens` in chunks of at most the programs' number of output rows.
    fn read(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        content: &PromptContent,
        watch: &mut dyn Watch,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (chunk, width) =
            (self.limits.chunk.min(self.runner().max_key().output_rows), self.runner().width());
        let mut position = 0;
        while position < tokens.len() {
            let end = content.chunk_end(position as u32, chunk, tokens.len() as u32)?;
            let tokens = &tokens[position..end as usize];
            let room = self.runner.reserve(sequence, end)?;
            assert!(room, "one sequence within the limits fits into the state");
            let content = content.part(Range32 { start: position as u32, end });
            let step = StepTokens { content, ..StepTokens::plain(sequence, tokens, Outputs::All) };
            self.runner.run_one(step, watch)?;
            let rows = self.runner.output().rows(0..tokens.len()).map_err(failed)?;
            for row in rows.chunks_exact(width) {
                each(position, row);
                position += 1;
            }
        }
        Ok(())
    }
}
