//! Well-formed containers: read, written, split, and from real models.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use girih_file::{
    Container, ContainerKind, ContainerWriter, FileLimits, Metadata, MetadataArray, MetadataValue, NewTensor,
    Strings, gguf, safetensors,
};
use girih_tensor::{DType, Result, Shape};

use crate::folder::empty_folder;
use crate::raw;

fn open(path: &Path) -> Result<Container> {
    Container::open(path, &FileLimits::DEFAULT)
}

fn bytes_of(container: &Container, name: &str) -> Vec<u8> {
    let info = container.tensor(name).unwrap();
    let mut bytes = vec![0; info.bytes as usize];
    container.read(info, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn gguf_shapes_are_reversed() {
    let contents = gguf::parse(&raw::good_gguf(), &FileLimits::DEFAULT).unwrap();
    let info = &contents.tensors["token_embd.weight"];
    assert_eq!((info.dtype, info.shape.extents(), info.bytes), (DType::Q8_0, [2, 32].as_slice(), 68));
    let strings: &Strings = contents.metadata.require("tokenizer.ggml.tokens").unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["a", "", "ñ"]);
    let nested = MetadataValue::Array(MetadataArray::Array(vec![MetadataArray::I32(vec![7, 8])]));
    assert_eq!(contents.metadata.value("nested"), Some(&nested));
}

#[test]
fn a_safetensors_scalar_has_one_element() {
    let contents = safetensors::parse(&raw::good_safetensors(), &FileLimits::DEFAULT).unwrap();
    assert_eq!(contents.tensors["scalar"].shape.extents(), [1]);
    assert_eq!(contents.metadata.require::<&str>("format").unwrap(), "pt");
}

fn new_tensor(name: &str, dtype: DType, extents: &[usize]) -> NewTensor {
    NewTensor { name: name.into(), dtype, shape: Shape::new(extents).unwrap() }
}

/// Different bytes for every tensor.
fn pattern(tensor: &NewTensor) -> Vec<u8> {
    let bytes = tensor.dtype.bytes(&tensor.shape).unwrap();
    (0..bytes).map(|i| (i * 7 + tensor.name.len()) as u8).collect()
}

/// Writes every tensor in chunks of `chunk` bytes.
fn fill(mut writer: ContainerWriter, tensors: &[NewTensor], chunk: usize) {
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
        for part in pattern(tensor).chunks(chunk) {
            writer.append(&name, part).unwrap();
        }
    }
    writer.finish().unwrap();
}

fn check_read_back(path: &Path, tensors: &[NewTensor]) -> Container {
    let container = open(path).unwrap();
    assert_eq!(container.tensors().len(), tensors.len());
    for tensor in tensors {
        let info = container.tensor(&tensor.name).unwrap();
        assert_eq!((info.dtype, info.shape), (tensor.dtype, tensor.shape));
        assert_eq!(bytes_of(&container, &tensor.name), pattern(tensor));
    }
    container
}

/// One value of every type, and one array of every type.
fn all_values() -> Metadata {
    let strings: Strings = ["x", "", "ü"].into_iter().collect();
    let values = [
        MetadataValue::U8(255),
        MetadataValue::I8(-1),
        MetadataValue::U16(65535),
        MetadataValue::I16(-2),
        MetadataValue::U32(7),
        MetadataValue::I32(-3),
        MetadataValue::F32(0.1),
        MetadataValue::Bool(true),
        MetadataValue::String("text".into()),
        MetadataValue::U64(1 << 40),
        MetadataValue::I64(-4),
        MetadataValue::F64(0.1),
        MetadataValue::Array(MetadataArray::U8(vec![1, 2])),
        MetadataValue::Array(MetadataArray::I8(vec![-1])),
        MetadataValue::Array(MetadataArray::U16(vec![3])),
        MetadataValue::Array(MetadataArray::I16(vec![-5])),
        MetadataValue::Array(MetadataArray::U32(vec![])),
        MetadataValue::Array(MetadataArray::I32(vec![-6, 6])),
        MetadataValue::Array(MetadataArray::F32(vec![0.5, -0.5])),
        MetadataValue::Array(MetadataArray::Bool(vec![true, false])),
        MetadataValue::Array(MetadataArray::String(strings)),
        MetadataValue::Array(MetadataArray::Array(vec![
            MetadataArray::U64(vec![1]),
            MetadataArray::I32(vec![]),
        ])),
        MetadataValue::Array(MetadataArray::U64(vec![u64::MAX])),
        MetadataValue::Array(MetadataArray::I64(vec![i64::MIN])),
        MetadataValue::Array(MetadataArray::F64(vec![1e300])),
    ];
    let mut metadata = Metadata::new();
    for (index, value) in values.into_iter().enumerate() {
        metadata.insert(format!("key.{index}"), value).unwrap();
    }
    metadata
}

