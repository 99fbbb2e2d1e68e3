//! The simulated array on the command line.

use crate::program::{Folder, fixture, girih, name};

#[test]
fn a_model_on_the_toy_array_matches_its_golden_file() {
    for model in ["llama32_tied", "qwen3"] {
        let folder = fixture(model);
        let golden = folder.join("golden.safetensors");
        let call = girih(&["verify", name(&folder), "--golden", name(&golden), "--quiet", "--json"]);
        let verdict = call.with(&["--backend", "npu:toy", "--kv", "bf16", "--against", "bf16"]).done().json();
        assert_eq!(verdict["passed"], true, "{model}: {verdict}");
        assert_eq!(verdict["activations"], "bf16");
    }
}

#[test]
fn an_unknown_target_or_backend_is_named() {
    let folder = fixture("llama32_tied");
    let model = name(&folder);
    girih(&["inspect", model, "--backend", "npu:none"]).fails(2, "the npu backend has no device 'none'");
    girih(&["inspect", model, "--backend", "npu"]).fails(2, "unknown backend 'npu'");
}

#[test]
fn programs_are_compiled_once_and_can_be_printed_and_timed() {
    let folder = fixture("llama32_tied");
    let blobs = Folder::new();
    let compile = ["npu", "compile", name(&folder), "--target", "toy", "--rows", "64", "--context", "128"];
    let compile = || girih(&compile).with(&["--blobs", blobs.name()]).done().stdout;
    let cold = compile();
    assert!(cold.contains("5 of 5 programs compiled"), "{cold}");
    assert!(
        cold.contains("8 submissions per step"),
        "two programs for each of three layers, one before them, and the head: {cold}"
    );
    let warm = compile();
    assert!(warm.contains("0 of 5 programs compiled"), "{warm}");
    let blob = std::fs::read_dir(blobs.path()).unwrap().map(|entry| entry.unwrap().path());
    let blob =
        blob.filter(|path| path.extension().is_some_and(|end| end == "elf")).min().expect("blobs were kept");
    let inspect = || girih(&["npu", "inspect", name(&blob), "--text"]);
    let text = inspect().done().stdout;
    assert!(text.starts_with("schedule "), "the blob names its target, toy: {text}");
    assert_eq!(inspect().with(&["--target", "toy"]).done().stdout, text);
    girih(&["npu", "inspect", name(&blob), "--target", "xdna2-strix"]).fails(1, "is for the target toy");
    let sim = ["npu", "sim", name(&folder), "--target", "toy", "--rows", "64", "--context", "128", "--json"];
    let sim = girih(&sim).done().json();
    assert_eq!(sim["steps"][0]["submissions"], 8);
    assert_eq!(sim["steps"][1]["submissions"], 5);
    assert!(sim["steps"][0]["array_ms"].as_f64() > sim["steps"][1]["array_ms"].as_f64());
}

#[test]
fn inspect_prints_where_the_graph_is_cut() {
    let call =
        ["npu", "inspect", "stories260k", "--target", "toy", "--rows", "4", "--context", "64", "--split"];
    let text = girih(&call).done().stdout;
    let parts: Vec<&str> = text.lines().filter(|line| line.starts_with("host ")).collect();
    assert!(text.starts_with("rows 4 sequences 1 context 64 output_rows 1 -> logits\n"), "{text}");
    assert_eq!(
        parts[0],
        "host embed .. embed: in 16 bytes (tokens), out 1024 bytes (embed): the host looks up the rows of tokens"
    );
    assert!(text.lines().any(|line| line.starts_with("device layers.0.before_mixer .. ")), "{text}");
    assert!(text.contains(", state layers.0.mixer.keys, layers.0.mixer.values: "), "{text}");
}

/// The configurations of public models.
fn shapes() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/shapes");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().display().to_string());
    let mut files: Vec<String> = files.collect();
    files.sort();
    files
}

