//! `girih render`: a conversation through the model's chat template.

use std::path::PathBuf;

use girih_words::template::Conversation;
use girih_words::{Origin, Span};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat::{render, renderer};
use super::tokenize::lines;
use super::{Outcome, print_json};
use crate::error::{Error, Result};
use crate::loading::Place;
use crate::output::print;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder that holds a tokenizer and a template, a .gguf file, or an id in the cache.
    model: String,
    /// What the user says.
    #[arg(conflicts_with = "jsonl", required_unless_present = "jsonl")]
    text: Option<String>,
    /// The system message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Leave out the tokens that open the reply.
    #[arg(long)]
    no_generation_prompt: bool,
    /// One request a line: {"messages": […], "tools": […], "documents": […], "add_generation_prompt": true, …};
    /// other keys are variables of the template. One answer a line; '-' is standard input.
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Print JSON: the text, and which of it the user spelled as special tokens.
    #[arg(long)]
    json: bool,
}

/// A line of `--jsonl`.
#[derive(Debug, Deserialize)]
struct Request {
    messages: Vec<Value>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    documents: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    /// Everything else is a variable of the template.
    #[serde(flatten)]
    variables: Map<String, Value>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let words = Place::find(&args.model)?.words()?;
    let mut renderer = renderer()?;
    if let Some(file) = &args.jsonl {
        return lines(file, |line| {
            let request: Request = serde_json::from_str(line).map_err(Error::work)?;
            let Request { messages, tools, documents, add_generation_prompt, variables } = request;
            let conversation = Conversation { messages, tools, documents, add_generation_prompt, variables };
            Ok(json!({"text": joined(&render(&mut renderer, &words, &conversation)?)}))
        });
    }
    let mut messages: Vec<Value> = Vec::new();
    messages.extend(args.system.as_ref().map(|text| json!({"role": "system", "content": text})));
    messages.extend(args.text.as_ref().map(|text| json!({"role": "user", "content": text})));
    let conversation = Conversation {
        messages,
        add_generation_prompt: !args.no_generation_prompt,
        ..Conversation::default()
    };
    let spans = render(&mut renderer, &words, &conversation)?;
    if args.json {
        let spans: Vec<Value> = spans.iter().map(described).collect();
        print_json(&json!({"spans": spans}))?;
    } else {
        print(joined(&spans))?;
    }
    Ok(Outcome::Done)
}

fn joined(spans: &[Span]) -> String {
    spans.iter().map(|span| span.text.as_str()).collect()
}

fn described(span: &Span) -> Value {
    let origin = match span.origin {
        Origin::Template => "template",
        Origin::User => "user",
    };
    json!({"text": span.text, "origin": origin})
}
