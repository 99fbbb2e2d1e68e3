//! Layers that predict further tokens (multi-token prediction): a program that drafts from the model's hidden states.
//!
//! Its row at position p reads the model's hidden state at p and the token at p + 1, and predicts the token at p + 2
//! (DeepSeek-V3, arXiv 2412.19437, section 2.2). Its KV cache holds rows with the model's own hidden states only:
//! those of drafted tokens, which are its own, are stepped back over at once.
//!
//! A prompt that the model finds in its prefix cache has no hidden states. If this program has cached the same
//! tokens, it goes on there; else its sequence begins at the first position that has one. Its rows then attend to
//! fewer positions, at distances that stay as they are, so a draft is less often right, and no reply changes. To run
//! the model again for these rows would cost the time that the prefix cache saves.
//!
//! An assistant ([`InputSpec::OWN_HIDDEN`]) reads keys and values of the model as well, and has none of its own: each
//! further token of a draft is predicted by the same row again, from the program's hidden state before.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use girih_graph::backend::Unwatched;
use girih_graph::{InputSpec, Outputs, Runner};

use super::rows_watch::RowsWatch;
use super::shared::{DraftNotes, DrafterId, choose, lock, room, with_known_bias};
use super::timing::measured;
use super::trials::{PlannedDraft, Trials};
use crate::cache::{SequenceId, SharingRules};
use crate::cached_runner::{CachedRunner, StepTokens};
use crate::hooks::guard;
use crate::limits::check;
use crate::position_key::{PositionContent, PositionKey};
use crate::prompt_content::StepContent;
use crate::{DraftQuery, Drafter, EngineLimits, Error, ErrorKind, HiddenRows, Result, Tenant};

/// The number of rows that wait for the next draft. Of more, as in a prompt, all but the last are run at once.
const WAITING_ROWS: usize = 64;

/// The names of the values that hold hidden states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenNames {
    /// In the model's programs: what this program reads, for each of its inputs of hidden states but
    /// [`InputSpec::OWN_HIDDEN`].
    pub model: Vec<String>,
    /// In this program: what its next row reads.
    pub own: String,
}

/// The program of a model's layers that predict further tokens. It drafts for the requests to that model.
///
/// It chooses with the sampling settings and the random numbers of the request.
pub struct MtpModel {
    runner: CachedRunner,
    limits: EngineLimits,
    names: HiddenNames,
    rows: HiddenWidths,
    /// The time of a drafted token, in steps of the model.
    cost: f32,
    /// The sequences of requests, the one used last at the end.
    sequences: Vec<OwnedSequence>,
    next: u64,
    notes: DraftNotes,
    /// When the rows before the last draft had been run.
    drafting_since: Instant,
}

/// The sequence of a drafter.
#[derive(Clone, Copy, Debug)]
struct OwnedSequence {
    owner: DrafterId,
    id: SequenceId,
    /// The position of the model's row that the first row reads.
    first: u32,
}

impl MtpModel {
    /// Returns the program for requests within `limits`. A step of one row takes `relative_cost` steps of the model,
    /// unless the engine measures it. If it fails, drafting ends, and `note` receives a sentence that says so, as it does
    /// once if drafts end because they do not pay.
    ///
    /// # Errors
    /// As [`Engine::new`](crate::Engine::new), and of the kind [`ErrorKind::Refused`] when the program reads no hidden
    /// states.
    pub fn new(
        runner: Box<dyn Runner>,
        limits: EngineLimits,
        relative_cost: f32,
        names: HiddenNames,
        note: impl Fn(String) + Send + 'static,
    ) -> Result<MtpModel> {
        check(&*runner, &limits)?;
        let rows = HiddenWidths::of(runner.inputs()).ok_or_else(|| {
            Error::with_kind(
                ErrorKind::Refused,
                "the loaded programs read no hidden states; load a drafter that does",
            )
        })?;
        Ok(MtpModel {
            runner: CachedRunner::new(runner)?,
            limits,
            names,
            rows,
            cost: relative_cost.max(0.0),
            sequences: Vec::new(),
            next: 0,
            notes: DraftNotes::new("multi-token prediction", note),
            drafting_since: Instant::now(),
        })
    }

