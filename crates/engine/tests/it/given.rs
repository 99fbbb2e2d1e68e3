//! Given rows and mutual spans: what shares state, and how prompts are cut into steps.

use std::sync::Arc;

use girih_engine::scheduler::{SequenceProgress, StepBudget, schedule};
use girih_engine::{EmbeddedRows, EngineLimits, ErrorKind, Hooks, Overflow, TokenRequest};
use girih_graph::backend::Range32;
use girih_tensor::Random;

use crate::oracle::{self, CONTEXT, GIVEN_WIDTH, batched, engine, prompt, reply, request};

/// Rows whose values and content follow from `seed`.
fn rows(first: u32, rows: u32, seed: u64) -> EmbeddedRows {
    let mut random = Random(seed);
    let values: Vec<f32> = (0..rows as usize * GIVEN_WIDTH).map(|_| random.number()).collect();
    let mut content = [0; 32];
    content[..8].copy_from_slice(&seed.to_le_bytes());
    EmbeddedRows { first, rows, values: values.into(), content, ..EmbeddedRows::default() }
}

/// A prompt of 150 tokens with 40 given rows from position 20 on.
fn with_rows(seed: u64) -> TokenRequest {
    TokenRequest { given: vec![rows(20, 40, seed)], ..request(&prompt(1, 150), 20) }
}

fn span(start: u32, end: u32) -> Range32 {
    Range32 { start, end }
}

#[test]
fn equal_ids_with_different_content_share_no_block() {
    let (mut engine, watched) = engine(64);
    let first = reply(&mut engine, with_rows(1));
    assert_eq!(first.stats.unwrap().cached, 0);
    assert_eq!(reply(&mut engine, with_rows(1)).stats.unwrap().cached, 149, "the same content");
    watched.rows.set(0);
    let second = reply(&mut engine, with_rows(2));
    assert_eq!(second.stats.unwrap().cached, 20, "the tokens before the content");
    assert_ne!(first.ids, second.ids);
    let plain = reply(&mut engine, request(&prompt(1, 150), 20));
    assert_eq!(plain.stats.unwrap().cached, 20);
    assert_eq!(plain.ids, oracle::greedy(&prompt(1, 150), 20));
    for (seed, ids) in [(1, &first.ids), (2, &second.ids)] {
        assert_eq!(reply(&mut oracle::engine(CONTEXT).0, with_rows(seed)).ids, *ids, "content {seed}");
    }
}

#[test]
fn a_row_at_another_place_of_the_same_content_shares_nothing() {
    let (mut engine, _) = engine(64);
    let shifted = |skip: usize| {
        let EmbeddedRows { values, content, .. } = rows(20, 41, 3);
        let values: Arc<[f32]> = values[skip * GIVEN_WIDTH..(skip + 40) * GIVEN_WIDTH].into();
        let content = if skip == 0 { content } else { [9; 32] };
        TokenRequest {
            given: vec![EmbeddedRows { first: 20, rows: 40, values, content, ..EmbeddedRows::default() }],
            ..request(&prompt(1, 100), 5)
        }
    };
    reply(&mut engine, shifted(0));
    assert_eq!(reply(&mut engine, shifted(1)).stats.unwrap().cached, 20);
}

#[test]
fn no_chunk_size_cuts_a_span() {
    let spans = vec![span(3, 10), span(10, 30), span(70, 71), span(90, 120)];
    let ask = || TokenRequest { spans: spans.clone(), ..with_rows(4) };
    let whole = reply(&mut engine(CONTEXT).0, ask()).ids;
    assert_ne!(whole, reply(&mut engine(CONTEXT).0, with_rows(4)).ids, "the spans change the reply");
    for chunk in [30, 31, 33, 47, 64, 65, 150] {
        let (mut engine, watched) = engine(chunk);
        assert_eq!(reply(&mut engine, ask()).ids, whole, "chunks of {chunk}");
        assert!(watched.largest.get() <= chunk as usize);
        assert_eq!(reply(&mut engine, ask()).ids, whole, "chunks of {chunk}, cached");
    }
    let error = engine(29).0.submit(ask(), Hooks::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("has 30 positions, which must be run in one step; the limit is 29"));
}

#[test]
fn a_span_is_shared_whole_or_not_at_all() {
    let (mut engine, _) = engine(64);
    let ask = |tokens: &[u32], spans| TokenRequest { spans, ..request(tokens, 3) };
    let tokens = prompt(7, 100);
    let alone = |tokens: &[u32], spans| reply(&mut oracle::engine(64).0, ask(tokens, spans)).ids;
    reply(&mut engine, ask(&tokens, vec![span(40, 80)]));
    // The last token is never shared, and here it lies in the span.
    let ends = reply(&mut engine, ask(&tokens[..80], vec![span(40, 80)]));
    assert_eq!(ends.stats.unwrap().cached, 40);
    assert_eq!(ends.ids, alone(&tokens[..80], vec![span(40, 80)]));
    // Equal tokens up to the middle of the span.
    let mut other = tokens.clone();
    other[60] = (other[60] + 1) % oracle::VOCABULARY as u32;
    let differs = reply(&mut engine, ask(&other, vec![span(40, 80)]));
    assert_eq!(differs.stats.unwrap().cached, 40);
    assert_eq!(differs.ids, alone(&other, vec![span(40, 80)]));
    // Equal tokens, another span.
    let longer = reply(&mut engine, ask(&tokens, vec![span(40, 81)]));
    assert_eq!(longer.stats.unwrap().cached, 40);
    assert_eq!(longer.ids, alone(&tokens, vec![span(40, 81)]));
    assert_eq!(reply(&mut engine, ask(&tokens, vec![])).ids, oracle::greedy(&tokens, 3));
}

