//! Writes the tables of the page: launches, host, traffic, kernel entries, energy,
//! published times, and figures.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::html::{Escaped, based_on, colour};
use crate::report::compare::PublishedComparison;
use crate::report::figures::SourcedFigure;
use crate::report::model::ModelReport;
use crate::report::quantity::{amount, millis, number, percent};
use crate::report::spans::StepSpanKind;
use crate::report::step::{LaunchUse, ProgramUse, StepReport, alike};

fn head(html: &mut String, columns: &[&str]) -> fmt::Result {
    html.push_str("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
    columns.iter().try_for_each(|column| write!(html, "<th>{column}</th>"))?;
    html.push_str("</tr></thead><tbody>\n");
    Ok(())
}

fn row(html: &mut String, class: &str, cells: &[String]) -> fmt::Result {
    write!(html, "<tr class=\"{class}\">")?;
    cells.iter().try_for_each(|cell| write!(html, "<td>{cell}</td>"))?;
    html.push_str("</tr>\n");
    Ok(())
}

fn end(html: &mut String) {
    html.push_str("</tbody></table></div>\n");
}

/// A share as a bar with its number.
fn bar(share: f64) -> String {
    let (wide, text) = (100.0 * share.clamp(0.0, 1.0), percent(share));
    format!(
        "<span class=\"bar\"><i style=\"width:{wide:.1}%\"></i></span><span class=\"part\">{}</span>",
        Escaped(&text)
    )
}

fn shown(share: f64) -> String {
    Escaped(&percent(share)).to_string()
}

pub(super) fn kernels(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>Launches</h2>\
         <p>Each launch of each program, once. <em>Busy</em> is the share of its time that the cores in use spend \
         within calls, <em>waits</em> the share spent waiting for locks and the cascade, both averaged over cores. \
         <em>Of the roof</em> is the share of the roofline at its operations per byte. <em>Bound</em> names the \
         busiest part; <em>waiting</em> means that no part is busy for 70 % of the time.</p>\n",
    );
    for step in &report.steps {
        write!(html, "<h3>{}</h3>", step.title())?;
        head(
            html,
            &[
                "launch",
                "entry",
                "cores",
                "time",
                "of the step",
                "busy",
                "waits",
                "op/s",
                "DRAM",
                "op/B",
                "of the roof",
                "bound",
            ],
        )?;
        for program in &step.programs {
            of_program(html, step, program)?;
        }
        end(html);
    }
    html.push_str("</section>\n");
    Ok(())
}

fn of_program(html: &mut String, step: &StepReport, program: &ProgramUse) -> fmt::Result {
    let array = step.array_seconds.max(f64::MIN_POSITIVE);
    let runs = program.runs as f64;
    let overhead = program.dispatch_seconds + program.configure_seconds;
    writeln!(
        html,
        "<tr class=\"program\"><td colspan=\"3\">{}, {} a step</td><td>{}</td><td>{}</td>\
         <td colspan=\"7\" class=\"left\" style=\"font-weight:400\">dispatch {}, configuration {}: {} of its time</td></tr>",
        Escaped(&program.name),
        times(program.runs),
        millis(program.seconds),
        bar(program.step_seconds / array),
        millis(program.dispatch_seconds),
        millis(program.configure_seconds),
        shown(overhead / program.seconds.max(f64::MIN_POSITIVE)),
    )?;
    for group in program.launches.chunk_by(alike) {
        let launch = &group[0];
        let label = match group {
            [_] => Escaped(&launch.name).to_string(),
            [first, .., last] => {
                format!("{} … {} ({} identical)", Escaped(&first.name), Escaped(&last.name), group.len())
            }
            [] => unreachable!("a chunk has an element"),
        };
        let share = launch.seconds * group.len() as f64 * runs / array;
        row(html, "", &cells(launch, label, share))?;
    }
    Ok(())
}

fn times(runs: u64) -> String {
    if runs == 1 { "once".to_owned() } else { format!("{runs} times") }
}

