//! Selects a model's files from a repository by their names.

use std::collections::{BTreeMap, BTreeSet};

use girih_file::{COMPANIONS, FileLimits, Q4NX_FILE, SplitName, is_projector, nearest, quote, shorten};
use girih_tensor::{Error, ErrorKind, Result};

/// The maximum number of choices that an error lists.
const CHOICES_SHOWN: usize = 20;

/// The labels that are taken if an id names none of several GGUF models, the first one first.
const PREFERRED: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];

/// The GGUF model that was chosen from several because the id names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufChoice {
    /// The label of the chosen one.
    pub label: String,
    /// The labels of the others, at most 20, which an id can name.
    pub others: String,
}

/// The selected files of a repository.
#[derive(Debug)]
pub(super) struct Selection<'a> {
    pub files: Vec<&'a str>,
    /// The choice that the id leaves open.
    pub choice: Option<GgufChoice>,
}

/// The files of a model: the safetensors with their companions, or the GGUF
/// model that `quant` names (all files of a split model). A repository without both may have `model.q4nx` instead of safetensors.
pub(super) fn select<'a>(names: &[&'a str], quant: Option<&str>) -> Result<Selection<'a>> {
    let mut weights = safetensors(names);
    if weights.is_empty() && gguf_models(names).is_empty() {
        weights.extend(names.iter().copied().filter(|name| *name == Q4NX_FILE));
    }
    let (files, choice) = match quant {
        Some(quant) => (gguf_of(names, quant)?, None),
        None if weights.is_empty() => return default_gguf(names),
        None => {
            let companions = names.iter().copied().filter(|name| COMPANIONS.contains(name));
            (companions.chain(weights).collect(), None)
        }
    };
    Ok(Selection { files, choice })
}

/// The safetensors at the top of the repository. If there are `model…` files,
/// others (`consolidated…`, adapters) are copies of the weights or not the model.
fn safetensors<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let all = || names.iter().copied().filter(|name| !name.contains('/') && name.ends_with(".safetensors"));
    let is_model = |name: &&str| {
        let stem = name.trim_end_matches(".safetensors");
        stem == "model" || SplitName::of(stem).is_some_and(|part| part.prefix == "model")
    };
    let model: Vec<&str> = all().filter(is_model).collect();
    if model.is_empty() { all().collect() } else { model }
}

/// The GGUF models of a repository: the stem without a split's numbers, and the
/// files in order. Projectors of vision towers (`mmproj`) are skipped.
fn gguf_models<'a>(names: &[&'a str]) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut models: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names.iter().copied() {
        let Some(stem) = name.strip_suffix(".gguf") else { continue };
        if is_projector(name.rsplit('/').next().unwrap_or(name)) {
            continue;
        }
        models.entry(SplitName::of(stem).map_or(stem, |part| part.prefix)).or_default().push(name);
    }
    for files in models.values_mut() {
        files.sort_unstable();
    }
    models
}

fn gguf_of<'a>(names: &[&'a str], quant: &str) -> Result<Vec<&'a str>> {
    let models = gguf_models(names);
    // A file of a split model stands for all of them.
    let quant = SplitName::of(quant).map_or(quant, |part| part.prefix);
    if let Some((stem, files)) = models.iter().find(|(stem, _)| stem.eq_ignore_ascii_case(quant)) {
        return complete(stem, files);
    }
    match models_with(&models, quant).as_slice() {
        [(stem, files)] => complete(stem, files),
        [] if models.is_empty() => {
            Err(not_found(format!("the model has no GGUF files, so no {quant}; omit ':{quant}'")))
        }
        [] => {
            let known = models.keys().flat_map(|stem| [label_of(stem), *stem]);
            let meant = nearest(quant, known).map(|label| format!("; did you mean {}?", shorten(label)));
            let (meant, shown) = (meant.unwrap_or_default(), choices(models.keys().copied()));
            Err(not_found(format!("the model has no GGUF file for {quant}{meant} (it has {shown})")))
        }
        fits => {
            let several = shorten(fits.iter().map(|(stem, _)| *stem).collect::<Vec<_>>().join(", "));
            Err(refused(format!("{quant} matches several GGUF files ({several}); write more of the name")))
        }
    }
}

