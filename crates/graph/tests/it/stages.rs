//! Graphs cut between layers: each stage is well formed, and both together compute the bits of the whole.

use girih_graph::backend::{Block, Input};
use girih_graph::description::AnyBackend;
use girih_graph::interpret::Interpreter;
use girih_graph::staged::StagedBackend;
use girih_graph::stages::{GraphStages, layer_count};
use girih_graph::{Graph, GroupId, OutputKind, Outputs, Runner, faults};

use crate::forms::{EMBEDDINGS, ENCODER, TOKENS, edited, parse};
use crate::session::{TestSequence, open_random, random_weights, step};

/// The graph in two stages on the interpreter, with weights as those of `open_random`.
fn staged(graph: &Graph, layer: usize) -> Box<dyn Runner> {
    let backend = StagedBackend::new(Box::new(Interpreter), Box::new(Interpreter), layer);
    assert_eq!(backend.refuses(graph), []);
    let blocks = vec![4; graph.groups.len()];
    let build = |_| Ok(graph.clone());
    let runner = Box::new(backend).load(&random_weights(graph), graph.key, &blocks, &build);
    runner.unwrap_or_else(|error| panic!("{error}"))
}

/// What refuses a cut.
fn refusal(graph: &Graph, layer: usize) -> String {
    GraphStages::of(graph, layer).unwrap_err().to_string()
}

#[test]
fn stages_are_well_formed_and_have_all_nodes() {
    for text in [TOKENS, EMBEDDINGS, ENCODER] {
        let graph = parse(text);
        let first = if text == EMBEDDINGS { 1 } else { 0 };
        for layer in first..layer_count(&graph) {
            let GraphStages { first, last, crossing } = GraphStages::of(&graph, layer).unwrap();
            assert_eq!(faults(&first), [], "{first}");
            assert_eq!(faults(&last), [], "{last}");
            // A value, two reshapes of rows and the choice of all of them.
            assert_eq!(first.nodes.len() + last.nodes.len(), graph.nodes.len() + 3);
            assert_eq!((first.key.output, first.key.output_rows), (OutputKind::Hidden, graph.key.rows));
            assert_eq!((last.key, crossing.len()), (graph.key, 1));
        }
    }
    let graph = parse(TOKENS);
    let stages = GraphStages::of(&graph, 1).unwrap();
    assert_eq!(stages.crossing[0].name, "layers.0.out");
    assert!(stages.last.to_string().contains("input layers.0.out: [rows 8, 32] f32"), "{}", stages.last);
    assert!(stages.last.find("layers.0.keys").is_none() && stages.first.find("layers.1.keys").is_none());
    let embeddings = refusal(&parse(EMBEDDINGS), 0);
    assert_eq!(embeddings, "the model cannot be cut before layer 0: nothing comes before it");
    assert_eq!(refusal(&graph, 2), "the model cannot be cut before layer 2: it has 2 layers");
}

