//! How rows of published tables are read, and which are refused.

use girih_tensor::Random;

use super::row::MAX_TABLE_SIZE;
use super::*;

fn measurements(file: &str, text: &str, skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    Ok(read(file, text, skipped)?.measurements)
}

/// Why the only row of a table is skipped.
fn refusal(file: &str, row: &str) -> String {
    let mut skipped = Vec::new();
    let all = measurements(file, row, &mut skipped).unwrap();
    assert!(all.is_empty() && skipped.len() == 1, "{row}: {skipped:?}");
    skipped.remove(0)
}

/// The bugs: one such row made the command refuse all tables, and a size that is none was passed over,
/// so that the next one took its place.
#[test]
fn a_row_without_its_sizes_is_named() {
    let refused = |table: &str, row: &str, want: &str| {
        let reason = refusal(&format!("mlir_air_kernel_{table}_bf16.csv"), row);
        assert!(reason.contains(want), "{row}: {reason}");
    };
    let (few, none) = ("are needed", "has a size that is not from 1 to 268435456");
    refused("GEMV", "Tested shapes,2048×,8/8/4,437 µs", few);
    refused("GEMV", "Tested shapes,2048×2048×2048,8/8/4,437 µs", few);
    for shape in ["2048×0", "2048×99999999999", "2048×0×5", "-2048×2048", "2048×-2048", "2048×20.5"] {
        refused("GEMV", &format!("Tested shapes,{shape},8/8/4,437 µs"), none);
    }
    refused("EltwiseAdd", "Tested shapes,n,,8/1/64,437 µs", few);
    refused("RMSNorm", "Tested shapes,2048×2048,columns,437 µs", few);
    refused("RoPE", "Tested shapes,65536,64,8,437 µs", few);
    refused("FlashAttention", "Tested shapes,2048×2048,64,32,✓,,15.4 ms", few);
    let short =
        measurements("mlir_air_kernel_GEMV_bf16.csv", "Tested shapes\n\nTested shapes,1×1", &mut Vec::new());
    assert!(short.unwrap().is_empty(), "a row without a time is no measurement");
}

/// The bugs: digits in groups were sizes of their own, a time in seconds or with another letter µ was
/// none, and the exponent, the sign and the bound of a figure were ignored.
#[test]
fn figures_are_read_as_they_are() {
    let micros_of = |time: &str| {
        let row = format!("Tested shapes,\"1,048,576\",-,8/1/2048,\"{time}\",x");
        let all = measurements("mlir_air_kernel_EltwiseAdd_bf16.csv", &row, &mut Vec::new()).unwrap();
        all.first().map(|one| (one.label.clone(), one.micros.round()))
    };
    let label = "n=1048576 8/1/2048".to_owned();
    for time in ["1,234 µs", "1234 μs", "1.234 ms", "0.001234 s", "1.234e3 us", "1233–1235 µs", "~1234"]
    {
        assert_eq!(micros_of(time), Some((label.clone(), 1234.0)), "{time}");
    }
    for time in ["—", "-1234 µs", "> 1234 µs", "0 µs", "1e300 ms", "nan", "inf µs", "1e-9 µs"] {
        assert_eq!(micros_of(time), None, "{time}");
    }
}

/// The bugs: an empty table was passed over, and rows were printed with control characters.
#[test]
fn a_table_without_measurements_is_named() {
    let gemv = "mlir_air_kernel_GEMV_bf16.csv";
    for text in ["", "# source: x\n", "section,\"(M, K)\"\r\n\r\n"] {
        assert_eq!(refusal(gemv, text), format!("{gemv}: it has no rows"));
    }
    let row = format!("a\u{1b}[2J,{}", ",".repeat(5000));
    let named = refusal(gemv, &row);
    assert!(named.starts_with(&format!("{gemv}: a [2J,,")) && named.len() < 400, "{named}");
}

/// The bug: columns were read by their place alone.
#[test]
fn columns_are_found_by_their_titles() {
    let labels_of = |table: &str, text: &str| {
        let all = measurements(&format!("mlir_air_kernel_{table}.csv"), text, &mut Vec::new()).unwrap();
        all.iter().map(|one| format!("{} {:.0}us", one.label, one.micros)).collect::<Vec<_>>()
    };
    let gemm = "\u{feff}GFLOPS,tile (m/kl2/kl1/n),\"(M, K, N)\",section\r\n\
                8000,64/256/32/128,2048×2048×512,DIRECT\r\n";
    let want = ["direct 2048×2048×512 64/256/32/128 537us"];
    assert_eq!(labels_of("GEMM_bf16_in_fp32_out", gemm), want);
    let add = "section,latency,cols\nTunable space,700 µs,4\n\
               section,bandwidth,herd,tiles\nTunable space,57.7 GB/s,8×1,8\n\
               section,latency,herd,tiles\nTunable space,436 µs,8×1,8";
    assert_eq!(labels_of("EltwiseAdd_bf16", add), ["columns 4 700us", "herd 8×1 436us"]);
    let (mut skipped, paper) = (Vec::new(), "gemm_xdna_xdna2_striking_the_balance.csv");
    let titles = "measured_array_TOPS,GEMM_N,GEMM_K,GEMM_M,L2_total_KB,n_ct,k_ct,m_ct,precision_in-out,device,table,\
                  macs_per_cycle_single_core,L1_KB,peak_compute_TOPS_at_that_kernel";
    let row = "37.35,4608,4320,4032,2106,144,72,144,int8-int8,XDNA2,3_array,343.0,60.8,39.52";
    let all = measurements(paper, &format!("{titles}\n{row}"), &mut skipped).unwrap();
    assert_eq!(all[0].label, "XDNA2 int8-int8 4032×4320×4608 144×72×144", "{skipped:?}");
    assert_eq!(all[0].micros.round(), 4298.0);
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
    ("mlir_air_kernel_FlashAttention_bf16.csv", "section,lqp\ntile choice,#,#,#,#,#,900,-"),
    ("gemm_gemma3_paper_megatile.csv", "#x#x#,900"),
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
            let mut skipped = Vec::new();
            let all = measurements(table, &row, &mut skipped).unwrap();
            built += all.len();
            refused += skipped.len();
            all.iter().for_each(|one| assert!(!one.schedule().unwrap().launches.is_empty(), "{row}"));
            assert!(!all.is_empty() || !skipped.is_empty(), "{row} is neither built nor named");
        }
    }
    assert!(built > 100 && refused > 1000, "{built} built, {refused} refused");
}

#[test]
fn sizes_that_do_not_fit_their_tiles_are_named() {
    let refused = |table: &str, row: &str, want: &str| {
        let reason = refusal(table, row);
        assert!(reason.starts_with(table) && reason.contains(want), "{row}: {reason}");
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
    let third = "table,device\n3_array,XDNA3,int8-int8,144,72,144,343.0,60.8,2106,39.52,4032,4320,4608,37.35";
    assert!(refusal("gemm_xdna_xdna2_striking_the_balance.csv", third).ends_with("known are XDNA and XDNA2"));
    let program = "prefill,o_ffn_fused,8,41.0,16,656,59";
    assert!(
        refusal("mlir_air_llama1b_kernel_breakdown.csv", program).ends_with("its launches are not known")
    );
    let letters = "DIRECT,512x512x512,64/256/32/128,8000,ok";
    assert_eq!(labels_of("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", letters).0.len(), 1);
    let megatile = "megatile_MxKxN_as_written,measured_TOPS\n128x512x512,5.9";
    assert_eq!(labels_of("gemm_gemma3_paper_megatile.csv", megatile).0, ["2048³ in 128×512×512 2912us"]);
}
