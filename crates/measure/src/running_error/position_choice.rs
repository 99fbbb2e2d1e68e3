//! What a row does with a position that a selection names.

/// What a row does with a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PositionChoice {
    Read,
    Unread,
    /// It reads it, and may not.
    PerhapsUnread,
    /// It does not read it, and may.
    PerhapsRead,
}

impl PositionChoice {
    /// Whether a correct program may choose otherwise.
    pub(super) fn is_uncertain(self) -> bool {
        matches!(self, PositionChoice::PerhapsUnread | PositionChoice::PerhapsRead)
    }
}
