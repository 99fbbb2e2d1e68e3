//! `girih embed`: turns texts into vectors.

use serde_json::json;

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::Result;
use crate::input::standard_input;
use crate::loading;
use crate::output::print_json;

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
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (text, vector) in texts.iter().zip(embedder.embed(&texts)?) {
        if args.json {
            print_json(&json!({"text": text, "embedding": vector}))?;
        } else {
            let values: Vec<String> = vector.iter().map(f32::to_string).collect();
            print_line!("{}", values.join(" "))?;
        }
    }
    Ok(Outcome::Done)
}
