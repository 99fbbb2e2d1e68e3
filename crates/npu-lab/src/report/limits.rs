//! The limits of an array, and the bottleneck of a launch.

use girih_npu::Target;
use serde::Serialize;

/// The maximum rates of an array.
#[derive(Clone, Debug, Serialize)]
pub struct ArrayLimits {
    /// Compute tiles.
    pub cores: u32,
    /// Multiplications and additions of bf16 per second, all cores.
    pub bf16_ops_per_second: f64,
    /// The same in block floating point; 0 if the cores do not support it.
    pub bfp16_ops_per_second: f64,
    /// DRAM bytes per second, in long runs.
    pub dram_bytes_per_second: f64,
    /// Bytes per second of one stream.
    pub stream_bytes_per_second: f64,
    /// Bytes per second that all shims together can read from DRAM.
    pub shim_bytes_per_second: f64,
}

/// The share of a launch's time that each part of the array was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BusyShares {
    /// The busiest core.
    pub cores: f64,
    /// DRAM; short runs count with their longer service time.
    pub dram: f64,
    /// The stream that moved the most bytes, relative to its bandwidth.
    pub streams: f64,
    /// The command processor, pushing tasks.
    pub control: f64,
}

/// The part that limits the speed of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchBottleneck {
    /// The busiest core.
    Cores,
    /// DRAM.
    Dram,
    /// The busiest stream.
    Streams,
    /// The command processor.
    Control,
    /// No part is busy; parts wait for each other.
    Waiting,
}

/// The minimum share of the busiest part; below it, parts wait for each other.
const BUSY_SHARE: f64 = 0.7;

impl ArrayLimits {
    /// Derives the limits from a target's figures.
    pub fn of(target: &Target) -> ArrayLimits {
        let (cores, unit) = (target.cores(), &target.core_unit);
        let ops = |macs: u32| 2.0 * f64::from(macs) * f64::from(cores) * target.clock.hertz;
        let stream = f64::from(target.stream.bytes_per_cycle) * target.clock.hertz;
        let shims = target.array.shim_columns * target.shim.dma.channels_out;
        ArrayLimits {
            cores,
            bf16_ops_per_second: ops(unit.bf16_macs),
            bfp16_ops_per_second: ops(unit.bfp16_macs),
            dram_bytes_per_second: target.dram.bytes_per_second,
            stream_bytes_per_second: stream,
            shim_bytes_per_second: stream * f64::from(shims),
        }
    }

    /// The maximum operations per second at an intensity, in operations per byte of
    /// DRAM.
    pub fn roof(&self, intensity: f64) -> f64 {
        self.bf16_ops_per_second.min(intensity * self.dram_bytes_per_second)
    }
}

impl BusyShares {
    /// The busiest part, or `Waiting` if no part reaches `BUSY_SHARE`.
    pub fn bound(&self) -> LaunchBottleneck {
        let parts = self.parts();
        let (bound, max) = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are four");
        if max < BUSY_SHARE { LaunchBottleneck::Waiting } else { bound }
    }

    /// Each part with its share.
    pub fn parts(&self) -> [(LaunchBottleneck, f64); 4] {
        [
            (LaunchBottleneck::Cores, self.cores),
            (LaunchBottleneck::Dram, self.dram),
            (LaunchBottleneck::Streams, self.streams),
            (LaunchBottleneck::Control, self.control),
        ]
    }
}

impl LaunchBottleneck {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            LaunchBottleneck::Cores => "cores",
            LaunchBottleneck::Dram => "DRAM",
            LaunchBottleneck::Streams => "streams",
            LaunchBottleneck::Control => "control",
            LaunchBottleneck::Waiting => "waiting",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_agree_with_the_data_sheet() {
        let limits = ArrayLimits::of(&Target::named("xdna2-strix").unwrap());
        // 32 cores × 256 multiply-accumulates × 2 operations × 1.8 GHz.
        assert_eq!(limits.bf16_ops_per_second, 32.0 * 256.0 * 2.0 * 1.8e9);
        // Eight shims with two channels of four bytes per cycle.
        assert_eq!(limits.shim_bytes_per_second, 8.0 * 2.0 * 4.0 * 1.8e9);
        let ridge = limits.bf16_ops_per_second / limits.dram_bytes_per_second;
        assert_eq!(limits.roof(ridge / 2.0), limits.bf16_ops_per_second / 2.0);
        assert_eq!(limits.roof(ridge * 2.0), limits.bf16_ops_per_second);
    }

    #[test]
    fn the_busiest_part_is_the_bottleneck_unless_all_wait() {
        let shares = BusyShares { cores: 0.8, dram: 0.9, streams: 0.1, control: 0.0 };
        assert_eq!(shares.bound(), LaunchBottleneck::Dram);
        let shares = BusyShares { cores: 0.5, dram: 0.45, streams: 0.48, control: 0.0 };
        assert_eq!(shares.bound(), LaunchBottleneck::Waiting);
    }
}
