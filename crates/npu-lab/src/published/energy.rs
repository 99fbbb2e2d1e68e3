//! Published energy beside simulated energy: the power of the NPU's rail times the published time
//! of a step. An estimate without a claim: the same table gives the targets their power.

use std::fmt;

/// The published power of the NPU's rail while a model works.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PublishedPower {
    /// The model's name in the tables.
    pub model: String,
    /// Whether it is in prefill, otherwise in decode.
    pub prefill: bool,
    /// Watts.
    pub watts: f64,
}

/// The energy of a step, published and simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct EnergyRow {
    /// The step.
    pub label: String,
    /// Published watts.
    pub watts: f64,
    /// Published watts times published seconds.
    pub published_joules: f64,
    /// The target's power of the rail times simulated seconds of the array.
    pub rail_joules: f64,
    /// The sum of idle, DRAM and multiply-accumulate energy of the simulated step.
    pub parts_joules: f64,
}

impl fmt::Display for EnergyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EnergyRow { label, watts, published_joules, rail_joules, parts_joules } = self;
        write!(
            f,
            "energy, {label}: {published_joules:.3} J published at {watts} W; simulated {rail_joules:.3} J by the \
             rail's power and {parts_joules:.3} J by its parts"
        )
    }
}
