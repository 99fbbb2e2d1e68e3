//! The functions of `kernels/kernels.cc`, compiled with the stand-in for AIE's vector API, compute the bytes that
//! the kernel entries of the same names define, or numbers near them where the API has a function in bf16 only.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use girih_npu::emit;
use girih_npu::kernel::{self, Access, KernelEntry, KernelValues};
use girih_tensor::{DType, Random};

/// Calls with tails that fill no vector, and sizes of the blocks of a GEMM.
const CALLS: &[(&str, &[&[u32]])] = &[
    ("add", &[&[16], &[37], &[1]]),
    ("attend_clear", &[&[3, 20]]),
    ("copy", &[&[16], &[5]]),
    ("dequant_q4nx", &[&[0, 8], &[5, 2]]),
    ("gemm_bf16", &[&[4, 8, 8], &[8, 24, 40]]),
    ("gemm_bf16_direct", &[&[12, 8, 64]]),
    ("gemm_bf16_tuned", &[&[4, 16, 16]]),
    ("gemv_bf16", &[&[3, 64], &[2, 70], &[5, 200]]),
    ("gemv_bf16_part", &[&[3, 64], &[2, 33]]),
    ("gemv_q4nx", &[&[32, 256], &[64, 512]]),
    ("layer_norm", &[&[2, 32, 32, EPSILON], &[3, 40, 37, EPSILON]]),
    ("rms_norm", &[&[2, 32, 32, EPSILON], &[3, 40, 37, EPSILON]]),
    ("rope_halves", &[&[2, 3, 64], &[1, 2, 40]]),
    ("rope_neighbours", &[&[2, 2, 16]]),
    ("scale", &[&[16, HALF], &[21, HALF]]),
    ("store_bf16", &[&[16], &[19]]),
    ("unpack_q4nx", &[&[0, 8], &[3, 1]]),
    ("zero_f32", &[&[32], &[7]]),
];

/// Calls of functions whose bits differ: exponentials and hyperbolic tangents are rounded to bf16, which is a relative error of
/// 2^-9, and a quotient is a product by a reciprocal.
const NEAR_CALLS: &[(&str, &[&[u32]])] = &[
    // Rows, size, values, keys, group, query, key, causal, window, scale.
    (
        "attend",
        &[
            &[4, 64, 64, 32, 4, 0, 0, 0, 0, HALF],
            &[6, 40, 24, 13, 2, 1, 0, 1, 0, HALF],
            &[5, 16, 20, 16, 1, 20, 8, 1, 12, HALF],
            &[4, 8, 8, 16, 4, 0, 30, 1, 0, HALF],
        ],
    ),
    ("attend_merge", &[&[3, 32], &[2, 20]]),
    (
        "attend_scores",
        &[
            &[4, 64, 32, 4, 0, 0, 0, 0, HALF],
            &[6, 40, 45, 2, 25, 0, 1, 9, HALF],
            &[4, 8, 16, 4, 0, 30, 1, 0, HALF],
        ],
    ),
    ("attend_store", &[&[2, 16], &[3, 20]]),
    ("attend_values", &[&[4, 64, 32], &[5, 20, 45]]),
    ("gelu", &[&[16], &[21]]),
    ("gelu_mul", &[&[32], &[5]]),
    ("silu_mul", &[&[32], &[5]]),
];

/// 1e-5 and 0.5, as bits.
const EPSILON: u32 = 0x3727_c5ac;
const HALF: u32 = 0x3f00_0000;

