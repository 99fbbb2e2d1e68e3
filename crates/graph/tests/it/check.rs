//! Every rule of the checker, broken in a graph that has no other fault.

use girih_graph::{Graph, GroupId, Role, ValueId, faults};
use girih_tensor::{DType, Shape};

use crate::forms::{EMBEDDINGS, ENCODER, TOKENS, edited, parse};
use crate::random;

#[test]
fn sound_graphs_have_no_faults() {
    assert_eq!(faults(&parse(TOKENS)), []);
    assert_eq!(faults(&parse(EMBEDDINGS)), []);
    assert_eq!(faults(&parse(ENCODER)), []);
    for seed in 0..300 {
        assert_eq!(faults(&random::graph(seed)), [], "seed {seed}");
    }
}

/// Asserts that the graph has a fault of this name whose sentence contains `words`.
fn expect(graph: &Graph, name: &str, words: &str) {
    let found = faults(graph);
    assert!(
        found.iter().any(|fault| fault.name == name && fault.sentence.contains(words)),
        "no fault '{words}' of '{name}' among {found:#?}"
    );
}

/// Edits the form's text and expects a fault.
fn edit(from: &str, to: &str, name: &str, words: &str) {
    expect(&parse(&edited(TOKENS, from, to)), name, words);
}

/// Changes the parsed form and expects a fault.
fn change(name: &str, words: &str, change: impl FnOnce(&mut Graph)) {
    let mut graph = parse(TOKENS);
    change(&mut graph);
    expect(&graph, name, words);
}

/// The index of the value of this name.
fn at(graph: &Graph, name: &str) -> usize {
    graph.find(name).expect("the form has the value").0 as usize
}

/// The index of the node that writes the value of this name.
fn node(graph: &Graph, name: &str) -> usize {
    let id = graph.find(name);
    graph.nodes.iter().position(|node| Some(node.output) == id).expect("the form has the node")
}

/// The innermost dimension of a value of rank 1 is its rows.
#[test]
fn a_norm_needs_a_dimension_within_its_rows() {
    for op in ["norm", "layer_norm"] {
        let text = format!(
            "graph rows 4 sequences 1 context 64 output_rows 1 -> hidden\ninput x: [rows 4] f32\n\
             weight w: [4] f32\ny: [rows 4] = {op}(epsilon=1e-5) x, w\noutput z: [output_rows 1] = gather y\n"
        );
        expect(&parse(&text), "y", "its operands do not have the shapes it needs");
    }
}

#[test]
fn rule_1_names_are_plain_and_unique() {
    change("a b", "letters, digits", |g| g.values[3].name = "a b".into());
    change("", "letters, digits", |g| g.values[3].name.clear());
    change("tokens", "two values", |g| g.values[3].name = "tokens".into());
    change("a\nb", "letters, digits", |g| g.groups[0].name = "a\nb".into());
    change("full", "two groups", |g| g.groups[1].name = "full".into());
}

#[test]
fn rule_2_ids_name_values_and_groups() {
    change("node 0", "not a value of the graph", |g| g.nodes[0].inputs[1] = ValueId(1000));
    change("node 7", "not a value of the graph", |g| g.nodes[7].output = ValueId(u32::MAX));
    change("layers.0.keys", "its group is not a group of the graph", |g| {
        let index = at(g, "layers.0.keys");
        g.values[index].role = Role::State(GroupId(2));
    });
}

/// Exchanges the indexes of two values, and all references to them.
fn exchange(graph: &mut Graph, names: [&str; 2]) {
    let [a, b] = names.map(|name| at(graph, name));
    graph.values.swap(a, b);
    let renamed = |id: &mut ValueId| match id.0 as usize {
        index if index == a => id.0 = b as u32,
        index if index == b => id.0 = a as u32,
        _ => {}
    };
    for node in &mut graph.nodes {
        node.inputs.iter_mut().for_each(renamed);
        renamed(&mut node.output);
    }
}

#[test]
fn rule_3_values_come_before_their_use() {
    change("embed", "stands before its operand 'embed.rows'", |g| exchange(g, ["embed.rows", "embed"]));
    change("layers.0.up", "stands before the result of an earlier node", |g| {
        exchange(g, ["layers.0.gate", "layers.0.up"]);
    });
    // The declaration of the state would also declare a result that is written later.
    change("layers.0.k", "stands before the result of an earlier node", |g| {
        let [write, k] = ["layers.0.keys", "layers.0.k"].map(|name| node(g, name));
        let write = g.nodes.remove(write);
        g.nodes.insert(k, write);
    });
}