    /// The names of the model's values that the program reads.
    pub(crate) fn reads(&self) -> &[String] {
        &self.names.model
    }

    /// Measures the time of a drafted token, beside a step of the model that takes `step`.
    pub(super) fn measure(&mut self, step: Duration) -> Result<f32> {
        let own = measured(&mut self.runner, 1, Some(std::slice::from_ref(&self.names.own)))?.one_row();
        self.cost = own.map_or(self.cost, |own| (own.as_secs_f64() / step.as_secs_f64()) as f32);
        Ok(self.cost)
    }

    /// Runs all waiting rows of a request but the last one.
    fn catch_up(&mut self, drafter: &MtpOwner, tokens: &[u32], waiting: &WaitingRows) {
        if self.notes.has_failed() {
            return;
        }
        let run = || self.run_rows(drafter, tokens, waiting, false).map(drop);
        if let Err(error) = guard("the program of multi-token prediction", run).flatten() {
            self.fail(&error);
        }
    }

    /// Drafts at most `count` tokens; none after a failure, or if the tokens are too many or unknown to this program. A
    /// draft ends where the request allows no token that this program knows.
    fn draft(
        &mut self,
        drafter: &MtpOwner,
        query: DraftQuery<'_>,
        waiting: &WaitingRows,
        count: u32,
    ) -> Vec<u32> {
        let width = self.runner.inner().width();
        let count = room(query.tokens, self.limits.context, width, count);
        if self.notes.has_failed() || count == 0 {
            return Vec::new();
        }
        let run = || self.run(drafter, query, waiting, count);
        guard("the program of multi-token prediction", run).flatten().unwrap_or_else(|error| {
            self.fail(&error);
            Vec::new()
        })
    }

    /// Ends all drafts, as the state is undefined.
    fn fail(&mut self, error: &Error) {
        self.sequences.clear();
        self.notes.fail(error);
    }

    /// Runs the waiting rows, then chooses `count` tokens.
    fn run(
        &mut self,
        drafter: &MtpOwner,
        query: DraftQuery<'_>,
        waiting: &WaitingRows,
        count: usize,
    ) -> Result<Vec<u32>> {
        let (sequence, mut hidden) = self.run_rows(drafter, query.tokens, waiting, true)?;
        self.drafting_since = Instant::now();
        let (mut tokens, known) = (query.tokens.to_vec(), query.tokens.len());
        let own = self.runner.cache.length(sequence);
        let sampling = with_known_bias(query.sampling, self.runner.inner().width());
        loop {
            let replied = query.replied + tokens.len() - known;
            let chosen = choose(&mut self.runner, &sampling, (&tokens, replied))?;
            self.runner.cache.confirm(sequence);
            tokens.extend(chosen);
            if chosen.is_none() || tokens.len() == known + count {
                break;
            }
            if self.rows.own.is_some() {
                self.runner
                    .cache
                    .rewind(sequence, own - 1, &[])
                    .ok_or_else(|| Error::new("the last row cannot be run again; this is a bug in girih"))?;
            }
            let last = [tokens[tokens.len() - 1]];
            let row = self.rows.next(hidden, waiting.last(self.rows.model));
            hidden = self.step(sequence, &last, &row, StepContent::default(), Outputs::Last)?;
        }
        // A row that took the place of the last one has another key.
        let own = own - u32::from(self.rows.own.is_some());
        if self.runner.cache.rewind(sequence, own, &[]).is_none() {
            self.runner.cache.discard(sequence);
            self.sequences.retain(|owned| owned.id != sequence);
        }
        Ok(tokens.split_off(known))
    }

