//! Models with experts: the ways in which files hold them give the same weights, and impossible ones are
//! refused by name.

use std::collections::BTreeMap;

use girih_file::{ContainerWriter, NewTensor};
use girih_graph::WeightSource as _;
use girih_model::arch::{Arch, schema};
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::random::Random;
use girih_tensor::{DType, Shape};
use serde_json::{Value as Json, json};

use crate::folder::empty_folder;

const WIDTH: usize = 32;
const EXPERTS: usize = 3;
const INNER: usize = 5;

/// A tensor: its type, its extents and its bytes.
pub type Tensors = BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>;

fn config() -> Json {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 16, "hidden_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "intermediate_size": 8, "moe_intermediate_size": INNER, "num_experts": EXPERTS,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "tie_word_embeddings": true, "rope_theta": 1e4,
    })
}

pub fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// All tensors of the model but those of experts.
fn others() -> Tensors {
    let at = "model.layers.0";
    drawn(
        4,
        [
            ("model.embed_tokens.weight".to_owned(), vec![16, WIDTH]),
            ("model.norm.weight".to_owned(), vec![WIDTH]),
            (format!("{at}.input_layernorm.weight"), vec![WIDTH]),
            (format!("{at}.post_attention_layernorm.weight"), vec![WIDTH]),
            (format!("{at}.self_attn.q_norm.weight"), vec![16]),
            (format!("{at}.self_attn.k_norm.weight"), vec![16]),
            (format!("{at}.self_attn.q_proj.weight"), vec![32, WIDTH]),
            (format!("{at}.self_attn.k_proj.weight"), vec![16, WIDTH]),
            (format!("{at}.self_attn.v_proj.weight"), vec![16, WIDTH]),
            (format!("{at}.self_attn.o_proj.weight"), vec![WIDTH, 32]),
            (format!("{at}.mlp.gate.weight"), vec![EXPERTS, WIDTH]),
        ],
    )
}

/// Tensors of these names and extents with random numbers.
pub fn drawn<const COUNT: usize>(seed: u64, list: [(String, Vec<usize>); COUNT]) -> Tensors {
    let mut random = Random(seed);
    let tensor = |(name, extents): (String, Vec<usize>)| {
        let numbers = random.numbers(extents.iter().product());
        (name, (DType::F32, extents, floats(&numbers)))
    };
    list.into_iter().map(tensor).collect()
}

/// The matrices of one kind, expert by expert, row by row.
fn matrices(part: &str) -> Vec<f32> {
    Random(part.len() as u64).numbers(EXPERTS * INNER * WIDTH)
}

/// A tensor for each expert.
fn apart() -> Tensors {
    let mut tensors = others();
    for (part, extents) in [("gate", [INNER, WIDTH]), ("up", [INNER, WIDTH]), ("down", [WIDTH, INNER])] {
        for (expert, numbers) in matrices(part).chunks(INNER * WIDTH).enumerate() {
            let name = format!("model.layers.0.mlp.experts.{expert}.{part}_proj.weight");
            tensors.insert(name, (DType::F32, extents.to_vec(), floats(numbers)));
        }
    }
    tensors
}

/// One number for each row and column of gate and up together: `at` places a row of gate (0) or up (1).
fn joined(columns: bool, at: impl Fn(usize, usize) -> usize) -> Vec<f32> {
    let (rows, mut all) = (2 * INNER, vec![0.0; EXPERTS * 2 * INNER * WIDTH]);
    for (part, numbers) in [matrices("gate"), matrices("up")].iter().enumerate() {
        for (index, number) in numbers.iter().enumerate() {
            let (expert, row, column) = (index / (INNER * WIDTH), index / WIDTH % INNER, index % WIDTH);
            let row = at(part, row);
            let place = if columns { column * rows + row } else { row * WIDTH + column };
            all[expert * rows * WIDTH + place] = *number;
        }
    }
    all
}

/// The matrices `down`, column by column.
fn columns_of_down() -> Vec<f32> {
    let down = matrices("down");
    let turned = |index: usize| {
        index / (WIDTH * INNER) * WIDTH * INNER + index % WIDTH * INNER + index / WIDTH % INNER
    };
    (0..EXPERTS * WIDTH * INNER).map(|index| down[turned(index)]).collect()
}

fn stacked(gate_up: (Vec<usize>, Vec<f32>), down: (Vec<usize>, Vec<f32>)) -> Tensors {
    let mut tensors = others();
    for (name, (extents, numbers)) in [("gate_up_proj", gate_up), ("down_proj", down)] {
        tensors.insert(format!("model.layers.0.mlp.experts.{name}"), (DType::F32, extents, floats(&numbers)));
    }
    tensors
}

