//! Projector files that lie are refused, each with its sentence in `tests/bad/projectors/sentences.tsv`; `UPDATE=1` writes
//! the table anew.

use std::path::Path;

use girih_file::{Container, ContainerWriter, Metadata, MetadataArray, MetadataValue, NewTensor};
use girih_model::{ModelLimits, TowerPart};
use girih_tensor::{DType, Result, Shape};

use crate::folder::empty_folder;
use crate::light::{committed, open};

/// A change of a projector file.
enum Lie {
    /// The value of a key.
    Key(&'static str, MetadataValue),
    /// A key is missing.
    NoKey(&'static str),
    /// The format and the shape of a tensor, whose values are zeros.
    Tensor(&'static str, DType, &'static [usize]),
    /// A tensor is missing.
    NoTensor(&'static str),
}

use Lie::{Key, NoKey, NoTensor, Tensor};

fn number(key: &'static str, value: u32) -> Lie {
    Key(key, MetadataValue::U32(value))
}

fn text(key: &'static str, value: &str) -> Lie {
    Key(key, MetadataValue::String(value.to_owned()))
}

fn flag(key: &'static str) -> Lie {
    Key(key, MetadataValue::Bool(true))
}

/// Another mean or deviation than those of the towers.
fn half() -> MetadataValue {
    MetadataValue::Array(MetadataArray::F32(vec![0.5; 3]))
}

/// The lies about the projector file of a Qwen2-VL.
fn of_qwen2() -> Vec<Lie> {
    vec![
        text("general.architecture", "llama"),
        text("general.type", "model"),
        text("clip.projector_type", "pixtral"),
        text("clip.projector_type", "qwen2.5vl_merger"),
        number("clip.projector_type", 7),
        NoKey("clip.projector_type"),
        flag("clip.use_silu"),
        flag("clip.has_audio_encoder"),
        number("clip.vision.strange", 1),
        Key("clip.vision.image_mean", half()),
        number("clip.vision.image_mean", 1),
        NoKey("clip.vision.image_std"),
        number("clip.vision.projection_dim", 63),
        NoKey("clip.vision.projection_dim"),
        number("clip.vision.block_count", 2),
        number("clip.vision.block_count", 4),
        number("clip.vision.block_count", u32::MAX),
        NoKey("clip.vision.block_count"),
        number("clip.vision.embedding_length", 0),
        number("clip.vision.embedding_length", 64),
        NoKey("clip.vision.embedding_length"),
        number("clip.vision.attention.head_count", 3),
        NoKey("clip.vision.attention.head_count"),
        number("clip.vision.patch_size", 8),
        number("clip.vision.patch_size", 1 << 30),
        NoKey("clip.vision.patch_size"),
        number("clip.vision.spatial_merge_size", 4),
        number("clip.vision.spatial_merge_size", u32::MAX),
        NoTensor("v.patch_embd.weight.1"),
        Tensor("v.patch_embd.weight.1", DType::F16, &[32, 3, 4, 4]),
        Tensor("v.patch_embd.weight.1", DType::F32, &[32, 48]),
        NoTensor("v.blk.1.attn_k.bias"),
        Tensor("v.blk.1.attn_q.weight", DType::F32, &[32, 64]),
        Tensor("mm.2.weight", DType::BF16, &[64, 32]),
    ]
}

/// The lies about the projector file of each fixture.
fn lies() -> Vec<(&'static str, Vec<Lie>)> {
    let of_qwen2_5 = vec![
        text("clip.projector_type", "qwen2vl_merger"),
        flag("clip.use_gelu"),
        NoKey("clip.use_silu"),
        number("clip.vision.n_wa_pattern", 0),
        NoKey("clip.vision.n_wa_pattern"),
        number("clip.vision.feed_forward_length", 25),
        NoTensor("v.blk.2.ffn_gate.weight"),
    ];
    let of_gemma4 = vec![
        text("clip.vision.projector_type", "gemma4uv"),
        text("clip.vision.projector_type", "gemma3"),
        NoKey("clip.vision.projector_type"),
        flag("clip.use_silu"),
        Key("clip.vision.image_mean", half()),
        NoKey("clip.vision.attention.layer_norm_epsilon"),
        number("clip.vision.projector.scale_factor", u32::MAX),
        number("clip.vision.attention.head_count", 4),
        Tensor("v.patch_embd.weight", DType::F32, &[32, 3, 4, 8]),
        Tensor("v.patch_embd.weight", DType::F32, &[32, 4, 4, 4]),
        Tensor("v.patch_embd.weight", DType::Q8_0, &[32, 3, 4, 32]),
        Tensor("v.position_embd.weight", DType::F32, &[3, 24, 32]),
        Tensor("v.position_embd.weight", DType::F32, &[48, 32]),
        NoTensor("v.blk.1.attn_v.input_max"),
        Tensor("v.blk.1.attn_v.input_max", DType::F32, &[2]),
        Tensor("v.blk.0.attn_q_norm.weight", DType::F32, &[8]),
    ];
    let of_gemma4_31b = vec![NoTensor("v.std_bias"), Tensor("v.std_scale", DType::F32, &[48])];
    let of_gemma4_12b = vec![
        text("clip.vision.projector_type", "gemma4v"),
        number("clip.vision.block_count", 1),
        number("clip.vision.patch_size", 8),
        Tensor("v.position_embd.weight", DType::F32, &[24, 2, 32]),
        Tensor("v.position_embd.weight", DType::F32, &[2, 768]),
        Tensor("v.patch_norm.1.weight", DType::F32, &[16]),
        Tensor("v.patch_norm.1.weight", DType::F32, &[3, 144]),
        Tensor("v.patch_embd.weight", DType::F32, &[31, 432]),
        NoTensor("v.patch_norm.3.bias"),
    ];
    vec![
        ("qwen2_vl", of_qwen2()),
        ("qwen2_5_vl_windows", of_qwen2_5),
        ("gemma4_vision", of_gemma4),
        ("gemma4_31b", of_gemma4_31b),
        ("gemma4_unified", of_gemma4_12b),
    ]
}

/// Writes a projector file with one lie, and what the lie is.
fn write(path: &Path, file: &Container, lie: &Lie) -> String {
    let mut metadata = Metadata::new();
    let kept = |key: &str| !matches!(lie, Key(other, _) | NoKey(other) if *other == key);
    for (key, value) in file.metadata().iter().filter(|(key, _)| kept(key)) {
        metadata.insert(key, value.clone()).unwrap();
    }
    if let Key(key, value) = lie {
        metadata.insert(*key, value.clone()).unwrap();
    }
    let is_dropped = |name: &str| matches!(lie, NoTensor(other) if *other == name);
    let tensors = file.tensors().iter().filter(|(name, _)| !is_dropped(name)).map(|(name, info)| match lie {
        Tensor(other, dtype, extents) if other == name => {
            NewTensor { name: name.clone(), dtype: *dtype, shape: Shape::new(extents).unwrap() }
        }
        _ => NewTensor { name: name.clone(), dtype: info.dtype, shape: info.shape },
    });
    let tensors: Vec<NewTensor> = tensors.collect();
    let mut writer = ContainerWriter::gguf(path, &metadata, &tensors).unwrap();
    for tensor in &tensors {
        let mut bytes = vec![0; tensor.dtype.bytes(&tensor.shape).unwrap()];
        let info = &file.tensors()[&tensor.name];
        if (tensor.dtype, tensor.shape) == (info.dtype, info.shape) {
            file.read(info, 0, &mut bytes).unwrap();
        }
        writer.append(&tensor.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    match lie {
        Key(key, value) => format!("{key} is {value}"),
        NoKey(key) => format!("without {key}"),
        Tensor(name, dtype, extents) => format!("{name} is {dtype} {extents:?}"),
        NoTensor(name) => format!("without {name}"),
    }
}

/// Opens the tower in a projector file of a model, and builds its graphs.
fn opened(model: &str, projector: &Path) -> Result<()> {
    let text = open(&committed(&format!("gguf/{model}.gguf")));
    let tower = text.tower(Some(projector), &ModelLimits::DEFAULT)?;
    TowerPart::all(&tower.tower).into_iter().try_for_each(|part| tower.graph(part).map(drop))
}

#[test]
fn projector_files_that_lie_are_refused_with_a_sentence() {
    let folder = empty_folder("projectors");
    let path = folder.join("mmproj.gguf");
    let mut table = String::from("fixture\tlie\tsentence\n");
    for (model, lies) in lies() {
        let projector = committed(&format!("mmproj/mmproj-{model}.gguf"));
        opened(model, &projector).unwrap();
        let file = Container::open(&projector, &ModelLimits::DEFAULT.file).unwrap();
        for lie in &lies {
            let what = write(&path, &file, lie);
            let error = opened(model, &path).expect_err(&format!("{model}, {what}")).to_string();
            std::fs::remove_file(&path).unwrap();
            table += &format!("{model}\t{what}\t{}\n", error.replace(&format!("{}: ", path.display()), ""));
        }
    }
    let sentences = committed("../bad/projectors/sentences.tsv");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&sentences, &table).unwrap();
    }
    let expected = std::fs::read_to_string(&sentences).unwrap();
    table.lines().zip(expected.lines()).for_each(|(found, expected)| assert_eq!(found, expected));
    assert_eq!(table.lines().count(), expected.lines().count(), "the table has one line per lie");
}
