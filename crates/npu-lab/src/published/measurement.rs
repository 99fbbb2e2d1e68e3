//! A row of the published tables.

use girih_npu::form::schedule::Schedule;
use girih_tensor::Result;

use super::design::program;
use super::workload::Workload;

/// A published time.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The table's file name.
    pub table: String,
    /// What was measured: shape, tile and variant.
    pub label: String,
    /// Microseconds from dispatch to end.
    pub micros: f64,
    /// The target that it was measured on.
    pub target: &'static str,
    /// Whether every dispatch configures the array again, as for programs in
    /// ELF form.
    pub(super) elf: bool,
    workload: Workload,
}

impl Measurement {
    /// A measurement on XDNA2 Strix that configures the array once.
    pub(super) fn new(table: &str, label: String, micros: f64, workload: Workload) -> Measurement {
        Measurement { table: table.to_owned(), label, micros, target: "xdna2-strix", elf: false, workload }
    }

    /// The same, with every dispatch configuring the array.
    pub(super) fn elf(self) -> Measurement {
        Measurement { elf: true, ..self }
    }

    /// Checks that the measured program can be built.
    ///
    /// # Errors
    /// When sizes do not fit their tiles.
    pub(super) fn fits(&self) -> Result<()> {
        self.workload.fits()
    }

    /// The program that was measured.
    pub fn schedule(&self) -> Schedule {
        let mut designs = Vec::new();
        self.workload.designs(&mut designs);
        program("measured", self.target, designs)
    }
}
