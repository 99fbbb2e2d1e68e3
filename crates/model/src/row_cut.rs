//! The rows of one weight in a tensor of several, where they depend on the sizes of heads.

use std::ops::Range;

use crate::arch::schema::{DeltaPart, PlanesPart, QkvPart, SsmPart, TensorPart};
use crate::arch::{AttentionFacts, DeltaRuleFacts, Mixer, SsmFacts};

/// A part of the rows of a tensor, which depends on the sizes of heads.
#[derive(Clone, Copy)]
pub(crate) enum RowCut<'a> {
    /// Queries, keys or values of a tensor of all three that is cut into groups.
    Attention { attend: &'a AttentionFacts, groups: usize, part: QkvPart },
    /// One of `count` parts of each query head.
    InHeads { attend: &'a AttentionFacts, index: usize, count: usize },
    /// All rows of this number of heads of this size: the four quarters of each head, in the order of [`PLANES`].
    Planes { heads: usize, size: usize },
    /// A part of a delta rule; the tensor is cut by heads of keys, or not.
    Delta { delta: &'a DeltaRuleFacts, part: DeltaPart, is_grouped: bool },
    /// A part of Mamba-2: of the tensor of what is convolved, or of that of all projections.
    Ssm { ssm: &'a SsmFacts, part: SsmPart, is_convolved: bool },
}

/// The order in which the quarters of a head are read. The file has those that turn by the column, then those that turn by the
/// line, each pair's first components before its second ones: `x1 x2 y1 y2`. Read as `y1 x1 y2 x2`, the first components of
/// all pairs lie in the first half, and those of lines come first, as rotations by two axes need it.
const PLANES: [usize; 4] = [2, 0, 3, 1];

impl<'a> RowCut<'a> {
    /// That of a part in a layer with this mixer; `None` if another mixer has it, or the part is of another kind.
    pub fn of(part: TensorPart, mixer: &'a Mixer) -> Option<RowCut<'a>> {
        Some(match (part, mixer) {
            (TensorPart::Flat { flat: part }, mixer) => {
                RowCut::Attention { attend: mixer.attention()?, groups: 1, part }
            }
            (TensorPart::Grouped { grouped: part }, mixer) => {
                let attend = mixer.attention()?;
                RowCut::Attention { attend, groups: attend.kv_heads, part }
            }
            (TensorPart::InHeads { in_heads: [index, count] }, mixer) => {
                RowCut::InHeads { attend: mixer.attention()?, index, count }
            }
            (TensorPart::Planes { planes }, mixer) => {
                let AttentionFacts { heads, kv_heads, head_size: size, .. } = *mixer.attention()?;
                let heads = match planes {
                    PlanesPart::Q => heads,
                    PlanesPart::K => kv_heads,
                    PlanesPart::One => 1,
                };
                RowCut::Planes { heads, size }
            }
            (TensorPart::Projected { projected: part }, mixer) => {
                RowCut::Ssm { ssm: mixer.ssm()?, part, is_convolved: false }
            }
            (TensorPart::Convolved { convolved: part }, mixer) => {
                RowCut::Ssm { ssm: mixer.ssm()?, part, is_convolved: true }
            }
            (TensorPart::Delta { delta: part }, Mixer::DeltaRule(delta)) => {
                RowCut::Delta { delta, part, is_grouped: false }
            }
            (TensorPart::DeltaGrouped { delta_grouped: part }, Mixer::DeltaRule(delta)) => {
                RowCut::Delta { delta, part, is_grouped: true }
            }
            _ => return None,
        })
    }

    /// The rows that the tensor needs, and what needs them.
    pub fn need(self) -> (usize, String) {
        match self {
            RowCut::Attention { attend, .. } => {
                let AttentionFacts { heads, kv_heads, head_size, .. } = *attend;
                let [q, k, v] = qkv_sizes(attend);
                let of = format!("{heads} query heads and twice {kv_heads} KV heads of {head_size}");
                (heads * q + kv_heads * (k + v), of)
            }
            RowCut::InHeads { attend, count, .. } => {
                let AttentionFacts { heads, head_size, .. } = *attend;
                (heads * count * head_size, format!("{count} parts of {heads} heads of {head_size}"))
            }
            RowCut::Planes { heads, size } => (heads * size, format!("{heads} heads of {size}")),
            RowCut::Delta { delta, part, is_grouped } => {
                let DeltaRuleFacts { key_heads, value_heads, key_size, value_size, .. } = *delta;
                let of = format!(
                    "{key_heads} key heads of {key_size} and {value_heads} value heads of {value_size}"
                );
                (delta.rows_of_tensor(part, is_grouped), of)
            }
            RowCut::Ssm { ssm, is_convolved, .. } => {
                (ssm.all_rows(is_convolved), "the sizes of the mixer".to_owned())
            }
        }
    }

    /// The rows of the part, as ranges in order.
    pub fn ranges(self) -> Vec<Range<usize>> {
        match self {
            RowCut::Attention { attend, groups, part } => qkv_rows(groups, part, attend),
            RowCut::InHeads { attend, index, count } => {
                let AttentionFacts { heads, head_size, .. } = *attend;
                let first = |head: usize| (head * count + index) * head_size;
                (0..heads).map(|head| first(head)..first(head) + head_size).collect()
            }
            RowCut::Planes { heads, size } => {
                let quarter = size / PLANES.len();
                let first = |head: usize| PLANES.map(|place| head * size + place * quarter);
                (0..heads).flat_map(first).map(|first| first..first + quarter).collect()
            }
            RowCut::Delta { delta, part, is_grouped: false } => vec![delta.flat_rows(part)],
            RowCut::Delta { delta, part, is_grouped: true } => delta.grouped_rows(part),
            RowCut::Ssm { ssm, part, is_convolved } => vec![ssm.rows(part, is_convolved)],
        }
    }
}

/// The rows of queries, keys or values in a tensor of all three that is cut into groups, as ranges in order.
fn qkv_rows(groups: usize, part: QkvPart, attend: &AttentionFacts) -> Vec<Range<usize>> {
    let AttentionFacts { heads, kv_heads, .. } = *attend;
    let [q, k, v] = qkv_sizes(attend);
    let (q, k, v) = (heads / groups * q, kv_heads / groups * k, kv_heads / groups * v);
    let (start, length) = match part {
        QkvPart::Q => (0, q),
        QkvPart::K => (q, k),
        QkvPart::V => (q + k, v),
    };
    (0..groups).map(|group| group * (q + k + v) + start).map(|first| first..first + length).collect()
}

/// The sizes of a head of queries, keys and values.
fn qkv_sizes(attend: &AttentionFacts) -> [usize; 3] {
    let size = attend.head_size;
    [size, size, attend.value_size.unwrap_or(size)]
}