/// Two sequences side by side, then one more row of each.
#[test]
fn two_stages_have_the_bits_of_the_whole() {
    let graph = parse(TOKENS);
    for layer in 0..2 {
        let [whole, staged] = [open_random(TOKENS), staged(&graph, layer)].map(|mut runner| {
            let first = [(&[Block(2)], 0, 3, Outputs::None), (&[Block(1)], 0, 5, Outputs::LastN(2))];
            let then = [(&[Block(2)], 3, 1, Outputs::Last), (&[Block(1)], 5, 1, Outputs::Last)];
            let mut run = |tokens: &[u32], sequences: [(&[Block; 1], u32, u32, Outputs); 2]| {
                let sequences = sequences.map(|(blocks, position, rows, outputs)| TestSequence {
                    blocks,
                    position,
                    rows,
                    outputs,
                    spans: &[],
                });
                step(runner.as_mut(), Input::Ids(tokens), &sequences)
            };
            let mut rows = run(&[3, 1, 4, 1, 5, 9, 2, 6], first);
            rows.extend(run(&[5, 3], then));
            rows.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert_eq!(staged, whole, "cut before layer {layer}");
        assert_eq!(whole.len(), 4 * 16);
    }
}

/// A value of layer 0 that layer 1 reads beside its input.
#[test]
fn several_values_may_cross() {
    let text = edited(TOKENS, "add layers.0.out, layers.1.o\n", "add layers.0.read, layers.1.o\n");
    let graph = parse(&text);
    assert_eq!(GraphStages::of(&graph, 1).unwrap().width(), 64);
    let sequences = [TestSequence { outputs: Outputs::LastN(4), ..TestSequence::whole(8) }];
    let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
    let run = |mut runner: Box<dyn Runner>| step(runner.as_mut(), Input::Ids(&tokens), &sequences);
    assert_eq!(run(staged(&graph, 1)), run(open_random(&text)));
}

#[test]
fn state_of_another_stage_is_refused() {
    let graph = parse(&edited(
        TOKENS,
        "attend(scale=0.35355338 span=window:4 softcap=50.0) layers.1.q.rotated, layers.1.keys",
        "attend(scale=0.35355338 span=window:4 softcap=50.0) layers.1.q.rotated, layers.0.keys",
    ));
    assert_eq!(
        refusal(&graph, 1),
        "the model cannot be cut before layer 1, because layers behind it read the state 'layers.0.keys' of a layer \
         before it: cut before an earlier layer"
    );
    let backend = StagedBackend::new(Box::new(Interpreter), Box::new(Interpreter), 1);
    assert_eq!(backend.refuses(&graph).len(), 1);
    assert!(GraphStages::of(&graph, 0).is_ok());
}

#[test]
fn blocks_of_two_stages_are_copied_saved_and_restored() {
    let graph = parse(TOKENS);
    let mut runner = staged(&graph, 1);
    let next = |runner: &mut dyn Runner, block: Block| {
        let blocks = [block];
        let sequence = TestSequence { blocks: &blocks, position: 7, ..TestSequence::whole(1) };
        step(runner, Input::Ids(&[5]), &[sequence])
    };
    let prompt = TestSequence { outputs: Outputs::None, ..TestSequence::whole(7) };
    step(runner.as_mut(), Input::Ids(&[3, 1, 4, 1, 5, 9, 2]), &[prompt]);
    let groups = [GroupId(0), GroupId(1)];
    let saved = groups.map(|group| runner.state().export(group, Block(0)).unwrap());
    let expected = next(runner.as_mut(), Block(0));
    for (group, bytes) in groups.into_iter().zip(&saved) {
        runner.state().import(group, Block(3), bytes).unwrap();
        runner.state().copy(group, Block(3), Block(2)).unwrap();
        runner.state().zero(group, Block(0)).unwrap();
    }
    assert_eq!(next(runner.as_mut(), Block(3)), expected);
    assert_eq!(next(runner.as_mut(), Block(2)), expected);
    assert_ne!(next(runner.as_mut(), Block(0)), expected);
    let longest = [u8::MAX; 8];
    for bytes in [&saved[0][..7], &saved[0][..saved[0].len() - 1], &longest] {
        assert!(runner.state().import(groups[0], Block(3), bytes).is_err());
    }
}

#[test]
fn a_staged_backend_says_where_it_cuts_and_plans_both() {
    let graph = parse(TOKENS);
    let backend = |layer| StagedBackend::new(Box::new(Interpreter), Box::new(Interpreter), layer);
    let described = [0, 1].map(|layer| backend(layer).describe(&graph));
    assert!(described[0].starts_with("the embedding on interpreter"), "{}", described[0]);
    assert!(described[0].contains("; layers 0 to 1 and the head on interpreter"), "{}", described[0]);
    assert!(described[1].starts_with("layer 0 on interpreter"), "{}", described[1]);
    let whole = AnyBackend::plan(&Interpreter, &graph, &[4, 4]).host;
    let both = backend(1).plan(&graph, &[4, 4]).host;
    assert_eq!(both.state, whole.state);
    // The head's table is the embedding's, which each stage has.
    assert!(both.weights > whole.weights && both.staging == 8 * 32 * 4);
}