#[test]
fn rule_4_values_are_written_once_and_by_the_right_op() {
    change("layers.0.norm", "two nodes write it", |g| {
        let norm = g.nodes[node(g, "layers.0.norm")].clone();
        g.nodes.insert(3, norm);
    });
    change("layers.0.keys", "two nodes write it", |g| {
        let write = g.nodes[node(g, "layers.0.keys")].clone();
        g.nodes.insert(14, write);
    });
    change("layers.0.norm", "nothing writes it", |g| {
        let norm = node(g, "layers.0.norm");
        g.nodes.remove(norm);
    });
    change("tokens", "does not write values of its role", |g| g.nodes[1].output = ValueId(0));
    change("embed.table", "does not write values of its role", |g| g.nodes[1].output = ValueId(1));
    edit(
        "layers.0.keys = write layers.0.k.rotated",
        "layers.0.keys = reshape layers.0.k.rotated",
        "layers.0.keys",
        "does not write",
    );
    edit(
        "layers.0.read: [rows 8, 32] = add embed, layers.0.o",
        "layers.0.read: [rows 8, 32] = write embed",
        "layers.0.read",
        "does not write",
    );
}

#[test]
fn rule_5_nothing_is_read_before_it_is_written() {
    edit("layers.0.keys = write layers.0.k.rotated\n", "", "layers.0.mixed", "reads 'layers.0.keys' before");
    change("embed", "reads 'embed.rows' before anything", |g| g.nodes.swap(0, 1));
}

#[test]
fn rule_6_there_is_an_input_and_one_output_and_every_value_is_read() {
    edit("input tokens", "weight tokens", "graph", "has no input");
    edit("output logits", "logits", "graph", "0 values of the role output");
    edit("output logits", "logits", "logits", "nothing reads it");
    edit("head.norm: [output_rows", "output head.norm: [output_rows", "graph", "2 values of the role output");
    edit(
        "logits.raw: [output_rows 4, 16] = linear head.norm,",
        "logits.raw: [output_rows 4, 16] = linear head.rows,",
        "head.norm",
        "nothing reads it",
    );
    edit("tokens: [rows 8] i32", "tokens: [rows 8] f16", "tokens", "f16 does not suit");
    edit("tokens: [rows 8] i32", "tokens: [rows 8, 2] i32", "tokens", "i32 does not suit");
}

#[test]
fn rule_7_types_suit_roles() {
    change("embed", "f16 does not suit", |g| g.values[3].dtype = DType::F16);
    change("logits", "bf16 does not suit", |g| {
        g.values.last_mut().expect("it has values").dtype = DType::BF16
    });
    edit(
        "state layers.0.keys: [context 128, 2, 8] f16",
        "state layers.0.keys: [context 128, 2, 8] i8",
        "layers.0.keys",
        "i8 does not suit",
    );
    edit(
        "state layers.0.keys: [context 128, 2, 8] f16",
        "state layers.0.keys: [context 128, 2, 8] q8_0",
        "layers.0.keys",
        "heads of 8 values cannot be kept as q8_0, whose blocks hold 32",
    );
    edit(
        "state layers.0.keys: [context 128, 2, 8] f16",
        "state layers.0.keys: [context 128, 2, 8] q4_0",
        "layers.0.keys",
        "heads of 8 values cannot be kept as q4_0, whose blocks hold 32",
    );
    edit(
        "layers.0.q.bias: [32] f32",
        "layers.0.q.bias: [32, 8] q8_0",
        "layers.0.q.bias",
        "q8_0 does not suit",
    );
}

#[test]
fn rule_6_only_splice_reads_given_rows() {
    let words = "is read by 'splice' as given rows and by another op; use two inputs";
    let edit = |from: &str, to: &str, name: &str| expect(&parse(&edited(ENCODER, from, to)), name, words);
    edit("layer_norm(epsilon=1e-12) embed,", "layer_norm(epsilon=1e-12) image,", "image");
    edit("splice embed.sum, image", "splice image, image", "image");
}

const SHAPES: &str = "do not have the shapes";

#[test]
fn rule_7_ops_of_encoders_have_fitting_operands() {
    let edit = |from: &str, to: &str, name: &str| expect(&parse(&edited(ENCODER, from, to)), name, SHAPES);
    edit("embed.norm.bias: [16]", "embed.norm.bias: [15]", "embed.norm");
    edit("splice embed.sum, image", "splice embed.sum, embed.types", "embed");
    edit("input image: [rows 8, 16]", "input image: [rows 8, 15]", "embed");
    edit("layers.0.gelu: [rows 8, 32]", "layers.0.gelu: [rows 8, 16]", "layers.0.gelu");
    edit("pooled: [sequences 2, 16]", "pooled: [sequences 2, 15]", "pooled");
    edit("pooled: [sequences 2, 16]", "pooled: [output_rows 1, 16]", "pooled");
    edit("layers.0.v.heads: [rows 8, 2, 4]", "layers.0.v.heads: [rows 8, 1, 8]", "layers.0.mixed");
    expect(&parse(&TOKENS.replace("tokens: [rows 8] i32", "tokens: [rows 8] f32")), "embed.rows", SHAPES);
}

