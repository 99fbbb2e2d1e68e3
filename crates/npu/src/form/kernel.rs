//! The kernels of the array: what a launch computes, its sizes, its operands and its text.

use std::fmt;

use girih_graph::{BLOCK_POSITIONS, Pairing};
use girih_tensor::Result;

use super::keys::{START_BYTES, appended_bytes, chunk_bytes};
use super::read::FormLine;
use super::schedule::text::parameters;
use super::schedule::{Affine, Parameter, ParameterValue};
use super::weights::WeightLayout;

/// What a launch computes; sizes include padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// `(x [m, k], w [n, k], y [m, n])`: `y = x · wᵀ`.
    Gemm {
        /// Rows.
        m: u32,
        /// Columns of the result.
        n: u32,
        /// Terms of each sum.
        k: u32,
        /// The layout of `w`.
        weights: WeightLayout,
    },
    /// `(w [n, k], y [n, k])`: unpacks Q4NX weights `w` to bf16 groups `y`, for matrix products of
    /// several rows.
    Dequant {
        /// Rows.
        n: u32,
        /// Columns.
        k: u32,
    },
    /// `(x [k], w [.., k], y [..])`: `n` values of `y = w · x`, beginning at `first`.
    Gemv {
        /// The first computed value of the result.
        first: u32,
        /// The number of computed values.
        n: u32,
        /// Terms of each sum.
        k: u32,
        /// The layout of `w`.
        weights: WeightLayout,
    },
    /// `(x [rows, n], w [n], y [rows, n])`: normalizes the first `width`
    /// values of each row; the others are padding.
    RmsNorm {
        /// Rows.
        rows: u32,
        /// Values of a row.
        n: u32,
        /// Values of a row without padding.
        width: u32,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// `(x [rows, n], w [n], b [n], y [rows, n])`: centers and normalizes the first `width` values of
    /// each row; the others are padding.
    LayerNorm {
        /// Rows.
        rows: u32,
        /// Values of a row.
        n: u32,
        /// Values of a row without padding.
        width: u32,
        /// Added to the variance.
        epsilon: f32,
    },
    /// `(x [rows, heads, size], cos_sin [rows, size], y)`: rotates pairs of
    /// components (RoPE).
    Rope {
        /// Rows.
        rows: u32,
        /// Heads of a row.
        heads: u32,
        /// Values of a head.
        size: u32,
        /// Which components form a pair.
        pairing: Pairing,
    },
    /// `(gate [n], up [n], y [n])`: `act(gate) · up`.
    Gate {
        /// Values.
        n: u32,
        /// The activation.
        act: GateAct,
    },
    /// `(x [n], y [n])`: GELU by its tanh formula.
    Gelu {
        /// Values.
        n: u32,
    },
    /// `(a [n], b [n], y [n])`: `a + b`.
    Add {
        /// Values.
        n: u32,
    },
    /// `(x [rows, n], b [n], y [rows, n])`: adds `b` to each row.
    Bias {
        /// Rows.
        rows: u32,
        /// Values of a row.
        n: u32,
    },
    /// `(x [heads, size], row)`: copies the keys or the values of a position to their place among
    /// the chunks. The tensor of `row` has the kind `TensorKind::Appended`.
    Append {
        /// KV heads.
        heads: u32,
        /// Values of a head.
        size: u32,
        /// Which half of a chunk it writes.
        half: ChunkHalf,
    },
    /// `(q [rows, heads, size], chunks, start, y [rows, heads, size])`: attention
    /// over keys and values in the layout of [`chunk_bytes`], at the positions of a
    /// tensor of `TensorKind::Start`.
    Attend(AttendSizes),
}

/// A half of a chunk, as [`chunk_bytes`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkHalf {
    /// The first half.
    Keys,
    /// The second half.
    Values,
}

impl ChunkHalf {
    /// The name in printed groups.
    pub fn name(self) -> &'static str {
        match self {
            ChunkHalf::Keys => "keys",
            ChunkHalf::Values => "values",
        }
    }
}

/// The activations of a gate that the array has code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAct {
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// GELU by its tanh formula.
    GeluTanh,
}

impl GateAct {
    /// The name in printed groups.
    pub fn name(self) -> &'static str {
        match self {
            GateAct::Silu => "silu",
            GateAct::GeluTanh => "gelu_tanh",
        }
    }
}

/// The sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendSizes {
    /// Rows.
    pub rows: u32,
    /// Query heads.
    pub heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Values of a head.
    pub size: u32,
    /// Positions, a multiple of [`BLOCK_POSITIONS`].
    pub keys: u32,
    /// The largest position of the first row, counted from the first key, for which
    /// the launch is valid.
    pub latest: u32,
    /// Whether a row attends to the keys up to its own position only. Otherwise it
    /// attends to all keys of its mutual span, too, and the words of the start have the spans.
    pub causal: bool,
    /// The number of preceding positions that a row attends to; 0 for all.
    pub window: u32,
    /// The factor of every score.
    pub scale: f32,
}

