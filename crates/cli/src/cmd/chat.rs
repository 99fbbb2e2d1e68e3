//! `girih chat`: a conversation. Earlier turns stay in the KV cache, so each turn
//! prefills only new tokens.

mod dialogue;
mod entry;
mod replier;
mod reply_interrupt;
mod saved_file;
mod setting;

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::path::Path;

use girih::{BUILT_IN, Conversation, ImagePatches, Model, Stop};
use girih_file::quote;
use rustyline::error::ReadlineError;

use super::outcome::Outcome;
use crate::adapter_args::AdapterArgs;
use crate::args::{DeviceArgs, ModelArgs, OverflowMode, PromptCacheArgs, SamplingArgs};
use crate::conversation_args::ConversationArgs;
use crate::draft_args::DraftArgs;
use crate::editor::LineEditor;
use crate::error::{Error, Result};
use crate::images;
use crate::input::each_line_of_text;
use crate::loading;
use crate::output::{counted, print_note, print_sentences};
use crate::pack_args::PackArgs;
use crate::progress::Show;
use crate::report::{FinishedReply, summary};
use crate::request::check_sampling;
use crate::typed_history::TypedHistory;
use crate::typed_options::TypedOptions;
use dialogue::Dialogue;
use entry::{ChatCommand, Entry, EntryReader, HELP};
use replier::Replier;
use reply_interrupt::ReplyInterrupt;
use saved_file::SavedFiles;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) typed: TypedOptions,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) adapters: AdapterArgs,
    #[command(flatten)]
    pub(super) pack: PackArgs,
    #[command(flatten)]
    pub(super) conversation: ConversationArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) draft: DraftArgs,
    #[command(flatten)]
    pub(super) prompts: PromptCacheArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    /// Plan without the model's image tower: /image is refused.
    #[arg(long)]
    pub(super) no_images: bool,
    /// Print one JSON object per line: for each turn the start, each token, and the end.
    #[arg(long)]
    pub(super) jsonl: bool,
}

/// Opens a model and converses.
///
/// # Errors
/// When the call is wrong, the model has no chat template or fails, or a line of a pipe is wrong.
pub fn run(args: &Args) -> Result<Outcome> {
    let show = args.device.show.show();
    let arch = args.pack.applied(args.adapters.one_beside(&args.model.arch)?);
    let model = loading::open_for_chat(&args.model.model, &arch, &args.conversation.template)?;
    check_sampling(&args.sampling, &args.typed)?;
    if let Some(generation) = &model.files().generation {
        show.detail(loading::generation_note(generation));
    }
    let variables = args.conversation.variables(&model, &args.typed)?;
    // A template that fails does so before the weights are read.
    model.render(&Conversation { variables: variables.clone(), ..Conversation::new() }.user("?"))?;
    let options = loading::options_with_prompts(&model, &args.device, &args.prompts, &args.typed)?;
    let plan = |options| args.draft.plan(&model, options, &args.model.arch, &args.typed, show);
    let plan = match args.no_images {
        true => plan(options)?,
        false => images::plan_if_possible(&model, args.model.arch.mmproj.as_deref(), options, show, plan)?,
    };
    let has_images = plan.tower().is_some();
    plan.machine_default().into_iter().for_each(|sentence| show.note(sentence));
    let context = plan.key().context;
    let session = loading::session(plan, show)?;
    if model.name() == BUILT_IN && !args.conversation.template.has_template() {
        show.note("stories260k has no chat template: messages and replies become one story; begin with 'Once upon a time'");
    }
    let (sampling, interrupt) = (args.sampling.clone(), ReplyInterrupt::default());
    let replier = Replier {
        session,
        adapters: args.adapters.clone(),
        sampling,
        variables,
        shows_thinking: !args.conversation.no_think,
        context,
        interrupt,
        jsonl: args.jsonl,
        show,
        turns: 0,
    };
    let system = args.conversation.system.as_deref();
    let mut chat = ChatLoop {
        args,
        replier,
        dialogue: Dialogue::new(system),
        images: Vec::new(),
        has_images,
        entries: EntryReader::default(),
        files: SavedFiles::default(),
        last: None,
        is_cut: false,
        regenerated: 0,
    };
    if !io::stdin().is_terminal() {
        return chat.read_lines();
    }
    chat.replier.interrupt.listen().map_err(Error::work)?;
    chat.converse()
}

/// The lines that Tab makes of the text before the cursor: commands, and the settings of `/set`.
fn completed(before: &str) -> Vec<String> {
    match before.strip_prefix("/set ") {
        Some(name) => setting::names_beginning_with(name).map(|name| format!("/set {name} ")).collect(),
        None => entry::names_beginning_with(before).map(str::to_owned).collect(),
    }
}

