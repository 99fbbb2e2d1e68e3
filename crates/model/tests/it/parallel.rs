//! Learned positions, and mixers and feed-forward parts that read the same rows: a model gives the numbers of a
//! plain computation.

use girih_model::ModelFiles;
use girih_model::arch::{Arch, schema};
use girih_tensor::DType;
use girih_tensor::random::Random;
use serde_json::{Value as Json, json};

use crate::experts::{Tensors, floats, open};
use crate::light::all_logits;

const WIDTH: usize = 8;
const INNER: usize = 12;
const VOCABULARY: usize = 16;
const CONTEXT: usize = 10;

/// Rows of the table of positions before that of position 0.
const SKIPPED: usize = 2;

/// The largest difference from the plain computation: about 40 roundings of 2⁻²⁴ on the way of a value, of which
/// norms keep the size near 1, times at most 10 for what attention and FFN amplify.
const CLOSE: f64 = 40.0 * 10.0 / (1 << 24) as f64;

fn config(parallel: bool) -> Json {
    json!({
        "architectures": ["ParallelForCausalLM"], "model_type": "parallel", "vocab_size": VOCABULARY,
        "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5, "max_position_embeddings": CONTEXT, "intermediate_size": INNER, "parallel": parallel,
        "tie_word_embeddings": true,
    })
}

fn arch(shared_norm: bool) -> Arch {
    let text = format!(
        "name = 'parallel'\nbased_on = 'decoder'\n[match]\nhf = ['ParallelForCausalLM']\n[embed]\npositions = true\n\
         [mixer]\nrope = false\n[ffn]\nkind = 'plain'\nact = {{ default = 'relu' }}\n[residual]\nparallel.hf = 'parallel'\n\
         shared_norm = {shared_norm}\n[weights]\n'layers.{{i}}.ffn.gate.weight' = false\n\
         'layers.{{i}}.norms.before_ffn'.optional = true\n\
         'embed.positions' = {{ hf = 'positions', hf_part = {{ from_row = {SKIPPED} }} }}\n"
    );
    schema::parse(&text).unwrap()
}

fn tensors(has_second_norm: bool) -> Tensors {
    let mut random = Random(11);
    let at = "model.layers.0";
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("positions".to_owned(), vec![SKIPPED + CONTEXT, WIDTH]),
        ("model.norm.weight".to_owned(), vec![WIDTH]),
        (format!("{at}.input_layernorm.weight"), vec![WIDTH]),
        (format!("{at}.self_attn.q_proj.weight"), vec![WIDTH, WIDTH]),
        (format!("{at}.self_attn.k_proj.weight"), vec![WIDTH, WIDTH]),
        (format!("{at}.self_attn.v_proj.weight"), vec![WIDTH, WIDTH]),
        (format!("{at}.self_attn.o_proj.weight"), vec![WIDTH, WIDTH]),
        (format!("{at}.mlp.up_proj.weight"), vec![INNER, WIDTH]),
        (format!("{at}.mlp.down_proj.weight"), vec![WIDTH, INNER]),
    ];
    if has_second_norm {
        shapes.push((format!("{at}.post_attention_layernorm.weight"), vec![WIDTH]));
    }
    let tensor = |(name, extents): (String, Vec<usize>)| {
        let numbers = random.numbers(extents.iter().product());
        let numbers: Vec<f32> =
            numbers.into_iter().map(|x| 0.6 * x + f32::from(extents.len() == 1)).collect();
        (name, (DType::F32, extents, floats(&numbers)))
    };
    shapes.into_iter().map(tensor).collect()
}

