//! A server whose model says what a script says, for tests of clients and agents:
//! `cargo run --release -p girih-serve --example scripted -- MODEL [CONTEXT] <script.json`. It logs each request with its body
//! to standard error.
//!
//! The script is a JSON list of objects with `when` and `then`. If the last message of a request contains the text
//! `when` of an entry, its reply is `then`, with thinking and calls as the model's style spells them. The
//! first such entry counts; without one, the reply is the model's own. The model runs as always and
//! chooses how its tokens spell the text, so all but the choice of the text is what any client meets.

use std::sync::Arc;

use girih::{
    Constraint, Error, ErrorKind, Model, OpenOptions, Prompt, Request, Result, RunOptions, ToolChoice,
};
use girih_serve::observe::AccessLog;
use girih_serve::{RequestHook, ServeOptions, ServedModel, Server};
use serde::Deserialize;

/// What the model says when.
#[derive(Deserialize)]
struct ScriptEntry {
    when: String,
    then: String,
}

/// Allows the tokens that spell a text.
struct ScriptSpelling {
    /// The bytes of each token.
    tokens: Arc<Vec<Vec<u8>>>,
    rest: Vec<u8>,
}

impl Constraint for ScriptSpelling {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        for (index, allowed) in allowed.iter_mut().enumerate() {
            let token = self.tokens.get(index).filter(|token| !token.is_empty());
            *allowed = token.is_some_and(|token| self.rest.starts_with(token));
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        self.rest.drain(..self.tokens[id as usize].len());
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.rest.is_empty()
    }
}

/// The entry that counts for a prompt.
fn entry<'a>(script: &'a [ScriptEntry], prompt: &Prompt) -> Option<&'a ScriptEntry> {
    let Prompt::Conversation(conversation) = prompt else { return None };
    let last = conversation.messages.last()?.to_string();
    script.iter().find(|entry| last.contains(&entry.when))
}

/// The bytes of all tokens of a model.
fn token_bytes(model: &Model) -> Result<Vec<Vec<u8>>> {
    let tokenizer = &model.text_processor()?.tokenizer;
    Ok((0..tokenizer.vocab_size()).map(|id| tokenizer.token_bytes(id)).collect())
}

/// A hook that makes replies follow the script.
fn hook(script: Vec<ScriptEntry>, tokens: Arc<Vec<Vec<u8>>>) -> RequestHook {
    RequestHook::new(move |_: &Model, prompt: &Prompt, request: Request| match entry(&script, prompt) {
        None => request,
        Some(entry) => {
            let spelling =
                ScriptSpelling { tokens: Arc::clone(&tokens), rest: entry.then.clone().into_bytes() };
            // The script decides whether the reply is a call.
            request.tool_choice(ToolChoice::Auto).constraint(Box::new(spelling))
        }
    })
}

fn main() -> Result<()> {
    let usage = || Error::with_kind(ErrorKind::Refused, "usage: scripted MODEL [CONTEXT] <script.json");
    let source = std::env::args().nth(1).ok_or_else(usage)?;
    let context =
        std::env::args().nth(2).map(|context| context.parse::<u32>().map_err(|_| usage())).transpose()?;
    let script: Vec<ScriptEntry> = serde_json::from_reader(std::io::stdin())
        .map_err(|error| Error::with_kind(ErrorKind::Refused, format!("the script is no list: {error}")))?;
    let model = Model::open(&source)?;
    let tokens = Arc::new(token_bytes(&model)?);
    let name = model.name().rsplit('/').next().unwrap_or_default().to_owned();
    let open_options = OpenOptions::default();
    let run_options = RunOptions { sequences: 4, context, ..RunOptions::default() };
    let is_loaded_on_request = false;
    let served = ServedModel {
        name,
        source,
        open_options,
        run_options,
        is_loaded_on_request,
        unload_idle: None,
        version: None,
    };
    let options = ServeOptions {
        port: 0,
        request_hook: Some(hook(script, tokens)),
        access_log: Some(AccessLog::new(std::io::stderr(), true)),
        ..ServeOptions::new(vec![served])
    };
    let server = Server::start(options)?;
    let signals = server.catch_signals()?;
    println!("listening on http://{}", server.address());
    server.run_until(signals);
    Ok(())
}
