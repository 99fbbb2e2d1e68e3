//! The groups of options in help.

use clap::Command;

/// A group of options, in the order in which help lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OptionGroup {
    /// What most calls use, and what only one command has.
    Common,
    /// How the next token is chosen.
    Sampling,
    /// What constrains the reply.
    StructuredOutput,
    /// What is kept in memory and on disk.
    Memory,
    /// Where and how the model runs.
    Device,
    /// Who may call a server, and what it tells of its work.
    Server,
    /// What few calls need; only `--help-all` lists it.
    Expert,
}

use OptionGroup::{Common, Device, Expert, Memory, Sampling, Server, StructuredOutput};

/// The most used options, in the order in which help lists them. Those of one command follow.
const FIRST: [&str; 11] = [
    "model",
    "prompt",
    "file",
    "max-tokens",
    "context",
    "threads",
    "temp",
    "system",
    "json",
    "quiet",
    "verbose",
];

/// The options that end the common ones.
const LAST: [&str; 3] = ["help", "help-all", "version"];

/// The options outside the common group.
const GROUPS: &[(OptionGroup, &[&str])] = &[
    (
        Sampling,
        &[
            "top-k",
            "top-p",
            "min-p",
            "repetition-penalty",
            "presence-penalty",
            "frequency-penalty",
            "seed",
            "stop",
        ],
    ),
    (StructuredOutput, &["schema", "json-object", "regex", "grammar"]),
    (
        Memory,
        &[
            "memory",
            "unload-idle",
            "models",
            "kv",
            "overflow",
            "weights",
            "packed-cache",
            "prompt-cache",
            "blobs",
            "blobs-limit",
        ],
    ),
    (Device, &["backend", "act-precision", "npu-mapping"]),
    (
        Server,
        &[
            "served-name",
            "api-keys",
            "api-key",
            "i-know-it-is-open",
            "allowed-host",
            "allowed-origin",
            "unknown-parameters",
            "keep-header-lines",
            "thinking-budget",
            "stop-loops",
            "tls-cert",
            "tls-key",
            "no-sandbox",
            "metrics-compat",
            "kv-events",
            "kv-events-replay",
            "kv-events-pod",
            "kv-events-open",
            "access-log",
            "log-prompts",
        ],
    ),
    (
        Expert,
        &[
            "isa",
            "affinity",
            "chunk",
            "packed-cache-limit",
            "prompt-cache-limit",
            "logit-bias",
            "draft-max",
            "typical-p",
            "top-n-sigma",
            "xtc-probability",
            "xtc-threshold",
            "dynatemp-range",
            "dynatemp-exponent",
            "mirostat-tau",
            "mirostat-eta",
            "dry-multiplier",
            "dry-base",
            "dry-allowed-length",
            "dry-range",
            "dry-breaker",
            "special",
            "duplicates",
            "prompts-file",
            "rounds",
            "compat-ie",
            "touch",
            "zero-blocks",
            "equal-weights",
            "hot-replicate",
            "memory-policy",
            "touch-in-window",
            "q4-map",
            "iebin-f32",
            "dedup",
            "rows",
            "block",
            "chat-template",
            "reply-style",
            "tool-choice",
            "adapter",
            "mmproj",
            "frames",
            "fps",
            "arch",
            "allow-key",
            "pack",
            "npu-runtime",
            "npu-lengths",
            "npu-contexts",
            "npu-strict",
        ],
    ),
];

impl OptionGroup {
    /// The group of an option.
    pub fn of(long: &str) -> OptionGroup {
        let found = GROUPS.iter().find(|(_, names)| names.contains(&long));
        found.map_or(Common, |(group, _)| *group)
    }

    /// The heading in help.
    pub fn heading(self) -> &'static str {
        match self {
            Common => "Common options",
            Sampling => "Sampling options",
            StructuredOutput => "Structured output options",
            Memory => "Memory options",
            Device => "Device options",
            Server => "Server options",
            Expert => "Expert options",
        }
    }
}

/// The ids of a command's options with their groups, in the order in which help lists them.
pub fn in_order(command: &Command) -> Vec<(String, OptionGroup)> {
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    let mut placed: Vec<_> = options
        .enumerate()
        .map(|(at, arg)| {
            let long = arg.get_long().unwrap_or_default();
            let group = OptionGroup::of(long);
            (group, rank(group, long), at, arg.get_id().to_string())
        })
        .collect();
    placed.sort();
    placed.into_iter().map(|(group, _, _, id)| (id, group)).collect()
}

/// The place of an option in its group; options of the same place stay as the command declares them.
fn rank(group: OptionGroup, long: &str) -> usize {
    let place = |names: &[&str]| names.iter().position(|name| *name == long);
    match group {
        Common => match (place(&FIRST), place(&LAST)) {
            (Some(first), _) => first,
            (_, Some(last)) => FIRST.len() + 1 + last,
            _ => FIRST.len(),
        },
        _ => {
            let names = GROUPS.iter().find(|(of, _)| *of == group).map_or(&[][..], |(_, names)| names);
            place(names).unwrap_or(names.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_in_two_groups() {
        let mut names: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        names.extend(FIRST.iter().chain(&LAST));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
