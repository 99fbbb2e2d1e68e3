//! The tags of calls whose arguments are text.

/// The tags of a style.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Before the name of a tool.
    pub name_open: &'static str,
    /// After the name; if empty, the next tag ends it.
    pub name_close: &'static str,
    pub key_open: &'static str,
    pub key_close: &'static str,
    /// Between a key and its value, if there is more than `key_close`.
    pub value_open: &'static str,
    pub value_close: &'static str,
    /// After the arguments of one call, if there is more than `end`.
    pub call_close: Option<&'static str>,
    /// After all calls: closes the marker before them.
    pub end: &'static str,
    /// Whether a value stands on lines of its own.
    pub has_lines: bool,
}

impl Tags {
    /// All tags that may be special tokens of a vocabulary.
    pub fn all(&self) -> impl Iterator<Item = &'static str> {
        let tags =
            [self.name_open, self.key_open, self.key_close, self.value_open, self.value_close, self.end];
        let tags = tags.into_iter().chain(self.call_close);
        tags.filter(|tag| tag.starts_with('<') && tag.ends_with('>'))
    }
}
