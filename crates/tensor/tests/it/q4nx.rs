//! Q4NX: the documented order of bytes, and matrices that are not whole tiles.

use girih_tensor::Random;
use girih_tensor::{DType, View};

/// A tile of zeros except for three groups, computed by hand.
#[test]
fn integers_scales_and_minimums_have_the_documented_offsets() {
    let mut tile = vec![0.0; 32 * 256];
    // Row 2, columns 64..96 (group 2): minimum -1, scale 0.5, integers 0..16
    // twice. Column 64 + 5 is line 1, byte 1.
    for column in 0..32 {
        tile[2 * 256 + 64 + column] = -1.0 + 0.5 * (column % 16) as f32;
    }
    // Row 18 = 16 + 2 shares its bytes: minimum 3, scale 2, integers 15 - i.
    for column in 0..32 {
        tile[18 * 256 + 64 + column] = 33.0 - 2.0 * (column % 16) as f32;
    }
    // Row 31, group 7: minimum 0, scale 1; 15 in the last column of the tile.
    tile[31 * 256 + 255] = 15.0;
    let bytes = DType::Q4NX.pack_matrix(32, 256, &tile).unwrap();

    let mut expected = vec![0u8; 5120];
    for i in 0..32 {
        let q = (i % 16) as u8;
        expected[2 * 512 + 64 * (i / 4) + 4 * 2 + i % 4] = q | (15 - q) << 4;
    }
    expected[4095] = 0xf0;
    let mut put = |at: usize, bf16: [u8; 2]| expected[at..at + 2].copy_from_slice(&bf16);
    put(4096 + 2 * (2 * 32 + 2), [0x00, 0x3f]); // 0.5
    put(4608 + 2 * (2 * 32 + 2), [0x80, 0xbf]); // -1
    put(4096 + 2 * (2 * 32 + 18), [0x00, 0x40]); // 2
    put(4608 + 2 * (2 * 32 + 18), [0x40, 0x40]); // 3
    put(4096 + 2 * (7 * 32 + 31), [0x80, 0x3f]); // 1
    let first = bytes.iter().zip(&expected).position(|(a, b)| a != b);
    assert!(first.is_none(), "byte {first:?} differs");

    let mut values = vec![1.0; 32 * 256];
    DType::Q4NX.unpack(&bytes, &mut values);
    assert!(values == tile, "these values are levels, so they decode exactly");
}

#[test]
fn a_minimum_is_rounded_down() {
    // 1 + 2^-7 is the bf16 after 1; the values lie between the two. The scale
    // is (1 + 2^-8 - 1) / 15 = 2^-8 / 15, so that the one value is level 15.
    let values = vec![1.0 + 1.0 / 256.0; 32 * 256];
    let bytes = DType::Q4NX.pack_matrix(32, 256, &values).unwrap();
    assert!(bytes[..4096].iter().all(|&byte| byte == 0xff));
    assert!(bytes[4608..].chunks_exact(2).all(|minimum| minimum == [0x80, 0x3f]));
    // The same below zero: the minimum is -(1 + 2^-7).
    let values: Vec<f32> = values.iter().map(|value| -value).collect();
    let bytes = DType::Q4NX.pack_matrix(32, 256, &values).unwrap();
    assert!(bytes[4608..].chunks_exact(2).all(|minimum| minimum == [0x81, 0xbf]));
}

#[test]
fn matrices_with_partial_tiles_round_trip() {
    let mut random = Random(6);
    for (rows, columns) in [(1, 1), (31, 255), (32, 256), (33, 257), (70, 300), (5, 600), (0, 256), (3, 0)] {
        let values = random.bells(rows * columns);
        let bytes = DType::Q4NX.pack_matrix(rows, columns, &values).unwrap();
        assert_eq!(bytes.len(), rows.div_ceil(32) * columns.div_ceil(256) * 5120);
        let mut decoded = vec![0.0; rows * columns];
        View::new(DType::Q4NX, rows, columns, &bytes).unwrap().unpack_rows(0..rows, &mut decoded);
        for (i, (value, decoded)) in values.iter().zip(&decoded).enumerate() {
            // Values and padding lie within ±2: a step is at most 4/15, and
            // larger by the rounding of minimum and scale to bf16, 2^-7.
            let bound = 4.0 / 15.0 / 2.0 * (1.0 + 1.0 / 128.0);
            assert!((value - decoded).abs() <= bound, "{rows} x {columns}, value {i}: {value}, {decoded}");
        }
    }
}

#[test]
fn padding_decodes_to_exactly_zero() {
    // 40 columns: group 1 is part padding; groups 2 to 7 and rows 3 to 31 are all padding.
    let bytes = DType::Q4NX.pack_matrix(3, 40, &Random(7).bells(3 * 40)).unwrap();
    let mut tile = vec![1.0; 32 * 256];
    DType::Q4NX.unpack(&bytes, &mut tile);
    for (row, values) in tile.chunks_exact(256).enumerate() {
        let padding = if row < 3 { &values[64..] } else { values };
        assert!(padding.iter().all(|value| value.to_bits() == 0), "row {row}");
    }
}
