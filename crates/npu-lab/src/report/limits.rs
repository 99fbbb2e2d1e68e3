//! What an array could do at most, and what binds a launch.

use serde::Serialize;

use girih_npu::Target;

/// The limits of an array.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Compute tiles.
    pub cores: u32,
    /// Multiplications and additions of bf16 in a second, all cores.
    pub bf16_ops_per_second: f64,
    /// The same through block floating point; 0 if there is none.
    pub bfp16_ops_per_second: f64,
    /// Bytes of DRAM in a second, in long runs.
    pub dram_bytes_per_second: f64,
    /// Bytes of one stream in a second.
    pub stream_bytes_per_second: f64,
    /// Bytes that all shims could read from DRAM in a second.
    pub shim_bytes_per_second: f64,
}

/// How much of its time each part of the array was busy in a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// The busiest core.
    pub cores: f64,
    /// DRAM, short runs counted at what they cost.
    pub dram: f64,
    /// The busiest stream on the chip, or the one to or from DRAM that comes
    /// nearest to its width.
    pub streams: f64,
    /// The command processor, giving tasks.
    pub control: f64,
}

/// What keeps a launch from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A core is busy.
    Cores,
    /// DRAM is busy.
    Dram,
    /// A stream is busy.
    Streams,
    /// The command processor is busy.
    Control,
    /// Nobody is busy: parts wait for each other.
    Waiting,
}

/// Below this share of the busiest part, parts wait for each other.
const BUSY: f64 = 0.7;

impl Limits {
    /// The limits that follow from a target's figures.
    pub fn of(target: &Target) -> Limits {
        let (cores, unit) = (target.cores(), &target.core_unit);
        let ops = |macs: u32| 2.0 * f64::from(macs) * f64::from(cores) * target.clock.hertz;
        let stream = f64::from(target.stream.bytes_per_cycle) * target.clock.hertz;
        let shims = target.array.shim_columns * target.shim.dma.channels_out;
        Limits {
            cores,
            bf16_ops_per_second: ops(unit.bf16_macs),
            bfp16_ops_per_second: ops(unit.bfp16_macs),
            dram_bytes_per_second: target.dram.bytes_per_second,
            stream_bytes_per_second: stream,
            shim_bytes_per_second: stream * f64::from(shims),
        }
    }

    /// Operations in a second that this many per byte of DRAM allow.
    pub fn roof(&self, intensity: f64) -> f64 {
        self.bf16_ops_per_second.min(intensity * self.dram_bytes_per_second)
    }
}

impl Shares {
    /// The part that was busiest, unless all of them waited.
    pub fn bound(&self) -> Bound {
        let parts = self.parts();
        let (bound, most) = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are four");
        if most < BUSY { Bound::Waiting } else { bound }
    }

    /// The shares, by part.
    pub fn parts(&self) -> [(Bound, f64); 4] {
        [
            (Bound::Cores, self.cores),
            (Bound::Dram, self.dram),
            (Bound::Streams, self.streams),
            (Bound::Control, self.control),
        ]
    }
}

impl Bound {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Cores => "cores",
            Bound::Dram => "DRAM",
            Bound::Streams => "streams",
            Bound::Control => "control",
            Bound::Waiting => "waiting",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_that_the_data_sheet_implies() {
        let limits = Limits::of(&Target::named("xdna2-strix").unwrap());
        // 32 cores, 256 multiplications, two operations each, 1.8 GHz.
        assert_eq!(limits.bf16_ops_per_second, 32.0 * 256.0 * 2.0 * 1.8e9);
        // Eight shims with two channels of four bytes a cycle.
        assert_eq!(limits.shim_bytes_per_second, 8.0 * 2.0 * 4.0 * 1.8e9);
        let ridge = limits.bf16_ops_per_second / limits.dram_bytes_per_second;
        assert_eq!(limits.roof(ridge / 2.0), limits.bf16_ops_per_second / 2.0);
        assert_eq!(limits.roof(ridge * 2.0), limits.bf16_ops_per_second);
    }

    #[test]
    fn the_busiest_part_binds_unless_all_wait() {
        let shares = Shares { cores: 0.8, dram: 0.9, streams: 0.1, control: 0.0 };
        assert_eq!(shares.bound(), Bound::Dram);
        let shares = Shares { cores: 0.5, dram: 0.45, streams: 0.48, control: 0.0 };
        assert_eq!(shares.bound(), Bound::Waiting);
    }
}
