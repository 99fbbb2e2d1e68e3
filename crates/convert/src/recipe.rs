//! Recipes: storage formats for single tensors, by rules in a TOML file.
//!
//! ```toml
//! [[rule]]
//! tensors = "layers.*.ffn.down.weight"   # girih's name, or the file's
//! type = "q6_k"
//! ```
//! A rule may also prune: of each row of blocks of a matrix, the blocks with the smallest norms become zeros, which the
//! cpu backend leaves out.
//! ```toml
//! [[rule]]
//! tensors = "layers.*"
//! type = "q4_0"
//! keep = 0.5             # the share of blocks that keep their weights
//! block = "32x32"        # rows x columns (the default)
//! by = "norm"            # the largest Frobenius norms (the default)
//! ```
//! With `zeros = "exact"` instead of `keep` nothing is pruned, and blocks that are zeros already are counted.
//! Rules apply to matrices; vectors always have the container's default format.
//! The first matching rule counts; a matrix without one has the format of the
//! file's type. `*` matches any characters.

use girih_file::{fault_in_line, quote};
use girih_tensor::{DType, Error, Result};
use serde::Deserialize;

use super::prune::{KeptBlocks, Pruning};

/// The maximum number of rules of a recipe, above the kinds of tensors of any model.
const RULES_MAX: usize = 10_000;

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    tensors: String,
    storage: RuleStorage,
}

/// How a rule stores a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RuleStorage {
    pub dtype: DType,
    pub pruning: Option<Pruning>,
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
    keep: Option<f64>,
    block: Option<String>,
    by: Option<String>,
    zeros: Option<String>,
}

impl FileRule {
    /// The pruning that the rule asks for.
    fn pruning(&self) -> Result<Option<Pruning>> {
        let FileRule { keep, block, by, zeros, .. } = self;
        if let Some(by) = by.as_ref().filter(|by| *by != "norm") {
            return Err(Error::new(format!("has by = {}; only \"norm\" is known", quote(by))));
        }
        let kept = match (keep, zeros.as_deref()) {
            (Some(share), None) if *share > 0.0 && *share <= 1.0 => KeptBlocks::Largest(*share),
            (Some(share), None) => {
                return Err(Error::new(format!("has keep = {share}; a share above 0 and up to 1 is needed")));
            }
            (None, Some("exact")) if by.is_none() => KeptBlocks::Nonzero,
            (None, Some("exact")) => return Err(Error::new("has by, which needs keep")),
            (None, Some(zeros)) => {
                return Err(Error::new(format!("has zeros = {}; only \"exact\" is known", quote(zeros))));
            }
            (Some(_), Some(_)) => return Err(Error::new("has both keep and zeros; remove one")),
            (None, None) if block.is_some() || by.is_some() => {
                return Err(Error::new("has block or by, which need keep or zeros"));
            }
            (None, None) => return Ok(None),
        };
        let block = block.as_deref().map_or(Ok(Pruning::DEFAULT_BLOCK), Pruning::parse_block)?;
        Ok(Some(Pruning { kept, block }))
    }
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
        let rules = file.rule.into_iter().zip(1..).map(|(rule, number)| {
            let pruning = rule.pruning().map_err(|error| error.of(format!("rule {number}")))?;
            let dtype: DType = rule.dtype.parse()?;
            if !dtype.writes() {
                return Err(Error::new(format!("names {dtype}, which girih reads but does not write")));
            }
            Ok(Rule { tensors: rule.tensors, storage: RuleStorage { dtype, pruning } })
        });
        Ok(Recipe { rules: rules.collect::<Result<_>>()? })
    }

    /// The index of the rule for a tensor with these names, and what it says.
    pub(super) fn rule(&self, names: [&str; 2]) -> Option<(usize, RuleStorage)> {
        let matches = |rule: &Rule| names.iter().any(|name| matches(&rule.tensors, name));
        self.rules
            .iter()
            .enumerate()
            .find(|(_, rule)| matches(rule))
            .map(|(index, rule)| (index, rule.storage))
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
        let plain = |dtype| RuleStorage { dtype, pruning: None };
        assert_eq!(recipe.rule(["x", "ab"]), Some((0, plain(DType::Q8_0))));
        assert_eq!(recipe.rule(["x", "y"]), Some((1, plain(DType::Q4_0))));
        assert!(recipe.check_used(&[1, 0]).is_ok());
        assert!(recipe.check_used(&[1]).unwrap_err().to_string().contains("rule 1"));
    }

    #[test]
    fn a_rule_may_prune() {
        let pruning = |keys: &str| {
            let recipe = Recipe::parse(&format!("[[rule]]\ntensors = '*'\ntype = 'q4_0'\n{keys}"));
            recipe.map(|recipe| recipe.rule(["a", "b"]).unwrap().1.pruning)
        };
        let largest = KeptBlocks::Largest(0.5);
        let expected = Pruning { kept: largest, block: [32, 32] };
        assert_eq!(pruning("keep = 0.5").unwrap(), Some(expected));
        let expected = Pruning { kept: largest, block: [8, 64] };
        assert_eq!(pruning("keep = 0.5\nblock = '8x64'\nby = 'norm'").unwrap(), Some(expected));
        let expected = Pruning { kept: KeptBlocks::Nonzero, block: [32, 32] };
        assert_eq!(pruning("zeros = 'exact'").unwrap(), Some(expected));
        for (keys, word) in [
            ("keep = 0.0", "a share above 0"),
            ("keep = 1.5", "a share above 0"),
            ("keep = nan", "a share above 0"),
            ("keep = 0.5\nblock = '32'", "such as 32x32"),
            ("keep = 0.5\nby = 'size'", "only \"norm\""),
            ("keep = 0.5\nzeros = 'exact'", "both keep and zeros"),
            ("zeros = 'near'", "only \"exact\""),
            ("zeros = 'exact'\nby = 'norm'", "needs keep"),
            ("block = '32x32'", "need keep or zeros"),
            ("kept = 0.5", "kept"),
        ] {
            let error = pruning(keys).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
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
