//! Finds the statement tags of a template's source, so that they can be replaced
//! before minijinja reads it.

/// Replaces each statement tag (`{% … %}`) with the text that `replacement` returns
/// for its content and itself; `None` leaves it unchanged. Comments, expressions,
/// raw blocks and strings remain unchanged. Takes linear time, because a template
/// may be a megabyte of tags.
pub fn replace_tags(source: &str, replacement: impl Fn(&str, &str) -> Option<String>) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = tag_start(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let tag = &rest[..tag_end(rest)];
        let content = tag_content(tag);
        if content == Some("raw") {
            let end = raw_end(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        match content.and_then(|content| replacement(content, tag)) {
            Some(text) => out.push_str(&text),
            None => out.push_str(tag),
        }
        rest = &rest[tag.len()..];
    }
    out.push_str(rest);
    out
}

/// The position of the first tag or comment in `text`.
fn tag_start(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{%" | b"{#" | b"{{"))
}

/// The content of a statement tag without white space around it.
fn tag_content(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    Some(inner.trim_ascii())
}

/// The length of the tag or comment at the start of `text`, or of all of `text` if
/// it is not closed, which minijinja reports. As in minijinja, a tag ends only
/// outside strings and brackets.
fn tag_end(text: &str) -> usize {
    let close = match &text[..2] {
        "{#" => return text[2..].find("#}").map_or(text.len(), |at| at + 4),
        "{%" => "%}",
        _ => "}}",
    };
    let mut quote = None;
    let mut open = 0_isize;
    let mut bytes = text.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => drop(bytes.next()),
            (Some(end), _) if byte == end => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, _) if open == 0 && text.as_bytes()[at..].starts_with(close.as_bytes()) => return at + 2,
            (None, b'(' | b'[' | b'{') => open += 1,
            (None, b')' | b']' | b'}') => open -= 1,
            (None, _) => {}
        }
    }
    text.len()
}

/// The length of the raw block at the start of `text`, including its closing tag.
fn raw_end(text: &str) -> usize {
    let mut rest = &text[tag_end(text)..];
    while let Some(at) = rest.find("{%") {
        rest = &rest[at + 2..];
        if let Some(after) = after_endraw(rest) {
            return text.len() - after.len();
        }
    }
    text.len()
}

/// The text after the tag whose content starts `inner`, if it is an `endraw` tag.
fn after_endraw(inner: &str) -> Option<&str> {
    let content = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_ascii_start();
    let end = content.strip_prefix("endraw")?.trim_ascii_start();
    end.strip_prefix(['-', '+']).unwrap_or(end).strip_prefix("%}")
}

#[cfg(test)]
mod tests {
    use super::replace_tags;

    #[test]
    fn tags_end_where_minijinja_ends_them() {
        for (source, want) in [
            ("{% a %}b", "!b"),
            ("{%- 'a%}' ~ {'b': '\\'%}'} +%}", "!"),
            ("{{ {'a': {}} ~ '{% raw %}' }}{% b %}", "{{ {'a': {}} ~ '{% raw %}' }}!"),
            ("{#}{% a %}#}{% b %}", "{#}{% a %}#}!"),
            ("{#-#}{% b %}", "{#-#}!"),
            (
                "{% raw %}{% \u{a0}endraw %}{#{% endraw %}{% b %}",
                "{% raw %}{% \u{a0}endraw %}{#{% endraw %}!",
            ),
            ("{% ( %}{% b %}", "!"),
        ] {
            assert_eq!(replace_tags(source, |_, _| Some("!".to_owned())), want);
        }
    }
}