fn cells(launch: &LaunchUse, label: String, share: f64) -> Vec<String> {
    let key = colour(&launch.kernel);
    let tag = format!(
        "<span class=\"tag\" title=\"cores {}, DRAM {}, streams {}, control {}\">{}</span>",
        percent(launch.shares.cores),
        percent(launch.shares.dram),
        percent(launch.shares.streams),
        percent(launch.shares.control),
        launch.bound.name()
    );
    vec![
        format!("<span class=\"key\" style=\"background:var(--{key})\"></span>{label}"),
        format!("<code>{}</code>", Escaped(&launch.entry)),
        launch.cores.to_string(),
        millis(launch.seconds),
        bar(share),
        shown(launch.busy),
        shown(launch.waits),
        amount(launch.ops_per_second),
        format!("{}B/s", amount(launch.bytes_per_second)),
        number(launch.intensity),
        shown(launch.of_roof),
        tag,
    ]
}

/// Writes the table of host work.
pub(super) fn host(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>The host</h2>\
         <p>Host work is not simulated: operations and bytes are counted and divided by the host&#39;s rates, which \
         are derived or guessed from one published profile. Array time does not include it.</p>\n",
    );
    for step in &report.steps {
        let mut kinds: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for span in step.spans.iter().filter(|span| span.kind != StepSpanKind::Array) {
            let kind = match span.kind {
                StepSpanKind::Sync if span.name.starts_with("read") => "sync: reads from the array",
                StepSpanKind::Sync => "sync: writes to the array",
                _ if span.name.starts_with("operands") => "operands of programs and command lists",
                _ => span.name.split(' ').next().unwrap_or_default(),
            };
            let entry = kinds.entry(kind).or_default();
            *entry = (entry.0 + 1, entry.1 + span.seconds);
        }
        write!(html, "<h3>{}</h3>", step.title())?;
        head(html, &["work", "times", "time", "of the step"])?;
        for (kind, (count, seconds)) in kinds {
            let share = seconds / step.seconds.max(f64::MIN_POSITIVE);
            row(html, "", &[Escaped(kind).to_string(), count.to_string(), millis(seconds), bar(share)])?;
        }
        let total = step.host_seconds + step.sync_seconds;
        let share = total / step.seconds.max(f64::MIN_POSITIVE);
        row(html, "sum", &["all".to_owned(), String::new(), millis(total), bar(share)])?;
        end(html);
    }
    let figures = ["host.flops", "host.bytes_per_second", "host.sync_bytes_per_second", "host.call_us"];
    based_on(html, report, &figures)?;
    html.push_str("</section>\n");
    Ok(())
}

pub(super) fn traffic(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str("<section><h2>Traffic</h2>\n");
    let mut columns = vec!["bytes"];
    let names: Vec<String> = report.steps.iter().map(StepReport::title).collect();
    columns.extend(names.iter().map(String::as_str));
    head(html, &columns)?;
    let mut line = |text: &str, of: &dyn Fn(&StepReport) -> String| {
        let cells = report.steps.iter().map(of);
        row(html, "", &[text.to_owned()].into_iter().chain(cells).collect::<Vec<_>>())
    };
    let bytes = |count: u64| format!("{}B", amount(count as f64));
    line("DRAM to array", &|step| bytes(step.dram_read))?;
    line("array to DRAM", &|step| bytes(step.dram_written))?;
    line("share of DRAM bandwidth in long runs", &|step| {
        let rate = (step.dram_read + step.dram_written) as f64 / step.array_seconds.max(f64::MIN_POSITIVE);
        bar(rate / report.limits.dram_bytes_per_second)
    })?;
    line("over all streams", &|step| {
        let each = |program: &ProgramUse| {
            program.runs * program.launches.iter().map(|launch| launch.streamed).sum::<u64>()
        };
        bytes(step.programs.iter().map(each).sum())
    })?;
    line("host to array", &|step| bytes(step.host_written))?;
    line("array to host", &|step| bytes(step.host_read))?;
    line("weights, written once", &|step| bytes(step.preload_bytes))?;
    end(html);
    for step in &report.steps {
        channels(html, step)?;
    }
    html.push_str("</section>\n");
    Ok(())
}

