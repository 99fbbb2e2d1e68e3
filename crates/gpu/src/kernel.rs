//! The kernels: their sources, their variants, and what they bind.

use std::fmt::Write as _;

use girih_tensor::DType;

use crate::integer_source::{self, GemvShape, ProductUnit};
use crate::layout::BandLayout;
use crate::matrix_source;
use crate::source_marks::filled;

/// Bytes of immediate data, the same for all kernels; Vulkan has 128 at least.
pub(crate) const IMMEDIATE_BYTES: u32 = 64;

/// What differs between devices, and changes no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelTuning {
    /// Teams of 32 invocations in a workgroup of `gemv`.
    teams: u32,
    /// Groups of columns that `gemv` reads at once, a part of the eight of a slice.
    groups_at_once: u32,
    integers: IntegerTuning,
    /// What multiplies many rounded rows.
    pub unit: ProductUnit,
    /// Words of a key, and values, that `attend` reads at once: 4, or 16.
    loads_at_once: u32,
}

/// The workgroups of products of a few rows by integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntegerTuning {
    /// Short code.
    Short,
    /// Workgroups for many processors, with all codes of a slice in flight.
    Wide,
    /// The same for CUDA: a workgroup has no more teams than slices.
    Cuda,
}

/// Workgroups that a GPU runs at once, at least: two for each of an H100's 132 processors.
const MANY_WORKGROUPS: u32 = 264;

impl KernelTuning {
    /// For software: short code, which is compiled quickly.
    pub const SOFTWARE: KernelTuning = KernelTuning {
        teams: 8,
        groups_at_once: 1,
        integers: IntegerTuning::Short,
        unit: ProductUnit::Dot,
        loads_at_once: 4,
    };

    /// For GPUs: many reads in flight.
    pub const GPU: KernelTuning = KernelTuning {
        teams: 16,
        groups_at_once: 4,
        integers: IntegerTuning::Wide,
        unit: ProductUnit::Dot,
        loads_at_once: 16,
    };

    /// For the kernels for CUDA.
    pub const CUDA: KernelTuning =
        KernelTuning { integers: IntegerTuning::Cuda, unit: ProductUnit::IntegerMatrix, ..KernelTuning::GPU };

    /// With this unit for many rounded rows.
    pub fn with_unit(self, unit: ProductUnit) -> KernelTuning {
        KernelTuning { unit, ..self }
    }

    /// The loads of `attend` that are under way at once, first as many as there may be, then four.
    fn loads(self) -> impl Iterator<Item = u32> {
        [self.loads_at_once, 4].into_iter().take(if self.loads_at_once > 4 { 2 } else { 1 })
    }

    /// The largest workgroup.
    pub fn invocations(self) -> u32 {
        self.teams * 32
    }

    /// The workgroups of a product of up to `rows` rows by integers: `bands` in all, of `groups` groups of columns.
    pub fn gemv_shape(self, rows: u32, bands: u32, groups: u32) -> GemvShape {
        match self.integers {
            IntegerTuning::Short => return GemvShape { rows, lanes: 32, teams: 8, reads_ahead: false },
            IntegerTuning::Cuda => {
                let teams = if rows == 1 { groups.div_ceil(8).clamp(1, 16) } else { 8 };
                return GemvShape { rows, lanes: 32, teams, reads_ahead: rows == 1 };
            }
            IntegerTuning::Wide => {}
        }
        let lanes = if bands < MANY_WORKGROUPS { 16 } else { 32 };
        // Several rows take more of the workgroup's memory.
        let teams = match (rows, lanes) {
            (1, 16) if groups > 16 * 8 => 32,
            (1, _) => 16,
            _ => 8,
        };
        GemvShape { rows, lanes, teams, reads_ahead: true }
    }
}

