//! Conversions to GGUF and to folders of safetensors and of IEBIN.
#![forbid(unsafe_code)]

mod assembled;
mod bad_models;
#[path = "../../../words/tests/it/data.rs"]
mod data;
mod facts;
mod families;
#[path = "../../../file/tests/it/folder.rs"]
mod folder;
mod gguf;
mod iebin;
#[path = "../../../model/tests/it/layered.rs"]
mod layered;
mod mutations;
mod packed;
mod q4nx;
mod recipe;
mod source;
mod sparse;
mod vocabulary;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use girih_convert::{ConvertOptions, ConvertReport, ConvertTarget, IebinOptions, Recipe, convert};
use girih_model::ModelFiles;
use girih_tensor::{DType, Result, View};

use crate::folder::empty_folder;

/// A model whose weights and tokenizer are in the repository.
const SMALL: &str = "llama32_tied";

/// The models in the repository.
const COMMITTED: [&str; 3] = [SMALL, "qwen3", "gemma3_text"];

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// All available fixtures.
fn fixtures() -> Vec<PathBuf> {
    let further = ["llama32_untied_scaled", "llama_wide", "gemma3_text_scaled"];
    let data = data::folder().into_iter();
    let further = data.flat_map(|data| further.map(|name| data.join("fixtures").join(name)));
    COMMITTED.map(committed).into_iter().chain(further).collect()
}

fn open(path: &Path) -> ModelFiles {
    ModelFiles::open(path, Vec::new(), &girih_model::ModelLimits::DEFAULT)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn options(target: &str) -> ConvertOptions {
    ConvertOptions {
        target: target.parse::<ConvertTarget>().unwrap(),
        recipe: None,
        iebin: IebinOptions::default(),
        name: Some("a model".to_owned()),
        threads: NonZeroUsize::MIN,
        limits: girih_words::TextLimits::DEFAULT,
    }
}

fn with_recipe(target: &str, recipe: &str) -> ConvertOptions {
    ConvertOptions { recipe: Some(Recipe::parse(recipe).unwrap()), ..options(target) }
}

fn write(model: &ModelFiles, out: &Path, options: &ConvertOptions) -> Result<ConvertReport> {
    let mut last = (0, 1);
    let report = convert(model, out, options, &mut |step| last = (step.done, step.total))?;
    assert_eq!(last.0, last.1, "the last progress report is the total");
    Ok(report)
}

/// `numbers` after rounding to `dtype`.
fn rounded(dtype: DType, columns: usize, numbers: &[f32]) -> Vec<f32> {
    let rows = numbers.len() / columns;
    let bytes = dtype.pack_matrix(rows, columns, numbers).unwrap();
    let mut back = vec![0.0; numbers.len()];
    View::new(dtype, rows, columns, &bytes).unwrap().unpack_rows(0..rows, &mut back);
    back
}

/// Checks that `copy` has the facts of `model`, and its weights rounded to their
/// formats.
fn check_copy(model: &ModelFiles, copy: &ModelFiles) {
    assert_eq!(copy.facts, model.facts);
    let names: Vec<&str> = model.weights.names().collect();
    assert_eq!(copy.weights.names().collect::<Vec<_>>(), names);
    for name in names {
        let (dtype, shape) = copy.weights.info(name).unwrap();
        assert_eq!(shape, model.weights.info(name).unwrap().1, "{name}");
        let want = rounded(dtype, shape.columns(), &model.weights.numbers(name).unwrap());
        assert!(copy.weights.numbers(name).unwrap() == want, "{name}");
    }
}

/// A copy of the small model in which one weight of a tensor is `bits`, as bf16.
fn corrupted(folder: &str, tensor: &str, bits: u16) -> ModelFiles {
    let folder = empty_folder(folder);
    let source = committed(SMALL);
    std::fs::copy(source.join("config.json"), folder.join("config.json")).unwrap();
    let mut bytes = std::fs::read(source.join("model.safetensors")).unwrap();
    let model = open(&source);
    let info = model.weights.container().tensor(tensor).unwrap();
    assert_eq!(info.dtype, DType::BF16);
    let at = info.offset as usize + 2 * 77;
    bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    open(&folder)
}
