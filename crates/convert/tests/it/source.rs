//! Files compared with the folders that they were made from: right ones agree, and what is wrong in
//! one is found by its own line.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use girih_convert::{CompareOptions, SourceFinding, SourcePart, SourceVerdict, compare_with_source};
use girih_file::{ContainerWriter, Metadata, MetadataValue, NewTensor};
use girih_tensor::DType;
use girih_words::TextLimits;
use girih_words::template::{RenderLimits, Renderer};
use serde_json::{Value, json};

use super::{SMALL, committed, open, options, write};
use crate::folder::empty_folder;

fn compared(file: &Path, source: &Path) -> Vec<SourceFinding> {
    let options = CompareOptions { threads: NonZeroUsize::MIN, limits: TextLimits::DEFAULT };
    let mut renderer = Renderer::in_process(RenderLimits::default());
    let mut last = (0, 0);
    let found = compare_with_source(&open(file), &open(source), &options, &mut renderer, &mut |step| {
        last = (step.done, step.total);
    });
    assert_eq!(last.0, last.1, "the last progress report is the total");
    found.unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The findings that differ: part and name, and the detail.
fn differing(findings: &[SourceFinding]) -> Vec<(String, &str)> {
    let differ = findings.iter().filter(|finding| finding.verdict == SourceVerdict::Differs);
    differ
        .map(|finding| (format!("{} {}", finding.part.name(), finding.name), finding.detail.as_str()))
        .collect()
}

/// A folder with a copy of a committed model, with a byte-level BPE tokenizer and a chat template.
fn folder_with_text(label: &str, name: &str) -> PathBuf {
    let (folder, tokenizers) = (empty_folder(label), committed("../tokenizers"));
    for file in ["config.json", "model.safetensors"] {
        fs::copy(committed(name).join(file), folder.join(file)).unwrap();
    }
    let mut tokenizer: Value =
        serde_json::from_slice(&fs::read(tokenizers.join("bpe-falcon.json")).unwrap()).unwrap();
    // GGUF has no place for the rules of its other added tokens.
    tokenizer["added_tokens"].as_array_mut().unwrap().retain(|token| token["special"] == true);
    // GGUF has no unknown token for BPE, so each byte needs a token.
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let bytes = ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').chain('\u{100}'..='\u{143}');
    for byte in bytes.map(String::from) {
        let next = vocabulary.len();
        vocabulary.entry(byte).or_insert(next.into());
    }
    // A merge across the border that this pre-tokenizer has between spaces and punctuation.
    vocabulary.insert("\u{120}==".to_owned(), vocabulary.len().into());
    tokenizer["model"]["merges"].as_array_mut().unwrap().push(json!(["\u{120}", "=="]));
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = json!({ "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false });
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    folder
}

/// A tensor of a file with its bytes.
type Tensor = (NewTensor, Vec<u8>);

/// A change of the tensors and of the metadata.
type Change<'a> = &'a dyn Fn(&mut Vec<Tensor>, &mut Vec<(String, MetadataValue)>);

/// Writes the model of a folder as GGUF of this type, with changes.
fn changed(folder: &Path, target: &str, change: Change<'_>) -> PathBuf {
    let (right, wrong) = (folder.join("right.gguf"), folder.join("wrong.gguf"));
    write(&open(folder), &right, &options(target)).unwrap();
    assert_eq!(differing(&compared(&right, folder)), [], "the unchanged file agrees");
    let model = open(&right);
    let container = model.weights.container();
    let mut tensors: Vec<Tensor> = Vec::new();
    for (name, info) in container.tensors() {
        let mut bytes = vec![0; info.bytes as usize];
        container.read(info, 0, &mut bytes).unwrap();
        tensors.push((NewTensor { name: name.clone(), dtype: info.dtype, shape: info.shape }, bytes));
    }
    let pairs = container.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone()));
    let mut pairs: Vec<(String, MetadataValue)> = pairs.collect();
    change(&mut tensors, &mut pairs);
    let mut metadata = Metadata::new();
    pairs.into_iter().for_each(|(key, value)| metadata.insert(key, value).unwrap());
    let news: Vec<NewTensor> = tensors.iter().map(|(tensor, _)| tensor.clone()).collect();
    let mut writer = ContainerWriter::gguf(&wrong, &metadata, &news).unwrap();
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let (_, bytes) = tensors.iter().find(|(tensor, _)| tensor.name == name).unwrap();
        writer.append(&name, bytes).unwrap();
    }
    writer.finish().unwrap();
    wrong
}

/// The bytes of a tensor, with its format and the bytes of a row.
fn bytes_of<'a>(tensors: &'a mut [Tensor], name: &str) -> (DType, usize, &'a mut Vec<u8>) {
    let (tensor, bytes) = tensors.iter_mut().find(|(tensor, _)| tensor.name == name).unwrap();
    (tensor.dtype, bytes.len() / tensor.shape.rows(), bytes)
}

#[test]
fn what_girih_writes_agrees() {
    let folder = folder_with_text("source-right", SMALL);
    for target in ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "mxfp4", "q4_k_m", "q6_k"] {
        let out = folder.join(format!("{target}.gguf"));
        write(&open(&folder), &out, &options(target)).unwrap();
        let found = compared(&out, &folder);
        assert_eq!(differing(&found), [], "{target}");
        assert!(found.iter().all(|finding| finding.verdict == SourceVerdict::Agrees), "{target}: {found:?}");
        let weights = found.iter().filter(|finding| finding.part == SourcePart::Weight);
        assert!(weights.count() > 20, "{target}");
    }
}

