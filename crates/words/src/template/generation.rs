//! Replaces the `generation` tag, which only marks text for training, by tags that
//! minijinja supports.

use super::tags::replace_tags;

/// Replaces `{% generation %}` and `{% endgeneration %}` by `with` and
/// `endwith`, which like the original open a scope and print their body. Comments,
/// raw blocks and strings remain unchanged. Takes linear time, because a template
/// may be a megabyte of tags.
pub fn replace_generation_tags(source: &str) -> String {
    replace_tags(source, |content, tag| match content {
        "generation" => Some(tag.replacen("generation", "with", 1)),
        "endgeneration" => Some(tag.replacen("endgeneration", "endwith", 1)),
        _ => None,
    })
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
