//! Renders the report as one self-contained page of HTML: styles and SVG inline,
//! no scripts. Every text that comes from a model, a graph or a table is escaped.

mod array;
mod html;
mod roofline;
mod tables;
mod timeline;

use std::fmt::{self, Write};

use self::html::Escaped;
use super::compare::PublishedComparison;
use super::figures::grades;
use super::model::ModelReport;
use super::quantity::{millis, number};

/// The style sheet of the page.
const STYLE: &str = include_str!("style.css");

/// Renders the page of a report.
pub fn page(report: &ModelReport, compared: Option<&PublishedComparison>) -> String {
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

fn head(html: &mut String, report: &ModelReport) -> fmt::Result {
    let ModelReport { model, title, target, mapping, figures, .. } = report;
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
         <header><h1>{model}</h1><p class=\"verdict\">{}</p>\
         <p class=\"lead\">on {title} (<code>{target}</code>), mapped by <code>{mapping}</code>. \
         All times are simulated, not measured.</p>\
         <p class=\"note grades\">Based on {} figures, listed at the end with their sources: {counts}</p>\
         </header>\n",
        Escaped(&report.verdict()),
        figures.len()
    )
}

/// Writes one card per step: its time, and the shares of array, host and sync.
fn cards(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str("<section class=\"cards\">\n");
    for step in &report.steps {
        let (name, rows) = (step.title(), f64::from(step.rows));
        let total = step.seconds.max(f64::MIN_POSITIVE);
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
            let share = 100.0 * seconds / total;
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
        let rate = number(rows / total);
        let lines = [
            ("end to end", end_to_end),
            ("tokens/s", rate),
            ("submissions", step.submissions.to_string()),
            ("launches", step.launches.to_string()),
            ("dispatch", millis(step.dispatch_seconds)),
            ("configuration", millis(step.configure_seconds)),
        ];
        lines.iter().try_for_each(|(what, figure)| write!(html, "<dt>{what}</dt><dd>{figure}</dd>"))?;
        html.push_str("</dl></div>\n");
    }
    html.push_str("</section>\n");
    Ok(())
}
