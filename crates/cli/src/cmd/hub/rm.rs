//! `girih rm`: removes models, or packed weights.

use serde_json::json;

use crate::cmd::outcome::Outcome;
use crate::error::Result;
use crate::loading::{environment, open_options};
use crate::model_name;
use crate::output::{bytes, counted, print_json};
use crate::packed_weights::packed_folder;

#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// org/name for all revisions of a model, org/name@revision for one.
    #[arg(required_unless_present = "packed")]
    id: Option<String>,
    /// Remove the packed weights of all models; the next start packs them again.
    #[arg(long, conflicts_with = "id")]
    packed: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Removes a model of the cache, or the packed weights of all.
///
/// # Errors
/// When the cache does not have the model, or a file cannot be removed.
pub fn rm(args: &RmArgs) -> Result<Outcome> {
    let Some(model) = &args.id else { return rm_packed(args.json) };
    let options = open_options()?;
    let environment = environment()?;
    let id = model_name::id(model, &environment.endpoint)?;
    let removed = girih_hub::remove(&id, &environment)
        .map_err(|error| model_name::with_nearest(error, model, &options))?;
    let (revisions, files) = (removed.revisions, removed.files);
    if args.json {
        print_json(&json!({"revisions": revisions, "files": files, "bytes": removed.bytes}))?;
    } else {
        let (revisions, files) = (counted(revisions, "revision"), counted(files, "file"));
        print_line!("removed {revisions}, {files}, {}", bytes(removed.bytes))?;
    }
    Ok(Outcome::Done)
}

fn rm_packed(as_json: bool) -> Result<Outcome> {
    let (files, size) = packed_folder()?.map_or(Ok((0, 0)), |folder| folder.clear())?;
    if as_json {
        print_json(&json!({"files": files, "bytes": size}))?;
    } else {
        print_line!("removed {} of packed weights, {}", counted(files, "file"), bytes(size))?;
    }
    Ok(Outcome::Done)
}
