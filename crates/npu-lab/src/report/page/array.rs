//! The array drawn with its tiles: how busy each of them is in a step.

use std::fmt::{self, Write};

use super::{Escaped, Report, StepReport, amount, name, percent, rests};
use crate::report::step::TileUse;
use girih_npu::form::schedule::{Tile, TileKind};

/// Sizes in the units of the drawing.
const CELL: f64 = 52.0;
const GAP: f64 = 7.0;
const LEFT: f64 = 62.0;
const TOP: f64 = 24.0;

pub(super) fn section(html: &mut String, report: &Report) -> fmt::Result {
    html.push_str(
        "<section><h2>The array</h2>\
         <p>Columns of compute tiles (cores) above a memory tile (L2) and a shim, the door to DRAM. A number is \
         the share of the step&#39;s array time: of a core, within kernel calls; of a memory tile or a shim, with \
         its busiest channel moving words; of DRAM, of the bytes that it could have moved in long runs.</p>\
         <div class=\"legend\"><span><span class=\"key\" style=\"background:var(--heat)\"></span>cores compute</span>\
         <span><span class=\"key\" style=\"background:var(--flow)\"></span>channels move</span></div>\
         <div class=\"pair\">\n",
    );
    for step in &report.steps {
        picture(html, report, step)?;
    }
    html.push_str("</div>");
    rests(
        html,
        report,
        &["clock.hertz", "stream.bytes_per_cycle", "dram.bytes_per_second", "dram.run_bytes"],
    )?;
    html.push_str("</section>\n");
    Ok(())
}

fn picture(html: &mut String, report: &Report, step: &StepReport) -> fmt::Result {
    let (rows, columns) = report.grid;
    let pitch = CELL + GAP;
    let (width, bottom) = (LEFT + f64::from(columns) * pitch, TOP + f64::from(rows) * pitch);
    let title = name(step);
    write!(
        html,
        "<figure class=\"array\"><h3 style=\"margin-top:0\">{title}</h3>\
         <svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"Use of the tiles: {title}\">",
        width + 4.0,
        bottom + 50.0
    )?;
    for column in 0..columns {
        let x = LEFT + f64::from(column) * pitch + CELL / 2.0;
        write!(html, "<path class=\"wire\" d=\"M{x} {TOP}V{:.0}\"/>", bottom + 8.0)?;
        write!(html, "<text class=\"soft small mid\" x=\"{x}\" y=\"{:.0}\">{column}</text>", TOP - 8.0)?;
    }
    for row in 0..rows {
        let kind = match Tile::new(0, row as u8).kind() {
            TileKind::Shim => "shim".to_owned(),
            TileKind::Memory => "memory".to_owned(),
            TileKind::Compute => format!("core {row}"),
        };
        let y = TOP + f64::from(rows - 1 - row) * pitch + CELL / 2.0 + 4.0;
        write!(html, "<text class=\"soft end\" x=\"{:.0}\" y=\"{y}\">{kind}</text>", LEFT - 10.0)?;
    }
    for tile in &step.tiles {
        cell(html, tile, rows)?;
    }
    dram(html, report, step, (width - GAP, bottom + 8.0))?;
    html.push_str("</svg></figure>\n");
    Ok(())
}

fn cell(html: &mut String, tile: &TileUse, rows: u32) -> fmt::Result {
    let TileUse { column, row, busy, waits, bytes_in, bytes_out } = *tile;
    let pitch = CELL + GAP;
    let x = LEFT + f64::from(column) * pitch;
    let y = TOP + f64::from(rows - 1 - u32::from(row)) * pitch;
    let compute = Tile::new(column, row).kind() == TileKind::Compute;
    let class = if compute { "heat" } else { "flow" };
    let told = if compute {
        format!("busy {}, waiting for locks or the cascade {}", percent(busy), percent(waits))
    } else {
        format!("busiest channel moves {} of the time", percent(busy))
    };
    write!(
        html,
        "<g><title>tile {column},{row}: {told}; {}B in, {}B out</title>\
         <rect class=\"cell\" x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" rx=\"6\"/>\
         <rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{CELL}\" height=\"{CELL}\" rx=\"6\" opacity=\"{:.3}\"/>",
        amount(bytes_in as f64),
        amount(bytes_out as f64),
        busy.clamp(0.0, 1.0)
    )?;
    let tone = match busy {
        b if b > 0.7 => "on",
        b if b > 0.0 => "",
        _ => "soft",
    };
    let text = percent(busy);
    write!(
        html,
        "<text class=\"mid {tone}\" x=\"{:.0}\" y=\"{:.0}\">{}</text></g>",
        x + CELL / 2.0,
        y + CELL / 2.0 + 4.0,
        Escaped(&text)
    )
}

/// DRAM as a bar below the shims.
fn dram(html: &mut String, report: &Report, step: &StepReport, (right, y): (f64, f64)) -> fmt::Result {
    let bytes = (step.dram_read + step.dram_written) as f64;
    let rate = bytes / step.array_seconds.max(f64::MIN_POSITIVE);
    let share = (rate / report.limits.dram_bytes_per_second).clamp(0.0, 1.0);
    let (width, tall) = (right - LEFT, 26.0);
    write!(
        html,
        "<rect class=\"cell\" x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{tall}\" rx=\"6\"/>"
    )?;
    write!(
        html,
        "<rect class=\"flow\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{tall}\" rx=\"6\" opacity=\"0.75\"/>",
        width * share
    )?;
    let middle = y + tall / 2.0 + 4.0;
    write!(html, "<text class=\"soft end\" x=\"{:.0}\" y=\"{middle}\">DRAM</text>", LEFT - 10.0)?;
    let (at, class) = if share > 0.45 { (LEFT + 10.0, "on") } else { (LEFT + width * share + 10.0, "") };
    write!(
        html,
        "<text class=\"{class}\" x=\"{at:.0}\" y=\"{middle}\">{}, {}B/s</text>",
        Escaped(&percent(share)),
        amount(rate)
    )
}
