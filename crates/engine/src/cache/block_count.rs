//! How many blocks a model is loaded with.

use girih_graph::{Graph, GroupId, Key, Role, Span, StateGroup, StateKind, Value};

/// Carried values are f32.
const FLOAT_BYTES: u64 = 4;

/// The largest number of carried values that each sequence may keep beyond those that its steps need, so
/// that others share its prefix, and it can be stepped back: those at the ends of the last 2048
/// positions.
const MOST_KEPT_VALUES: u64 = 32;

/// The bytes that the kept values of a sequence may take. A delta rule carries megabytes for each layer.
const KEPT_BYTES: u64 = 128 << 20;

/// The number of values that a sequence may keep whatever their size: without one, the next turn of a
/// conversation would begin at its start.
const LEAST_KEPT_VALUES: u64 = 2;

/// Returns the number of blocks of each group of a graph for its largest step.
pub fn blocks_of(graph: &Graph) -> Vec<u32> {
    let blocks = |(index, group): (usize, &StateGroup)| {
        let own = |value: &&Value| value.role == Role::State(GroupId(index as u32));
        let bytes = graph.values.iter().filter(own).map(|value| value.row_len() as u64 * FLOAT_BYTES);
        count(group.kind, &graph.key, kept_values(bytes.fold(0, u64::saturating_add)))
    };
    graph.groups.iter().enumerate().map(blocks).collect()
}

/// Returns the number of blocks of a group for `key.sequences` concurrent sequences of
/// `key.context` positions, in steps of `key.rows` rows in total, if carried values are small.
pub fn blocks(kind: impl Into<StateKind>, key: &Key) -> u32 {
    count(kind.into(), key, MOST_KEPT_VALUES)
}

/// The number of carried values of this size that a sequence may keep.
fn kept_values(bytes: u64) -> u64 {
    (KEPT_BYTES / bytes.max(1)).clamp(LEAST_KEPT_VALUES, MOST_KEPT_VALUES)
}

/// As [`blocks`], with this number of carried values that each sequence may keep.
fn count(kind: StateKind, key: &Key, kept: u64) -> u32 {
    let lengths = || std::iter::repeat_n(key.context, key.sequences as usize);
    let need = kind.worst_case(lengths(), key.rows);
    let blocks = match kind {
        StateKind::Positions { .. } => need,
        StateKind::Carried => {
            let whole = StateKind::from(Span::Full).worst_case(lengths(), key.rows);
            whole.min(need + kept * u64::from(key.sequences))
        }
    };
    u32::try_from(blocks).unwrap_or(u32::MAX)
}