#[test]
fn rule_7_elementwise_ops_have_operands_of_equal_shapes() {
    edit("embed: [rows 8, 32] = scale", "embed: [rows 8, 16] = scale", "embed", SHAPES);
    edit("logits: [output_rows 4, 16] = softcap", "logits: [output_rows 4, 15] = softcap", "logits", SHAPES);
    edit("= add embed, layers.0.o", "= add embed, layers.0.q.heads", "layers.0.read", SHAPES);
    edit("layers.0.gate, layers.0.up", "layers.0.read, layers.0.up", "layers.0.gated", SHAPES);
    edit("layers.0.gate, layers.0.up", "layers.0.gate", "layers.0.gated", "too few or too many");
    edit("head.rows, head.norm.weight", "head.rows, layers.0.gate.weight", "head.norm", SHAPES);
    edit("embed, layers.0.norm.weight", "embed, embed", "layers.0.norm", SHAPES);
    edit("layers.0.flat: [rows 8, 32]", "layers.0.flat: [rows 8, 31]", "layers.0.flat", SHAPES);
    edit("layers.0.flat: [rows 8, 32]", "layers.0.flat: [32, 8]", "layers.0.flat", SHAPES);
}

#[test]
fn rule_7_embed_and_linear_have_fitting_matrices() {
    edit("embed.rows: [rows 8, 32]", "embed.rows: [rows 8, 4, 8]", "embed.rows", SHAPES);
    edit("embed.rows: [rows 8, 32]", "embed.rows: [output_rows 4, 32]", "embed.rows", SHAPES);
    edit("= embed tokens, embed.table", "= embed tokens, tokens", "embed.rows", SHAPES);
    edit("= embed tokens, embed.table", "= scale(factor=1.0) tokens", "embed.rows", "only 'embed' reads ids");
    edit("layers.0.q: [rows 8, 32]", "layers.0.q: [rows 8, 64]", "layers.0.q", SHAPES);
    edit("layers.0.q.bias: [32]", "layers.0.q.bias: [31]", "layers.0.q", SHAPES);
    edit("layers.0.flat, layers.0.o.weight", "layers.0.flat, layers.0.k.weight", "layers.0.o", SHAPES);
    edit("layers.0.gated, layers.0.down", "layers.0.read, layers.0.down", "layers.0.down", SHAPES);
    edit("layers.0.flat, layers.0.o.weight", "layers.0.flat, layers.0.flat", "layers.0.o", SHAPES);
    edit("layers.0.flat, layers.0.o.weight", "layers.0.keys, layers.0.o.weight", "layers.0.o", SHAPES);
}

#[test]
fn rule_7_positional_ops_read_rows() {
    edit(
        "rope(pairing=halves) layers.0.q.heads",
        "rope(pairing=halves) layers.0.q",
        "layers.0.q.rotated",
        SHAPES,
    );
    edit("rope.halves: [4]", "rope.halves: [5]", "layers.0.q.rotated", SHAPES);
    edit("rope.halves: [4]", "rope.halves: [9223372036854775808]", "layers.0.q.rotated", SHAPES);
    edit("write layers.0.v.heads", "write layers.0.v", "layers.0.values", SHAPES);
    edit("write layers.0.v.heads", "write layers.0.q.heads", "layers.0.values", SHAPES);
    edit("head.rows: [output_rows 4, 32]", "head.rows: [rows 8, 32]", "head.rows", SHAPES);
    edit("head.rows: [output_rows 4, 32]", "head.rows: [output_rows 4, 33]", "head.rows", SHAPES);
    edit("= gather layers.1.out", "= gather embed.table", "head.rows", SHAPES);
    let output_rows = TOKENS.replace("rows 8", "output_rows 4");
    expect(&parse(&output_rows.replace("graph output_rows 4", "graph rows 8")), "layers.0.mixed", SHAPES);
    expect(&parse(&output_rows.replace("graph output_rows 4", "graph rows 8")), "layers.0.q.rotated", SHAPES);
}

