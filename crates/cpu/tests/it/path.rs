//! A path through a kernel, with a check of one random case against `f64` and
//! the bound that follows from its roundings.

use std::ops::{Deref, DerefMut};

use girih_cpu::kernels::Table;

use crate::fixture::Random;
use crate::guarded::{Guarded, Side};

/// The memory in which the operands of a kernel lie.
#[derive(Clone, Copy)]
pub enum Memory {
    Plain,
    /// A page without access lies next to each operand.
    Guarded(Side),
}

/// Values in such memory.
pub type Placed<T> = Box<dyn DerefMut<Target = [T]>>;

impl Memory {
    /// A copy of `values`.
    pub fn place<T: Copy + 'static>(self, values: &[T]) -> Placed<T> {
        match self {
            Memory::Plain => Box::new(values.to_vec()),
            Memory::Guarded(side) => Box::new(Guarded::new(values, side)),
        }
    }
}

/// Random operands, in memory of one kind.
pub struct Operands {
    pub random: Random,
    pub memory: Memory,
}

impl Operands {
    /// Numbers between −1 and 1.
    pub fn numbers(&mut self, count: usize) -> Placed<f32> {
        self.memory.place(&self.random.numbers(count))
    }

    /// Memory for results, which are NaN unless a kernel writes them.
    pub fn results(&self, count: usize) -> Placed<f32> {
        self.memory.place(&vec![f32::NAN; count])
    }
}

impl Deref for Operands {
    type Target = Random;

    fn deref(&self) -> &Random {
        &self.random
    }
}

impl DerefMut for Operands {
    fn deref_mut(&mut self) -> &mut Random {
        &mut self.random
    }
}

/// The results of the checks of one path.
#[derive(Default)]
pub struct Tally {
    pub outputs: usize,
    /// The largest error within its bound, as a fraction of the bound.
    pub worst: f64,
    /// The first output beyond its bound.
    pub fault: Option<String>,
}

impl Tally {
    /// Counts one output, and compares it with the expected value.
    pub fn record(&mut self, got: f32, expected: f64, bound: f64, what: impl FnOnce() -> String) {
        let distance = (f64::from(got) - expected).abs();
        // False for NaN.
        let agrees = distance <= bound;
        self.outputs += 1;
        if agrees && distance > 0.0 {
            self.worst = self.worst.max(distance / bound);
        }
        if !agrees {
            self.fault.get_or_insert_with(|| format!("{}: {got}, not {expected} within {bound:e}", what()));
        }
    }

    /// Counts outputs without tolerance, with their first fault.
    pub fn record_exact(&mut self, outputs: usize, fault: Option<String>) {
        self.outputs += outputs;
        self.fault = self.fault.take().or(fault);
    }
}

type Check = Box<dyn Fn(&Table, &mut Operands, &mut Tally)>;

/// A path through a kernel: a kernel with the arguments that select its loop.
pub struct KernelPath {
    pub name: String,
    /// Runs one random case and checks all its outputs.
    pub check: Check,
}

impl KernelPath {
    pub fn new(name: String, check: impl Fn(&Table, &mut Operands, &mut Tally) + 'static) -> KernelPath {
        KernelPath { name, check: Box::new(check) }
    }
}
