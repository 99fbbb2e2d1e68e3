//! Published energy beside simulated energy: the power of the NPU's rail times the published time
//! of a step. No figure of a target is fitted to it.

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
    /// Joules of the simulated step.
    pub joules: f64,
    /// Tokens of the step.
    pub tokens: u32,
}

impl fmt::Display for EnergyRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EnergyRow { label, watts, published_joules, joules, tokens } = self;
        let rate = |joules: f64| f64::from(*tokens) / joules;
        write!(
            f,
            "energy, {label}: {published_joules:.3} J published at {watts} W, {:.1} tokens/J; simulated {joules:.3} J, \
             {:.1} tokens/J",
            rate(*published_joules),
            rate(*joules)
        )
    }
}
