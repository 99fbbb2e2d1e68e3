//! Draws the array: how busy each tile is in a step.

use std::fmt::{self, Write};

use girih_npu::form::schedule::{Tile, TileKind};

use super::html::{Escaped, based_on};
use crate::report::model::ModelReport;
use crate::report::quantity::{amount, percent};
use crate::report::step::{StepReport, TileUse};

/// Sizes in drawing units.
const TILE_SIDE: f64 = 52.0;
const TILE_GAP: f64 = 7.0;
const ARRAY_LEFT: f64 = 62.0;
const ARRAY_TOP: f64 = 24.0;

pub(super) fn section(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>The array</h2>\
         <p>Each column has compute tiles (cores) above a memory tile (L2) and a shim, which connects to DRAM. \
         Numbers are shares of the step&#39;s array time: a core&#39;s time within kernel calls, or the time that \
         the busiest channel of a memory tile or a shim moves words. DRAM shows its share of the bandwidth in \
         long runs.</p>\
         <div class=\"legend\"><span><span class=\"key\" style=\"background:var(--heat)\"></span>cores compute</span>\
         <span><span class=\"key\" style=\"background:var(--flow)\"></span>channels move</span></div>\
         <div class=\"pair\">\n",
    );
    for step in &report.steps {
        picture(html, report, step)?;
    }
    html.push_str("</div>");
    based_on(
        html,
        report,
        &["clock.hertz", "stream.bytes_per_cycle", "dram.bytes_per_second", "dram.run_bytes"],
    )?;
    html.push_str("</section>\n");
    Ok(())
}

fn picture(html: &mut String, report: &ModelReport, step: &StepReport) -> fmt::Result {
    let (rows, columns) = report.grid;
    let pitch = TILE_SIDE + TILE_GAP;
    let (width, bottom) = (ARRAY_LEFT + f64::from(columns) * pitch, ARRAY_TOP + f64::from(rows) * pitch);
    let title = step.title();
    write!(
        html,
        "<figure class=\"array\"><h3 style=\"margin-top:0\">{title}</h3>\
         <svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"Use of the tiles: {title}\">",
        width + 4.0,
        bottom + 50.0
    )?;
    for column in 0..columns {
        let x = ARRAY_LEFT + f64::from(column) * pitch + TILE_SIDE / 2.0;
        write!(html, "<path class=\"wire\" d=\"M{x} {ARRAY_TOP}V{:.0}\"/>", bottom + 8.0)?;
        write!(
            html,
            "<text class=\"soft small mid\" x=\"{x}\" y=\"{:.0}\">{column}</text>",
            ARRAY_TOP - 8.0
        )?;
    }
    for row in 0..rows {
        let kind = match Tile::new(0, row as u8).kind() {
            TileKind::Shim => "shim".to_owned(),
            TileKind::Memory => "memory".to_owned(),
            TileKind::Compute => format!("core {row}"),
        };
        let y = ARRAY_TOP + f64::from(rows - 1 - row) * pitch + TILE_SIDE / 2.0 + 4.0;
        write!(html, "<text class=\"soft end\" x=\"{:.0}\" y=\"{y}\">{kind}</text>", ARRAY_LEFT - 10.0)?;
    }
    for tile in &step.tiles {
        cell(html, tile, rows)?;
    }
    dram(html, report, step, (width - TILE_GAP, bottom + 8.0))?;
    html.push_str("</svg></figure>\n");
    Ok(())
}

fn cell(html: &mut String, tile: &TileUse, rows: u32) -> fmt::Result {
    let TileUse { column, row, busy, waits, bytes_in, bytes_out } = *tile;
    let pitch = TILE_SIDE + TILE_GAP;
    let x = ARRAY_LEFT + f64::from(column) * pitch;
    let y = ARRAY_TOP + f64::from(rows - 1 - u32::from(row)) * pitch;
    let compute = Tile::new(column, row).kind() == TileKind::Compute;
    let class = if compute { "heat" } else { "flow" };
    let detail = if compute {
        format!("busy {}, waiting for locks or the cascade {}", percent(busy), percent(waits))
    } else {
        format!("busiest channel moves {} of the time", percent(busy))
    };
    write!(
        html,
        "<g><title>tile {column},{row}: {detail}; {}B in, {}B out</title>\
         <rect class=\"cell\" x=\"{x}\" y=\"{y}\" width=\"{TILE_SIDE}\" height=\"{TILE_SIDE}\" rx=\"6\"/>\
         <rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{TILE_SIDE}\" height=\"{TILE_SIDE}\" rx=\"6\" opacity=\"{:.3}\"/>",
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
        x + TILE_SIDE / 2.0,
        y + TILE_SIDE / 2.0 + 4.0,
        Escaped(&text)
    )
}

/// Draws DRAM as a bar below the shims.
fn dram(html: &mut String, report: &ModelReport, step: &StepReport, (right, y): (f64, f64)) -> fmt::Result {
    let bytes = (step.dram_read + step.dram_written) as f64;
    let rate = bytes / step.array_seconds.max(f64::MIN_POSITIVE);
    let share = (rate / report.limits.dram_bytes_per_second).clamp(0.0, 1.0);
    let (width, tall) = (right - ARRAY_LEFT, 26.0);
    write!(
        html,
        "<rect class=\"cell\" x=\"{ARRAY_LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{tall}\" rx=\"6\"/>"
    )?;
    write!(
        html,
        "<rect class=\"flow\" x=\"{ARRAY_LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{tall}\" rx=\"6\" opacity=\"0.75\"/>",
        width * share
    )?;
    let middle = y + tall / 2.0 + 4.0;
    write!(html, "<text class=\"soft end\" x=\"{:.0}\" y=\"{middle}\">DRAM</text>", ARRAY_LEFT - 10.0)?;
    let (at, class) =
        if share > 0.45 { (ARRAY_LEFT + 10.0, "on") } else { (ARRAY_LEFT + width * share + 10.0, "") };
    write!(
        html,
        "<text class=\"{class}\" x=\"{at:.0}\" y=\"{middle}\">{}, {}B/s</text>",
        Escaped(&percent(share)),
        amount(rate)
    )
}