#[test]
fn spans_of_several_requests_run_beside_decode() {
    let ask = |seed: u64| TokenRequest { spans: vec![span(5, 61)], ..request(&prompt(seed, 90), 12) };
    let alone: Vec<_> = (0..3).map(|seed| reply(&mut engine(64).0, ask(seed)).ids).collect();
    let (mut engine, _) = batched(3, 58);
    let ids: Vec<_> = (0..3).map(|seed| engine.submit(ask(seed), Hooks::default()).unwrap()).collect();
    let mut replies: Vec<_> = (0..3).map(|_| oracle::Reply::default()).collect();
    while !engine.is_idle() {
        for event in engine.step() {
            let index = ids.iter().position(|id| *id == event.request).unwrap();
            replies[index].take(event.clone());
        }
    }
    assert_eq!(replies.iter().map(|reply| reply.ids.clone()).collect::<Vec<_>>(), alone);
    let limits = EngineLimits { sequences: 3, ..EngineLimits::new(CONTEXT, 57) };
    let error = ask(0).check(&limits, oracle::VOCABULARY).unwrap_err();
    assert!(error.to_string().contains("the limit is 55"), "{error}");
}

/// Every part of a random schedule holds its spans whole, and every sequence ends.
#[test]
fn random_schedules_keep_spans_whole() {
    let mut random = Random(11);
    for round in 0..300 {
        let rows = 8 + random.below(40) as u32;
        let count = 1 + random.below(4) as u32;
        let max_span = rows - (count - 1);
        let mut sequences: Vec<(u32, u32, Vec<Range32>)> = Vec::new();
        for _ in 0..count {
            let known = 1 + random.below(120) as u32;
            let (mut spans, mut at) = (Vec::new(), random.below(20) as u32);
            while at < known {
                let end = (at + 1 + random.below(max_span as usize) as u32).min(known);
                spans.push(span(at, end));
                at = end + random.below(12) as u32;
            }
            sequences.push((0, known, spans));
        }
        for step in 0.. {
            assert!(step < 2000, "round {round} does not end");
            let open: Vec<usize> =
                (0..sequences.len()).filter(|i| sequences[*i].0 < sequences[*i].1).collect();
            if open.is_empty() {
                break;
            }
            let progress: Vec<_> = open
                .iter()
                .map(|i| SequenceProgress {
                    run: sequences[*i].0,
                    known: sequences[*i].1,
                    first_output: sequences[*i].1 - 1,
                    spans: &sequences[*i].2,
                })
                .collect();
            let output_rows = progress.len() as u32;
            let parts = schedule(&progress, StepBudget { rows, output_rows, prompts: None });
            assert!(!parts.is_empty() && parts.iter().map(|part| part.count()).sum::<u32>() <= rows);
            for part in parts {
                let (run, _, spans) = &mut sequences[open[part.sequence]];
                let cut = spans.iter().find(|s| s.start < part.positions.end && part.positions.end < s.end);
                assert_eq!((part.positions.start, cut), (*run, None), "round {round}");
                *run = part.positions.end;
            }
        }
    }
}

#[test]
fn wrong_rows_and_spans_are_refused() {
    let (mut engine, _) = engine(64);
    let mut refused = |request: TokenRequest, part: &str| {
        let error = engine.submit(request, Hooks::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.to_string().contains(part), "{error}");
    };
    let given = |given| TokenRequest { given, ..request(&prompt(1, 100), 5) };
    let spans = |spans| TokenRequest { spans, ..request(&prompt(1, 100), 5) };
    refused(given(vec![rows(90, 11, 1)]), "the given rows at 90..101 is empty, overlaps");
    refused(given(vec![rows(10, 5, 1), rows(14, 2, 2)]), "the given rows at 14..16");
    refused(given(vec![EmbeddedRows { rows: 0, ..rows(10, 5, 1) }]), "the given rows at 10..10");
    refused(given(vec![EmbeddedRows { rows: 3, ..rows(10, 5, 1) }]), "10 values were given for 3 rows");
    refused(given(vec![EmbeddedRows { rows: 10, ..rows(10, 5, 1) }]), "a row has 2");
    let group = |first, columns, time| EmbeddedRows { columns, time, ..rows(first, 4, 1) };
    let pair =
        |first, columns, time| given(vec![group(10, Some(2), None), group(first, columns, Some(time))]);
    refused(pair(15, Some(2), 1), "the frames at position 15 do not follow earlier ones of the same size");
    refused(pair(14, Some(4), 1), "the frames at position 14 do not follow");
    refused(pair(14, None, 1), "the frames at position 14 do not follow");
    refused(pair(14, Some(2), 1 << 21), "2097152 positions behind the first ones; the maximum is 1048576");
    refused(given(vec![group(10, Some(2), Some(1))]), "the frames at position 10 do not follow");
    refused(spans(vec![span(5, 5)]), "the mutual span at 5..5");
    refused(spans(vec![span(5, 9), span(8, 12)]), "the mutual span at 8..12");
    refused(
        TokenRequest { overflow: Overflow::Truncate, ..spans(vec![span(5, 9)]) },
        "cannot be truncated; choose the overflow 'error'",
    );
}
