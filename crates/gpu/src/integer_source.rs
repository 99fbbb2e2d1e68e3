//! The WGSL of products by integers: how codes become signed bytes, and the unrolled parts of the kernels.

use std::fmt::Write as _;

use girih_tensor::CodeKind;

use crate::layout::{BandLayout, ScaleKind};
use crate::source_marks::filled;

/// The workgroups of a product of a few rows. It changes no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemvShape {
    /// Rows at once.
    pub rows: u32,
    /// Weight rows of a workgroup: a part of the 32 of a band.
    pub lanes: u32,
    /// Teams of a workgroup, with a slice of columns each.
    pub teams: u32,
    /// Whether all codes of a slice are read before the rows are rounded.
    pub reads_ahead: bool,
}

/// Four bytes of each half of a word, as signed bytes; their scale has the factor.
struct SignedBytes {
    low: &'static str,
    high: &'static str,
    factor: &'static str,
    functions: &'static str,
}

impl SignedBytes {
    fn of(codes: CodeKind) -> SignedBytes {
        match codes {
            // 16 · (code − 8), which needs no subtraction.
            CodeKind::FourLess8 => SignedBytes {
                low: "((w << vec4<u32>(4u)) & vec4<u32>(0xf0f0f0f0u)) ^ vec4<u32>(0x80808080u)",
                high: "(w & vec4<u32>(0xf0f0f0f0u)) ^ vec4<u32>(0x80808080u)",
                factor: "0.0625",
                functions: "",
            },
            CodeKind::Four => SignedBytes {
                low: "w & vec4<u32>(0x0f0f0f0fu)",
                high: "(w >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu)",
                factor: "1.0",
                functions: "",
            },
            CodeKind::E2m1 => SignedBytes {
                low: "levels(w & vec4<u32>(0x0f0f0f0fu))",
                high: "levels((w >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu))",
                factor: "0.125",
                functions: E2M1_LEVELS,
            },
            CodeKind::Iq4 => SignedBytes {
                low: "levels(w)",
                high: "levels(w >> vec4<u32>(4u))",
                factor: "1.0",
                functions: IQ4_LEVELS,
            },
            CodeKind::Byte | CodeKind::F32 | CodeKind::F16 | CodeKind::BF16 => {
                SignedBytes { low: "w", high: "w", factor: "1.0", functions: "" }
            }
        }
    }
}

/// Eight times twice the numbers of E2M1, four bytes at a time: magnitudes 0 to 3 are their codes, 4 to 7 are 4, 6, 8, 12.
/// The sum with 16 is positive, so that no byte borrows from the next one.
const E2M1_LEVELS: &str = "\
fn levels(n: vec4<u32>) -> vec4<u32> {
    let one = vec4<u32>(0x01010101u);
    let large = (n >> vec4<u32>(2u)) & one;
    let last = large & (n >> vec4<u32>(1u)) & n;
    let m = (n & vec4<u32>(0x07070707u)) + (n & (large * 3u)) + (last << vec4<u32>(1u));
    let negative = ((n >> vec4<u32>(3u)) & one) * 255u;
    let biased = vec4<u32>(0x10101010u) + m - ((m & negative) << vec4<u32>(1u));
    return (biased << vec4<u32>(3u)) ^ vec4<u32>(0x80808080u);
}
";

/// The levels of IQ4_NL by the lower halves of bytes.
const IQ4_LEVELS: &str = "\
fn level(c: u32) -> u32 {
    var w = select(0xbfad9881u, 0xf6eaddcfu, (c & 4u) != 0u);
    if (c & 8u) != 0u { w = select(0x26190d01u, 0x71594535u, (c & 4u) != 0u); }
    return (w >> (8u * (c & 3u))) & 255u;
}
fn four_levels(w: u32) -> u32 {
    return level(w) | (level(w >> 8u) << 8u) | (level(w >> 16u) << 16u) | (level(w >> 24u) << 24u);
}
fn levels(w: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(four_levels(w.x), four_levels(w.y), four_levels(w.z), four_levels(w.w));
}
";

