//! The roofline: operations in a second over operations for each byte of DRAM,
//! both on logarithmic scales, below what the array and DRAM allow.

use std::fmt::{self, Write};

use super::{Escaped, Report, amount, colour, millis, percent, rests};
use crate::report::Limits;
use crate::report::step::LaunchUse;

/// Sizes in the units of the drawing.
const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;

/// Decades that are drawn.
struct Scales {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scales {
    fn x(&self, value: f64) -> f64 {
        LEFT + (value.log10() - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value.log10() - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Launches alike, as one point.
struct Point<'a> {
    launch: &'a LaunchUse,
    prefill: bool,
    /// Seconds in the step, all runs.
    seconds: f64,
    share: f64,
    names: Vec<&'a str>,
}

pub(super) fn section(html: &mut String, report: &Report) -> fmt::Result {
    let points = points(report);
    let Some(scales) = scales(&points, &report.limits) else { return Ok(()) };
    html.push_str(
        "<section><h2>Roofline</h2>\
         <p>Each launch by the operations that count for each byte of DRAM that it moved. Filled points are of \
         prefill, hollow ones of a token; the larger, the more of the step&#39;s array time. The distance to the \
         roof is what neither the array&#39;s arithmetic nor DRAM explains; the table above names what does.</p>\
         <figure><div class=\"scroll\">",
    );
    write!(html, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Roofline\">")?;
    grid(html, &scales)?;
    roofs(html, &scales, &report.limits)?;
    let mut taken = Vec::new();
    for point in &points {
        let at = (scales.x(point.launch.intensity), scales.y(point.launch.ops_per_second));
        dot(html, point, at)?;
        let radius = radius(point.share);
        taken.push((at.0 - radius, at.1 - radius, at.0 + radius, at.1 + radius));
    }
    for point in points.iter().filter(|point| point.share >= 0.02) {
        let at = (scales.x(point.launch.intensity), scales.y(point.launch.ops_per_second));
        label(html, point, at, &mut taken)?;
    }
    html.push_str("</svg></div></figure>");
    let figures = ["core_unit.bf16_macs", "core_unit.bfp16_macs", "clock.hertz", "dram.bytes_per_second"];
    rests(html, report, &figures)?;
    html.push_str("</section>\n");
    Ok(())
}

/// The launches of all steps that compute, those alike together, the longest first.
fn points(report: &Report) -> Vec<Point<'_>> {
    let mut points: Vec<Point<'_>> = Vec::new();
    for step in &report.steps {
        let array = step.array_seconds.max(f64::MIN_POSITIVE);
        for program in &step.programs {
            for launch in program.launches.iter().filter(|launch| launch.operations > 0) {
                let seconds = launch.seconds * program.runs as f64;
                let alike = |point: &&mut Point<'_>| {
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
                    None => points.push(Point {
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

fn scales(points: &[Point<'_>], limits: &Limits) -> Option<Scales> {
    let ranged = |of: &dyn Fn(&LaunchUse) -> f64, also: f64| {
        let values = points.iter().map(|point| of(point.launch)).filter(|value| *value > 0.0);
        let (low, high) = values.fold((also, also), |(low, high), value| (low.min(value), high.max(value)));
        (low.log10().floor(), (high * 1.2).log10().ceil())
    };
    let top = limits.bf16_ops_per_second.max(limits.bfp16_ops_per_second);
    let ridge = limits.bf16_ops_per_second / limits.dram_bytes_per_second;
    (!points.is_empty()).then(|| Scales {
        x: ranged(&|launch| launch.intensity, ridge),
        y: ranged(&|launch| launch.ops_per_second, top),
    })
}

fn grid(html: &mut String, scales: &Scales) -> fmt::Result {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for decade in scales.x.0 as i32..=scales.x.1 as i32 {
        let (value, x) = (10f64.powi(decade), scales.x(10f64.powi(decade)));
        write!(html, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>")?;
        let text = if decade < 0 { format!("{value}") } else { format!("{value:.0}") };
        write!(html, "<text class=\"soft small mid\" x=\"{x:.1}\" y=\"{:.0}\">{text}</text>", bottom + 17.0)?;
    }
    for decade in scales.y.0 as i32..=scales.y.1 as i32 {
        let (value, y) = (10f64.powi(decade), scales.y(10f64.powi(decade)));
        write!(html, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>")?;
        let text = amount(value).replace(".00", "").replace(".0", "");
        write!(
            html,
            "<text class=\"soft small end\" x=\"{:.0}\" y=\"{:.1}\">{text}op/s</text>",
            LEFT - 8.0,
            y + 4.0
        )?;
    }
    write!(
        html,
        "<text class=\"soft mid\" x=\"{:.0}\" y=\"{:.0}\">operations for each byte of DRAM</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 8.0
    )
}

fn roofs(html: &mut String, scales: &Scales, limits: &Limits) -> fmt::Result {
    let right = 10f64.powf(scales.x.1);
    let slope = limits.dram_bytes_per_second;
    let mut roof = |ops: f64, class: &str, below: f64, text: &str| {
        // From where the slope enters the drawing, up to the ridge, then level.
        let low = 10f64.powf(scales.x.0).max(10f64.powf(scales.y.0) / slope);
        let ridge = (ops / slope).clamp(low, right);
        let begin = (scales.x(low), scales.y(low * slope));
        let turn = (scales.x(ridge), scales.y(ridge * slope));
        write!(
            html,
            "<path class=\"{class}\" d=\"M{:.1} {:.1}L{:.1} {:.1}H{:.1}\"/>\
             <text class=\"soft end\" x=\"{:.1}\" y=\"{:.1}\">{text} {}op/s</text>",
            begin.0,
            begin.1,
            turn.0,
            turn.1,
            scales.x(right),
            scales.x(right) - 6.0,
            turn.1 + below,
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

fn dot(html: &mut String, point: &Point<'_>, (x, y): (f64, f64)) -> fmt::Result {
    let Point { launch, prefill, seconds, share, names } = point;
    let style = colour(&launch.kernel);
    let fill = if *prefill { "0.75" } else { "0.08" };
    write!(
        html,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\" style=\"fill:var(--{style});fill-opacity:{fill};\
         stroke:var(--{style});stroke-width:2\"><title>{}: {} in the step, {} of the array time; {}op/s at {} \
         operations a byte, {} of the roof; bound by {}</title></circle>",
        radius(*share),
        Escaped(&names.join(", ")),
        millis(*seconds),
        percent(*share),
        amount(launch.ops_per_second),
        super::number(launch.intensity),
        percent(launch.of_roof),
        launch.bound.name()
    )
}

/// The nearest place for a label where nothing stands yet; none if there is none.
fn label(
    html: &mut String,
    point: &Point<'_>,
    (x, y): (f64, f64),
    taken: &mut Vec<(f64, f64, f64, f64)>,
) -> fmt::Result {
    let text = match point.names.as_slice() {
        [one] => (*one).to_owned(),
        [first, .., last] if point.names.len() > 2 => format!("{first} … {last}"),
        names => names.join(", "),
    };
    let (radius, wide) = (radius(point.share), text.chars().count() as f64 * 6.6);
    let places = [
        (x + radius + 5.0, y + 4.0),
        (x - radius - 5.0 - wide, y + 4.0),
        (x - wide / 2.0, y + radius + 14.0),
        (x - wide / 2.0, y - radius - 6.0),
        (x + radius + 5.0, y + 20.0),
        (x - radius - 5.0 - wide, y + 20.0),
    ];
    let free = |&&(left, base): &&(f64, f64)| {
        let (right, top, bottom) = (left + wide, base - 11.0, base + 3.0);
        let inside = left > LEFT && right < WIDTH - 4.0 && bottom < HEIGHT - BOTTOM && top > TOP;
        inside && taken.iter().all(|&(l, t, r, b)| right < l || left > r || bottom < t || top > b)
    };
    let Some(&(left, base)) = places.iter().find(free) else { return Ok(()) };
    taken.push((left, base - 11.0, left + wide, base + 3.0));
    write!(html, "<text x=\"{left:.1}\" y=\"{base:.1}\">{}</text>", Escaped(&text))
}
