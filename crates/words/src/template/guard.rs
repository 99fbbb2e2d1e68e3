//! Makes a template safe to render in this process: its values cannot nest so
//! deeply that printing, comparing or dropping them overflows the stack, and its
//! loops and macros end when the renderer asks for it.
//!
//! Values nest deeper in three ways, and each has a limit:
//! - An assignment to an attribute of a namespace survives the iteration of a loop.
//!   It becomes a call of [`CheckedNamespace`](super::namespace::CheckedNamespace), which has limits of its own. Any
//!   other attribute assignment fails, because minijinja's `namespace` is replaced.
//! - One pass over the source adds at most [`LEVELS_PER_OPERATOR`] levels for each
//!   bracket, filter or operator, and [`LEVELS_PER_SUM`] more for each `sum`. minijinja
//!   clears a loop's variables after each iteration, so a loop adds no more than one
//!   pass.
//! - A macro or a recursive loop takes another pass for each level of its recursion,
//!   so the recursion limit follows from the number of operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::{Environment, Error, ErrorKind, Value};

use super::namespace::{MAX_NAMESPACE_LEVELS, SET_METHOD, namespace};
use super::tags::replace_tags;

/// The stack of the rendering thread.
pub const GUARDED_STACK_BYTES: usize = 64 << 20;

/// The part of the stack for nested values. The rest is for minijinja's own
/// recursion, which takes less than 8 KiB per level of at most 500.
const VALUE_STACK_BYTES: usize = 48 << 20;

/// Stack per level of a nested value. The most expensive operation measured takes
/// about half of it.
const LEVEL_BYTES: usize = 1024;

/// The maximum bytes of source. minijinja compiles a chain of operators by
/// recursion, at two bytes of source per level and less than 1 KiB of stack.
const MAX_SOURCE_BYTES: usize = 64 << 10;

/// The maximum nesting that a bracket, a filter or an operator adds: `groupby` adds
/// two levels.
const LEVELS_PER_OPERATOR: usize = 3;

/// The maximum nesting that `sum` adds to lists: minijinja joins them lazily, up
/// to 32 levels deep.
const LEVELS_PER_SUM: usize = 33;

/// minijinja's recursion limit, and what a macro call adds to its depth.
const MAX_RECURSION: usize = 500;
const MACRO_COST: usize = 5;

/// The lowest recursion limit that is worth running: real templates use less.
const MIN_RECURSION: usize = 40;

/// The function that stops a render when asked. A template that calls it gains nothing.
const TICK: &str = "__tick__";

/// Sets the limits of an environment for `source`, and returns the guarded source.
/// The rendering ends soon after `stopped` is set. The error is the rest of a
/// sentence that begins with "the chat template".
pub fn guard(
    environment: &mut Environment<'static>,
    source: &str,
    stopped: &Arc<AtomicBool>,
) -> Result<String, String> {
    environment.set_recursion_limit(recursion_limit(source)?);
    environment.add_function("namespace", namespace);
    let stopped = Arc::clone(stopped);
    environment.add_function(TICK, move || {
        if stopped.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::InvalidOperation, "stopped"));
        }
        Ok(Value::from(""))
    });
    Ok(replace_tags(source, guarded))
}

/// The recursion limit at which the values of this source fit the stack.
fn recursion_limit(source: &str) -> Result<usize, String> {
    let bytes = source.len();
    if bytes > MAX_SOURCE_BYTES {
        return Err(format!(
            "has {bytes} bytes, the maximum in process is {MAX_SOURCE_BYTES}: render it in a worker process"
        ));
    }
    let operators = source.bytes().filter(|byte| b"[{(|+*,".contains(byte)).count();
    let sums = source.matches("sum").count();
    let pass = LEVELS_PER_OPERATOR * operators + LEVELS_PER_SUM * sums + 1;
    let passes = (VALUE_STACK_BYTES / LEVEL_BYTES - MAX_NAMESPACE_LEVELS) / pass;
    let limit = match (source.contains("recursive"), source.contains("macro")) {
        (true, _) => passes,
        (false, true) => passes * MACRO_COST,
        (false, false) if passes > 0 => MAX_RECURSION,
        (false, false) => 0,
    };
    if limit < MIN_RECURSION {
        return Err(format!(
            "has {operators} operators, too many for the stack limit of this process: \
             render it in a worker process"
        ));
    }
    Ok(limit.min(MAX_RECURSION))
}