#[test]
fn what_llama_cpp_converted_agrees() {
    for name in [
        "ernie4_5",
        "exaone4",
        "gemma",
        "gemma2",
        "gemma3_vision",
        "lfm2",
        "mistral3",
        "mistral_small",
        "qwen2",
        "seed_oss",
    ] {
        let found = compared(&committed(&format!("gguf/{name}.gguf")), &committed(name));
        assert_eq!(differing(&found), [], "{name}");
        assert!(found.iter().any(|finding| finding.part == SourcePart::Weight), "{name}");
    }
}

#[test]
fn a_permuted_projection_is_found() {
    let folder = folder_with_text("source-permuted", SMALL);
    let wrong = changed(&folder, "q8_0", &|tensors, _| {
        let (_, row, bytes) = bytes_of(tensors, "blk.1.attn_q.weight");
        let (one, other) = bytes.split_at_mut(row);
        one.swap_with_slice(&mut other[..row]);
    });
    let found = compared(&wrong, &folder);
    let found = differing(&found);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "weight layers.1.mixer.q.weight");
    assert!(found[0].1.contains("rows are in another order"), "{found:?}");
}

#[test]
fn a_scale_of_the_next_block_and_nan_are_found() {
    for (label, words) in
        [("next", "only columns 0 to 31 of the row differ"), ("nan", "the file has NaN in this row")]
    {
        let folder = folder_with_text(&format!("source-scale-{label}"), SMALL);
        let wrong = changed(&folder, "q8_0", &|tensors, _| {
            let (dtype, row, bytes) = bytes_of(tensors, "blk.0.ffn_up.weight");
            let at = 3 * row;
            match label {
                "next" => bytes.copy_within(at + dtype.block_bytes()..at + dtype.block_bytes() + 2, at),
                _ => bytes[at..at + 2].copy_from_slice(&[0, 0x7e]),
            }
        });
        let found = compared(&wrong, &folder);
        let found = differing(&found);
        assert_eq!(found.len(), 1, "{label}: {found:?}");
        assert_eq!(found[0].0, "weight layers.0.ffn.up.weight");
        assert!(found[0].1.contains(words), "{label}: {found:?}");
    }
}

#[test]
fn a_norm_without_one_plus_w_is_found() {
    let folder = folder_with_text("source-norm", "gemma");
    let wrong = changed(&folder, "q8_0", &|tensors, _| {
        let (dtype, _, bytes) = bytes_of(tensors, "blk.0.attn_norm.weight");
        assert_eq!(dtype, DType::F32);
        for bytes in bytes.chunks_exact_mut(4) {
            let value = f32::from_le_bytes(bytes.try_into().unwrap()) - 1.0;
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    });
    let found = compared(&wrong, &folder);
    let found = differing(&found);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "weight layers.0.norms.before_mixer");
    assert!(found[0].1.contains("1 + w is missing"), "{found:?}");
}

/// Replaces the value of a key.
fn set(pairs: &mut [(String, MetadataValue)], key: &str, value: MetadataValue) {
    pairs.iter_mut().find(|(one, _)| one == key).unwrap_or_else(|| panic!("the file has {key}")).1 = value;
}

#[test]
fn facts_the_tokenizer_and_the_template_are_found() {
    let text = |text: &str| MetadataValue::String(text.to_owned());
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}[assistant]";
    let cases: [(&str, MetadataValue, &str, &str); 5] = [
        ("llama.rope.freq_base", MetadataValue::F32(5000.0), "facts rope.base", "'llama.rope.freq_base', "),
        (
            "llama.attention.layer_norm_rms_epsilon",
            MetadataValue::F32(1e-3),
            "facts epsilon",
            "0.001 in the file",
        ),
        ("tokenizer.ggml.pre", text("gpt-2"), "tokenizer code", "in the file"),
        ("tokenizer.ggml.add_bos_token", MetadataValue::Bool(true), "tokenizer BOS and EOS", "before"),
        (
            "tokenizer.chat_template",
            text(template),
            "chat template prompts",
            "'one question' differs at character 0",
        ),
    ];
    for (index, (key, value, line, words)) in cases.into_iter().enumerate() {
        let folder = folder_with_text(&format!("source-key-{index}"), SMALL);
        let wrong = changed(&folder, "q8_0", &|_, pairs| set(pairs, key, value.clone()));
        let found = compared(&wrong, &folder);
        let found = differing(&found);
        let of_line = found.iter().find(|(name, _)| name == line);
        assert!(of_line.is_some_and(|(_, detail)| detail.contains(words)), "{key}: {found:?}");
        // A pre-tokenizer splits several kinds of texts otherwise; all are the tokenizer's.
        let part = line.split(' ').next().unwrap();
        assert!(found.iter().all(|(name, _)| name.starts_with(part)), "{key}: {found:?}");
    }
}

#[test]
fn only_a_gguf_is_compared_with_a_folder() {
    let (file, folder) = (committed("gguf/qwen2.gguf"), committed("qwen2"));
    for (one, other) in [(&folder, &folder), (&folder, &file), (&file, &file)] {
        let options = CompareOptions { threads: NonZeroUsize::MIN, limits: TextLimits::DEFAULT };
        let mut renderer = Renderer::in_process(RenderLimits::default());
        let error = compare_with_source(&open(one), &open(other), &options, &mut renderer, &mut |_| {});
        assert!(error.unwrap_err().to_string().contains("is compared with the folder"));
    }
}