/// The only GGUF model, or the preferred one of several.
fn default_gguf<'a>(names: &[&'a str]) -> Result<Selection<'a>> {
    let models = gguf_models(names);
    if models.is_empty() {
        return Err(Error::new(
            "the repository has neither safetensors nor GGUF weights nor model.q4nx; other formats (such as .bin) are not supported",
        ));
    }
    if models.len() == 1 {
        let files = models.iter().map(|(stem, files)| complete(stem, files)).collect::<Result<Vec<_>>>()?;
        return Ok(Selection { files: files.concat(), choice: None });
    }
    let preferred = PREFERRED.iter().map(|label| (label, models_with(&models, label)));
    let found = preferred.into_iter().find(|(_, fits)| !fits.is_empty());
    if let Some((label, fits)) = &found
        && let [(chosen, files)] = fits.as_slice()
    {
        let others = choices(models.keys().copied().filter(|stem| stem != chosen));
        let choice = Some(GgufChoice { label: (*label).to_string(), others });
        return Ok(Selection { files: complete(chosen, files)?, choice });
    }
    let why = match found {
        Some((label, _)) => format!("has several GGUF models with {label}"),
        None => {
            let [first, second, last] = PREFERRED;
            format!("has several GGUF files, none of them {first}, {second} or {last}")
        }
    };
    let shown = choices(models.keys().copied());
    Err(refused(format!("the repository {why}; choose one as org/name:QUANT from {shown}")))
}

/// The models with this label.
fn models_with<'a, 'm>(
    models: &'m BTreeMap<&'a str, Vec<&'a str>>,
    label: &str,
) -> Vec<(&'a str, &'m Vec<&'a str>)> {
    models.iter().filter(|(stem, _)| has_label(stem, label)).map(|(stem, files)| (*stem, files)).collect()
}

/// The label in a stem: what follows the last hyphen or dot of the file's name.
fn label_of(stem: &str) -> &str {
    let file = stem.rsplit('/').next().unwrap_or(stem);
    file.rsplit(['-', '.']).next().unwrap_or(file)
}

fn not_found(sentence: String) -> Error {
    Error::with_kind(ErrorKind::NotFound, sentence)
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// The labels of these models, or their whole names if labels are equal.
fn choices<'a>(stems: impl Iterator<Item = &'a str> + Clone) -> String {
    let labels: BTreeSet<&str> = stems.clone().map(label_of).collect();
    let count = stems.clone().count();
    let mut shown: Vec<&str> =
        if labels.len() == count { stems.map(label_of).collect() } else { stems.collect() };
    if count > CHOICES_SHOWN {
        shown.truncate(CHOICES_SHOWN);
        shown.push("…");
    }
    shorten(shown.join(", "))
}

/// Whether a part of the stem is the label or ends in it, ignoring case:
/// `x-Q4_K_M` and `Q4_K_M/x` have `Q4_K_M`; `x-Q4_K_M` does not have `Q4_K`.
fn has_label(stem: &str, label: &str) -> bool {
    let label = label.to_ascii_uppercase();
    stem.to_ascii_uppercase().split('/').any(|part| {
        part.strip_suffix(&label).is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_']))
    })
}

/// All files of a split model, or the only file of another.
fn complete<'a>(stem: &str, files: &[&'a str]) -> Result<Vec<&'a str>> {
    let parts: Vec<SplitName<'_>> =
        files.iter().filter_map(|name| SplitName::of(name.strip_suffix(".gguf")?)).collect();
    if parts.is_empty() {
        return Ok(files.to_vec());
    }
    let count = parts[0].count;
    if count > FileLimits::DEFAULT.shards {
        let cap = FileLimits::DEFAULT.shards;
        let stem = quote(stem);
        return Err(Error::new(format!("{stem} is split into {count} files, more than the cap of {cap}")));
    }
    let whole = parts.len() == files.len() && parts.iter().map(|part| part.number).eq(1..=count);
    if !whole || parts.iter().any(|part| part.count != count) {
        let (stem, found) = (quote(stem), files.len());
        return Err(Error::new(format!(
            "{stem} is split into {count} files, but the repository has {found}; parts 1 to {count} are needed"
        )));
    }
    Ok(files.to_vec())
}

#[cfg(test)]
mod tests {
    use girih_file::SAFETENSORS_INDEX;

    use super::*;

