//! A table: the kernels of one instruction set, and the way into code that is compiled for it.

use super::attend::AttendKernels;
#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use super::neon::{Neon, products::Plain};
use super::packed::MatmulKernels;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::vector::{Isa, VectorKernel};

/// A loop over a row or over elements, with its operands.
pub trait CpuKernel: Sized {
    /// Runs the loop: plain code, of which the compiler makes vectors. It and all that it calls is
    /// `#[inline(always)]`; a call would leave the table's instructions.
    fn run(self);

    /// The portable table's loop: a plain twin if [`CpuKernel::run`] approximates a function.
    fn run_portable(self) {
        self.run();
    }
}

/// The kernels of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// The name in logs and flags.
    pub name: &'static str,
    /// The multiplication of packed weights.
    pub matmul: MatmulKernels,
    /// The loops of attention.
    pub attend: AttendKernels,
    pub(super) set: InstructionSet,
}

impl Table {
    /// Runs a kernel with this table's instructions.
    #[inline]
    pub fn run(&self, kernel: impl CpuKernel) {
        match self.set {
            InstructionSet::Portable => kernel.run_portable(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2(token) => token.enter(Entered(kernel)),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512(token) => token.enter(Entered(kernel)),
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon(token) => token.enter(Entered(kernel)),
        }
    }
}

/// The instructions that a table compiles kernels with.
#[derive(Clone, Copy, Debug)]
pub(super) enum InstructionSet {
    /// Those of any processor.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon<Plain>),
}

/// A kernel within the function that is compiled for an instruction set.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
struct Entered<K>(K);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<I, K: CpuKernel> VectorKernel<I> for Entered<K> {
    #[inline(always)]
    fn run(self, _: I) {
        self.0.run();
    }
}
