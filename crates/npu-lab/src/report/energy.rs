//! An estimate of energy, in two ways that both rest on four published points:
//! the power of the NPU's rail while decoding and in prefill, of two models, on
//! another board and with another mapping. It is no measurement and no claim.

use serde::Serialize;

use girih_npu::Target;

/// Joules of a step's array time, estimated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Energy {
    /// Idle power times the array's time.
    pub idle_joules: f64,
    /// Of bytes to and from DRAM.
    pub dram_joules: f64,
    /// Of multiplications.
    pub mac_joules: f64,
    /// The published power of the rail in such a phase, in watts.
    pub rail_watts: f64,
    /// That power times the array's time.
    pub rail_joules: f64,
}

impl Energy {
    /// The estimate for so many seconds, bytes and multiplications.
    pub fn of(target: &Target, prefill: bool, seconds: f64, bytes: u64, macs: u64) -> Energy {
        let power = &target.power;
        let rail_watts = if prefill { power.prefill_watts } else { power.decode_watts };
        Energy {
            idle_joules: power.idle_watts * seconds,
            dram_joules: power.joules_per_dram_byte * bytes as f64,
            mac_joules: power.joules_per_mac * macs as f64,
            rail_watts,
            rail_joules: rail_watts * seconds,
        }
    }

    /// The sum of the parts.
    pub fn parts_joules(&self) -> f64 {
        self.idle_joules + self.dram_joules + self.mac_joules
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_follow_from_the_figures() {
        let target = Target::named("xdna2-strix").unwrap();
        let energy = Energy::of(&target, false, 0.1, 1_000_000_000, 2_000_000_000);
        let power = &target.power;
        assert_eq!(energy.rail_joules, power.decode_watts * 0.1);
        let sum = power.idle_watts * 0.1 + power.joules_per_dram_byte * 1e9 + power.joules_per_mac * 2e9;
        assert!((energy.parts_joules() - sum).abs() <= sum * 4.0 * f64::EPSILON);
    }
}
