//! Tokenizers that the library `tokenizers` trained, and its ids of many texts.
//!
//! `scripts/make_tokenizers.py` makes the files: `tests/tokenizers` has one per shape of published
//! families, and the folder in `GIRIH_TEST_TOKENIZERS` has ones with stages drawn at random.

use std::fs;
use std::path::Path;

use girih_words::{BosEos, Specials, TextLimits, TextOrigin, Tokenizer};

/// Ids, the range of a text's ids among those with the ids around it (start, count of all), and the
/// decoded text if it differs.
type Row = (Vec<u32>, (usize, usize), Option<String>);

/// The differences of one tokenizer from the library.
fn differences(folder: &Path, name: &str, texts: &[String]) -> Result<Vec<String>, String> {
    let read = |end: &str| fs::read_to_string(folder.join(format!("{name}.{end}"))).expect("a file");
    let tokenizer = Tokenizer::from_json(read("json").as_bytes(), &TextLimits::DEFAULT);
    let tokenizer = tokenizer.map_err(|error| error.to_string())?;
    let rows = read("ids");
    assert_eq!(rows.lines().count(), texts.len(), "{name}");
    let mut found = Vec::new();
    for (text, row) in texts.iter().zip(rows.lines()) {
        let (ids, (_, count), decoded): Row = serde_json::from_str(row).expect("a row");
        let encode = |ends| tokenizer.encode(text, TextOrigin::Template, ends);
        match encode(BosEos::Omit) {
            Ok(ours) if ours == ids => {}
            ours => found.push(format!("{name}: {text:?} has {ids:?}, not {ours:?}")),
        }
        let around = encode(BosEos::Add).map_or(0, |all| all.len());
        if around != count {
            found.push(format!("{name}: {text:?} has {count} ids with those around it, not {around}"));
        }
        let want = decoded.as_ref().unwrap_or(text);
        let ours = tokenizer.decode(&ids, Specials::Keep);
        // Invalid runs of bytes are documented to differ (`stream.rs`).
        if ours != *want && !want.contains('\u{FFFD}') {
            found.push(format!("{name}: {ids:?} decode to {want:?}, not {ours:?}"));
        }
    }
    Ok(found)
}

/// Compares all tokenizers of a folder; returns the number of tokenizers and those refused.
fn check(folder: &Path) -> (usize, Vec<String>) {
    let texts = fs::read_to_string(folder.join("texts.json")).expect("the texts");
    let texts: Vec<String> = serde_json::from_str(&texts).expect("a list of texts");
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut names: Vec<String> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "ids"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for name in &names {
        match differences(folder, name, &texts) {
            Ok(new) => found.extend(new),
            Err(error) => refused.push(format!("{name}: {error}")),
        }
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
    (names.len(), refused)
}

#[test]
fn trained_tokenizers_have_the_librarys_ids() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tokenizers");
    assert_eq!(check(&folder), (8, Vec::new()));
}

#[test]
fn drawn_tokenizers_have_the_librarys_ids() {
    let Some(folder) = std::env::var_os("GIRIH_TEST_TOKENIZERS") else {
        return eprintln!("skipped: GIRIH_TEST_TOKENIZERS is not set");
    };
    let (count, refused) = check(Path::new(&folder));
    println!("{count} tokenizers compared, {} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(refused.len() * 4 < count, "more than a quarter is refused");
}
