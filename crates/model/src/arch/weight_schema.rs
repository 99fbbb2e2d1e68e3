//! Schemas of weights: where each lies in a model's files, and how it is stored there.

use girih_file::ContainerKind;
use serde::Deserialize;

use super::delta_schema::DeltaPart;
use super::ffn_schema::FfnKind;
use super::ssm_schema::SsmPart;

/// What stands for the index of an expert in the name of a tensor.
pub const EXPERT: &str = "{e}";

/// One weight and its names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// The name in safetensors. Tensors of experts, whose index is `{e}`, are stacked: the weight has one
    /// dimension more. `{b}` stands for the first layer with the block of the layer, and `{n}` for the number of layers
    /// with a block before it.
    pub hf: Option<String>,
    /// The name in GGUF.
    pub gguf: Option<String>,
    /// The transform from safetensors' tensor to girih's.
    pub hf_as: Option<Relayout>,
    /// The transform from GGUF's tensor to girih's.
    pub gguf_as: Option<Relayout>,
    /// The weight's part of safetensors' tensor, if that holds several weights.
    pub hf_part: Option<TensorPart>,
    /// The same for GGUF's tensor.
    pub gguf_part: Option<TensorPart>,
    /// Other tensors of safetensors that may hold it, where the first one is missing.
    #[serde(default)]
    pub hf_or: Vec<OtherTensor>,
    /// The other tensor of GGUF that may hold it, where the first one is missing, in the same way.
    pub gguf_or: Option<String>,
    /// The other tensor of GGUF of a weight of patches of two frames: it has the values of the second frame.
    pub gguf_next: Option<String>,
    /// The kinds of layers that have it; without any, all.
    #[serde(default)]
    pub of: Vec<String>,
    /// The kind of the feed-forward part that its layers have; without it, any.
    pub ffn: Option<FfnKind>,
    /// Whether models may omit it.
    #[serde(default)]
    pub optional: bool,
}

/// A part of a tensor: its index, and the number of equal parts that the tensor consists of; or the rows of
/// queries, keys or values in a tensor of all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TensorPart {
    /// Of the rows: `[0, 3]`.
    Rows([usize; 2]),
    /// Of the columns: `{ columns = [0, 3] }`.
    Columns {
        /// The index and the number.
        columns: [usize; 2],
    },
    /// Of the rows of each expert's matrix: `{ experts = [0, 2] }`.
    Experts(ExpertsPart),
    /// The rows of all query heads, then those of all key heads, then those of all value heads: `{ flat = "q" }`.
    Flat {
        /// Which of them.
        flat: QkvPart,
    },
    /// For each KV head the rows of its query heads, of its key head and of its value head:
    /// `{ grouped = "q" }`.
    Grouped {
        /// Which of them.
        grouped: QkvPart,
    },
    /// The rows of a part of latent attention: `{ latent = "q_nope" }`.
    Latent {
        /// Which part.
        latent: LatentPart,
    },
    /// A projection of Mamba-2 in the tensor of all: `{ projected = "z" }`.
    Projected {
        /// Which of them.
        projected: SsmPart,
    },
    /// What is convolved in Mamba-2 in the tensor of all: `{ convolved = "x" }`.
    Convolved {
        /// Which of them.
        convolved: SsmPart,
    },
    /// Of the rows or the columns, one part for each layer: `{ of_layers = "rows" }`.
    OfLayers {
        /// Of which of them.
        of_layers: LayersPart,
    },
    /// Of the rows of each query head: `{ in_heads = [0, 2] }`.
    InHeads {
        /// The index and the number.
        in_heads: [usize; 2],
    },
    /// Of a delta rule, the rows of queries, those of keys, then those of values: `{ delta = "q" }`.
    Delta {
        /// Which of them.
        delta: DeltaPart,
    },
    /// Of a delta rule, for each head of keys the rows of queries, keys, values and gates, or of betas and steps:
    /// `{ delta_grouped = "q" }`.
    DeltaGrouped {
        /// Which of them.
        delta_grouped: DeltaPart,
    },
    /// All rows, with the quarters of each head in another order, `{ planes = "q" }`: for heads whose first half turns by the
    /// column and whose second half turns by the line, each half with pairs of its own.
    Planes {
        /// Which heads.
        planes: PlanesPart,
    },
    /// All rows but the first ones: `{ from_row = 2 }`.
    From {
        /// The number of rows that are left out.
        from_row: usize,
    },
}

/// A part of a projection of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatentPart {
    /// Of each head of queries the rows that are not rotated.
    QNope,
    /// Of each head of queries the rows that are rotated.
    QRope,
    /// The rows of the latent, before those of the shared key.
    Rows,
    /// The rows of the shared key.
    KRope,
    /// Of each head the rows of keys, transposed, so that they make a latent of a query.
    KUp,
    /// Of each head the rows of values.
    VUp,
}

/// Queries, keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names suffice
pub enum QkvPart {
    Q,
    K,
    V,
}

/// The heads whose parts have another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanesPart {
    /// Those of queries.
    Q,
    /// Those of keys.
    K,
    /// One, for the norm of each head.
    One,
}

/// What is cut into a part for each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names suffice
pub enum LayersPart {
    Rows,
    Columns,
}

