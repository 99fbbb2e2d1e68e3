//! Random weights for the Llama graph.

use girih_graph::{Error, WeightSource};
use girih_tensor::DType;

/// Random weights, determined by seed and name.
pub struct Random(pub u64);

impl WeightSource for Random {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        assert_eq!(offset, 0, "backends read whole weights");
        let mut state =
            name.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32) / (1 << 23) as f32 - 1.0
        };
        if name.starts_with("rope") {
            let values: Vec<f32> = (0..into.len() / 4).map(|i| 0.1f32.powi(i as i32)).collect();
            DType::F32.pack(&values, into);
            return Ok(());
        }
        let norm = name.contains("norm") || name.contains("before");
        let value = |x: f32| if norm { 1.0 + 0.2 * x } else { 0.3 * x };
        let values: Vec<f32> = (0..into.len() / 2).map(|_| value(uniform())).collect();
        DType::BF16.pack(&values, into);
        Ok(())
    }
}
