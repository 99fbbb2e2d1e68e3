//! Weights that are assembled of several tensors, or of a part of each row of one.

use std::path::PathBuf;

use girih_file::{ContainerWriter, NewTensor};
use girih_graph::WeightSource;
use girih_model::arch::{Arch, schema};
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::random::Random;
use girih_tensor::{DType, Result, Shape};

use super::{SMALL, committed, open, options, write};
use crate::folder::empty_folder;

/// A tensor and its bytes.
type Tensor = (NewTensor, Vec<u8>);

/// Llama with these further weights, or these instead of its own.
fn llama_with(weights: &str) -> Arch {
    let matches = "match = { hf = ['LlamaForCausalLM'], gguf = ['llama'] }";
    schema::parse(&format!("name = 'assembled'\nbased_on = 'llama'\n{matches}\n[weights]\n{weights}"))
        .unwrap()
}

/// A copy of the small model's folder with other tensors.
fn changed(label: &str, change: impl FnOnce(&mut Vec<Tensor>)) -> PathBuf {
    let folder = empty_folder(label);
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(committed(SMALL).join(name), folder.join(name)).unwrap();
    }
    let model = open(&committed(SMALL));
    let container = model.weights.container();
    let read = |(name, info): (&String, &girih_file::TensorInfo)| {
        let mut bytes = vec![0; info.bytes as usize];
        container.read(info, 0, &mut bytes).unwrap();
        (NewTensor { name: name.clone(), dtype: info.dtype, shape: info.shape }, bytes)
    };
    let mut tensors: Vec<Tensor> = container.tensors().iter().map(read).collect();
    change(&mut tensors);
    let news: Vec<NewTensor> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    let path = folder.join("model.safetensors");
    let mut writer = ContainerWriter::safetensors(&path, &Default::default(), &news).unwrap();
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let (_, bytes) = tensors.iter().find(|(tensor, _)| tensor.name == name).unwrap();
        writer.append(&name, bytes).unwrap();
    }
    writer.finish().unwrap();
    folder
}

fn opened(path: &std::path::Path, arch: Arch) -> Result<ModelFiles> {
    ModelFiles::open(path, vec![arch], &ModelLimits::DEFAULT)
}