/// Compiles the functions with a program that calls them; none if the machine has no compiler.
fn compiled() -> Option<PathBuf> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("call-{}", std::process::id()));
    // The sums of the entries round after each step, so that no product is fused with a sum.
    let arguments = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-I", "host"];
    let output = Command::new("g++")
        .current_dir(&kernels)
        .args(arguments)
        .arg("-o")
        .arg(&program)
        .args(["host/call.cc", "kernels.cc"])
        .output();
    let Ok(output) = output else {
        println!("skipped: g++ is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The bytes of all operands after a call in C++.
fn called(program: &Path, name: &str, params: &[u32], operands: &[Vec<u8>]) -> Vec<u8> {
    let sizes: String = operands.iter().map(|operand| format!(" {}", operand.len())).collect();
    let given: String = params.iter().map(|param| format!(" {param}")).collect();
    let head = format!("{name} {} {}{sizes}{given}\n", operands.len(), params.len());
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&[head.into_bytes(), operands.concat()].concat()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}");
    output.stdout
}

/// The same, as the entry defines it.
fn defined(entry: &KernelEntry, params: &[u32], operands: &[Vec<u8>]) -> Vec<u8> {
    let mut after = operands.to_vec();
    let is_read = |index: usize| entry.operands[index].access == Access::Read;
    let reads: Vec<&[u8]> =
        (0..operands.len()).filter(|&at| is_read(at)).map(|at| &operands[at][..]).collect();
    let writes = after.iter_mut().enumerate().filter(|(at, _)| !is_read(*at));
    let mut writes: Vec<&mut [u8]> = writes.map(|(_, bytes)| &mut bytes[..]).collect();
    entry.compute(params, &mut KernelValues { reads: &reads, writes: &mut writes });
    after.concat()
}

/// Operands of a call with random values, weights of attention in bf16 as its entries round them. The first tile of Q4NX has
/// signed integers, as tiles of Q4_0 do.
fn operands(entry: &KernelEntry, params: &[u32], random: &mut Random) -> Vec<Vec<u8>> {
    let one = |operand: &kernel::KernelOperand| {
        let (rows, columns) = operand.dtype.tile();
        let mut bytes = vec![0; operand.bytes(params) as usize];
        let count = bytes.len() / operand.dtype.block_bytes() * rows * columns;
        let steps = if operand.name == "weights" { 32.0 } else { 1000.0 };
        let values = (0..count).map(|_| random.below(4 * steps as usize + 1) as f32 / steps - 2.0);
        operand.dtype.pack(&values.collect::<Vec<f32>>(), &mut bytes);
        if operand.dtype == DType::Q4NX {
            bytes[512..1024].fill(0);
        }
        bytes
    };
    entry.operands.iter().map(one).collect()
}

/// Whether numbers of a type are equal, or differ by at most 1 % of them or of 1.
fn are_near(dtype: DType, found: &[u8], want: &[u8]) -> bool {
    let numbers = |bytes: &[u8]| {
        let mut values = vec![0.0; bytes.len() / dtype.block_bytes()];
        dtype.unpack(bytes, &mut values);
        values
    };
    let is_near =
        |(found, want): (f32, f32)| found == want || (found - want).abs() <= 0.01 * want.abs().max(1.0);
    numbers(found).into_iter().zip(numbers(want)).all(is_near)
}

#[test]
fn functions_in_c_compute_what_their_entries_define() {
    let Some(program) = compiled() else { return };
    let mut random = Random(7);
    for (name, calls) in CALLS {
        let entry = kernel::entry(name).unwrap();
        for params in *calls {
            entry.check(params).unwrap();
            let operands = operands(entry, params, &mut random);
            let (found, want) =
                (called(&program, name, params, &operands), defined(entry, params, &operands));
            assert!(found == want, "{name} {params:?}");
        }
    }
    for (name, calls) in NEAR_CALLS {
        let entry = kernel::entry(name).unwrap();
        for params in *calls {
            entry.check(params).unwrap();
            let operands = operands(entry, params, &mut random);
            let (mut found, mut want) =
                (&called(&program, name, params, &operands)[..], &defined(entry, params, &operands)[..]);
            for operand in entry.operands {
                let bytes = operand.bytes(params) as usize;
                let (one, other) = (found.split_off(..bytes).unwrap(), want.split_off(..bytes).unwrap());
                assert!(are_near(operand.dtype, one, other), "{name} {params:?}: {}", operand.name);
            }
        }
    }
    let sent: Vec<u8> = random.bytes(4 * 37);
    let both = [sent.clone(), vec![0; sent.len()]];
    assert!(called(&program, "send_receive", &[37], &both) == [&sent[..], &sent].concat(), "the cascade");
    std::fs::remove_file(program).unwrap();
}

/// Every entry has a function, but for those that no compiled program calls.
#[test]
fn entries_without_a_function_are_those_of_other_number_formats() {
    let is_written = |entry: &&KernelEntry| emit::KERNELS.contains(&format!("void {}(", entry.name));
    let missing = kernel::ENTRIES.iter().filter(|entry| !is_written(entry)).map(|entry| entry.name);
    let expected = ["gemm_bf16_low", "gemm_bfp16", "gemm_int8", "gemm_int8_i8", "gemm_int8_i16"];
    assert_eq!(missing.collect::<Vec<_>>(), expected);
}
