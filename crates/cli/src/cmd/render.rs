//! `girih render`: applies the model's chat template to a conversation.

use std::path::PathBuf;

use girih::{Conversation, TextOrigin, TextSpan};
use girih_file::shorten;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::outcome::Outcome;
use super::tokenize::answer_lines;
use crate::error::{Error, Result};
use crate::input::text_argument;
use crate::loading::{open_options, open_text_processor};
use crate::output::{print, print_json};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with a tokenizer and a chat template, .gguf file, or id in the cache.
    model: String,
    /// Message of the user; '-' is standard input [default: standard input].
    #[arg(conflicts_with = "jsonl")]
    text: Option<String>,
    /// System message.
    #[arg(long, value_name = "TEXT", conflicts_with = "jsonl")]
    system: Option<String>,
    /// Omit the tokens that open the reply; a line of --jsonl may say otherwise.
    #[arg(long)]
    no_generation_prompt: bool,
    /// File with one request per line: {"messages": […], "tools": […], "documents": […], "add_generation_prompt": true, …};
    /// other keys are variables of the template; '-' is standard input. Prints one answer per line.
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Print one JSON object: the text, split by whether it came from the template or from a special token that the user spelled.
    #[arg(long, conflicts_with = "jsonl")]
    json: bool,
}

/// A line of `--jsonl`.
#[derive(Debug, Deserialize)]
struct RenderLine {
    messages: Vec<Value>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default)]
    documents: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
    /// All other keys are variables of the template.
    #[serde(flatten)]
    variables: Map<String, Value>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let options = open_options()?;
    let processor = open_text_processor(&args.model, &options)?;
    let mut renderer = options.renderer();
    if let Some(file) = &args.jsonl {
        return answer_lines(file, |line| {
            let request: RenderLine =
                serde_json::from_str(line).map_err(|error| Error::work(shorten(error)))?;
            let begins_reply = request.add_generation_prompt.unwrap_or(!args.no_generation_prompt);
            let conversation = Conversation {
                messages: request.messages,
                tools: request.tools,
                documents: request.documents,
                add_generation_prompt: begins_reply,
                continues_last: request.continue_final_message,
                variables: request.variables,
            };
            Ok(json!({"text": joined(&processor.render(&mut renderer, &conversation)?)}))
        });
    }
    let text = text_argument(args.text.as_deref(), "text")?;
    let conversation =
        Conversation { add_generation_prompt: !args.no_generation_prompt, ..Conversation::default() };
    let conversation = match &args.system {
        Some(system) => conversation.system(system),
        None => conversation,
    };
    let conversation = conversation.user(text);
    let spans = processor.render(&mut renderer, &conversation)?;
    if args.json {
        let spans: Vec<Value> = spans.iter().map(described).collect();
        print_json(&json!({"spans": spans}))?;
    } else {
        print(joined(&spans))?;
    }
    Ok(Outcome::Done)
}

fn joined(spans: &[TextSpan]) -> String {
    spans.iter().map(|span| span.text.as_str()).collect()
}

fn described(span: &TextSpan) -> Value {
    let origin = match span.origin {
        TextOrigin::Template => "template",
        TextOrigin::User => "user",
    };
    json!({"text": span.text, "origin": origin})
}