impl Kernel {
    /// The name in printed groups.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::Gemm { .. } => "gemm",
            Kernel::Gemv { .. } => "gemv",
            Kernel::Dequant { .. } => "dequant",
            Kernel::RmsNorm { .. } => "rms_norm",
            Kernel::LayerNorm { .. } => "layer_norm",
            Kernel::Rope { .. } => "rope",
            Kernel::Gate { .. } => "gate",
            Kernel::Gelu { .. } => "gelu",
            Kernel::Add { .. } => "add",
            Kernel::Bias { .. } => "bias",
            Kernel::Append { .. } => "append",
            Kernel::Attend(_) => "attend",
        }
    }

    /// Bytes of each operand, in order.
    pub fn operand_bytes(&self) -> Vec<u64> {
        let of = |rows: u32, columns: u32| u64::from(rows) * u64::from(columns) * 2;
        match *self {
            Kernel::Gemm { m, n, k, weights } => vec![of(m, k), weights.bytes(n, k), of(m, n)],
            Kernel::Gemv { first, n, k, weights } => {
                let all = first.saturating_add(n);
                vec![of(1, k), weights.bytes(all, k), of(1, all)]
            }
            Kernel::Dequant { n, k } => {
                vec![WeightLayout::Q4nx.bytes(n, k), WeightLayout::Groups.bytes(n, k)]
            }
            Kernel::RmsNorm { rows, n, .. } => vec![of(rows, n), of(1, n), of(rows, n)],
            Kernel::LayerNorm { rows, n, .. } => vec![of(rows, n), of(1, n), of(1, n), of(rows, n)],
            Kernel::Gelu { n } => vec![of(1, n); 2],
            Kernel::Rope { rows, heads, size, .. } => {
                let x = of(rows, size) * u64::from(heads);
                vec![x, of(rows, size), x]
            }
            Kernel::Gate { n, .. } | Kernel::Add { n } => vec![of(1, n); 3],
            Kernel::Bias { rows, n } => vec![of(rows, n), of(1, n), of(rows, n)],
            Kernel::Append { heads, size, .. } => vec![of(heads, size), appended_bytes(heads, size)],
            Kernel::Attend(AttendSizes { rows, heads, kv_heads, size, keys, .. }) => {
                let x = of(rows, size) * u64::from(heads);
                let chunks = u64::from(kv_heads) * u64::from(keys) / BLOCK_POSITIONS as u64;
                vec![x, chunks * u64::from(chunk_bytes(size)), START_BYTES.into(), x]
            }
        }
    }

    /// Which operand is a matrix of weights, and its layout.
    pub fn weights(&self) -> Option<(usize, WeightLayout)> {
        match *self {
            Kernel::Gemm { weights, .. } | Kernel::Gemv { weights, .. } => Some((1, weights)),
            Kernel::Dequant { .. } => Some((0, WeightLayout::Q4nx)),
            _ => None,
        }
    }

    /// Whether the sides of its weights are whole tiles of their layout.
    pub(super) fn has_whole_tiles(&self) -> bool {
        match *self {
            Kernel::Gemm { n, k, weights, .. } => weights.divides(n, k),
            Kernel::Gemv { first, n, k, weights } => weights.divides(n, k) && weights.divides(first, k),
            Kernel::Dequant { n, k } => WeightLayout::Q4nx.divides(n, k),
            _ => true,
        }
    }

    /// Floating-point operations, for rooflines.
    pub fn flops(&self) -> u64 {
        match *self {
            Kernel::Gemm { m, n, k, .. } => 2 * u64::from(m) * u64::from(n) * u64::from(k),
            Kernel::Dequant { n, k } => 2 * u64::from(n) * u64::from(k),
            Kernel::Gemv { n, k, .. } => 2 * u64::from(n) * u64::from(k),
            Kernel::RmsNorm { rows, n, .. } => 4 * u64::from(rows) * u64::from(n),
            Kernel::Rope { rows, heads, size, .. } => {
                3 * u64::from(rows) * u64::from(heads) * u64::from(size)
            }
            Kernel::LayerNorm { rows, n, .. } => 6 * u64::from(rows) * u64::from(n),
            Kernel::Gate { n, .. } | Kernel::Gelu { n } => 4 * u64::from(n),
            Kernel::Add { n } => u64::from(n),
            Kernel::Bias { rows, n } => u64::from(rows) * u64::from(n),
            Kernel::Append { .. } => 0,
            Kernel::Attend(AttendSizes { rows, heads, size, keys, .. }) => {
                4 * u64::from(rows) * u64::from(heads) * u64::from(size) * u64::from(keys)
            }
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Gemm { m, n, k, weights } => write!(f, "gemm{} m={m} n={n} k={k}", weights.suffix()),
            Kernel::Gemv { first, n, k, weights } => {
                write!(f, "gemv{} first={first} n={n} k={k}", weights.suffix())
            }
            Kernel::Dequant { n, k } => write!(f, "dequant n={n} k={k}"),
            Kernel::RmsNorm { rows, n, width, epsilon } => {
                write!(f, "rms_norm rows={rows} n={n} width={width} epsilon={epsilon:?}f")
            }
            Kernel::Rope { rows, heads, size, pairing } => {
                write!(f, "rope_{} rows={rows} heads={heads} size={size}", pairing.name())
            }
            Kernel::LayerNorm { rows, n, width, epsilon } => {
                write!(f, "layer_norm rows={rows} n={n} width={width} epsilon={epsilon:?}f")
            }
            Kernel::Gelu { n } => write!(f, "gelu n={n}"),
            Kernel::Gate { n, act } => write!(f, "gate_{} n={n}", act.name()),
            Kernel::Add { n } => write!(f, "add n={n}"),
            Kernel::Bias { rows, n } => write!(f, "bias rows={rows} n={n}"),
            Kernel::Append { heads, size, half } => {
                write!(f, "append_{} heads={heads} size={size}", half.name())
            }
            Kernel::Attend(sizes) => {
                let AttendSizes { rows, heads, kv_heads, size, keys, latest, causal, window, scale } = sizes;
                write!(f, "attend rows={rows} heads={heads} kv_heads={kv_heads} size={size} keys={keys} ")?;
                write!(f, "latest={latest} causal={} window={window} scale={scale:?}f", u8::from(*causal))
            }
        }
    }
}

