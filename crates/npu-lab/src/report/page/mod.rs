//! The report as one page of HTML that needs nothing else: styles inside,
//! pictures as inline SVG, no script. Every text that comes from a model, a
//! graph or a table is escaped.

mod array;
mod roofline;
mod tables;
mod timeline;

use std::fmt::{self, Write};

use super::compare::Compared;
use super::step::StepReport;
use super::{Report, grades};

/// The style of the page.
const STYLE: &str = include_str!("style.css");

/// The page of a report.
pub fn page(report: &Report, compared: Option<&Compared>) -> String {
    let mut html = String::new();
    let write = |html: &mut String| -> fmt::Result {
        head(html, report)?;
        cards(html, report)?;
        array::section(html, report)?;
        timeline::section(html, report)?;
        tables::kernels(html, report)?;
        roofline::section(html, report)?;
        tables::host(html, report)?;
        tables::traffic(html, report)?;
        tables::entries(html, report)?;
        tables::energy(html, report)?;
        if let Some(compared) = compared {
            tables::published(html, compared)?;
        }
        tables::figures(html, report)?;
        html.push_str("</main></body></html>\n");
        Ok(())
    };
    write(&mut html).expect("writing into a string cannot fail");
    html
}

fn head(html: &mut String, report: &Report) -> fmt::Result {
    let Report { model, title, target, mapping, figures, .. } = report;
    let (model, title, target, mapping) = (Escaped(model), Escaped(title), Escaped(target), Escaped(mapping));
    let mut counts = String::new();
    for (grade, count) in grades(figures) {
        write!(counts, "<span>{count} <span class=\"tag {grade}\">{grade}</span></span> ")?;
    }
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{model} on {target}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n\
         <header><h1>{model}</h1>\
         <p class=\"lead\">on {title} (<code>{target}</code>), mapped by <code>{mapping}</code>. \
         Simulated: times are those of a model, not of a machine.</p>\
         <p class=\"note grades\">All of it follows from {} figures, which stand at the end with their sources: {counts}</p>\
         </header>\n",
        figures.len()
    )
}

/// One card for each step: what it takes, and who takes it.
fn cards(html: &mut String, report: &Report) -> fmt::Result {
    html.push_str("<section class=\"cards\">\n");
    for step in &report.steps {
        let (name, rows) = (name(step), f64::from(step.rows));
        let all = step.seconds.max(f64::MIN_POSITIVE);
        write!(
            html,
            "<div class=\"card\"><h3>{name}</h3><div class=\"big\">{} <small>array time</small></div>\
             <div class=\"split\">",
            millis(step.array_seconds),
        )?;
        let parts = [
            ("gemm", "array, simulated", step.array_seconds),
            ("host", "host, counted", step.host_seconds),
            ("sync", "sync, counted", step.sync_seconds),
        ];
        for (colour, _, seconds) in parts {
            let share = 100.0 * seconds / all;
            write!(html, "<i style=\"width:{share:.2}%;background:var(--{colour})\"></i>")?;
        }
        html.push_str("</div><dl>");
        for (colour, what, seconds) in parts {
            write!(
                html,
                "<dt><span class=\"key\" style=\"background:var(--{colour})\"></span>{what}</dt><dd>{}</dd>",
                millis(seconds)
            )?;
        }
        let end_to_end = millis(step.seconds);
        let rate = number(rows / all);
        write!(html, "<dt>one after another, tokens/s</dt><dd>{end_to_end}, {rate}</dd>")?;
        write!(html, "<dt>submissions, launches</dt><dd>{}, {}</dd>", step.submissions, step.launches)?;
        let overhead = step.dispatch_seconds + step.configure_seconds;
        write!(html, "<dt>dispatching and configuring</dt><dd>{}</dd>", millis(overhead))?;
        html.push_str("</dl></div>\n");
    }
    html.push_str("</section>\n");
    Ok(())
}

/// What a step is called.
fn name(step: &StepReport) -> String {
    if step.is_prefill() {
        format!("Prefill of {} tokens", step.rows)
    } else {
        format!("One token after {}", step.position)
    }
}

/// Text that may hold anything, as HTML shows it.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Nor may it end a line, turn the direction of text or hide.
                c if c.is_control() || ('\u{200b}'..='\u{202e}').contains(&c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Names the figures that a section rests on, with their grades; those that
/// the target lacks are left out.
fn rests(html: &mut String, report: &Report, paths: &[&str]) -> fmt::Result {
    let graded = |path: &&str| {
        let grade = report.grade(path)?;
        Some(format!("<span><code>{path}</code> <span class=\"tag {grade}\">{grade}</span></span>"))
    };
    let list: Vec<String> = paths.iter().filter_map(graded).collect();
    writeln!(html, "<p class=\"note grades\">Rests on {}.</p>", list.join(", "))
}

/// The colour of what a launch computes, by the name of the style.
fn colour(kernel: &str) -> &'static str {
    const KNOWN: &[&str] = &["gemm", "gemv", "attend", "rms_norm", "rope", "gate", "add"];
    KNOWN.iter().find(|known| **known == kernel).copied().unwrap_or("other")
}

/// A time, in the unit that suits it.
fn millis(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{} s", number(s)),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s if s > 0.0 => format!("{} µs", number(s * 1e6)),
        _ => "0".to_owned(),
    }
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// An amount with its SI prefix: `70.5 G`.
fn amount(value: f64) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match PREFIXES.iter().find(|(size, _)| value >= *size) {
        Some((size, prefix)) => format!("{} {prefix}", number(value / size)),
        None => format!("{} ", number(value)),
    }
}

/// A share in percent.
fn percent(share: f64) -> String {
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
    fn no_text_becomes_a_tag() {
        let hostile = "</title><script>alert('1')</script>\u{1b}[2J\u{202e}\n\"x\" & co";
        let shown = Escaped(hostile).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'', '\n', '\u{1b}', '\u{202e}']), "{shown}");
        assert!(shown.starts_with("&lt;/title&gt;&lt;script&gt;alert(&#39;1&#39;)"), "{shown}");
        assert!(shown.ends_with("&quot;x&quot; &amp; co"), "{shown}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.844, 0.0421, 0.00245, 0.000_066].map(millis),
            ["844 ms", "42.1 ms", "2.45 ms", "66.0 µs"]
        );
        assert_eq!([70.5e9, 999.0, 0.25].map(amount), ["70.5 G", "999 ", "0.25 "]);
        assert_eq!([0.999, 0.0123, 0.0001, 0.0].map(percent), ["100 %", "1.2 %", "< 0.1 %", "0"]);
    }
}
