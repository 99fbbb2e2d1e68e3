//! The levels of a block: its values are levels, and writing takes the nearest one.

use girih_tensor::{DType, Levels, Random};

fn formats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| dtype.tile() != (1, 1))
}

/// The levels of each value of a block.
fn of_values(dtype: DType, block: &[u8]) -> Vec<Levels> {
    let mut all = Vec::new();
    dtype.levels(block, &mut |levels| all.extend(std::iter::repeat_n(levels, levels.values)));
    all
}

/// The rounding of a few operations in single precision on numbers up to the largest level.
fn single(levels: &Levels) -> f64 {
    let (low, high) = levels.ends();
    low.abs().max(high.abs()) / f64::from(1u32 << 20)
}

#[test]
fn each_value_of_a_block_is_one_of_its_levels() {
    let mut random = Random(11);
    for dtype in formats() {
        for _ in 0..20 {
            let mut block: Vec<u8> = random.bytes(dtype.block_bytes());
            if dtype == DType::MXFP4 {
                block[0] = 120; // other exponents overflow
            }
            let (rows, columns) = dtype.tile();
            let mut values = vec![0.0; rows * columns];
            dtype.unpack(&block, &mut values);
            let levels = of_values(dtype, &block);
            assert_eq!(levels.len(), values.len(), "{dtype}");
            for (value, levels) in values.iter().zip(&levels).filter(|(value, _)| value.is_finite()) {
                let value = f64::from(*value);
                let (low, high) = levels.ends();
                assert!((levels.nearest(value) - value).abs() <= single(levels), "{dtype}: {value}");
                assert!(low - single(levels) <= value && value <= high + single(levels), "{dtype}: {value}");
            }
        }
    }
}

#[test]
fn writing_takes_the_nearest_level_and_a_doubled_scale_does_not() {
    let mut random = Random(12);
    for dtype in formats().filter(|dtype| dtype.writes()) {
        let (rows, columns) = dtype.tile();
        let values: Vec<f32> = (0..rows * columns).map(|_| random.number()).collect();
        let mut block = vec![0; dtype.block_bytes()];
        dtype.pack(&values, &mut block);
        let mut stored = vec![0.0; values.len()];
        dtype.unpack(&block, &mut stored);
        let all = of_values(dtype, &block);
        let is_nearest = |(index, (value, stored)): (usize, (f32, f32))| {
            let (levels, value) = (&all[index], f64::from(value));
            let slack = 2.0 * levels.rounding + single(levels);
            (f64::from(stored) - value).abs() <= (levels.nearest(value) - value).abs() + slack
        };
        let pairs = values.iter().copied().zip(stored.iter().copied());
        assert!(pairs.clone().enumerate().all(is_nearest), "{dtype}");
        let doubled = pairs.map(|(value, stored)| (value, 2.0 * stored));
        assert!(!doubled.enumerate().all(is_nearest), "{dtype}");
    }
}