/// A kernel and its variant. Sizes are no part of it, so that a process compiles few.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GpuKernel {
    /// Ops of elements.
    Elements,
    /// Norms of rows.
    Norm,
    /// Rows of a table.
    Embed(BandLayout),
    /// Products of this number of rows, or of fewer.
    Gemv(BandLayout, u32),
    /// Products of one row and the matrix of an expert.
    ExpertGemv(BandLayout),
    /// Products of many rows, in tiles of 16 times this number.
    Gemm(BandLayout, u32),
    /// Rows rounded to integers.
    Round(ProductUnit),
    /// Products of a few rows by integers.
    IntegerGemv(BandLayout, GemvShape),
    /// Products of one row and the matrix of an expert by integers.
    IntegerExpertGemv(BandLayout, GemvShape),
    /// Products of many rows by integers, in tiles of 16 times this number.
    IntegerGemm(BandLayout, u32),
    /// Products of many rows by matrix units, in tiles of 128.
    MatrixGemm(BandLayout, ProductUnit),
    /// Rows to state of this type.
    Write(DType),
    /// Attention to state of this type.
    Attend(DType),
    /// Attention of several rows of a sequence to state of this type.
    AttendRows(DType),
    /// The choice of positions, by keys in state of this type.
    Select(DType),
    /// The largest number of each result row.
    Pick,
    /// Joins the chunks of attention.
    Join,
    /// Norms, rotations and writes of heads, to state of this type.
    Heads(DType),
    /// Rotary positions.
    Rope,
    /// The choice of experts.
    Route,
    /// Around the products of experts.
    Experts,
    /// Short convolutions.
    Conv,
    /// The scan of Mamba-2.
    Scan,
    /// The delta rule.
    Delta,
}

/// How a kernel uses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingUse {
    Read,
    Write,
}

const R: BindingUse = BindingUse::Read;
const W: BindingUse = BindingUse::Write;

