//! The schema of the pairs that rotary position embedding rotates.

use girih_graph::Pairing;
use serde::Deserialize;

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
