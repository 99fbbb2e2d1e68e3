//! Licence expressions of SPDX, as manifests state them, and whether a list of licences satisfies one.

/// Whether `allowed` licences satisfy an expression: `OR` needs one side, `AND` both, and
/// `WITH` names an exception, which belongs to the licence before it. Old manifests write `/` for `OR`.
///
/// # Errors
/// When the text is no expression.
pub fn satisfied(expression: &str, allowed: &[&str]) -> Result<bool, String> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allowed };
    let satisfied = parser.any_of(0);
    match satisfied {
        Some(satisfied) if parser.words.is_empty() => Ok(satisfied),
        _ => Err(format!("'{expression}' is not a licence expression")),
    }
}

/// Parentheses within each other, at most.
const MAX_DEPTH: usize = 8;

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl Parser<'_> {
    /// Removes the next word if it is `word`.
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    fn any_of(&mut self, depth: usize) -> Option<bool> {
        let mut satisfied = self.all_of(depth)?;
        while self.take("OR") {
            satisfied |= self.all_of(depth)?;
        }
        Some(satisfied)
    }

    fn all_of(&mut self, depth: usize) -> Option<bool> {
        let mut satisfied = self.one(depth)?;
        while self.take("AND") {
            satisfied &= self.one(depth)?;
        }
        Some(satisfied)
    }

    fn one(&mut self, depth: usize) -> Option<bool> {
        if self.take("(") {
            let inner = if depth < MAX_DEPTH { self.any_of(depth + 1)? } else { return None };
            return self.take(")").then_some(inner);
        }
        let name = self.name()?;
        if !self.take("WITH") {
            return Some(self.allowed.contains(&name.as_str()));
        }
        let name = format!("{name} WITH {}", self.name()?);
        Some(self.allowed.contains(&name.as_str()))
    }

    /// The next word, which names a licence or an exception.
    fn name(&mut self) -> Option<String> {
        let (&word, rest) = self.words.split_first()?;
        let is_name = !["OR", "AND", "WITH", "(", ")"].contains(&word);
        self.words = rest;
        is_name.then(|| word.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_follow_or_and_with_and_parentheses() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
        for yes in [
            "MIT",
            "GPL-3.0-only OR MIT",
            "MIT/Apache-2.0",
            "MIT AND ISC",
            "(GPL-3.0-only OR ISC) AND MIT",
            "Apache-2.0 WITH LLVM-exception",
            "MIT OR GPL-3.0-only AND GPL-2.0-only",
        ] {
            assert_eq!(satisfied(yes, &allowed), Ok(true), "{yes}");
        }
        for no in ["Apache-2.0", "MIT AND Apache-2.0", "(MIT OR ISC) AND GPL-3.0-only", "mit"] {
            assert_eq!(satisfied(no, &allowed), Ok(false), "{no}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let deep = format!("{}MIT{}", "(".repeat(100_000), ")".repeat(100_000));
        for bad in ["", "OR", "MIT ISC", "(MIT", "MIT)", "MIT AND", "WITH x", "MIT WITH", "()", &deep] {
            assert!(satisfied(bad, &["MIT"]).is_err(), "{bad:.20}");
        }
    }
}
