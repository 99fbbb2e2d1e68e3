//! Formats texts and notes for the page. Every text that comes from a
//! model, a graph or a table goes through [`Escaped`].

use std::fmt::{self, Write};

use crate::report::model::ModelReport;

/// Displays any text safely in HTML.
pub(super) struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                // Controls; line and paragraph separators; embeddings, overrides and isolates.
                c if c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                    f.write_char('\u{fffd}')?;
                }
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Lists the figures that a section is based on, with their grades. Figures that
/// the target lacks are left out.
pub(super) fn based_on(html: &mut String, report: &ModelReport, paths: &[&str]) -> fmt::Result {
    let graded = |path: &&str| {
        let grade = report.grade(path)?;
        Some(format!("<span><code>{path}</code> <span class=\"tag {grade}\">{grade}</span></span>"))
    };
    let list: Vec<String> = paths.iter().filter_map(graded).collect();
    writeln!(html, "<p class=\"note grades\">Based on {}.</p>", list.join(", "))
}

/// The style name of a kernel's colour.
pub(super) fn colour(kernel: &str) -> &'static str {
    const KNOWN: &[&str] = &["gemm", "gemv", "attend", "rms_norm", "rope", "gate", "add"];
    KNOWN.iter().find(|known| **known == kernel).copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_a_tag() {
        let hostile = "</title><script>alert('1')</script>\u{1b}[2J\u{202e}\n\"x\" & co";
        let shown = Escaped(hostile).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{1b}', '\u{202e}']), "{shown}");
        assert!(shown.starts_with("&lt;/title&gt;&lt;script&gt;alert(&#39;1&#39;)"), "{shown}");
        assert!(shown.ends_with("&quot;x&quot; &amp; co"), "{shown}");
    }

    /// The bug: the ellipsis, U+2026, was taken for a control character.
    #[test]
    fn ordinary_characters_are_kept() {
        for kept in ["q … k", "a\u{200d}b", "naïve – 日本語 ✓", "two\nlines\tof text"] {
            assert_eq!(Escaped(kept).to_string(), kept);
        }
        assert_eq!(Escaped("\u{2028}\u{202a}\u{2066}\u{2069}\r").to_string(), "\u{fffd}".repeat(5));
    }
}
