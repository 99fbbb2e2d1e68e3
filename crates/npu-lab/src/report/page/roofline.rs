//! Draws the roofline: operations per second over operations per DRAM byte, on
//! logarithmic scales, with the limits of the array and of DRAM.

use std::fmt::{self, Write};

use super::html::{Escaped, based_on, colour};
use crate::report::limits::ArrayLimits;
use crate::report::model::ModelReport;
use crate::report::quantity::{amount, millis, number, percent};
use crate::report::step::LaunchUse;

/// Sizes in drawing units.
const PLOT_WIDTH: f64 = 1080.0;
const PLOT_HEIGHT: f64 = 440.0;
const PLOT_LEFT: f64 = 78.0;
const PLOT_RIGHT: f64 = 24.0;
const PLOT_TOP: f64 = 14.0;
const PLOT_BOTTOM: f64 = 46.0;

/// The decades that are drawn: first and last exponent of each axis.
struct RooflineScales {
    x: (f64, f64),
    y: (f64, f64),
}

impl RooflineScales {
    fn x(&self, value: f64) -> f64 {
        PLOT_LEFT + (value.log10() - self.x.0) / (self.x.1 - self.x.0) * (PLOT_WIDTH - PLOT_LEFT - PLOT_RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        PLOT_HEIGHT
            - PLOT_BOTTOM
            - (value.log10() - self.y.0) / (self.y.1 - self.y.0) * (PLOT_HEIGHT - PLOT_TOP - PLOT_BOTTOM)
    }
}

/// Launches with the same kernel, intensity and time, drawn as one point.
struct RooflinePoint<'a> {
    launch: &'a LaunchUse,
    prefill: bool,
    /// Seconds of all runs in the step.
    seconds: f64,
    share: f64,
    names: Vec<&'a str>,
}

pub(super) fn section(html: &mut String, report: &ModelReport) -> fmt::Result {
    let points = points(report);
    let Some(scales) = scales(&points, &report.limits) else { return Ok(()) };
    html.push_str(
        "<section><h2>Roofline</h2>\
         <p>Each launch by its operations per DRAM byte. Filled points are prefill, hollow points are decode; the \
         area grows with the share of the step&#39;s array time. Neither arithmetic nor DRAM explains the distance \
         to the roof; the table above names the bottleneck.</p>\
         <figure><div class=\"scroll\" tabindex=\"0\">",
    );
    write!(html, "<svg viewBox=\"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}\" role=\"img\" aria-label=\"Roofline\">")?;
    grid(html, &scales)?;
    roofs(html, &scales, &report.limits)?;
    let mut occupied = Vec::new();
    for point in &points {
        let at = (scales.x(point.launch.intensity), scales.y(point.launch.ops_per_second));
        dot(html, point, at)?;
        let radius = radius(point.share);
        occupied.push((at.0 - radius, at.1 - radius, at.0 + radius, at.1 + radius));
    }
    for point in points.iter().filter(|point| point.share >= 0.02) {
        let at = (scales.x(point.launch.intensity), scales.y(point.launch.ops_per_second));
        label(html, point, at, &mut occupied)?;
    }
    html.push_str("</svg></div></figure>");
    let figures = ["core_unit.bf16_macs", "core_unit.bfp16_macs", "clock.hertz", "dram.bytes_per_second"];
    based_on(html, report, &figures)?;
    html.push_str("</section>\n");
    Ok(())
}

/// The points of all launches with operations, sorted by share of array time,
/// largest first.
fn points(report: &ModelReport) -> Vec<RooflinePoint<'_>> {
    let mut points: Vec<RooflinePoint<'_>> = Vec::new();
    for step in &report.steps {
        let array = step.array_seconds.max(f64::MIN_POSITIVE);
        for program in &step.programs {
            for launch in program.launches.iter().filter(|launch| launch.operations > 0) {
                let seconds = launch.seconds * program.runs as f64;
                let alike = |point: &&mut RooflinePoint<'_>| {
                    point.prefill == step.is_prefill()
                        && point.launch.kernel == launch.kernel
                        && point.launch.intensity == launch.intensity
                        && point.launch.seconds == launch.seconds
                };
                match points.iter_mut().find(alike) {
                    Some(point) => {
                        point.seconds += seconds;
                        point.share += seconds / array;
                        point.names.push(&launch.name);
                    }
                    None => points.push(RooflinePoint {
                        launch,
                        prefill: step.is_prefill(),
                        seconds,
                        share: seconds / array,
                        names: vec![&launch.name],
                    }),
                }
            }
        }
    }
    points.sort_by(|a, b| b.share.total_cmp(&a.share));
    points
}

