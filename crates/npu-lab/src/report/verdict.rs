//! The report in one sentence: how long the steps take, and what limits them.

use super::limits::LaunchBottleneck;
use super::model::ModelReport;
use super::quantity::{millis, percent};
use super::step::StepReport;

impl ModelReport {
    /// One sentence with each step's time, its part on the array, and what limits
    /// the largest share of that part.
    pub fn verdict(&self) -> String {
        let steps: Vec<String> = self.steps.iter().map(of_step).collect();
        let sentence = steps.join("; ");
        let mut letters = sentence.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).chain(['.']).collect()
    }
}

fn of_step(step: &StepReport) -> String {
    let what = match (step.is_prefill(), step.position) {
        (true, 0) => format!("a prefill of {} tokens", step.rows),
        (true, position) => format!("a prefill of {} tokens after {position}", step.rows),
        (false, position) => format!("a token after {position} tokens"),
    };
    let (limit, seconds) = main_limit(step);
    let share = percent(seconds / step.array_seconds.max(f64::MIN_POSITIVE));
    let (array, all) = (millis(step.array_seconds), millis(step.mean_seconds));
    let array = format!("{array} of it on the array ({share} limited by {limit})");
    match step.worst {
        None => format!("{what} takes {all}, {array}"),
        Some((seconds, position)) => {
            let worst = millis(seconds);
            format!("{what} takes {all} on average, {array}, and one after {position} takes {worst}")
        }
    }
}

/// What limits the step for the longest time, and that time in seconds.
fn main_limit(step: &StepReport) -> (&'static str, f64) {
    let mut limits = vec![("dispatch and configuration", step.dispatch_seconds + step.configure_seconds)];
    for program in &step.programs {
        for launch in &program.launches {
            let (name, seconds) = (phrase(launch.bound), launch.seconds * program.runs as f64);
            match limits.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += seconds,
                None => limits.push((name, seconds)),
            }
        }
    }
    limits.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("dispatch is always listed")
}

fn phrase(bound: LaunchBottleneck) -> &'static str {
    match bound {
        LaunchBottleneck::Cores => "the cores",
        LaunchBottleneck::Dram => "DRAM bandwidth",
        LaunchBottleneck::Streams => "stream bandwidth",
        LaunchBottleneck::Control => "the command processor",
        LaunchBottleneck::Waiting => "waiting between tiles",
    }
}