#[test]
fn gguf_reads_back_as_written() {
    let folder = empty_folder("gguf-round-trip");
    let tensors = [
        new_tensor("b", DType::Q8_0, &[3, 64]),
        new_tensor("a", DType::F16, &[5]),
        new_tensor("empty", DType::F32, &[0, 4]),
        new_tensor("c", DType::BF16, &[2, 3, 4, 5]),
        new_tensor("d", DType::I8, &[7]),
    ];
    let mut metadata = all_values();
    metadata.insert("general.alignment", MetadataValue::U32(64)).unwrap();
    let (path, again) = (folder.join("one.gguf"), folder.join("two.gguf"));
    fill(ContainerWriter::gguf(&path, &metadata, &tensors).unwrap(), &tensors, 10);
    fill(ContainerWriter::gguf(&again, &metadata, &tensors).unwrap(), &tensors, 1000);
    assert_eq!(
        std::fs::read(&path).unwrap(),
        std::fs::read(&again).unwrap(),
        "the chunk sizes do not change the file"
    );
    let container = check_read_back(&path, &tensors);
    assert_eq!(container.kind(), ContainerKind::Gguf);
    assert!(container.metadata().iter().eq(metadata.iter()));
    assert!(container.tensors().values().all(|info| info.offset % 64 == 0));
}

#[test]
fn safetensors_read_back_as_written() {
    let folder = empty_folder("safetensors-round-trip");
    let tensors = [
        new_tensor("bytes", DType::U8, &[5120]),
        new_tensor("b", DType::F32, &[3, 5]),
        new_tensor("a", DType::F32, &[2]),
        new_tensor("half", DType::BF16, &[1, 1, 1, 3]),
    ];
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let path = folder.join("model.safetensors");
    let writer = ContainerWriter::safetensors(&path, &metadata, &tensors).unwrap();
    assert_eq!(writer.order().collect::<Vec<_>>(), ["a", "b", "half", "bytes"]);
    fill(writer, &tensors, 9);
    let container = check_read_back(&folder, &tensors);
    assert_eq!(container.kind(), ContainerKind::Safetensors);
    assert_eq!(container.metadata().require::<&str>("format").unwrap(), "pt");
    assert_eq!(container.tensor("a").unwrap().offset % 8, 0);
}

#[test]
fn an_unfinished_file_leaves_nothing_behind() {
    let folder = empty_folder("unfinished");
    let tensors = [new_tensor("a", DType::F32, &[4])];
    let mut writer = ContainerWriter::gguf(&folder.join("a.gguf"), &Metadata::new(), &tensors).unwrap();
    writer.append("a", &[0; 8]).unwrap();
    drop(writer);
    assert_eq!(folder.read_dir().unwrap().count(), 0);
}

#[test]
fn unwritable_tensors_are_refused() {
    let folder = empty_folder("unwritable");
    let path = folder.join("a.gguf");
    let gguf = |tensors: &[NewTensor]| {
        ContainerWriter::gguf(&path, &Metadata::new(), tensors).unwrap_err().to_string()
    };
    let error = gguf(&[new_tensor("a", DType::U8, &[4])]);
    assert!(error.ends_with("tensor 'a' is u8, for which GGUF has no type"), "{error}");
    let error = gguf(&[new_tensor("a", DType::Q8_0, &[31])]);
    assert!(error.ends_with("cannot be stored as q8_0, whose blocks hold 32"), "{error}");
    let error = gguf(&[new_tensor("a", DType::F32, &[1]), new_tensor("a", DType::F32, &[1])]);
    assert!(error.ends_with("tensor 'a' occurs twice"), "{error}");
    let quantized = [new_tensor("a", DType::Q8_0, &[32])];
    let error = ContainerWriter::safetensors(&path, &BTreeMap::new(), &quantized).unwrap_err().to_string();
    assert!(error.ends_with("tensor 'a' is q8_0, for which safetensors has no type"), "{error}");
}