impl BandLayout {
    /// The WGSL functions of products by integers. `unit` is as in [`BandLayout::decoder`]:
    ///
    /// - `loaded(unit)`, then `bytes` or `half_bytes`: a group's codes as signed bytes, in the order of columns;
    /// - `raw_scales(unit)`, then `scales_of`: its scales and offsets;
    /// - `row_scales`: the same of a row's group;
    /// - `dots`: exact products of a group, one or one for each half;
    /// - `scaled`: a chain with these products.
    pub fn integer_functions(self) -> String {
        let SignedBytes { low, high, factor, functions } = SignedBytes::of(self.codes);
        let mut text = format!("{functions}struct Bytes {{ a: vec4<u32>, b: vec4<u32> }}\n");
        text += DOT_OF_16;
        let at = "(unit / 32u)";
        if self.codes == CodeKind::Byte {
            let _ = write!(
                text,
                "alias Codes = Bytes;\n\
                 fn loaded(unit: u32) -> Codes {{\n    let at = {at} * 64u + unit % 32u;\n    \
                 return Bytes(codes[at], codes[at + 32u]);\n}}\n\
                 fn bytes(c: Codes) -> Bytes {{ return c; }}\n\
                 fn half_bytes(c: Codes, half: u32) -> vec4<u32> {{ return select(c.a, c.b, half == 1u); }}\n"
            );
        } else {
            let _ = write!(
                text,
                "alias Codes = vec4<u32>;\n\
                 fn loaded(unit: u32) -> Codes {{ return codes[unit]; }}\n\
                 fn bytes(w: Codes) -> Bytes {{\n    let low = {low};\n    let high = {high};\n    \
                 return Bytes(vec4<u32>(low.x, high.x, low.y, high.y), vec4<u32>(low.z, high.z, low.w, high.w));\n}}\n\
                 fn half_bytes(c: Codes, half: u32) -> vec4<u32> {{\n    let w = select(c, c.zwzw, half == 1u);\n    \
                 let low = {low};\n    let high = {high};\n    return vec4<u32>(low.x, high.x, low.y, high.y);\n}}\n"
            );
        }
        text += &self.scale_functions(factor);
        text + self.sum_functions()
    }

    /// Whether the sums of a row's codes count.
    pub fn has_offsets(self) -> bool {
        matches!(self.scales, ScaleKind::Offset | ScaleKind::HalvedOffset)
    }

    /// How scales are read.
    fn scale_functions(self, factor: &str) -> String {
        let words = self.scale_words();
        let of_words = |alias: &str| {
            let word = |index: usize| format!("bitcast<f32>(scales[at + {}u])", index * 32);
            let all = (0..words).map(word).collect::<Vec<_>>().join(", ");
            format!(
                "alias Scales = {alias};\nalias RawScales = {alias};\n\
                 fn raw_scales(unit: u32) -> RawScales {{\n    let at = (unit / 32u) * {}u + unit % 32u;\n    \
                 return {alias}({all});\n}}\n\
                 fn scales_of(raw: RawScales, unit: u32) -> Scales {{ return raw * {factor}; }}\n",
                words * 32
            )
        };
        match self.scales {
            // Two groups share a word.
            ScaleKind::None | ScaleKind::Half => format!(
                "alias Scales = f32;\nalias RawScales = u32;\n\
                 fn raw_scales(unit: u32) -> RawScales {{ return scales[(unit / 64u) * 32u + unit % 32u]; }}\n\
                 fn scales_of(raw: RawScales, unit: u32) -> Scales {{\n    let pair = unpack2x16float(raw);\n    \
                 return select(pair.x, pair.y, (unit / 32u) % 2u == 1u) * {factor};\n}}\n"
            ),
            ScaleKind::Single => of_words("f32"),
            ScaleKind::Offset | ScaleKind::Halved => of_words("vec2<f32>"),
            ScaleKind::HalvedOffset => of_words("vec4<f32>"),
        }
    }