/// The compared models: the time of a prefill is that of the array, and only what has no kernel stays
/// on the host.
fn compared(files: &[String], more: &[&str]) -> Vec<serde_json::Value> {
    let call = girih(&["npu", "compare", "--json"]).with(files).with(more);
    let models = call.done().json()["models"].as_array().unwrap().clone();
    assert_eq!(models.len(), files.len());
    for model in &models {
        let prefill = &model["prefill"];
        assert!(
            prefill["array_ms"].as_f64() > Some(0.0) && prefill["launches"].as_u64() > Some(20),
            "{model}"
        );
        let host = prefill["host"].as_array().unwrap();
        assert!(host.iter().all(|work| !work.as_str().unwrap().contains("attend")), "{model}");
    }
    models
}

/// A head of 256 values, a group of 7 query heads, biases, and a vocabulary that divides by nothing.
#[test]
fn models_are_compiled_and_compared_from_their_configurations() {
    let files: Vec<String> = shapes()
        .into_iter()
        .filter(|file| file.ends_with("gemma-3-1b.json") || file.ends_with("qwen2.5-0.5b.json"))
        .collect();
    let models = compared(&files, &["--rows", "256", "--context", "256"]);
    let head = |model: &serde_json::Value| model["prefill"]["programs"].as_u64().unwrap();
    assert!(models.iter().all(|model| head(model) <= 9), "{models:?}");
    let call = girih(&["npu", "compare", "--rows", "64", "--context", "64"]).with(&files);
    let text = call.with(&["--target", "xdna2-kraken"]).done().stdout;
    assert!(text.starts_with("xdna2-kraken with ") && text.contains("\nqwen2.5-0.5b "), "{text}");
    assert!(text.contains("head.rows (gather): only the host has the list of output rows [all]"), "{text}");
    girih(&["npu", "compare", "none.json"]).fails(2, "none.json");
    // A token ends as many positions as asked for, otherwise 1,024.
    for (context, more) in [(1024, &["--rows", "64"][..]), (256, &["--rows", "64", "--context", "256"])] {
        let models = compared(&files[..1], more);
        assert_eq!(models[0]["token"]["context"].as_u64(), Some(context), "{models:?}");
    }
}

/// The times are those of the array and the host by simulation, never those of the simulation itself.
#[test]
fn a_profile_of_the_array_has_simulated_times() {
    let array = ["stories260k", "--backend", "npu:toy", "--context", "64"];
    let profile = girih(&["profile"]).with(&array).with(&["-p", "8", "-n", "2"]);
    let json = profile.with(&["--json"]).done().json();
    for steps in ["prefill", "decode"] {
        let profile = &json["profile"][steps];
        let seconds = |what: &str| profile[what].as_f64().unwrap();
        assert!(
            seconds("node_seconds") > 0.0 && seconds("wall_seconds") == seconds("node_seconds"),
            "{json}"
        );
        let rows = profile["rows"].as_array().unwrap();
        let programs = rows.iter().filter(|row| row["op"] == "program" && row["variant"] == "array");
        assert!(programs.count() > 1 && rows.iter().any(|row| row["variant"] == "host"), "{json}");
    }
    let run = girih(&["run"]).with(&array).with(&["Once", "-n", "2", "--verbose"]).done();
    assert!(run.stderr.contains("the device is simulated"), "{}", run.stderr);
    assert!(!run.stderr.contains("tokens/s"), "{}", run.stderr);
}

#[test]
#[ignore = "takes a minute; `girih-npu` compiles the same shapes"]
fn every_public_shape_compiles_on_both_arrays() {
    compared(&shapes(), &["--target", "xdna2-strix"]);
    compared(&shapes(), &["--target", "xdna2-kraken", "--weights", "q4nx", "--mapping", "resident"]);
}

