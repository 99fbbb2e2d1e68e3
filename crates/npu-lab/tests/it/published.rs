//! Simulated times compared with published ones.

use std::sync::OnceLock;

use girih_npu::Target;
use girih_npu::sim::Simulator;
use girih_npu_lab::published::{
    ErrorSpread, KernelFamily, Prediction, RefitSource, RowRole, Validation, built_in_tables, leave_out,
    validate,
};

fn simulate(files: &[(String, String)]) -> Validation {
    validate(files, "", &|name| Simulator::new(&Target::named(name)?), &mut |_| {}).unwrap()
}

/// All tables of the repository, simulated once for all tests.
fn built_in() -> &'static Validation {
    static BUILT_IN: OnceLock<Validation> = OnceLock::new();
    BUILT_IN.get_or_init(|| simulate(&built_in_tables()))
}

/// Two rows of a table in their published form.
const GELU_ROWS: &str = "section,N,(as 2-D),best config (herd_x/herd_y/tile_n),latency,bandwidth,Status\n\
                    Tested shapes,1048576,—,8/2/4096,235 µs,17.8 GB/s,ok\n\
                    Tested shapes,4194304,2048×2048,8/2/4096,672 µs,25.0 GB/s,ok\n";

#[test]
fn rows_of_a_table_are_simulated_with_their_tiles() {
    let name = "mlir_air_kernel_GELU_bf16.csv".to_owned();
    let validation =
        simulate(&[(name, GELU_ROWS.to_owned()), ("simulators.csv".to_owned(), "a,b".to_owned())]);
    let labels: Vec<&str> =
        validation.predictions.iter().map(|prediction| prediction.measured.label.as_str()).collect();
    assert_eq!(labels, ["n=1048576 8/2/4096", "n=4194304 8/2/4096"]);
    assert_eq!(validation.skipped, ["simulators.csv: it lists simulators"]);
    assert!(validation.predictions.iter().all(|prediction| prediction.error().abs() < 0.05), "{validation}");
    // Four times the elements, but still one dispatch.
    let ratio = validation.predictions[1].micros / validation.predictions[0].micros;
    assert!((2.5..4.0).contains(&ratio), "{ratio}");
}

#[test]
fn each_row_and_the_end_of_its_table_are_progress() {
    let table = |name: &str| (name.to_owned(), GELU_ROWS.to_owned());
    let files = [table("mlir_air_kernel_GELU_bf16.csv"), table("mlir_air_kernel_GELU_bf16.csv")];
    let mut seen = Vec::new();
    let array = |name: &str| Simulator::new(&Target::named(name)?);
    validate(&files, "n=1048576", &array, &mut |at| {
        seen.push((at.table.to_owned(), at.left_in_table, at.done, at.total));
    })
    .unwrap();
    let row = |file: usize, done| (files[file].0.clone(), 0, done, 2);
    assert_eq!(seen, [row(0, 1), row(1, 2)]);
    seen.clear();
    validate(&files[..1], "", &array, &mut |at| {
        seen.push((at.table.to_owned(), at.left_in_table, at.done, at.total));
    })
    .unwrap();
    assert_eq!(seen, [(files[0].0.clone(), 1, 1, 2), (files[0].0.clone(), 0, 2, 2)]);
}

/// The bug: the first row that could not be read, or did not fit its target, ended the command.
#[test]
fn rows_that_cannot_be_simulated_are_named() {
    let bad =
        format!("{GELU_ROWS}Tested shapes,100,-,8/2,235 us,x,y\nTested shapes,8388608,-,8/2/524288,1 ms,x\n");
    let validation = simulate(&[("mlir_air_kernel_GELU_bf16.csv".to_owned(), bad)]);
    assert_eq!(validation.predictions.len(), 2);
    let reasons = ["the tile \"8/2\" has the sizes [8, 2]: 3 are needed", "8388608 8/2/524288: "];
    assert_eq!(validation.skipped.len(), reasons.len(), "{:?}", validation.skipped);
    for (sentence, reason) in validation.skipped.iter().zip(reasons) {
        assert!(sentence.contains(reason), "{sentence}");
    }
}

/// The bug: power of a model without a simulated step was passed over.
#[test]
fn power_without_a_simulated_step_is_named() {
    let rows = "category,model,cpu_W,gpu_W,npu_W,total_W\nNPU Decoding,12B,1,1,1.5,3\n".to_owned();
    let validation = simulate(&[("power_seed001_table5.csv".to_owned(), rows)]);
    assert_eq!(validation.skipped, ["power of gemma3-12b in decode: no such step is simulated"]);
}

/// The names of the tables in the folder.
fn names() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tables");
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".csv")).collect();
    names.sort();
    names
}

#[test]
fn every_table_of_the_folder_is_built_in_and_states_its_source() {
    let tables = built_in_tables();
    assert_eq!(tables.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), names());
    for (name, text) in &tables {
        assert!(text.starts_with("# source: "), "{name}");
    }
}

