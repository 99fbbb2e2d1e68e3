//! How the weights of a matrix lie in the device's memory.
//!
//! A band has 32 rows. Of each group of 32 columns, the codes of row `r` lie beside those of row `r + 1`, 16 bytes of each
//! at a time, so that 32 invocations with a row each read 512 bytes in a row. Scales lie apart, those of 32 rows side by
//! side:
//!
//! ```text
//! codes  = band 0 | band 1 | …     band = group 0 | group 1 | …     group = 16 bytes of rows 0..32 | the next 16 bytes | …
//! scales = band 0 | band 1 | …     band = group 0 | group 1 | …     group = words of rows 0..32 | the next words | …
//! ```
//! A byte of four-bit codes has those of columns `c` and `c + 4`, so that the lower and the upper halves of a word are four
//! columns in a row each. The number that a code and a scale make is that of the file's format, to the bit.

use std::fmt::Write as _;

use girih_tensor::{CodeKind, DType};

/// Rows of a band.
pub(crate) const BAND: usize = 32;

/// Columns of a group.
pub(crate) const GROUP: usize = 32;

/// The scales of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScaleKind {
    /// None: the codes are numbers.
    None,
    /// Half precision, for a group; two groups share a word.
    Half,
    /// Single precision, for a group.
    Single,
    /// A scale and an offset in single precision, for a group.
    Offset,
    /// Two scales in single precision, for 16 columns each.
    Halved,
    /// Two scales, then two offsets in single precision, for 16 columns each.
    HalvedOffset,
}

/// A kind of codes and a kind of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BandLayout {
    pub codes: CodeKind,
    pub scales: ScaleKind,
}

impl BandLayout {
    /// The layout for a format; `None` if it is no format of weights.
    pub fn of(dtype: DType) -> Option<BandLayout> {
        let layout = |codes, scales| Some(BandLayout { codes, scales });
        match dtype {
            DType::F32 => layout(CodeKind::F32, ScaleKind::None),
            DType::F16 => layout(CodeKind::F16, ScaleKind::None),
            DType::BF16 => layout(CodeKind::BF16, ScaleKind::None),
            DType::Q4_0 => layout(CodeKind::FourLess8, ScaleKind::Half),
            DType::Q4_1 | DType::Q4_K | DType::Q4NX => layout(CodeKind::Four, ScaleKind::Offset),
            DType::Q5_0 | DType::Q8_0 => layout(CodeKind::Byte, ScaleKind::Half),
            DType::Q5_1 | DType::Q5_K => layout(CodeKind::Byte, ScaleKind::Offset),
            DType::Q2_K => layout(CodeKind::Four, ScaleKind::HalvedOffset),
            DType::Q3_K => layout(CodeKind::FourLess8, ScaleKind::Halved),
            DType::Q6_K => layout(CodeKind::Byte, ScaleKind::Halved),
            DType::IQ4_NL => layout(CodeKind::Iq4, ScaleKind::Half),
            DType::IQ4_XS => layout(CodeKind::Iq4, ScaleKind::Single),
            DType::MXFP4 => layout(CodeKind::E2m1, ScaleKind::Single),
            DType::I8 | DType::U8 | DType::I32 | DType::I64 => None,
        }
    }

    /// Bytes of the codes of one row in a group.
    pub fn code_bytes(self) -> usize {
        match self.codes {
            CodeKind::F32 => 128,
            CodeKind::F16 | CodeKind::BF16 => 64,
            CodeKind::Byte => 32,
            CodeKind::Four | CodeKind::FourLess8 | CodeKind::Iq4 | CodeKind::E2m1 => 16,
        }
    }

    /// Words of scales of one row in a group; half a word counts as none ([`BandLayout::band_scale_bytes`]).
    pub fn scale_words(self) -> usize {
        match self.scales {
            ScaleKind::None | ScaleKind::Half => 0,
            ScaleKind::Single => 1,
            ScaleKind::Offset | ScaleKind::Halved => 2,
            ScaleKind::HalvedOffset => 4,
        }
    }

    /// The groups of a row of `columns` columns. Rows are padded with zeros to whole groups, and to whole words of
    /// scales.
    pub fn groups(self, columns: usize) -> usize {
        let groups = columns.div_ceil(GROUP);
        if self.scales == ScaleKind::Half { groups.next_multiple_of(2) } else { groups }
    }

    /// The bytes of a band's codes.
    pub fn band_code_bytes(self, groups: usize) -> usize {
        groups * self.code_bytes() * BAND
    }

    /// The bytes of a band's scales.
    pub fn band_scale_bytes(self, groups: usize) -> usize {
        match self.scales {
            ScaleKind::Half => groups * 2 * BAND,
            _ => groups * self.scale_words() * 4 * BAND,
        }
    }