    /// How the products of a group are added to a chain.
    fn sum_functions(self) -> &'static str {
        match self.scales {
            ScaleKind::None | ScaleKind::Half | ScaleKind::Single => {
                "alias RowScales = f32;\n\
                 fn row_scales(scale: f32, first: i32, last: i32) -> RowScales { return scale; }\n\
                 fn dots(w: Bytes, a: vec4<u32>, b: vec4<u32>) -> vec2<f32> { return vec2<f32>(f32(dot_of_16(w.a, a) + dot_of_16(w.b, b)), 0.0); }\n\
                 fn scaled(s: Scales, x: RowScales, d: vec2<f32>, chain: f32) -> f32 { return fma(s * x, d.x, chain); }\n"
            }
            ScaleKind::Offset => {
                "alias RowScales = vec2<f32>;\n\
                 fn row_scales(scale: f32, first: i32, last: i32) -> RowScales { return vec2<f32>(scale, scale * f32(first + last)); }\n\
                 fn dots(w: Bytes, a: vec4<u32>, b: vec4<u32>) -> vec2<f32> { return vec2<f32>(f32(dot_of_16(w.a, a) + dot_of_16(w.b, b)), 0.0); }\n\
                 fn scaled(s: Scales, x: RowScales, d: vec2<f32>, chain: f32) -> f32 {\n    \
                 return fma(s.y, x.y, fma(s.x * x.x, d.x, chain));\n}\n"
            }
            ScaleKind::Halved => {
                "alias RowScales = f32;\n\
                 fn row_scales(scale: f32, first: i32, last: i32) -> RowScales { return scale; }\n\
                 fn dots(w: Bytes, a: vec4<u32>, b: vec4<u32>) -> vec2<f32> { return vec2<f32>(f32(dot_of_16(w.a, a)), f32(dot_of_16(w.b, b))); }\n\
                 fn scaled(s: Scales, x: RowScales, d: vec2<f32>, chain: f32) -> f32 {\n    \
                 return fma(s.y * x, d.y, fma(s.x * x, d.x, chain));\n}\n"
            }
            ScaleKind::HalvedOffset => {
                "alias RowScales = vec3<f32>;\n\
                 fn row_scales(scale: f32, first: i32, last: i32) -> RowScales {\n    \
                 return vec3<f32>(scale, scale * f32(first), scale * f32(last));\n}\n\
                 fn dots(w: Bytes, a: vec4<u32>, b: vec4<u32>) -> vec2<f32> { return vec2<f32>(f32(dot_of_16(w.a, a)), f32(dot_of_16(w.b, b))); }\n\
                 fn scaled(s: Scales, x: RowScales, d: vec2<f32>, chain: f32) -> f32 {\n    \
                 let half = fma(s.z, x.y, fma(s.x * x.x, d.x, chain));\n    \
                 return fma(s.w, x.z, fma(s.y * x.x, d.y, half));\n}\n"
            }
        }
    }
}

/// The scales of a rounded group of a row.
pub(crate) const ROUNDED_SCALES: &str = "\
fn rounded_scales(group: u32) -> RowScales {
    let at = group * 4u;
    return row_scales(bitcast<f32>(chosen[at]), bitcast<i32>(chosen[at + 1u]), bitcast<i32>(chosen[at + 2u]));
}
";

/// The exact product of 16 bytes.
const DOT_OF_16: &str = "\
fn dot_of_16(w: vec4<u32>, x: vec4<u32>) -> i32 {
    return dot4I8Packed(w.x, x.x) + dot4I8Packed(w.y, x.y) + dot4I8Packed(w.z, x.z) + dot4I8Packed(w.w, x.w);
}
";

/// What multiplies many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProductUnit {
    /// Dot products of four bytes.
    Dot,
    /// Matrix units of 16 by 16 numbers in half precision, whose sums are in single precision.
    Matrix,
    /// Matrix units of signed bytes, whose sums are integers.
    IntegerMatrix,
    /// Loops in the place of matrix units, for tests on devices without them.
    #[cfg(test)]
    MatrixTwin,
}

