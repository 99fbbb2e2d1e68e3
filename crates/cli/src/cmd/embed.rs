//! `girih embed`: turns texts into vectors.

use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::input::{standard_input, text_argument};
use crate::loading;
use crate::output::print_json;
use crate::pack_args::PackArgs;
use crate::progress::Unit;

// An encoder has no KV cache; variables and keys for other commands set it all the same.
#[derive(Debug, clap::Args)]
#[command(mut_arg("kv", |kv| kv.hide(true)))]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Texts; prints one line of numbers for each; '-' is standard input as one text [default: standard input].
    text: Vec<String>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    pack: PackArgs,
    /// Print one JSON object: the texts and their vectors.
    #[arg(long, conflicts_with = "jsonl")]
    json: bool,
    /// Print one JSON object per line: a text and its vector.
    #[arg(long)]
    jsonl: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_packed(&args.model, args.pack)?;
    let texts = texts(&args.text)?;
    let plan = loading::plan(&model, &args.device, 1)?;
    let activations = plan.numerics().name();
    let (bar, watch) = loading::watch(args.device.show.show());
    let mut embedder = plan.load_embedder(watch)?;
    bar.finish_and_clear();
    let bar = args.device.show.show().bar("embedding", 0, Unit::Things("texts"));
    let mut embeddings = Vec::new();
    // A vector does not depend on the other texts, and a step has room for one.
    for (index, text) in texts.iter().enumerate() {
        for vector in embedder.embed(&[text])? {
            match args.json {
                true => embeddings.push(described(text, &vector)),
                false => bar.pause(|| print_vector(text, &vector, args.jsonl))?,
            }
        }
        bar.set(index as u64 + 1, texts.len() as u64);
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&json!({"activations": activations, "embeddings": embeddings}))?;
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

fn described(text: &str, vector: &[f32]) -> Value {
    json!({"text": text, "embedding": vector})
}

fn print_vector(text: &str, vector: &[f32], as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&described(text, vector));
    }
    let values: Vec<String> = vector.iter().map(f32::to_string).collect();
    print_line!("{}", values.join(" "))
}
