//! No kernel reads or writes outside its slices: every path of every table runs with all operands and
//! results at the end of their pages, and at the start.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use girih_cpu::kernels::attend::{AttendKernels, Cells, ValueBlock};
use girih_cpu::kernels::packed::{Band, MatmulKernels};
use girih_cpu::kernels::{Rotation, Table, tables};

use crate::fixture::Random;
use crate::guarded::{Guarded, Side};
use crate::path::Tally;
use crate::paths::paths;

/// Cases of each path.
const CASES: usize = 12;

/// The table `tables()[TABLE]`; its kernels get copies of all slices. A guarded page directly follows each
/// copy if `END`, and precedes it otherwise.
fn guarded<const TABLE: usize, const END: bool>() -> Table {
    Table {
        matmul: matmul::<TABLE, END>(),
        attend: attend::<TABLE, END>(),
        norm: |x, weight, epsilon, y| {
            let (x, weight) = (copy::<_, END>(x), copy::<_, END>(weight));
            with::<_, END>(y, |y| (tables()[TABLE].norm)(&x, &weight, epsilon, y));
        },
        layer_norm: |x, weight, bias, epsilon, y| {
            let (x, weight) = (copy::<_, END>(x), copy::<_, END>(weight));
            let bias = bias.map(copy::<_, END>);
            with::<_, END>(y, |y| {
                (tables()[TABLE].layer_norm)(&x, &weight, bias.as_deref(), epsilon, y);
            });
        },
        rotate: |x, rotation, pairing, y| {
            let (x, cosines, sines) =
                (copy::<_, END>(x), copy::<_, END>(rotation.cosines), copy::<_, END>(rotation.sines));
            let rotation = Rotation { cosines: &cosines, sines: &sines };
            with::<_, END>(y, |y| (tables()[TABLE].rotate)(&x, rotation, pairing, y));
        },
        gate: |act, gate, up, y| {
            let (gate, up) = (copy::<_, END>(gate), copy::<_, END>(up));
            with::<_, END>(y, |y| (tables()[TABLE].gate)(act, &gate, &up, y));
        },
        activate: |act, x, y| {
            let x = copy::<_, END>(x);
            with::<_, END>(y, |y| (tables()[TABLE].activate)(act, &x, y));
        },
        add: |a, b, y| {
            let (a, b) = (copy::<_, END>(a), copy::<_, END>(b));
            with::<_, END>(y, |y| (tables()[TABLE].add)(&a, &b, y));
        },
        scale: |x, factor, y| {
            let x = copy::<_, END>(x);
            with::<_, END>(y, |y| (tables()[TABLE].scale)(&x, factor, y));
        },
        softcap: |values, cap| with::<_, END>(values, |values| (tables()[TABLE].softcap)(values, cap)),
        quantize: |x, codes, scales, sums| {
            let x = copy::<_, END>(x);
            with::<_, END>(codes, |codes| {
                with::<_, END>(scales, |scales| {
                    with::<_, END>(sums, |sums| (tables()[TABLE].quantize)(&x, codes, scales, sums));
                });
            });
        },
        ..tables()[TABLE]
    }
}

fn matmul<const TABLE: usize, const END: bool>() -> MatmulKernels {
    MatmulKernels {
        narrow: |band, x, sums| {
            let (bytes, x) = (copy::<_, END>(band.bytes), copy::<_, END>(x));
            let band = Band { bytes: &bytes, ..band };
            with::<_, END>(sums, |sums| (tables()[TABLE].matmul.narrow)(band, &x, sums));
        },
        decode: |band, first, count, panels| {
            let bytes = copy::<_, END>(band.bytes);
            let band = Band { bytes: &bytes, ..band };
            with::<_, END>(std::slice::from_mut(panels), |panels| {
                (tables()[TABLE].matmul.decode)(band, first, count, &mut panels[0]);
            });
        },
        tile: |coding, panels, groups, x, sums| {
            let (panels, x) = (copy::<_, END>(std::slice::from_ref(panels)), copy::<_, END>(x));
            with::<_, END>(sums, |sums| (tables()[TABLE].matmul.tile)(coding, &panels[0], groups, &x, sums));
        },
        floats: |band, first, x, sums| {
            let (bytes, x) = (copy::<_, END>(band.bytes), copy::<_, END>(x));
            let band = Band { bytes: &bytes, ..band };
            with::<_, END>(sums, |sums| (tables()[TABLE].matmul.floats)(band, first, &x, sums));
        },
        bf16: |band, first, x, sums| {
            let (bytes, x) = (copy::<_, END>(band.bytes), copy::<_, END>(x));
            let band = Band { bytes: &bytes, ..band };
            with::<_, END>(sums, |sums| (tables()[TABLE].matmul.bf16)(band, first, &x, sums));
        },
        has_bf16_dot: false,
    }
}

