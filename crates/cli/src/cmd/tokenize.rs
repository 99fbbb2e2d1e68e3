//! `girih tokenize`: text to ids.

use std::path::{Path, PathBuf};

use girih_words::{Ends, Origin, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Outcome, print_json};
use crate::error::{Error, Result};
use crate::input::{each_line, standard_input};
use crate::loading::Place;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder that holds a tokenizer, a .gguf file, an id in the cache, or stories260k.
    model: String,
    /// The text; without it, standard input.
    #[arg(conflicts_with = "jsonl")]
    text: Option<String>,
    /// Show each token's text.
    #[arg(long)]
    explain: bool,
    /// Add the tokens that open and close a text, and let special tokens that it spells be special.
    #[arg(long)]
    special: bool,
    /// One request a line, {"text": …, "special": false}; one answer a line; '-' is standard input.
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A line of `--jsonl`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    text: String,
    /// Whether the tokens that open and close a text are added.
    #[serde(default)]
    special: bool,
    /// Whether special tokens that the text spells stay text.
    #[serde(default)]
    plain: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let words = Place::find(&args.model)?.words()?;
    if let Some(file) = &args.jsonl {
        return lines(file, |line| {
            let request: Request = serde_json::from_str(line).map_err(Error::work)?;
            let origin = if request.plain { Origin::User } else { Origin::Template };
            let ends = if request.special { Ends::Add } else { Ends::Omit };
            Ok(json!({"ids": words.tokenizer.encode(&request.text, origin, ends)?}))
        });
    }
    let text = match &args.text {
        Some(text) => text.clone(),
        None => standard_input()?,
    };
    let (origin, ends) =
        if args.special { (Origin::Template, Ends::Add) } else { (Origin::User, Ends::Omit) };
    let ids = words.tokenizer.encode(&text, origin, ends)?;
    show(&words.tokenizer, &ids, args)?;
    Ok(Outcome::Done)
}

fn show(tokenizer: &Tokenizer, ids: &[u32], args: &Args) -> Result<()> {
    let token = |id: &u32| tokenizer.token(*id).unwrap_or_default().to_owned();
    if args.json {
        let mut answer = json!({"ids": ids});
        if args.explain {
            answer["tokens"] = ids.iter().map(token).collect();
        }
        return print_json(&answer);
    }
    if args.explain {
        for id in ids {
            let special = if tokenizer.is_special(*id) { "  special" } else { "" };
            print_line!("{id:>8}  {:?}{special}", token(id))?;
        }
        return Ok(());
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    print_line!("{}", ids.join(" "))?;
    Ok(())
}

/// Answers each line of a file, errors as `{"error": …}`.
///
/// # Errors
/// When the file cannot be read, or a line is too long.
pub fn lines(file: &Path, mut answer: impl FnMut(&str) -> Result<Value>) -> Result<Outcome> {
    each_line(file, |line| {
        let line = String::from_utf8(line);
        if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
            return Ok(());
        }
        let line = line.map_err(|error| Error::work(format!("the line is no UTF-8: {error}")));
        match line.and_then(|line| answer(&line)) {
            Ok(value) => print_json(&value),
            Err(Error::Work(sentence) | Error::Call(sentence)) => print_json(&json!({"error": sentence})),
            Err(error) => Err(error),
        }
    })?;
    Ok(Outcome::Done)
}
