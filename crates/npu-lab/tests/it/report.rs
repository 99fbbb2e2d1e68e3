//! The report of a small Llama: its parts add up, and trace viewers can read its
//! trace.

use std::collections::{BTreeMap, BTreeSet};

use crate::llama::{SMALL, key, llama};
use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::{CompiledGraph, Compiler, estimate};
use girih_npu::pass::{NoDump, Policy};
use girih_npu_lab::report::{ModelReport, StepSpanKind, Trace, page};
use serde_json::Value;

fn compiled(target: &Target, rows: u32) -> (Graph, CompiledGraph) {
    let graph = llama(&SMALL, key(rows));
    let compiler = Compiler::new(target.clone(), Policy::MLIR_AIR, None);
    let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
    (graph, compiled)
}

#[test]
fn the_parts_of_a_step_add_up() {
    let target = Target::named("toy").unwrap();
    let (prefill, token) = (compiled(&target, 64), compiled(&target, 1));
    let steps = [(&prefill.0, &prefill.1, 0), (&token.0, &token.1, 64)];
    let report = ModelReport::of("a model", "mlir-air", &target, &steps).unwrap();
    for (step, (graph, compiled, position)) in report.steps.iter().zip(steps) {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        let known = estimate(graph, compiled, &target, position).unwrap();
        assert_eq!(step.submissions, known.ledger.submissions);
        assert!(
            near(step.array_seconds, known.ledger.array_seconds(&target)),
            "the report's array time differs from the estimate's"
        );
        assert!(near(step.sync_seconds, known.ledger.sync_seconds(&target)));
        let runs: f64 = step.programs.iter().map(|program| program.step_seconds).sum();
        assert!(near(step.array_seconds, runs));
        assert!(near(step.seconds, step.array_seconds + step.host_seconds + step.sync_seconds));
        for program in &step.programs {
            let launches: f64 = program.launches.iter().map(|launch| launch.seconds).sum();
            let sum = launches + program.dispatch_seconds + program.configure_seconds;
            assert!(near(program.seconds, sum), "{}: {} and {sum}", program.name, program.seconds);
            for launch in &program.launches {
                let all = [launch.busy, launch.shares.cores, launch.shares.dram, launch.shares.streams];
                assert!(all.iter().all(|share| (0.0..=1.0).contains(share)), "{}: {all:?}", launch.name);
                assert!(launch.busy > 0.0 && launch.busy + launch.waits <= 1.0 + 1e-9, "{}", launch.name);
                assert!(launch.of_roof <= 1.0, "{} is above the roof", launch.name);
            }
        }
        // The shims move exactly the bytes that DRAM reads and writes.
        let shims = step.tiles.iter().filter(|tile| tile.row == 0);
        let (out, back) = shims.fold((0, 0), |sum, tile| (sum.0 + tile.bytes_out, sum.1 + tile.bytes_in));
        assert_eq!((out, back), (step.dram_read, step.dram_written));
        assert_eq!(step.tiles.len(), 2 * 4);
        let (from, to) = step.layer.unwrap();
        let of_layer = |at: Option<usize>| at.is_some_and(|at| (from..to).contains(&at));
        let runs = step.spans.iter().filter(|span| span.kind == StepSpanKind::Array && of_layer(span.part));
        assert_eq!(runs.count(), if graph.key.rows > 1 { 3 } else { 2 });
    }
}

#[test]
fn a_sentence_heads_the_report() {
    let target = Target::named("toy").unwrap();
    let (prefill, token) = (compiled(&target, 64), compiled(&target, 1));
    let steps = [(&prefill.0, &prefill.1, 0), (&token.0, &token.1, 64)];
    let report = ModelReport::of("a <b>model</b>…", "mlir-air", &target, &steps).unwrap();
    let verdict = report.verdict();
    assert!(verdict.starts_with("A prefill of 64 tokens takes "), "{verdict}");
    assert!(verdict.contains("; a token after 64 tokens takes ") && verdict.ends_with(")."), "{verdict}");
    assert_eq!(verdict.matches(" of it on the array (").count(), 2, "{verdict}");
    assert_eq!(verdict.matches(" % limited by ").count(), 2, "{verdict}");
    assert_eq!(report.to_string().lines().next(), Some(verdict.as_str()));
    let page = page(&report, None);
    assert!(
        page.contains(&format!("<h1>a &lt;b&gt;model&lt;/b&gt;…</h1><p class=\"verdict\">{verdict}</p>"))
    );
    assert!(!page.contains('\u{fffd}'), "no character of the page is replaced");
    for figure in ["end to end", "tokens/s", "submissions", "launches", "dispatch", "configuration"] {
        assert_eq!(
            page.matches(&format!("<dt>{figure}</dt>")).count(),
            2,
            "{figure} has a line in each card"
        );
    }
    // Timelines and the roofline keep readable letters on a phone, and scroll.
    assert!(page.contains("name=\"viewport\"") && page.contains(".scroll { overflow-x: auto;"));
    assert!(page.contains(".scroll svg { min-width: 960px; }"));
    let pictures = page.matches("<div class=\"scroll\" tabindex=\"0\"><svg viewBox=\"0 0 1080 ").count();
    assert_eq!(pictures, 2 * 2 + 1, "two timelines of each step, and the roofline");
}

#[test]
fn a_trace_is_bounded_and_lists_what_is_left_out() {
    let target = Target::named("toy").unwrap();
    let (graph, compiled) = compiled(&target, 64);
    let traced = |limit: usize| {
        let mut trace = Trace::new(&target, limit);
        trace.add("prefill", &graph, &compiled, &target, 0).unwrap();
        let text = serde_json::to_string(&trace).unwrap();
        (trace, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (whole, json) = traced(1 << 30);
    let (cut, short) = traced(10);
    assert!(cut.len() < whole.len());
    let left_out = |json: &Value| json["otherData"]["steps"][0]["left_out"].to_string();
    assert!(left_out(&short).contains("from the middle"), "{}", left_out(&short));
    assert!(!left_out(&json).contains("from the middle"), "{}", left_out(&json));
    assert!(left_out(&json).contains("layers") || left_out(&json).contains("first run of each program"));
    // Spans of one track do not overlap, and end with the step.
    let events = json["traceEvents"].as_array().unwrap();
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
    let end = events.iter().filter(|event| event["ph"] == "X");
    let end = end.map(|event| number(event, "ts") + number(event, "dur")).fold(0.0, f64::max);
    let step = events.iter().filter(|event| event["pid"] == 1 && event["tid"] != 3 && event["ph"] == "X");
    let sum: f64 = step.map(|event| number(event, "dur")).sum();
    assert!((end - sum).abs() < 1.0, "the step ends at {end}, but host and programs take {sum}");
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X" && event["pid"] != 1) {
        let at = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        tracks.entry(at).or_default().push((number(event, "ts"), number(event, "dur")));
    }
    for (track, mut spans) in tracks.clone() {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let apart = spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 0.01);
        assert!(apart, "spans of track {track:?} overlap");
    }
    let named: BTreeSet<(u64, u64)> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap()))
        .collect();
    assert!(tracks.keys().all(|track| named.contains(track)));
    let has = |name: &str| events.iter().any(|event| event["name"] == name);
    for name in ["gemm_bf16", "wait for lock", "from DRAM", "to DRAM", "dispatch", "configure", "o_ffn"] {
        assert!(has(name), "{name} is not in the trace");
    }
}
