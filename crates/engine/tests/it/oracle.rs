//! A runner whose logits are a hash of all tokens that a row sees in its blocks of
//! state: a mistake in positions, blocks or order changes every later token. Its
//! second state group has a sliding window; its third, if the test gives it blocks, carries a hash
//! of all tokens, which each row replaces. It takes given rows, and its output offers picks if the
//! test says so.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use girih_engine::sample::Logprobs;
use girih_engine::text::Detokenize;
use girih_engine::{
    Engine, EngineLimits, EventKind, Hooks, RequestEvent, RequestId, Sampling, Stats, Stop, Stops,
    TokenRequest, cache,
};
use girih_graph::backend::{Block, GivenRows, Input, State};
use girih_graph::{
    BLOCK_POSITIONS, Error, ErrorKind, GroupId, HostRows, InputKind, InputSpec, Key, MemoryPlan, Output,
    OutputKind, Picks, RangeFault, Runner, Sequence, Span, StateGroup, StateKind, Step,
};
use girih_tensor::random::mix;
use girih_tensor::{DType, Random, Shape};

pub const VOCABULARY: usize = 40;
pub const CONTEXT: u32 = 320;
/// The window of the second state group.
const WINDOW: usize = 70;
/// The state groups of the model with rows by position only.
pub const SPANS: [StateKind; 2] =
    [StateKind::Positions { span: Span::Full }, StateKind::Positions { span: Span::Window(WINDOW as u32) }];
/// The state groups of the model that also carries a hash.
pub const KINDS: [StateKind; 3] = [SPANS[0], SPANS[1], StateKind::Carried];
/// The index of the group that carries the hash.
const CARRIED: usize = 2;

/// A failure in the step that reaches a position; it occurs once. NaN stays in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Device(u32),
    /// As `Device`, with the kind `OutOfMemory`.
    Memory(u32),
    NaN(u32),
    /// The state cannot hold the key of the position; what lies in its place acts like NaN.
    Range(u32),
    /// An operation on state fails after this number of others.
    State(u32),
}

/// A value that an oracle shares with its test, on any thread.
#[derive(Clone, Default)]
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T: Copy> Shared<T> {
    pub fn get(&self) -> T {
        *self.0.lock().unwrap()
    }

    pub fn set(&self, value: T) {
        *self.0.lock().unwrap() = value;
    }
}

/// Counters and switches that an oracle shares with its test.
#[derive(Clone, Default)]
pub struct Watched {
    pub trouble: Shared<Option<Trouble>>,
    pub zeroed: Shared<usize>,
    pub rows: Shared<usize>,
    /// The largest number of sequences of a step.
    pub sequences: Shared<usize>,
    /// The largest number of rows of a step.
    pub largest: Shared<usize>,
    /// The number of picks that the output offers; 0 for none.
    pub max_picks: Shared<usize>,
    /// The number of rows of logits that were read as a whole.
    pub whole_rows: Shared<usize>,
    /// A number that makes it another model, unless it is 0.
    pub salt: Shared<u64>,
}

/// Values in a given row.
pub const GIVEN_WIDTH: usize = 2;

/// The name of the hidden states.
pub const HIDDEN: &str = "head.norm";

/// Values in a row of hidden states: the number of tokens that the row sees, and these tokens.
pub const HIDDEN_WIDTH: usize = CONTEXT as usize + 1;

/// The hidden state of a row that sees these tokens.
pub fn hidden_row(tokens: &[u32]) -> Vec<f32> {
    let mut row = vec![tokens.len() as f32];
    row.extend(tokens.iter().map(|token| *token as f32));
    row.resize(HIDDEN_WIDTH, 0.0);
    row
}

pub struct Oracle {
    max_key: Key,
    groups: Vec<StateGroup>,
    blocks: Vec<u32>,
    inputs: [InputSpec; 2],
    slots: Slots,
    output: OracleOutput,
    width: usize,
    watched: Watched,
}

/// Logits that are handed out as rows or as picks.
struct OracleOutput {
    rows: HostRows,
    watched: Watched,
}

