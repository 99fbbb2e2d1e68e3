//! Formats texts, numbers and notes for the page. Every text that comes from a
//! model, a graph or a table goes through [`Escaped`].

use std::fmt::{self, Write};

use crate::report::model::ModelReport;
use crate::report::step::StepReport;

/// The heading of a step.
pub(super) fn step_title(step: &StepReport) -> String {
    if step.is_prefill() {
        format!("Prefill of {} tokens", step.rows)
    } else {
        format!("One token after {}", step.position)
    }
}

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
                // Control and invisible characters could break lines or reverse text.
                c if c.is_control() || ('\u{200b}'..='\u{202e}').contains(&c) => f.write_char('\u{fffd}')?,
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

/// A time in seconds, milliseconds or microseconds, whichever fits its size.
pub(super) fn millis(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{} s", number(s)),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s if s > 0.0 => format!("{} µs", number(s * 1e6)),
        _ => "0".to_owned(),
    }
}

/// A number with three significant digits.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// An amount with an SI prefix: `70.5 G`.
pub(super) fn amount(value: f64) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match PREFIXES.iter().find(|(size, _)| value >= *size) {
        Some((size, prefix)) => format!("{} {prefix}", number(value / size)),
        None => format!("{} ", number(value)),
    }
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.05 => format!("{p:.1} %"),
        p if p > 0.0 => "< 0.1 %".to_owned(),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_a_tag() {
        let hostile = "</title><script>alert('1')</script>\u{1b}[2J\u{202e}\n\"x\" & co";
        let shown = Escaped(hostile).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'', '\n', '\u{1b}', '\u{202e}']), "{shown}");
        assert!(shown.starts_with("&lt;/title&gt;&lt;script&gt;alert(&#39;1&#39;)"), "{shown}");
        assert!(shown.ends_with("&quot;x&quot; &amp; co"), "{shown}");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.844, 0.0421, 0.00245, 0.000_066].map(millis),
            ["844 ms", "42.1 ms", "2.45 ms", "66.0 µs"]
        );
        assert_eq!([70.5e9, 999.0, 0.25].map(amount), ["70.5 G", "999 ", "0.25 "]);
        assert_eq!([0.999, 0.0123, 0.0001, 0.0].map(percent), ["100 %", "1.2 %", "< 0.1 %", "0"]);
    }
}
