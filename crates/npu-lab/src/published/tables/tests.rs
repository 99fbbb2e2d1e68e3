//! How rows of published tables are read, and which are refused.

use girih_tensor::Random;

use super::row::MAX_TABLE_SIZE;
use super::*;

fn measurements(file: &str, text: &str, skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    Ok(read(file, text, skipped)?.measurements)
}

#[test]
fn a_row_without_its_sizes_is_an_error() {
    let refused = |table: &str, row: &str| {
        let error =
            measurements(&format!("mlir_air_kernel_{table}_bf16.csv"), row, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("too few sizes"), "{row}: {error}");
    };
    refused("GEMV", "Tested shapes,2048×,8/8/4,437 µs");
    refused("GEMV", "Tested shapes,2048×0,8/8/4,437 µs");
    refused("GEMV", "Tested shapes,2048×99999999999,8/8/4,437 µs");
    refused("EltwiseAdd", "Tested shapes,n,,8/1/64,437 µs");
    refused("RMSNorm", "Tested shapes,2048×2048,columns,437 µs");
    refused("RoPE", "Tested shapes,65536,64,8,437 µs");
    refused("FlashAttention", "Tested shapes,2048×2048,64,32,✓,,15.4 ms");
    let short =
        measurements("mlir_air_kernel_GEMV_bf16.csv", "Tested shapes\n\nTested shapes,1×1", &mut Vec::new());
    assert!(short.unwrap().is_empty(), "a row without a time is no measurement");
}

/// The bugs: norms had the shape of another row, sizes above 2^24 were dropped, a time in
/// milliseconds was not found, and a tile with its herd was refused.
#[test]
fn rows_are_read_as_they_are() {
    let labels_of = |table: &str, row: &str| {
        let mut skipped = Vec::new();
        let all = measurements(&format!("mlir_air_kernel_{table}.csv"), row, &mut skipped).unwrap();
        let labels = all.iter().map(|one| format!("{} {}us", one.label, one.micros)).collect::<Vec<_>>();
        (labels, skipped)
    };
    let one = |label: &str| (vec![label.to_owned()], Vec::<String>::new());
    let norm = "Tested shapes,512×1024,4,1.5 ms";
    assert_eq!(labels_of("RMSNorm_bf16", norm), one("512×1024 columns 4 1500us"));
    let add = "Tested shapes,33554432,-,8/1/2048,3200 µs,x";
    assert_eq!(labels_of("EltwiseAdd_bf16", add), one("n=33554432 8/1/2048 3200us"));
    let gemm = "DIRECT,2048×2048×2048,64/256/32/128 (8×4),8000,ok";
    assert_eq!(labels_of("GEMM_bf16_in_fp32_out", gemm).0.len(), 1);
    let smaller = gemm.replace("8×4", "4×4");
    assert_eq!(labels_of("GEMM_bf16_in_fp32_out", &smaller).0.len(), 1);
    let (none, skipped) = labels_of("GEMM_bf16_in_fp32_out", &gemm.replace("8×4", "2×4"));
    assert!(none.is_empty() && skipped[0].ends_with("each row needs a column that reads B"), "{skipped:?}");
    let (none, skipped) = labels_of("GEMV_bf16", "Tested shapes,2048×2048,8/8/8,—,x");
    assert!(none.is_empty() && skipped[0].ends_with("the row has no time and no rate"), "{skipped:?}");
    let unknown = measurements("notes.csv", "a,b", &mut Vec::new()).unwrap_err().to_string();
    assert!(unknown.starts_with("notes.csv: is an unknown table"), "{unknown}");
    let mut skipped = Vec::new();
    assert!(measurements("simulators.csv", "a,b", &mut skipped).unwrap().is_empty());
    assert_eq!(skipped, ["simulators.csv: it lists simulators"]);
}

