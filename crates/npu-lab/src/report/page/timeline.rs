//! Draws the timeline of a step: the whole step, and one layer enlarged.

use std::fmt::{self, Write};

use super::html::{Escaped, based_on, colour};
use crate::report::model::ModelReport;
use crate::report::quantity::millis;
use crate::report::spans::{StepSpan, StepSpanKind};
use crate::report::step::{ProgramUse, StepReport};

/// Sizes in drawing units.
const TIMELINE_WIDTH: f64 = 1080.0;
const TIMELINE_LEFT: f64 = 84.0;
const TRACK_HEIGHT: f64 = 22.0;
const TRACK_GAP: f64 = 6.0;
const TIMELINE_TOP: f64 = 22.0;

/// A range of time that is drawn, in seconds.
#[derive(Clone, Copy)]
struct TimeWindow {
    from: f64,
    to: f64,
}

impl TimeWindow {
    /// The horizontal position of a time.
    fn x(self, seconds: f64) -> f64 {
        let part = (seconds - self.from) / (self.to - self.from).max(f64::MIN_POSITIVE);
        TIMELINE_LEFT + part.clamp(0.0, 1.0) * (TIMELINE_WIDTH - TIMELINE_LEFT - 8.0)
    }

    fn overlaps(self, begin: f64, seconds: f64) -> bool {
        begin < self.to && begin + seconds > self.from
    }
}

pub(super) fn section(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>Where the time goes</h2>\
         <p>The whole step, then one layer. Nothing overlaps: host and array wait for each other.</p><div class=\"legend\">",
    );
    let kinds = [
        ("gemm", "GEMM"),
        ("gemv", "GEMV"),
        ("attend", "attention"),
        ("rms_norm", "norm"),
        ("rope", "RoPE"),
        ("gate", "gate"),
        ("add", "add"),
        ("configure", "configuration"),
        ("dispatch", "dispatch"),
        ("host", "host"),
        ("sync", "sync"),
    ];
    for (style, what) in kinds {
        write!(html, "<span><span class=\"key\" style=\"background:var(--{style})\"></span>{what}</span>")?;
    }
    html.push_str("</div>\n");
    for step in &report.steps {
        let title = step.title();
        write!(html, "<h3>{title}</h3><figure><div class=\"scroll\" tabindex=\"0\">")?;
        let whole = TimeWindow { from: 0.0, to: step.seconds };
        let layer = layer(step);
        picture(html, step, whole, layer, &format!("{title}: the whole step"))?;
        html.push_str("</div></figure>\n");
        if let Some(layer) = layer {
            html.push_str("<figure><div class=\"scroll\" tabindex=\"0\">");
            picture(html, step, layer, None, &format!("{title}: one layer"))?;
            let long = millis(layer.to - layer.from);
            writeln!(html, "</div><figcaption>The first layer, {long}; shaded above.</figcaption></figure>")?;
        }
    }
    let figures = [
        "control.dispatch_us",
        "control.runlist_us",
        "control.configure_us",
        "control.configure_tile_us",
        "control.configure_byte_ns",
    ];
    based_on(html, report, &figures)?;
    html.push_str("</section>\n");
    Ok(())
}

/// The time range of the first layer.
fn layer(step: &StepReport) -> Option<TimeWindow> {
    let (from, to) = step.layer?;
    let within = |span: &&StepSpan| span.part.is_some_and(|part| (from..to).contains(&part));
    let mut spans = step.spans.iter().filter(within);
    let first = spans.next()?;
    let last = spans.next_back().unwrap_or(first);
    Some(TimeWindow { from: first.begin, to: last.begin + last.seconds })
}

fn picture(
    html: &mut String,
    step: &StepReport,
    window: TimeWindow,
    shade: Option<TimeWindow>,
    title: &str,
) -> fmt::Result {
    let tall = TIMELINE_TOP + 3.0 * (TRACK_HEIGHT + TRACK_GAP) + 4.0;
    write!(
        html,
        "<svg viewBox=\"0 0 {TIMELINE_WIDTH} {tall}\" role=\"img\" aria-label=\"{}\">",
        Escaped(title)
    )?;
    axis(html, window, tall)?;
    if let Some(shade) = shade {
        let (from, to) = (window.x(shade.from), window.x(shade.to));
        let (y, long) = (TIMELINE_TOP - 4.0, tall - TIMELINE_TOP + 4.0);
        write!(
            html,
            "<rect class=\"shade\" x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{long}\"/>",
            to - from
        )?;
    }
    for (track, text) in ["host", "programs", "launches"].into_iter().enumerate() {
        let y = TIMELINE_TOP + track as f64 * (TRACK_HEIGHT + TRACK_GAP) + TRACK_HEIGHT / 2.0 + 4.0;
        write!(html, "<text class=\"soft end\" x=\"{:.0}\" y=\"{y}\">{text}</text>", TIMELINE_LEFT - 10.0)?;
    }
    for span in step.spans.iter().filter(|span| window.overlaps(span.begin, span.seconds)) {
        let (track, style) = match span.kind {
            StepSpanKind::Host => (0, "host"),
            StepSpanKind::Sync => (0, "sync"),
            StepSpanKind::Array => (1, "other"),
        };
        bar(html, window, track, (span.begin, span.seconds), style, &span.name)?;
        if span.kind == StepSpanKind::Array
            && let Some(program) = step.programs.iter().find(|program| program.name == span.name)
        {
            launches(html, window, span, program)?;
        }
    }
    html.push_str("</svg>");
    Ok(())
}

