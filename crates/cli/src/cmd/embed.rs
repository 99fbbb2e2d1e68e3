//! `girih embed`: turns texts into vectors.

use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::input::{standard_input, text_argument};
use crate::loading;
use crate::output::print_json;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Texts; prints one line of numbers for each; '-' is standard input as one text [default: standard input].
    text: Vec<String>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object: the texts and their vectors.
    #[arg(long, conflicts_with = "jsonl")]
    json: bool,
    /// Print one JSON object per line: a text and its vector.
    #[arg(long)]
    jsonl: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_model(&args.model)?;
    let texts = texts(&args.text)?;
    let plan = loading::plan(&model, &args.device, 1)?;
    let (bar, watch) = loading::watch(args.device.show.show());
    let mut embedder = plan.load_embedder(watch)?;
    bar.finish_and_clear();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let vectors = embedder.embed(&texts)?;
    let described = |(text, vector): (&&str, &Vec<f32>)| json!({"text": text, "embedding": vector});
    if args.json {
        let embeddings: Vec<Value> = texts.iter().zip(&vectors).map(described).collect();
        print_json(&json!({"embeddings": embeddings}))?;
    } else if args.jsonl {
        texts.iter().zip(&vectors).try_for_each(|pair| print_json(&described(pair)))?;
    } else {
        for vector in &vectors {
            let values: Vec<String> = vector.iter().map(f32::to_string).collect();
            print_line!("{}", values.join(" "))?;
        }
    }
    Ok(Outcome::Done)
}

/// The texts of the arguments.
fn texts(arguments: &[String]) -> Result<Vec<String>> {
    if arguments.is_empty() {
        return Ok(vec![text_argument(None, "text")?]);
    }
    if arguments.iter().filter(|text| *text == "-").count() > 1 {
        return Err(Error::call("'-' is given twice, but there is one standard input; give it once"));
    }
    let text = |text: &String| if text == "-" { standard_input() } else { Ok(text.clone()) };
    arguments.iter().map(text).collect()
}
