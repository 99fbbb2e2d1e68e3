//! The functions of `kernels/kernels.cc`, compiled with the stand-in for AIE's vector API, compute the bytes that
//! the kernel entries of the same names define.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use girih_npu::kernel::{self, Access, KernelValues};
use girih_tensor::Random;

/// Calls with tails that fill no vector, and sizes of the blocks of a GEMM.
const CALLS: &[(&str, &[&[u32]])] = &[
    ("add", &[&[16], &[37], &[1]]),
    ("copy", &[&[16], &[5]]),
    ("gemm_bf16", &[&[4, 8, 8], &[8, 24, 40]]),
    ("gemm_bf16_direct", &[&[12, 8, 64]]),
    ("gemm_bf16_tuned", &[&[4, 16, 16]]),
    ("gemv_bf16", &[&[3, 64], &[2, 70], &[5, 200]]),
    ("gemv_bf16_part", &[&[3, 64], &[2, 33]]),
    ("rope_halves", &[&[2, 3, 64], &[1, 2, 40]]),
    ("rope_neighbours", &[&[2, 2, 16]]),
    ("store_bf16", &[&[16], &[19]]),
    ("zero_f32", &[&[32], &[7]]),
];

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
    let numbers = |values: Vec<usize>| values.iter().map(|value| format!(" {value}")).collect::<String>();
    let sizes = numbers(operands.iter().map(Vec::len).collect());
    let given = numbers(params.iter().map(|&value| value as usize).collect());
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
fn defined(entry: &kernel::KernelEntry, params: &[u32], operands: &[Vec<u8>]) -> Vec<u8> {
    let mut after = operands.to_vec();
    let is_read = |index: usize| entry.operands[index].access == Access::Read;
    let reads: Vec<&[u8]> =
        (0..operands.len()).filter(|&at| is_read(at)).map(|at| &operands[at][..]).collect();
    let writes = after.iter_mut().enumerate().filter(|(at, _)| !is_read(*at));
    let mut writes: Vec<&mut [u8]> = writes.map(|(_, bytes)| &mut bytes[..]).collect();
    entry.compute(params, &mut KernelValues { reads: &reads, writes: &mut writes });
    after.concat()
}

#[test]
fn functions_in_c_compute_what_their_entries_define() {
    let Some(program) = compiled() else { return };
    let mut random = Random(7);
    for (name, calls) in CALLS {
        let entry = kernel::entry(name).unwrap();
        for params in *calls {
            entry.check(params).unwrap();
            let operands = entry.operands.iter().map(|operand| {
                let count = operand.bytes(params) as usize / operand.dtype.block_bytes();
                let values = (0..count).map(|_| random.below(4001) as f32 / 1000.0 - 2.0);
                let mut bytes = vec![0; operand.bytes(params) as usize];
                operand.dtype.pack(&values.collect::<Vec<f32>>(), &mut bytes);
                bytes
            });
            let operands: Vec<Vec<u8>> = operands.collect();
            let (found, want) =
                (called(&program, name, params, &operands), defined(entry, params, &operands));
            assert_eq!(found, want, "{name} {params:?}");
        }
    }
    std::fs::remove_file(program).unwrap();
}
