//! Graphs divided between a device and the host: what a split prints, and that its parts compute
//! what the whole graph computes.

use std::collections::HashMap;

use girih_graph::backend::{Block, GivenRows, HostWork, Input, Range32, Unwatched, step_count};
use girih_graph::interpret::{Interpreter, Values};
use girih_graph::split::{Site, Split, name_in_layer, split};
use girih_graph::{Backend, Graph, Op, Outputs, Runner, Sequence, Step, ValueId, load};
use girih_tensor::Random;

use crate::forms::{EMBEDDINGS, ENCODER, TOKENS, parse};
use crate::session::random_weights;

fn host(reason: &str) -> Site {
    Site::Host(reason.to_owned())
}

/// A device without lookups, without state and without softcaps.
fn site(graph: &Graph, node: usize) -> Site {
    match graph.nodes[node].op {
        Op::Embed => host("the table is in host memory"),
        Op::Write | Op::Gather | Op::Pool { .. } => host("only the host knows the sequences"),
        Op::Attend { softcap: Some(_), .. } => host("the device has no softcap"),
        Op::Attend { .. } => host("the device has no attention"),
        _ => Site::Device,
    }
}

#[test]
fn a_split_prints_its_parts_and_what_crosses_into_them() {
    let text = "\
host embed.tokens .. embed.types: in 64 bytes (tokens, types), out 1024 bytes (embed.tokens, embed.types): \
the table is in host memory
device embed.sum .. layers.0.v.heads: in 1536 bytes (embed.tokens, embed.types, image), out 1536 bytes \
(embed.norm, layers.0.q.heads, layers.0.k.heads, layers.0.v.heads)
host layers.0.mixed .. layers.0.mixed: in 1024 bytes (layers.0.q.heads, layers.0.k.heads, layers.0.v.heads), \
out 512 bytes (layers.0.mixed): the device has no attention
device layers.0.flat .. layers.0.out: in 1024 bytes (embed.norm, layers.0.mixed), out 512 bytes (layers.0.out)
host pooled .. pooled: in 512 bytes (layers.0.out), out 128 bytes (pooled): only the host knows the sequences
device head .. head: in 128 bytes (pooled), out 32 bytes (head)
";
    assert_eq!(split(&parse(ENCODER), site).to_string(), text);
    // State does not cross; a part has all reasons of its nodes, each once.
    let line = "host layers.1.keys .. layers.1.mixed: in 2048 bytes (layers.1.v.heads, layers.1.q.rotated, \
                layers.1.k.rotated), out 1024 bytes (layers.1.mixed), state layers.1.keys, layers.1.values: \
                only the host knows the sequences; the device has no softcap";
    let decoder = split(&parse(TOKENS), site).to_string();
    assert!(decoder.lines().any(|found| found == line), "{decoder}");
    assert_eq!(decoder.lines().count(), 8);
}

#[test]
fn every_node_is_asked_about_once_and_is_in_one_part() {
    let graph = parse(TOKENS);
    let mut asked = Vec::new();
    let split = split(&graph, |graph, node| {
        asked.push(node);
        site(graph, node)
    });
    assert_eq!(asked, (0..graph.nodes.len()).collect::<Vec<_>>());
    let nodes: Vec<usize> = split.parts().iter().flat_map(|part| part.nodes.clone()).collect();
    assert_eq!(nodes, asked);
    for part in split.parts() {
        assert!(part.nodes.clone().all(|node| matches!(split.site(node), Site::Host(_)) == part.is_host));
    }
    assert!(split.parts().windows(2).all(|pair| pair[0].is_host != pair[1].is_host));
    let empty = Graph { nodes: Vec::new(), ..graph };
    let split = self::split(&empty, |_, _| Site::Device);
    assert_eq!((split.parts().len(), split.host_work().len(), split.to_string().as_str()), (0, 0, ""));
}

