//! The schema of the pairs that rotary position embedding rotates, and of the positions by which they turn.

use girih_graph::Pairing;
use serde::{Deserialize, Serialize};

use super::field::Names;

/// The components of a head that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairingSchema {
    /// `i` with `i + size/2`.
    Halves,
    /// `2i` with `2i + 1`.
    Neighbours,
}

impl From<PairingSchema> for Pairing {
    fn from(pairing: PairingSchema) -> Pairing {
        match pairing {
            PairingSchema::Halves => Pairing::Halves,
            PairingSchema::Neighbours => Pairing::Neighbours,
        }
    }
}

/// The axes of positions, in a description.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AxesSchema {
    /// The paths in `config.json` of the list of the numbers of pairs that turn by time, by line and by column.
    #[serde(default)]
    pub hf: Names,
    /// The key of GGUF of that list, which may have a fourth number.
    pub gguf: Option<String>,
    /// The numbers of a model that states none.
    pub default: Option<[usize; 3]>,
    /// Those of a GGUF that states none; a `config.json` without numbers is of a model of texts alone, without axes.
    pub gguf_default: Option<[usize; 3]>,
    /// How pairs are shared out.
    pub pairs: AxisPairs,
}

/// How the pairs of a head are shared out among axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AxisPairs {
    /// Time, line, column, in turn; time has the pairs that remain when the others have theirs (Qwen3-VL).
    InTurn,
    /// Those of time, then those of the line, then those of the column (Qwen2-VL, arXiv 2409.12191).
    InSections,
    /// The first half turns by the line and the second by the column, each by the frequencies of a head of half the size.
    Halves,
}
