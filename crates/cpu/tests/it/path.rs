//! A path through a kernel, with a check of one random case against `f64` and
//! the bound that follows from its roundings.

use girih_cpu::kernels::Table;

use crate::fixture::Random;

/// What checks have seen of one path.
#[derive(Default)]
pub struct Tally {
    pub outputs: usize,
    /// The largest error of those within their bounds, as a fraction of it.
    pub worst: f64,
    /// The first output beyond its bound.
    pub fault: Option<String>,
}

impl Tally {
    /// One output.
    pub fn see(&mut self, got: f32, want: f64, bound: f64, what: impl FnOnce() -> String) {
        let distance = (f64::from(got) - want).abs();
        // A distance that is no number is no agreement.
        let agrees = distance <= bound;
        self.outputs += 1;
        if agrees && distance > 0.0 {
            self.worst = self.worst.max(distance / bound);
        }
        if !agrees {
            self.fault.get_or_insert_with(|| format!("{}: {got}, not {want} within {bound:e}", what()));
        }
    }

    /// Outputs that have to be exactly right.
    pub fn see_exact(&mut self, outputs: usize, fault: Option<String>) {
        self.outputs += outputs;
        self.fault = self.fault.take().or(fault);
    }
}

type Check = Box<dyn Fn(&Table, &mut Random, &mut Tally)>;

/// A path through a kernel: a kernel with what it chooses its loop by.
pub struct Path {
    pub name: String,
    /// Checks all outputs of one random case.
    pub check: Check,
}

impl Path {
    pub fn new(name: String, check: impl Fn(&Table, &mut Random, &mut Tally) + 'static) -> Path {
        Path { name, check: Box::new(check) }
    }
}
