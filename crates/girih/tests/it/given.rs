//! Rows that replace the embeddings of tokens.

use std::ops::Range;

use girih::engine::{EmbeddedRows, EventKind, Hooks, TokenRequest};
use girih::{Engine, Model, RunOptions, Sampling, backend};

/// The tokens of a greedy reply of 12 tokens, and the bits of the logits after the prompt.
fn answer(engine: &mut Engine, tokens: &[u32], given: &[EmbeddedRows]) -> (Vec<u32>, Vec<u32>) {
    let request = |logits| TokenRequest {
        tokens: tokens.to_vec(),
        given: given.to_vec(),
        sampling: Sampling::greedy(),
        max_new: Some(12),
        logits,
        ..TokenRequest::default()
    };
    let (mut ids, mut bits) = (Vec::new(), Vec::new());
    for logits in [true, false] {
        engine.submit(request(logits), Hooks::default()).unwrap();
        while !engine.is_idle() {
            for event in engine.step() {
                match &event.kind {
                    EventKind::Token { id, .. } => ids.push(*id),
                    EventKind::Logits(row) => bits.extend(row.iter().map(|x| x.to_bits())),
                    EventKind::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
        }
    }
    (ids, bits)
}

/// The embeddings of the tokens in `range`, as given rows.
fn embedded(table: &[f32], width: usize, tokens: &[u32], range: Range<usize>) -> EmbeddedRows {
    let rows = tokens[range.clone()].iter().flat_map(|&id| &table[id as usize * width..][..width]);
    let values: Vec<f32> = rows.copied().collect();
    let content = [range.start as u8; 32];
    EmbeddedRows {
        first: range.start as u32,
        rows: range.len() as u32,
        values: values.into(),
        content,
        ..EmbeddedRows::default()
    }
}

#[test]
fn embedding_rows_give_the_bytes_of_the_same_tokens() {
    let model = Model::open("stories260k").unwrap();
    let width = model.files().facts.sizes.width;
    let table = model.files().weights.numbers("embed.table").unwrap();
    let tokens: Vec<u32> = (0..90).map(|i| 3 + i * 37 % 500).collect();
    let has_device = |name: &&str| backend(name).unwrap().device().is_ok();
    let names = girih::backends().iter().map(|info| info.name).filter(|name| *name != "npu");
    for name in names.filter(has_device) {
        for chunk in [7, 64] {
            let load = |given_rows| {
                let backend = backend(name).unwrap();
                let options = RunOptions { backend, chunk, given_rows, ..RunOptions::default() };
                model.plan(options).unwrap().load(|_| {}).unwrap()
            };
            let expected = answer(&mut load(false), &tokens, &[]);
            let mut engine = load(true);
            assert_eq!(answer(&mut engine, &tokens, &[]), expected, "{name}, tokens only");
            for ends in [&[(0, 90)][..], &[(10, 11), (11, 40), (89, 90)], &[(0, 1)]] {
                let ranges: Vec<Range<usize>> = ends.iter().map(|&(start, end)| start..end).collect();
                let given: Vec<EmbeddedRows> =
                    ranges.iter().map(|range| embedded(&table, width, &tokens, range.clone())).collect();
                let mut other = tokens.clone();
                // The tokens under given rows do not matter.
                ranges.iter().for_each(|range| other[range.clone()].fill(1));
                let found = answer(&mut engine, &other, &given);
                assert_eq!(found, expected, "{name}, chunks of {chunk}, rows {ranges:?}");
            }
        }
    }
}

#[test]
fn given_rows_need_programs_that_take_them() {
    let model = Model::open("stories260k").unwrap();
    let mut engine = model.plan(RunOptions::default()).unwrap().load(|_| {}).unwrap();
    let rows = EmbeddedRows { first: 0, rows: 1, values: vec![0.0; 64].into(), ..EmbeddedRows::default() };
    let request = TokenRequest { tokens: vec![1, 2], given: vec![rows], ..TokenRequest::default() };
    let error = engine.submit(request, Hooks::default()).unwrap_err().to_string();
    assert!(error.contains("the loaded programs take tokens only"), "{error}");
    let error = model.plan(RunOptions::default()).unwrap().load_embedder(|_| {}).unwrap_err().to_string();
    assert_eq!(error, "stories260k generates text and defines no embeddings; use an encoder");
}