    /// Runs the waiting rows that the drafter's sequence lacks, the last one only if `has_output`: then it is run in
    /// any case. Returns the sequence, and the hidden states of the last row.
    fn run_rows(
        &mut self,
        drafter: &MtpOwner,
        tokens: &[u32],
        waiting: &WaitingRows,
        has_output: bool,
    ) -> Result<(SequenceId, Vec<f32>)> {
        let end = waiting.end() - u32::from(!has_output);
        let (sequence, first) = self.sequence(drafter, tokens, waiting.first..end)?;
        let mut next = first + self.runner.cache.length(sequence);
        let mut hidden = Vec::new();
        while next < end {
            let count = (end - next).min(self.limits.chunk);
            let width = self.rows.model;
            let rows = &waiting.values[(next - waiting.first) as usize * width..];
            let rows = self.rows.of_model(&rows[..count as usize * width]);
            let after = &tokens[next as usize + 1..][..count as usize];
            let first_key = (next == first).then(|| drafter.first_key(first, tokens));
            let content = StepContent::of_first_key(first_key);
            next += count;
            let outputs = if has_output && next == end { Outputs::Last } else { Outputs::None };
            hidden = self.step(sequence, after, &rows, content, outputs)?;
        }
        Ok((sequence, hidden))
    }

    /// Returns the drafter's sequence and the position of its first row. It holds rows of these tokens up to a position
    /// among `rows`, without the last of these.
    fn sequence(
        &mut self,
        drafter: &MtpOwner,
        tokens: &[u32],
        rows: Range<u32>,
    ) -> Result<(SequenceId, u32)> {
        let cache = &mut self.runner.cache;
        let found = self.sequences.iter().position(|owned| owned.owner == drafter.id);
        if let Some(owned) = found.map(|index| self.sequences.remove(index)) {
            // A request that was cut may have fewer tokens than before its first row.
            let after_first = tokens.get(owned.first as usize + 1..).unwrap_or_default();
            let shared = shared_rows(cache.tokens(owned.id), after_first);
            let most = rows.end.saturating_sub(1).saturating_sub(owned.first);
            let shared = shared.min(most);
            let continues = owned.first <= rows.start && owned.first + shared >= rows.start;
            if continues
                && cache.rewind(owned.id, shared, &[]).is_some_and(|left| owned.first + left >= rows.start)
            {
                self.sequences.push(owned);
                return Ok((owned.id, owned.first));
            }
            cache.discard(owned.id);
        }
        if self.sequences.len() == self.limits.sequences as usize {
            cache.end(self.sequences.remove(0).id);
        }
        let mut keys: Vec<PositionKey> =
            tokens[1..rows.end as usize + 1].iter().copied().map(PositionKey::Token).collect();
        keys[0] = drafter.first_key(0, tokens);
        let rules = || SharingRules { tenant: drafter.tenant.clone(), ..SharingRules::default() };
        let (id, shared) = cache.begin_within(&keys, rules());
        let (id, first) = if shared >= rows.start {
            (id, 0)
        } else {
            cache.discard(id);
            (cache.begin_within(&[], rules()).0, rows.start)
        };
        self.sequences.push(OwnedSequence { owner: drafter.id, id, first });
        Ok((id, first))
    }

    /// Runs the next rows of a sequence: a token and the hidden states before it for each. Returns the hidden states of
    /// the last one.
    fn step(
        &mut self,
        sequence: SequenceId,
        tokens: &[u32],
        hidden: &[f32],
        content: StepContent<'_>,
        outputs: Outputs,
    ) -> Result<Vec<f32>> {
        let end = self.runner.cache.length(sequence) + tokens.len() as u32;
        if !self.runner.reserve(sequence, end)? {
            return Err(Error::new("its KV cache has no free blocks; this is a bug in girih"));
        }
        let step = StepTokens { sequence, tokens, content, outputs, hidden };
        if outputs == Outputs::None {
            return self.runner.run_one(step, &mut Unwatched).map(|()| Vec::new());
        }
        let mut watch = RowsWatch::new(vec![self.names.own.clone()]);
        self.runner.run_one(step, &mut watch)?;
        let mut rows = watch.into_rows();
        let last = rows.len().checked_sub(self.rows.own.unwrap_or(self.rows.model));
        let last = last.ok_or_else(|| Error::new("the backend does not report its hidden states"))?;
        Ok(rows.split_off(last))
    }

