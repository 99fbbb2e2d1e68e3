//! Every format of weights: the processor's numbers are those of the file, to the bit, or with an offset within a
//! few roundings.

use girih_graph::testing::{FormatNumbers, ShownBy, U, shown_numbers};
use girih_tensor::{DType, Random};

use crate::opened::{open, processor, wrapped};

/// Formats with an offset for each group of this many values.
const WITH_OFFSETS: [(DType, usize); 6] = [
    (DType::Q4_1, 32),
    (DType::Q5_1, 32),
    (DType::Q2_K, 16),
    (DType::Q4_K, 32),
    (DType::Q5_K, 32),
    (DType::Q4NX, 32),
];

/// The largest difference from `scale · code + offset`. Among random codes, the smallest is at most a third of the
/// largest; so if no number of the group exceeds `most`, the offset is at most 2 `most`, and products are at most 3 `most`.
/// The definition rounds product and sum, the planes round the zero point, the difference and its product: with [`U`]
/// of 3, 1, 2, 1 and 1 `most`.
fn allowed(group: &[f32]) -> f64 {
    let sizes = group.iter().map(|x| f64::from(x.abs()));
    8.0 * U * sizes.fold(0.0, f64::max)
}

fn wrong(dtype: DType, by: ShownBy, shown: &FormatNumbers) -> Option<String> {
    let group = (by == ShownBy::Linear)
        .then(|| WITH_OFFSETS.iter().find(|(with, _)| *with == dtype))
        .flatten()
        .map(|(_, group)| *group);
    for (index, (got, want)) in shown.got.iter().zip(&shown.want).enumerate() {
        let is_right = match group {
            // Devices may flush subnormal numbers, and a sum with zeros has no negative zero.
            None => got == want || !want.is_normal(),
            Some(size) => {
                let group = &shown.want[index / size * size..][..size];
                f64::from((got - want).abs()) <= allowed(group)
            }
        };
        if !is_right {
            return Some(format!(
                "{got} at row {}, column {}; {want} in the file",
                index / shown.columns,
                index % shown.columns
            ));
        }
    }
    None
}

#[test]
fn each_format_has_the_numbers_of_its_file() {
    let Some(choice) = processor() else { return };
    let integers = [DType::I8, DType::U8, DType::I32, DType::I64];
    let mut random = Random(7);
    for dtype in DType::ALL.iter().copied().filter(|dtype| !integers.contains(dtype)) {
        for by in [ShownBy::Embed, ShownBy::Linear] {
            let shown = shown_numbers(open(&choice), dtype, by, &mut random);
            assert_eq!(wrong(dtype, by, &shown), None, "{dtype} {by:?}");
        }
    }
}

/// Groups of 32 in 4 bits, which NPUW's own language models refuse. Its rows are exact; in products, it rounds weights to f16.
#[test]
fn q4_0_has_the_numbers_of_its_file_through_the_wrapper_of_npus() {
    let Some(choice) = wrapped() else { return };
    let mut random = Random(8);
    let rows = shown_numbers(open(&choice), DType::Q4_0, ShownBy::Embed, &mut random);
    assert_eq!(wrong(DType::Q4_0, ShownBy::Embed, &rows), None);
    let shown = shown_numbers(open(&choice), DType::Q4_0, ShownBy::Linear, &mut random);
    for (got, want) in shown.got.iter().zip(&shown.want) {
        // Half of f16's last place, and of its least number.
        let allowed = want.abs() * 2.0_f32.powi(-11) + 2.0_f32.powi(-25);
        assert!((got - want).abs() <= allowed, "{got}, not {want}");
    }
}
