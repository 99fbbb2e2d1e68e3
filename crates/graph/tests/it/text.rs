//! The text form: parsing inverts printing for graphs without faults, and refuses malformed text by line.

use girih_graph::{Graph, GroupId, Role, ValueId, faults};
use girih_tensor::Random;

use crate::forms::{EMBEDDINGS, ENCODER, TOKENS, edited, parse};
use crate::random;
use crate::session;

#[test]
fn golden_forms_print_as_they_are_written() {
    for text in [TOKENS, EMBEDDINGS, ENCODER] {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn random_graphs_survive_printing_and_parsing() {
    for seed in 0..300 {
        let graph = random::graph(seed);
        assert_eq!(parse(&graph.to_string()), graph, "seed {seed}");
    }
}

#[test]
fn spaces_and_empty_lines_do_not_matter() {
    let spaced = format!("\n{}", TOKENS.replace('\n', "  \r\n\n  "));
    assert_eq!(parse(&spaced), parse(TOKENS));
}

#[test]
fn state_may_have_the_name_of_a_keyword() {
    for word in ["group", "input", "weight", "state", "output"] {
        let text = TOKENS.replace("layers.0.keys", word);
        assert_eq!(parse(&text).to_string(), text);
        assert_eq!(faults(&parse(&text)), []);
    }
}

/// Asserts that the text is refused, with a sentence that names the line and contains `words`.
fn refused(text: &str, line: usize, words: &str) {
    let error = text.parse::<Graph>().expect_err(text).to_string();
    assert!(error.starts_with(&format!("line {line}: ")) && error.contains(words), "{error}");
}

#[test]
fn malformed_texts_are_refused_by_line() {
    refused("", 1, "empty");
    refused(" \n\n", 1, "empty");
    refused("\n\ngraph rows 8", 3, "begins with");
    for (from, to, line, words) in [
        ("rows 8 sequences", "rows -8 sequences", 1, "begins with"),
        ("rows 8 sequences", "rows 4294967296 sequences", 1, "begins with"),
        ("-> logits", "-> bytes", 1, "begins with"),
        ("-> logits", "-> logits twice", 1, "begins with"),
        ("group full span full", "group full", 2, "a group has a span, or is carried"),
        ("group full span full", "group full carries", 2, "a group has a span, or is carried"),
        ("span window:4\n", "span window:-4\n", 3, "'window:-4' is not a span"),
        ("group window_4 span", "group full span", 3, "'full' is declared twice"),
        ("tokens: [rows 8] i32", "tokens: rows 8] i32", 4, "is not a declaration"),
        ("tokens: [rows 8] i32", "tokens: [[rows 8] i32", 4, "not a list of extents"),
        ("tokens: [rows 8] i32", "tokens: [rows 8] i33", 4, "'i33' is not a storage format"),
        ("tokens: [rows 8] i32", "tokens: [rows 8] i32 in full", 4, "is not a storage format"),
        ("tokens: [rows 8] i32", "tokens: [] i32", 4, "not a list of extents"),
        ("tokens: [rows 8] i32", "tokens: [rows 1, 1, 1, 1, 1, 1] i32", 4, "6 dimensions"),
        ("embed.table: [16, 32]", "tokens: [16, 32]", 5, "'tokens' is declared twice"),
        ("embed tokens, embed.table", "embed tokens, embed.tabel", 6, "'embed.tabel' is not declared"),
        ("embed tokens, embed.table", "embed", 6, "is not a node"),
        ("embed tokens, embed.table", "embed(x=1) tokens, embed.table", 6, "no constant 'x'"),
        ("embed tokens, embed.table", "embed(x) tokens, embed.table", 6, "not a list of constants"),
        ("embed tokens, embed.table", "unembed tokens, embed.table", 6, "unknown op 'unembed'"),
        ("scale(factor=5.656854)", "scale(factor=five)", 7, "'five' is not a number"),
        ("scale(factor=5.656854)", "scale(factor=1 factor=2)", 7, "has it twice"),
        ("scale(factor=5.656854)", "scale()", 7, "needs 'factor='"),
        ("scale(factor=5.656854)", "scale(factor=1", 7, "is not a node"),
        ("pairing=halves) layers.0.q.heads", "pairing=thirds) layers.0.q.heads", 21, "'thirds'"),
        ("f16 in full\nlayers.0.keys", "f16\nlayers.0.keys", 23, "is not a state"),
        ("f16 in full\nlayers.0.keys", "f16 in half\nlayers.0.keys", 23, "its group"),
        ("layers.0.keys = write", "output layers.0.keys = write", 24, "is not a node"),
    ] {
        refused(&edited(TOKENS, from, to), line, words);
    }
}

#[test]
fn huge_extents_are_refused() {
    let with = |extents: &str| edited(TOKENS, "embed.table: [16, 32]", &format!("embed.table: [{extents}]"));
    refused(&with("18446744073709551616"), 5, "not a list of extents");
    refused(&with("18446744073709551615, 32"), 5, "exceeds the address space");
    refused(&with("4294967296, 4294967296"), 5, "exceeds the address space");
    // Sizes that fit into 64 bits, but not into the address space of a process, are a fault.
    let found = faults(&parse(&with("1152921504606846976, 4")));
    assert!(found.iter().any(|fault| fault.name == "embed.table" && fault.sentence.contains("bytes")));
}

#[test]
fn mutated_texts_never_panic() {
    let mut random = Random(0x9172);
    let (mut parsed, mut sound) = (0, 0);
    for round in 0..5000 {
        let text = mutated([TOKENS, EMBEDDINGS, ENCODER][round % 3], &mut random);
        match text.parse::<Graph>() {
            Err(error) => assert!(error.to_string().starts_with("line "), "round {round}: {error}"),
            Ok(graph) => {
                parsed += 1;
                // Printing and checking accept any graph that was parsed.
                let printed = graph.to_string();
                if faults(&graph).is_empty() {
                    sound += 1;
                    assert_eq!(parse(&printed), graph, "round {round}");
                    // The interpreter runs any graph without faults.
                    session::run_once(&graph);
                }
            }
        }
    }
    // The loop reaches past the parser and past the checker.
    assert!(parsed > 100 && sound > 10, "{parsed} parsed, {sound} sound");
}

/// The text with one or two small random edits.
fn mutated(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(2) {
        let start = random.below(bytes.len());
        let end = (start + 1 + random.below(6)).min(bytes.len());
        match random.below(5) {
            0 => drop(bytes.drain(start..end)),
            1 => {
                let twice = bytes[start..end].to_vec();
                bytes.splice(start..start, twice);
            }
            2 => bytes[start] = random.bits() as u8,
            3 => bytes[start] = random.of(b"0123456789.,:= ()[]\n-e"),
            _ => {
                let digits: Vec<_> = (0..bytes.len()).filter(|&at| bytes[at].is_ascii_digit()).collect();
                bytes[random.of(&digits)] = random.of(b"0123456789");
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn faulty_graphs_can_be_printed() {
    let mut graph = parse(TOKENS);
    graph.nodes[0].output = ValueId(1000);
    graph.nodes[1].inputs = vec![ValueId(u32::MAX)];
    let state = graph.find("layers.0.keys").expect("the form has it").0 as usize;
    graph.values[state].role = Role::State(GroupId(9));
    let text = graph.to_string();
    assert!(text.contains("? = embed tokens, embed.table"), "{text}");
    assert!(text.contains("embed: [rows 8, 32] = scale(factor=5.656854) ?"), "{text}");
    assert!(text.contains("f16 in ?"), "{text}");
}
