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
    /// What the row says about the simulator.
    pub role: RowRole,
    /// Whether every dispatch configures the array again, as for programs in
    /// ELF form.
    pub(super) elf: bool,
    /// What was measured.
    pub(super) subject: MeasuredSubject,
}

/// What a row says about the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowRole {
    /// These figures were fitted to it.
    Fitted(&'static str),
    /// No figure was fitted to it: it tests the simulator.
    HeldOut,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) enum MeasuredSubject {
    /// Launches with the tiles that were measured.
    Launches(Workload),
    /// Steps of a model, with programs that girih compiles.
    Steps(ModelSteps),
}

/// Steps of a model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ModelSteps {
    /// The model's name in the tables.
    pub model: String,
    /// Which steps.
    pub kind: StepKind,
}

/// Which steps of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepKind {
    /// A prefill of an empty sequence.
    Prefill {
        /// The tokens of the prompt.
        tokens: u32,
    },
    /// One token.
    Token {
        /// The positions of the sequence with it.
        context: u32,
    },
    /// The image tower, for one image.
    Image,
}

impl RowRole {
    /// The role in tables.
    pub fn name(self) -> &'static str {
        match self {
            RowRole::Fitted(_) => "fitted",
            RowRole::HeldOut => "held out",
        }
    }
}

impl Measurement {
    /// A measurement on XDNA2 Strix that configures the array once, and to which no figure was fitted.
    pub(super) fn new(table: &str, label: String, micros: f64, workload: Workload) -> Measurement {
        Measurement {
            table: table.to_owned(),
            label,
            micros,
            target: "xdna2-strix",
            role: RowRole::HeldOut,
            elf: false,
            subject: MeasuredSubject::Launches(workload),
        }
    }

    /// The same on another target.
    pub(super) fn on(self, target: &'static str) -> Measurement {
        Measurement { target, ..self }
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
        match &self.subject {
            MeasuredSubject::Launches(workload) => workload.fits(),
            MeasuredSubject::Steps(_) => Ok(()),
        }
    }

    /// The program that was measured; none for steps of a model.
    pub fn schedule(&self) -> Option<Schedule> {
        let MeasuredSubject::Launches(workload) = &self.subject else { return None };
        let mut designs = Vec::new();
        workload.designs(&mut designs);
        Some(program("measured", self.target, designs))
    }
}
