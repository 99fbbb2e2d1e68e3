//! What a typed line is: a command, a message, or a part of a message of several lines.

use girih_file::{nearest, quote};

use crate::error::{Error, Result};

/// Opens and closes a message of several lines.
const FENCE: &str = "\"\"\"";

/// The commands, in the order of the help.
pub const HELP: &str = "\"\"\"            open a message of several lines; the next \"\"\" closes it
/system TEXT   set the system message and start a new conversation; without TEXT, show it
/image FILE    add an image to the next message; several are added in order
/frames DIR N  add a video to the next message: a folder with its frames, N in a second; N may be left out
/clear         start a new conversation
/undo          remove the last message and its reply
/regen         generate the last reply again, with another seed
/continue      go on with a reply that a limit or Ctrl-C ended
/truncate      drop the oldest tokens when the context is full
/set NAME X    change a setting, such as temp 0.8, n 500 or seed 7; without them, show the settings
/show          show the model, the room that the context has left, and the settings
/save FILE     write the conversation (JSON) to a new file, or to one that this chat wrote or loaded
/load FILE     continue the conversation of a file
/stats         show the counts and times of the last reply
/help          show this (also /?); Tab completes commands and names of settings
/bye           leave (also /quit, /exit, Ctrl-D, or Ctrl-C twice on an empty line); Ctrl-C stops a reply";

/// The names of the commands.
const NAMES: [&str; 18] = [
    "/system",
    "/image",
    "/frames",
    "/clear",
    "/undo",
    "/regen",
    "/continue",
    "/truncate",
    "/set",
    "/show",
    "/save",
    "/load",
    "/stats",
    "/help",
    "/?",
    "/bye",
    "/quit",
    "/exit",
];

/// The names of the commands that begin with a text that is not empty, in the order of the help.
pub fn names_beginning_with(text: &str) -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(move |name| !text.is_empty() && name.starts_with(text))
}

/// A whole entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// A message of the user.
    Message(String),
    /// A command.
    Command(ChatCommand),
}

/// A command that begins with `/`.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the help explains them
pub enum ChatCommand {
    System(Option<String>),
    Clear,
    Undo,
    Regen,
    Continue,
    Truncate,
    Set(Option<String>),
    Show,
    Image(String),
    Frames(String),
    Save(String),
    Load(String),
    Stats,
    Help,
    Bye,
}

/// Joins lines to entries.
#[derive(Debug, Default)]
pub struct EntryReader {
    /// The lines of a message that is open.
    open: Option<String>,
}

impl EntryReader {
    /// Whether a message of several lines is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Drops an open message.
    pub fn drop_open(&mut self) {
        self.open = None;
    }

    /// Takes a line; returns an entry that is whole and not empty.
    ///
    /// # Errors
    /// When the line is a command that is not known or lacks its argument.
    pub fn take(&mut self, line: &str) -> Result<Option<Entry>> {
        if let Some(mut text) = self.open.take() {
            let Some(last) = line.trim_end().strip_suffix(FENCE) else {
                text.push_str(line);
                text.push('\n');
                self.open = Some(text);
                return Ok(None);
            };
            text.push_str(last);
            return Ok(message(without_last_break(&text)));
        }
        let Some(first) = line.trim_start().strip_prefix(FENCE) else { return entry(line) };
        if let Some(text) = first.trim_end().strip_suffix(FENCE) {
            return Ok(message(text));
        }
        self.open = Some(if first.trim().is_empty() { String::new() } else { format!("{first}\n") });
        Ok(None)
    }
}

/// A text whose closing fence stood on a line of its own, without the break before it.
fn without_last_break(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
}

/// A message, unless it is empty.
fn message(text: &str) -> Option<Entry> {
    (!text.trim().is_empty()).then(|| Entry::Message(text.to_owned()))
}