struct ChatLoop<'a> {
    args: &'a Args,
    replier: Replier,
    dialogue: Dialogue,
    /// The images of the next message.
    images: Vec<ImagePatches>,
    /// Whether the model was planned with images.
    has_images: bool,
    entries: EntryReader,
    /// The files that this chat has written or read.
    files: SavedFiles,
    last: Option<FinishedReply>,
    /// Whether the last reply is a part of the conversation and could go on.
    is_cut: bool,
    /// How often `/regen` was used, which decides its seed.
    regenerated: u64,
}

impl ChatLoop<'_> {
    /// Runs the conversation at a terminal.
    fn converse(&mut self) -> Result<Outcome> {
        let show = self.replier.show;
        show.note("/help lists the commands");
        let mut editor = LineEditor::new(completed).map_err(Error::work)?;
        if !self.args.conversation.no_history {
            match TypedHistory::open() {
                Ok(Some((file, lines))) => editor.remember(file, lines),
                Ok(None) => {}
                Err(Error::Work(sentence)) => {
                    show.note(format!("the history of typed lines is not used: {sentence}"));
                }
                Err(error) => return Err(error),
            }
        }
        let mut is_leaving = false;
        loop {
            let prompt = if self.entries.is_open() { ". " } else { "> " };
            match editor.line(prompt) {
                Ok(line) => {
                    is_leaving = false;
                    match self.line(&line) {
                        Ok(ControlFlow::Break(())) => return Ok(Outcome::Done),
                        Ok(ControlFlow::Continue(())) => {}
                        Err(Error::Work(sentence) | Error::Call(sentence)) => {
                            print_note(format_args!("girih: {sentence}"));
                        }
                        Err(error) => return Err(error),
                    }
                }
                // It drops what was typed, and only on an empty line it is about leaving.
                Err(ReadlineError::Interrupted) if editor.had_text() || self.entries.is_open() => {
                    is_leaving = false;
                    self.entries.drop_open();
                }
                Err(ReadlineError::Interrupted) if is_leaving => return Ok(Outcome::Done),
                Err(ReadlineError::Interrupted) => {
                    is_leaving = true;
                    show.note("Ctrl-C again, Ctrl-D or /bye leaves");
                }
                Err(ReadlineError::Eof) => return Ok(Outcome::Done),
                Err(error) => return Err(Error::work(error)),
            }
        }
    }

    /// Runs the conversation from a pipe, one entry per line, up to the first error.
    fn read_lines(&mut self) -> Result<Outcome> {
        let mut has_left = false;
        each_line_of_text(|line| {
            let flow = self.line(line)?;
            has_left = flow.is_break();
            Ok(flow)
        })?;
        if self.entries.is_open() && !has_left {
            return Err(Error::call("a message that \"\"\" opened has no end: close it with \"\"\""));
        }
        Ok(Outcome::Done)
    }

    /// Takes a line, and executes the entry that it completes. Breaks on `/bye`.
    fn line(&mut self, line: &str) -> Result<ControlFlow<()>> {
        match self.entries.take(line)? {
            None => {}
            Some(Entry::Message(text)) => self.turn(&text)?,
            Some(Entry::Command(command)) => return self.command(command),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Executes a command. Breaks on `/bye`.
    fn command(&mut self, command: ChatCommand) -> Result<ControlFlow<()>> {
        let answer = match command {
            ChatCommand::Bye => return Ok(ControlFlow::Break(())),
            ChatCommand::Regen => return self.regenerate().map(ControlFlow::Continue),
            ChatCommand::Continue => return self.go_on().map(ControlFlow::Continue),
            ChatCommand::Help => HELP.to_owned(),
            ChatCommand::Stats => match &self.last {
                None => "no reply yet".to_owned(),
                Some(reply) => summary(reply, self.args.device.backend.choice()?.info().is_simulated),
            },
            ChatCommand::System(None) => match self.dialogue.system() {
                Some(text) => format!("system message: {text}"),
                None => "no system message; /system TEXT sets one".to_owned(),
            },
            ChatCommand::System(Some(text)) => {
                self.begin(Dialogue::new(Some(&text)));
                "system message set; a new conversation began".to_owned()
            }
            ChatCommand::Clear => {
                let system = self.dialogue.system().map(str::to_owned);
                self.begin(Dialogue::new(system.as_deref()));
                "a new conversation began".to_owned()
            }
            ChatCommand::Undo => {
                self.is_cut = false;
                match self.dialogue.undo() {
                    Some(text) => format!("removed {} and its reply", quote(&text)),
                    None => "no message to remove".to_owned(),
                }
            }
            ChatCommand::Truncate => {
                self.replier.sampling.overflow = OverflowMode::Truncate;
                "from now on, the oldest tokens are dropped when the context is full".to_owned()
            }
            ChatCommand::Set(None) => self.replier.settings(),
            ChatCommand::Set(Some(text)) => self.replier.set(&text)?,
            ChatCommand::Show => self.replier.described(&self.dialogue)?,
            ChatCommand::Image(path) => {
                self.add(|model, show| images::patches(model, Path::new(&path), show), "image")?
            }
            ChatCommand::Frames(text) => {
                self.add(|model, show| images::stated_video(model, &text, show), "video")?
            }
            ChatCommand::Save(_) if !self.dialogue.images().is_empty() => {
                return Err(Error::call(
                    "a conversation with images cannot be saved; /undo removes a message",
                ));
            }
            ChatCommand::Save(path) => {
                self.files.save(&self.dialogue, Path::new(&path))?;
                format!("saved {}", self.size())
            }
            ChatCommand::Load(path) => {
                let dialogue = self.files.load(Path::new(&path))?;
                self.begin(dialogue);
                format!("loaded {}", self.size())
            }
        };
        self.answer(&answer).map(ControlFlow::Continue)
    }

    /// Replaces the conversation.
    fn begin(&mut self, dialogue: Dialogue) {
        self.dialogue = dialogue;
        self.images.clear();
        self.last = None;
        self.is_cut = false;
    }

    /// Adds an image or a video to the next message.
    fn add(&mut self, read: impl FnOnce(&Model, Show) -> Result<ImagePatches>, name: &str) -> Result<String> {
        let model = self.replier.session.model();
        model.image_format()?;
        if !self.has_images {
            return Err(Error::call(
                "the model was loaded without its image tower: -v says why, or omit --no-images",
            ));
        }
        let is_video = |image: &&ImagePatches| image.seconds().is_some() == (name == "video");
        self.images.push(read(model, self.replier.show)?);
        Ok(format!("the next message has {}", counted(self.images.iter().filter(is_video).count(), name)))
    }

    fn size(&self) -> String {
        counted(self.dialogue.messages().len(), "message")
    }

    /// Shows the answer to a command: among the replies, but not among events.
    fn answer(&self, text: &str) -> Result<()> {
        if self.args.jsonl {
            print_note(text);
            return Ok(());
        }
        print_sentences(text)
    }

    /// Generates the answer to a message. If that fails, or stops before its first text, neither is
    /// kept.
    fn turn(&mut self, text: &str) -> Result<()> {
        let mut dialogue = self.dialogue.clone();
        dialogue.ask(text, self.images.clone());
        let reply = self.replier.reply(&dialogue, 0)?;
        self.images.clear();
        self.keep(dialogue, reply);
        Ok(())
    }

    /// Generates the last reply again. If that fails, the old one is kept.
    fn regenerate(&mut self) -> Result<()> {
        let Some(dialogue) = self.dialogue.up_to_question() else {
            return self.answer("no message to reply to");
        };
        if self.replier.is_greedy() {
            self.replier
                .show
                .note("[the temperature is 0, so the reply is the same; /set temp sets another]");
        }
        let reply = self.replier.reply(&dialogue, self.regenerated + 1)?;
        self.regenerated += 1;
        self.keep(dialogue, reply);
        Ok(())
    }

    /// Generates the rest of the last reply, if something cut it.
    fn go_on(&mut self) -> Result<()> {
        let (Some(dialogue), Some(begun), true) = (self.dialogue.up_to_question(), &self.last, self.is_cut)
        else {
            return self.answer("no reply to continue: the model has ended the last one, or there is none");
        };
        if !begun.message.calls.is_empty() {
            return self.answer("a reply with calls of tools cannot be continued; /regen generates it again");
        }
        let reply = self.replier.rest(&dialogue, begun)?;
        self.keep(dialogue, reply);
        Ok(())
    }

    fn keep(&mut self, mut dialogue: Dialogue, reply: FinishedReply) {
        let message = &reply.message;
        if reply.stop == Stop::Cancelled && message.content.is_empty() && message.calls.is_empty() {
            self.replier.show.note("[stopped before the reply began, so nothing was kept]");
            return;
        }
        dialogue.answer(message);
        self.dialogue = dialogue;
        self.is_cut = matches!(reply.stop, Stop::Length | Stop::Context | Stop::Cancelled);
        self.last = Some(reply);
    }
}
