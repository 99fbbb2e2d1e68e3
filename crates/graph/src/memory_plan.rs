//! The memory of a loaded model by pool, computed before anything is loaded.

use girih_tensor::{Error, ErrorKind, Result};

/// The memory of a loaded model. The host's memory and a device's are separate pools, each
/// with its own limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// What lies in the host's memory.
    pub host: PoolBytes,
    /// What lies in the memory of a device, if it has memory of its own.
    pub device: Option<DevicePool>,
}

/// The bytes of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolBytes {
    /// Weights as the device stores them.
    pub weights: u64,
    /// Tables whose rows are read from their file in each step, which take no memory.
    pub in_file: u64,
    /// State: all blocks of all groups.
    pub state: u64,
    /// Scratch of the largest step.
    pub scratch: u64,
    /// The results of the largest step.
    pub output: u64,
    /// Buffers through which data moves between pools.
    pub staging: u64,
}

/// The pool of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePool {
    /// What lies in it.
    pub bytes: PoolBytes,
    /// The bytes that are free before the model is loaded.
    pub free: u64,
}

impl PoolBytes {
    /// The sum of what takes memory; `u64::MAX` if it overflows.
    pub fn total(&self) -> u64 {
        let PoolBytes { weights, in_file: _, state, scratch, output, staging } = *self;
        [weights, state, scratch, output, staging].into_iter().fold(0, u64::saturating_add)
    }

    /// The sum of two pools, part by part; parts that overflow are `u64::MAX`.
    #[must_use]
    pub fn plus(self, other: PoolBytes) -> PoolBytes {
        PoolBytes {
            weights: self.weights.saturating_add(other.weights),
            in_file: self.in_file.saturating_add(other.in_file),
            state: self.state.saturating_add(other.state),
            scratch: self.scratch.saturating_add(other.scratch),
            output: self.output.saturating_add(other.output),
            staging: self.staging.saturating_add(other.staging),
        }
    }

    /// Checks that the bytes fit into `free` bytes of `pool`, such as "the machine".
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::OutOfMemory`] when they do not; the error has the arithmetic.
    pub fn check(&self, pool: &str, free: u64) -> Result<()> {
        if self.total() <= free {
            return Ok(());
        }
        let parts = [
            ("weights", self.weights),
            ("KV cache", self.state),
            ("scratch", self.scratch),
            ("output", self.output),
            ("staging", self.staging),
        ];
        let present = parts.iter().filter(|(_, bytes)| *bytes > 0);
        let sum: Vec<String> = present.map(|(name, bytes)| format!("{name} {bytes}")).collect();
        let sentence = format!(
            "the model needs {} bytes ({}), but {pool} has {free} free: \
             choose a smaller context, a smaller type of KV cache or a smaller model",
            self.total(),
            sum.join(" + ")
        );
        Err(Error::with_kind(ErrorKind::OutOfMemory, sentence))
    }
}

impl MemoryPlan {
    /// The plan of a backend that uses the host's memory only.
    pub fn on_host(host: PoolBytes) -> MemoryPlan {
        MemoryPlan { host, device: None }
    }

    /// The plan of two models together on one device.
    #[must_use]
    pub fn plus(self, other: MemoryPlan) -> MemoryPlan {
        let device = match (self.device, other.device) {
            (Some(own), Some(other)) => {
                Some(DevicePool { bytes: own.bytes.plus(other.bytes), free: own.free.min(other.free) })
            }
            (own, other) => own.or(other),
        };
        MemoryPlan { host: self.host.plus(other.host), device }
    }

    /// The bytes of all pools; `u64::MAX` if the sum overflows.
    pub fn total(&self) -> u64 {
        let device = self.device.map_or(0, |device| device.bytes.total());
        self.host.total().saturating_add(device)
    }

    /// Checks that the device's part fits into what the device has free.
    ///
    /// # Errors
    /// As [`PoolBytes::check`].
    pub fn check_device(&self) -> Result<()> {
        self.device.map_or(Ok(()), |device| device.bytes.check("the device", device.free))
    }
}