impl Output for OracleOutput {
    fn rows(&mut self, rows: Range<usize>) -> Result<&[f32], Error> {
        self.watched.whole_rows.set(self.watched.whole_rows.get() + rows.len());
        self.rows.rows(rows)
    }

    fn max_picks(&self) -> usize {
        self.watched.max_picks.get()
    }

    fn picks(&mut self, row: usize, top: usize, asked: &[u32]) -> Result<Picks, Error> {
        assert!(top <= self.max_picks(), "{top} picks are more than the output offers");
        self.rows.picks(row, top, asked)
    }
}

/// One number for each position of each block of each group; of the carried one, the hash and the
/// number of positions that it is of.
struct Slots {
    groups: Vec<Vec<[u64; BLOCK_POSITIONS]>>,
    faults: Vec<RangeFault>,
    watched: Watched,
}

/// The number that stands for NaN in a slot.
const SPOILED: u64 = 2;

/// The number that a token stores in its slot of a group; never 0, which means an
/// empty slot, and odd, so never [`SPOILED`].
fn mark(group: usize, token: u32) -> u64 {
    mix(u64::from(token) * 2 + group as u64 + 1) | 1
}

/// As [`mark`], for a given row.
fn given_mark(group: usize, row: &[f32]) -> u64 {
    row.iter().fold(mark(group, 99), |hash, value| mix(hash ^ u64::from(value.to_bits()))) | 1
}

/// Returns the logits of a row that sees these marks.
fn row(seen: impl Iterator<Item = u64>) -> Vec<f32> {
    let hash = seen.fold(17, |hash, mark| mix(hash ^ mark));
    let logit = |id: usize| (mix(hash ^ id as u64) >> 40) as f32 / (1 << 21) as f32 - 4.0;
    (0..VOCABULARY).map(logit).collect()
}

/// Returns the logits after `tokens`, computed without state.
pub fn logits(tokens: &[u32]) -> Vec<f32> {
    logits_of(tokens, false)
}

/// As [`logits`], of the model that carries a hash if `carries`.
pub fn logits_of(tokens: &[u32], carries: bool) -> Vec<f32> {
    let window = &tokens[tokens.len().saturating_sub(WINDOW)..];
    let full = tokens.iter().map(|token| mark(0, *token));
    let carried = tokens.iter().fold(0, |hash, token| carry(hash, mark(CARRIED, *token)));
    row(full.chain(window.iter().map(|token| mark(1, *token))).chain(carries.then_some(carried)))
}

/// The hash after a row of this mark; NaN stays.
fn carry(hash: u64, mark: u64) -> u64 {
    if hash == SPOILED { SPOILED } else { mix(hash ^ mark) | 1 }
}

/// Returns the greedy reply to a prompt, computed without an engine.
pub fn greedy(prompt: &[u32], count: usize) -> Vec<u32> {
    greedy_of(prompt, count, false)
}

/// As [`greedy`], of the model that carries a hash if `carries`.
pub fn greedy_of(prompt: &[u32], count: usize, carries: bool) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = logits_of(&tokens, carries);
        let best = (0..VOCABULARY).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        tokens.push(best as u32);
    }
    tokens.split_off(prompt.len())
}

impl Oracle {
    pub fn new(max_key: Key, blocks: &[u32], watched: &Watched) -> Oracle {
        let groups = blocks.iter().map(|count| vec![[0; BLOCK_POSITIONS]; *count as usize]).collect();
        let slots = Slots { groups, faults: Vec::new(), watched: watched.clone() };
        let kinds = KINDS.iter().zip(blocks);
        let groups = kinds.map(|(kind, _)| StateGroup { name: kind.to_string(), kind: *kind }).collect();
        let input = |name: &str, kind| InputSpec { name: name.to_owned(), kind };
        let inputs = [
            input(InputSpec::TOKENS, InputKind::Ids { bound: VOCABULARY }),
            input(InputSpec::GIVEN, InputKind::Given { width: GIVEN_WIDTH }),
        ];
        let output = OracleOutput { rows: HostRows::of_width(VOCABULARY), watched: watched.clone() };
        let (blocks, watched) = (blocks.to_vec(), watched.clone());
        Oracle { max_key, groups, blocks, inputs, slots, output, width: VOCABULARY, watched }
    }

