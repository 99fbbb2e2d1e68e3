//! Every format of weights: the device's numbers are those of the file, to the bit.

use girih_graph::testing::{ShownBy, shown_numbers};
use girih_tensor::{DType, Random};

use crate::opened::{adapter, open};

#[test]
fn each_format_has_the_numbers_of_its_file() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    let mut random = Random(7);
    let integers = [DType::I8, DType::U8, DType::I32, DType::I64];
    for dtype in DType::ALL.iter().copied().filter(|dtype| !integers.contains(dtype)) {
        let shown = shown_numbers(open(name), dtype, ShownBy::Embed, &mut random);
        let wrong = shown.got.iter().zip(&shown.want).enumerate().find(|(_, (got, want))| {
            // Devices may flush subnormal numbers.
            want.is_normal() && got.to_bits() != want.to_bits()
        });
        assert_eq!(wrong, None, "{dtype}");
    }
}