impl ProductUnit {
    /// Whether codes are brought in half precision.
    fn has_halves(self) -> bool {
        !matches!(self, ProductUnit::Dot | ProductUnit::IntegerMatrix)
    }

    /// Weight rows of a tile of 128 rows.
    pub fn tile_weight_rows(self) -> u32 {
        if self == ProductUnit::IntegerMatrix { 64 } else { 128 }
    }
}

/// The kernel that rounds rows for a unit.
pub(crate) fn round(unit: ProductUnit) -> String {
    let (head, put) = match unit.has_halves() {
        false => ("alias Rounded = u32;\n", "        y[at + k] = packed;\n"),
        true => ("enable f16;\nalias Rounded = vec4<f16>;\n", "        y[at + k] = vec4<f16>(four);\n"),
    };
    let text = [
        head,
        include_str!("kernels/math.wgsl"),
        include_str!("kernels/integers.wgsl"),
        include_str!("kernels/round.wgsl"),
    ];
    filled(text.concat(), &[("PUT\n", put.to_owned())])
}

/// The kernel of a few rows.
pub(crate) fn gemv(layout: BandLayout, shape: GemvShape, is_of_experts: bool) -> String {
    let GemvShape { rows, lanes, teams, .. } = shape;
    let [mut sums, mut stored, mut rounded, mut added] = [(); 4].map(|()| String::new());
    for row in 0..rows {
        let _ = writeln!(sums, "        var s{row} = 0.0;");
        let _ = writeln!(stored, "        parts[team][{row}u * LANES + lane] = s{row};");
    }
    for part in 0..rows * 32 / lanes {
        let _ = writeln!(
            rounded,
            "        round_eight(local + {part}u * TEAMS * LANES, x_row, group.z, turn * 8u);"
        );
    }
    for team in 0..teams {
        let _ = writeln!(added, "            sum += parts[{team}u][local];");
    }
    let [declared, ahead, products] = slice_products(layout, shape);
    let sum_slots = if layout.has_offsets() { rows * 8 } else { 1 };
    let head = format!(
        "const TEAMS: u32 = {teams}u;\nconst ROWS: u32 = {rows}u;\nconst LANES: u32 = {lanes}u;\n\
         const SUMS: u32 = {sum_slots}u;\nconst EXPERTS: bool = {is_of_experts};\nalias Entering = vec4<f32>;\n"
    );
    let text = [
        &head,
        include_str!("kernels/math.wgsl"),
        include_str!("kernels/integers.wgsl"),
        &layout.integer_functions(),
        include_str!("kernels/product.wgsl"),
        include_str!("kernels/gemv_int.wgsl"),
    ];
    let parts = [
        ("DECLARE\n", declared),
        ("AHEAD\n", ahead),
        ("SUMS_OF_ROWS\n", sums),
        ("PRODUCTS\n", products),
        ("STORE\n", stored),
        ("ROUND\n", rounded),
        ("ADD\n", added),
    ];
    filled(text.concat(), &parts)
}

/// The codes and scales of a slice: their variables, their reads ahead, and the products of its groups.
fn slice_products(layout: BandLayout, shape: GemvShape) -> [String; 3] {
    let GemvShape { rows, reads_ahead, .. } = shape;
    let products_of =
        |group: &str, codes: &str, scales: &str| group_products(layout, rows, group, codes, scales);
    if !reads_ahead {
        let at = "(unit + (first + k) * 32u)";
        let each = products_of("k", &format!("loaded{at}"), &format!("raw_scales{at}"));
        let products = format!("        for (var k = 0u; k < have; k += 1u) {{\n{each}        }}\n");
        return [String::new(), String::new(), products];
    }
    let [mut declared, mut ahead, mut products] = [(); 3].map(|()| String::new());
    for group in 0..8 {
        let [codes, scales] = [format!("c{group}"), format!("h{group}")];
        let _ = writeln!(declared, "    var {codes}: Codes;\n    var {scales}: RawScales;");
        let at = format!("unit + min(first + {group}u, p.groups - 1u) * 32u");
        // Two groups share a word of scales.
        let is_read = group % 2 == 1 && layout.scales == ScaleKind::Half;
        let read = if is_read { format!("h{}", group - 1) } else { format!("raw_scales({at})") };
        let _ = writeln!(ahead, "            {codes} = loaded({at});\n            {scales} = {read};");
        let each = products_of(&format!("{group}u"), &codes, &scales);
        let _ = writeln!(products, "        if {group}u < have {{\n{each}        }}");
    }
    [declared, format!("        if first < p.groups {{\n{ahead}        }}\n"), products]
}

