//! A rough estimate of energy, computed in two ways from the same four
//! published points: the power of the NPU's rail in decode and in prefill, for
//! two models, on another board and with another mapping. It is not a
//! measurement.

use girih_npu::Target;
use serde::Serialize;

/// The estimated energy of a step's array time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EnergyEstimate {
    /// Idle power times array time.
    pub idle_joules: f64,
    /// The energy of bytes to and from DRAM.
    pub dram_joules: f64,
    /// The energy of multiply-accumulates.
    pub mac_joules: f64,
    /// The published power of the rail in the same phase, in watts.
    pub rail_watts: f64,
    /// Rail power times array time.
    pub rail_joules: f64,
}

impl EnergyEstimate {
    /// The estimate from array seconds, DRAM bytes and multiply-accumulates.
    pub fn of(target: &Target, prefill: bool, seconds: f64, bytes: u64, macs: u64) -> EnergyEstimate {
        let power = &target.power;
        let rail_watts = if prefill { power.prefill_watts } else { power.decode_watts };
        EnergyEstimate {
            idle_joules: power.idle_watts * seconds,
            dram_joules: power.joules_per_dram_byte * bytes as f64,
            mac_joules: power.joules_per_mac * macs as f64,
            rail_watts,
            rail_joules: rail_watts * seconds,
        }
    }

    /// The sum of idle, DRAM and multiply-accumulate energy.
    pub fn parts_joules(&self) -> f64 {
        self.idle_joules + self.dram_joules + self.mac_joules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_estimates_follow_from_the_figures() {
        let target = Target::named("xdna2-strix").unwrap();
        let energy = EnergyEstimate::of(&target, false, 0.1, 1_000_000_000, 2_000_000_000);
        let power = &target.power;
        assert_eq!(energy.rail_joules, power.decode_watts * 0.1);
        let sum = power.idle_watts * 0.1 + power.joules_per_dram_byte * 1e9 + power.joules_per_mac * 2e9;
        assert!((energy.parts_joules() - sum).abs() <= sum * 4.0 * f64::EPSILON);
    }
}
