//! Well-formed GGUF files with invalid parameters, each with its expected error.
//!
//! The files are in `tests/bad/models`, the errors in its `sentences.tsv`.
//! `UPDATE=1` rewrites the errors; review them afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use girih_graph::{Key, OutputKind};
use girih_model::ModelFiles;
use girih_tensor::{DType, Error};
use girih_words::TextProcessor;

/// The time limit of a file of a few kilobytes, regardless of its stated sizes.
const TIME_MAX: Duration = Duration::from_secs(2);

const BAD_MODEL_KEY: Key =
    Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };

/// Opens the model at `path` and builds its graph.
fn open(path: &Path) -> Result<(), Error> {
    TextProcessor::open(path, &girih_words::TextLimits::DEFAULT)?;
    ModelFiles::open(path, Vec::new(), &girih_model::ModelLimits::DEFAULT)?
        .graph(BAD_MODEL_KEY, DType::F16)
        .map(drop)
}

#[test]
fn every_bad_model_is_refused_with_its_sentence() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bad/models");
    let entries = folder.read_dir().expect("the folder of bad models");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    paths.sort();
    let mut table = String::from("file\tsentence\n");
    for path in &paths {
        let name = path.file_name().expect("a name").to_string_lossy();
        let started = Instant::now();
        let error = open(path).expect_err(&format!("{name} is bad")).to_string();
        assert!(started.elapsed() < TIME_MAX, "{name} takes {:?}", started.elapsed());
        table += &format!("{name}\t{}\n", error.replace(&format!("{}/", folder.display()), ""));
    }
    let sentences = folder.join("sentences.tsv");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&sentences, &table).expect("the table can be written");
    }
    let expected = std::fs::read_to_string(&sentences).expect("the table");
    for (found, expected) in table.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(table.lines().count(), expected.lines().count(), "the table has one line per file");
}
