//! `girih chat`: a conversation. Earlier turns stay in the KV cache, so each turn
//! prefills only new tokens.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use girih_engine::{Engine, Stop};
use girih_model::Model;
use girih_words::template::{Conversation, RenderLimits, RenderRequest, Renderer, WORKER_COMMAND};
use girih_words::{BosEos, TextProcessor, TextSpan};
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs, SamplingArgs};
use crate::error::{Error, Result};
use crate::generate::{Reply, generate, reply_json, summary};
use crate::input::each_line_of_text;
use crate::loading::{self, ModelLocation};
use crate::output::{print_json, print_note, stream};
use crate::progress::Show;
use crate::request::request;

const HELP: &str = "/system TEXT  set the system message and start a new conversation
/clear        start a new conversation
/undo         forget the last turn
/stats        show the counts and times of the last reply
/help         show this
/quit         leave, like Ctrl-D; Ctrl-C stops a reply";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Print a line of JSON after each reply.
    #[arg(long)]
    json: bool,
}

/// The renderer of chat templates: a process of this same program.
///
/// # Errors
/// When the path of this program is unknown.
pub fn renderer() -> Result<Renderer> {
    Ok(Renderer::new(std::env::current_exe()?, vec![WORKER_COMMAND.into()], RenderLimits::default()))
}

/// Renders a conversation with the model's template.
///
/// # Errors
/// When the model has no template, or rendering fails.
pub fn render(
    renderer: &mut Renderer,
    processor: &TextProcessor,
    conversation: &Conversation,
) -> Result<Vec<TextSpan>> {
    let template = processor
        .template
        .as_ref()
        .ok_or_else(|| Error::work("the model has no chat template; 'girih run' needs none"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(renderer.render(&RenderRequest {
        template: template.source(conversation.tools.as_deref())?,
        variables: &template.variables,
        special_tokens: &processor.special,
        conversation,
        unix_seconds: i64::try_from(now).unwrap_or(i64::MAX),
    })?)
}

pub fn run(args: &Args) -> Result<Outcome> {
    let show = Show::unless(args.device.quiet);
    let location = ModelLocation::find(&args.model.model)?;
    let model = location.model(&args.model.arch)?;
    let processor = location.text_processor_of(&model)?;
    if let Some(generation) = &model.generation {
        show.note(loading::generation_note(generation));
    }
    let mut chat = Chat {
        args,
        show,
        model: &model,
        processor: &processor,
        renderer: renderer()?,
        messages: opening(args.system.as_deref()),
        last: None,
        cancelled: Arc::new(AtomicBool::new(false)),
    };
    render(&mut chat.renderer, &processor, &conversation(&[json!({"role": "user", "content": "?"})]))?;
    let mut engine = loading::engine(&model, &args.device, 1)?;
    let flag = Arc::clone(&chat.cancelled);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).map_err(Error::work)?;
    if io::stdin().is_terminal() { chat.converse(&mut engine) } else { chat.read_lines(&mut engine) }
}

fn opening(system: Option<&str>) -> Vec<Value> {
    system.map(|text| json!({"role": "system", "content": text})).into_iter().collect()
}

fn conversation(messages: &[Value]) -> Conversation {
    Conversation { messages: messages.to_vec(), add_generation_prompt: true, ..Conversation::default() }
}

struct Chat<'a> {
    args: &'a Args,
    show: Show,
    model: &'a Model,
    processor: &'a TextProcessor,
    renderer: Renderer,
    messages: Vec<Value>,
    last: Option<Reply>,
    cancelled: Arc<AtomicBool>,
}

impl<'a> Chat<'a> {
    /// Runs the conversation at a terminal.
    fn converse(&mut self, engine: &mut Engine) -> Result<Outcome> {
        self.show.note("/help lists the commands");
        let mut editor = rustyline::DefaultEditor::new().map_err(Error::work)?;
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    // A full history is no error.
                    let _ = editor.add_history_entry(&line);
                    match self.line(engine, &line) {
                        Ok(ControlFlow::Break(())) => return Ok(Outcome::Done),
                        Ok(ControlFlow::Continue(())) => {}
                        Err(Error::Work(sentence) | Error::Call(sentence)) => {
                            print_note(format_args!("girih: {sentence}"))
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(rustyline::error::ReadlineError::Interrupted) => {}
                Err(rustyline::error::ReadlineError::Eof) => return Ok(Outcome::Done),
                Err(error) => return Err(Error::work(error)),
            }
        }
    }

    /// Runs the conversation from a pipe, one turn per line, up to the first error.
    fn read_lines(&mut self, engine: &mut Engine) -> Result<Outcome> {
        each_line_of_text(|line| self.line(engine, line))?;
        Ok(Outcome::Done)
    }

    /// Executes a line: a command, or a message of the user. Breaks on `/quit`.
    fn line(&mut self, engine: &mut Engine, line: &str) -> Result<ControlFlow<()>> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "" => {}
            "/quit" | "/exit" => return Ok(ControlFlow::Break(())),
            "/help" => print_line!("{HELP}")?,
            "/clear" => self.messages = opening(self.args.system.as_deref()),
            "/system" => self.messages = opening(Some(rest)),
            "/undo" => self.undo(),
            "/stats" => print_line!("{}", self.last.as_ref().map_or("no reply yet".to_owned(), summary))?,
            _ if command.starts_with('/') => {
                return Err(Error::call(format!("unknown command '{command}'; /help lists them")));
            }
            _ => self.turn(engine, line)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Removes the last question and its answer.
    fn undo(&mut self) {
        let question = self.messages.iter().rposition(|message| message["role"] == "user");
        self.messages.truncate(question.unwrap_or(self.messages.len()));
    }

    /// Generates the answer to a question. If that fails, neither is kept.
    fn turn(&mut self, engine: &mut Engine, line: &str) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": line}));
        let (prompt, reply) = self.reply(engine).inspect_err(|_| {
            self.messages.pop();
        })?;
        self.messages.push(json!({"role": "assistant", "content": reply.text}));
        if self.args.json {
            print_json(&reply_json(&prompt, &reply))?;
        }
        self.last = Some(reply);
        Ok(())
    }

    /// Returns the tokens of the whole conversation, and the model's reply.
    fn reply(&mut self, engine: &mut Engine) -> Result<(Vec<u32>, Reply)> {
        let spans = render(&mut self.renderer, self.processor, &conversation(&self.messages))?;
        let tokens = self.processor.tokenizer.encode_spans(&spans, BosEos::Omit)?;
        let request =
            request(tokens.clone(), &self.args.sampling, self.model, self.processor, engine.limits().context);
        self.cancelled.store(false, Ordering::Relaxed);
        let cancelled = || self.cancelled.load(Ordering::Relaxed);
        let reply = generate(engine, request, self.processor, cancelled, stream)?;
        print_line!("")?;
        match reply.stop {
            Stop::Length => self.show.note("[the reply ended at the limit of --max-tokens]"),
            Stop::Context => self.show.note("[the reply ended because the context is full]"),
            Stop::Token(_) | Stop::String(_) | Stop::Complete | Stop::Cancelled => {}
        }
        Ok((tokens, reply))
    }
}
