//! Models as FastFlowLM's `model.q4nx`.

use std::path::{Path, PathBuf};

use girih_file::{Container, FileLimits};
use girih_graph::WeightSource as _;
use girih_model::{ModelFiles, ModelLimits};
use girih_tensor::{DType, q4nx_tiles};

use super::{COMMITTED, SMALL, check_copy, committed, open, options, rounded, with_recipe, write};
use crate::data;
use crate::folder::empty_folder;

/// The weight with the rows of tokens.
const TABLE: &str = "embed.table";

fn name_of(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Models of the families that FastFlowLM has, and of one that it does not have.
fn fixtures() -> Vec<PathBuf> {
    let mut fixtures: Vec<_> = COMMITTED.map(committed).into();
    fixtures.extend(["qwen2", "gemma2"].map(committed));
    fixtures.extend(data::folder().map(|data| data.join("fixtures/llama_wide")));
    fixtures
}

/// The numbers of a weight as the file should have them.
fn expected(model: &ModelFiles, name: &str) -> (DType, Vec<f32>) {
    let own = if model.weights.info(name).is_some() { name } else { TABLE };
    let (source, shape) = model.weights.info(own).unwrap();
    let mut numbers = model.weights.numbers(own).unwrap();
    let is_matrix = shape.extents().len() == 2 && name != TABLE;
    if !is_matrix {
        let is_scaled = name == TABLE && model.facts.name == "gemma3";
        let factor = if is_scaled { model.facts.embed.scale.unwrap() } else { 1.0 };
        numbers.iter_mut().for_each(|number| *number *= factor);
        return (DType::BF16, rounded(DType::BF16, shape.columns(), &numbers));
    }
    let has_blocks = shape.columns().is_multiple_of(32);
    let by_q4_0 = model.facts.name == "qwen2" && source != DType::Q4_1 && has_blocks;
    if !by_q4_0 && !matches!(source, DType::Q4_0 | DType::Q4_1) {
        return (DType::Q4NX, rounded(DType::Q4NX, shape.columns(), &numbers));
    }
    let [rows, columns] = [shape.rows(), shape.columns()];
    let integers = if by_q4_0 { DType::Q4_0 } else { source };
    let bytes = match source == integers {
        true => {
            let mut bytes = vec![0; source.bytes(&shape).unwrap()];
            model.weights.read(own, 0, &mut bytes).unwrap();
            bytes
        }
        false => integers.pack_matrix(rows, columns, &numbers).unwrap(),
    };
    let tiles = q4nx_tiles(integers, [rows, columns], &bytes).unwrap();
    let mut back = vec![0.0; numbers.len()];
    girih_tensor::View::new(DType::Q4NX, rows, columns, &tiles).unwrap().unpack_rows(0..rows, &mut back);
    (DType::Q4NX, back)
}

/// Checks the weights of a copy, and that a copy of the copy has the same bytes.
fn check(model: &ModelFiles, once: &Path) {
    let copy = open(once);
    for name in copy.weights.names().filter(|name| !copy.weights.is_computed(name)) {
        let (dtype, numbers) = expected(model, name);
        assert_eq!(copy.weights.info(name).unwrap().0, dtype, "{name}");
        assert!(copy.weights.numbers(name).unwrap() == numbers, "{name}");
    }
    assert!(copy.weights.info("head.weight").is_some() && !copy.facts.head.unwrap().tied);
    let twice = once.with_file_name(format!("{}-twice", name_of(once)));
    write(&copy, &twice, &options("q4nx")).unwrap();
    for name in ["model.q4nx", "config.json"] {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert!(read(once) == read(&twice), "{name}");
    }
}

#[test]
fn a_copy_has_the_rounded_weights_and_is_copied_without_loss() {
    let folder = empty_folder("convert-q4nx");
    for fixture in fixtures() {
        let model = open(&fixture);
        let once = folder.join(name_of(&fixture));
        write(&model, &once, &options("q4nx"))
            .unwrap_or_else(|error| panic!("{}: {error}", fixture.display()));
        check(&model, &once);
    }
}

/// Families, and the SHA-256 of what FastFlowLM's converter makes of their GGUF in `fixtures/q4nx` (`scripts/q4nx_models.py`).
const BY_FASTFLOWLM: [(&str, &str); 4] = [
    ("gemma3", "cbf0f715f0edf29a3ab84bfab948d17ee2aee5b17cd3be428c9d91b8899ee273"),
    ("llama", "8b8604b680c31da35a2f1c953a6ca1a035f55b35d06adcecf3cf03b03469e213"),
    ("qwen2", "fa8413480d26330e7d2b9050c7a45b23655a9850a734134e72dadc43e1ed8de2"),
    ("qwen3", "87421304cc627f2db2433658661c831465487d48cd758cca6f0692b1586754b6"),
];

#[test]
fn a_gguf_becomes_the_file_of_fastflowlms_converter() {
    let folder = empty_folder("convert-q4nx-theirs");
    for (family, digest) in BY_FASTFLOWLM {
        let model = open(&committed("q4nx").join(format!("{family}.gguf")));
        write(&model, &folder.join(family), &options("q4nx")).unwrap();
        let file = Container::open(&folder.join(family).join("model.q4nx"), &FileLimits::DEFAULT).unwrap();
        assert_eq!(file.sha256().unwrap(), digest, "{family}");
    }
}

/// The rows and columns of a matrix in the file of a model of this family.
fn padded(family: &str, weight: &str, [rows, columns]: [usize; 2]) -> [usize; 2] {
    match (family, weight.rsplit_once("ffn.").map(|(_, part)| part)) {
        ("qwen2", Some("down.weight")) => [rows, columns.next_multiple_of(512)],
        ("qwen2", Some(_)) => [rows.next_multiple_of(512), columns],
        _ => [rows, columns],
    }
}

#[test]
fn a_gguf_of_q4_0_or_q4_1_keeps_its_integers() {
    let folder = empty_folder("convert-q4nx-of-gguf");
    for (fixture, file_type, dtype) in [
        (SMALL, "q4_0", DType::Q4_0),
        (SMALL, "q4_1", DType::Q4_1),
        ("qwen2", "q4_0", DType::Q4_0),
        ("gemma3_text", "q4_1", DType::Q4_1),
    ] {
        let of = format!("{fixture}-{file_type}");
        let (gguf, out) = (folder.join(format!("{of}.gguf")), folder.join(&of));
        write(&open(&committed(fixture)), &gguf, &options(file_type)).unwrap();
        let model = open(&gguf);
        let report = write(&model, &out, &options("q4nx")).unwrap();
        assert!(
            report.warnings.iter().any(|warning| warning.contains("no config.json")),
            "{:?}",
            report.warnings
        );
        let container = Container::open(&out.join("model.q4nx"), &FileLimits::DEFAULT).unwrap();
        let mut kept = 0;
        for weight in model.weights.names() {
            let (source, shape) = model.weights.info(weight).unwrap();
            if source != dtype || weight == TABLE {
                continue;
            }
            kept += 1;
            let (mut rows, size) = (vec![0; source.bytes(&shape).unwrap()], [shape.rows(), shape.columns()]);
            model.weights.read(weight, 0, &mut rows).unwrap();
            let tiles = q4nx_tiles(dtype, size, &rows).unwrap();
            // Rows of tiles, each with padding behind it.
            let [height, width] = padded(fixture, weight, size);
            let mut want = Vec::new();
            for row in tiles.chunks_exact(size[1].div_ceil(256) * 5120) {
                want.extend(row);
                want.resize(want.len() + (width.div_ceil(256) - size[1].div_ceil(256)) * 5120, 0);
            }
            want.resize(height.div_ceil(32) * width.div_ceil(256) * 5120, 0);
            let pattern: Vec<&str> = weight.split('.').collect();
            let of_pattern = weight.replacen(pattern[1], "{i}", 1);
            let name = model.arch().weights[&of_pattern].hf.clone().unwrap().replace("{i}", pattern[1]);
            let info = container.tensor(&name).unwrap();
            assert_eq!(info.shape.extents(), [want.len() / 5120 * 32, 256], "{of}: {name}");
            let mut bytes = vec![0; want.len()];
            container.read(info, 0, &mut bytes).unwrap();
            assert!(bytes == want, "{of}: {name}");
        }
        assert!(kept >= 7, "{of}: {kept} matrices");
        std::fs::copy(committed(fixture).join("config.json"), out.join("config.json")).unwrap();
        check(&model, &out);
    }
}

#[test]
fn a_q4nx_model_becomes_a_gguf() {
    let folder = empty_folder("convert-q4nx-gguf");
    let (packed, out) = (folder.join("packed"), folder.join("model.gguf"));
    write(&open(&committed(SMALL)), &packed, &options("q4nx")).unwrap();
    let report = write(&open(&packed), &out, &options("f32")).unwrap();
    assert!(report.warnings[0].contains("already quantized"), "{:?}", report.warnings);
    check_copy(&open(&packed), &open(&out));
    // Its embeddings are multiplied already, which neither a GGUF nor safetensors say.
    let packed = folder.join("gemma");
    write(&open(&committed("gemma3_text")), &packed, &options("q4nx")).unwrap();
    for (target, words) in
        [("f32", "embed_scale"), ("safetensors", "convert the original"), ("iebin", "convert the original")]
    {
        let error = write(&open(&packed), &folder.join("refused"), &options(target)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_recipe_keeps_a_matrix_plain() {
    let out = empty_folder("convert-q4nx-recipe").join("packed");
    let recipe =
        "[[rule]]\ntensors = '*.v.weight'\ntype = 'f32'\n[[rule]]\ntensors = 'head.weight'\ntype = 'bf16'";
    let model = open(&committed(SMALL));
    write(&model, &out, &with_recipe("q4nx", recipe)).unwrap();
    let copy = open(&out);
    let dtype = |name: &str| copy.weights.info(name).unwrap().0;
    assert_eq!(dtype("layers.2.mixer.v.weight"), DType::F32);
    assert_eq!(dtype("layers.2.mixer.k.weight"), DType::Q4NX);
    assert_eq!(dtype("head.weight"), DType::BF16);
    let numbers = |model: &ModelFiles| model.weights.numbers("layers.2.mixer.v.weight").unwrap();
    assert!(numbers(&copy) == numbers(&model));
}

/// Opens a folder after a change of a text in the header of its file.
fn changed(folder: &Path, from: &str, to: &str) -> String {
    assert_eq!(from.len(), to.len());
    let path = folder.join("model.q4nx");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    std::fs::write(&path, bytes).unwrap();
    ModelFiles::open(folder, Vec::new(), &ModelLimits::DEFAULT).unwrap_err().to_string()
}

#[test]
fn files_that_differ_are_refused_by_name() {
    let folder = empty_folder("convert-q4nx-refused");
    let out = folder.join("gemma2");
    write(&open(&committed("gemma2")), &out, &options("q4nx")).unwrap();
    let error = changed(&out, "girih.q4nx", "girih.q5nx");
    assert!(error.contains("model.q4nx has of architecture gemma2 is not described"), "{error}");
    let out = folder.join("small");
    write(&open(&committed(SMALL)), &out, &options("q4nx")).unwrap();
    let config = std::fs::read_to_string(out.join("config.json")).unwrap();
    let intermediate = config.split("\"intermediate_size\":").nth(1).unwrap();
    let size: usize = intermediate.split([',', '\n', '}']).next().unwrap().trim().parse().unwrap();
    let other = config
        .replace(&format!("\"intermediate_size\": {size}"), &format!("\"intermediate_size\": {}", size + 32));
    assert_ne!(config, other);
    std::fs::write(out.join("config.json"), other).unwrap();
    let error = ModelFiles::open(&out, Vec::new(), &ModelLimits::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("tiles, but") && error.contains("values take"), "{error}");
}
