//! Every family of models on the array: its steps compile, and `docs/npu.md` has the table of what the host computes.
//!
//! The models are those of `tests/families.jsonl`, each made from its `config.json` alone, and those of `tests/fixtures`.
//! `UPDATE=1` writes the table anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use girih_graph::split::Site;
use girih_graph::{Graph, Key, Op, OutputKind};
use girih_model::{ModelFiles, ModelLimits, ModelShape, TowerPart};
use girih_npu::Target;
use girih_npu::driver::Compiler;
use girih_npu::pass::{ArrayMapping, NoDump, array_split};
use girih_tensor::{DType, Result};
use serde_json::Value as Json;

/// The models of the repository whose families `families.jsonl` lacks, or whose `config.json` alone does not suffice.
const FIXTURES: [&str; 16] = [
    "bert",
    "nomic_bert",
    "laguna",
    "gemma3_vision",
    "gemma4",
    "gemma4_26b",
    "gemma4_31b",
    "gemma4_unified",
    "gemma4_vision",
    "idefics3",
    "mistral3",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_5_vision",
    "qwen3_vl",
    "qwen3_vl_moe",
];

/// What the host computes of every model; the text above the table names it.
const OF_EVERY_MODEL: [&str; 4] = [
    "the host looks up the rows of tokens",
    "its rows are embeddings, which the host has looked up",
    "the KV cache is in host memory",
    "only the host has the list of output rows",
];

/// Why the host computes what follows the gather of output rows: the last norm of every model, and what some have besides.
const OUTPUT_ROWS: &str = "its rows are output rows, which the host has gathered";

/// The lines around the table in the document.
const BEGIN: &str = "| family | step of 64 rows | token | of these on the host |\n|---|--:|--:|---|\n";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn key(rows: u32, output: OutputKind) -> Key {
    Key { rows, sequences: 1, context: 128, output_rows: 1, output }
}

/// The nodes of steps that are no views: all, those on the host, and what these are.
#[derive(Default)]
struct StepNodes {
    all: usize,
    host: usize,
    what: BTreeSet<String>,
}

/// Compiles a step, and counts its nodes.
fn compiled(compiler: &Compiler, graph: &Graph) -> Result<StepNodes> {
    compiler.compile(graph, &mut NoDump)?;
    let split = array_split(graph, compiler.policy_for(graph));
    let mut nodes = StepNodes::default();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op != Op::Reshape) {
        nodes.all += 1;
        let Site::Host(reason) = split.site(index) else { continue };
        nodes.host += 1;
        let is_last_norm = matches!(node.op, Op::Norm { .. }) && reason == OUTPUT_ROWS;
        if is_last_norm || OF_EVERY_MODEL.contains(&reason.as_str()) {
            continue;
        }
        let missing = reason.strip_prefix("the array has no program for ");
        nodes.what.insert(match missing {
            Some(what) => what.replace('\'', "`"),
            None if reason == OUTPUT_ROWS => format!("`{}` of output rows", node.op.name()),
            None => reason.clone(),
        });
    }
    Ok(nodes)
}

/// The row of a model with graphs for these steps.
fn row(compiler: &Compiler, name: &str, steps: &[Graph]) -> String {
    let mut nodes: Vec<StepNodes> = Vec::new();
    for graph in steps {
        nodes
            .push(compiled(compiler, graph).unwrap_or_else(|error| panic!("{name}, {}: {error}", graph.key)));
    }
    let shown = |step: Option<&StepNodes>| {
        step.map_or("–".to_owned(), |step| format!("{} of {}", step.all - step.host, step.all))
    };
    let what: BTreeSet<&str> = nodes.iter().flat_map(|step| step.what.iter().map(String::as_str)).collect();
    let what: Vec<&str> = what.into_iter().collect();
    format!("| {name} | {} | {} | {} |\n", shown(nodes.first()), shown(nodes.get(1)), what.join(", "))
}

/// The rows of models whose graph follows from `config.json` alone, and the families whose graph does not.
fn of_configurations(compiler: &Compiler) -> (Vec<String>, Vec<String>) {
    let text = std::fs::read_to_string(repository("tests/families.jsonl")).unwrap();
    let (mut rows, mut others) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        let family = line["family"].as_str().unwrap().trim_end_matches("_text");
        let config = line["config"].to_string();
        let Ok(shape) = ModelShape::parse(config.as_bytes(), Vec::new(), &ModelLimits::DEFAULT) else {
            others.push(family.to_owned());
            continue;
        };
        let graphs = [64, 1].map(|rows| shape.graph(key(rows, OutputKind::Logits), DType::BF16).unwrap());
        rows.push(row(compiler, family, &graphs));
    }
    (rows, others)
}

/// The rows of a model with weights, and of its image tower, if it has one.
fn of_fixture(compiler: &Compiler, name: &str) -> Vec<String> {
    let path = repository("tests/fixtures").join(name);
    let model = ModelFiles::open(&path, Vec::new(), &ModelLimits::DEFAULT).unwrap();
    let mut found = Vec::new();
    let (steps, output): (&[u32], _) = match model.facts.is_encoder() {
        true => (&[64], OutputKind::Hidden),
        false => (&[64, 1], OutputKind::Logits),
    };
    let context = model.facts.sizes.context.min(128) as u32;
    let key = |rows: &u32| Key { context, ..key((*rows).min(context), output) };
    let graphs: Vec<Graph> = steps.iter().map(|rows| model.graph(key(rows), DType::BF16).unwrap()).collect();
    found.push(row(compiler, name, &graphs));
    if model.may_have_tower() {
        let tower = model.tower(None, &ModelLimits::DEFAULT).unwrap();
        let parts = [TowerPart::Patches, TowerPart::Cells].map(|part| tower.graph(part).unwrap());
        found.extend(
            parts
                .iter()
                .zip(["tower", "projector"])
                .map(|(graph, part)| row(compiler, &format!("{name}, {part}"), std::slice::from_ref(graph))),
        );
    }
    found
}

#[test]
fn every_family_compiles_and_the_table_of_its_nodes_is_up_to_date() {
    let target = Target::named("xdna2-strix").unwrap();
    // What may run on the array, whatever it costs with sizes as small as these.
    let mapping = ArrayMapping::named("mlir-air-array-attention").unwrap();
    let compiler = Compiler::new(target, mapping, None);
    let (mut rows, others) = of_configurations(&compiler);
    rows.extend(FIXTURES.iter().flat_map(|name| of_fixture(&compiler, name)));
    rows.sort_by_key(|row| row.replace([',', '|'], " "));
    let mut table = BEGIN.to_owned();
    rows.iter().for_each(|row| table += row);
    let covered = |family: &String| !FIXTURES.contains(&family.trim_end_matches("_text"));
    let left: Vec<String> = others.iter().filter(|family| covered(family)).cloned().collect();
    write!(
        table,
        "\nNot in the table, as a `config.json` alone does not give their graph: {}.\n",
        left.join(", ")
    )
    .unwrap();
    let path = repository("docs/npu.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the document has the table");
    let (_, after) = rest.split_once("does not give their graph: ").expect("the line below the table");
    let (_, after) = after.split_once(".\n").unwrap();
    let current = format!("{before}{table}{after}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &current).unwrap();
        return;
    }
    assert!(text == current, "the table of families is not up to date: run this test with UPDATE=1");
}