/// The entry of one line, unless it is empty.
fn entry(line: &str) -> Result<Option<Entry>> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !name.starts_with('/') {
        return Ok(message(line));
    }
    let rest = rest.trim();
    let file = |command: fn(String) -> ChatCommand| match rest {
        "" => Err(Error::call(format!("{name} needs the path of a file: {name} FILE"))),
        path => Ok(command(path.to_owned())),
    };
    let command = match name {
        "/system" => ChatCommand::System((!rest.is_empty()).then(|| rest.to_owned())),
        "/set" => ChatCommand::Set((!rest.is_empty()).then(|| rest.to_owned())),
        "/image" => file(ChatCommand::Image)?,
        "/frames" if rest.is_empty() => {
            return Err(Error::call("/frames needs a folder and may have a rate: /frames DIR N"));
        }
        "/frames" => ChatCommand::Frames(rest.to_owned()),
        "/save" => file(ChatCommand::Save)?,
        "/load" => file(ChatCommand::Load)?,
        _ if !rest.is_empty() && NAMES.contains(&name) => {
            return Err(Error::call(format!(
                "{name} takes no text; a message that begins with '/' needs \"\"\" around it"
            )));
        }
        "/clear" => ChatCommand::Clear,
        "/undo" => ChatCommand::Undo,
        "/regen" => ChatCommand::Regen,
        "/continue" => ChatCommand::Continue,
        "/truncate" => ChatCommand::Truncate,
        "/stats" => ChatCommand::Stats,
        "/show" => ChatCommand::Show,
        "/help" | "/?" => ChatCommand::Help,
        "/bye" | "/quit" | "/exit" => ChatCommand::Bye,
        _ => return Err(unknown(name)),
    };
    Ok(Some(Entry::Command(command)))
}

fn unknown(name: &str) -> Error {
    let meant = nearest(name, NAMES).map_or(String::new(), |meant| format!("did you mean {meant}? "));
    Error::call(format!("unknown command {}; {meant}/help lists them", quote(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of some lines.
    fn entries(lines: &[&str]) -> Vec<Entry> {
        let mut reader = EntryReader::default();
        lines.iter().filter_map(|line| reader.take(line).unwrap()).collect()
    }

    fn message(text: &str) -> Entry {
        Entry::Message(text.to_owned())
    }

    #[test]
    fn a_fence_opens_and_closes_a_message_of_several_lines() {
        assert_eq!(entries(&["\"\"\"", "/clear", "", "b", "\"\"\""]), [message("/clear\n\nb")]);
        assert_eq!(entries(&["\"\"\"a", "b\"\"\"", "c"]), [message("a\nb"), message("c")]);
        assert_eq!(entries(&["\"\"\"/quit\"\"\""]), [message("/quit")]);
        assert_eq!(entries(&["\"\"\"", "\"\"\""]), []);
        assert_eq!(entries(&["\"\"\"", "a"]), []);
        assert_eq!(entries(&["a \"\"\" b"]), [message("a \"\"\" b")]);
    }

    #[test]
    fn commands_have_names_and_arguments() {
        let command = |line: &str| entry(line).map_err(|error| format!("{error:?}"));
        assert_eq!(command("/bye"), Ok(Some(Entry::Command(ChatCommand::Bye))));
        assert_eq!(command("/system"), Ok(Some(Entry::Command(ChatCommand::System(None)))));
        let save = Entry::Command(ChatCommand::Save("a b.json".to_owned()));
        assert_eq!(command("/save  a b.json "), Ok(Some(save)));
        assert!(command("/clera").unwrap_err().contains("did you mean /clear?"));
        assert!(command("/load").unwrap_err().contains("/load FILE"));
        assert!(command("/frames").unwrap_err().contains("/frames DIR N"));
        assert!(command("/clear all of it").unwrap_err().contains("takes no text"));
        assert_eq!(command("/?"), Ok(Some(Entry::Command(ChatCommand::Help))));
        let set = Entry::Command(ChatCommand::Set(Some("temp 0.8".to_owned())));
        assert_eq!(command("/set temp 0.8"), Ok(Some(set)));
        assert!(names_beginning_with("/s").eq(["/system", "/set", "/show", "/save", "/stats"]));
        assert_eq!(names_beginning_with("").count() + names_beginning_with("so").count(), 0);
        for name in NAMES {
            assert!(HELP.contains(name), "{name}");
        }
    }
}