#[test]
fn reads_stay_inside_their_tensor() {
    let folder = empty_folder("reads");
    std::fs::write(folder.join("model.safetensors"), raw::good_safetensors()).unwrap();
    let container = open(&folder).unwrap();
    let info = container.tensor("a").unwrap();
    container.read(info, 4, &mut [0; 4]).unwrap();
    for (offset, bytes) in [(5, 4), (9, 0), (u64::MAX, 1)] {
        let error = container.read(info, offset, &mut vec![0; bytes]).unwrap_err().to_string();
        assert!(error.contains("of a tensor exceed its size of 8 bytes"), "{error}");
    }
    assert!(container.tensor("none").is_err());
}

#[test]
fn an_index_joins_its_shards() {
    let folder = empty_folder("shards");
    let shards = [("1.safetensors", "a"), ("2.safetensors", "b")];
    for (file, name) in shards {
        let tensors = [new_tensor(name, DType::F32, &[2])];
        fill(
            ContainerWriter::safetensors(&folder.join(file), &BTreeMap::new(), &tensors).unwrap(),
            &tensors,
            8,
        );
    }
    let index = |map: &str| {
        let text = format!(r#"{{"metadata":{{"total_size":16}},"weight_map":{{{map}}}}}"#);
        std::fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
        open(&folder).map_err(|error| error.to_string().replace(&folder.display().to_string(), "F"))
    };
    let container = index(r#""a":"1.safetensors","b":"2.safetensors""#).unwrap();
    assert_eq!(container.paths().len(), 2);
    assert_eq!((container.tensor("a").unwrap().shard, container.tensor("b").unwrap().shard), (0, 1));
    assert_eq!(bytes_of(&container, "b"), pattern(&new_tensor("b", DType::F32, &[2])));
    let sentence = "F/model.safetensors.index.json: tensor 'c' is listed in '2.safetensors', but that file does not contain it";
    assert_eq!(index(r#""c":"2.safetensors""#).unwrap_err(), sentence);
    std::fs::copy(folder.join("1.safetensors"), folder.join("2.safetensors")).unwrap();
    let sentence = "F/2.safetensors: tensor 'a' is also in another file of this model";
    assert_eq!(index(r#""a":"1.safetensors","b":"2.safetensors""#).unwrap_err(), sentence);
}

/// Writes or replaces one file of a split model whose header states file `number` of `count` and `tensors` in total.
fn write_split(path: &Path, (number, count): (u16, u16), tensors: i32, name: &str) {
    let mut metadata = Metadata::new();
    metadata.insert("split.no", MetadataValue::U16(number)).unwrap();
    metadata.insert("split.count", MetadataValue::U16(count)).unwrap();
    metadata.insert("split.tensors.count", MetadataValue::I32(tensors)).unwrap();
    let list = [new_tensor(name, DType::F32, &[2])];
    // A writer replaces no file.
    let _ = std::fs::remove_file(path);
    fill(ContainerWriter::gguf(path, &metadata, &list).unwrap(), &list, 8);
}

#[test]
fn any_file_of_a_split_gguf_opens_all() {
    let folder = empty_folder("split");
    let file = |number: u16| folder.join(format!("m-{number:05}-of-00002.gguf"));
    write_split(&file(1), (0, 2), 2, "a");
    let error = |path: &Path| open(path).unwrap_err().to_string().replace(&folder.display().to_string(), "F");
    assert!(error(&file(1)).starts_with("F/m-00002-of-00002.gguf: cannot be opened: "));
    write_split(&file(2), (1, 2), 2, "b");
    for path in [&folder, &file(1), &file(2)] {
        let container = open(path).unwrap();
        assert_eq!(container.paths().collect::<Vec<_>>(), [file(1), file(2)]);
        assert_eq!(bytes_of(&container, "b"), pattern(&new_tensor("b", DType::F32, &[2])));
    }
    write_split(&file(2), (0, 2), 2, "b");
    assert!(error(&folder).starts_with("F/m-00002-of-00002.gguf: is file 1 of 2 by its header, but 2 of 2"));
    write_split(&file(1), (0, 2), 3, "a");
    write_split(&file(2), (1, 2), 3, "b");
    let sentence = "F/m-00001-of-00002.gguf: the files contain 2 tensors, but 'split.tensors.count' is 3";
    assert_eq!(error(&file(1)), sentence);
    std::fs::write(folder.join("other.gguf"), raw::good_gguf()).unwrap();
    let sentence = "F: contains 2 models (m-00001-of-00002.gguf, other.gguf); pass the path of one";
    assert_eq!(error(&folder), sentence);
}

/// The folder of real files, or `None` if GIRIH_TEST_DATA is not set.
fn test_data() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}

/// All files below `folder` that end in `.extension`.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn real_files_open() {
    let Some(data) = test_data() else { return };
    let safetensors =
        [files(&data.join("fixtures"), "safetensors"), files(&data.join("models"), "safetensors")];
    let gguf = [files(&data.join("models"), "gguf"), files(&data.join("vocab"), "gguf")];
    let (safetensors, gguf) = (safetensors.concat(), gguf.concat());
    assert!(safetensors.len() >= 20 && gguf.len() >= 8, "the test data is incomplete");
    for path in safetensors.iter().chain(&gguf) {
        let container = open(path).unwrap();
        for info in container.tensors().values() {
            container.read(info, 0, &mut vec![0; info.bytes as usize]).unwrap();
        }
    }
}

#[test]
fn stories_is_the_same_model_in_both_containers() {
    let Some(data) = test_data() else { return };
    let folder = data.join("models/stories260K");
    let hf = open(&folder.join("hf-f32")).unwrap();
    let gguf = open(&folder.join("stories260K-f32.gguf")).unwrap();
    assert_eq!((hf.tensors().len(), gguf.tensors().len()), (47, 47));
    let pairs = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.4.mlp.down_proj.weight", "blk.4.ffn_down.weight"),
        ("model.layers.2.self_attn.v_proj.weight", "blk.2.attn_v.weight"),
    ];
    for (ours, theirs) in pairs {
        assert_eq!(hf.tensor(ours).unwrap().shape, gguf.tensor(theirs).unwrap().shape);
        assert_eq!(f32s(&bytes_of(&hf, ours)), f32s(&bytes_of(&gguf, theirs)), "{ours}");
    }
    let metadata = gguf.metadata();
    assert_eq!(metadata.require::<&str>("general.architecture").unwrap(), "llama");
    assert_eq!(metadata.require::<u32>("llama.feed_forward_length").unwrap(), 172);
    assert_eq!(metadata.require::<f32>("llama.rope.freq_base").unwrap(), 10000.0);
    assert_eq!(metadata.require::<&[f32]>("tokenizer.ggml.scores").unwrap().len(), 512);
    assert_eq!(metadata.require::<&Strings>("tokenizer.ggml.tokens").unwrap().get(1), Some("<s>"));
    let quantized = open(&folder.join("stories260K-q8_0.gguf")).unwrap();
    assert_eq!(quantized.tensor("token_embd.weight").unwrap().dtype, DType::Q8_0);
    assert_eq!(quantized.tensor("blk.0.ffn_down.weight").unwrap().dtype, DType::F16);
}

/// Writes `container` again with its tensors in file order, and compares the two files.
fn check_rewritten(
    container: &Container,
    start: impl FnOnce(&Path, &[NewTensor]) -> Result<ContainerWriter>,
) {
    let mut infos: Vec<_> = container.tensors().iter().collect();
    infos.sort_by_key(|(_, info)| info.offset);
    let tensors: Vec<_> = infos
        .iter()
        .map(|(name, info)| NewTensor { name: name.to_string(), dtype: info.dtype, shape: info.shape })
        .collect();
    let source = container.paths().next().unwrap();
    let path = empty_folder("rewritten").join(source.file_name().unwrap());
    let mut writer = start(&path, &tensors).unwrap();
    for tensor in &tensors {
        writer.append(&tensor.name, &bytes_of(container, &tensor.name)).unwrap();
    }
    writer.finish().unwrap();
    assert!(std::fs::read(path).unwrap() == std::fs::read(source).unwrap());
}

#[test]
fn files_of_the_reference_writers_are_rewritten_byte_for_byte() {
    let Some(data) = test_data() else { return };
    let gguf = open(&data.join("models/stories260K/stories260K-q8_0.gguf")).unwrap();
    check_rewritten(&gguf, |path, tensors| ContainerWriter::gguf(path, gguf.metadata(), tensors));
    let safetensors = open(&data.join("fixtures/gpt_oss_mxfp4")).unwrap();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    check_rewritten(&safetensors, |path, tensors| ContainerWriter::safetensors(path, &metadata, tensors));
    let golden = open(&data.join("models/stories260K/golden.safetensors")).unwrap();
    check_rewritten(&golden, |path, tensors| ContainerWriter::safetensors(path, &BTreeMap::new(), tensors));
}
