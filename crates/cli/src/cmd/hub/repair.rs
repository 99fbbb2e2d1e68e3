//! `girih repair`: verifies every file of the cache.

use std::io::{BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

use girih_hub::{HubEnv, Repaired, Unfinished, UnfinishedFiles};
use serde_json::json;

use crate::args::ShowArgs;
use crate::cmd::outcome::Outcome;
use crate::error::Result;
use crate::loading::environment;
use crate::output::{bytes, counted, print_json};
use crate::packed_weights::packed_folder;
use crate::progress::{Show, Unit};

/// The maximum length of an answer in bytes.
const ANSWER_BYTES: u64 = 100;

#[derive(Debug, clap::Args)]
pub struct RepairArgs {
    /// Remove unfinished downloads, too, without a question; `girih pull` could resume them.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    show: ShowArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Verifies every file of the cache, and removes those that are wrong.
///
/// # Errors
/// When the cache cannot be read, or a file cannot be removed.
pub fn repair(args: &RepairArgs) -> Result<Outcome> {
    let environment = environment()?;
    let show = args.show.show();
    let (unfinished, stored) = contents(&environment)?;
    let policy = match args.yes || (unfinished.files > 0 && asks(show) && confirm(unfinished, show)?) {
        true => UnfinishedFiles::Remove,
        false => UnfinishedFiles::Keep,
    };
    let bar = show.bar("verifying", stored, Unit::Bytes);
    let repaired = girih_hub::repair(&environment, policy, &mut |_, bytes| bar.advance(bytes))?;
    bar.finish_and_clear();
    let (packed, packed_bytes) = drop_packed(&repaired.removed)?;
    if args.json {
        print_json(&json!({
            "good": repaired.good,
            "bytes": repaired.bytes,
            "removed": repaired.removed,
            "kept": repaired.kept,
            "packed": {"files": packed, "bytes": packed_bytes},
            "unverified": repaired.unverified,
            "pull_again": repaired.pull_again,
        }))?;
        return Ok(Outcome::Done);
    }
    print(&repaired)?;
    if packed > 0 {
        print_line!("removed {} of packed weights, {}", counted(packed, "file"), bytes(packed_bytes))?;
    }
    Ok(Outcome::Done)
}

/// The unfinished downloads of all models, and the bytes of all other files.
fn contents(environment: &HubEnv) -> Result<(Unfinished, u64)> {
    let (mut all, mut stored) = (Unfinished::default(), 0);
    for model in girih_hub::list(environment)? {
        all.files += model.unfinished.files;
        all.bytes += model.unfinished.bytes;
        stored += model.bytes.saturating_sub(model.unfinished.bytes);
    }
    Ok((all, stored))
}

/// Whether somebody can answer a question.
fn asks(show: Show) -> bool {
    show != Show::Nothing && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks whether unfinished downloads are to be removed.
fn confirm(Unfinished { files, bytes: size }: Unfinished, show: Show) -> Result<bool> {
    let what = counted(files, "unfinished download");
    show.note(format!("found {what}, {}; girih pull can resume. Remove instead? [y/N]", bytes(size)));
    let mut answer = String::new();
    std::io::stdin().lock().take(ANSWER_BYTES).read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn print(repaired: &Repaired) -> Result<()> {
    print_line!("{} verified ({} read)", counted(repaired.good, "file"), bytes(repaired.bytes))?;
    for (path, why) in &repaired.removed {
        print_line!("removed {}: {why}", path.display())?;
    }
    if !repaired.kept.is_empty() {
        let kept = counted(repaired.kept.len(), "unfinished download");
        print_line!("kept {kept}: girih pull resumes, girih repair --yes removes")?;
    }
    for path in &repaired.unverified {
        print_line!("not verified, as no digest is known: {}", path.display())?;
    }
    for id in &repaired.pull_again {
        print_line!("incomplete, run: girih pull {id}")?;
    }
    Ok(())
}

/// Removes the packed weights of the models whose blobs were removed; returns their number and
/// their bytes.
fn drop_packed(removed: &[(PathBuf, String)]) -> Result<(usize, u64)> {
    let Some(folder) = packed_folder()? else { return Ok((0, 0)) };
    let mut total = (0, 0);
    // Unfinished downloads have a suffix; nothing was packed from them.
    let is_blob = |path: &Path| {
        path.extension().is_none() && path.parent().is_some_and(|folder| folder.ends_with("blobs"))
    };
    for (path, _) in removed.iter().filter(|(path, _)| is_blob(path)) {
        let (files, size) = folder.remove_repository_of(path)?;
        total = (total.0 + files, total.1 + size);
    }
    Ok(total)
}