    /// Ends the sequence of a drafter; what it has run stays in the prefix cache.
    fn end(&mut self, id: DrafterId) {
        if let Some(index) = self.sequences.iter().position(|owned| owned.owner == id) {
            self.runner.cache.end(self.sequences.remove(index).id);
        }
    }
}

/// The widths of rows of hidden states.
#[derive(Clone, Copy, Debug)]
struct HiddenWidths {
    /// Of the values that the program reads of the model.
    model: usize,
    /// Of the first ones of these, before which the program's inputs have no other.
    first: usize,
    /// Of the program's own, if it reads these beside the model's: then its rows lie behind the first ones of the model.
    /// Without, they take the place of the model's.
    own: Option<usize>,
}

impl HiddenWidths {
    /// Those of a program with these inputs; `None` if it reads no hidden states.
    fn of(inputs: &[InputSpec]) -> Option<HiddenWidths> {
        let width = |name: &str| inputs.iter().find(|input| input.name == name)?.hidden_width();
        let all: usize = inputs.iter().filter_map(InputSpec::hidden_width).sum();
        let own = width(InputSpec::OWN_HIDDEN);
        Some(HiddenWidths { model: all - own.unwrap_or(0), first: width(InputSpec::HIDDEN)?, own })
    }

    /// Rows of the model as the program reads them.
    fn of_model<'a>(&self, rows: &'a [f32]) -> Cow<'a, [f32]> {
        let Some(own) = self.own else { return Cow::Borrowed(rows) };
        let row = |row: &[f32]| [&row[..self.first], &vec![0.0; own], &row[self.first..]].concat();
        Cow::Owned(rows.chunks_exact(self.model.max(1)).flat_map(row).collect())
    }

    /// The row after one with these hidden states of the program's, for which the model has none; `last` is the last one
    /// of the model.
    fn next(&self, own: Vec<f32>, last: &[f32]) -> Vec<f32> {
        match self.own {
            None => own,
            Some(_) => [vec![0.0; self.first], own, last[self.first..].to_vec()].concat(),
        }
    }
}

/// The number of first rows of a sequence with these keys that have these tokens.
fn shared_rows(keys: &[PositionKey], tokens: &[u32]) -> u32 {
    let is_same = |(key, token): (&PositionKey, &u32)| match key {
        PositionKey::Token(own) => own == token,
        PositionKey::Content(content) => content.token == *token,
    };
    keys.iter().zip(tokens).take_while(|pair| is_same(*pair)).count() as u32
}

/// Whose sequence it is.
struct MtpOwner {
    id: DrafterId,
    tenant: Tenant,
    /// Whether other requests may share its rows: its prompt has tokens only.
    is_shared: bool,
}

impl MtpOwner {
    /// The key of the first row, which reads the model's row at position `first`. A row there depends on all tokens
    /// before it, so only rows from position 0 on are shared.
    fn first_key(&self, first: u32, tokens: &[u32]) -> PositionKey {
        let mut digest = [0; 32];
        let mut before = tokens[0];
        if first > 0 || !self.is_shared {
            digest[0] = 1;
            digest[8..16].copy_from_slice(&self.id.0.to_le_bytes());
            before = first;
        }
        let token = tokens[first as usize + 1];
        let given = Some((digest, before));
        PositionKey::Content(Arc::new(PositionContent { given, token, span: None, adapter: None }))
    }
}

/// Rows of the model that the program has not run yet.
#[derive(Debug, Default)]
struct WaitingRows {
    /// The position of the first one.
    first: u32,
    count: u32,
    values: Vec<f32>,
}

