//! Compiles and renders templates with minijinja, configured as transformers configures
//! Jinja.
//!
//! Nothing here bounds memory, stack or time. The worker process bounds all three;
//! in another process, [`guard`] bounds stack and time.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, Value, escape_formatter};

use super::generation::replace_generation_tags;
use super::guard::guard;
use super::json::{float, tojson};
use super::protocol::{RenderAnswer, RenderJob};
use super::strftime::strftime;

const TEMPLATE_NAME: &str = "chat";

/// The maximum number of characters of a minijinja error that is passed on: it may
/// quote whole values.
const DETAIL_CHARS: usize = 300;

/// A compiled template.
pub struct CompiledTemplate {
    source: String,
    environment: Environment<'static>,
}

impl CompiledTemplate {
    /// Compiles a template for the worker process. The error is the answer to send.
    pub fn new(source: &str) -> Result<CompiledTemplate, RenderAnswer> {
        CompiledTemplate::compile(source, environment(), with_newlines(source))
    }

    /// Compiles a template for any process, with limits of stack and time. Its
    /// rendering ends soon after `stopped` is set. The error is the answer to send.
    pub fn guarded(source: &str, stopped: &Arc<AtomicBool>) -> Result<CompiledTemplate, RenderAnswer> {
        let mut environment = environment();
        let guarded =
            guard(&mut environment, &with_newlines(source), stopped).map_err(RenderAnswer::Failed)?;
        CompiledTemplate::compile(source, environment, guarded)
    }

    /// Compiles `text`, which `source` became.
    fn compile(
        source: &str,
        mut environment: Environment<'static>,
        text: String,
    ) -> Result<CompiledTemplate, RenderAnswer> {
        environment
            .add_template_owned(TEMPLATE_NAME, replace_generation_tags(&text))
            .map_err(|error| RenderAnswer::Failed(describe("cannot be compiled", &error)))?;
        Ok(CompiledTemplate { source: source.to_owned(), environment })
    }

    /// Whether this is the compiled form of `source`.
    pub fn is_of(&self, source: &str) -> bool {
        self.source == source
    }

    /// Renders the template with the job's variables.
    pub fn render(&mut self, job: &RenderJob) -> RenderAnswer {
        let now = job.unix_seconds;
        self.environment.add_function("strftime_now", move |format: &str| {
            strftime(format, now)
                .map_err(|sentence| minijinja::Error::new(ErrorKind::InvalidOperation, sentence))
        });
        let template =
            self.environment.get_template(TEMPLATE_NAME).expect("the template was added on construction");
        let mut output = CappedOutput { bytes: Vec::new(), cap: job.output_bytes };
        let context = Value::from(Serde(&job.variables));
        let result = template.render_captured_to(context, &mut output).map(drop);
        match result {
            Ok(()) => {
                RenderAnswer::Text(String::from_utf8(output.bytes).expect("minijinja writes only UTF-8"))
            }
            Err(error) => answer(&error, job.output_bytes),
        }
    }
}

/// Converts all line ends to `\n`, as Jinja does first.
fn with_newlines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Jinja as in transformers: `trim_blocks`, `lstrip_blocks`, Python's methods, its
/// own `tojson`, `raise_exception` and (per job) `strftime_now`.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Without it, errors have less detail in release builds than in debug builds.
    environment.set_debug(true);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|output, state, value| match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            Ok(write!(output, "{}", float(f64::try_from(value.clone())?))?)
        }
        _ => escape_formatter(output, state, value),
    });
    // minijinja's own tests and filters of these names differ from Jinja's.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| is_sequence(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception")
            .with_source(Raised(message)))
    });
    environment
}

/// Whether the value has a length and items in Python. minijinja's lists become
/// lazy iterables when sliced or added, so these count too.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

/// The length of a value; an undefined value has length 0.
fn length(value: &Value) -> Result<usize, minijinja::Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None if value.kind() == ValueKind::Iterable => Ok(value.try_iter()?.count()),
        None => {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind())))
        }
    }
}

/// The message of `raise_exception`, as a source of minijinja's error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An output buffer that fails beyond its limit.
struct CappedOutput {
    bytes: Vec<u8>,
    cap: usize,
}

impl io::Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.cap - self.bytes.len() {
            return Err(io::Error::other("too much output"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answer(error: &minijinja::Error, output_bytes: usize) -> RenderAnswer {
    let mut source = Some(error as &dyn std::error::Error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return RenderAnswer::Raised(message.clone());
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::WriteFailure => RenderAnswer::Failed(format!("writes more than {output_bytes} bytes")),
        _ => RenderAnswer::Failed(describe("failed", error)),
    }
}

/// `failed in line 3: undefined value: ...`
fn describe(what: &str, error: &minijinja::Error) -> String {
    let line = error.line().map_or(String::new(), |line| format!(" in line {line}"));
    let mut sentence = format!("{what}{line}: {}", error.kind());
    if let Some(detail) = error.detail() {
        let cut = detail.char_indices().nth(DETAIL_CHARS).map_or(detail.len(), |(at, _)| at);
        sentence.push_str(": ");
        sentence.push_str(&detail[..cut]);
    }
    sentence
}
