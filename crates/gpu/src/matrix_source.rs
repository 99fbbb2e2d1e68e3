//! The WGSL of products by matrix units, and of their twin, which loops over the workgroup's memory.

use std::fmt::Write as _;

use crate::integer_source::{ProductUnit, ROUNDED_SCALES};
use crate::layout::{BandLayout, ScaleKind};
use crate::source_marks::filled;

/// Tiles of a subgroup: rows, then weight rows.
const TILES: [u32; 2] = [4, 2];

/// Words of four numbers of a row of codes in the workgroup's memory, as in the kernel.
const ROW: u32 = 10;

/// What the twin does in the place of matrix units: a lane computes eight sums of a tile.
const TWIN: &str = "\
fn tile_sums(m: u32, n: u32, own: u32, lane: u32) {
    for (var e = 0u; e < 8u; e += 1u) {
        var sums = vec2<f32>(0.0);
        for (var k = 0u; k < 8u; k += 1u) {
            let a = vec4<f32>(x_codes[(m + lane / 16u + 2u * e) * ROW + k]);
            let b = vec4<f32>(w_codes[(n + lane % 16u) * ROW + k]);
            sums[k / 4u] += dot(a, b);
        }
        if HALVES == 1u { tiles[own + 32u * e] = sums.x + sums.y; }
        else {
            tiles[own + 32u * e] = sums.x;
            tiles[own + 256u + 32u * e] = sums.y;
        }
    }
}
";

/// The kernel, with the tiles of a subgroup unrolled.
pub(crate) fn gemm(layout: BandLayout, unit: ProductUnit) -> String {
    let [rows, weight_rows] = TILES;
    let has_halves = matches!(layout.scales, ScaleKind::Halved | ScaleKind::HalvedOffset);
    let [mut declared, mut slice, mut stored] = [(); 3].map(|()| String::new());
    for tile in (0..rows).flat_map(|i| (0..weight_rows).map(move |j| (i, j))) {
        let (i, j) = tile;
        for four in 0..2 {
            let name = format!("{i}_{j}_{four}");
            let _ =
                writeln!(declared, "    var s{name} = vec4<f32>(0.0);\n    var t{name} = vec4<f32>(0.0);");
            let _ = writeln!(slice, "            t{name} += s{name};\n            s{name} = vec4<f32>(0.0);");
            for (lane, of) in ["x", "y", "z", "w"].into_iter().enumerate() {
                let _ = writeln!(stored, "    tiles[own + {}u] = t{name}.{of};", (four * 4 + lane) * 32);
            }
        }
        let _ =
            writeln!(stored, "    flush(group.z, m0 + own_m + {}u, n0 + own_n + {}u, own);", i * 16, j * 16);
    }
    let is_twin = unit != ProductUnit::Matrix;
    let head = format!(
        "enable f16;\n{}const HALVES: u32 = {}u;\nalias Entering = vec4<f16>;\n",
        if is_twin { "" } else { "enable wgpu_cooperative_matrix;\n" },
        if has_halves { 2 } else { 1 },
    );
    let text = [
        head.as_str(),
        &layout.integer_functions(),
        include_str!("kernels/product.wgsl"),
        ROUNDED_SCALES,
        include_str!("kernels/gemm_matrix.wgsl"),
        if is_twin { TWIN } else { "" },
    ];
    let parts = [
        ("DECLARE\n", declared),
        ("PRODUCTS\n", products(has_halves, is_twin)),
        ("SLICE\n", slice),
        ("STORE\n", stored),
    ];
    filled(text.concat(), &parts)
}

