//! The configuration file: its keys with their lines, and the user's aliases of models.

use std::collections::BTreeMap;
use std::path::PathBuf;

use girih_file::{fault_in_line, quote, shorten};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::base_folder::base_folder;
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};

/// The variable that names the file.
pub const VARIABLE: &str = "GIRIH_CONFIG";

/// The table of aliases.
pub const ALIASES: &str = "aliases";

/// The contents of the configuration file; empty if there is none.
#[derive(Debug, Default)]
pub struct ConfigFile {
    path: PathBuf,
    keys: BTreeMap<String, ConfigValue>,
    aliases: BTreeMap<String, String>,
}

/// A value in the file.
#[derive(Debug)]
struct ConfigValue {
    /// The value as an option takes it; `None` for a list or a table.
    text: Option<String>,
    /// The value as the file spells it.
    spelled: String,
    /// The number of its line, from 1.
    line: usize,
}

impl ConfigFile {
    /// Reads `$GIRIH_CONFIG`, else `$XDG_CONFIG_HOME/girih/config.toml`, else
    /// `~/.config/girih/config.toml`.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or an alias is no text.
    pub fn read() -> Result<ConfigFile> {
        let Some(path) = path() else { return Ok(ConfigFile::default()) };
        let is_named = std::env::var_os(VARIABLE).is_some_and(|name| !name.is_empty());
        if !is_named && matches!(path.try_exists(), Ok(false)) {
            return Ok(ConfigFile::default());
        }
        let text = text_file(&path, DESCRIPTION_BYTES)?;
        ConfigFile::parse(path, &text)
    }

    /// As [`ConfigFile::read`]; a named file that does not exist is empty.
    ///
    /// # Errors
    /// As [`ConfigFile::read`], except for a file that does not exist.
    pub fn read_if_present() -> Result<ConfigFile> {
        let exists = path().is_some_and(|path| path.symlink_metadata().is_ok());
        if exists { ConfigFile::read() } else { Ok(ConfigFile::default()) }
    }

    fn parse(path: PathBuf, text: &str) -> Result<ConfigFile> {
        let table = DeTable::parse(text).map_err(|error| {
            let fault = fault_in_line(text, error.span().map(|span| span.start), error.message());
            Error::call(format!("{}: is not valid TOML: {fault}", path.display()))
        })?;
        let mut file = ConfigFile { path, ..ConfigFile::default() };
        for (key, value) in table.get_ref() {
            match value.get_ref() {
                DeValue::Table(aliases) if key.get_ref() == ALIASES => {
                    for (name, model) in aliases {
                        let name_line = line_of(text, name);
                        let DeValue::String(model) = model.get_ref() else {
                            let (path, name) = (file.path.display(), quote(name.get_ref()));
                            let sentence = "is no text; an alias is a text, the name of a model";
                            return Err(Error::call(format!("{path}:{name_line}: {name} {sentence}")));
                        };
                        file.aliases.insert(name.get_ref().to_string(), model.to_string());
                    }
                }
                _ => {
                    let line = line_of(text, key);
                    let spelled = text[value.span()].to_owned();
                    let value = ConfigValue { text: single_value(value.get_ref()), spelled, line };
                    file.keys.insert(key.get_ref().to_string(), value);
                }
            }
        }
        Ok(file)
    }

    /// The path of the file, for messages.
    pub fn path(&self) -> impl std::fmt::Display {
        self.path.display()
    }

    /// The keys that may set options.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// Whether there is such a key.
    pub fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// The value of a key as an option takes it; `None` if the key is missing, or is a list or a table.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.keys.get(key)?.text.as_deref()
    }

    /// All values as options take them.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.keys.values().filter_map(|value| value.text.as_deref())
    }

    /// The aliases, each with its model.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().map(|(name, model)| (name.as_str(), model.as_str()))
    }

    /// The model that an alias stands for.
    pub fn alias(&self, name: &str) -> Option<&str> {
        self.aliases.get(name).map(String::as_str)
    }

    /// Where a key is: `PATH:LINE: KEY`.
    pub fn place_of(&self, key: &str) -> String {
        let line = self.keys.get(key).map_or(1, |value| value.line);
        format!("{}:{line}: {}", self.path.display(), quote(key))
    }

    /// Where a key is, with its value: `PATH:LINE: KEY = VALUE`.
    pub fn assignment_of(&self, key: &str) -> String {
        let (line, spelled) = self.keys.get(key).map_or((1, ""), |value| (value.line, &value.spelled));
        format!("{}:{line}: {key} = {}", self.path.display(), shorten(spelled))
    }
}

/// The path of the file, which need not exist.
pub fn path() -> Option<PathBuf> {
    let standard = || Some(base_folder("XDG_CONFIG_HOME", ".config")?.join("girih/config.toml"));
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    named.map(PathBuf::from).or_else(standard)
}

/// The variable of an option.
pub fn variable_of(long: &str) -> String {
    format!("GIRIH_{}", long.to_uppercase().replace('-', "_"))
}

/// The number of the line where a key is, from 1.
fn line_of(text: &str, key: &Spanned<DeString<'_>>) -> usize {
    1 + text[..key.span().start].matches('\n').count()
}

/// A value as an option takes it, unless it is a list or a table.
pub fn single_value(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            // A seed may have 64 bits without a sign.
            i128::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigFile> {
        ConfigFile::parse(PathBuf::from("/a.toml"), text)
    }

    #[test]
    fn values_are_read_with_their_lines() {
        let file = parse("# first\nn = 64\n\ntemp = 0.70\nchunk = 0x10\nquiet = true\nsystem = \"a\\nb\"\n");
        let file = file.expect("it is valid");
        assert_eq!(
            ["n", "temp", "chunk", "quiet", "system", "seed"].map(|key| file.value(key)),
            [Some("64"), Some("0.70"), Some("16"), Some("true"), Some("a\nb"), None]
        );
        assert_eq!(file.place_of("temp"), "/a.toml:4: 'temp'");
        assert_eq!(file.assignment_of("system"), "/a.toml:7: system = \"a\\nb\"");
    }

    #[test]
    fn aliases_are_no_keys() {
        let file = parse("kv = \"f16\"\n[aliases]\nllama = \"org/name:Q4_K_M\"\n").expect("it is valid");
        assert_eq!(file.keys().collect::<Vec<_>>(), ["kv"]);
        assert_eq!(file.aliases().collect::<Vec<_>>(), [("llama", "org/name:Q4_K_M")]);
        assert_eq!((file.alias("llama"), file.alias("kv")), (Some("org/name:Q4_K_M"), None));
    }

    #[test]
    fn a_list_has_no_value_and_other_faults_are_refused() {
        let file = parse("n = 1\nstop = [\"a\"]\n[npu]\n").expect("it is valid");
        assert!(file.has("stop") && file.value("stop").is_none() && file.has("npu"));
        let refusal = |text: &str| match parse(text) {
            Err(Error::Call(sentence)) => sentence,
            other => panic!("{other:?}"),
        };
        assert!(refusal("n = 1\n[aliases]\na = {}\n").starts_with("/a.toml:3: 'a' is no text;"));
        assert!(refusal("n\n").starts_with("/a.toml: is not valid TOML: "));
    }
}
