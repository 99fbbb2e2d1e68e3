//! Sentences of `serde` in words of JSON, for people who have never heard of it.

/// How far a name may be from a known one to be taken for a misspelling of it.
const MAX_DISTANCE: usize = 2;

/// A sentence about a value that has the wrong form, to follow the name of the parameter, such as
/// ` must be a string, not 1`. `is_whole` says that the value at fault is the parameter's, and not one within it.
pub fn in_json_words(sentence: &str, is_whole: bool) -> String {
    let wrong =
        ["invalid type: ", "invalid value: "].into_iter().find_map(|start| sentence.strip_prefix(start));
    if let Some((found, needed)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        let (found, needed) = (found_words(found), needed_words(needed));
        return match is_whole {
            true => format!(" must be {needed}, not {found}"),
            false => format!(": {needed} is needed, not {found}"),
        };
    }
    if let Some(rest) = sentence.strip_prefix("unknown variant `") {
        let (found, known) = rest.split_once('`').unwrap_or((rest, ""));
        let known = names(known);
        let advice =
            if known.is_empty() { String::new() } else { format!("; known are {}", known.join(", ")) };
        return format!(": {found:?} is not known{advice}");
    }
    if let Some(rest) = sentence.strip_prefix("unknown field `") {
        let (found, known) = rest.split_once('`').unwrap_or((rest, ""));
        return format!(": the field {found:?} is not known; {}", advice(found, &names(known)));
    }
    if let Some(name) = sentence.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
        return format!(": the field {name} is missing");
    }
    if let Some(name) = sentence.strip_prefix("duplicate field `").and_then(|rest| rest.split('`').next()) {
        return format!(": the field {name} is given twice");
    }
    format!(" {sentence}")
}

/// What to do about a name that is not known.
pub fn advice(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(near) => format!("did you mean {near}?"),
        None => "remove it".to_owned(),
    }
}

/// The names in backticks of a sentence.
pub fn names(sentence: &str) -> Vec<&str> {
    sentence.split('`').skip(1).step_by(2).collect()
}

fn found_words(found: &str) -> String {
    for kind in ["integer `", "floating point `", "boolean `"] {
        if let Some(value) = found.strip_prefix(kind) {
            return value.trim_end_matches('`').to_owned();
        }
    }
    match found {
        "sequence" => "an array".to_owned(),
        "map" => "an object".to_owned(),
        _ if found.starts_with("string ") => format!("the {found}"),
        _ => found.to_owned(),
    }
}

fn needed_words(needed: &str) -> &str {
    match needed {
        "u8" => "an integer from 0 to 255",
        "u16" => "an integer from 0 to 65535",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer of 0 or more",
        "i8" | "i16" | "i32" | "i64" => "an integer",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        _ if needed.starts_with("struct ") || needed.starts_with("internally tagged enum ") => "an object",
        _ => needed,
    }
}

/// The known name that is most like `name`, if one is near.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    if name.len() > 64 {
        return None;
    }
    let near = known.iter().map(|one| (distance(name, one), *one));
    let (distance, one) = near.min_by_key(|(distance, _)| *distance)?;
    // Of a short name, two changes leave nothing.
    (distance <= MAX_DISTANCE.min(one.len() / 3)).then_some(one)
}

/// The number of letters to insert, remove, replace or exchange with the next one (Damerau's distance of
/// adjacent letters).
fn distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut next = vec![i; to.len() + 1];
        for j in 1..=to.len() {
            let replaced = row[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            next[j] = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_no_words_of_rust() {
        let of = |sentence| in_json_words(sentence, true);
        assert_eq!(
            of("invalid type: integer `-1`, expected u32"),
            " must be an integer from 0 to 4294967295, not -1"
        );
        assert_eq!(
            of("invalid type: string \"hot\", expected f32"),
            " must be a number, not the string \"hot\""
        );
        assert_eq!(of("invalid type: sequence, expected a map"), " must be an object, not an array");
        assert_eq!(
            of("unknown variant `foo`, expected one of `user`, `tool`"),
            ": \"foo\" is not known; known are user, tool"
        );
        assert_eq!(of("missing field `role`"), ": the field role is missing");
        let within = in_json_words("invalid type: null, expected a string", false);
        assert_eq!(within, ": a string is needed, not null");
    }

    #[test]
    fn a_misspelled_name_has_a_suggestion() {
        let of = |name| nearest(name, &["max_tokens", "n", "stop", "temperature"]);
        assert_eq!(of("max_token"), Some("max_tokens"));
        assert_eq!(of("tempreature"), Some("temperature"));
        assert_eq!(of("sotp"), Some("stop"));
        assert_eq!(of("m"), None);
        assert_eq!(of("grammar"), None);
    }
}