/// Writes a model and opens it.
pub fn open(test: &str, config: &Json, tensors: &Tensors, arch: Option<Arch>) -> Result<ModelFiles, String> {
    let folder = empty_folder(&format!("experts-{test}"));
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let new = |(name, (dtype, extents, _)): (&String, &(DType, Vec<usize>, Vec<u8>))| NewTensor {
        name: name.clone(),
        dtype: *dtype,
        shape: Shape::new(extents).unwrap(),
    };
    let news: Vec<NewTensor> = tensors.iter().map(new).collect();
    let path = folder.join("model.safetensors");
    let mut writer = ContainerWriter::safetensors(&path, &BTreeMap::new(), &news).unwrap();
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    order.iter().for_each(|name| writer.append(name, &tensors[name].2).unwrap());
    writer.finish().unwrap();
    let archs = arch.into_iter().collect::<Vec<_>>();
    ModelFiles::open(&folder, archs, &ModelLimits::DEFAULT).map_err(|error| error.to_string())
}

/// The architecture with other tensors for the experts.
fn arch(gate: &str, up: &str, down: &str) -> Arch {
    let [gate, up, down] = [("gate", gate), ("up", up), ("down", down)]
        .map(|(part, text)| format!("\"layers.{{i}}.ffn.experts.{part}.weight\" = {{ {text} }}\n"));
    let text = format!(
        "name = \"other\"\nbased_on = \"qwen3_moe\"\n[match]\nhf = [\"Qwen3MoeForCausalLM\"]\n[weights]\n{gate}{up}{down}\
         [harmless]\nmoe = {{ is = \"any\", why = \"a test\" }}\n"
    );
    schema::parse(&text).unwrap()
}

/// Compares the weights of experts with the matrices, whole and from random places on.
fn assert_holds_the_matrices(model: &ModelFiles) {
    let mut random = Random(8);
    for (part, extents) in [
        ("gate", [EXPERTS, INNER, WIDTH]),
        ("up", [EXPERTS, INNER, WIDTH]),
        ("down", [EXPERTS, WIDTH, INNER]),
    ] {
        let name = format!("layers.0.ffn.experts.{part}.weight");
        assert_eq!(model.weights.info(&name), Some((DType::F32, Shape::new(&extents).unwrap())));
        assert_eq!(model.weights.numbers(&name).unwrap(), matrices(part), "{part}");
        let bytes = floats(&matrices(part));
        for _ in 0..50 {
            let start = random.below(bytes.len());
            let mut read = vec![0; random.below(bytes.len() - start) + 1];
            model.weights.read(&name, start as u64, &mut read).unwrap();
            assert_eq!(read, bytes[start..start + read.len()], "{part} from {start}");
        }
        assert!(model.weights.read(&name, bytes.len() as u64, &mut [0]).is_err());
    }
}

#[test]
fn experts_are_read_apart_stacked_interleaved_and_transposed() {
    assert_holds_the_matrices(&open("apart", &config(), &apart(), None).unwrap());
    let (two, down) = (2 * INNER, (vec![EXPERTS, WIDTH, INNER], matrices("down")));
    let gate_up = joined(false, |part, row| part * INNER + row);
    let tensors = stacked((vec![EXPERTS, two, WIDTH], gate_up), down.clone());
    assert_holds_the_matrices(&open("stacked", &config(), &tensors, None).unwrap());
    let gate_up = joined(true, |part, row| 2 * row + part);
    let tensors =
        stacked((vec![EXPERTS, WIDTH, two], gate_up), (vec![EXPERTS, INNER, WIDTH], columns_of_down()));
    let part = |name: &str, of: &str| {
        format!(
            "hf = \"model.layers.{{i}}.mlp.experts.{name}\", hf_part = {{ experts = {of}, interleaved = true, transposed = true }}"
        )
    };
    let arch =
        arch(&part("gate_up_proj", "[0, 2]"), &part("gate_up_proj", "[1, 2]"), &part("down_proj", "[0, 1]"));
    assert_holds_the_matrices(&open("transposed", &config(), &tensors, Some(arch)).unwrap());
}

/// The files of Qwen3-VL's authors have columns; transformers 5 writes rows.
#[test]
fn experts_by_columns_or_by_rows_are_told_by_their_extents() {
    let part = |name: &str, of: &str| {
        format!(
            "hf = \"model.layers.{{i}}.mlp.experts.{name}\", hf_part = {{ experts = {of}, transposed = true, either = true }}, hf_or = []"
        )
    };
    let either = || {
        arch(&part("gate_up_proj", "[0, 2]"), &part("gate_up_proj", "[1, 2]"), &part("down_proj", "[0, 1]"))
    };
    let two = 2 * INNER;
    let gate_up = |columns| joined(columns, |part, row| part * INNER + row);
    let by_rows =
        stacked((vec![EXPERTS, two, WIDTH], gate_up(false)), (vec![EXPERTS, WIDTH, INNER], matrices("down")));
    assert_holds_the_matrices(&open("by-rows", &config(), &by_rows, Some(either())).unwrap());
    let by_columns =
        stacked((vec![EXPERTS, WIDTH, two], gate_up(true)), (vec![EXPERTS, INNER, WIDTH], columns_of_down()));
    assert_holds_the_matrices(&open("by-columns", &config(), &by_columns, Some(either())).unwrap());
    let mut config = config();
    config["moe_intermediate_size"] = json!(WIDTH / 2);
    let numbers = |count: usize| Random(3).numbers(EXPERTS * count);
    let square = stacked(
        (vec![EXPERTS, WIDTH, WIDTH], numbers(WIDTH * WIDTH)),
        (vec![EXPERTS, WIDTH / 2, WIDTH], numbers(WIDTH * WIDTH / 2)),
    );
    let error = open("square", &config, &square, Some(either())).unwrap_err();
    assert!(error.contains("girih cannot tell which"), "{error}");
}