/// The model's logits in double precision, without facts or graphs.
fn plain(model: &ModelFiles, tokens: &[u32], parallel: bool, norms: [&str; 2]) -> Vec<f64> {
    let weight = |name: &str| -> Vec<f64> {
        model.weights.numbers(name).unwrap().into_iter().map(f64::from).collect()
    };
    let linear = |name: &str, x: &[f64]| -> Vec<f64> {
        weight(name).chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    };
    let norm = |name: &str, x: &[f64]| -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        weight(name).iter().zip(x).map(|(w, x)| w * x / (mean + 1e-5).sqrt()).collect()
    };
    let add = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    let (table, positions) = (weight("embed.table"), weight("embed.positions"));
    let row = |table: &[f64], index: usize| table[index * WIDTH..][..WIDTH].to_vec();
    let embedded = tokens.iter().enumerate();
    let rows: Vec<Vec<f64>> =
        embedded.map(|(at, token)| add(&row(&table, *token as usize), &row(&positions, at))).collect();
    let read: Vec<Vec<f64>> = rows.iter().map(|x| norm(norms[0], x)).collect();
    let of = |part: &str| -> Vec<Vec<f64>> {
        read.iter().map(|x| linear(&format!("layers.0.mixer.{part}.weight"), x)).collect()
    };
    let (queries, keys, values) = (of("q"), of("k"), of("v"));
    let mut logits = Vec::new();
    for (at, x) in rows.iter().enumerate() {
        let score = |key: &Vec<f64>| -> f64 {
            let dot: f64 = queries[at].iter().zip(key).map(|(q, k)| q * k).sum();
            (dot / (WIDTH as f64).sqrt()).exp()
        };
        let scores: Vec<f64> = keys[..=at].iter().map(score).collect();
        let total: f64 = scores.iter().sum();
        let mixed: Vec<f64> =
            (0..WIDTH).map(|i| scores.iter().zip(&values).map(|(s, v)| s / total * v[i]).sum()).collect();
        let mixed = add(x, &linear("layers.0.mixer.o.weight", &mixed));
        let read = norm(norms[1], if parallel { x } else { &mixed });
        let inner: Vec<f64> =
            linear("layers.0.ffn.up.weight", &read).into_iter().map(|x| x.max(0.0)).collect();
        let out = add(&mixed, &linear("layers.0.ffn.down.weight", &inner));
        logits.extend(linear("embed.table", &norm("head.norm.weight", &out)));
    }
    logits
}

#[test]
fn parallel_parts_and_learned_positions_give_the_numbers_of_a_plain_computation() {
    let tokens = [3, 14, 14, 0, 7, 9, 1];
    let (first, second) = ("layers.0.norms.before_mixer", "layers.0.norms.before_ffn");
    let mut all = Vec::new();
    for (how, parallel, shared_norm) in
        [("after", false, false), ("beside", true, false), ("shared", true, true), ("unshared", false, true)]
    {
        let shares = parallel && shared_norm;
        let arch = arch(shared_norm);
        let model =
            open(&format!("parallel-{how}"), &config(parallel), &tensors(!shares), Some(arch)).unwrap();
        let norms = [first, if shares { first } else { second }];
        let want = plain(&model, &tokens, parallel, norms);
        let got = all_logits(&model, &tokens);
        let largest = want.iter().fold(1.0, |largest: f64, want| largest.max(want.abs()));
        let worst =
            got.iter().zip(&want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max);
        assert!(worst < CLOSE * largest, "{how}: logits differ by {worst}; the largest is {largest}");
        all.push(want);
    }
    // The forms differ, so that a test of one cannot pass for another; without parallel parts, no norm is shared.
    assert_eq!(all[0], all[3]);
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let differs = all[a].iter().zip(&all[b]).any(|(a, b)| (a - b).abs() > 0.01);
        assert!(differs, "forms {a} and {b} give the same");
    }
}

#[test]
fn a_table_of_other_positions_or_a_norm_too_many_is_refused() {
    let mut few = tensors(true);
    let table = few.get_mut("positions").unwrap();
    table.1[0] -= 1;
    table.2.truncate((SKIPPED + CONTEXT - 1) * WIDTH * 4);
    let mut none = tensors(true);
    let table = none.get_mut("positions").unwrap();
    table.1[0] = SKIPPED;
    table.2.truncate(SKIPPED * WIDTH * 4);
    for (how, tensors, shared_norm, words) in [
        ("few", few, false, "is 10, but the table of positions has 9 rows"),
        ("none", none, false, "of which 2 rows are left out"),
        (
            "norm",
            tensors(true),
            true,
            "'layers.0.norms.before_ffn', but its parameters say that the layer lacks",
        ),
    ] {
        let opened = open(&format!("parallel-{how}"), &config(true), &tensors, Some(arch(shared_norm)));
        let error = opened.unwrap_err();
        assert!(error.contains(words), "{how}: {error}");
    }
}
