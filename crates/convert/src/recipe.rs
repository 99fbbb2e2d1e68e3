//! Recipes: storage formats for single tensors, by rules in a TOML file.
//!
//! ```toml
//! [[rule]]
//! tensors = "layers.*.ffn.down.weight"   # girih's name, or the file's
//! type = "q6_k"
//! ```
//! Rules apply to matrices; vectors always have the container's default format.
//! The first matching rule counts; a matrix without one has the format of the
//! file's type. `*` matches any characters.

use girih_file::{fault_in_line, quote};
use girih_tensor::{DType, Error, Result};
use serde::Deserialize;

/// The maximum number of rules of a recipe, above the kinds of tensors of any model.
const RULES_MAX: usize = 10_000;

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    tensors: String,
    dtype: DType,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    rule: Vec<FileRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    tensors: String,
    #[serde(rename = "type")]
    dtype: String,
}

impl Recipe {
    /// Parses a recipe.
    ///
    /// # Errors
    /// When the text is not TOML of this form, or names a format that girih does
    /// not write.
    pub fn parse(text: &str) -> Result<Recipe> {
        let file: RecipeFile = toml::from_str(text).map_err(|error: toml::de::Error| {
            let fault = fault_in_line(text, error.span().map(|span| span.start), error.message());
            Error::new(format!("is not a valid recipe: {fault}"))
        })?;
        if file.rule.is_empty() || file.rule.len() > RULES_MAX {
            let count = file.rule.len();
            return Err(Error::new(format!("has {count} rules; 1 to {RULES_MAX} are needed")));
        }
        let rules = file.rule.into_iter().map(|rule| {
            let dtype: DType = rule.dtype.parse()?;
            if !dtype.writes() {
                return Err(Error::new(format!("names {dtype}, which girih reads but does not write")));
            }
            Ok(Rule { tensors: rule.tensors, dtype })
        });
        Ok(Recipe { rules: rules.collect::<Result<_>>()? })
    }

    /// The index and format of the rule for a tensor with these names.
    pub(super) fn rule(&self, names: [&str; 2]) -> Option<(usize, DType)> {
        let matches = |rule: &Rule| names.iter().any(|name| matches(&rule.tensors, name));
        self.rules.iter().enumerate().find(|(_, rule)| matches(rule)).map(|(index, rule)| (index, rule.dtype))
    }

    /// Checks that every rule was used; `used` has the indexes of those that were.
    pub(super) fn check_used(&self, used: &[usize]) -> Result<()> {
        match self.rules.iter().enumerate().find(|(index, _)| !used.contains(index)) {
            None => Ok(()),
            Some((index, rule)) => Err(Error::new(format!(
                "rule {} of the recipe, {}, applies to no matrix: none has such a name, or earlier rules \
                 match first",
                index + 1,
                quote(&rule.tensors)
            ))),
        }
    }
}

/// Whether `pattern`, in which `*` matches any characters, matches `name`.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default(); // `split` yields at least one part
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_characters() {
        let name = "layers.10.ffn.down.weight";
        for pattern in [
            name,
            "*",
            "layers.*",
            "*.weight",
            "layers.*.ffn.*.weight",
            "*1*0*",
            "layers.10.ffn.down.weight*",
        ] {
            assert!(matches(pattern, name), "{pattern}");
        }
        for pattern in ["", "layers", "layers.*.ffn", "*.bias", "layers.1*.10.*", "ffn*", "*down*down*"] {
            assert!(!matches(pattern, name), "{pattern}");
        }
    }

    #[test]
    fn the_first_matching_rule_counts() {
        let recipe = "[[rule]]\ntensors = 'a*'\ntype = 'q8_0'\n[[rule]]\ntensors = '*'\ntype = 'Q4_0'";
        let recipe = Recipe::parse(recipe).unwrap();
        assert_eq!(recipe.rule(["x", "ab"]), Some((0, DType::Q8_0)));
        assert_eq!(recipe.rule(["x", "y"]), Some((1, DType::Q4_0)));
        assert!(recipe.check_used(&[1, 0]).is_ok());
        assert!(recipe.check_used(&[1]).unwrap_err().to_string().contains("rule 1"));
    }

    #[test]
    fn malformed_recipes_are_refused() {
        for (text, word) in [
            ("rule = 3", "is not a valid recipe"),
            ("rule = []", "0 rules"),
            ("[[rule]]\ntensors = 'a'\ntype = 'q9'", "'q9'"),
            ("[[rule]]\ntensors = 'a'\ntype = 'q2_k'", "does not write"),
            ("[[rule]]\ntensor = 'a'\ntype = 'q8_0'", "tensor"),
        ] {
            let error = Recipe::parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