/// Blocks of 32 codes of four bits: in the tensor the even value of a pair is in the lower bits, in girih's
/// the first half of the values is.
#[test]
fn experts_in_mxfp4_keep_their_values() {
    let codes = |row: usize, column: usize| ((row * 7 + column * 3) % 16) as u8;
    let (two, groups) = (2 * INNER, WIDTH / 32);
    let blocks: Vec<u8> = (0..EXPERTS * two)
        .flat_map(|row| (0..WIDTH / 2).map(move |pair| codes(row, 2 * pair) | codes(row, 2 * pair + 1) << 4))
        .collect();
    let scales: Vec<u8> = (0..EXPERTS * two * groups).map(|group| 120 + (group % 9) as u8).collect();
    let mut tensors = apart();
    tensors.retain(|name, _| !name.contains(".up_proj") && !name.contains(".gate_proj"));
    let at = "model.layers.0.mlp.experts.gate_up_proj";
    tensors.insert(format!("{at}_blocks"), (DType::U8, vec![EXPERTS, two, groups, 16], blocks));
    tensors.insert(format!("{at}_scales"), (DType::U8, vec![EXPERTS, two, groups], scales.clone()));
    let part = |of: &str| {
        format!(
            "hf = \"model.layers.{{i}}.mlp.experts.gate_up_proj_blocks\", hf_part = {{ experts = {of}, interleaved = true, mxfp4 = true }}"
        )
    };
    let arch = || arch(&part("[0, 2]"), &part("[1, 2]"), "optional = false");
    let model = open("mxfp4", &config(), &tensors, Some(arch())).unwrap();
    // The numbers of E2M1 (OCP Microscaling Formats specification 1.0).
    let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (part, index) in [("gate", 0), ("up", 1)] {
        let name = format!("layers.0.ffn.experts.{part}.weight");
        assert_eq!(model.weights.info(&name).unwrap().0, DType::MXFP4);
        for (at, found) in model.weights.numbers(&name).unwrap().into_iter().enumerate() {
            let row = 2 * (at / WIDTH) + index;
            let code = codes(row, at % WIDTH);
            let size = numbers[usize::from(code % 8)] * 2f32.powi(i32::from(scales[row]) - 127);
            assert_eq!(found, if code < 8 { size } else { -size }, "{part} {at}");
        }
    }
    tensors.remove(&format!("{at}_scales"));
    let error = open("mxfp4-without-scales", &config(), &tensors, Some(arch())).unwrap_err();
    assert!(
        error
            .contains("has no scales; the tensor 'model.layers.0.mlp.experts.gate_up_proj_scales' is needed"),
        "{error}"
    );
}

#[test]
fn impossible_experts_are_refused_by_name() {
    let with = |changes: &[(&str, Json)]| {
        let mut config = config();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        config
    };
    let mut gap = apart();
    gap.retain(|name, _| !name.contains("experts.1.up_proj"));
    for (index, (config, tensors, words)) in [
        (
            with(&[("num_experts_per_tok", json!(4))]),
            apart(),
            "'num_experts_per_tok' is 4; a number of experts that can be chosen from 3",
        ),
        (with(&[("num_experts_per_tok", json!(0))]), apart(), "'num_experts_per_tok' is 0"),
        (with(&[("num_experts", json!(5000))]), apart(), "'num_experts' is 5000; the cap is 4096 experts"),
        (with(&[("num_experts", json!(4))]), apart(), "has the shape [3, 32]; the model needs [4, 32]"),
        (with(&[("mlp_only_layers", json!([0]))]), apart(), "mlp.gate_proj.weight"),
        (with(&[("mlp_only_layers", json!([1]))]), apart(), "a list of indexes below 1 is needed"),
        (with(&[("decoder_sparse_step", json!(0))]), apart(), "'decoder_sparse_step' is 0"),
        (
            config(),
            gap,
            "does not describe these tensors of the file: 'model.layers.0.mlp.experts.2.up_proj.weight'",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let opened = open(&format!("refused-{index}"), &config, &tensors, None);
        let outcome = opened.and_then(|model| {
            let key = girih_graph::Key {
                rows: 1,
                sequences: 1,
                context: 1,
                output_rows: 1,
                output: girih_graph::OutputKind::Logits,
            };
            model.graph(key, DType::F32).map(drop).map_err(|error| error.to_string())
        });
        let error = outcome.expect_err("it is impossible");
        assert!(error.contains(words), "{error}");
    }
}
