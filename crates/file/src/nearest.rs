//! The name that a misspelled name was probably meant to be, and the names that an unknown one is like.

/// The name among `names` that differs least from `typed`, if at most a third of the typed letters
/// differ (at least one may). Upper and lower case are the same letter.
pub fn nearest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = typed.chars().count();
    let most = (letters / 3).max(1).min(letters.saturating_sub(1));
    within(most, typed, names).min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// The names that differ from `name` in at most half of its letters, those that differ least first. Upper
/// and lower case are the same letter. More names are like an unknown name than like a misspelled one.
pub fn similar<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<(usize, &str)> = within(name.chars().count() / 2, name, names).collect();
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().map(|(_, name)| name).collect()
}

/// The names that differ in at most `most` letters, each after their number.
fn within<'a>(
    most: usize,
    typed: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> impl Iterator<Item = (usize, &'a str)> {
    let typed = typed.to_lowercase();
    let letters = typed.chars().count();
    // A long text is compared with few names, as each letter more or less is one that differs.
    let names = names.into_iter().filter(move |name| name.chars().count().abs_diff(letters) <= most);
    let names = names.map(move |name| (strsim::osa_distance(&typed, &name.to_lowercase()), name));
    names.filter(move |(distance, _)| *distance <= most)
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

    #[test]
    fn similar_names_are_in_order_of_their_distance() {
        let names = ["Gemma", "Qwen2", "Qwen3", "Qwen"];
        assert_eq!(similar("qwen3moe", names), ["Qwen3", "Qwen2", "Qwen"]);
        assert_eq!(similar("Qwen3", names), ["Qwen3", "Qwen2", "Qwen"]);
        assert_eq!(similar("Cwm", names), [""; 0]);
        assert_eq!(similar("", names), [""; 0]);
    }
}