/// A row of each kind; each `#` is replaced by a size.
const ROW_TEMPLATES: &[(&str, &str)] = &[
    ("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", "EXTERNAL,#×#×#,#/#/#/#,900,ok"),
    ("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", "tile choice,2048³,#,900,900"),
    ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", "fused-cast,#×#×#,#/#/#/#,900,ok"),
    ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", "low-precision,#×#×#,#/#/#/#,900,ok"),
    ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", "drain,#×#×#,#/#/#/#,900,ok"),
    ("mlir_air_kernel_GEMV_bf16.csv", "Tested shapes,#×#,#/#/#,437 µs"),
    ("mlir_air_kernel_EltwiseAdd_bf16.csv", "Tested shapes,#,-,#/#/#,437 µs,x"),
    ("mlir_air_kernel_GELU_bf16.csv", "Tested shapes,#,-,#/#/#,437 µs,x"),
    ("mlir_air_kernel_RMSNorm_bf16.csv", "Tested shapes,#×#,#,437 µs"),
    ("mlir_air_kernel_LayerNorm_bf16.csv", "herd_x choice vs performance,#,437 µs"),
    ("mlir_air_kernel_RoPE_bf16.csv", "Tested shapes,#,#,#/#,437 µs"),
    ("mlir_air_kernel_FlashAttention_bf16.csv", "Tested shapes,#×#,#/#,#/8,✓,1,15.4 ms"),
    ("gemm_xdna_xdna2_striking_the_balance.csv", "2_array,XDNA2,bf16-bf16,#,#,#,x,x,#,x,#,#,#,9"),
    ("gemm_xdna_xdna2_striking_the_balance.csv", "2_array,XDNA,int8-int32,#,#,#,x,x,#,x,#,#,#,9"),
];

/// Sizes from published tables, and some that no design can use.
const TRIED_SIZES: [u64; 16] =
    [1, 2, 3, 4, 8, 16, 32, 64, 96, 256, 257, 512, 2048, 4096, 1 << 20, MAX_TABLE_SIZE];

/// The bug: sizes that do not fit their tiles caused panics from buffers
/// beyond 32 bits, a lack of channels, or a division by zero.
#[test]
fn any_sizes_are_built_or_refused() {
    let mut random = Random(1);
    let (mut built, mut refused) = (0, 0);
    for (table, row) in ROW_TEMPLATES {
        for _ in 0..2000 {
            let mut size = || random.of(&TRIED_SIZES).to_string();
            let mut parts = row.split('#');
            let first = parts.next().unwrap_or_default().to_owned();
            let row = parts.fold(first, |row, part| row + &size() + part);
            match measurements(table, &row, &mut Vec::new()) {
                Ok(all) => {
                    built += all.len();
                    all.iter().for_each(|one| assert!(!one.schedule().unwrap().launches.is_empty(), "{row}"));
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("correct the row"), "{row}: {error}");
                }
            }
        }
    }
    assert!(built > 100 && refused > 1000, "{built} built, {refused} refused");
}

#[test]
fn sizes_that_do_not_fit_their_tiles_are_named() {
    let refused = |table: &str, row: &str, want: &str| {
        let error = measurements(table, row, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with(table) && error.contains(want), "{row}: {error}");
    };
    let gemm = "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv";
    refused(gemm, "DIRECT,2000×2048×2048,64/256/32/128,900,ok", "m is 2000, and must be a multiple of 512");
    refused(
        gemm,
        "DIRECT,512×16777216×512,64/16777216/32/128,900,ok",
        "2147483648 bytes of A in L2 exceed the simulated maximum of 1048576",
    );
    let gemv = "mlir_air_kernel_GEMV_bf16.csv";
    refused(gemv, "Tested shapes,2048×2048,256/8/8,437 µs", "a herd of 256×1 tiles does not fit an array");
    let add = "mlir_air_kernel_EltwiseAdd_bf16.csv";
    refused(
        add,
        "Tested shapes,1048576,-,8/4/2048,437 µs,x",
        "32 tiles with 2 streams each exceed the 16 streams",
    );
    refused(
        add,
        "Tested shapes,8,-,8/1/1,437 µs,x",
        "the byte count of an operand is 2, and must be a multiple of 4",
    );
    let paper = "gemm_xdna_xdna2_striking_the_balance.csv";
    refused(paper, "2_array,XDNA2,bf16-bf16,112,48,96,x,x,1,x,4032,4224,4608,9", "the step of k in L2 is 0");
}