/// The bug: variables and configuration keys applied to top-level commands only;
/// the `npu` commands ignored variables and refused keys.
#[test]
fn settings_apply_to_the_npu_commands() {
    let (model, home) = (fixture("llama32_tied"), Folder::new());
    let file = home.write("girih.toml", "target = \"toy\"\nrows = 64\n");
    let sim = || girih(&["npu", "sim", name(&model), "--context", "128", "--json"]).env("GIRIH_BLOBS", "off");
    assert_eq!(sim().env("GIRIH_CONFIG", &file).done().json()["target"], "toy");
    assert_eq!(sim().env("GIRIH_TARGET", "toy").env("GIRIH_ROWS", "64").done().json()["target"], "toy");
    sim().env("GIRIH_TARGET", "none").fails(2, "none");
}

#[test]
fn a_report_is_a_self_contained_page_that_escapes_names() {
    let folder = Folder::new();
    let model = folder.path().join("<script>alert(1)<");
    std::os::unix::fs::symlink(fixture("llama32_tied"), &model).unwrap();
    let (html, trace) = (folder.path().join("report.html"), folder.path().join("trace.json"));
    let array = ["--target", "toy", "--rows", "64", "--context", "128"];
    let report = ["npu", "report", name(&model), "--html", name(&html), "--json"];
    let json = girih(&report).with(&array).done().json();
    let verdict = json["verdict"].as_str().expect("a sentence");
    assert!(
        verdict.starts_with("A prefill of 64 tokens after 64 takes ") && verdict.contains("% limited by "),
        "{verdict}"
    );
    let step = &json["report"]["steps"][0];
    assert_eq!(step["submissions"], 8);
    let tiles = step["tiles"].as_array().unwrap();
    assert_eq!(tiles.len(), 2 * 4, "two columns of a shim, a memory tile and two cores");
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains(verdict) && !page.contains('\u{fffd}'), "no character is replaced");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;") && !page.contains("<script"));
    for outside in ["http", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(outside), "the page refers to something outside: {outside}");
    }
    assert_eq!(page.matches("<svg").count(), 2 * 3 + 1, "two arrays, four timelines, a roofline");
    let sim = ["npu", "sim", name(&model), "--trace", name(&trace), "--trace-events", "100", "--json"];
    girih(&sim).with(&array).done();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let names: Vec<&str> = trace["otherData"]["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["prefill", "token"]);
    girih(&["npu", "report", "--figures", "toy", "--rows", "3"]).fails(2, "cannot be used with '--rows");
}

/// The bug: a variable made calls fail in which its flag conflicts with another,
/// and a configuration key replaced a typed option there.
#[test]
fn typed_options_override_conflicting_settings() {
    let (model, home) = (fixture("llama32_tied"), Folder::new());
    let figures = || girih(&["npu", "report", "--figures", "toy"]);
    let set = figures().env("GIRIH_ROWS", "3").env("GIRIH_JSON", "true").env("GIRIH_HTML", "none/none");
    assert_eq!(set.done().stdout, figures().done().stdout);
    let sim = ["npu", "sim", name(&model), "--target", "toy", "--rows", "64", "--context", "128"];
    let sim = || girih(&sim).env("GIRIH_BLOBS", "off").env("GIRIH_TRACE_EVENTS", "100");
    sim().done();
    sim().with(&["--trace-events", "100"]).fails(2, "--trace <FILE>");
    let dump = home.path().join("forms");
    let compile = ["npu", "compile", name(&model), "--target", "toy", "--rows", "8", "--context", "64"];
    let compile = || girih(&compile).with(&["--dump", name(&dump)]).env("GIRIH_BLOBS", "off");
    compile().done();
    // The bug: the forms of the second step overwrote those of the first.
    let groups = || {
        let files = std::fs::read_dir(&dump).unwrap().map(|file| file.unwrap().file_name());
        files.filter(|file| file.to_str().unwrap().ends_with("graph.groups.npu")).count()
    };
    assert_eq!(groups(), 2);
    // The bug: the forms of a second call overwrote those of the first.
    compile().done();
    assert_eq!(groups(), 4);
    compile().with(&["--blobs", "off"]).fails(2, "cannot be used with");
    let file = home.write("girih.toml", "golden = \"nowhere\"\nagainst = \"bf16\"\n");
    let call = ["diagnose", "stories260k", "--reference", "interpreter", "--context", "64", "--json"];
    assert_eq!(girih(&call).env("GIRIH_CONFIG", &file).done().json()["reference"], "interpreter");
}