/// Draws the launches of one run; the rest of the run's time is its dispatch.
fn launches(html: &mut String, window: TimeWindow, span: &StepSpan, program: &ProgramUse) -> fmt::Result {
    let launches = program.launches.iter();
    let work: f64 = launches.map(|launch| launch.configure_seconds + launch.seconds).sum();
    let dispatch = (span.seconds - work).max(0.0);
    bar(html, window, 2, (span.begin, dispatch), "dispatch", "dispatch")?;
    let mut at = span.begin + dispatch;
    for launch in &program.launches {
        let configure = launch.configure_seconds;
        bar(html, window, 2, (at, configure), "configure", &format!("configuration of {}", launch.name))?;
        at += configure;
        bar(html, window, 2, (at, launch.seconds), colour(&launch.kernel), &launch.name)?;
        at += launch.seconds;
    }
    Ok(())
}

/// The width of the narrowest bar that is drawn, and the width of a letter.
const MIN_BAR_WIDTH: f64 = 0.15;
const LETTER_WIDTH: f64 = 6.6;

fn bar(
    html: &mut String,
    window: TimeWindow,
    track: usize,
    (begin, seconds): (f64, f64),
    style: &str,
    text: &str,
) -> fmt::Result {
    let (from, to) = (window.x(begin), window.x(begin + seconds));
    let width = to - from;
    if width < MIN_BAR_WIDTH {
        return Ok(());
    }
    let y = TIMELINE_TOP + track as f64 * (TRACK_HEIGHT + TRACK_GAP);
    let shown = Escaped(text);
    write!(
        html,
        "<g><title>{shown}: {}</title><rect x=\"{from:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{TRACK_HEIGHT}\" \
         rx=\"{:.1}\" style=\"fill:var(--{style})\"/>",
        millis(seconds),
        (width - 0.6).max(MIN_BAR_WIDTH),
        (width / 4.0).min(3.0)
    )?;
    let letters = text.chars().count() as f64;
    if letters * LETTER_WIDTH + 8.0 <= width {
        let tone = if matches!(style, "sync" | "configure" | "dispatch") { "" } else { "on" };
        let (x, y) = (from + width / 2.0, y + TRACK_HEIGHT / 2.0 + 4.0);
        write!(html, "<text class=\"mid small {tone}\" x=\"{x:.1}\" y=\"{y}\">{shown}</text>")?;
    }
    html.push_str("</g>");
    Ok(())
}

/// Draws about eight grid lines at round times.
fn axis(html: &mut String, window: TimeWindow, tall: f64) -> fmt::Result {
    let span = window.to - window.from;
    if span <= 0.0 {
        return Ok(());
    }
    let power = 10f64.powf((span / 8.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| span / step <= 9.0).unwrap_or(steps[3]);
    for tick in 0..=(span / step) as usize {
        let (at, x) = (tick as f64 * step, window.x(window.from + tick as f64 * step));
        write!(html, "<path class=\"grid\" d=\"M{x:.1} {:.0}V{tall}\"/>", TIMELINE_TOP - 4.0)?;
        let text = if tick == 0 { "0".to_owned() } else { tick_text(at) };
        write!(
            html,
            "<text class=\"soft small mid\" x=\"{x:.1}\" y=\"{:.0}\">{text}</text>",
            TIMELINE_TOP - 9.0
        )?;
    }
    Ok(())
}

/// A round time: `0.5 ms`.
fn tick_text(seconds: f64) -> String {
    let (value, unit) = if seconds >= 1e-3 { (seconds * 1e3, "ms") } else { (seconds * 1e6, "µs") };
    format!("{} {unit}", (value * 1e3).round() / 1e3)
}
