//! The name that a misspelled name was probably meant to be.

/// The name among `names` that differs least from `typed`, if at most a third of the typed letters
/// differ (at least one may). Upper and lower case are the same letter.
pub fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let letters = typed.chars().count();
    let most = (letters / 3).max(1).min(letters.saturating_sub(1));
    // A long text is compared with few names, as each letter more or less is one that differs.
    let names = names.into_iter().filter(|name| name.chars().count().abs_diff(letters) <= most);
    let distance = |name: &str| strsim::osa_distance(&typed, &name.to_lowercase());
    let names = names.map(|name| (distance(name), name));
    names
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_name_is_found_and_another_word_is_not() {
        let names = ["threads", "temp", "top-k", "top-p"];
        assert_eq!(nearest("thraeds", names), Some("threads"));
        assert_eq!(nearest("Temp", names), Some("temp"));
        assert_eq!(nearest("top-j", names), Some("top-k")); // the first of equals
        assert_eq!(nearest("seed", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest("x", ["y"]), None);
    }
}
