//! Properties of every format that girih reads.

use girih_tensor::Random;
use girih_tensor::{DType, View};

#[test]
fn any_bytes_decode() {
    let mut random = Random(1);
    for &dtype in DType::ALL {
        let (rows, columns) = dtype.tile();
        for fill in [None, Some(0x00), Some(0xff), Some(0x7f), Some(0x80)] {
            let bytes = match fill {
                Some(byte) => vec![byte; 3 * dtype.block_bytes()],
                None => random.bytes(3 * dtype.block_bytes()),
            };
            // A NaN other than 0/0 marks values that were not written.
            let unwritten = f32::from_bits(0x7fc0_1234);
            let mut values = vec![unwritten; 3 * rows * columns];
            dtype.unpack(&bytes, &mut values);
            assert!(values.iter().all(|value| value.to_bits() != unwritten.to_bits()), "{dtype}");
        }
    }
}

#[test]
fn zero_bytes_decode_to_zero() {
    for &dtype in DType::ALL {
        let (rows, columns) = dtype.tile();
        let mut values = vec![1.0; rows * columns];
        dtype.unpack(&vec![0; dtype.block_bytes()], &mut values);
        // Most negative levels times a scale of +0 are -0, which equals 0. MXFP4 has no
        // scale of zero but a level of zero.
        assert!(values.iter().all(|&value| value == 0.0), "{dtype}");
    }
}

#[test]
fn a_view_reads_any_rows() {
    let mut random = Random(2);
    for &dtype in DType::ALL {
        let (tile_rows, tile_columns) = dtype.tile();
        let (rows, columns) = (2 * tile_rows + 3, 2 * tile_columns);
        let bytes = random.bytes(dtype.matrix_bytes(rows, columns).unwrap());
        let view = View::new(dtype, rows, columns, &bytes).unwrap();
        let mut all = vec![0.0; rows * columns];
        view.unpack_rows(0..rows, &mut all);
        for range in [0..0, 1..2, tile_rows - 1..tile_rows + 1, rows - 1..rows, rows..rows] {
            let mut some = vec![0.0; range.len() * columns];
            view.unpack_rows(range.clone(), &mut some);
            let expected = &all[range.start * columns..range.end * columns];
            assert!(
                some.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{dtype}, rows {range:?}"
            );
        }
    }
}