/// A graph of square matrices in which rows, output rows and width are 4, so
/// that its values differ only in their roles and the kinds of their extents.
const SQUARE: &str = "graph rows 4 sequences 1 context 64 output_rows 4 -> hidden
group full span full
input tokens: [rows 4] i32
weight table: [4, 4] f32
x: [rows 4, 4] = embed tokens, table
weight matrix: [4, 4] f32
weight bias: [4] f32
y: [rows 4, 4] = linear x, matrix, bias
weight line: [1, 4] f32
column: [rows 4, 1] = linear y, line
flat: [rows 4] = reshape column
same: [rows 4] = scale(factor=1.0) flat
weight gain: [4] f32
normed: [rows 4, 4] = norm(epsilon=0.0) y, gain
heads: [rows 4, 1, 4] = reshape normed
weight frequencies: [2] f32
rotated: [rows 4, 1, 4] = rope(pairing=halves) heads, frequencies
state keys: [context 64, 1, 4] f32 in full
keys = write rotated
seen: [rows 4, 1, 4] = attend(scale=1.0 span=full) rotated, keys, keys
thick: [rows 4, 4] = reshape seen
thin: [rows 4, 1] = reshape same
weight gains: [4, 1] f32
again: [rows 4, 4] = linear thin, gains
all: [rows 4, 4] = add thick, again
output z: [output_rows 4, 4] = gather all
";

#[test]
fn rule_7_values_of_the_right_shape_need_the_right_role() {
    assert_eq!(faults(&parse(SQUARE)), []);
    let edit = |from: &str, to: &str, name: &str| expect(&parse(&edited(SQUARE, from, to)), name, SHAPES);
    edit("linear x, matrix, bias", "linear x, x, bias", "y");
    edit("linear thin, gains", "linear thin, thin", "again");
    edit("norm(epsilon=0.0) y, gain", "norm(epsilon=0.0) y, same", "normed");
    edit("x: [rows 4, 4] = embed", "x: [output_rows 4, 4] = embed", "x");
    edit("y: [rows 4, 4] = linear", "y: [output_rows 4, 4] = linear", "y");
    edit("= add thick, again", "= add thick, matrix", "all");
    edit("= add thick, again", "= embed tokens, thick", "all");
    edit("thick: [rows 4, 4]", "thick: [output_rows 4, 4]", "thick");
    edit("seen: [rows 4, 1, 4]", "seen: [output_rows 4, 1, 4]", "seen");
    edit("rotated: [rows 4, 1, 4]", "rotated: [output_rows 4, 1, 4]", "rotated");
    edit("rotated: [rows 4, 1, 4]", "rotated: [output_rows 4, 1, 4]", "keys");
    let rotated_by_its_rows = "graph rows 4 sequences 1 context 64 output_rows 4 -> hidden
        input x: [rows 4] f32
        column: [rows 4, 1] = reshape x
        weight line: [8, 1] f32
        y: [rows 4, 8] = linear column, line
        heads: [rows 4, 1, 8] = reshape y
        rotated: [rows 4, 1, 8] = rope(pairing=halves) heads, x
        output z: [output_rows 4, 1, 8] = gather rotated";
    expect(&parse(rotated_by_its_rows), "rotated", SHAPES);
}

#[test]
fn rule_7_query_heads_are_a_multiple_of_kv_heads() {
    let keys = |size: &str| TOKENS.replace("[context 128, 2, 8]", &format!("[context 128, {size}]"));
    for size in ["3, 8", "2, 7", "1, 8", "16"] {
        expect(&parse(&keys(size)), "layers.0.keys", SHAPES);
    }
    expect(&parse(&keys("3, 8")), "layers.0.mixed", SHAPES);
    expect(&parse(&keys("2, 7")), "layers.0.mixed", SHAPES);
    edit(
        "layers.0.keys: [context 128, 2, 8]",
        "layers.0.keys: [context 128, 2, 7]",
        "layers.0.mixed",
        SHAPES,
    );
    edit(
        "layers.0.values: [context 128, 2, 8]",
        "layers.0.values: [context 128, 1, 8]",
        "layers.0.mixed",
        SHAPES,
    );
    edit("layers.0.mixed: [rows 8, 4, 8]", "layers.0.mixed: [rows 8, 8, 4]", "layers.0.mixed", SHAPES);
}