fn scales(points: &[RooflinePoint<'_>], limits: &ArrayLimits) -> Option<RooflineScales> {
    let ranged = |of: &dyn Fn(&LaunchUse) -> f64, also: f64| {
        let values = points.iter().map(|point| of(point.launch)).filter(|value| *value > 0.0);
        let (low, high) = values.fold((also, also), |(low, high), value| (low.min(value), high.max(value)));
        (low.log10().floor(), (high * 1.2).log10().ceil())
    };
    let top = limits.bf16_ops_per_second.max(limits.bfp16_ops_per_second);
    let ridge = limits.bf16_ops_per_second / limits.dram_bytes_per_second;
    (!points.is_empty()).then(|| RooflineScales {
        x: ranged(&|launch| launch.intensity, ridge),
        y: ranged(&|launch| launch.ops_per_second, top),
    })
}

fn grid(html: &mut String, scales: &RooflineScales) -> fmt::Result {
    let (bottom, right) = (PLOT_HEIGHT - PLOT_BOTTOM, PLOT_WIDTH - PLOT_RIGHT);
    for decade in scales.x.0 as i32..=scales.x.1 as i32 {
        let (value, x) = (10f64.powi(decade), scales.x(10f64.powi(decade)));
        write!(html, "<path class=\"grid\" d=\"M{x:.1} {PLOT_TOP}V{bottom}\"/>")?;
        let text = if decade < 0 { format!("{value}") } else { format!("{value:.0}") };
        write!(html, "<text class=\"soft small mid\" x=\"{x:.1}\" y=\"{:.0}\">{text}</text>", bottom + 17.0)?;
    }
    for decade in scales.y.0 as i32..=scales.y.1 as i32 {
        let (value, y) = (10f64.powi(decade), scales.y(10f64.powi(decade)));
        write!(html, "<path class=\"grid\" d=\"M{PLOT_LEFT} {y:.1}H{right}\"/>")?;
        let text = amount(value).replace(".00", "").replace(".0", "");
        write!(
            html,
            "<text class=\"soft small end\" x=\"{:.0}\" y=\"{:.1}\">{text}op/s</text>",
            PLOT_LEFT - 8.0,
            y + 4.0
        )?;
    }
    write!(
        html,
        "<text class=\"soft mid\" x=\"{:.0}\" y=\"{:.0}\">operations per DRAM byte</text>",
        (PLOT_LEFT + right) / 2.0,
        PLOT_HEIGHT - 8.0
    )
}

fn roofs(html: &mut String, scales: &RooflineScales, limits: &ArrayLimits) -> fmt::Result {
    let right = 10f64.powf(scales.x.1);
    let slope = limits.dram_bytes_per_second;
    let mut roof = |ops: f64, class: &str, below: f64, text: &str| {
        // The line rises from where it enters the plot up to the ridge, then it is
        // level.
        let low = 10f64.powf(scales.x.0).max(10f64.powf(scales.y.0) / slope);
        let ridge = (ops / slope).clamp(low, right);
        let begin = (scales.x(low), scales.y(low * slope));
        let corner = (scales.x(ridge), scales.y(ridge * slope));
        write!(
            html,
            "<path class=\"{class}\" d=\"M{:.1} {:.1}L{:.1} {:.1}H{:.1}\"/>\
             <text class=\"soft end\" x=\"{:.1}\" y=\"{:.1}\">{text} {}op/s</text>",
            begin.0,
            begin.1,
            corner.0,
            corner.1,
            scales.x(right),
            scales.x(right) - 6.0,
            corner.1 + below,
            amount(ops)
        )
    };
    if limits.bfp16_ops_per_second > limits.bf16_ops_per_second {
        roof(limits.bfp16_ops_per_second, "dash", -7.0, "block floating point")?;
    }
    roof(limits.bf16_ops_per_second, "strong", 17.0, "bf16")?;
    let middle = 10f64.powf(scales.x.0 + 0.35 * ((limits.bf16_ops_per_second / slope).log10() - scales.x.0));
    let (x, y) = (scales.x(middle), scales.y(middle * slope));
    write!(
        html,
        "<text class=\"soft end\" x=\"{:.1}\" y=\"{:.1}\">DRAM {}B/s</text>",
        x - 12.0,
        y - 6.0,
        amount(slope)
    )
}

fn radius(share: f64) -> f64 {
    4.0 + 22.0 * share.clamp(0.0, 1.0).sqrt()
}

fn dot(html: &mut String, point: &RooflinePoint<'_>, (x, y): (f64, f64)) -> fmt::Result {
    let RooflinePoint { launch, prefill, seconds, share, names } = point;
    let style = colour(&launch.kernel);
    let fill = if *prefill { "0.75" } else { "0.08" };
    write!(
        html,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\" style=\"fill:var(--{style});fill-opacity:{fill};\
         stroke:var(--{style});stroke-width:2\"><title>{}: {} in the step, {} of the array time; {}op/s at {} \
         operations per byte, {} of the roof; bound by {}</title></circle>",
        radius(*share),
        Escaped(&names.join(", ")),
        millis(*seconds),
        percent(*share),
        amount(launch.ops_per_second),
        number(launch.intensity),
        percent(launch.of_roof),
        launch.bound.name()
    )
}

/// Writes a label at the first free position beside its point; leaves it out if
/// none is free.
fn label(
    html: &mut String,
    point: &RooflinePoint<'_>,
    (x, y): (f64, f64),
    occupied: &mut Vec<(f64, f64, f64, f64)>,
) -> fmt::Result {
    let text = match point.names.as_slice() {
        [one] => (*one).to_owned(),
        [first, .., last] if point.names.len() > 2 => format!("{first} … {last}"),
        names => names.join(", "),
    };
    let (radius, wide) = (radius(point.share), text.chars().count() as f64 * 6.6);
    let positions = [
        (x + radius + 5.0, y + 4.0),
        (x - radius - 5.0 - wide, y + 4.0),
        (x - wide / 2.0, y + radius + 14.0),
        (x - wide / 2.0, y - radius - 6.0),
        (x + radius + 5.0, y + 20.0),
        (x - radius - 5.0 - wide, y + 20.0),
    ];
    let free = |&&(left, base): &&(f64, f64)| {
        let (right, top, bottom) = (left + wide, base - 11.0, base + 3.0);
        let inside = left > PLOT_LEFT
            && right < PLOT_WIDTH - 4.0
            && bottom < PLOT_HEIGHT - PLOT_BOTTOM
            && top > PLOT_TOP;
        inside && occupied.iter().all(|&(l, t, r, b)| right < l || left > r || bottom < t || top > b)
    };
    let Some(&(left, base)) = positions.iter().find(free) else { return Ok(()) };
    occupied.push((left, base - 11.0, left + wide, base + 3.0));
    write!(html, "<text x=\"{left:.1}\" y=\"{base:.1}\">{}</text>", Escaped(&text))
}