/// The products of a group with all tiles of a subgroup.
fn products(has_halves: bool, is_twin: bool) -> String {
    let [rows, weight_rows] = TILES;
    let mut text = String::new();
    for j in 0..weight_rows {
        let _ = writeln!(text, "        let q{j} = w_scales[own_n + {}u];", j * 16);
        if !is_twin {
            text += &loads("b", j, "coopLoad<coop_mat16x16<f16, B>>(&w_codes[(sub_n", 16 * j);
        }
    }
    for i in 0..rows {
        if !is_twin {
            text += &loads("a", i, "coopLoadT<coop_mat16x16<f16, A>>(&x_codes[(sub_m", 16 * i);
        }
        for e in 0..8 {
            let _ = writeln!(text, "        let x{i}_{e} = x_scales[own_m + {}u];", i * 16 + e * 2);
        }
        for j in 0..weight_rows {
            text += &match is_twin {
                true => format!("        tile_sums(sub_m + {}u, sub_n + {}u, own, lane);\n", i * 16, j * 16),
                false => tile_sums(has_halves, i, j),
            };
            text += &scaled(has_halves, is_twin, i, j);
        }
    }
    text
}

/// Both halves of a group of 16 rows.
fn loads(name: &str, index: u32, load: &str, row: u32) -> String {
    let half = |half: u32| {
        format!("        let {name}{index}_{half} = {load} + {row}u) * ROW + {}u], {ROW}u);\n", half * 4)
    };
    half(0) + &half(1)
}

/// A tile of sums by a matrix unit: one, or one for each half of the group.
fn tile_sums(has_halves: bool, i: u32, j: u32) -> String {
    let name = format!("c{i}_{j}");
    let zero = "coop_mat16x16<f32, C>()";
    match has_halves {
        false => format!(
            "        var {name} = {zero};\n        {name} = coopMultiplyAdd(a{i}_0, b{j}_0, {name});\n        \
             {name} = coopMultiplyAdd(a{i}_1, b{j}_1, {name});\n        coopStoreT({name}, &tiles[tile], 16u);\n"
        ),
        true => format!(
            "        var {name} = {zero};\n        var d{i}_{j} = {zero};\n        \
             {name} = coopMultiplyAdd(a{i}_0, b{j}_0, {name});\n        \
             d{i}_{j} = coopMultiplyAdd(a{i}_1, b{j}_1, d{i}_{j});\n        \
             coopStoreT({name}, &tiles[tile], 16u);\n        coopStoreT(d{i}_{j}, &tiles[tile + 256u], 16u);\n"
        ),
    }
}

/// The chains of an invocation with its eight sums of a tile.
fn scaled(has_halves: bool, is_twin: bool, i: u32, j: u32) -> String {
    // The twin's subgroups may have other sizes.
    let barrier = if is_twin { "workgroupBarrier" } else { "subgroupBarrier" };
    let mut text = format!("        {barrier}();\n");
    for four in 0..2 {
        let name = format!("s{i}_{j}_{four}");
        let of = |(index, lane): (u32, &str)| {
            let e = four * 4 + index;
            let last = if has_halves { format!("tiles[own + {}u]", 256 + e * 32) } else { "0.0".to_owned() };
            format!("scaled(q{j}, x{i}_{e}, vec2<f32>(tiles[own + {}u], {last}), {name}.{lane})", e * 32)
        };
        let all = (0..).zip(["x", "y", "z", "w"]).map(of).collect::<Vec<_>>().join(",\n            ");
        let _ = writeln!(text, "        {name} = vec4<f32>({all});");
    }
    text + &format!("        {barrier}();\n")
}

#[cfg(test)]
mod tests {
    use girih_tensor::DType;
    use wgpu::naga::front::wgsl::{Frontend, Options};
    use wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};

    use super::*;

    /// Software has no matrix units, so wgpu's validator is all that reads the kernel there.
    #[test]
    fn the_kernel_of_each_kind_of_scales_is_valid() {
        for dtype in [DType::Q4_0, DType::Q8_0, DType::MXFP4, DType::Q4_K, DType::Q6_K, DType::Q2_K] {
            let layout = BandLayout::of(dtype).expect("it is a format of weights");
            let source = gemm(layout, ProductUnit::Matrix);
            let mut options = Options::new();
            options.capabilities = Capabilities::all();
            let module = Frontend::new_with_options(options).parse(&source);
            let module = module.unwrap_or_else(|error| panic!("{dtype}: {}", error.emit_to_string(&source)));
            let checked = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
            assert!(checked.is_ok(), "{dtype}: {:?}", checked.err());
        }
    }
}