    /// The same model without the last tokens of the vocabulary.
    pub fn of_width(mut self, width: usize) -> Oracle {
        self.output.rows = HostRows::of_width(width);
        self.width = width;
        self
    }

    /// Checks that no sequence writes a block that another one sees.
    fn check(&self, sequences: &[Sequence<'_>]) {
        for (group, StateGroup { kind, .. }) in self.groups.iter().enumerate() {
            let own = |sequence: &Sequence<'_>, from: usize| {
                let end = sequence.position as usize + sequence.rows.indexes().len();
                sequence.blocks[group][from / BLOCK_POSITIONS..end.div_ceil(BLOCK_POSITIONS)].to_vec()
            };
            for (index, sequence) in sequences.iter().enumerate() {
                let written = own(sequence, sequence.position as usize);
                for (other, sequence) in sequences.iter().enumerate().filter(|(other, _)| *other != index) {
                    let seen = own(sequence, kind.first(sequence.position as usize));
                    let clash = written.iter().find(|block| seen.contains(block));
                    assert!(
                        clash.is_none(),
                        "sequence {index} writes {clash:?}, which sequence {other} sees"
                    );
                }
            }
        }
    }

    /// Runs the rows of one sequence; returns the logits of the output rows.
    fn run(&mut self, sequence: &Sequence<'_>, tokens: &[u32], given: &[GivenRows<'_>]) -> Vec<f32> {
        let mut output = Vec::new();
        let start = sequence.position as usize;
        let mut written = start;
        // The hash after each row.
        let mut carried = Vec::new();
        for (index, row) in sequence.rows.indexes().enumerate() {
            let position = start + index;
            // A row sees the later rows of its mutual span.
            while written < sequence.sees(Span::Full, position).end {
                self.write(sequence, written, tokens, given);
                if self.carries() {
                    let before = carried.last().copied().unwrap_or_else(|| self.carried(sequence));
                    carried.push(self.carry(sequence, written, before, tokens, given));
                }
                written += 1;
            }
            if self.watched.trouble.get() == Some(Trouble::NaN(position as u32)) {
                self.watched.trouble.set(None);
                let block = sequence.blocks[0][position / BLOCK_POSITIONS].0;
                self.slots.groups[0][block as usize][position % BLOCK_POSITIONS] = SPOILED;
                // The hash becomes NaN from this row on, also at the ends of blocks.
                for (at, hash) in (start..).zip(&mut carried).skip(index) {
                    *hash = SPOILED;
                    self.carried_slots(sequence, at)[0] = SPOILED;
                }
            }
            if self.watched.trouble.get() == Some(Trouble::Range(position as u32)) {
                self.watched.trouble.set(None);
                let block = sequence.blocks[0][position / BLOCK_POSITIONS].0;
                self.slots.groups[0][block as usize][position % BLOCK_POSITIONS] = SPOILED;
                let (name, row) = ("layers.0.keys".to_owned(), row as u32);
                self.slots.faults.push(RangeFault { row, name, dtype: DType::F16, value: -7e4 });
            }
            if sequence.output_rows().contains(&row) {
                output.extend(&self.read(sequence, position, carried.get(index).copied())[..self.width]);
            }
        }
        output
    }

    /// Writes a position to the groups that have rows by position.
    fn write(&mut self, sequence: &Sequence<'_>, position: usize, tokens: &[u32], given: &[GivenRows<'_>]) {
        for (group, blocks) in sequence.blocks.iter().enumerate().take(CARRIED) {
            let slots = &mut self.slots.groups[group][blocks[position / BLOCK_POSITIONS].0 as usize];
            let at = position % BLOCK_POSITIONS;
            assert!(at > 0 || slots.iter().all(|slot| *slot == 0), "a new block must be zeroed");
            slots[at] = written(group, sequence, position, tokens, given);
        }
    }

    /// Whether the model carries a hash.
    fn carries(&self) -> bool {
        self.groups.len() > CARRIED
    }

    /// The slots of the block to which the hash after a position is written.
    fn carried_slots(&mut self, sequence: &Sequence<'_>, position: usize) -> &mut [u64; BLOCK_POSITIONS] {
        let block = sequence.blocks[CARRIED][position / BLOCK_POSITIONS];
        &mut self.slots.groups[CARRIED][block.0 as usize]
    }

    /// The hash before the first row of a sequence.
    fn carried(&mut self, sequence: &Sequence<'_>) -> u64 {
        let position = sequence.position as usize;
        let Some(last) = position.checked_sub(1) else { return 0 };
        let [hash, length, ..] = *self.carried_slots(sequence, last);
        assert_eq!(length as usize, position, "a step goes on where the last one ended");
        hash
    }

    /// Replaces the hash by that after a position, and returns it.
    fn carry(
        &mut self,
        sequence: &Sequence<'_>,
        position: usize,
        before: u64,
        tokens: &[u32],
        given: &[GivenRows<'_>],
    ) -> u64 {
        let hash = carry(before, written(CARRIED, sequence, position, tokens, given));
        let slots = self.carried_slots(sequence, position);
        slots[..2].copy_from_slice(&[hash, position as u64 + 1]);
        hash
    }

    /// The hidden state of a row: all tokens that it sees.
    fn hidden(&self, sequence: &Sequence<'_>, position: usize) -> Vec<f32> {
        let token = |p: usize| {
            let block = sequence.blocks[0][p / BLOCK_POSITIONS].0;
            let slot = self.slots.groups[0][block as usize][p % BLOCK_POSITIONS];
            (0..VOCABULARY as u32).find(|token| mark(0, *token) == slot).unwrap_or_default()
        };
        hidden_row(&(0..=position).map(token).collect::<Vec<u32>>())
    }

    fn read(&self, sequence: &Sequence<'_>, position: usize, carried: Option<u64>) -> Vec<f32> {
        let slot = |group: usize, p: usize| {
            let block = sequence.blocks[group][p / BLOCK_POSITIONS].0;
            self.slots.groups[group][block as usize][p % BLOCK_POSITIONS]
        };
        let seen = |group: usize| {
            let StateKind::Positions { span } = KINDS[group] else { unreachable!("it has no positions") };
            sequence.sees(span, position)
        };
        let full = seen(0).map(|p| slot(0, p));
        // A weight of 0 does not hide NaN, so that of later rows in the same block matters.
        let blocks = &sequence.blocks[0][..=position / BLOCK_POSITIONS];
        let is_spoiled = |block: &Block| self.slots.groups[0][block.0 as usize].contains(&SPOILED);
        if carried == Some(SPOILED) || blocks.iter().any(is_spoiled) {
            let mut logits = vec![0.0; VOCABULARY];
            logits[7] = f32::NAN;
            return logits;
        }
        let salt = Some(self.watched.salt.get()).filter(|salt| *salt != 0);
        row(salt.into_iter().chain(full).chain(seen(1).map(|p| slot(1, p))).chain(carried))
    }
}

