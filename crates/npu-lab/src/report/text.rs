//! Prints the report as text for a terminal.

use std::fmt;

use super::compare::PublishedComparison;
use super::figures::grades;
use super::model::ModelReport;
use super::step::{LaunchUse, ProgramUse, StepReport, alike};

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelReport { model, target, title, mapping, .. } = self;
        writeln!(f, "{}", self.verdict())?;
        writeln!(f, "{model} on {target} ({title}), mapped by {mapping}; simulated, not measured")?;
        self.steps.iter().try_for_each(|step| step_text(f, step))?;
        writeln!(f, "\nbusy, waits: share of a launch's time that its cores compute, and that they wait")?;
        writeln!(f, "roof: share of what the vector units or DRAM allow; bound: the part that is busiest")?;
        let counts = grades(&self.figures).into_iter().map(|(grade, count)| format!("{count} {grade}"));
        let counts: Vec<String> = counts.collect();
        writeln!(f, "based on {} figures: {}", self.figures.len(), counts.join(", "))
    }
}
fn step_text(f: &mut fmt::Formatter<'_>, step: &StepReport) -> fmt::Result {
    writeln!(f, "\n{}: {}", step.title(), step.key)?;
    let width = step.programs.iter().flat_map(|program| &program.launches).map(|one| one.name.len() + 2);
    let width = width.chain(step.programs.iter().map(|program| program.name.len())).max().unwrap_or(0);
    let names = ["ms", "runs", "%", "busy", "waits", "Gop/s", "GB/s", "roof"];
    write!(f, "{:<width$}", "launch")?;
    names.iter().try_for_each(|name| write!(f, " {name:>8}"))?;
    writeln!(f, "  bound")?;
    for program in &step.programs {
        program_text(f, step, program, width)?;
    }
    let times = [
        ("array", step.array_seconds, format!(" in {} submissions", step.submissions)),
        ("  dispatch", step.dispatch_seconds, String::new()),
        ("  configuration", step.configure_seconds, String::new()),
        ("host", step.host_seconds, String::new()),
        ("sync", step.sync_seconds, String::new()),
    ];
    times
        .iter()
        .try_for_each(|(what, seconds, more)| writeln!(f, "{what:<16}{:>8.1} ms{more}", seconds * 1e3))?;
    let moved = [("read from DRAM", step.dram_read), ("written to DRAM", step.dram_written)];
    moved.iter().try_for_each(|(what, bytes)| writeln!(f, "{what:<16}{:>8.3} GB", *bytes as f64 * 1e-9))?;
    let energy = &step.energy;
    let joules = energy.joules();
    write!(f, "energy           {joules:>8.3} J")?;
    if step.array_seconds > 0.0 {
        write!(f, ", {:.2} W", joules / step.array_seconds)?;
    }
    write!(f, " on the NPU's rail")?;
    if joules > 0.0 {
        write!(f, "; {:.1} tokens/J", f64::from(step.rows) / joules)?;
    }
    writeln!(f, " (estimate)")
}

fn program_text(
    f: &mut fmt::Formatter<'_>,
    step: &StepReport,
    program: &ProgramUse,
    width: usize,
) -> fmt::Result {
    let share =
        |seconds: f64| 100.0 * seconds * program.runs as f64 / step.array_seconds.max(f64::MIN_POSITIVE);
    let (ms, runs) = (program.seconds * 1e3, program.runs);
    let all = 100.0 * program.step_seconds / step.array_seconds.max(f64::MIN_POSITIVE);
    writeln!(f, "{:<width$} {ms:>8.3} {runs:>8} {all:>8.1}", program.name)?;
    for group in program.launches.chunk_by(alike) {
        let LaunchUse {
            name, seconds, busy, waits, ops_per_second, bytes_per_second, of_roof, bound, ..
        } = &group[0];
        let more =
            if group.len() > 1 { format!("  and {} identical", group.len() - 1) } else { String::new() };
        let share = share(seconds * group.len() as f64);
        let (ms, busy, waits, roof) = (seconds * 1e3, busy * 1e2, waits * 1e2, of_roof * 1e2);
        let (ops, bytes) = (ops_per_second * 1e-9, bytes_per_second * 1e-9);
        let name = format!("  {name}");
        writeln!(
            f,
            "{name:<width$} {ms:>8.3} {:>8} {share:>8.1} {busy:>7.0}% {waits:>7.0}% {ops:>8.0} {bytes:>8.1} {roof:>7.0}%  {}{more}",
            "",
            bound.name()
        )?;
    }
    Ok(())
}

impl fmt::Display for PublishedComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<26} {:>12} {:>12} {:>12}",
            "published times, in ms", "published", "same tiles", "this mapping"
        )?;
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let mapped = |seconds: Option<f64>| seconds.map_or("-".to_owned(), ms);
        for row in &self.rows {
            let name = format!("{} {}", row.phase, row.program);
            let (published, simulated) = (ms(row.published_seconds), ms(row.simulated_seconds));
            writeln!(f, "{name:<26} {published:>12} {simulated:>12} {:>12}", mapped(row.mapped_seconds))?;
        }
        for pass in &self.passes {
            let (low, high) = pass.published_seconds;
            let name = format!("{}, array end to end", pass.phase);
            let published = format!("{}-{}", ms(low), ms(high));
            let simulated = ms(pass.simulated_seconds);
            writeln!(f, "{name:<26} {published:>12} {simulated:>12} {:>12}", mapped(pass.mapped_seconds))?;
        }
        for host in &self.host {
            let name = format!("{} {}", host.phase, host.work);
            writeln!(f, "{name:<40} {:>12}  host, not included", ms(host.seconds))?;
        }
        self.contradictions.iter().try_for_each(|text| writeln!(f, "published figures contradict: {text}"))
    }
}
