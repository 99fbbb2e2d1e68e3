//! Tensors that hold several weights, or a weight in another order, give the weights that a model with a tensor
//! for each has.

use girih_graph::WeightSource as _;
use girih_model::ModelFiles;
use girih_model::arch::{Arch, schema};
use girih_tensor::DType;
use girih_tensor::random::Random;
use serde_json::{Value as Json, json};

use crate::experts::{Tensors, floats, open};

const WIDTH: usize = 12;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD: usize = 4;

/// The names of the three projections, with the rows of each.
const PARTS: [(&str, usize); 3] = [("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)];

fn config() -> Json {
    json!({
        "architectures": ["FusedForCausalLM"], "model_type": "fused", "vocab_size": 16, "hidden_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "intermediate_size": 8, "tie_word_embeddings": true,
        "rope_theta": 1e4,
    })
}

/// Llama with these descriptions of queries, keys and values.
fn arch(weights: &str) -> Arch {
    let text = format!(
        "name = 'fused'\nbased_on = 'llama'\n[match]\nhf = ['FusedForCausalLM']\n[biases]\nattention_bias = false\n\
         [weights]\n{weights}"
    );
    schema::parse(&text).unwrap()
}

/// A description of weights and biases in one tensor of each.
fn described(part: &str, relayout: &str) -> String {
    let line = |(name, _): &(&str, usize)| {
        let of = format!("{{ {part} = '{name}' }}");
        let at = format!("layers.{{i}}.mixer.{name}");
        format!(
            "'{at}.weight' = {{ hf = 'qkv.{{i}}.weight', hf_part = {of}{relayout} }}\n'{at}.bias' = {{ hf = 'qkv.{{i}}.bias', \
             hf_part = {of} }}\n"
        )
    };
    PARTS.iter().map(line).collect()
}

/// The rows of a projection, and its bias.
fn projection(part: usize) -> (Vec<f32>, Vec<f32>) {
    let (_, rows) = PARTS[part];
    let mut random = Random(part as u64 + 1);
    (random.numbers(rows * WIDTH), random.numbers(rows))
}

/// All tensors but those of queries, keys and values.
fn others() -> Tensors {
    let mut random = Random(9);
    let at = "model.layers.0";
    let shapes = [
        ("model.embed_tokens.weight".to_owned(), vec![16, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
        (format!("{at}.input_layernorm.weight"), vec![WIDTH]),
        (format!("{at}.post_attention_layernorm.weight"), vec![WIDTH]),
        (format!("{at}.self_attn.o_proj.weight"), vec![WIDTH, HEADS * HEAD]),
        (format!("{at}.mlp.gate_proj.weight"), vec![8, WIDTH]),
        (format!("{at}.mlp.up_proj.weight"), vec![8, WIDTH]),
        (format!("{at}.mlp.down_proj.weight"), vec![WIDTH, 8]),
    ];
    let tensor = |(name, extents): (String, Vec<usize>)| {
        let numbers = random.numbers(extents.iter().product());
        (name, (DType::F32, extents, floats(&numbers)))
    };
    shapes.into_iter().map(tensor).collect()
}

/// The rows of all three projections in one matrix of `columns` values each: `groups` times those of queries,
/// keys and values.
fn joined(groups: usize, columns: usize, of: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    let parts: Vec<Vec<f32>> = (0..3).map(of).collect();
    let mut all = Vec::new();
    for group in 0..groups {
        for (numbers, (_, rows)) in parts.iter().zip(PARTS) {
            let size = rows / groups * columns;
            all.extend(&numbers[group * size..][..size]);
        }
    }
    all
}

/// A model whose fused matrix has these numbers, as columns if `is_turned`.
fn fused(groups: usize, is_turned: bool) -> Tensors {
    let mut tensors = others();
    let rows: usize = PARTS.iter().map(|(_, rows)| rows).sum();
    let matrix = joined(groups, WIDTH, |part| projection(part).0);
    let (extents, matrix) = match is_turned {
        false => (vec![rows, WIDTH], matrix),
        true => (
            vec![WIDTH, rows],
            (0..rows * WIDTH).map(|index| matrix[index % rows * WIDTH + index / rows]).collect(),
        ),
    };
    tensors.insert("qkv.0.weight".to_owned(), (DType::F32, extents, floats(&matrix)));
    let bias = joined(groups, 1, |part| projection(part).1);
    tensors.insert("qkv.0.bias".to_owned(), (DType::F32, vec![rows], floats(&bias)));
    tensors
}

/// Compares the weights of the three projections with their numbers, whole and from random places on.
fn assert_holds_the_projections(model: &ModelFiles, how: &str) {
    let mut random = Random(3);
    for (part, (name, _)) in PARTS.iter().enumerate() {
        let (matrix, bias) = projection(part);
        let name = format!("layers.0.mixer.{name}");
        assert_eq!(model.weights.numbers(&format!("{name}.bias")).unwrap(), bias, "{how}, {name}");
        let name = format!("{name}.weight");
        assert_eq!(model.weights.numbers(&name).unwrap(), matrix, "{how}, {name}");
        let bytes = floats(&matrix);
        for _ in 0..50 {
            let start = random.below(bytes.len());
            let mut read = vec![0; random.below(bytes.len() - start) + 1];
            model.weights.read(&name, start as u64, &mut read).unwrap();
            assert_eq!(read, bytes[start..start + read.len()], "{how}, {name} from {start}");
        }
        assert!(model.weights.read(&name, bytes.len() as u64, &mut [0]).is_err(), "{how}, {name}");
    }
}

#[test]
fn queries_keys_and_values_may_be_one_tensor() {
    for (how, part, relayout, groups, is_turned) in [
        ("flat", "flat", "", 1, false),
        ("grouped", "grouped", "", KV_HEADS, false),
        ("conv1d", "flat", ", hf_as = 'conv1d'", 1, true),
    ] {
        let arch = arch(&described(part, relayout));
        let model = open(&format!("fused-{how}"), &config(), &fused(groups, is_turned), Some(arch)).unwrap();
        assert_holds_the_projections(&model, how);
    }
}

#[test]
fn a_fused_tensor_of_other_heads_is_refused() {
    let mut other = config();
    other["num_key_value_heads"] = json!(3);
    for (how, config, part, relayout, is_turned, words) in [
        (
            "heads",
            other,
            "flat",
            "",
            false,
            "tensor 'qkv.0.bias' has 40 rows; 6 query heads and twice 3 KV heads of 4 need 48",
        ),
        (
            "turned",
            config(),
            "grouped",
            ", hf_as = 'conv1d'",
            true,
            "tensor 'qkv.0.weight' cannot be split by heads",
        ),
        ("order", config(), "grouped", ", hf_as = 'unpermute_heads'", false, "cannot be rearranged, too"),
    ] {
        let arch = arch(&described(part, relayout));
        let opened = open(&format!("fused-refused-{how}"), &config, &fused(1, is_turned), Some(arch));
        let error = opened.unwrap_err();
        assert!(error.contains(words), "{how}: {error}");
    }
}

/// One matrix as its transpose, in the formats whose values may change their places.
#[test]
fn a_transposed_matrix_keeps_its_format() {
    let weights = "'layers.{i}.mixer.o.weight'.hf_as = 'conv1d'\n".to_owned() + &described("flat", "");
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let (rows, columns) = (WIDTH, HEADS * HEAD);
        let numbers = Random(5).numbers(rows * columns);
        let turned: Vec<f32> =
            (0..rows * columns).map(|index| numbers[index % rows * columns + index / rows]).collect();
        let mut tensors = fused(1, false);
        let bytes = dtype.pack_matrix(columns, rows, &turned).unwrap();
        let name = "model.layers.0.self_attn.o_proj.weight";
        tensors.insert(name.to_owned(), (dtype, vec![columns, rows], bytes));
        let model = open(&format!("turned-{dtype}"), &config(), &tensors, Some(arch(&weights))).unwrap();
        let want = dtype.pack_matrix(rows, columns, &numbers).unwrap();
        let mut read = vec![0; want.len()];
        model.weights.read("layers.0.mixer.o.weight", 0, &mut read).unwrap();
        assert_eq!(read, want, "{dtype}");
    }
    let mut tensors = fused(1, false);
    let name = "model.layers.0.self_attn.o_proj.weight";
    tensors.get_mut(name).unwrap().1 = vec![1, WIDTH, HEADS * HEAD];
    let error = open("turned-stack", &config(), &tensors, Some(arch(&weights))).unwrap_err();
    assert!(error.contains("cannot be rearranged to girih's layout"), "{error}");
}
