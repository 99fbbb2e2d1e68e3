//! Models in the Hugging Face cache: `girih pull`, `list`, `rm` and `repair`.

mod list;
mod pull;
mod repair;
mod rm;

<<<<<<< HEAD
pub use list::{ListArgs, list};
pub use pull::{PullArgs, pull};
pub use repair::{RepairArgs, repair};
pub use rm::{RmArgs, rm};
=======
use girih_hub::{ModelId, PullOptions, PullProgress};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::ShowArgs;
use crate::error::{Error, Result};
use crate::loading::environment;
use crate::model_name;
use crate::output::{bytes, print_json};
use crate::packed_weights::packed_folder;
use crate::progress::{Show, Unit};

#[derive(Debug, clap::Args)]
pub struct PullArgs {
    /// org/name, org/name@revision or org/name:QUANT; QUANT selects a GGUF file by its label, such as Q4_K_M.
    id: String,
    #[command(flatten)]
    show: ShowArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

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

#[derive(Debug, clap::Args)]
pub struct RepairArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn id(text: &str) -> Result<ModelId> {
    ModelId::parse(&model_name::resolved(text)?).map_err(|error| Error::call(error.to_string()))
}

pub fn pull(args: &PullArgs) -> Result<Outcome> {
    let mut bar = PullBar { show: args.show.show(), bar: ProgressBar::hidden(), finished: 0 };
    let pulled =
        girih_hub::pull(&id(&args.id)?, &environment()?, &PullOptions::default(), &mut |progress| {
            bar.update(&progress)
        })?;
    bar.bar.finish_and_clear();
    let path = pulled.snapshot.path().display().to_string();
    if args.json {
        print_json(&json!({
            "id": args.id,
            "commit": pulled.snapshot.commit,
            "path": path,
            "files": pulled.files,
            "bytes": pulled.bytes,
            "fetched_bytes": pulled.fetched,
        }))?;
    } else {
        print_line!("{path}")?;
    }
    Ok(Outcome::Done)
}

/// One bar over all files.
struct PullBar {
    show: Show,
    bar: ProgressBar,
    /// The bytes of complete files.
    finished: u64,
}

impl PullBar {
    fn update(&mut self, progress: &PullProgress<'_>) {
        match progress {
            PullProgress::Planned { files, bytes: all, present } => {
                self.show.note(format!(
                    "{files} files, {} ({} already downloaded)",
                    bytes(*all),
                    bytes(*present)
                ));
                self.bar = self.show.bar("pulling", *all, Unit::Bytes);
                self.finished = *present;
            }
            PullProgress::Received { bytes, .. } => self.bar.set_position(self.finished + bytes),
            PullProgress::Finished { bytes, .. } => self.finished += bytes,
            PullProgress::Retrying { why, wait } => {
                self.show.note(format!("{why}; retrying in {:.1} s", wait.as_secs_f64()));
            }
        }
    }
}

pub fn list(args: &ListArgs) -> Result<Outcome> {
    let models = girih_hub::list(&environment()?)?;
    if args.json {
        let revision = |revision: &girih_hub::CachedRevision| {
            json!({
                "commit": revision.commit,
                "names": revision.names,
                "files": revision.files,
                "bytes": revision.bytes,
                "missing": revision.missing,
            })
        };
        let models: Vec<Value> = models
            .iter()
            .map(|model| {
                let revisions: Vec<Value> = model.revisions.iter().map(revision).collect();
                json!({"id": model.repo, "bytes": model.bytes, "revisions": revisions})
            })
            .collect();
        print_json(&models)?;
        return Ok(Outcome::Done);
    }
    for model in &models {
        print_line!("{}  {}", model.repo, bytes(model.bytes))?;
        for revision in &model.revisions {
            let state =
                revision.missing.as_ref().map_or("complete".to_owned(), |file| format!("missing {file}"));
            let names = revision.names.join(", ");
            print_line!(
                "  {} {names} {} files, {}, {state}",
                revision.commit,
                revision.files,
                bytes(revision.bytes)
            )?;
        }
    }
    Ok(Outcome::Done)
}

pub fn rm(args: &RmArgs) -> Result<Outcome> {
    let Some(model) = &args.id else { return rm_packed(args.json) };
    let removed = girih_hub::remove(&id(model)?, &environment()?)?;
    let (revisions, files) = (removed.revisions, removed.files);
    if args.json {
        print_json(&json!({"revisions": revisions, "files": files, "bytes": removed.bytes}))?;
    } else {
        print_line!("removed {revisions} revisions, {files} files, {}", bytes(removed.bytes))?;
    }
    Ok(Outcome::Done)
}

fn rm_packed(as_json: bool) -> Result<Outcome> {
    let (files, size) = packed_folder()?.map_or(Ok((0, 0)), |folder| folder.clear())?;
    if as_json {
        print_json(&json!({"files": files, "bytes": size}))?;
    } else {
        print_line!("removed {files} files of packed weights, {}", bytes(size))?;
    }
    Ok(Outcome::Done)
}

/// Removes the packed weights of the models whose blobs were removed; returns their number and
/// their bytes.
fn drop_packed(removed: &[(PathBuf, String)]) -> Result<(usize, u64)> {
    let Some(folder) = packed_folder()? else { return Ok((0, 0)) };
    let mut total = (0, 0);
    // Incomplete downloads have a suffix; nothing was packed from them.
    let is_blob = |path: &Path| {
        path.extension().is_none() && path.parent().is_some_and(|folder| folder.ends_with("blobs"))
    };
    for (path, _) in removed.iter().filter(|(path, _)| is_blob(path)) {
        let (files, size) = folder.remove_repository_of(path)?;
        total = (total.0 + files, total.1 + size);
    }
    Ok(total)
}

pub fn repair(args: &RepairArgs) -> Result<Outcome> {
    let repaired = girih_hub::repair(&environment()?, &mut |_, _| {})?;
    let (packed, packed_bytes) = drop_packed(&repaired.removed)?;
    if args.json {
        print_json(&json!({
            "good": repaired.good,
            "bytes": repaired.bytes,
            "removed": repaired.removed,
            "packed": {"files": packed, "bytes": packed_bytes},
            "unverified": repaired.unverified,
            "pull_again": repaired.pull_again,
        }))?;
        return Ok(Outcome::Done);
    }
    print_line!("{} files verified ({} read)", repaired.good, bytes(repaired.bytes))?;
    for (path, why) in &repaired.removed {
        print_line!("removed {}: {why}", path.display())?;
    }
    if packed > 0 {
        print_line!("removed {packed} files of packed weights, {}", bytes(packed_bytes))?;
    }
    for path in &repaired.unverified {
        print_line!("not verified, as no digest is known: {}", path.display())?;
    }
    for id in &repaired.pull_again {
        print_line!("incomplete, run: girih pull {id}")?;
    }
    Ok(Outcome::Done)
}
>>>>>>> main