impl WaitingRows {
    /// The position after the last one.
    fn end(&self) -> u32 {
        self.first + self.count
    }

    /// Adds rows, in place of those from their position on. Rows that do not follow take the place of all.
    fn add(&mut self, rows: &HiddenRows<'_>) {
        let count = (rows.values.len() / rows.width) as u32;
        match rows.first.checked_sub(self.first).filter(|kept| *kept <= self.count) {
            Some(kept) => self.count = kept,
            None => (self.first, self.count) = (rows.first, 0),
        }
        self.values.truncate(self.count as usize * rows.width);
        self.values.extend(rows.values);
        self.count += count;
    }

    /// The last one; there must be one.
    fn last(&self, width: usize) -> &[f32] {
        &self.values[self.values.len() - width..]
    }

    /// Leaves the last one.
    fn keep_last(&mut self, width: usize) {
        self.values.drain(..self.count.saturating_sub(1) as usize * width);
        self.first += self.count.saturating_sub(1);
        self.count = self.count.min(1);
    }
}

/// Drafts for one request with the layers of its model.
pub(super) struct MtpDrafter {
    model: Arc<Mutex<MtpModel>>,
    owner: MtpOwner,
    max: u32,
    trials: Trials,
    waiting: WaitingRows,
    /// The number of tokens at the last call.
    known: usize,
}

impl MtpDrafter {
    /// Returns a drafter for a request of a tenant, which drafts at most `max` tokens at once. Other requests share its
    /// rows if its prompt has tokens only.
    pub fn new(model: Arc<Mutex<MtpModel>>, max: u32, tenant: Tenant, is_shared: bool) -> MtpDrafter {
        let mut shared = lock(&model);
        let id = DrafterId(shared.next);
        shared.next += 1;
        drop(shared);
        let owner = MtpOwner { id, tenant, is_shared };
        MtpDrafter { model, owner, max, trials: Trials::new(), waiting: WaitingRows::default(), known: 0 }
    }

    /// Records the number of tokens. Fewer than before are a piece after truncation.
    fn note_tokens(&mut self, count: usize) {
        if count < self.known {
            self.waiting = WaitingRows::default();
        }
        self.known = count;
    }
}

impl Drafter for MtpDrafter {
    fn draft(&mut self, query: DraftQuery<'_>) -> Vec<u32> {
        let known = query.tokens.len();
        self.note_tokens(known);
        let mut model = lock(&self.model);
        let Some(planned) = self.trials.plan(&query, model.cost, self.max) else { return Vec::new() };
        // A step that was not watched gave no rows.
        if self.waiting.count == 0 || self.waiting.end() as usize + 1 != known {
            return Vec::new();
        }
        let PlannedDraft { count, .. } = planned;
        let draft = model.draft(&self.owner, query, &self.waiting, count);
        self.waiting.keep_last(model.rows.model);
        self.trials.record(&query, planned, &draft, model.drafting_since.elapsed());
        if self.trials.is_over() {
            model.notes.stop(self.trials.acceptance());
        }
        draft
    }

    fn reads_rows(&self) -> bool {
        !self.trials.is_over()
    }

    fn read(&mut self, rows: HiddenRows<'_>) {
        self.note_tokens(rows.tokens.len());
        let mut model = lock(&self.model);
        if rows.width != model.rows.model {
            return;
        }
        // The token after each row is known.
        let count = rows.tokens.len().saturating_sub(rows.first as usize + 1);
        let count = count.min(rows.values.len() / rows.width);
        self.waiting.add(&HiddenRows { values: &rows.values[..count * rows.width], ..rows });
        if self.waiting.count as usize > WAITING_ROWS {
            model.catch_up(&self.owner, rows.tokens, &self.waiting);
            self.waiting.keep_last(rows.width);
        }
    }
}

impl Drop for MtpDrafter {
    fn drop(&mut self) {
        lock(&self.model).end(self.owner.id);
    }
}
