//! `girih list`: the models that need no download.

use std::collections::BTreeMap;

use girih_hub::{CachedModel, CachedRevision, RevisionFault, Unfinished};
use serde_json::{Value, json};

use crate::cmd::outcome::Outcome;
use crate::config_file::ConfigFile;
use crate::error::Result;
use crate::loading::environment;
use crate::output::{bytes, counted, print_json};

/// The number of digits of a commit that a table shows.
const SHORT_COMMIT: usize = 7;

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Show whole commits and the numbers of files.
    #[arg(long, short, conflicts_with = "json")]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the models of the cache, the built-in one, and the aliases.
///
/// # Errors
/// When the cache cannot be read.
pub fn list(args: &ListArgs) -> Result<Outcome> {
    let models = girih_hub::list(&environment()?)?;
    let file = ConfigFile::read_if_present()?;
    if args.json {
        let built_in = json!({
            "id": girih::BUILT_IN,
            "built_in": true,
            "incomplete": false,
            "bytes": girih::BUILT_IN_BYTES,
            "unfinished": unfinished_json(Unfinished::default()),
            "revisions": [],
        });
        let models: Vec<Value> = models.iter().map(described).chain([built_in]).collect();
        let aliases: BTreeMap<&str, &str> = file.aliases().collect();
        print_json(&json!({"models": models, "aliases": aliases}))?;
        return Ok(Outcome::Done);
    }
    let heading = ["name", "size", "state", "revision"].map(str::to_owned);
    let mut rows = vec![heading];
    rows.extend(models.iter().flat_map(|model| rows_of(model, args.verbose)));
    let size = bytes(girih::BUILT_IN_BYTES);
    rows.push([girih::BUILT_IN.to_owned(), size, "built in".to_owned(), String::new()]);
    rows.extend(
        file.aliases().map(|(alias, model)| {
            [alias.to_owned(), String::new(), format!("alias of {model}"), String::new()]
        }),
    );
    let width = |column: usize| rows.iter().map(|row: &[String; 4]| row[column].chars().count()).max();
    let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
    for [name, size, state, revision] in &rows {
        let [names, sizes, states] = widths;
        let line = format!("{name:<names$}  {size:>sizes$}  {state:<states$}  {revision}");
        print_line!("{}", line.trim_end())?;
    }
    Ok(Outcome::Done)
}

/// Whether a command that needs the model would refuse it.
fn is_incomplete(model: &CachedModel) -> bool {
    model.revisions.is_empty() || model.revisions.iter().any(|revision| revision.fault.is_some())
}

/// The rows of a model: one for each revision, and one for unfinished files.
fn rows_of(model: &CachedModel, verbose: bool) -> Vec<[String; 4]> {
    let row = |revision: &CachedRevision| {
        let mut state = match &revision.fault {
            None => "complete".to_owned(),
            Some(RevisionFault::MissingFile(file)) => format!("incomplete: {file} is missing"),
            Some(RevisionFault::Unchecked(error)) => format!("incomplete: {error}"),
        };
        if verbose {
            state += &format!(" ({})", counted(revision.files, "file"));
        }
        let digits = if verbose { revision.commit.len() } else { SHORT_COMMIT };
        let commit: String = revision.commit.chars().take(digits).collect();
        let revisions = format!("{} {commit}", revision.names.join(", "));
        [model.repo.clone(), bytes(revision.bytes), state, revisions.trim().to_owned()]
    };
    let mut rows: Vec<_> = model.revisions.iter().map(row).collect();
    let Unfinished { files, bytes: size } = model.unfinished;
    if files > 0 {
        let state = format!("incomplete: {}", counted(files, "unfinished download"));
        rows.push([model.repo.clone(), bytes(size), state, String::new()]);
    } else if model.revisions.is_empty() {
        let state = "incomplete: no files".to_owned();
        rows.push([model.repo.clone(), bytes(model.bytes), state, String::new()]);
    }
    rows
}

fn described(model: &CachedModel) -> Value {
    let revision = |revision: &CachedRevision| {
        let (missing, error) = match &revision.fault {
            None => (None, None),
            Some(RevisionFault::MissingFile(file)) => (Some(file), None),
            Some(RevisionFault::Unchecked(error)) => (None, Some(error)),
        };
        json!({
            "commit": revision.commit,
            "names": revision.names,
            "files": revision.files,
            "bytes": revision.bytes,
            "missing": missing,
            "error": error,
        })
    };
    json!({
        "id": model.repo,
        "built_in": false,
        "incomplete": is_incomplete(model),
        "bytes": model.bytes,
        "unfinished": unfinished_json(model.unfinished),
        "revisions": model.revisions.iter().map(revision).collect::<Vec<_>>(),
    })
}

fn unfinished_json(Unfinished { files, bytes }: Unfinished) -> Value {
    json!({"files": files, "bytes": bytes})
}
