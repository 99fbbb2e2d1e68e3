//! A key or value beyond the range of the KV cache's type ends its request with an error, and no other.

use std::fs;
use std::ops::Range;
use std::path::Path;

use girih::{DType, ErrorKind, Event, Model, Reply, Request, Result, RunOptions, Session};
use tempfile::TempDir;

/// The token whose values in the first layer exceed the range of f16.
const LARGE: u32 = 300;

const WIDTH: usize = 64;

/// A copy of a model that is removed with it.
/// A tensor of bf16 in a safetensors file: the place of its bytes.
fn place(file: &[u8], name: &str) -> Range<usize> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header = std::str::from_utf8(&file[8..8 + length]).unwrap();
    let info = &header[header.find(&format!("\"{name}\"")).expect("the tensor is there")..];
    let offsets = info.split_once("\"data_offsets\":[").unwrap().1.split_once(']').unwrap().0;
    let (start, end) = offsets.split_once(',').unwrap();
    8 + length + start.trim().parse::<usize>().unwrap()..8 + length + end.trim().parse::<usize>().unwrap()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    let mut numbers = vec![0.0; bytes.len() / 2];
    DType::BF16.unpack(bytes, &mut numbers);
    numbers
}

/// A model in which the values of one token exceed the range of f16, and no others. Its embedding has a single
/// number, which the norm makes larger than any number of another token, and which is multiplied by large weights.
fn model_with_a_large_value() -> (TempDir, Model) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied");
    let copy = tempfile::tempdir().unwrap();
    fs::copy(fixture.join("config.json"), copy.path().join("config.json")).unwrap();
    let mut file = fs::read(fixture.join("model.safetensors")).unwrap();
    let [table, values] = ["model.embed_tokens.weight", "model.layers.0.self_attn.v_proj.weight"]
        .map(|name| place(&file, name));
    let row = &mut file[table][LARGE as usize * WIDTH * 2..][..WIDTH * 2];
    DType::BF16.pack(&[[1.0].as_slice(), &[0.0; WIDTH - 1]].concat(), row);
    let mut weights = numbers(&file[values.clone()]);
    let column = || weights.iter().step_by(WIDTH);
    // After the norm, the number is √64 = 8; others are below 4.
    let largest = column().fold(0.0f32, |largest, weight| largest.max(weight.abs()));
    let factor = 65520.0 / (largest * 5.6);
    weights.iter_mut().step_by(WIDTH).for_each(|weight| *weight *= factor);
    DType::BF16.pack(&weights, &mut file[values]);
    fs::write(copy.path().join("model.safetensors"), file).unwrap();
    let model = Model::open(copy.path().to_str().unwrap()).unwrap();
    (copy, model)
}

/// The ids of a reply, or how it failed.
fn ids(reply: Reply) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for event in reply {
        if let Event::Token { id, .. } = event? {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn request(tokens: &[u32]) -> Request {
    Request::new(tokens.to_vec()).max_tokens(12).without_text()
}

fn session(model: &Model, kv: Option<DType>) -> Session {
    model.plan(RunOptions { kv, sequences: 2, ..RunOptions::default() }).unwrap().start(|_| {}).unwrap()
}

#[test]
fn a_request_with_a_value_beyond_f16_fails_alone() -> Result<()> {
    let (_copy, model) = model_with_a_large_value();
    let large: Vec<u32> = (10..80).chain([LARGE, 11]).collect();
    let other: Vec<u32> = (100..140).collect();
    let alone = ids(session(&model, None).generate(request(&other))?)?;
    let session = session(&model, None);
    for _ in 0..2 {
        let replies = [&large, &other].map(|tokens| session.generate(request(tokens)));
        let [failed, replied] = replies.map(|reply| reply.and_then(ids));
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfRange);
        let sentence = error.to_string();
        assert!(sentence.starts_with("'layers.0.mixer.values' at position 70 is "), "{sentence}");
        assert!(
            sentence.ends_with("beyond the range of a KV cache in f16: use f32 (--kv f32)"),
            "{sentence}"
        );
        assert_eq!(replied?, alone);
    }
    assert_eq!(ids(session.generate(request(&other))?)?, alone, "the state of others stays valid");
    Ok(())
}

#[test]
fn a_wider_type_holds_the_value_that_f16_cannot() -> Result<()> {
    let (_copy, model) = model_with_a_large_value();
    let large: Vec<u32> = (10..80).chain([LARGE, 11]).collect();
    for kv in [DType::F32, DType::BF16] {
        assert_eq!(ids(session(&model, Some(kv)).generate(request(&large))?)?.len(), 12, "{kv}");
    }
    let error = ids(session(&model, Some(DType::F16)).generate(request(&large))?).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    Ok(())
}
