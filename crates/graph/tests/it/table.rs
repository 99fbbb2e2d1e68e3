//! The op table: every entry has a text form, operand rules and a meaning. A
//! small graph of each op is found by search, so a new entry needs no case here.

use girih_graph::{Graph, Op, OpSpec, OperandKind, faults};

use crate::forms::parse;
use crate::session;

/// Texts of constants, at least one for each type.
const CONSTANT_TEXTS: [&str; 7] = ["1.0", "1", "full", "halves", "silu", "first", "softmax"];

/// Inner extents to try for activations and state.
const INNER_EXTENTS: [&str; 4] = [", 2", "", ", 1, 2", ", 2, 2"];

/// Inner extents of results that none of these is.
const FURTHER_RESULTS: [&str; 3] = [", 1, 1", ", 2, 4", ", 4"];

/// Extents to try for weights.
const WEIGHT_EXTENTS: [&str; 3] = ["1", "2", "2, 2"];

/// What the node of the op writes.
#[derive(Clone, Copy)]
enum ResultKind {
    Rows,
    OutputRows,
    Sequences,
    State,
}

/// The sizes of a graph in which node `y` is the op under test.
#[derive(Clone, Copy)]
struct SmallGraph {
    x: &'static str,
    weights: [&'static str; 2],
    result: ResultKind,
    y: &'static str,
}

impl SmallGraph {
    fn all() -> impl Iterator<Item = SmallGraph> {
        let results = [ResultKind::Rows, ResultKind::OutputRows, ResultKind::Sequences, ResultKind::State];
        INNER_EXTENTS.into_iter().flat_map(move |x| {
            WEIGHT_EXTENTS.into_iter().flat_map(move |first| {
                WEIGHT_EXTENTS.into_iter().flat_map(move |second| {
                    results.into_iter().flat_map(move |result| {
                        INNER_EXTENTS.into_iter().chain(FURTHER_RESULTS).map(move |y| SmallGraph {
                            x,
                            weights: [first, second],
                            result,
                            y,
                        })
                    })
                })
            })
        })
    }