/// The products of group `group` of a slice with all rows.
fn group_products(layout: BandLayout, rows: u32, group: &str, codes: &str, scales: &str) -> String {
    let mut text = format!(
        "            let w = bytes({codes});\n            let q = scales_of({scales}, unit + (first + {group}) * 32u);\n"
    );
    for row in 0..rows {
        let at = format!("[team][{}u + {group}]", row * 8);
        let sums = if layout.has_offsets() { format!("x_sums{at}") } else { "vec4<i32>(0)".to_owned() };
        let _ = writeln!(
            text,
            "            s{row} = scaled(q, own_scales(x_scales{at}, {sums}), \
             dots(w, x_codes{at}[0], x_codes{at}[1]), s{row});"
        );
    }
    text
}

/// The kernel of many rows, with the rows of an invocation unrolled.
pub(crate) fn gemm(layout: BandLayout, each: u32) -> String {
    let [mut declared, mut products, mut slice, mut stored] = [(); 4].map(|()| String::new());
    for row in 0..each {
        let _ = writeln!(declared, "    var s{row} = vec4<f32>(0.0);\n    var t{row} = vec4<f32>(0.0);");
        let _ =
            writeln!(slice, "                t{row} += s{row};\n                s{row} = vec4<f32>(0.0);");
        let _ = writeln!(stored, "    store(group.z, m0 + tm + {}u, n0 + tn, t{row});", row * 16);
    }
    for step in 0..2 {
        let products_of = step_products(each, step);
        let _ = writeln!(
            products,
            "            if next - STEP + {step}u < p.groups {{\n{products_of}            }}"
        );
    }
    let head = format!("const EACH: u32 = {each}u;\nalias Entering = vec4<u32>;\n");
    let text = [
        &head,
        &layout.integer_functions(),
        include_str!("kernels/product.wgsl"),
        ROUNDED_SCALES,
        include_str!("kernels/gemm_int.wgsl"),
    ];
    let parts = [("DECLARE\n", declared), ("PRODUCTS\n", products), ("SLICE\n", slice), ("STORE\n", stored)];
    filled(text.concat(), &parts)
}

/// The products of group `step` between two barriers, for all rows of an invocation.
fn step_products(each: u32, step: u32) -> String {
    let mut text = String::new();
    for n in 0..4 {
        let [first, last] = [step * 8 + n, step * 8 + n + 4];
        let _ = writeln!(
            text,
            "                let w{n} = Bytes(w_codes[tn][{first}u], w_codes[tn][{last}u]);\n                \
             let q{n} = w_scales[tn][{}u];",
            step * 4 + n
        );
    }
    for row in 0..each {
        let [first, last] = [2 * each * step + row, 2 * each * step + row + each];
        let of =
            |n: usize, lane: &str| format!("scaled(q{n}, x{row}, dots(w{n}, a{row}, b{row}), s{row}.{lane})");
        let all = ["x", "y", "z", "w"].iter().enumerate().map(|(n, lane)| of(n, lane));
        let all = all.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "                let a{row} = x_codes[tm][{first}u];\n                let b{row} = x_codes[tm][{last}u];\n                \
             let x{row} = x_scales[tm][{}u];\n                s{row} = vec4<f32>({all});",
            step * each + row
        );
    }
    text
}
