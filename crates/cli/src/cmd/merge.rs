//! `girih merge`: writes a model with an adapter in its weights.

use std::path::PathBuf;
use std::time::Instant;

use girih_model::ModelLimits;
use serde_json::json;

use super::outcome::Outcome;
use crate::args::{ModelArgs, ShowArgs};
use crate::error::Result;
use crate::loading;
use crate::output::{bytes, counted, print_json};
use crate::progress::{Show, Unit};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Adapter (LoRA): a folder of PEFT.
    adapter: PathBuf,
    /// Output: a folder; it must not exist yet.
    out: PathBuf,
    #[command(flatten)]
    show: ShowArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_model(&args.model)?;
    let limits = ModelLimits::DEFAULT;
    let mut adapter = model.files().open_adapter(&args.adapter, &limits)?;
    if adapter.replaced().next().is_none() {
        // The checks are those of a model that runs with the adapter.
        let mut beside = loading::open_model(&args.model)?.into_files().expect("it has no clones");
        beside.add_adapters(vec![adapter], &limits)?;
        adapter = model.files().open_adapter(&args.adapter, &limits)?;
    }
    let (show, begun) = (args.show.show(), Instant::now());
    let bar = show.bar("writing", 0, Unit::Things("weights"));
    let report = girih_convert::merge(model.files(), &adapter, &args.out, &mut |progress| {
        bar.set(progress.done, progress.total);
    })?;
    bar.finish_and_clear();
    let (seconds, size) = (begun.elapsed().as_secs_f64(), std::fs::metadata(&report.weights)?.len());
    let changed = report.tensors.iter().filter(|tensor| tensor.note.is_some()).count();
    if args.json {
        let fields = json!({"out": args.out, "bytes": size, "seconds": seconds, "changed": changed, "tensors": report.tensors.len()});
        print_json(&fields)?;
    } else if show != Show::Nothing {
        let (out, all) = (args.out.display(), counted(report.tensors.len(), "tensor"));
        print_line!("wrote {out}: {}, {changed} of {all} changed, in {seconds:.1} s", bytes(size))?;
    }
    Ok(Outcome::Done)
}