/// A matrix of an expert, drawn from a seed.
fn expert(layer: usize, expert: usize, dtype: DType, columns: usize) -> Tensor {
    let numbers = Random((100 * layer + expert) as u64).numbers(6 * columns);
    let name = format!("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
    let bytes = match dtype {
        DType::U8 => vec![1; 6 * columns],
        _ => dtype.pack_matrix(6, columns, &numbers).unwrap(),
    };
    (NewTensor { name, dtype, shape: Shape::matrix(6, columns) }, bytes)
}

const EXPERTS: &str = "\"layers.{i}.ffn.experts.up.weight\" = { hf = \"model.layers.{i}.mlp.experts.{e}.up_proj.weight\", gguf = \"blk.{i}.ffn_up_exps.weight\" }";

/// All experts of all layers, but for those that `is_there` excludes.
fn experts(tensors: &mut Vec<Tensor>, dtype: DType, is_there: impl Fn(usize) -> bool) {
    let all = (0..3).flat_map(|layer| (0..4).map(move |expert| (layer, expert)));
    tensors.extend(all.filter(|(_, expert)| is_there(*expert)).map(|(layer, e)| expert(layer, e, dtype, 32)));
}

#[test]
fn experts_are_stacked_and_survive_a_conversion() {
    for dtype in [DType::F32, DType::BF16] {
        let folder = changed(&format!("stacked-{dtype}"), |tensors| experts(tensors, dtype, |_| true));
        let model = opened(&folder, llama_with(EXPERTS)).unwrap();
        let out = folder.join("out.gguf");
        write(&model, &out, &options(dtype.name())).unwrap();
        let copy = opened(&out, llama_with(EXPERTS)).unwrap();
        for layer in 0..3 {
            let name = format!("layers.{layer}.ffn.experts.up.weight");
            let bytes: Vec<u8> = (0..4).flat_map(|e| expert(layer, e, dtype, 32).1).collect();
            for model in [&model, &copy] {
                let (found, shape) = model.weights.info(&name).unwrap();
                assert_eq!((found, shape.extents()), (dtype, &[4, 6, 32][..]));
                let mut read = vec![0; bytes.len()];
                model.weights.read(&name, 0, &mut read).unwrap();
                assert!(read == bytes, "{name}");
                // Pieces begin and end within rows, and cross the border of two experts.
                for (start, end) in [(5, 9), (100, 500), (bytes.len() / 4 - 3, bytes.len() / 2 + 3)] {
                    let mut piece = vec![0; end - start];
                    model.weights.read(&name, start as u64, &mut piece).unwrap();
                    assert!(piece == bytes[start..end], "{name} from {start} to {end}");
                }
                assert!(model.weights.read(&name, 1, &mut read).is_err(), "a byte past the end");
            }
        }
    }
}

#[test]
fn a_stack_that_is_not_whole_is_refused() {
    let error = |label: &str, change: &dyn Fn(&mut Vec<Tensor>)| {
        opened(&changed(label, change), llama_with(EXPERTS)).unwrap_err().to_string()
    };
    let gap = error("stack-gap", &|tensors| experts(tensors, DType::F32, |expert| expert != 2));
    assert!(gap.contains("does not describe these tensors") && gap.contains("experts.3.up_proj"), "{gap}");
    let none = error("stack-none", &|_| {});
    assert!(none.contains("needs tensors that the file lacks") && none.contains("experts.{e}"), "{none}");
    let other = error("stack-other", &|tensors| {
        experts(tensors, DType::F32, |expert| expert != 1);
        tensors.extend((0..3).map(|layer| expert(layer, 1, DType::F32, 16)));
    });
    assert!(other.contains("[6, 32]") && other.contains("[6, 16]; a stack needs equal ones"), "{other}");
    let codes = error("stack-codes", &|tensors| experts(tensors, DType::U8, |_| true));
    assert!(codes.contains("u8 without scales"), "{codes}");
}

#[test]
fn a_weight_may_be_a_part_of_the_columns() {
    // The output projections of all layers between those of another model.
    let widen = |tensors: &mut Vec<Tensor>| {
        for (tensor, bytes) in tensors.iter_mut().filter(|(tensor, _)| tensor.name.contains("o_proj")) {
            let (rows, columns) = (tensor.shape.rows(), tensor.shape.columns());
            let row = bytes.len() / rows;
            *bytes = bytes
                .chunks(row)
                .flat_map(|row| [vec![1; row.len()], row.to_vec(), vec![2; row.len()]].concat())
                .collect();
            tensor.shape = Shape::matrix(rows, 3 * columns);
        }
    };
    let part = |part: &str| {
        llama_with(&format!("\"layers.{{i}}.mixer.o.weight\" = {{ hf_part = {{ columns = {part} }} }}"))
    };
    let folder = changed("columns", widen);
    let (model, plain) = (opened(&folder, part("[1, 3]")).unwrap(), open(&committed(SMALL)));
    for name in plain.weights.names() {
        assert_eq!(model.weights.info(name), plain.weights.info(name), "{name}");
        assert!(model.weights.numbers(name).unwrap() == plain.weights.numbers(name).unwrap(), "{name}");
    }
    let whole = plain.weights.numbers("layers.1.mixer.o.weight").unwrap();
    let mut piece = vec![0; 300];
    model.weights.read("layers.1.mixer.o.weight", 90, &mut piece).unwrap();
    let values =
        piece.chunks(2).map(|two| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16));
    assert!(values.eq(whole[45..195].iter().copied()));
    for wrong in ["[3, 3]", "[0, 7]", "[0, 0]"] {
        let error = opened(&folder, part(wrong)).unwrap_err().to_string();
        assert!(error.contains("equal parts cannot be read"), "{wrong}: {error}");
    }
    let add_one =
        llama_with("\"layers.{i}.mixer.o.weight\" = { hf_part = { columns = [1, 3] }, hf_as = 'add_one' }");
    let error = opened(&folder, add_one).unwrap_err().to_string();
    assert!(error.contains("which cannot be rearranged, too"), "{error}");
}

#[test]
fn assembled_weights_are_refused_where_the_tensors_keep_their_names() {
    let folder = changed("stacked-q4nx", |tensors| experts(tensors, DType::F32, |_| true));
    let model = opened(&folder, llama_with(EXPERTS)).unwrap();
    let error = write(&model, &folder.join("out"), &options("q4nx")).unwrap_err().to_string();
    assert!(error.contains("'layers.0.ffn.experts.up.weight' is assembled of several tensors"), "{error}");
}