/// Reads a kernel with its sizes, including the colon after them.
pub(super) fn kernel(line: &mut FormLine<'_>) -> Result<Kernel> {
    let name = line.word("a kernel")?;
    let mut words = Vec::new();
    while !line.skip(":") {
        words.push(line.word("a size")?);
    }
    let sizes = parameters(&mut FormLine::of(&words.join(" ")))?;
    let lacks = |what: &str| line.error(format!("has the kernel {name} without its {what}"));
    let whole = |what: &str| match sizes.iter().find(|size| size.name == what) {
        Some(Parameter { value: ParameterValue::Int(Affine { constant, terms }), .. })
            if terms.is_empty() =>
        {
            u32::try_from(*constant).map_err(|_| lacks(what))
        }
        _ => Err(lacks(what)),
    };
    let float = |what: &str| match sizes.iter().find(|size| size.name == what) {
        Some(Parameter { value: ParameterValue::Float(value), .. }) => Ok(*value),
        _ => Err(lacks(what)),
    };
    let rope = |pairing| {
        Ok(Kernel::Rope { rows: whole("rows")?, heads: whole("heads")?, size: whole("size")?, pairing })
    };
    let append = |half| Ok(Kernel::Append { heads: whole("heads")?, size: whole("size")?, half });
    let (base, weights) = WeightLayout::split(name);
    match base {
        "gemm" => Ok(Kernel::Gemm { m: whole("m")?, n: whole("n")?, k: whole("k")?, weights }),
        "gemv" => Ok(Kernel::Gemv { first: whole("first")?, n: whole("n")?, k: whole("k")?, weights }),
        _ if weights != WeightLayout::Rows => Err(line.error(format!("has '{name}', which is not a kernel"))),
        "dequant" => Ok(Kernel::Dequant { n: whole("n")?, k: whole("k")? }),
        "rms_norm" => Ok(Kernel::RmsNorm {
            rows: whole("rows")?,
            n: whole("n")?,
            width: whole("width")?,
            epsilon: float("epsilon")?,
        }),
        "layer_norm" => Ok(Kernel::LayerNorm {
            rows: whole("rows")?,
            n: whole("n")?,
            width: whole("width")?,
            epsilon: float("epsilon")?,
        }),
        "gelu" => Ok(Kernel::Gelu { n: whole("n")? }),
        "rope_halves" => rope(Pairing::Halves),
        "rope_neighbours" => rope(Pairing::Neighbours),
        "gate_silu" => Ok(Kernel::Gate { n: whole("n")?, act: GateAct::Silu }),
        "gate_gelu_tanh" => Ok(Kernel::Gate { n: whole("n")?, act: GateAct::GeluTanh }),
        "add" => Ok(Kernel::Add { n: whole("n")? }),
        "bias" => Ok(Kernel::Bias { rows: whole("rows")?, n: whole("n")? }),
        "append_keys" => append(ChunkHalf::Keys),
        "append_values" => append(ChunkHalf::Values),
        "attend" => Ok(Kernel::Attend(AttendSizes {
            rows: whole("rows")?,
            heads: whole("heads")?,
            kv_heads: whole("kv_heads")?,
            size: whole("size")?,
            keys: whole("keys")?,
            latest: whole("latest")?,
            causal: match whole("causal")? {
                0 => false,
                1 => true,
                _ => return Err(lacks("causal, which is 0 or 1")),
            },
            window: whole("window")?,
            scale: float("scale")?,
        })),
        _ => Err(line.error(format!("has '{name}', which is not a kernel"))),
    }
}