impl GpuKernel {
    /// The name in errors and profiles.
    pub fn name(self) -> &'static str {
        match self {
            GpuKernel::Elements => "elements",
            GpuKernel::Norm => "norm",
            GpuKernel::Embed(_) => "embed",
            GpuKernel::Gemv(..) | GpuKernel::ExpertGemv(_) => "gemv",
            GpuKernel::Gemm(..) => "gemm",
            GpuKernel::Round(_) => "round",
            GpuKernel::IntegerGemv(..) | GpuKernel::IntegerExpertGemv(..) => "gemv_int",
            GpuKernel::IntegerGemm(..) => "gemm_int",
            GpuKernel::MatrixGemm(..) => "gemm_matrix",
            GpuKernel::Write(_) => "write",
            GpuKernel::Attend(_) | GpuKernel::AttendRows(_) => "attend",
            GpuKernel::Select(_) => "select",
            GpuKernel::Pick => "pick",
            GpuKernel::Join => "join",
            GpuKernel::Heads(_) => "heads",
            GpuKernel::Rope => "rope",
            GpuKernel::Route => "route",
            GpuKernel::Experts => "experts",
            GpuKernel::Conv => "conv",
            GpuKernel::Scan => "scan",
            GpuKernel::Delta => "delta",
        }
    }

    /// Whether its indices are known to be in bounds, so that they are not tested.
    pub fn is_trusted(self) -> bool {
        matches!(
            self,
            GpuKernel::Round(_)
                | GpuKernel::IntegerGemv(..)
                | GpuKernel::IntegerExpertGemv(..)
                | GpuKernel::IntegerGemm(..)
                | GpuKernel::MatrixGemm(..)
        )
    }

    /// What it binds, in order.
    pub fn bindings(self) -> &'static [BindingUse] {
        match self {
            GpuKernel::Elements | GpuKernel::Embed(_) | GpuKernel::Join => &[R, R, R, W],
            GpuKernel::Norm => &[R, R, R, R, W],
            GpuKernel::Attend(_) | GpuKernel::AttendRows(_) => &[R, R, R, R, R, R, W, W],
            GpuKernel::Gemv(..)
            | GpuKernel::ExpertGemv(_)
            | GpuKernel::Gemm(..)
            | GpuKernel::IntegerGemv(..)
            | GpuKernel::IntegerExpertGemv(..)
            | GpuKernel::IntegerGemm(..)
            | GpuKernel::MatrixGemm(..) => &[R, R, R, R, R, R, W, W, W],
            GpuKernel::Round(_) => &[R, W, W],
            GpuKernel::Write(_) | GpuKernel::Route => &[R, R, W, W],
            GpuKernel::Heads(_) => &[R, R, R, R, R, R, W, W, W, W],
            GpuKernel::Rope => &[R, R, W],
            GpuKernel::Pick => &[R, W, W],
            GpuKernel::Experts => &[R, R, R, W, W],
            GpuKernel::Conv | GpuKernel::Select(_) => &[R, R, R, R, W, W],
            GpuKernel::Scan => &[R, R, R, R, R, R, R, R, W, W],
            GpuKernel::Delta => &[R, R, R, R, R, R, R, W, W],
        }
    }

    /// The WGSL.
    pub fn source(self, tuning: KernelTuning) -> String {
        let math = include_str!("kernels/math.wgsl");
        let state = include_str!("kernels/state.wgsl");
        match self {
            GpuKernel::Elements => [math, include_str!("kernels/elements.wgsl")].concat(),
            GpuKernel::Norm => [math, &norm()].concat(),
            GpuKernel::Embed(layout) => [&layout.decoder(), include_str!("kernels/embed.wgsl")].concat(),
            GpuKernel::Gemv(layout, rows) => gemv(layout, rows, tuning, false),
            GpuKernel::ExpertGemv(layout) => gemv(layout, 1, tuning, true),
            GpuKernel::Gemm(layout, each) => gemm(layout, each),
            GpuKernel::Round(unit) => integer_source::round(unit),
            GpuKernel::IntegerGemv(layout, shape) => integer_source::gemv(layout, shape, false),
            GpuKernel::IntegerExpertGemv(layout, shape) => integer_source::gemv(layout, shape, true),
            GpuKernel::IntegerGemm(layout, each) => integer_source::gemm(layout, each),
            GpuKernel::MatrixGemm(layout, unit) => matrix_source::gemm(layout, unit),
            GpuKernel::Write(dtype) => [math, &held(dtype), include_str!("kernels/write.wgsl")].concat(),
            GpuKernel::Heads(dtype) => [math, &held(dtype), include_str!("kernels/heads.wgsl")].concat(),
            GpuKernel::Attend(dtype) => {
                [math, state, &attend_shared(dtype), &keys(tuning), &attend(tuning)].concat()
            }
            GpuKernel::AttendRows(dtype) => {
                [math, state, &attend_shared(dtype), include_str!("kernels/attend_rows.wgsl")].concat()
            }
            GpuKernel::Select(dtype) => {
                [state, &key_numbers(dtype), &keys(tuning), include_str!("kernels/select.wgsl")].concat()
            }
            GpuKernel::Pick => include_str!("kernels/pick.wgsl").to_owned(),
            GpuKernel::Join => [math, include_str!("kernels/join.wgsl")].concat(),
            GpuKernel::Rope => include_str!("kernels/rope.wgsl").to_owned(),
            GpuKernel::Route => [math, include_str!("kernels/route.wgsl")].concat(),
            GpuKernel::Experts => [math, include_str!("kernels/experts.wgsl")].concat(),
            GpuKernel::Conv => include_str!("kernels/conv.wgsl").to_owned(),
            GpuKernel::Scan => [math, include_str!("kernels/scan.wgsl")].concat(),
            GpuKernel::Delta => [math, include_str!("kernels/delta.wgsl")].concat(),
        }
    }
}

/// How numbers become words of state of this type.
fn held(dtype: DType) -> String {
    let each = match dtype {
        DType::Q8_0 => include_str!("kernels/write_q8_0.wgsl"),
        _ => include_str!("kernels/write_floats.wgsl"),
    };
    let shared = [include_str!("kernels/state.wgsl"), include_str!("kernels/held.wgsl")].concat();
    [&shared, numbers(dtype), each].concat()
}

