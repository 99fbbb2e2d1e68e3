//! Replaces the `generation` tag, which only marks text for training, by tags that
//! the template engine supports.

/// Replaces `{% generation %}` and `{% endgeneration %}` by `with` and
/// `endwith`, which like the original open a scope and print their body. Comments,
/// raw blocks and strings remain unchanged. Takes linear time, because a template
/// may be a megabyte of tags.
pub fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = tag_start(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let tag = &rest[..tag_end(rest)];
        match tag_content(tag) {
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

/// The position of the first tag or comment in `text`.
fn tag_start(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{%" | b"{#" | b"{{"))
}

/// The content of a statement tag without white space around it.
fn tag_content(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    Some(inner.trim())
}

/// The length of the tag or comment at the start of `text`, or of all of `text` if
/// it is not closed, which the engine reports.
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
    let content = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start();
    let end = content.strip_prefix("endraw")?.trim_start();
    end.strip_prefix(['-', '+']).unwrap_or(end).strip_prefix("%}")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
            (
                "{% raw %}{%{% - endraw %}{%- endraw\n+%}{%generation%}",
                "{% raw %}{%{% - endraw %}{%- endraw\n+%}{%with%}",
            ),
            ("{% set generation = 1 %}{", "{% set generation = 1 %}{"),
            ("{{ 'é\\'{%' }}{%generation", "{{ 'é\\'{%' }}{%generation"),
        ];
        for (source, want) in cases {
            assert_eq!(replace_generation_tags(source), want);
        }
    }

    #[test]
    fn a_megabyte_of_tags_takes_less_than_two_seconds() {
        const CAP: usize = 1 << 20;
        let started = Instant::now();
        for (start, repeated) in [
            ("", "{% if true %}"),
            ("", "{{ a }}"),
            ("{% raw %}", "{% "),
            ("{% raw %}", "{% endraw "),
            ("", "{%{#{{"),
        ] {
            let source = start.to_owned() + &repeated.repeat(CAP / repeated.len());
            assert_eq!(replace_generation_tags(&source), source);
        }
        assert!(started.elapsed() < Duration::from_secs(2), "took {:?}", started.elapsed());
    }
}