/// The bug: a blob folder that was set for all commands made this one fail, which
/// has its own folder.
#[test]
fn the_benchmark_times_the_compiler_and_the_simulator() {
    let folder = fixture("llama32_tied");
    let bench = ["npu", "bench", name(&folder), "--target", "toy", "--rows", "64", "--context", "128"];
    let bench = girih(&bench).with(&["--runs", "1", "--values", "--json"]);
    let home = Folder::new();
    let file = home.write("girih.toml", "blobs-limit = 1\n");
    let json = bench.env("GIRIH_BLOBS", "off").env("GIRIH_CONFIG", &file).done().json();
    let rows = json["rows"].as_array().unwrap();
    let what: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(what[0], "compile 9 programs");
    assert_eq!(what.len(), 5, "{what:?}");
    assert!(rows.iter().all(|row| row["seconds"].as_f64().unwrap() > 0.0));
}

#[test]
fn a_sweep_reports_its_result_and_the_reasons() {
    let (folder, out) = (fixture("llama32_tied"), Folder::new());
    let best = out.path().join("best.mapping");
    let array = ["--target", "toy", "--rows", "64", "--context", "128"];
    let sweep = ["npu", "sweep", name(&folder), "--output", name(&best)];
    let ended = girih(&sweep).with(&array).with(&["--json"]).done();
    let note = "comparing with mlir-air: mlir-air-tiles does not fit toy (8 columns are needed, ";
    assert!(ended.stderr.contains(note), "the published mapping needs eight columns: {}", ended.stderr);
    let json = ended.json();
    assert_eq!(json["mapping"], std::fs::read_to_string(&best).unwrap());
    let kernels = json["kernels"].as_array().unwrap();
    assert!(kernels.iter().all(|kernel| kernel["hopeless"].as_u64() < kernel["tilings"].as_u64()), "{json}");
    assert_eq!(
        json["policies"].as_array().unwrap().len(),
        9,
        "three groupings with three placements of attention"
    );
    let millis = |at: usize| -> f64 {
        let parts = json["why"]["steps"][0]["millis"][at].as_array().unwrap();
        parts.iter().map(|part| part.as_f64().unwrap()).sum()
    };
    assert!(millis(1) <= millis(0), "{json}");
    assert_eq!(json["stitching"]["layouts"].as_array().unwrap().len(), 5);
    // Two columns are too few for the published launches, so only the mapping is compared with.
    let gains = json["gains"].as_array().unwrap();
    assert_eq!((gains.len(), json["dram_bytes_per_second"].as_f64()), (2, Some(14.4e9)));
    for gain in gains {
        let [against, swept, published] =
            ["array_ms", "swept_ms", "swept_published_ms"].map(|key| gain[key].as_f64().unwrap());
        assert!(swept > 0.0 && published > 0.0 && against > 0.0, "{gain}");
    }
    girih(&sweep).with(&array).with(&["--against", "mlir-air-tiles"]).fails(1, "needs 1 tilings");
    girih(&sweep).with(&["--mapping", "mlir-air"]).fails(2, "unexpected argument '--mapping'");
}

