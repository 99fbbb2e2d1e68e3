//! `girih alias`: short names of models, in the user's configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use girih::BUILT_IN;
use girih_file::{lock_file, nearest, quote, replace_file};
use girih_hub::ModelReference;
use toml_edit::{DocumentMut, Item, Table, value};

use super::outcome::Outcome;
use crate::config_file::{self, ALIASES, ConfigFile};
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::loading::environment;
use crate::model_name::{may_be_alias, resolved};
use crate::output::{print_json, print_note};

/// The time for which another call may change the file before this one gives up.
const LOCK_TIME: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Short name; without one, the aliases are listed.
    #[arg(value_name = "NAME")]
    alias: Option<String>,
    /// Model that the name stands for; without one, this model is shown.
    #[arg(value_name = "MODEL", requires = "alias")]
    target: Option<String>,
    /// Remove this alias.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["alias", "target"])]
    remove: Option<String>,
    /// Print JSON: the aliases with their models.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    match (&args.alias, &args.target, &args.remove) {
        (_, _, Some(name)) => remove(name)?,
        (Some(name), Some(model), _) => add(name, model)?,
        (name, _, _) => return show(name.as_deref(), args.json),
    }
    if args.json {
        return show(None, true);
    }
    Ok(Outcome::Done)
}

/// Prints all aliases, or the one of this name.
fn show(name: Option<&str>, as_json: bool) -> Result<Outcome> {
    let file = ConfigFile::read_if_present()?;
    if let Some(name) = name.filter(|name| file.alias(name).is_none()) {
        return Err(unknown(name, &file));
    }
    let shown: BTreeMap<&str, &str> =
        file.aliases().filter(|(alias, _)| name.is_none_or(|name| name == *alias)).collect();
    if as_json {
        print_json(&shown)?;
        return Ok(Outcome::Done);
    }
    if shown.is_empty() {
        print_note("no aliases; `girih alias NAME MODEL` adds one");
    }
    let width = shown.keys().map(|name| name.chars().count()).max().unwrap_or(0);
    shown.iter().try_for_each(|(name, model)| print_line!("{name:<width$}  {model}"))?;
    Ok(Outcome::Done)
}

fn unknown(name: &str, file: &ConfigFile) -> Error {
    let meant = nearest(name, file.aliases().map(|(alias, _)| alias));
    let meant = meant.map(|alias| format!("; did you mean {}?", quote(alias))).unwrap_or_default();
    Error::call(format!("unknown alias {}; `girih alias` lists all{meant}", quote(name)))
}

fn add(name: &str, model: &str) -> Result<()> {
    let refused = |sentence: &str| Err(Error::call(format!("alias {}: {sentence}", quote(name))));
    if name == BUILT_IN {
        return refused("is the name of the built-in model; choose another name");
    }
    if !may_be_alias(name) || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return refused("has a '/' or a space, or begins like a path or an option; choose another name");
    }
    if Path::new(name).exists() {
        return refused("is the name of a file here, which the alias would hide; choose another name");
    }
    let model = checked(model)?;
    edit(|aliases| {
        aliases.insert(name, value(model.as_str()));
        Ok(())
    })
}

/// The name of a model as an alias keeps it: a path does not depend on the current folder.
fn checked(model: &str) -> Result<String> {
    let model = resolved(model)?;
    match ModelReference::parse(&model, &[BUILT_IN], &environment()?.endpoint)? {
        ModelReference::Path(path) => {
            let whole = path.canonicalize().map_err(|error| {
                Error::call(format!("{}: {error}; name a model that exists", path.display()))
            })?;
            whole.into_os_string().into_string().map_err(|path| {
                Error::call(format!("{}: is not valid UTF-8; rename the file", PathBuf::from(path).display()))
            })
        }
        ModelReference::BuiltIn(_) | ModelReference::Id(_) => Ok(model.into_owned()),
    }
}

fn remove(name: &str) -> Result<()> {
    let file = ConfigFile::read_if_present()?;
    if file.alias(name).is_none() {
        return Err(unknown(name, &file));
    }
    edit(|aliases| {
        aliases.remove(name);
        Ok(())
    })
}

/// Changes the table of aliases in the configuration file; all else stays as it is.
fn edit(change: impl FnOnce(&mut Table) -> Result<()>) -> Result<()> {
    let path = config_file::path().ok_or_else(|| {
        Error::call(format!("the configuration file has no place: set HOME or {}", config_file::VARIABLE))
    })?;
    let failed = |sentence: &dyn std::fmt::Display| Error::call(format!("{}: {sentence}", path.display()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|error| failed(&format_args!("cannot be written: {error}")))?;
    }
    // Until the file is replaced, so that no other call's change is lost.
    let _lock = lock_file(&path, LOCK_TIME)?;
    // What the program could not read later is not written.
    ConfigFile::read_if_present()?;
    let exists = path.symlink_metadata().is_ok();
    let text = if exists { text_file(&path, DESCRIPTION_BYTES)? } else { String::new() };
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| failed(&error.message()))?;
    let aliases = document.entry(ALIASES).or_insert_with(|| Item::Table(Table::new()));
    let aliases = aliases
        .as_table_mut()
        .ok_or_else(|| failed(&format_args!("'{ALIASES}' must be a table; write it as [{ALIASES}]")))?;
    change(aliases)?;
    Ok(replace_file(&path, document.to_string().as_bytes())?)
}