fn attend<const TABLE: usize, const END: bool>() -> AttendKernels {
    AttendKernels {
        score: |queries, keys, next, scores, at| {
            let (queries, next) = (copy::<_, END>(queries), copy::<_, END>(next));
            with_cells::<END>(keys, |keys| {
                with::<_, END>(scores, |scores| {
                    (tables()[TABLE].attend.score)(&queries, keys, &next, scores, at);
                });
            });
        },
        weigh: |scores, seen, cap| {
            let mut ends = [f32::NAN; 2];
            with::<_, END>(std::slice::from_mut(scores), |scores| {
                ends = (tables()[TABLE].attend.weigh)(&mut scores[0], seen, cap);
            });
            ends
        },
        blend: |weights, at, values, sums| {
            let (weights, next) = (copy::<_, END>(weights), copy::<_, END>(values.next));
            with_cells::<END>(values.cells, |cells| {
                let values = ValueBlock { cells, next: &next, ..values };
                with::<_, END>(sums, |sums| (tables()[TABLE].attend.blend)(&weights, at, values, sums));
            });
        },
        join: |running, result, partial, sums| {
            let sums = copy::<_, END>(sums);
            with::<_, END>(result, |result| (tables()[TABLE].attend.join)(running, result, partial, &sums));
        },
        widen_keys: |format, tile, into| {
            let tile = copy::<_, END>(tile);
            with::<_, END>(into, |into| (tables()[TABLE].attend.widen_keys)(format, &tile, into));
        },
        widen_values: |values, into| {
            with_cells::<END>(values.cells, |cells| {
                let values = ValueBlock { cells, ..values };
                with::<_, END>(into, |into| (tables()[TABLE].attend.widen_values)(values, into));
            });
        },
        halve: |values, bytes| {
            let values = copy::<_, END>(values);
            with::<_, END>(bytes, |bytes| (tables()[TABLE].attend.halve)(&values, bytes));
        },
    }
}

fn copy<T: Copy, const END: bool>(values: &[T]) -> Guarded<'_, T> {
    Guarded::new(values, if END { Side::End } else { Side::Start })
}

/// Calls `kernel` with a guarded copy, then copies the result back.
fn with<T: Copy, const END: bool>(values: &mut [T], kernel: impl FnOnce(&mut [T])) {
    let before = values.to_vec();
    let mut guarded = copy::<T, END>(&before);
    kernel(&mut guarded);
    values.copy_from_slice(&guarded);
}

fn with_cells<const END: bool>(cells: Cells<'_>, kernel: impl FnOnce(Cells<'_>)) {
    match cells {
        Cells::Decoded(values) => kernel(Cells::Decoded(&copy::<_, END>(values))),
        Cells::Stored(format, bytes) => kernel(Cells::Stored(format, &copy::<_, END>(bytes))),
    }
}

fn check(table: &Table) {
    for path in paths() {
        let (mut random, mut tally) = (Random(41), Tally::default());
        (0..CASES).for_each(|_| (path.check)(table, &mut random, &mut tally));
        assert_eq!(tally.fault, None, "{} {}", table.name, path.name);
    }
}

#[test]
fn no_kernel_accesses_memory_after_its_slices() {
    let all = [guarded::<0, true>, guarded::<1, true>, guarded::<2, true>, guarded::<3, true>];
    assert!(tables().len() <= all.len(), "add a guarded copy of the new table");
    all.iter().take(tables().len()).for_each(|table| check(&table()));
}

#[test]
fn no_kernel_accesses_memory_before_its_slices() {
    let all = [guarded::<0, false>, guarded::<1, false>, guarded::<2, false>, guarded::<3, false>];
    assert!(tables().len() <= all.len(), "add a guarded copy of the new table");
    all.iter().take(tables().len()).for_each(|table| check(&table()));
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