/// Writes the busiest channels of each launch.
fn channels(html: &mut String, step: &StepReport) -> fmt::Result {
    const SHOWN: usize = 3;
    write!(html, "<details><summary>Channels: {}</summary>", step.title())?;
    head(html, &["launch", "busiest channels", "bytes", "transfers", "moving"])?;
    for launch in step.programs.iter().flat_map(|program| &program.launches) {
        let mut channels: Vec<_> = launch.channels.iter().collect();
        channels.sort_by(|a, b| b.moving.total_cmp(&a.moving));
        for (at, channel) in channels.iter().take(SHOWN).enumerate() {
            let launch = if at == 0 { Escaped(&launch.name).to_string() } else { String::new() };
            let bytes = format!("{}B", amount(channel.bytes as f64));
            let code = format!("<code>{}</code>", Escaped(&channel.channel));
            row(html, "", &[launch, code, bytes, channel.moves.to_string(), bar(channel.moving)])?;
        }
    }
    end(html);
    html.push_str("</details>\n");
    Ok(())
}

pub(super) fn entries(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>Kernel entries</h2><p>Calls of all cores together. The cycles of an entry are fitted once \
         for all shapes; the sources of its figures name the measurements.</p>\n",
    );
    for step in &report.steps {
        write!(html, "<h3>{}</h3>", step.title())?;
        head(html, &["entry", "calls", "core time", "of all calls", "MAC/s per core", "its cycles"])?;
        let all: f64 = step.entries.iter().map(|entry| entry.core_seconds).sum();
        for entry in &step.entries {
            let rate = entry.macs as f64 / entry.core_seconds.max(f64::MIN_POSITIVE);
            row(
                html,
                "",
                &[
                    format!("<code>{}</code>", Escaped(&entry.entry)),
                    entry.calls.to_string(),
                    millis(entry.core_seconds),
                    bar(entry.core_seconds / all.max(f64::MIN_POSITIVE)),
                    if entry.macs == 0 { "–".to_owned() } else { amount(rate) },
                    cycles(report, &entry.entry),
                ],
            )?;
        }
        end(html);
    }
    html.push_str("</section>\n");
    Ok(())
}

/// The loops of an entry, with the grades of their cycles.
fn cycles(report: &ModelReport, entry: &str) -> String {
    let of_loop = |path: &str| {
        let name = path.strip_prefix(entry)?.strip_prefix('.')?;
        (!matches!(name, "program")).then(|| name.to_owned())
    };
    let tag = |figure: &SourcedFigure| {
        let (name, grade) = (of_loop(&figure.path)?, Escaped(&figure.grade).to_string());
        let source = Escaped(&figure.source);
        Some(format!("{} <span class=\"tag {grade}\" title=\"{source}\">{grade}</span>", Escaped(&name)))
    };
    report.figures.iter().filter_map(tag).collect::<Vec<_>>().join(" ")
}

pub(super) fn energy(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>Energy (estimate)</h2>\
         <p>The NPU&#39;s rail, without DRAM and host: a constant power while the array works, and an energy for each layer. \
         Both are fitted to the power of three Llama models that FastFlowLM publishes.</p>\n",
    );
    head(html, &["", "power", "constant", "layers", "energy", "per token"])?;
    for step in &report.steps {
        let energy = &step.energy;
        let joules = energy.joules();
        let seconds = step.array_seconds;
        row(
            html,
            "",
            &[
                step.title(),
                if seconds > 0.0 { format!("{:.2} W", joules / seconds) } else { "–".to_owned() },
                joules_text(energy.static_joules),
                joules_text(energy.layer_joules),
                joules_text(joules),
                joules_text(joules / f64::from(step.rows)),
            ],
        )?;
    }
    end(html);
    based_on(html, report, &["power.static_watts", "power.joules_per_layer"])?;
    html.push_str("</section>\n");
    Ok(())
}