#[test]
fn host_work_counts_nodes_of_one_name_op_and_reason() {
    let work = |name: &str, op, count, reason: &str| HostWork {
        name: name.to_owned(),
        op,
        count,
        reason: reason.to_owned(),
    };
    let sequences = "only the host knows the sequences";
    let expected = [
        work("embed.rows", "embed", 1, "the table is in host memory"),
        work("keys", "write", 2, sequences),
        work("values", "write", 2, sequences),
        work("mixed", "attend", 1, "the device has no attention"),
        work("mixed", "attend", 1, "the device has no softcap"),
        work("head.rows", "gather", 1, sequences),
    ];
    assert_eq!(split(&parse(TOKENS), site).host_work(), expected);
    assert_eq!(split(&parse(TOKENS), |_, _| Site::Device).host_work(), []);
    for (name, inner) in
        [("layers.12.keys", "keys"), ("a.1.b.2.c.d", "c.d"), ("head", "head"), ("a.1", "a.1")]
    {
        assert_eq!(name_in_layer(name), inner);
    }
}

/// A step: its inputs in the graph's order, and its sequences.
type TestStep<'a> = (&'a [Input<'a>], &'a [Sequence<'a>]);

/// The results of some steps, each part of the split run on its own values, which are given only
/// what crosses into the part.
fn run_parts(split: &Split, steps: &[TestStep<'_>]) -> Vec<Vec<f32>> {
    let graph = split.graph();
    let weights = Interpreter.load(graph, &random_weights(graph)).expect("the table has the weights");
    let mut state = Interpreter.state(graph, &vec![4; graph.groups.len()]).expect("it is small");
    let mut results = Vec::new();
    for (inputs, sequences) in steps {
        let mut crossing: HashMap<ValueId, Vec<f32>> = HashMap::new();
        for part in split.parts() {
            let mut values = Values::new(graph, sequences);
            for id in &part.reads {
                match graph.inputs().position(|(input, _)| input == *id) {
                    Some(index) => values.bring(*id, inputs[index]),
                    None => values.set(*id, crossing[id].clone()),
                }
            }
            for node in part.nodes.clone() {
                values.run(node, &weights, &mut state).unwrap_or_else(|error| panic!("{error}"));
            }
            let yields = part.yields.iter().map(|id| (*id, values.take(*id).expect("its node has run")));
            crossing.extend(yields);
        }
        results.push(crossing.remove(&graph.output().expect("it has one")).expect("a part makes it"));
    }
    results
}

/// The results of the whole graph.
fn run_whole(graph: &Graph, steps: &[TestStep<'_>]) -> Vec<Vec<f32>> {
    let blocks = vec![4; graph.groups.len()];
    let mut runner: Box<dyn Runner> =
        load(Interpreter, &random_weights(graph), graph.key, &blocks, |_| Ok(graph.clone())).unwrap();
    let run = |(inputs, sequences): &TestStep<'_>| {
        runner.step(Step { inputs, sequences, watch: &mut Unwatched }).unwrap();
        let rows = step_count(sequences, graph.key.output.extent());
        runner.output().rows(0..rows).unwrap().to_vec()
    };
    steps.iter().map(run).collect()
}

/// Asserts that the parts compute the whole, cut at every node, in random places, and not at all.
fn assert_parts_equal_the_whole(text: &str, steps: &[TestStep<'_>]) {
    let graph = parse(text);
    let bits = |results: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
        results.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
    };
    let whole = bits(run_whole(&graph, steps));
    assert!(whole.iter().all(|row| !row.is_empty()));
    let every = |node: usize| if node.is_multiple_of(2) { Site::Device } else { host("its index is odd") };
    let cut = split(&graph, |_, node| every(node));
    assert_eq!(cut.parts().len(), graph.nodes.len());
    assert_eq!(bits(run_parts(&cut, steps)), whole, "cut at every node");
    for seed in 0..10 {
        let mut random = Random(seed);
        let cut = split(&graph, |_, _| every(random.below(2)));
        assert_eq!(bits(run_parts(&cut, steps)), whole, "cut by seed {seed}:\n{cut}");
    }
    assert_eq!(bits(run_parts(&split(&graph, |_, _| Site::Device), steps)), whole, "one part");
    assert_eq!(bits(run_parts(&split(&graph, site), steps)), whole, "as for a device");
}

fn sequence<'a>(blocks: &'a [&'a [Block]], position: u32, start: u32, end: u32) -> Sequence<'a> {
    Sequence { blocks, position, rows: Range32 { start, end }, outputs: Outputs::LastN(2), spans: &[] }
}

#[test]
fn parts_of_a_decoder_compute_its_bytes_over_several_steps() {
    let (left, right): (&[&[Block]], &[&[Block]]) =
        (&[&[Block(2)], &[Block(0)]], &[&[Block(1)], &[Block(3)]]);
    let prompts = [sequence(left, 0, 0, 3), sequence(right, 0, 3, 8)];
    let spans = [Range32 { start: 6, end: 8 }];
    let more = [sequence(left, 3, 0, 1), Sequence { spans: &spans, ..sequence(right, 5, 1, 4) }];
    let one = [sequence(right, 8, 0, 1)];
    let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
    let ids = [[Input::Ids(&tokens)], [Input::Ids(&tokens[2..6])], [Input::Ids(&tokens[7..])]];
    let steps: [TestStep<'_>; 3] = [(&ids[0], &prompts), (&ids[1], &more), (&ids[2], &one)];
    assert_parts_equal_the_whole(TOKENS, &steps);
    let mut random = Random(5);
    let x: Vec<f32> = (0..8 * 32).map(|_| random.number()).collect();
    let rows = [[Input::Rows(&x)], [Input::Rows(&x[..4 * 32])], [Input::Rows(&x[..32])]];
    let steps: [TestStep<'_>; 3] = [(&rows[0], &prompts), (&rows[1], &more), (&rows[2], &one)];
    assert_parts_equal_the_whole(EMBEDDINGS, &steps);
}

#[test]
fn parts_of_an_encoder_compute_its_bytes() {
    let sequences = [sequence(&[], 0, 0, 3), sequence(&[], 0, 3, 8)]
        .map(|sequence| Sequence { outputs: Outputs::None, ..sequence });
    let mut random = Random(6);
    let image: Vec<f32> = (0..2 * 16).map(|_| random.number()).collect();
    let given = [GivenRows { first_row: 4, values: &image }];
    let inputs =
        [Input::Ids(&[3, 1, 4, 1, 5, 9, 2, 6]), Input::Ids(&[0, 1, 1, 0, 0, 0, 1, 1]), Input::Given(&given)];
    let alone = [inputs[0], inputs[1], Input::Given(&[])];
    assert_parts_equal_the_whole(ENCODER, &[(&inputs, &sequences), (&alone, &sequences)]);
}

#[test]
fn a_node_whose_operands_are_not_there_is_an_error() {
    let graph = parse(TOKENS);
    let weights = Interpreter.load(&graph, &random_weights(&graph)).unwrap();
    let mut state = Interpreter.state(&graph, &[1, 1]).unwrap();
    let sequences = [sequence(&[&[Block(0)], &[Block(0)]], 0, 0, 2)];
    let mut values = Values::new(&graph, &sequences);
    let tokens = graph.find("tokens").unwrap();
    let rows = graph.find("embed.rows").unwrap();
    let error = |name: &str| Some(format!("'{name}' is read before it is there; this is a bug in girih"));
    let run = |values: &mut Values<'_>, node: usize, state: &mut _| {
        values.run(node, &weights, state).err().map(|error| error.to_string())
    };
    assert_eq!(run(&mut values, 0, &mut state), error("tokens"));
    assert_eq!(run(&mut values, 1, &mut state), error("embed.rows"));
    values.bring(tokens, Input::Ids(&[1, 15]));
    assert_eq!(run(&mut values, 0, &mut state), None);
    assert_eq!(values.get(tokens), None, "ids are no rows");
    assert_eq!(values.get(rows).map(<[f32]>::len), Some(64));
    assert_eq!(values.take(rows).map(|rows| rows.len()), Some(64));
    assert_eq!(run(&mut values, 1, &mut state), error("embed.rows"));
    values.bring(tokens, Input::Ids(&[1, 16]));
    let missing = "there are no rows 16..17 of a weight 'embed.table'";
    assert_eq!(run(&mut values, 0, &mut state).as_deref(), Some(missing));
}

#[test]
#[should_panic(expected = "'embed.rows' in this step")]
fn a_value_of_another_size_cannot_be_set() {
    let graph = parse(TOKENS);
    let sequences = [sequence(&[&[Block(0)], &[Block(0)]], 0, 0, 2)];
    Values::new(&graph, &sequences).set(graph.find("embed.rows").unwrap(), vec![0.0; 63]);
}
