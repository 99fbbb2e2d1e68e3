//! Heads that are spread before they are kept in four bits.

use girih_graph::{Graph, Key, Op, OutputKind, Result, Role};
use girih_model::ModelFiles;
use girih_tensor::DType;

use crate::experts::open as open_drawn;
use crate::latent::{config_of, tensors_of};
use crate::light::{all_logits, all_logits_as, committed, open};

/// A graph that spreads heads, whose state holds them as they are.
fn spread(model: &ModelFiles, key: Key) -> Result<Graph> {
    let mut graph = model.graph(key, DType::Q4_0)?;
    let states = graph.values.iter_mut().filter(|value| matches!(value.role, Role::State(_)));
    states.for_each(|value| value.dtype = DType::F32);
    Ok(graph)
}

/// The sizes of the blocks of a graph's spread heads.
fn blocks(model: &ModelFiles, state: DType) -> Vec<u32> {
    let key = Key { rows: 8, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
    let graph = model.graph(key, state).unwrap();
    let sizes = graph.nodes.iter().filter_map(|node| match node.op {
        Op::Hadamard { size } => Some(size),
        _ => None,
    });
    sizes.collect()
}

/// Turning is exact but for its roundings, so the logits are those of heads as they are.
fn same_logits(name: &str, model: &ModelFiles, vocabulary: u32) {
    let tokens: Vec<u32> = (0..70).map(|index| index * 7 % vocabulary).collect();
    let want = all_logits(model, &tokens);
    let got = all_logits_as(model, &tokens, |key| spread(model, key));
    let size = want.iter().fold(0f32, |size, logit| size.max(logit.abs()));
    for (at, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= 1e-4 * size, "{name}: logit {at} is {got}, and {want} as it is");
    }
}

#[test]
fn spread_heads_have_the_logits_of_the_others() {
    for name in ["qwen3", "gemma3_text"] {
        let model = open(&committed(name));
        same_logits(name, &model, 60);
        // Queries, keys, values and results of each layer.
        assert_eq!(blocks(&model, DType::Q4_0), vec![32; 4 * model.facts.layers.len()], "{name}");
        assert_eq!(blocks(&model, DType::Q8_0), [0; 0], "{name}");
    }
}

/// A block lies in the latent's values or behind them: 32 + 64 numbers have blocks of 32.
#[test]
fn spread_latents_have_the_logits_of_the_others() {
    let model = open_drawn("spread", &config_of(32, 64), &tensors_of(32, 64), None).unwrap();
    same_logits("latents", &model, 16);
    assert_eq!(blocks(&model, DType::Q4_0), [32; 3]);
}

#[test]
fn heads_that_are_no_whole_blocks_are_refused() {
    let model = open(&committed("mistral"));
    let key = Key { rows: 8, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
    let error = model.graph(key, DType::Q4_0).unwrap_err().to_string();
    assert!(error.contains("cannot be kept as q4_0, whose blocks hold 32"), "{error}");
}