/// The bugs: rows of RoPE that vary the herd, FlashAttention's first choice of tiles and integer
/// results were dropped, any shape but two was taken for Down, and any method for drained.
#[test]
fn each_row_is_simulated_or_named() {
    let labels_of = |table: &str, rows: &str| {
        let mut skipped = Vec::new();
        let all = measurements(table, rows, &mut skipped).unwrap();
        let labels = all.iter().map(|one| format!("{} {:.0}us", one.label, one.micros)).collect::<Vec<_>>();
        (labels, skipped)
    };
    let rope =
        "section,herd,tiles,result\nTunable space,2×4,8,✅ 44.3 GB/s\nTunable space,8×2,16,❌ no channel";
    let (labels, skipped) = labels_of("mlir_air_kernel_RoPE_bf16.csv", rope);
    assert_eq!(labels, ["65536×64 herd 2×4 568us"]);
    assert!(skipped[0].ends_with("8×2,16,❌ no channel: the design did not run"), "{skipped:?}");
    let flash = "section,lqp,nqt,hpu,ncs,tile_q,rate,note\ntile choice,256,4,2,4,64,1000–1180,-";
    assert_eq!(labels_of("mlir_air_kernel_FlashAttention_bf16.csv", flash).0, ["4 query tiles 15761us"]);
    let choice = "tile choice,8192³,256,1000,—\ntile choice,Other (K=8192),256,1000,1000";
    let (labels, skipped) = labels_of("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", choice);
    assert_eq!(labels, ["external 8192³ n=64 1099512us"]);
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    let method = "by another method,2048×2048×2048,64/256/32/128,900,ok\nKnobs,a,b\nKnobs,c,d";
    let (labels, skipped) = labels_of("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", method);
    assert!(labels.is_empty() && skipped[0].ends_with("its heading names no known method"), "{skipped:?}");
    assert!(skipped[1].ends_with("2 rows of \"Knobs\": the row has no time and no rate"), "{skipped:?}");
    let paper = "table,device,precision_in-out\n1_single_core,XDNA2,int8-int8,64,232,64,450.6,62.0,,,,,,\n\
                 3_array,XDNA2,int8-int8,144,72,144,343.0,60.8,2106,39.52,4032,4320,4608,37.35\n\
                 3_array,XDNA2,int8-int16,128,72,112,307.2,61.8,2084,35.39,4096,4320,4480,30.77\n\
                 3_array,XDNA2,int4-int8,128,72,112,307.2,61.8,2084,35.39,4096,4320,4480,30.77\n\
                 text,XDNA2,int8-int16,64,216,64,419.8,62.0,,48.36,~4096,~4096,~4096,17.86";
    let (labels, skipped) = labels_of("gemm_xdna_xdna2_striking_the_balance.csv", paper);
    let int8 = ["int8-int8 4032×4320×4608 144×72×144 4298us", "int8-int16 4096×4320×4480 128×72×112 5153us"];
    assert_eq!(labels, int8.map(|label| format!("XDNA2 {label}")));
    assert_eq!(skipped.len(), 3, "{skipped:?}");
    let megatile = "megatile_MxKxN_as_written,measured_TOPS\n128x512x512,5.9";
    assert_eq!(labels_of("gemm_gemma3_paper_megatile.csv", megatile).0, ["2048³ in 128×512×512 2912us"]);
}