#[test]
fn a_token_of_each_of_several_sequences_is_timed() {
    let sim = ["npu", "sim", "stories260k", "--target", "toy", "--sequences", "3"];
    let json = girih(&sim).with(&["--json"]).env("GIRIH_BLOBS", "off").done().json();
    let steps = json["steps"].as_array().expect("steps");
    let key = steps[2]["key"].as_str().expect("a key");
    assert!(key.starts_with("rows 64 sequences 3 context 512 output_rows 3 "), "{key}");
    let [one, three] = [&steps[1], &steps[2]].map(|step| step["array_ms"].as_f64().expect("a time"));
    assert!(three > one, "{three} {one}");
    let rows = girih(&sim).with(&["--rows", "8", "--context", "40"]).env("GIRIH_BLOBS", "off").done().stdout;
    assert!(rows.contains("one token of each of 3 sequences (rows 8 sequences 3 context 40 "), "{rows}");
    girih(&sim).with(&["--trace", "a.json"]).fails(2, "cannot be used with '--trace <FILE>'");
    let encoder = fixture("bert");
    girih(&["npu", "sim", name(&encoder), "--sequences", "3"]).fails(2, "an encoder has no tokens");
    let out = Folder::new();
    let graph = out.write("step.graph", "graph rows 8 sequences 1 context 4 output_rows 1 -> logits\n");
    girih(&["npu", "sim", name(&graph), "--sequences", "3"]).fails(2, "a graph fixes its sequences");
}

#[test]
fn options_without_effect_are_refused() {
    let (folder, out) = (fixture("llama32_tied"), Folder::new());
    let graph = out.path().join("step.graph");
    std::fs::write(&graph, "no graph").unwrap();
    for option in ["--rows", "--context"] {
        girih(&["npu", "sim", name(&graph), option, "64"]).fails(2, "a graph fixes its rows and context");
    }
    girih(&["npu", "sim", name(&folder), "--rows", "64", "--context", "32"])
        .fails(2, "--rows is 64: it must be at most --context, 32");
    girih(&["npu", "bench", name(&folder), "--blobs", "off"]).fails(2, "unexpected argument '--blobs'");
    girih(&["npu", "compile", name(&folder), "--dump", out.name(), "--blobs", "off"])
        .fails(2, "cannot be used with '--blobs");
}

#[test]
fn programs_are_emitted_for_a_device_that_mlir_aie_has() {
    let (model, home) = (fixture("llama32_tied"), Folder::new());
    let out = home.path().join("aie");
    let call =
        ["npu", "compile", name(&model), name(&out), "--rows", "8", "--context", "64", "--blobs", "off"];
    girih(&call).fails(2, "--emit <FORMAT>");
    let emit = |target| girih(&call).with(&["--emit", "aie", "--target", target]);
    let refused = emit("toy").fails(1, "");
    assert!(
        refused.stdout.contains("not emitted: target toy is no device of mlir-aie"),
        "{}",
        refused.stdout
    );
    let ended = emit("xdna2-strix").done();
    assert!(ended.stdout.contains("emitted 001-"), "{}", ended.stdout);
    let files = std::fs::read_dir(&out).unwrap().map(|file| file.unwrap().path());
    let manifests: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|name| name == "json")).collect();
    assert_eq!(manifests.len(), ended.stdout.matches("emitted ").count());
    for manifest in manifests {
        let text = std::fs::read_to_string(&manifest).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let module = std::fs::read_to_string(manifest.with_extension("mlir")).unwrap();
        let launches = json["launches"].as_array().unwrap();
        assert_eq!(module.matches("  aie.device(npu2) @launch_").count(), launches.len());
    }
    assert!(out.join("run_xrt.py").exists() && out.join("kernels.cc").exists());
}

/// Stand-ins for mlir-aie's compiler, which makes the files of each device of a module, and for XRT, whose runs end at once.
const AIECC: &str = r#"#!/usr/bin/env python3
import pathlib, re, sys
if sys.argv[1] != "--version":
    for device in re.findall(r"aie\.device\(\w+\) @(\w+)", pathlib.Path(sys.argv[-1]).read_text()):
        pathlib.Path(f"{device}.xclbin").write_text(device)
        pathlib.Path(f"{device}_sequence.bin").write_bytes(bytes(8))