/// What a position writes to a group. In a mutual span, all of the span changes it, as in a model
/// of several layers.
fn written(
    group: usize,
    sequence: &Sequence<'_>,
    position: usize,
    tokens: &[u32],
    given: &[GivenRows<'_>],
) -> u64 {
    let own = |position: usize| {
        let row = sequence.rows.start as usize + position - sequence.position as usize;
        given_row(given, row).map_or_else(|| mark(group, tokens[row]), |row| given_mark(group, row))
    };
    let span = sequence.spans.iter().map(|span| span.indexes()).find(|span| span.contains(&position));
    let together = span.map(|span| span.fold(17, |hash, position| mix(hash ^ own(position))));
    own(position) ^ (together.unwrap_or(0) << 1)
}

/// The given row of this index in a step.
fn given_row<'a>(given: &[GivenRows<'a>], row: usize) -> Option<&'a [f32]> {
    given.iter().find_map(|GivenRows { first_row, values }| {
        let index = row.checked_sub(*first_row as usize)?;
        values.chunks_exact(GIVEN_WIDTH).nth(index)
    })
}

impl Runner for Oracle {
    fn backend(&self) -> &'static str {
        "oracle"
    }

    fn max_key(&self) -> Key {
        self.max_key
    }

    fn groups(&self) -> &[StateGroup] {
        &self.groups
    }

    fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    fn width(&self) -> usize {
        self.width
    }

    fn plan(&self) -> MemoryPlan {
        MemoryPlan::default()
    }

    fn step(&mut self, step: Step<'_>) -> Result<(), Error> {
        let [Input::Ids(tokens), Input::Given(given)] = *step.inputs else {
            panic!("the engine passes tokens and given rows")
        };
        let sequences = step.sequences;
        let mut next = 0;
        for sequence in sequences {
            assert_eq!(sequence.rows.start, next, "the rows of sequences are contiguous");
            next = sequence.rows.end;
            assert!(
                sequence.position as usize + sequence.rows.indexes().len() <= self.max_key.context as usize
            );
        }
        assert!(next as usize == tokens.len() && next <= self.max_key.rows, "{next} rows");
        assert!(
            sequences.iter().map(|sequence| sequence.output_rows().len()).sum::<usize>()
                <= self.max_key.output_rows as usize
        );
        assert!(sequences.len() <= self.max_key.sequences as usize);
        self.check(sequences);
        let trouble = self.watched.trouble.get();
        let reaches = |at: u32| {
            let ends = sequences.iter().map(|sequence| {
                (sequence.position, sequence.position + sequence.rows.indexes().len() as u32)
            });
            ends.into_iter().any(|(start, end)| (start..end).contains(&at))
        };
        if let Some(Trouble::Device(at) | Trouble::Memory(at)) = trouble
            && reaches(at)
        {
            self.watched.trouble.set(None);
            return Err(match trouble {
                Some(Trouble::Memory(_)) => Error::with_kind(ErrorKind::OutOfMemory, "memory is full"),
                _ => Error::new("the device is gone"),
            });
        }
        self.watched.rows.set(self.watched.rows.get() + tokens.len());
        self.watched.largest.set(self.watched.largest.get().max(tokens.len()));
        self.watched.sequences.set(self.watched.sequences.get().max(sequences.len()));
        let mut output = Vec::new();
        for sequence in sequences {
            output.extend(self.run(sequence, tokens, given));
        }
        self.output.rows.begin(output.len() / self.width)?.copy_from_slice(&output);
        if step.watch.wants(HIDDEN) {
            let rows = sequences.iter().flat_map(|sequence| {
                let positions = (sequence.position as usize..).take(sequence.rows.indexes().len());
                positions.flat_map(|position| self.hidden(sequence, position)).collect::<Vec<f32>>()
            });
            let values: Vec<f32> = rows.collect();
            let shape = Shape::matrix(values.len() / HIDDEN_WIDTH, HIDDEN_WIDTH);
            step.watch.value(HIDDEN, &shape, &values);
        }
        if step.watch.wants("tokens") {
            let values: Vec<f32> = tokens.iter().map(|token| *token as f32).collect();
            step.watch.value("tokens", &Shape::new(&[values.len()]).unwrap(), &values);
        }
        Ok(())
    }

    fn output(&mut self) -> &mut dyn Output {
        &mut self.output
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.slots
    }
}

