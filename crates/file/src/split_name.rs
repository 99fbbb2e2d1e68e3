//! The names of the files of a model in parts.

/// The name of a file of a model in parts, without its ending: `PREFIX-00002-of-00003`, as llama.cpp and the hub's
/// tools write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitName<'a> {
    /// The name of the model.
    pub prefix: &'a str,
    /// The number of the part, from 1 in a name that is valid.
    pub number: u32,
    /// The number of parts.
    pub count: u32,
}

impl<'a> SplitName<'a> {
    /// Reads a file's name without its ending; `None` if it does not have this form.
    pub fn of(stem: &'a str) -> Option<SplitName<'a>> {
        let digits = |text: &str| -> Option<u32> {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse().ok()).flatten()
        };
        let (head, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = head.rsplit_once('-')?;
        (!prefix.is_empty()).then_some(())?;
        Some(SplitName { prefix, number: digits(number)?, count: digits(count)? })
    }

    /// The names of all parts without their ending, in order: at most 99999.
    pub fn names(self) -> impl Iterator<Item = String> + use<'a> {
        let SplitName { prefix, count, .. } = self;
        (1..=count).map(move |number| format!("{prefix}-{number:05}-of-{count:05}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_five_digits_twice_at_the_end() {
        let part = SplitName::of("a-00001-of-00002-b-00002-of-00003").unwrap();
        assert_eq!(part, SplitName { prefix: "a-00001-of-00002-b", number: 2, count: 3 });
        assert_eq!(part.names().last().unwrap(), "a-00001-of-00002-b-00003-of-00003");
        for name in
            ["a", "a-1-of-2", "a-00001-of-0002", "a-+0001-of-00002", "a-00001-of-00002.x", "-00001-of-00002"]
        {
            assert_eq!(SplitName::of(name), None, "{name}");
        }
    }
}
