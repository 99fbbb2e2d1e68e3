//! `girih embed`: turns texts into vectors.

use serde_json::json;

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::Result;
use crate::input::standard_input;
use crate::loading;
use crate::output::print_json;
use crate::progress::Unit;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Texts; prints one line of numbers for each [default: standard input as one text].
    text: Vec<String>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print one JSON object for each text: the text and its vector.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_model(&args.model)?;
    let texts = if args.text.is_empty() { vec![standard_input()?] } else { args.text.clone() };
    let plan = loading::plan(&model, &args.device, 1)?;
    let (bar, watch) = loading::watch(args.device.show.show());
    let mut embedder = plan.load_embedder(watch)?;
    bar.finish_and_clear();
    let bar = args.device.show.show().bar("embedding", 0, Unit::Things("texts"));
    // A vector does not depend on the other texts, and a step has room for one.
    for (index, text) in texts.iter().enumerate() {
        for vector in embedder.embed(&[text])? {
            bar.pause(|| print_vector(text, &vector, args.json))?;
        }
        bar.set(index as u64 + 1, texts.len() as u64);
    }
    bar.finish_and_clear();
    Ok(Outcome::Done)
}

fn print_vector(text: &str, vector: &[f32], as_json: bool) -> Result<()> {
    if as_json {
        return print_json(&json!({"text": text, "embedding": vector}));
    }
    let values: Vec<String> = vector.iter().map(f32::to_string).collect();
    print_line!("{}", values.join(" "))
}
