//! What `cargo metadata` says of the packages of Cargo.lock.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The output of `cargo metadata`, with further `arguments`.
///
/// # Errors
/// When cargo fails or prints no JSON.
pub fn read(root: &Path, arguments: &[&str]) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["metadata", "--locked", "--format-version", "1"]).args(arguments);
    let output = command.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata printed no JSON: {error}"))
}

/// The list that `value` has under `key`.
///
/// # Errors
/// When it has none.
pub fn array<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value.get(key).and_then(Value::as_array).ok_or_else(|| format!("cargo metadata has no list {key}"))
}

/// The text that `value` has under `key`.
///
/// # Errors
/// When it has none.
pub fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value.get(key).and_then(Value::as_str).ok_or_else(|| format!("cargo metadata has no text {key}"))
}
