//! The line editor of `girih chat`. It shows a pasted control character as a sign, and writes nothing to
//! standard output unless that is a terminal.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};

use rustix::fs::{Mode, OFlags, open};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, CompletionType, Config, Context, Editor, Helper};

use crate::typed_history::{MAX_LINES, TypedHistory};
use crate::visible::is_obeyed;

/// The terminal of the process, whatever its standard streams are.
const TERMINAL: &str = "/dev/tty";

/// The values of `TERM` for which rustyline writes the prompt to standard output and edits nothing.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// An editor with a history.
pub struct LineEditor {
    editor: Editor<ShownLine, DefaultHistory>,
    /// Whether prompts go to standard error, as the editor would write them to a pipe.
    prompts_on_stderr: bool,
    /// The file that keeps the lines.
    file: Option<TypedHistory>,
}

impl LineEditor {
    /// An editor on standard input and output; on the process's terminal if standard output is none. Tab
    /// chooses among the lines that `completed` makes of the text before the cursor.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn new(completed: fn(&str) -> Vec<String>) -> Result<LineEditor, ReadlineError> {
        let is_piped = !io::stdout().is_terminal();
        if is_piped {
            // Rustyline would use standard output instead.
            let opened = open(TERMINAL, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
            opened.map_err(|error| {
                let error = io::Error::from(error);
                io::Error::other(format!(
                    "{TERMINAL} cannot be opened ({error}), and standard output is no terminal: connect it to one"
                ))
            })?;
        }
        let behavior = if is_piped { Behavior::PreferTerm } else { Behavior::Stdio };
        let config = Config::builder().max_history_size(MAX_LINES)?.behavior(behavior);
        let config = config.completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(ShownLine { completed, has_text: Cell::new(false) }));
        let is_plain = std::env::var("TERM")
            .is_ok_and(|name| PLAIN_TERMINALS.iter().any(|plain| plain.eq_ignore_ascii_case(&name)));
        Ok(LineEditor { editor, prompts_on_stderr: is_piped && is_plain, file: None })
    }

    /// Adds the lines of earlier runs, and keeps those of this one.
    pub fn remember(&mut self, file: TypedHistory, lines: Vec<String>) {
        for line in lines {
            // A full history is no error.
            let _ = self.editor.add_history_entry(line);
        }
        self.file = Some(file);
    }

    /// Reads a line and adds it to the history.
    ///
    /// # Errors
    /// At the end of input, after Ctrl-C, and when the terminal fails.
    pub fn line(&mut self, prompt: &str) -> Result<String, ReadlineError> {
        if let Some(shown) = self.editor.helper() {
            shown.has_text.set(false);
        }
        let line = if self.prompts_on_stderr {
            io::stderr().write_all(prompt.as_bytes())?;
            self.editor.readline("")?
        } else {
            self.editor.readline(prompt)?
        };
        // A full history is no error.
        let _ = self.editor.add_history_entry(&line);
        if let Some(file) = &mut self.file {
            file.add(&line);
        }
        Ok(line)
    }

    /// Whether the last line, which Ctrl-C ended, had text, or was a search of the history.
    pub fn had_text(&self) -> bool {
        self.editor.helper().is_some_and(|shown| shown.has_text.get())
    }
}

/// How a line looks while it is edited: U+FFFD stands for each character that the terminal would
/// obey, as it has a width of one column, too.
struct ShownLine {
    completed: fn(&str) -> Vec<String>,
    /// Whether the line has text, or the history is searched. The editor does not tell on Ctrl-C.
    has_text: Cell<bool>,
}

impl Highlighter for ShownLine {
    /// The editor asks with another prompt than its own while it searches the history.
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, is_own: bool) -> Cow<'b, str> {
        if !is_own {
            self.has_text.set(true);
        }
        prompt.into()
    }

    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if line.contains(is_obeyed) { line.replace(is_obeyed, "\u{fffd}").into() } else { line.into() }
    }

    fn highlight_char(&self, line: &str, _: usize, _: CmdKind) -> bool {
        line.contains(is_obeyed)
    }
}

impl Completer for ShownLine {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> Result<(usize, Vec<String>), ReadlineError> {
        Ok((0, (self.completed)(&line[..at])))
    }
}

/// There are no hints, but the editor asks for one after each change of the line.
impl Hinter for ShownLine {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.has_text.set(!line.is_empty());
        None
    }
}

impl Validator for ShownLine {}

impl Helper for ShownLine {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_escape_code_is_shown_as_a_sign() {
        let editor = ShownLine { completed: |_| Vec::new(), has_text: Cell::new(false) };
        let shown = |line| editor.highlight(line, 0).into_owned();
        assert_eq!(shown("a\u{1b}]52;c;eA==\u{7}b"), "a\u{fffd}]52;c;eA==\u{fffd}b");
        assert_eq!(shown("日本\tb"), "日本\tb");
        // Otherwise the editor would write the last character as it is.
        assert!(editor.highlight_char("a\u{9b}", 3, CmdKind::Other));
    }
}
