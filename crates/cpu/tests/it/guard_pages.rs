//! No kernel reads or writes outside its slices: every path of every table runs with all operands and
//! results at the end of their pages, and at the start.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use girih_cpu::kernels::tables;

use crate::fixture::Random;
use crate::guarded::{Guarded, Side};
use crate::path::{Memory, Operands, Tally};
use crate::paths::paths;

/// Cases of each path.
const CASES: usize = 12;

fn check(side: Side) {
    for (table, path) in
        tables().iter().flat_map(|table| paths(table).into_iter().map(move |path| (table, path)))
    {
        let mut operands = Operands { random: Random(41), memory: Memory::Guarded(side) };
        let mut tally = Tally::default();
        (0..CASES).for_each(|_| (path.check)(table, &mut operands, &mut tally));
        assert_eq!(tally.fault, None, "{} {}", table.name, path.name);
    }
}

#[test]
fn no_kernel_accesses_memory_after_its_slices() {
    check(Side::End);
}

#[test]
fn no_kernel_accesses_memory_before_its_slices() {
    check(Side::Start);
}

/// A process that reads one value after a slice is killed, so the tests above would fail.
#[test]
fn reading_after_a_slice_is_a_fault() {
    /// The signal of a memory fault, the same on every Unix.
    const SIGSEGV: i32 = 11;
    let program = std::env::current_exe().expect("the test's own program");
    let child = ["guard_pages::reads_after_a_slice", "--exact", "--ignored"];
    let status = Command::new(program).args(child).output().expect("the program starts").status;
    assert_eq!(status.signal(), Some(SIGSEGV), "{status}");
}

#[test]
#[ignore = "faults on purpose; the test above runs it in a process of its own"]
fn reads_after_a_slice() {
    let values = vec![1.0f32; 100];
    println!("{}", Guarded::new(&values, Side::End).read_after());
}