/// The numbers of a word of keys in state of this type.
fn key_numbers(dtype: DType) -> String {
    let each = match dtype {
        DType::Q8_0 => include_str!("kernels/keys_q8_0.wgsl"),
        _ => include_str!("kernels/keys_floats.wgsl"),
    };
    [numbers(dtype), each].concat()
}

/// What attention of one row and of several rows share.
fn attend_shared(dtype: DType) -> String {
    let each = match dtype {
        DType::Q8_0 => include_str!("kernels/attend_q8_0.wgsl"),
        _ => include_str!("kernels/attend_floats.wgsl"),
    };
    [include_str!("kernels/attend_shared.wgsl"), &key_numbers(dtype), each].concat()
}

/// Products with keys.
fn keys(tuning: KernelTuning) -> String {
    let mut loads = String::new();
    for count in tuning.loads() {
        let _ = writeln!(loads, "    for (; w + {count}u <= words; w += {count}u) {{");
        for word in 0..count {
            let _ = writeln!(loads, "        let k{word} = keys[at + (w + {word}u) * 64u];");
        }
        // A scale is that of 32 numbers or more.
        for word in (0..count).step_by(4) {
            let _ = writeln!(loads, "        let s{word} = key_scale(at, w + {word}u);");
        }
        for word in 0..count {
            let scale = word / 4 * 4;
            let _ = writeln!(loads, "        product = with_key(product, k{word}, w + {word}u, s{scale});");
        }
        loads += "    }\n";
    }
    filled(include_str!("kernels/keys.wgsl").to_owned(), &[("LOADS\n", loads)])
}

/// Attention of one row, with its loads of values.
fn attend(tuning: KernelTuning) -> String {
    let mut loads = String::new();
    for count in tuning.loads() {
        let _ = writeln!(loads, "            for (; k + {count}u <= end; k += {count}u) {{");
        for k in 0..count {
            let _ = writeln!(
                loads,
                "                let v{k} = value_at(block, kv_head, word, k + {k}u - base);"
            );
        }
        for k in 0..count {
            let _ =
                writeln!(loads, "                sum = with_value(sum, v{k}, weights[k + {k}u - start]);");
        }
        loads += "            }\n";
    }
    filled(include_str!("kernels/attend.wgsl").to_owned(), &[("VALUES_IN_FLIGHT\n", loads)])
}

/// The numbers of a word of state of this type.
fn numbers(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => {
            "const VALUES: u32 = 2u;\nconst IS_BRAIN: bool = false;\nalias Numbers = vec2<f32>;\n\
             fn numbers(w: u32) -> Numbers { return unpack2x16float(w); }\n"
        }
        DType::BF16 => {
            "const VALUES: u32 = 2u;\nconst IS_BRAIN: bool = true;\nalias Numbers = vec2<f32>;\n\
             fn numbers(w: u32) -> Numbers { return bitcast<vec2<f32>>(vec2<u32>(w << 16u, w & 0xffff0000u)); }\n"
        }
        // Codes, without their scale.
        DType::Q8_0 => {
            "const VALUES: u32 = 4u;\nconst IS_BRAIN: bool = false;\nalias Numbers = vec4<f32>;\n\
             fn numbers(w: u32) -> Numbers {\n    \
                return vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(w << 24u, w << 16u, w << 8u, w)) >> vec4<u32>(24u));\n}\n"
        }
        _ => {
            "const VALUES: u32 = 1u;\nconst IS_BRAIN: bool = false;\nalias Numbers = vec2<f32>;\n\
             fn numbers(w: u32) -> Numbers { return vec2<f32>(bitcast<f32>(w), 0.0); }\n"
        }
    }
}