    /// The WGSL function `decode8(unit, part)`: the numbers of eight columns of a group, where `unit` is
    /// `(band · groups + group) · 32 + row`.
    pub fn decoder(self) -> String {
        let mut text = "struct W8 { a: vec4<f32>, b: vec4<f32> }\n".to_owned();
        text += self.code_functions();
        text +=
            "fn decode8(unit: u32, part: u32) -> W8 {\n    let u = unit / 32u;\n    let lane = unit % 32u;\n";
        let vectors = self.code_bytes() / 16;
        let at = |vector: &str| format!("codes[(u * {vectors}u + {vector}) * 32u + lane]");
        match self.codes {
            CodeKind::F32 => {
                let (a, b) = (at("part * 2u"), at("part * 2u + 1u"));
                let _ = write!(
                    text,
                    "    let a = bitcast<vec4<f32>>({a});\n    let b = bitcast<vec4<f32>>({b});\n"
                );
            }
            CodeKind::F16 | CodeKind::BF16 => {
                let _ = writeln!(text, "    let c = {};", at("part"));
                text += "    let a = vec4<f32>(two(c.x), two(c.y));\n    let b = vec4<f32>(two(c.z), two(c.w));\n";
            }
            CodeKind::Byte => {
                let _ = write!(text, "    let c = {};\n    let i = part % 2u * 2u;\n", at("part / 2u"));
                text += "    let a = four(c[i]);\n    let b = four(c[i + 1u]);\n";
            }
            CodeKind::Four | CodeKind::FourLess8 | CodeKind::Iq4 | CodeKind::E2m1 => {
                let _ = writeln!(text, "    let c = {}[part];", at("0u"));
                text += "    let a = four(c);\n    let b = four(c >> 4u);\n";
            }
        }
        text += match self.scales {
            ScaleKind::None => "    return W8(a, b);\n",
            ScaleKind::Half => {
                "    let pair = unpack2x16float(scales[(u / 2u) * 32u + lane]);\n    \
                 let s = select(pair.x, pair.y, u % 2u == 1u);\n    return W8(a * s, b * s);\n"
            }
            ScaleKind::Single => {
                "    let s = bitcast<f32>(scales[u * 32u + lane]);\n    return W8(a * s, b * s);\n"
            }
            ScaleKind::Halved => {
                "    let s = bitcast<f32>(scales[(u * 2u + part / 2u) * 32u + lane]);\n    return W8(a * s, b * s);\n"
            }
            ScaleKind::Offset => {
                "    let s = vec4<f32>(bitcast<f32>(scales[u * 64u + lane]));\n    \
                 let o = vec4<f32>(bitcast<f32>(scales[u * 64u + 32u + lane]));\n    \
                 return W8(fma(s, a, o), fma(s, b, o));\n"
            }
            ScaleKind::HalvedOffset => {
                "    let s = vec4<f32>(bitcast<f32>(scales[(u * 4u + part / 2u) * 32u + lane]));\n    \
                 let o = vec4<f32>(bitcast<f32>(scales[(u * 4u + 2u + part / 2u) * 32u + lane]));\n    \
                 return W8(fma(s, a, o), fma(s, b, o));\n"
            }
        };
        text + "}\n"
    }

    /// What codes stand for: `two` of a word of halves, `four` of the lower nibbles or of all bits of its bytes.
    fn code_functions(self) -> &'static str {
        match self.codes {
            CodeKind::F32 => "",
            CodeKind::F16 => "fn two(w: u32) -> vec2<f32> { return unpack2x16float(w); }\n",
            CodeKind::BF16 => {
                "fn two(w: u32) -> vec2<f32> { return bitcast<vec2<f32>>(vec2<u32>(w << 16u, w & 0xffff0000u)); }\n"
            }
            CodeKind::Byte => {
                "fn four(w: u32) -> vec4<f32> {\n    \
                 return vec4<f32>(vec4<i32>(vec4<u32>(w << 24u, w << 16u, w << 8u, w)) >> vec4<u32>(24u));\n}\n"
            }
            CodeKind::Four => {
                "fn four(w: u32) -> vec4<f32> {\n    \
                 return vec4<f32>(vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(15u));\n}\n"
            }
            CodeKind::FourLess8 => {
                "fn four(w: u32) -> vec4<f32> {\n    \
                 return vec4<f32>(vec4<i32>(vec4<u32>(w, w >> 8u, w >> 16u, w >> 24u) & vec4<u32>(15u)) - vec4<i32>(8));\n}\n"
            }
            // The levels of IQ4_NL, four to a word.
            CodeKind::Iq4 => {
                "fn level(c: u32) -> f32 {\n    \
                 var w = select(0xbfad9881u, 0xf6eaddcfu, (c & 4u) != 0u);\n    \
                 if (c & 8u) != 0u { w = select(0x26190d01u, 0x71594535u, (c & 4u) != 0u); }\n    \
                 return f32(i32(w << (24u - 8u * (c & 3u))) >> 24u);\n}\n\
                 fn four(w: u32) -> vec4<f32> {\n    \
                 return vec4<f32>(level(w & 15u), level((w >> 8u) & 15u), level((w >> 16u) & 15u), level((w >> 24u) & 15u));\n}\n"
            }
            // Twice the numbers of E2M1, four to a word.
            CodeKind::E2m1 => {
                "fn level(c: u32) -> f32 {\n    \
                 let w = select(0x03020100u, 0x0c080604u, (c & 4u) != 0u);\n    \
                 let n = f32((w >> (8u * (c & 3u))) & 255u);\n    return select(n, -n, (c & 8u) != 0u);\n}\n\
                 fn four(w: u32) -> vec4<f32> {\n    \
                 return vec4<f32>(level(w & 15u), level((w >> 8u) & 15u), level((w >> 16u) & 15u), level((w >> 24u) & 15u));\n}\n"
            }
        }
    }
}