"#;
const PYXRT: &str = r#"
import enum, pathlib
ert_cmd_state = enum.Enum("ert_cmd_state", "ERT_CMD_STATE_COMPLETED")
xclBOSyncDirection = enum.Enum("xclBOSyncDirection", "XCL_BO_SYNC_BO_TO_DEVICE XCL_BO_SYNC_BO_FROM_DEVICE")
class xclbin:
    def __init__(self, path): self.name = pathlib.Path(path).read_text()
    def get_uuid(self): return self.name
    def get_kernels(self): return [self]
    def get_name(self): return "MLIR_AIE"
class device:
    def __init__(self, index): pass
    def register_xclbin(self, xclbin): pass
class hw_context:
    def __init__(self, device, uuid): pass
class kernel:
    def __init__(self, context, name): pass
    def group_id(self, argument): return argument
    def __call__(self, *arguments): return self
    def wait(self): return ert_cmd_state.ERT_CMD_STATE_COMPLETED
class bo:
    cacheable, host_only = 1, 2
    def __init__(self, device, size, flags, group): self.size = size
    def write(self, data, offset): assert len(data) <= self.size
    def sync(self, direction): pass
"#;

/// A device's times of published rows, with stand-ins for its compiler and its runtime.
#[test]
fn a_script_measures_rows_on_a_device() {
    let home = Folder::new();
    let rows = home.path().join("rows");
    let ended = girih(&["npu", "report", "--validate", "--only", "GEMV", "--emit", name(&rows)]).done();
    assert!(ended.stdout.contains("rows.json has "), "{}", ended.stdout);
    let tools = home.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("aiecc.py"), AIECC).unwrap();
    std::fs::write(tools.join("pyxrt.py"), PYXRT).unwrap();
    std::fs::write(rows.join("kernels.o"), "an object file").unwrap();
    let measure = |options: &[&str]| {
        let mut python = std::process::Command::new("python3");
        python.arg("measure_rows.py").args(options).current_dir(&rows).env("PYTHONPATH", &tools);
        python.output()
    };
    let Ok(listed) = measure(&["--dry-run"]) else {
        eprintln!("skipped: python3 is not installed");
        return;
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let aiecc = tools.join("aiecc.py");
    std::fs::set_permissions(&aiecc, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let first = ["--aiecc", name(&aiecc), "--runs", "2", "--only", "2048×2048"];
    let measured = |options: &[&str]| {
        let output = measure(options).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = std::fs::read_to_string(rows.join("measured.csv")).unwrap();
        lines.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = measured(&first);
    assert_eq!(lines[0], "module,table,label,target,published_us,simulated_us,measured_us,error");
    assert_eq!(lines.len(), 2, "{lines:?}");
    let cells: Vec<&str> = lines[1].split(',').collect();
    assert!(cells[6].parse::<f64>().unwrap() > 0.0 && cells[7].is_empty(), "{lines:?}");
    assert_eq!(measured(&first).len(), 2, "a row that was measured is left out");
    let all = measured(&["--aiecc", name(&aiecc), "--runs", "1"]);
    assert_eq!(all.len(), listed.lines().count(), "each row once, and the titles");
    let failed = measured(&["--aiecc", "no-such-compiler", "--out", "other.csv"]);
    assert_eq!(failed.len(), all.len(), "the other file is not touched");
    let other = std::fs::read_to_string(rows.join("other.csv")).unwrap();
    assert_eq!(other.matches("no-such-compiler").count(), all.len() - 1, "{other}");
    measured(&["--aiecc", name(&aiecc), "--runs", "1", "--out", "other.csv"]);
    let again = std::fs::read_to_string(rows.join("other.csv")).unwrap();
    assert_eq!(
        again.lines().count(),
        2 * other.lines().count() - 1,
        "rows that failed are measured: {again}"
    );
}

#[test]
fn a_context_is_at_most_the_models() {
    let sim = ["npu", "sim", "stories260k", "--target", "toy", "--rows", "8", "--json"];
    for command in ["sim", "compile", "report", "sweep", "runtime", "bench", "inspect"] {
        girih(&["npu", command, "stories260k", "--target", "toy", "--context", "513"])
            .fails(2, "--context is 513: the model supports at most 512");
    }
    let json = girih(&sim).env("GIRIH_BLOBS", "off").done().json();
    let key = json["steps"][0]["key"].as_str().expect("a key");
    assert!(key.starts_with("rows 8 sequences 1 context 512 "), "the default is the model's maximum: {key}");
}

/// Help and errors of all commands name the same targets.
#[test]
fn targets_are_one_list() {
    let targets = "toy, xdna2-strix, xdna2-kraken, xdna2-kraken@cap-2025, xdna1-phoenix";
    for command in ["sim", "compile", "report", "sweep", "runtime", "bench", "inspect"] {
        let help = girih(&["npu", command, "--help"]).done().stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&format!("Array: {targets} [default: xdna2-strix]")), "{help}");
    }
    let unknown = format!("no NPU target is called 'xdna3': known are {targets}");
    girih(&["npu", "sim", "stories260k", "--target", "xdna3"]).fails(2, &unknown);
    girih(&["npu", "report", "--figures", "xdna3"]).fails(2, &unknown);
    let page = include_str!("../../../../docs/npu.md");
    for target in targets.split(", ") {
        assert!(page.contains(&format!("`{target}`")), "docs/npu.md names {target}");
    }
}