/// Every table has rows that are simulated, and one set of figures explains them.
#[test]
#[ignore = "simulates every published row, which takes a minute"]
fn one_set_of_figures_explains_the_published_tables() {
    let (names, validation) = (names(), built_in());
    let simulated = |name: &str| validation.predictions.iter().any(|row| row.measured.table == name);
    assert!(names.iter().all(|name| name.starts_with("power_") || simulated(name)), "{validation}");
    let ErrorSpread { median, high, count } = validation.spread(|_| true);
    assert!(count >= 145 && median <= 0.035 && high <= 0.27, "{validation}");
    let held_out = |row: &Prediction| row.measured.role == RowRole::HeldOut;
    let ErrorSpread { median, high, count } = validation.spread(held_out);
    assert!(count >= 85 && median <= 0.045 && high <= 0.30, "{validation}");
    let launches = |row: &Prediction| held_out(row) && row.is_of_launches();
    let ErrorSpread { median, high, count } = validation.spread(launches);
    assert!(count >= 60 && median <= 0.03 && high <= 0.12, "{validation}");
    let ErrorSpread { median, count, .. } = validation.spread(|row| row.measured.micros >= 500.0);
    assert!(count >= 80 && median <= 0.05, "{validation}");
    let wrong = validation.skipped.iter().find(|row| {
        ["correct the row", "malformed", "unwritten memory", "race"].iter().any(|fault| row.contains(fault))
    });
    assert_eq!(wrong, None, "a row of the repository is not read");
    let text = validation.to_string();
    assert!(text.contains("prefill of the model") && text.contains("published figures contradict"), "{text}");
}

/// The paper's own products: watts of the NPU's rail times seconds of the step.
#[test]
#[ignore = "simulates every published row, which takes a minute"]
fn the_published_energy_of_gemma_is_power_times_time() {
    let validation = built_in();
    let joules = |label: &str| {
        let row = validation.energies.iter().find(|row| row.label.starts_with(label)).unwrap();
        assert!((0.4..2.0).contains(&(row.joules / row.published_joules)), "{row}");
        row.published_joules
    };
    assert!((joules("gemma3-4b token at 1024") - 1.6 / 14.4).abs() < 1e-9, "0.111 J a token");
    assert!((joules("gemma3-1b prefill of 1024") - 1.2 * 1.02).abs() < 1e-9, "1.22 J");
    assert_eq!(validation.energies.len(), 4);
    assert!(validation.to_string().contains("gemma3-1b token at 32768 less gemma3-1b token at 1024: "));
    let skipped = validation.skipped.join("\n");
    assert!(skipped.contains("integrated GPU"), "{skipped}");
}

/// A model whose shape is unknown and a context beyond the model's are named, not guessed.
#[test]
fn steps_of_unknown_shapes_are_named() {
    let rows = "model,metric,hw,context,value\n\
                gemma3-12b,decode_tps,NPU,1k,5\n\
                gemma3-1b,decode_tps,NPU,64k,5\n\
                gemma3-1b,decode_tps,NPU,long,5\n\
                gemma3-1b,decode_tps,NPU,1k,-\n\
                gemma3-1b,joules,NPU,1k,5\n";
    let validation = simulate(&[("seed001_gemma3_kraken.csv".to_owned(), rows.to_owned())]);
    assert!(validation.predictions.is_empty());
    let reasons = [
        "the shape of gemma3-12b is unknown",
        "gemma3-1b has at most 32768 positions",
        "its context is not stated",
        "the row has no time and no rate",
        "its metric is unknown",
    ];
    assert_eq!(validation.skipped.len(), reasons.len(), "{:?}", validation.skipped);
    for (sentence, reason) in validation.skipped.iter().zip(reasons) {
        assert!(sentence.contains(reason), "{sentence}");
    }
}

/// A row of another table with the label of a fitted one tests the figures.
#[test]
fn only_rows_of_the_built_in_tables_are_fitted() {
    let roles = |rows: &str| {
        let file = ("mlir_air_kernel_GELU_bf16.csv".to_owned(), rows.to_owned());
        simulate(&[file]).predictions.iter().map(|row| row.measured.role).collect::<Vec<_>>()
    };
    let fitted = RowRole::Fitted("cycles of gelu");
    assert_eq!(roles(GELU_ROWS), [fitted, RowRole::HeldOut]);
    assert_eq!(roles(&GELU_ROWS.replace("235 µs", "236 µs")), [RowRole::HeldOut; 2]);
}

/// Every step of the Gemma 3 paper counts, for the programs that girih compiles and with the host's
/// time, however far off it is.
#[test]
#[ignore = "simulates every published row, which takes a minute"]
fn steps_of_gemma_are_counted() {
    for (steps, rows) in
        [("gemma3-1b prefill", 6), ("gemma3-4b prefill", 6), ("gemma3-1b token", 6), ("gemma3-4b token", 8)]
    {
        let of = |row: &&Prediction| row.measured.label.starts_with(steps);
        let of = built_in().predictions.iter().filter(of);
        assert_eq!(of.filter(|row| row.measured.role == RowRole::HeldOut).count(), rows, "{steps}");
    }
}

/// The largest median error of additions whose rows no figure was fitted to.
const ADD_MEDIAN: f64 = 0.10;

/// Without the rows of additions, no figure of their kernel is fitted to any row, and all others are.
#[test]
#[ignore = "fits all figures, which takes minutes"]
fn figures_are_fitted_without_a_family() {
    let left_out = leave_out(&built_in_tables(), Some(KernelFamily::Add), &mut |_, _| {}).unwrap();
    let source = |name: &str| left_out.figures.iter().find(|figure| figure.name == name).unwrap().source;
    assert!(matches!(source("aie2p add.vector"), RefitSource::Derived(_)), "{left_out}");
    assert_eq!(source("aie2p rope_halves.head"), RefitSource::Rows(3), "{left_out}");
    assert!(left_out.rows.iter().all(|row| row.measured.table.contains("EltwiseAdd")), "{left_out}");
    let [refit, committed] = left_out.spreads();
    assert_eq!(refit.count, committed.count);
    assert!(refit.median <= ADD_MEDIAN, "{left_out}");
}
