//! `girih tokenize`: converts text to token ids.

use std::path::{Path, PathBuf};

use girih::{BosEos, TextOrigin};
use girih_file::shorten;
use girih_words::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::error::{Error, Result};
use crate::input::{each_line, standard_input};
use crate::loading::{open_options, open_text_processor};
use crate::output::print_json;
use crate::visible::capped;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with a tokenizer, .gguf file, id in the cache, or stories260k.
    model: String,
    /// Text [default: standard input].
    #[arg(conflicts_with = "jsonl")]
    text: Option<String>,
    /// Show the text of each token.
    #[arg(long)]
    explain: bool,
    /// Add the tokens that open and close a text, and parse special tokens in it.
    #[arg(long)]
    special: bool,
    /// File with one request per line: {"text": …, "special": false}; '-' is standard input. Prints one answer per line.
    #[arg(long, value_name = "FILE")]
    jsonl: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A line of `--jsonl`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizeLine {
    text: String,
    /// Whether to add the tokens that open and close a text.
    #[serde(default)]
    special: bool,
    /// Whether special tokens in the text stay text.
    #[serde(default)]
    plain: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let processor = open_text_processor(&args.model, &open_options()?)?;
    if let Some(file) = &args.jsonl {
        return answer_lines(file, |line| {
            let request: TokenizeLine =
                serde_json::from_str(line).map_err(|error| Error::work(shorten(error)))?;
            let origin = if request.plain { TextOrigin::User } else { TextOrigin::Template };
            let bos_eos = if request.special { BosEos::Add } else { BosEos::Omit };
            Ok(json!({"ids": processor.tokenizer.encode(&request.text, origin, bos_eos)?}))
        });
    }
    let text = match &args.text {
        Some(text) => text.clone(),
        None => standard_input()?,
    };
    let (origin, bos_eos) =
        if args.special { (TextOrigin::Template, BosEos::Add) } else { (TextOrigin::User, BosEos::Omit) };
    let ids = processor.tokenizer.encode(&text, origin, bos_eos)?;
    show(&processor.tokenizer, &ids, args)?;
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

/// Prints the answer to each line of a file, or `{"error": …}`.
///
/// # Errors
/// When the file cannot be read, or a line is too long.
pub fn answer_lines(file: &Path, mut answer: impl FnMut(&str) -> Result<Value>) -> Result<Outcome> {
    each_line(file, |line| {
        let line = String::from_utf8(line);
        if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
            return Ok(());
        }
        let line = line.map_err(|error| Error::work(format!("the line is not valid UTF-8: {error}")));
        match line.and_then(|line| answer(&line)) {
            Ok(value) => print_json(&value),
            Err(Error::Work(sentence) | Error::Call(sentence)) => {
                print_json(&json!({"error": capped(&sentence)}))
            }
            Err(error) => Err(error),
        }
    })?;
    Ok(Outcome::Done)
}
