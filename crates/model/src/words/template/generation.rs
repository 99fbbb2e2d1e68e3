//! Rewrites the `generation` tag, which only marks text for training, into
//! tags that the template engine knows.

/// Replaces `{% generation %}` and `{% endgeneration %}` by `with` and
/// `endwith`: like the original they open a scope and print their body.
/// Comments, raw blocks and strings stay as they are.
pub fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{#")).chain(rest.find("{{")).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let tag = &rest[..tag_end(rest)];
        match word(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("raw") => {
                let end = raw_end(rest);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = &rest[tag.len()..];
    }
    out.push_str(rest);
    out
}

/// The one word that a statement tag consists of, if it does.
fn word(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    Some(inner.trim())
}

/// Length of the tag or comment that `text` begins with; all of `text` if it
/// is not closed (the engine reports that).
fn tag_end(text: &str) -> usize {
    let close = match &text[..2] {
        "{#" => return text.find("#}").map_or(text.len(), |at| at + 2),
        "{%" => "%}",
        _ => "}}",
    };
    let mut quote = None;
    let mut bytes = text.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match quote {
            Some(_) if byte == b'\\' => drop(bytes.next()),
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if text.as_bytes()[at..].starts_with(close.as_bytes()) => return at + 2,
            None => {}
        }
    }
    text.len()
}

/// Length of the raw block that `text` begins with, its closing tag included.
fn raw_end(text: &str) -> usize {
    let mut from = tag_end(text);
    while let Some(at) = text[from..].find("{%") {
        let start = from + at;
        let end = start + tag_end(&text[start..]);
        if word(&text[start..end]) == Some("endraw") {
            return end;
        }
        from = start + 2;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::replace_generation_tags;

    #[test]
    fn only_tags_are_replaced() {
        let cases = [
            ("a{% generation %}b{%- endgeneration -%}c", "a{% with %}b{%- endwith -%}c"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            (
                "{% raw %}{% generation %}{% endraw %}{% generation %}",
                "{% raw %}{% generation %}{% endraw %}{% with %}",
            ),
            ("{% set generation = 1 %}{", "{% set generation = 1 %}{"),
            ("{{ 'é\\'{%' }}{%generation", "{{ 'é\\'{%' }}{%generation"),
        ];
        for (source, want) in cases {
            assert_eq!(replace_generation_tags(source), want);
        }
    }
}
