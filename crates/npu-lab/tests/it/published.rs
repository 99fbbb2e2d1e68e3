//! Simulated times compared with published ones.

use girih_npu::Target;
use girih_npu::sim::Simulator;
use girih_npu_lab::published::{Validation, built_in_tables, validate};

fn simulate(files: &[(String, String)]) -> Validation {
    validate(files, "", &|name| Simulator::new(&Target::named(name)?)).unwrap()
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
fn the_error_names_a_row_that_cannot_be_read() {
    let bad = "Tested shapes,100,-,8/2,235 us,x,y\n".to_owned();
    let file = ("mlir_air_kernel_GELU_bf16.csv".to_owned(), bad);
    let array = |name: &str| Simulator::new(&Target::named(name)?);
    let error = validate(&[file], "", &array).unwrap_err().to_string();
    assert!(error.contains("mlir_air_kernel_GELU_bf16.csv") && error.contains("\"8/2\""), "{error}");
}

/// Every table of the folder is built in, states its source, and has rows that are simulated.
#[test]
fn the_built_in_tables_are_those_of_the_folder() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tables");
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".csv")).collect();
    names.sort();
    let tables = built_in_tables();
    assert_eq!(tables.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), names);
    for (name, text) in &tables {
        assert!(text.starts_with("# source: "), "{name}");
    }
    let validation = simulate(&tables);
    let simulated = |name: &str| validation.predictions.iter().any(|row| row.measured.table == name);
    assert!(names.iter().all(|name| simulated(name)), "{validation}");
}

#[test]
fn one_set_of_figures_explains_the_published_tables() {
    let validation = simulate(&built_in_tables());
    let matmuls = |table: &str| table.contains("GEM") || table.contains("gemm");
    let (median, high, count) = validation.spread(|prediction| matmuls(&prediction.measured.table));
    assert_eq!(validation.predictions.len(), 112, "rows of the tables");
    assert!(count >= 40 && median <= 0.04 && high <= 0.12, "{validation}");
    let (median, _, count) = validation.spread(|prediction| prediction.measured.micros >= 500.0);
    assert!(count >= 80 && median <= 0.05, "{validation}");
    let text = validation.to_string();
    assert!(text.contains("prefill of the model") && text.contains("published figures contradict"), "{text}");
}
