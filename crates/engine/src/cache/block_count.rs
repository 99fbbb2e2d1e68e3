//! How many blocks a model is loaded with.

use girih_graph::{Key, Span, StateKind};

/// The number of carried values that each sequence may keep beyond those that its steps need, so
/// that others share its prefix, and it can be stepped back: those at the ends of the last 2048
/// positions.
const KEPT_VALUES: u64 = 32;

/// Returns the number of blocks of a group for `key.sequences` concurrent sequences of
/// `key.context` positions, in steps of `key.rows` rows in total.
pub fn blocks(kind: impl Into<StateKind>, key: &Key) -> u32 {
    let kind = kind.into();
    let lengths = || std::iter::repeat_n(key.context, key.sequences as usize);
    let need = kind.worst_case(lengths(), key.rows);
    let blocks = match kind {
        StateKind::Positions { .. } => need,
        StateKind::Carried => {
            let whole = StateKind::from(Span::Full).worst_case(lengths(), key.rows);
            whole.min(need + KEPT_VALUES * u64::from(key.sequences))
        }
    };
    u32::try_from(blocks).unwrap_or(u32::MAX)
}