impl Slots {
    /// Counts an operation on state, which may fail.
    fn operation(&self) -> Result<(), Error> {
        let trouble = &self.watched.trouble;
        match trouble.get() {
            Some(Trouble::State(0)) => {
                trouble.set(None);
                Err(Error::new("the copy engine is gone"))
            }
            Some(Trouble::State(left)) => {
                trouble.set(Some(Trouble::State(left - 1)));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl State for Slots {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<(), Error> {
        self.operation()?;
        let group = &mut self.groups[group.0 as usize];
        group[to.0 as usize] = group[from.0 as usize];
        Ok(())
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<(), Error> {
        self.operation()?;
        self.groups[group.0 as usize][block.0 as usize] = [0; BLOCK_POSITIONS];
        self.watched.zeroed.set(self.watched.zeroed.get() + 1);
        Ok(())
    }

    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>, Error> {
        self.operation()?;
        let slots = &self.groups[group.0 as usize][block.0 as usize];
        Ok(slots.iter().flat_map(|slot| slot.to_le_bytes()).collect())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error> {
        self.operation()?;
        if bytes.len() != 8 * BLOCK_POSITIONS {
            return Err(Error::new(format!("a block has {} bytes", 8 * BLOCK_POSITIONS)));
        }
        let slots = bytes.chunks_exact(8).map(|slot| u64::from_le_bytes(slot.try_into().unwrap()));
        let block = &mut self.groups[group.0 as usize][block.0 as usize];
        block.iter_mut().zip(slots).for_each(|(slot, value)| *slot = value);
        Ok(())
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        std::mem::take(&mut self.faults)
    }
}

/// The largest step of the test programs.
pub fn key() -> Key {
    Key { rows: CONTEXT, sequences: 1, context: CONTEXT, output_rows: 16, output: OutputKind::Logits }
}

/// The blocks of exactly one context in each of two groups.
pub const BLOCKS: [u32; 2] = [CONTEXT / BLOCK_POSITIONS as u32; 2];

/// Returns an engine over an oracle, with prefill chunks of `chunk` rows.
pub fn engine(chunk: u32) -> (Engine, Watched) {
    let watched = Watched::default();
    let runner = Box::new(Oracle::new(key(), &BLOCKS, &watched));
    (Engine::new(runner, EngineLimits::new(CONTEXT, chunk)).unwrap(), watched)
}

/// Returns an engine for several sequences in steps of `chunk` rows, with exactly the
/// blocks that they need.
pub fn batched(sequences: u32, chunk: u32) -> (Engine, Watched) {
    let key = Key { rows: chunk, sequences, ..key() };
    let blocks = SPANS.map(|kind| cache::blocks(kind, &key));
    narrow(sequences, chunk, &blocks)
}

/// As [`batched`], with `blocks[i]` blocks in group `i`.
pub fn narrow(sequences: u32, chunk: u32, blocks: &[u32]) -> (Engine, Watched) {
    let watched = Watched::default();
    let runner = Box::new(Oracle::new(Key { sequences, ..key() }, blocks, &watched));
    (Engine::new(runner, EngineLimits { sequences, ..EngineLimits::new(CONTEXT, chunk) }).unwrap(), watched)
}

/// As [`narrow`], with random sequences, chunk and blocks: from just enough for one sequence to enough for
/// all. Returns the numbers of blocks, too.
pub fn random_narrow<const N: usize>(
    random: &mut Random,
    kinds: [StateKind; N],
) -> (Engine, Watched, [u32; N]) {
    let sequences = 1 + random.below(6) as u32;
    let chunk = sequences + random.below(100) as u32;
    let least = kinds.map(|kind| kind.worst_case(std::iter::once(CONTEXT), chunk) as u32);
    let blocks = least.map(|least| least + random.below(4 * sequences as usize) as u32);
    let (engine, watched) = narrow(sequences, chunk, &blocks);
    (engine, watched, blocks)
}

/// Returns a prompt that is different for each number.
pub fn prompt(number: u64, length: usize) -> Vec<u32> {
    (0..length as u64).map(|i| (mix(number << 32 | i) % VOCABULARY as u64) as u32).collect()
}

/// Returns a greedy request for `new` tokens.
pub fn request(tokens: &[u32], new: u32) -> TokenRequest {
    TokenRequest {
        tokens: tokens.to_vec(),
        replied: 0,
        sampling: Sampling::greedy(),
        max_new: Some(new),
        stops: Stops::default(),
        ..TokenRequest::default()
    }
}

/// A detokenizer: each id stands for different UTF-8 bytes, not always a whole
/// character.
#[derive(Default)]
pub struct Pieces(pub Vec<u8>);

impl Pieces {
    pub fn hooks() -> Hooks {
        Hooks { detokenizer: Some(Box::new(Pieces(Vec::new()))), ..Hooks::default() }
    }

    fn bytes(id: u32) -> Vec<u8> {
        let letter = u8::try_from(id).unwrap();
        match id {
            // The two halves of 'é', and the three bytes of '日'.
            26..=27 => vec!["é".as_bytes()[id as usize - 26]],
            28..=30 => vec!["日".as_bytes()[id as usize - 28]],
            31 => "本語".into(),
            // A letter, then the first byte of a character.
            32 => vec![b'x', "é".as_bytes()[0]],
            _ => vec![b'a' + letter % 26, b'a' + letter / 26],
        }
    }

    /// Returns the whole text of some ids.
    pub fn text(ids: &[u32]) -> String {
        let mut pieces = Pieces(Vec::new());
        let text: String = ids.iter().map(|id| pieces.push(*id)).collect();
        text + &Box::new(pieces).finish()
    }
}

impl Detokenize for Pieces {
    fn push(&mut self, id: u32) -> String {
        self.0.extend(Pieces::bytes(id));
        let valid = match std::str::from_utf8(&self.0) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.0.len(),
        };
        let rest = self.0.split_off(valid);
        String::from_utf8_lossy(&std::mem::replace(&mut self.0, rest)).into_owned()
    }

    fn finish(self: Box<Self>) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// The replies to requests that are submitted together.
pub fn replies(engine: &mut Engine, requests: &[TokenRequest]) -> Vec<Reply> {
    let submit = |ask: &TokenRequest| engine.submit(ask.clone(), Pieces::hooks()).unwrap();
    let ids: Vec<_> = requests.iter().map(submit).collect();
    let mut replies: Vec<Reply> = requests.iter().map(|_| Reply::default()).collect();
    while !engine.is_idle() {
        for event in engine.step() {
            let index = ids.iter().position(|id| *id == event.request).unwrap();
            replies[index].take(event.clone());
        }
    }
    replies
}

/// The outcome of one request.
#[derive(Debug, Default, PartialEq)]
pub struct Reply {
    pub ids: Vec<u32>,
    pub text: String,
    pub stop: Option<Stop>,
    pub failure: Option<Error>,
    pub logits: Option<Vec<f32>>,
    pub prompt: Vec<(u32, Option<Logprobs>)>,
    pub prefilled: Option<Stats>,
    pub stats: Option<Stats>,
}

impl Reply {
    /// Adds an event; none may follow the last one.
    pub fn take(&mut self, event: RequestEvent) {
        assert!(self.stop.is_none() && self.failure.is_none(), "nothing follows the last event");
        match event.kind {
            EventKind::PromptToken { id, logprobs } => {
                assert!(self.prefilled.is_none(), "the prompt comes first");
                self.prompt.push((id, logprobs));
            }
            EventKind::Prefilled(stats) => {
                assert!(self.prefilled.replace(stats).is_none() && self.ids.is_empty())
            }
            EventKind::Token { id, text, .. } => {
                self.ids.push(id);
                self.text += &text;
            }
            EventKind::Finished { stop, text, stats, latencies } => {
                let samples = latencies.summary().map_or(0, |summary| summary.samples);
                assert_eq!(
                    samples,
                    stats.decode.tokens.min(4096) as usize,
                    "each decoded token has a latency"
                );
                self.text += &text;
                (self.stop, self.stats) = (Some(stop), Some(stats));
            }
            EventKind::Logits(row) => assert!(self.logits.replace(row).is_none() && self.ids.is_empty()),
            EventKind::Failed(error) => self.failure = Some(error),
        }
    }
}

/// Steps until the engine is idle; returns the reply to `id`.
pub fn finish(engine: &mut Engine, id: RequestId) -> Reply {
    let mut reply = Reply::default();
    while !engine.is_idle() {
        for event in engine.step().iter().filter(|event| event.request == id) {
            reply.take(event.clone());
        }
    }
    assert!(reply.stop.is_some() != reply.failure.is_some(), "one last event: {reply:?}");
    reply
}

/// Submits a request with a detokenizer and runs it to its end.
pub fn reply(engine: &mut Engine, request: TokenRequest) -> Reply {
    let id = engine.submit(request, Pieces::hooks()).unwrap();
    finish(engine, id)
}