/// The replacement of a tag that assigns to an attribute or may run many times.
fn guarded(content: &str, tag: &str) -> Option<String> {
    if content.starts_with("for") || content.starts_with("macro") {
        return Some(with_tick(tag));
    }
    assignment(content.strip_prefix("set")?, tag)
}

/// `{% set a.b = c %}` as `{% do a.__set__('b', (c)) %}`.
fn assignment(rest: &str, tag: &str) -> Option<String> {
    let (target, value) = rest.split_once('=')?;
    let (object, attribute) = target.trim().rsplit_once('.')?;
    let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if !is_name(attribute.trim()) || !object.split('.').all(|name| is_name(name.trim())) {
        return None;
    }
    let (open, close) = (tag_open(tag), tag_close(tag));
    Some(format!("{open} do {object}.{SET_METHOD}('{}', ({value})) {close}", attribute.trim()))
}

/// The tag and a call of [`TICK`] directly after it. The end of the call treats
/// white space as the end of the tag did.
fn with_tick(tag: &str) -> String {
    let close = tag_close(tag);
    let head = &tag[..tag.len() - close.len()];
    format!("{head} %}}{{% do {TICK}() {close}")
}

/// `{%`, `{%-` or `{%+`.
fn tag_open(tag: &str) -> &str {
    &tag[..if tag[2..].starts_with(['-', '+']) { 3 } else { 2 }]
}

/// `%}`, `-%}` or `+%}`.
fn tag_close(tag: &str) -> &str {
    let inner = &tag[..tag.len() - 2];
    &tag[inner.len() - usize::from(inner.ends_with(['-', '+']))..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded_source(source: &str) -> String {
        replace_tags(source, guarded)
    }

    #[test]
    fn assignments_to_attributes_become_calls() {
        for (source, want) in [
            ("{%- set a.b = 1, 2 -%}", "{%- do a.__set__('b', ( 1, 2)) -%}"),
            ("{% set a . b.c='=' if d == e %}", "{% do a . b.__set__('c', ('=' if d == e)) %}"),
            ("{% set a = b.c %}", "{% set a = b.c %}"),
            ("{% set a, b.c = d %}", "{% set a, b.c = d %}"),
            ("{% set a.b %}c=d{% endset %}", "{% set a.b %}c=d{% endset %}"),
            ("{# {% set a.b = 1 %} #}", "{# {% set a.b = 1 %} #}"),
        ] {
            assert_eq!(guarded_source(source), want);
        }
    }

    #[test]
    fn loops_and_macros_ask_whether_to_stop() {
        for (source, want) in [
            ("{% for a in b %}c", "{% for a in b  %}{% do __tick__() %}c"),
            ("{%- for a in b -%} c", "{%- for a in b  %}{% do __tick__() -%} c"),
            ("{% macro a(b) +%}\n", "{% macro a(b)  %}{% do __tick__() +%}\n"),
            ("{% endfor %}", "{% endfor %}"),
        ] {
            assert_eq!(guarded_source(source), want);
        }
    }

    #[test]
    fn the_recursion_limit_follows_from_the_source() {
        assert_eq!(recursion_limit("a"), Ok(MAX_RECURSION));
        let list = format!("{{{{ {}1{} }}}}", "[".repeat(100), "]".repeat(100));
        assert_eq!(recursion_limit(&list), Ok(MAX_RECURSION));
        assert_eq!(recursion_limit(&(list.clone() + "recursive")), Ok(159));
        assert_eq!(recursion_limit(&("macro".to_owned() + &list.repeat(10))), Ok(80));
        let refusal = recursion_limit(&("macro".to_owned() + &list.repeat(40))).expect_err("too many");
        assert!(refusal.starts_with("has 4080 operators, too many"), "{refusal}");
        let refusal = recursion_limit(&"[".repeat(20_000)).expect_err("too many");
        assert!(refusal.starts_with("has 20000 operators"), "{refusal}");
        let refusal = recursion_limit(&" ".repeat(MAX_SOURCE_BYTES + 1)).expect_err("too long");
        assert!(refusal.starts_with("has 65537 bytes, the maximum in process is 65536"), "{refusal}");
    }
}