#[test]
fn rule_8_outermost_extents_count_what_roles_require() {
    const COUNTS: &str = "does not count";
    edit("tokens: [rows 8] i32", "tokens: [8] i32", "tokens", COUNTS);
    edit("weight rope.halves: [4]", "weight rope.halves: [output_rows 4]", "rope.halves", COUNTS);
    edit("layers.0.keys: [context 128,", "layers.0.keys: [rows 8,", "layers.0.keys", COUNTS);
    edit("layers.0.flat: [rows 8,", "layers.0.flat: [8,", "layers.0.flat", COUNTS);
    edit("layers.0.flat: [rows 8,", "layers.0.flat: [context 128,", "layers.0.flat", COUNTS);
    edit("output logits: [output_rows 4,", "output logits: [rows 8,", "logits", COUNTS);
    edit("layers.0.flat: [rows 8,", "layers.0.flat: [rows 9,", "layers.0.flat", "is 9; the key says 8");
    edit("graph rows 8", "graph rows 9", "tokens", "is 8; the key says 9");
    edit("-> logits", "-> pooled", "logits", COUNTS);
    expect(&parse(&edited(ENCODER, "-> pooled", "-> hidden")), "head", COUNTS);
    expect(&parse(&ENCODER.replace("[sequences 2,", "[sequences 3,")), "pooled", "is 3; the key says 2");
    edit("context 128 output_rows", "context 64 output_rows", "layers.1.values", "is 128; the key says 64");
}

#[test]
fn rule_9_attention_sees_as_far_as_its_group() {
    const GROUP: &str = "neither state of one group with its span, nor rows";
    edit("span=full", "span=window:5", "layers.0.mixed", GROUP);
    edit("group window_4 span window:4", "group window_4 span window:5", "layers.1.mixed", GROUP);
    edit(
        "state layers.0.values: [context 128, 2, 8] f16 in full",
        "state layers.0.values: [context 128, 2, 8] f16 in window_4",
        "layers.0.mixed",
        GROUP,
    );
    edit(
        "layers.0.q.rotated, layers.0.keys,",
        "layers.0.q.rotated, layers.0.k.rotated,",
        "layers.0.mixed",
        GROUP,
    );
    edit("group full span full", "group full span all", "full", "state cannot hold later positions");
    for span in ["full", "window:4"] {
        let text = edited(ENCODER, "span=all", &format!("span={span}"));
        expect(&parse(&text), "layers.0.mixed", "nor rows with the span 'all' or 'mutual'");
    }
}

#[test]
fn rule_10_constants_and_extents_are_finite_and_positive() {
    const FINITE: &str = "not finite";
    let norm = "norm(epsilon=1e-5) embed,";
    for epsilon in ["inf", "NaN", "-1e-5", "1e400"] {
        edit(norm, &format!("norm(epsilon={epsilon}) embed,"), "layers.0.norm", FINITE);
    }
    for (from, to, name) in [
        ("factor=5.656854", "factor=-inf", "embed"),
        ("cap=30.0", "cap=0.0", "logits"),
        ("softcap=50.0", "softcap=-50.0", "layers.1.mixed"),
        ("scale=0.35355338 span=full", "scale=NaN span=full", "layers.0.mixed"),
        ("span=window:4 softcap", "span=window:0 softcap", "layers.1.mixed"),
    ] {
        let words = if to.contains("window") { "state of one group" } else { FINITE };
        edit(from, to, name, words);
    }
    edit("group window_4 span window:4", "group window_4 span window:0", "window_4", "no positions");
    edit("embed.table: [16,", "embed.table: [0,", "embed.table", "an extent is zero");
    for zero in
        ["rows 0 sequences 2 context 128 output_rows 4", "rows 8 sequences 0 context 128 output_rows 4"]
    {
        edit("rows 8 sequences 2 context 128 output_rows 4", zero, "graph", "at least one");
    }
}

#[test]
fn rule_10_values_fit_into_the_address_space_of_a_process() {
    // 2^41 x 32 numbers of 4 bytes are 2^48 bytes; two values of 2^46 bytes are
    // 2^47 together, so that the other values exceed the maximum.
    edit("embed.table: [16, 32]", "embed.table: [2199023255552, 32]", "embed.table", "more bytes than");
    let half = edited(TOKENS, "layers.0.gate.weight: [64,", "layers.0.gate.weight: [549755813888,");
    let both = edited(&half, "layers.0.up.weight: [64,", "layers.0.up.weight: [549755813888,");
    assert!(faults(&parse(&half)).iter().all(|fault| !fault.sentence.contains("more bytes than")));
    expect(&parse(&both), "layers.0.up.weight", "more bytes than");
    // The product of the extents would overflow without the zero.
    change("layers.0.keys", "an extent is zero", |g| {
        let index = at(g, "layers.0.keys");
        g.values[index].shape = Shape::new(&[0, 1 << 40, 1 << 40]).expect("has no elements");
    });
}