impl TensorPart {
    /// The part of layer `index` of `layers`.
    pub fn of_layer(self, index: usize, layers: usize) -> TensorPart {
        match self {
            TensorPart::OfLayers { of_layers: LayersPart::Rows } => TensorPart::Rows([index, layers]),
            TensorPart::OfLayers { of_layers: LayersPart::Columns } => {
                TensorPart::Columns { columns: [index, layers] }
            }
            part => part,
        }
    }
}

/// A part of the rows of each expert's matrix in a tensor of all experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsPart {
    /// The index and the number of the parts.
    pub experts: [usize; 2],
    /// Whether rows of the parts take turns, instead of one part following another.
    #[serde(default)]
    pub interleaved: bool,
    /// Whether the tensor has columns instead of rows.
    #[serde(default)]
    pub transposed: bool,
    /// Whether a transposed tensor may have rows instead, too. Its extents tell which, as for transformers' loader
    /// (`Transpose` with `check_dims`).
    #[serde(default)]
    pub either: bool,
    /// Whether the tensor has blocks of 32 values in MXFP4 with a name that ends in `_blocks`, and another one,
    /// with `_scales`, their scales.
    #[serde(default)]
    pub mxfp4: bool,
}

/// Another tensor that may hold a weight, in safetensors where a description names it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherTensor {
    /// Its name.
    pub hf: String,
    /// The weight's part of it.
    pub hf_part: Option<TensorPart>,
}

impl OtherTensor {
    /// A tensor of GGUF of this name.
    pub fn gguf(name: &str, part: Option<TensorPart>) -> OtherTensor {
        OtherTensor { hf: name.to_owned(), hf_part: part }
    }
}

impl Weight {
    /// Whether layers with the same block share it.
    pub fn is_of_block(&self) -> bool {
        self.hf.as_ref().is_some_and(|name| name.contains("{b}") && !name.contains("{n}"))
    }

    /// Whether layers of a kind have it.
    pub fn is_of(&self, kind: &str) -> bool {
        self.of.is_empty() || self.of.iter().any(|of| of == kind)
    }

    /// Whether it is a matrix that consists of whole rows of a tensor of this container, of which `part` says which.
    pub fn is_of_rows(&self, container: ContainerKind, part: Option<TensorPart>) -> bool {
        let (tensor, relayout) = match container {
            ContainerKind::Safetensors | ContainerKind::Iebin => (&self.hf, self.hf_as),
            ContainerKind::Q4nx => (&self.hf, None),
            ContainerKind::Gguf => (&self.gguf, self.gguf_as),
        };
        let is_stack = tensor.as_deref().is_some_and(|tensor| tensor.contains(EXPERT));
        let keeps_rows = match relayout {
            None | Some(Relayout::UnpermuteHeads | Relayout::UnpermuteKvHeads) => true,
            Some(
                Relayout::AddOne
                | Relayout::Transposed
                | Relayout::NegativeExp
                | Relayout::Conv1d
                | Relayout::Flat
                | Relayout::FlatRows
                | Relayout::ByPixel
                | Relayout::SwapOuter,
            ) => false,
        };
        let of_rows = match part {
            None
            | Some(
                TensorPart::Rows(_)
                | TensorPart::Flat { .. }
                | TensorPart::Grouped { .. }
                | TensorPart::Projected { .. }
                | TensorPart::InHeads { .. }
                | TensorPart::Delta { .. }
                | TensorPart::DeltaGrouped { .. }
                | TensorPart::Planes { .. }
                | TensorPart::From { .. },
            ) => true,
            Some(
                TensorPart::Columns { .. }
                | TensorPart::Experts(_)
                | TensorPart::Latent { .. }
                | TensorPart::Convolved { .. }
                | TensorPart::OfLayers { .. },
            ) => false,
        };
        !is_stack && keeps_rows && of_rows
    }
}

/// A transform from a stored tensor to girih's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relayout {
    /// Adds one to every value, for norms that are stored as w − 1.
    AddOne,
    /// Undoes the interleaving of the two halves of each query head's rows, which
    /// llama.cpp's converter applies for Llama.
    UnpermuteHeads,
    /// The same for key heads.
    UnpermuteKvHeads,
    /// Exchanges the columns with all other dimensions, for convolutions.
    Transposed,
    /// `−eˣ` of every value, for decays that are stored as logarithms.
    NegativeExp,
    /// Exchanges rows and columns of a matrix and keeps its format, for those of transformers' `Conv1D`.
    Conv1d,
    /// Makes a vector of all values, in their order.
    Flat,
    /// Makes a row of all values of each of the outermost slices, in their order, for convolutions that read each value
    /// once.
    FlatRows,
    /// Like `FlatRows`, with the values of a patch in another order: stored channel after channel, they are read pixel after
    /// pixel. A vector counts as one row.
    ByPixel,
    /// Exchanges the two outermost of three dimensions.
    SwapOuter,
}

/// Tensors that girih does not use.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unused {
    /// Names in safetensors; a `*` at the end stands for any rest.
    #[serde(default)]
    pub hf: Vec<String>,
    /// Names in GGUF, in the same way.
    #[serde(default)]
    pub gguf: Vec<String>,
}