    /// The graph in which `y` is `op` of these operands.
    fn text(&self, op: &str, operands: &[String]) -> String {
        let SmallGraph { x, weights, result, y } = self;
        let uses = |name: &str| operands.iter().any(|operand| operand == name);
        let output = if matches!(result, ResultKind::Sequences) { "pooled" } else { "hidden" };
        let mut text = format!("graph rows 2 sequences 1 context 64 output_rows 1 -> {output}\n");
        text += "group full span full\n";
        if uses("carried") || uses("matrices") || uses("matrix") {
            text += "group carried carried\n";
        }
        if uses("tokens") {
            text += "input tokens: [rows 2] i32\n";
        }
        if !uses("tokens") && !uses("heads")
            || uses("x")
            || uses("carried")
            || uses("kept")
            || matches!(result, ResultKind::State)
        {
            text += &format!("input x: [rows 2{x}] f32\n");
        }
        if uses("heads") {
            text += "input heads: [rows 2, 2, 2] f32\n";
        }
        if uses("by_head") {
            text += "input by_head: [rows 2, 1] f32\n";
        }
        if uses("selected") {
            text += "input selected: [rows 2, 4] f32\n";
        }
        if uses("given") {
            text += &format!("input given: [rows 2{x}] f32\n");
        }
        let [first, second] = weights;
        let extents = [("w0", *first), ("w1", *second), ("w2", *second), ("m", "2, 2, 2")];
        for (name, extents) in extents.into_iter().filter(|(name, _)| uses(name)) {
            text += &format!("weight {name}: [{extents}] f32\n");
        }
        if uses("kept") {
            text += &format!("state kept: [context 64{x}] f32 in full\nkept = write x\n");
        }
        if uses("matrices") {
            text += "state matrices: [2, 2, 2] f32 in carried\n";
        }
        if uses("carried") {
            text += &format!("state carried: [1{x}] f32 in carried\n");
        }
        if uses("matrix") {
            text += "state matrix: [1, 2, 2] f32 in carried\n";
        }
        let call = format!("{op} {}", operands.join(", "));
        text + &match result {
            ResultKind::Rows => {
                format!("y: [rows 2{y}] = {call}\noutput z: [output_rows 1{y}] = gather y\n")
            }
            ResultKind::OutputRows => format!("output y: [output_rows 1{y}] = {call}\n"),
            ResultKind::Sequences => format!("output y: [sequences 1{y}] = {call}\n"),
            ResultKind::State => format!(
                "state y: [context 64{y}] f32 in full\ny = {call}\n\
                 seen: [rows 2{x}] = attend(scale=1.0 span=full) x, y, y\n\
                 output z: [output_rows 1{x}] = gather seen\n"
            ),
        }
    }
}

/// The names of the first `count` operands of an op in [`SmallGraph::text`].
fn operands(spec: &OpSpec, count: usize) -> Vec<String> {
    let mut weights = 0..;
    let name = |(index, kind): (usize, &OperandKind)| match kind {
        // Their operands have different ranks.
        OperandKind::Rows if spec.name == "delta_rule" && index < 3 => "heads".to_owned(),
        OperandKind::Carried if spec.name == "delta_rule" => "matrices".to_owned(),
        OperandKind::Activations if spec.name == "linear_heads" => "heads".to_owned(),
        OperandKind::Activations if matches!(spec.name, "gate_heads" | "mix_heads") && index == 1 => {
            "heads".to_owned()
        }
        OperandKind::Rows if spec.name == "ssm_scan" && index == 1 => "by_head".to_owned(),
        OperandKind::Rows if spec.name == "select_keys" && index == 1 => "by_head".to_owned(),
        OperandKind::Rows if spec.name == "rope" && index == 2 => "by_head".to_owned(),
        OperandKind::Rows if spec.name == "attend_latent" && index == 2 => "selected".to_owned(),
        OperandKind::Carried if spec.name == "ssm_scan" => "matrix".to_owned(),
        OperandKind::Ids => "tokens".to_owned(),
        OperandKind::Given => "given".to_owned(),
        OperandKind::Rows | OperandKind::Activations => "x".to_owned(),
        OperandKind::Matrices => "m".to_owned(),
        OperandKind::Matrix | OperandKind::Vector => {
            format!("w{}", weights.next().expect("the range has no end"))
        }
        OperandKind::StateOrRows => "kept".to_owned(),
        OperandKind::Carried => "carried".to_owned(),
    };
    spec.operands[..count].iter().enumerate().map(name).collect()
}

/// An op as it is printed; optional constants are absent. Each constant has the
/// first text that the parser accepts.
fn printed(spec: &OpSpec) -> String {
    let printed = |constants: &[String]| match constants {
        [] => spec.name.to_owned(),
        _ => format!("{}({})", spec.name, constants.join(" ")),
    };
    let graph = SmallGraph::all().next().expect("the lists are not empty");
    let parse = |constants: &[String]| {
        let text = graph.text(&printed(constants), &operands(spec, spec.required));
        text.parse::<Graph>().map_err(|error| error.to_string())
    };
    let mut constants = Vec::new();
    for name in spec.constants {
        let needed = format!("needs '{name}='");
        if !parse(&constants).is_err_and(|error| error.contains(&needed)) {
            continue;
        }
        let with = |text: &&str| [&constants[..], &[format!("{name}={text}")]].concat();
        let accepted = CONSTANT_TEXTS
            .iter()
            .map(with)
            .find(|constants| parse(constants).map_or_else(|error| error.contains(" needs '"), |_| true));
        constants =
            accepted.unwrap_or_else(|| panic!("CONSTANT_TEXTS has none for '{name}' of {}", spec.name));
    }
    printed(&constants)
}

/// The first graph without faults for an op with `count` operands.
fn sound(spec: &OpSpec, count: usize) -> SmallGraph {
    let (op, operands) = (printed(spec), operands(spec, count));
    let sound = SmallGraph::all().find(|graph| faults(&parse(&graph.text(&op, &operands))).is_empty());
    sound.unwrap_or_else(|| panic!("no graph of '{op}' with {count} operands is without faults"))
}

/// The sentences of the faults of node `y`.
fn faults_of_y(text: &str) -> Vec<String> {
    let of_y = faults(&parse(text)).into_iter().filter(|fault| fault.name == "y");
    of_y.map(|fault| fault.sentence).collect()
}

#[test]
fn every_op_prints_parses_and_runs() {
    for spec in Op::table() {
        for count in spec.required..=spec.operands.len() {
            let text = sound(spec, count).text(&printed(spec), &operands(spec, count));
            let graph = parse(&text);
            assert_eq!(graph.to_string(), text);
            assert!(graph.nodes.iter().any(|node| std::ptr::eq(node.op.spec(), spec)), "{text}");
            session::run_once(&graph);
        }
    }
}

#[test]
fn names_of_ops_and_of_their_constants_are_unique() {
    let names: Vec<&str> = Op::table().iter().map(|spec| spec.name).collect();
    for list in [&names[..]].into_iter().chain(Op::table().iter().map(|spec| spec.constants)) {
        for (index, name) in list.iter().enumerate() {
            assert!(!list[..index].contains(name), "'{name}' is there twice");
        }
    }
}

#[test]
fn every_op_refuses_other_numbers_of_operands() {
    for spec in Op::table() {
        let all = spec.operands.len();
        let (graph, op, operands) = (sound(spec, all), printed(spec), operands(spec, all));
        let more = [&operands[..], &operands[..1]].concat();
        let few = operands[..spec.required - 1].to_vec();
        for wrong in [more, few].iter().filter(|wrong| !wrong.is_empty()) {
            let found = faults_of_y(&graph.text(&op, wrong));
            let sentence = format!("{}: it has too few or too many operands", spec.name);
            assert!(found.contains(&sentence), "{op} {wrong:?}: {found:?}");
        }
    }
}

#[test]
fn every_op_refuses_operands_of_other_kinds() {
    for spec in Op::table() {
        let all = spec.operands.len();
        let (graph, op, right) = (sound(spec, all), printed(spec), operands(spec, all));
        let names = ["x", "w0", "w1", "m", "kept", "carried", "tokens", "given"];
        for (index, name) in (0..all).flat_map(|index| names.map(|name| (index, name))) {
            let is_alike = |names: [&str; 2]| names.contains(&right[index].as_str()) && names.contains(&name);
            let are_weights = right[index].starts_with('w') && name.starts_with('w');
            if right[index] == name || are_weights || is_alike(["x", "given"]) {
                continue;
            }
            let mut wrong = right.clone();
            wrong[index] = name.to_owned();
            let found = faults_of_y(&graph.text(&op, &wrong));
            assert!(!found.is_empty(), "{op} {wrong:?} has no fault");
        }
    }
}

#[test]
fn every_op_refuses_missing_unknown_and_infinite_constants() {
    for spec in Op::table() {
        let (graph, op) = (sound(spec, spec.required), printed(spec));
        let operands = operands(spec, spec.required);
        let error = |op: &str| graph.text(op, &operands).parse::<Graph>().map_err(|error| error.to_string());
        let unknown = match op.strip_suffix(')') {
            Some(open) => format!("{open} other=1)"),
            None => format!("{op}(other=1)"),
        };
        let refused = error(&unknown).expect_err("no op has a constant 'other'");
        assert!(refused.contains(&format!("{} has no constant 'other'", spec.name)), "{refused}");
        let (_, list) = op.split_once('(').unwrap_or((&op, ")"));
        for pair in list.trim_end_matches(')').split_whitespace() {
            let (name, text) = pair.split_once('=').expect("constants are printed as pairs");
            let refused = error(&op.replace(pair, "")).expect_err("the constant is not optional");
            assert!(refused.contains(&format!("{} needs '{name}='", spec.name)), "{refused}");
            if text.contains('.') {
                let infinite = op.replace(pair, &format!("{name}=inf"));
                let found = faults_of_y(&graph.text(&infinite, &operands));
                assert!(found.iter().any(|fault| fault.contains("not finite")), "{infinite}: {found:?}");
            }
        }
    }
}
