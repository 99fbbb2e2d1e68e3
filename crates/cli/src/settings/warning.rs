//! Variables and keys that set nothing: misspelled ones, and those of options that only the command line sets.

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;
use girih_file::{nearest, quote};

use super::foreign;
use super::typed_only::{each_option, has_setting};
use crate::config_file::{self, ConfigFile, variable_of};
use crate::model_name::may_be_alias;

/// The beginning of the variables that tests read.
const OF_TESTS: &str = "GIRIH_TEST_";

/// The names of all options.
#[derive(Debug, Default)]
struct OptionNames {
    /// The long names that have a variable and a key.
    settable: BTreeSet<String>,
    /// The short names that are keys.
    short: BTreeSet<String>,
    /// The long names that only the command line has.
    typed_only: BTreeSet<String>,
    /// Other long names of options that have a variable and a key.
    aliases: BTreeMap<String, String>,
}

impl OptionNames {
    fn of(root: &Command) -> OptionNames {
        let mut names = OptionNames::default();
        each_option(root, &mut |command, arg| {
            let Some(long) = arg.get_long() else { return };
            if has_setting(command, long) {
                names.settable.insert(long.to_owned());
                names.short.extend(arg.get_short().map(String::from));
                let aliases = arg.get_all_aliases().unwrap_or_default();
                names.aliases.extend(aliases.into_iter().map(|alias| (alias.to_owned(), long.to_owned())));
            } else {
                names.typed_only.insert(long.to_owned());
            }
        });
        names
    }

    /// The name that is probably meant: that of the same option, or the nearest.
    fn meant(&self, name: &str) -> Option<&str> {
        let same = self.aliases.get(name).map(String::as_str).or_else(|| foreign::name_of(name));
        same.or_else(|| nearest(name, self.settable.iter().map(String::as_str)))
    }

    fn is_key(&self, key: &str) -> bool {
        self.settable.contains(key) || self.short.contains(key)
    }
}

/// The first key of an option that only the command line sets, with the reason to remove it.
pub fn refused_key(root: fn() -> Command, file: &ConfigFile) -> Option<String> {
    // Most calls have no file, and need no names.
    file.keys().next()?;
    let names = OptionNames::of(&root());
    let key = file.keys().find(|key| !names.is_key(key) && names.typed_only.contains(*key))?;
    let place = file.place_of(key);
    Some(format!("{place}: --{key} can be set on the command line only; remove the key"))
}

/// A sentence for each variable and key that sets nothing.
pub fn warnings(root: fn() -> Command, file: &ConfigFile) -> Vec<String> {
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut set: Vec<String> = set.filter(|name| may_be_setting(name)).collect();
    if set.is_empty() && file.keys().next().is_none() && file.aliases().next().is_none() {
        return Vec::new();
    }
    set.sort();
    let names = OptionNames::of(&root());
    let variables = set.iter().filter_map(|name| variable_warning(&names, name));
    let keys = file.keys().filter(|key| !names.is_key(key) && !names.typed_only.contains(*key));
    let keys = keys.map(|key| {
        let meant =
            names.meant(key).map(|name| format!("; did you mean {}?", quote(name))).unwrap_or_default();
        format!("{}: unknown key{meant}", file.place_of(key))
    });
    let hidden = file.aliases().filter(|(alias, _)| !may_be_alias(alias)).map(|(alias, _)| {
        let clause = "is never used, as paths and built-in models come first; rename it";
        format!("{}: the alias {} {clause}", file.path(), quote(alias))
    });
    variables.chain(keys).chain(hidden).collect()
}

/// Whether a variable looks like that of an option.
fn may_be_setting(name: &str) -> bool {
    name.starts_with("GIRIH_") && !name.starts_with(OF_TESTS) && name != config_file::VARIABLE
}

fn variable_warning(names: &OptionNames, name: &str) -> Option<String> {
    if names.settable.iter().any(|long| variable_of(long) == name) {
        return None;
    }
    if let Some(long) = names.typed_only.iter().find(|long| variable_of(long) == name) {
        return Some(format!("{name} is ignored: --{long} can be set on the command line only"));
    }
    // The prefix is the same, so it says nothing about the name.
    let bare = name.trim_start_matches("GIRIH_").to_lowercase().replace('_', "-");
    let of_file = config_file::VARIABLE.trim_start_matches("GIRIH_").to_lowercase();
    let meant = names.meant(&bare).or_else(|| nearest(&bare, [of_file.as_str()]));
    let meant = meant.map(|meant| format!("; did you mean {}?", variable_of(meant))).unwrap_or_default();
    Some(format!("unknown variable {}{meant}", quote(name)))
}
