//! Random weights for the Llama graph.

use girih_graph::{Error, WeightSource};
use girih_tensor::{DType, Random};

/// Random weights, determined by seed and name.
pub struct RandomWeights(pub u64);

impl WeightSource for RandomWeights {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        assert_eq!(offset, 0, "backends read whole weights");
        let seed =
            name.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let mut random = Random(seed);
        if name.starts_with("rope") {
            let values: Vec<f32> = (0..into.len() / 4).map(|i| 0.1f32.powi(i as i32)).collect();
            DType::F32.pack(&values, into);
            return Ok(());
        }
        let norm = name.contains("norm") || name.contains("before");
        let value = |x: f32| if norm { 1.0 + 0.2 * x } else { 0.3 * x };
        let values: Vec<f32> = (0..into.len() / 2).map(|_| value(random.number())).collect();
        DType::BF16.pack(&values, into);
        Ok(())
    }
}