#[test]
fn published_measurements_are_built_in() {
    let report = |arguments: &[&str]| girih(&["npu", "report"]).with(arguments);
    let json = report(&["--validate", "--only", "GELU", "--json"]).done().json();
    let rows = json["rows"].as_array().expect("rows");
    assert!(rows.len() >= 5, "{json}");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../npu-lab/tables");
    let from_folder = report(&["--validate", folder, "--only", "GELU", "--json"]).done().json();
    assert_eq!(from_folder, json);
    let empty = Folder::new();
    report(&["--validate", empty.name()]).fails(2, "no table has a measurement");
    let known = "known are gemm, gemv, attention, norms, rope, silu, add, all and nothing";
    report(&["--validate", "--leave-out", "softmax"]).fails(2, known);
    report(&["stories260k", "--leave-out", "add"]).fails(2, "--validate");
    // With -v, a table is a line, and without it nothing but the result is printed into a pipe.
    let stderr = |more: &[&str]| report(&["--validate", "--only", "GELU"]).with(more).done().stderr;
    assert_eq!(stderr(&[]), "");
    assert_eq!(
        stderr(&["-v"]),
        format!("mlir_air_kernel_GELU_bf16.csv: {} measurements simulated\n", rows.len())
    );
}

/// `config.json` alone suffices, and the host's time is that at the context asked for.
#[test]
fn a_report_needs_no_weights() {
    let shape = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/shapes/qwen3-0.6b.json");
    let token = |context: &str| {
        let report = ["npu", "report", shape, "--rows", "64", "--context", context, "--json"];
        let json = girih(&report).with(&["--blobs", "off", "--mapping", "mlir-air"]).done().json();
        let steps = json["report"]["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 2, "a prefill and a token");
        let token = &steps[1];
        let context: u64 = context.parse().unwrap();
        assert_eq!(token["position"].as_u64(), Some(context - 1));
        assert_eq!(steps[0]["position"].as_u64(), Some(context - 64));
        let verdict = json["verdict"].as_str().unwrap();
        assert!(verdict.contains(&format!("prefill of 64 tokens after {}", context - 64)), "{verdict}");
        token["host_seconds"].as_f64().unwrap()
    };
    // Attention of a token is host work with this mapping, and grows with the context.
    let (short, long) = (token("256"), token("4096"));
    assert!(long > 4.0 * short, "{short} s at 256 positions, {long} s at 4096");
    girih(&["npu", "report", "no-such.json"]).fails(2, "no-such.json");
}

#[test]
fn the_runtime_choices_are_compared() {
    let folder = fixture("llama32_tied");
    let call = ["npu", "runtime", name(&folder), "--target", "toy", "--rows", "64", "--context", "128"];
    let blobs = Folder::new();
    let report = girih(&call).with(&["--prompt", "5", "--blobs", blobs.name(), "--json"]).done().json();
    let lines = |table: usize| report["tables"][table]["lines"].as_array().expect("lines").clone();
    let number = |line: &serde_json::Value, column: usize, what: &str| {
        line["costs"][column][what].as_f64().unwrap_or_else(|| panic!("{what} in {line}"))
    };
    let switches = lines(0);
    let named = |name: &str| {
        let found = switches.iter().find(|line| line["what"] == name);
        found.unwrap_or_else(|| panic!("no line {name} in {report}"))
    };
    let (default, brokered) = (&switches[0], named("values=brokered"));
    assert_eq!(number(default, 0, "copied_bytes"), 0.0);
    assert!(number(brokered, 0, "copied_bytes") > 0.0);
    assert!(number(brokered, 0, "ms") > number(default, 0, "ms"));
    assert!(number(named("dispatch=single"), 0, "calls") > number(default, 0, "calls"));
    assert!(
        number(named("mapping unstitched-by-cost"), 1, "submissions") > number(default, 1, "submissions")
    );
    assert!(number(named("weights=copied"), 0, "load_kept_bytes") > 0.0);
    let padded = lines(1);
    assert!(number(padded.last().expect("lengths"), 0, "ms") >= number(&padded[0], 0, "ms"));
    let config = folder.join("config.json");
    let call = ["npu", "runtime", name(&config), "--target", "toy", "--rows", "64", "--context", "128"];
    let of_config = girih(&call).with(&["--prompt", "5", "--blobs", "off", "--json"]).done().json();
    assert_eq!(of_config["tables"], report["tables"], "no weights are needed");
    girih(&["run", "stories260k", "Once", "--npu-lengths", "64"])
        .fails(2, "--npu-lengths applies only to the npu backend");
    girih(&["run", "stories260k", "Once", "--backend", "npu:toy", "--npu-runtime", "values=lost"])
        .fails(2, "invalid value 'values=lost' for '--npu-runtime");
}

/// A text that exceeds the context is refused, or loses its oldest tokens.
#[test]
fn an_overflowing_context_is_refused_or_truncated() {
    let call =
        ["run", "stories260k", "Once upon a time", "--temp", "0", "--json", "--quiet", "--context", "24"];
    girih(&call).with(&["-n", "40"]).fails(2, "the context is 24");
    let cut = girih(&call).with(&["-n", "40", "--overflow", "truncate"]).done().json();
    assert_eq!(cut["stop"], "length", "{cut}");
    let ids = cut["ids"].as_array().expect("ids").len();
    let prompt = cut["prompt_tokens"].as_u64().expect("a number") as usize;
    assert_eq!(ids, prompt + 40, "all requested tokens are generated");
    let short = girih(&call).with(&["-n", "10"]).done().json();
    let short = short["ids"].as_array().expect("ids").clone();
    assert_eq!(
        cut["ids"].as_array().expect("ids")[..short.len()],
        short[..],
        "the same tokens until the context is full"
    );
    let array =
        ["--backend", "npu:toy", "--kv", "bf16", "--chunk", "8", "--overflow", "truncate", "-n", "24"];
    let on_array = girih(&call).with(&array).done().json();
    assert_eq!(on_array["ids"].as_array().expect("ids").len(), prompt + 24);
}
