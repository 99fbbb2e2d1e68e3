//! `girih verify FILE.gguf --source FOLDER`: compares a GGUF with the folder that it was made from.

use std::num::NonZeroUsize;

use girih_convert::{CompareOptions, SourceFinding, SourceVerdict, compare_with_source};
use girih_words::TextLimits;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::Result;
use crate::loading;
use crate::output::{counted, print_json};
use crate::progress::Unit;

/// Compares the model of a command with `source`, and prints a line for each finding, or JSON.
///
/// # Errors
/// When a model cannot be opened or read, or these are no GGUF and no folder.
pub fn run(model: &ModelArgs, source: &str, device: &DeviceArgs, as_json: bool) -> Result<Outcome> {
    let file = loading::open_model(model)?;
    let folder = loading::open(source, &model.arch)?;
    let threads = NonZeroUsize::new(device.thread_count()).unwrap_or(NonZeroUsize::MIN);
    let options = CompareOptions { threads, limits: TextLimits::DEFAULT };
    let mut renderer = loading::open_options()?.renderer();
    let bar = device.show.show().bar("comparing", 0, Unit::Things("weights"));
    let findings =
        compare_with_source(file.files(), folder.files(), &options, &mut renderer, &mut |progress| {
            bar.set(progress.done, progress.total);
        })?;
    bar.finish_and_clear();
    let differing = findings.iter().filter(|finding| finding.verdict == SourceVerdict::Differs).count();
    if as_json {
        let rows: Vec<Value> = findings.iter().map(row).collect();
        print_json(&json!({"passed": differing == 0, "source": source, "findings": rows}))?;
    } else {
        for SourceFinding { part, name, verdict, detail, .. } in &findings {
            let verdict = match verdict {
                SourceVerdict::Differs => "DIFFERS",
                verdict => verdict.name(),
            };
            print_line!("{verdict:<12} {} {name}: {detail}", part.name())?;
        }
        match differing {
            0 => print_line!("passed")?,
            count => print_line!("failed: {} of {} differ", count, counted(findings.len(), "comparison"))?,
        }
    }
    Ok(if differing == 0 { Outcome::Done } else { Outcome::Failed })
}

fn row(finding: &SourceFinding) -> Value {
    let SourceFinding { part, name, verdict, detail, relative_error } = finding;
    json!({
        "part": part.name(),
        "name": name,
        "verdict": verdict.name(),
        "detail": detail,
        "relative_error": relative_error,
    })
}