fn joules_text(joules: f64) -> String {
    if joules >= 1.0 { format!("{} J", number(joules)) } else { format!("{} mJ", number(joules * 1e3)) }
}

/// Writes published times, and simulated times of the published mapping and of
/// this one.
pub(super) fn published(html: &mut String, compared: &PublishedComparison) -> fmt::Result {
    html.push_str(
        "<section><h2>Published times</h2>\
         <p>Measured times of the programs of mlir-air&#39;s Llama-3.2-1B on Strix, simulated times with the same \
         tiles, and simulated times of this mapping, whose tiles girih chose. Host time is not included.</p>\n",
    );
    head(html, &["program", "published", "simulated, same tiles", "error", "this mapping"])?;
    for program in &compared.rows {
        let mapped = program.mapped_seconds.map_or("–".to_owned(), millis);
        row(
            html,
            "",
            &[
                format!("{} {}", Escaped(&program.phase), Escaped(&program.program)),
                millis(program.published_seconds),
                millis(program.simulated_seconds),
                format!("{:+.1} %", 100.0 * (program.simulated_seconds / program.published_seconds - 1.0)),
                mapped,
            ],
        )?;
    }
    for pass in &compared.passes {
        let (low, high) = pass.published_seconds;
        let middle = (low + high) / 2.0;
        row(
            html,
            "sum",
            &[
                format!("{}, array time end to end", Escaped(&pass.phase)),
                format!("{} – {}", millis(low), millis(high)),
                millis(pass.simulated_seconds),
                format!("{:+.1} %", 100.0 * (pass.simulated_seconds / middle - 1.0)),
                pass.mapped_seconds.map_or("–".to_owned(), millis),
            ],
        )?;
    }
    end(html);
    if !compared.host.is_empty() {
        html.push_str("<h3>Published host time</h3>");
        head(html, &["phase", "work", "published, total"])?;
        for line in &compared.host {
            let work = Escaped(&line.work).to_string();
            row(html, "", &[Escaped(&line.phase).to_string(), work, millis(line.seconds)])?;
        }
        end(html);
    }
    html.push_str(
        "<h3>Published figures that contradict each other; no parameter was adjusted to them</h3><ul>",
    );
    compared.contradictions.iter().try_for_each(|text| write!(html, "<li>{}</li>", Escaped(text)))?;
    html.push_str("</ul></section>\n");
    Ok(())
}

/// Writes every figure with its grade and source.
pub(super) fn figures(html: &mut String, report: &ModelReport) -> fmt::Result {
    html.push_str(
        "<section><h2>Figures and sources</h2>\
         <p>Grades: <span class=\"tag measured\">measured</span> on hardware by the source, \
         <span class=\"tag documented\">documented</span> in a specification or in source code, \
         <span class=\"tag derived\">derived</span> by arithmetic, fits included, \
         <span class=\"tag guessed\">guessed</span> with the reason given. All times are simulated from these \
         figures; shares, rates and energies are computed from times. Not modelled: stream FIFOs, bank conflicts \
         of cores and DMA, DRAM refresh.</p><details><summary>",
    );
    write!(html, "All {} figures of {}</summary>", report.figures.len(), Escaped(&report.target))?;
    head(html, &["figure", "value", "grade", "source"])?;
    for figure in &report.figures {
        let (path, value) = (Escaped(&figure.path), Escaped(&figure.value));
        let (grade, source) = (Escaped(&figure.grade), Escaped(&figure.source));
        writeln!(
            html,
            "<tr><td><code>{path}</code></td><td>{value}</td><td><span class=\"tag {grade}\">{grade}</span></td>\
             <td class=\"wide\">{source}</td></tr>"
        )?;
    }
    end(html);
    html.push_str("</details></section>\n");
    Ok(())
}
