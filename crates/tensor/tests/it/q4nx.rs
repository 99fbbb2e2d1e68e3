//! Q4NX: the documented order of bytes, tiles of Q4_0 and Q4_1, and matrices that are not whole tiles.

use girih_tensor::Random;
use girih_tensor::{DType, View, q4nx_tiles};

/// A tile of zeros except for three groups, computed by hand.
#[test]
fn integers_scales_and_minimums_have_the_documented_offsets() {
    let mut tile = vec![0.0; 32 * 256];
    // Row 2, columns 64..96 (group 2): minimum -1, scale 0.5, integers 0..16 twice.
    for column in 0..32 {
        tile[2 * 256 + 64 + column] = -1.0 + 0.5 * (column % 16) as f32;
    }
    // Row 3 shares its bytes: minimum 3, scale 2, integers 15 - i.
    for column in 0..32 {
        tile[3 * 256 + 64 + column] = 33.0 - 2.0 * (column % 16) as f32;
    }
    // Row 31, group 7: minimum 0, scale 1; 15 in the last column of the tile.
    tile[31 * 256 + 255] = 15.0;
    let bytes = DType::Q4NX.pack_matrix(32, 256, &tile).unwrap();

    let mut expected = vec![0u8; 5120];
    for i in 0..32 {
        let q = (i % 16) as u8;
        // The pair 1 of the first half, column 64 + i.
        expected[1024 + 8 * (64 + i) + 1] = q | (15 - q) << 4;
    }
    expected[5119] = 0xf0;
    let mut put = |at: usize, bf16: [u8; 2]| expected[at..at + 2].copy_from_slice(&bf16);
    put(2 * (2 * 32 + 2), [0x00, 0x3f]); // 0.5
    put(512 + 2 * (2 * 32 + 2), [0x80, 0xbf]); // -1
    put(2 * (2 * 32 + 3), [0x00, 0x40]); // 2
    put(512 + 2 * (2 * 32 + 3), [0x40, 0x40]); // 3
    put(2 * (7 * 32 + 31), [0x80, 0x3f]); // 1
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
    assert!(bytes[1024..].iter().all(|&byte| byte == 0xff));
    assert!(bytes[512..1024].chunks_exact(2).all(|minimum| minimum == [0x80, 0x3f]));
    // The same below zero: the minimum is -(1 + 2^-7).
    let values: Vec<f32> = values.iter().map(|value| -value).collect();
    let bytes = DType::Q4NX.pack_matrix(32, 256, &values).unwrap();
    assert!(bytes[512..1024].chunks_exact(2).all(|minimum| minimum == [0x81, 0xbf]));
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

/// Values of a tile without minimums, from its definition, and a tile whose minimums are all zero without meaning that.
#[test]
fn a_tile_without_minimums_has_integers_in_twos_complement() {
    let mut tile = vec![0; 5120];
    // Row 17, column 40: the pair 0 of the second half, group 1; -3 is 0xd. The scale is -2.
    tile[2 * (32 + 17)..][..2].copy_from_slice(&[0x00, 0xc0]);
    tile[1024 + 2048 + 8 * 40] = 0xd0;
    let mut values = vec![1.0; 32 * 256];
    DType::Q4NX.unpack(&tile, &mut values);
    assert_eq!(values.iter().position(|value| *value != 0.0), Some(17 * 256 + 40));
    assert_eq!(values[17 * 256 + 40], 6.0);
    let group = girih_tensor::coded_group(DType::Q4NX, &tile, 17, 1);
    assert_eq!((group.codes[8], group.scales[0], group.offsets[0]), (5, -2.0, 16.0));
    // Integers from 0 on with minimums of zero.
    let values: Vec<f32> = (0..32 * 256).map(|i| (i % 16) as f32).collect();
    let bytes = DType::Q4NX.pack_matrix(32, 256, &values).unwrap();
    assert!(bytes[512..1024].chunks_exact(2).all(|minimum| minimum == [0x00, 0x80]), "-0");
    let mut decoded = vec![1.0; 32 * 256];
    DType::Q4NX.unpack(&bytes, &mut decoded);
    assert!(decoded == values);
}

/// The bits of the bf16 that is nearest to a number of half precision, ties to even.
fn rounded(half: u16) -> u16 {
    let sign = f64::from(1 - 2 * i32::from(half >> 15));
    let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 1023));
    let value = match exponent {
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    let bits = ((sign * value) as f32).to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Every byte of tiles of Q4_0 and Q4_1 from the definitions of both formats, value by value.
#[test]
fn tiles_of_q4_0_and_q4_1_keep_their_integers() {
    let mut random = Random(11);
    for dtype in [DType::Q4_0, DType::Q4_1] {
        for (rows, columns) in [(32, 256), (64, 512), (33, 288), (7, 96)] {
            let values = random.bells(rows * columns);
            let bytes = dtype.pack_matrix(rows, columns, &values).unwrap();
            let tiles = q4nx_tiles(dtype, [rows, columns], &bytes).unwrap();
            let mut expected = vec![0u8; rows.div_ceil(32) * columns.div_ceil(256) * 5120];
            for row in 0..rows {
                for column in 0..columns {
                    let block =
                        &bytes[(row * columns + column) / 32 * dtype.block_bytes()..][..dtype.block_bytes()];
                    let (head, codes) = block.split_at(dtype.block_bytes() - 16);
                    let within = column % 32;
                    let code = codes[within % 16] >> (within / 16 * 4) & 15;
                    let code = if dtype == DType::Q4_0 { (code as i8 - 8) as u8 & 15 } else { code };
                    let tile = row / 32 * columns.div_ceil(256) + column / 256;
                    let tile = &mut expected[tile * 5120..][..5120];
                    let (row, column) = (row % 32, column % 256);
                    tile[1024 + row / 16 * 2048 + column * 8 + row % 16 / 2] |= code << (row % 2 * 4);
                    for (table, number) in head.chunks_exact(2).enumerate() {
                        let at = table * 512 + 2 * (column / 32 * 32 + row);
                        let number = rounded(u16::from_le_bytes([number[0], number[1]]));
                        tile[at..at + 2].copy_from_slice(&number.to_le_bytes());
                    }
                }
            }
            let first = tiles.iter().zip(&expected).position(|(a, b)| a != b);
            assert!(
                tiles.len() == expected.len() && first.is_none(),
                "{dtype} {rows} x {columns}: byte {first:?}"
            );
        }
    }
    let error = q4nx_tiles(DType::Q8_0, [32, 256], &[]).unwrap_err().to_string();
    assert!(error.contains("Q4_0 and Q4_1"), "{error}");
    let error = q4nx_tiles(DType::Q4_0, [32, 256], &[0; 7]).unwrap_err().to_string();
    assert!(error.contains("7 bytes were given"), "{error}");
}