    #[test]
    fn safetensors_come_with_their_companions_and_nothing_else() {
        let names = [
            ".gitattributes",
            "README.md",
            "config.json",
            "tokenizer.json",
            SAFETENSORS_INDEX,
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "consolidated.safetensors",
            "pytorch_model.bin",
            "model.onnx",
            "preprocessor_config.json",
            "processor_config.json",
            "video_preprocessor_config.json",
            "modules.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "original/consolidated.00.pth",
            "onnx/model.safetensors",
            "x-Q4_0.gguf",
        ];
        let expected = [
            "config.json",
            "tokenizer.json",
            SAFETENSORS_INDEX,
            "preprocessor_config.json",
            "processor_config.json",
            "modules.json",
            "1_Pooling/config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(select(&names, None).unwrap().files, expected);
        assert_eq!(
            select(&["config.json", "toy.safetensors"], None).unwrap().files,
            ["config.json", "toy.safetensors"]
        );
        assert_eq!(
            select(&["config.json", "model.q4nx", "vision_weight.q4nx"], None).unwrap().files,
            ["config.json", "model.q4nx"]
        );
        assert_eq!(
            select(&["config.json", "model.q4nx", "x-Q4_0.gguf"], None).unwrap().files,
            ["x-Q4_0.gguf"]
        );
        assert!(select(&["pytorch_model.bin"], None).unwrap_err().to_string().contains("neither"));
    }

    #[test]
    fn long_names_are_shortened_in_errors() {
        let names = ["a", "b", "c"].map(|name| format!("{name}{}\u{1b}-Q8_0.gguf", "x".repeat(500)));
        let split = format!("{}-F16-00001-of-00002.gguf", "y".repeat(500));
        let names: Vec<&str> = names.iter().chain([&split]).map(String::as_str).collect();
        for quant in [Some("Q8_0"), Some("Q4_0"), Some("F16"), None] {
            let error = select(&names, quant).unwrap_err().to_string();
            assert!(error.chars().count() < 320 && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn a_label_selects_one_gguf_with_all_its_parts() {
        let names = [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-q8_0.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
            "mmproj-Q8_0.gguf",
            "m.MMPROJ-Q8_0.gguf",
            "s-F16-00001-of-00002.gguf",
        ];
        let pick = |quant| select(&names, Some(quant)).map(|selection| selection.files);
        assert_eq!(pick("q4_k_m").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(pick("Q8_0").unwrap(), ["m-q8_0.gguf"]);
        assert_eq!(pick("BF16").unwrap().len(), 2);
        for (quant, sentence) in [("Q4_K", "no GGUF file for Q4_K"), ("F16", "parts 1 to 2 are needed")] {
            let error = pick(quant).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
        assert!(
            select(&["a-Q8_0.gguf", "b-Q8_0.gguf"], Some("Q8_0"))
                .unwrap_err()
                .to_string()
                .contains("several")
        );
        // The whole name, also of a file of a split model.
        assert_eq!(pick("bf16/m-bf16").unwrap().len(), 2);
        assert_eq!(pick("BF16/m-BF16-00002-of-00002").unwrap().len(), 2);
        let error = pick("Q4_K_N").unwrap_err().to_string();
        assert!(error.contains("did you mean Q4_K_M?") && error.contains("Q4_K_S"), "{error}");
    }

    #[test]
    fn without_a_label_the_only_or_the_preferred_gguf_is_taken() {
        let taken = |names: &[&str]| {
            let selection = select(names, None).unwrap();
            (selection.files.join(" "), selection.choice.map(|choice| (choice.label, choice.others)))
        };
        assert_eq!(taken(&["README.md", "m-IQ2_M.gguf"]), ("m-IQ2_M.gguf".to_owned(), None));
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(taken(&split), (split.join(" "), None));
        let choice = |label: &str, others: &str| Some((label.to_owned(), others.to_owned()));
        let three = ["m.Q8_0.gguf", "m.q4_k_m.gguf", "m.Q4_0.gguf"];
        assert_eq!(taken(&three), ("m.q4_k_m.gguf".to_owned(), choice("Q4_K_M", "Q4_0, Q8_0")));
        let two = ["m-Q8_0.gguf", "m-F16.gguf"];
        assert_eq!(taken(&two), ("m-Q8_0.gguf".to_owned(), choice("Q8_0", "F16")));
        for (names, sentence) in [
            (
                ["m-Q6_K.gguf", "m-F16.gguf"],
                "none of them Q4_K_M, Q4_0 or Q8_0; choose one as org/name:QUANT from F16, Q6_K",
            ),
            (
                ["a-Q4_0.gguf", "b-Q4_0.gguf"],
                "several GGUF models with Q4_0; choose one as org/name:QUANT from a-Q4_0",
            ),
        ] {
            let error = select(&names, None).unwrap_err();
            assert!(error.to_string().contains(sentence), "{error}");
            assert_eq!(error.kind(), ErrorKind::Refused);
        }
    }
}