/// The kernel of a few rows, with its inner loops unrolled.
fn gemv(layout: BandLayout, rows: u32, tuning: KernelTuning, is_of_experts: bool) -> String {
    let [mut declared, mut sums, mut products, mut stored] = [(); 4].map(|()| String::new());
    for row in 0..rows {
        let from =
            if is_of_experts { "x_row".to_owned() } else { format!("min(x_row + {row}u, p.count - 1u)") };
        let _ = writeln!(declared, "    let x{row} = {from} * p.x_stride + group.z * p.x_head;");
        let _ = writeln!(sums, "        var s{row} = 0.0;");
        let _ = writeln!(stored, "        parts[(team * ROWS + {row}u) * 32u + lane] = s{row};");
    }
    declared += "    var sum = 0.0;\n";
    let at_once = tuning.groups_at_once;
    let several = (0..at_once).map(|group| group_products(rows, group)).collect::<String>();
    let _ = write!(
        products,
        "            for (; g + {at_once}u <= end; g += {at_once}u) {{\n{several}            }}\n"
    );
    if at_once > 1 {
        let one = group_products(rows, 0);
        let _ = write!(products, "            for (; g < end; g += 1u) {{\n{one}            }}\n");
    }
    let head = format!(
        "const TEAMS: u32 = {}u;\nconst ROWS: u32 = {rows}u;\nconst EXPERTS: bool = {is_of_experts};\n\
         alias Entering = vec4<f32>;\n{}",
        tuning.teams,
        layout.decoder()
    );
    let body = include_str!("kernels/gemv.wgsl");
    let parts = [("DECLARE\n", declared), ("SUMS\n", sums), ("PRODUCTS\n", products), ("STORE\n", stored)];
    filled([head.as_str(), include_str!("kernels/product.wgsl"), body].concat(), &parts)
}

/// The products of a group of columns, `group` groups behind the next one.
fn group_products(rows: u32, group: u32) -> String {
    let mut text = String::new();
    for part in 0..4 {
        let _ = writeln!(
            text,
            "                {{\n                    let w = decode8(unit + (g + {group}u) * 32u, {part}u);"
        );
        for row in 0..rows {
            for (half, name) in [(0, "a"), (1, "b")] {
                let index = group * 8 + part * 2 + half;
                let _ =
                    writeln!(text, "                    let {name}{row} = x[x{row} + g * 8u + {index}u];");
                for column in ["x", "y", "z", "w"] {
                    let _ = writeln!(
                        text,
                        "                    s{row} = fma(w.{name}.{column}, {name}{row}.{column}, s{row});"
                    );
                }
            }
        }
        text += "                }\n";
    }
    text
}

/// The kernel of norms, with a function for each buffer that it reads.
fn norm() -> String {
    let loads = ["x", "other", "weight", "bias"]
        .map(|buffer| include_str!("kernels/norm_loads.wgsl").replace("BUFFER", buffer));
    filled(include_str!("kernels/norm.wgsl").to_owned(), &[("LOADS\n", loads.concat())])
}

/// The kernel of many rows, with the rows of an invocation unrolled.
fn gemm(layout: BandLayout, each: u32) -> String {
    let [mut declared, mut products, mut slice, mut stored] = [(); 4].map(|()| String::new());
    for four in 0..each / 4 {
        let _ = writeln!(products, "            let x{four} = rows[k][tm * {}u + {four}u];", each / 4);
    }
    for row in 0..each {
        let _ = writeln!(declared, "    var s{row} = vec4<f32>(0.0);\n    var t{row} = vec4<f32>(0.0);");
        let of = ["x", "y", "z", "w"][row as usize % 4];
        let _ = writeln!(products, "            s{row} = fma(w4, vec4<f32>(x{}.{of}), s{row});", row / 4);
        let _ = writeln!(slice, "            t{row} += s{row};\n            s{row} = vec4<f32>(0.0);");
        let _ = writeln!(stored, "    store(group.z, m0 + tm * EACH + {row}u, n0 + tn * 4u, t{row});");
    }
    let head = format!("const EACH: u32 = {each}u;\nalias Entering = vec4<f32>;\n{}", layout.decoder());
    let body = include_str!("kernels/gemm.wgsl");
    let parts = [("DECLARE\n", declared), ("PRODUCTS\n", products), ("SLICE\n", slice), ("STORE\n", stored)];
    filled([head.as_str(), include_str!("kernels/product.wgsl"), body].concat(), &parts)
}
