//! Reports the template worker's sandbox, as the worker observes it.

use std::process::{Command, Stdio};

use girih_words::template::{PROBE_ARGUMENT, SandboxLayer, SandboxReport, WORKER_COMMAND};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// Starts a worker that enables the sandbox and attempts what it must prevent.
///
/// # Errors
/// When it cannot be started or reports nothing.
pub fn probe() -> Result<SandboxReport> {
    let mut worker = Command::new(std::env::current_exe()?);
    worker.args([WORKER_COMMAND, PROBE_ARGUMENT]).args(SandboxLayer::ALL.map(SandboxLayer::name));
    let output = worker.env_clear().stdin(Stdio::null()).output()?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let status = output.status;
        Error::work(format!("the worker of chat templates reports nothing ({status}): {error} {stderr}"))
    })
}

/// A clause that says which layers are on, and what the worker can still do.
pub fn sentence(report: &SandboxReport) -> String {
    let layers = report.layers.iter().map(|(layer, reason)| match reason {
        None => format!("{} is on", layer.name()),
        Some(reason) => format!("{} is off ({reason})", layer.name()),
    });
    let layers: Vec<String> = layers.collect();
    let left = allowed(report);
    let left = match left[..] {
        [] => "it can open, start and signal nothing".to_owned(),
        _ => format!("it can {}", left.join(", ")),
    };
    format!("{}; {left}", layers.join(", "))
}

/// The report as JSON.
pub fn value(report: &SandboxReport) -> Value {
    let layers = report.layers.iter().map(|(layer, reason)| {
        let state = reason.as_ref().map_or("on".to_owned(), |reason| format!("off: {reason}"));
        (layer.name().to_owned(), json!(state))
    });
    let mut object: Map<String, Value> = layers.collect();
    object.insert("allowed".to_owned(), json!(allowed(report)));
    Value::Object(object)
}

/// The attempts that succeeded.
fn allowed(report: &SandboxReport) -> Vec<&str> {
    let succeeded = report.attempts.iter().filter(|(_, error)| error.is_none());
    succeeded.map(|(attempt, _)| attempt.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_layer_is_named_with_what_the_worker_can_do() {
        let text = r#"{"layers":{"landlock":"this kernel does not have it","seccomp":null},
            "attempts":{"open a file":null,"start a thread":"Operation not permitted"}}"#;
        let report: SandboxReport = serde_json::from_str(text).expect("a report");
        assert_eq!(
            sentence(&report),
            "landlock is off (this kernel does not have it), seccomp is on; it can open a file"
        );
        assert_eq!(
            value(&report),
            json!({"landlock": "off: this kernel does not have it", "seccomp": "on", "allowed": ["open a file"]})
        );
    }
}
