//! Normalizers: rewrite a text before it is split into words.
//!
//! The results equal those of the `tokenizers` crate; tests compare the two. The
//! Unicode tables are also the same: with a newer version a model would get
//! different text from the text it was trained on.

use std::iter::repeat_n;
use std::ops::Range;

use girih_tensor::{Error, Result};
use unicode_normalization_alignments::UnicodeNormalization as _;

use super::bert::{BertRules, Replacement};
use super::charsmap::CharsMap;
use super::pattern::Pattern;

/// The maximum length of a normalized text relative to its source. `▁` for a space
/// needs 3, the steps of ALBERT 242.
const MAX_NORMALIZER_EXPANSION: usize = 256;
/// The maximum bytes of a normalized text; each needs 16 more for its alignment.
const MAX_NORMALIZED_BYTES: usize = 64 << 20;
/// The maximum growth by a character map, that of NFKC, on which all are based.
const CHARS_MAP_EXPANSION: usize = 11;
/// The maximum length of a prepended text. `▁` has 3 bytes.
const MAX_PREFIX_BYTES: usize = 16;

/// A normalization form of Unicode (UAX #15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormalizationForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl NormalizationForm {
    /// The maximum growth of a text in bytes (UAX #15, section 12): U+FDFA has 3
    /// bytes, its compatibility decomposition 33.
    fn expansion(self) -> usize {
        match self {
            NormalizationForm::Nfc | NormalizationForm::Nfd => 3,
            NormalizationForm::Nfkc | NormalizationForm::Nfkd => 11,
        }
    }
}

enum Rewrite {
    NormalizationForm(NormalizationForm),
    Prepend(String),
    Replace {
        pattern: String,
        content: String,
    },
    ReplaceMatches {
        pattern: Pattern,
        content: String,
    },
    Bert(BertRules),
    Strip {
        left: bool,
        right: bool,
    },
    /// Each character becomes those that the function gives.
    Each(fn(char) -> Replacement),
    CharsMap(CharsMap),
}

/// Rewrites in order, and the maximum factor by which all of them together
/// lengthen a text.
pub(super) struct Normalization {
    rewrites: Vec<Rewrite>,
    expansion: usize,
}

impl Normalization {
    pub(super) fn none() -> Normalization {
        Normalization { rewrites: Vec::new(), expansion: 1 }
    }

    pub(super) fn is_none(&self) -> bool {
        self.rewrites.is_empty()
    }

    /// Adds a rewrite that makes a text up to `expansion` times as long.
    fn add(&mut self, rewrite: Rewrite, expansion: usize) -> Result<()> {
        self.expansion = self.expansion.saturating_mul(expansion);
        if self.expansion > MAX_NORMALIZER_EXPANSION {
            return Err(Error::new(format!(
                "its steps could make a text {} times as long; the maximum is {MAX_NORMALIZER_EXPANSION} times",
                self.expansion
            )));
        }
        self.rewrites.push(rewrite);
        Ok(())
    }

    /// Adds a normalization form.
    pub(super) fn add_form(&mut self, form: NormalizationForm) -> Result<()> {
        self.add(Rewrite::NormalizationForm(form), form.expansion())
    }

    /// Adds a replacement of one text by another.
    pub(super) fn add_replace(&mut self, pattern: String, content: String) -> Result<()> {
        assert!(!pattern.is_empty(), "the caller refuses empty patterns");
        let expansion = content.len().div_ceil(pattern.len()).max(1);
        self.add(Rewrite::Replace { pattern, content }, expansion)
    }

    /// Adds a text to prepend to each piece.
    pub(super) fn add_prepend(&mut self, prefix: String) -> Result<()> {
        if prefix.is_empty() {
            return Err(Error::new("Prepend has an empty text; remove the step"));
        }
        if prefix.len() > MAX_PREFIX_BYTES {
            return Err(Error::new(format!(
                "Prepend has {} bytes; the maximum is {MAX_PREFIX_BYTES}",
                prefix.len()
            )));
        }
        self.add(Rewrite::Prepend(prefix), 1)
    }

    /// Adds BERT's normalizer.
    pub(super) fn add_bert(&mut self, rules: BertRules) -> Result<()> {
        self.add(Rewrite::Bert(rules), BertRules::EXPANSION)
    }

    /// Adds a replacement of each match of a regular expression.
    pub(super) fn add_replace_matches(&mut self, pattern: Pattern, content: String) -> Result<()> {
        let expansion = content.len().max(1);
        self.add(Rewrite::ReplaceMatches { pattern, content }, expansion)
    }

    /// Adds the removal of white space at the sides of a text.
    pub(super) fn add_strip(&mut self, left: bool, right: bool) -> Result<()> {
        self.add(Rewrite::Strip { left, right }, 1)
    }

    /// Adds lower case.
    pub(super) fn add_lowercase(&mut self) -> Result<()> {
        // `Ⱥ` has 2 bytes, `ⱥ` 3.
        self.add(Rewrite::Each(lowercase), 2)
    }

    /// Adds the removal of combining marks.
    pub(super) fn add_strip_accents(&mut self) -> Result<()> {
        self.add(Rewrite::Each(without_mark), 1)
    }

    /// Adds the first normalizer of SentencePiece for machine translation (`Nmt`).
    pub(super) fn add_nmt(&mut self) -> Result<()> {
        self.add(Rewrite::Each(nmt), 1)
    }

    /// Adds a character map of SentencePiece.
    pub(super) fn add_chars_map(&mut self, map: CharsMap) -> Result<()> {
        self.add(Rewrite::CharsMap(map), CHARS_MAP_EXPANSION)
    }

    /// Normalizes a text.
    pub(super) fn apply(&self, text: &str) -> Result<NormalizedText> {
        if text.len().saturating_mul(self.expansion) > MAX_NORMALIZED_BYTES {
            return Err(Error::new(format!(
                "a text of {} bytes could grow {} times when normalized; the maximum is \
                 {MAX_NORMALIZED_BYTES} bytes: split it",
                text.len(),
                self.expansion
            )));
        }
        let source = NormalizedText::of(text);
        self.rewrites.iter().try_fold(source, |text, rewrite| {
            Ok(match rewrite {
                Rewrite::NormalizationForm(form) => text.in_form(*form),
                Rewrite::Prepend(prefix) => text.prepended(prefix),
                Rewrite::Replace { pattern, content } => {
                    let found = text.text.match_indices(pattern.as_str());
                    let found = found.map(|(start, found)| start..start + found.len()).collect();
                    text.replaced(found, content)
                }
                Rewrite::ReplaceMatches { pattern, content } => {
                    let found = pattern.matches(&text.text);
                    text.replaced(found, content)
                }
                Rewrite::Bert(rules) => text.by_rules(*rules),
                Rewrite::Strip { left, right } => text.stripped(*left, *right),
                Rewrite::Each(rewrite) => text.each_replaced(rewrite),
                Rewrite::CharsMap(map) => text.by_map(map)?,
            })
        })
    }
}

fn lowercase(char: char) -> Replacement {
    let mut lower = char.to_lowercase();
    [lower.next(), lower.next(), lower.next()]
}

fn without_mark(char: char) -> Replacement {
    [Some(char).filter(|char| !unicode_normalization_alignments::char::is_combining_mark(*char)), None, None]
}

/// Removes control characters, and replaces white space and invisible characters by a space
/// (`builder.cc` of SentencePiece, `nmt`).
fn nmt(char: char) -> Replacement {
    let new = match char {
        '\u{1}'..='\u{8}' | '\u{B}' | '\u{E}'..='\u{1F}' | '\u{7F}' | '\u{8F}' | '\u{9F}' => None,
        '\t'
        | '\n'
        | '\u{C}'
        | '\r'
        | '\u{1680}'
        | '\u{200B}'..='\u{200F}'
        | '\u{2028}'
        | '\u{2029}'
        | '\u{2581}'
        | '\u{FEFF}'
        | '\u{FFFD}' => Some(' '),
        _ => Some(char),
    };
    [new, None, None]
}

/// A normalized text and, for each of its bytes, the start and end of the source
/// bytes that its character came from.
#[derive(Debug)]
pub(super) struct NormalizedText {
    text: String,
    alignments: Vec<(usize, usize)>,
}

impl NormalizedText {
    /// A text that is its own source.
    fn of(source: &str) -> NormalizedText {
        let mut same = NormalizedText::with_capacity(source.len());
        for (start, char) in source.char_indices() {
            same.push(char, (start, start + char.len_utf8()));
        }
        same
    }

    fn with_capacity(bytes: usize) -> NormalizedText {
        NormalizedText { text: String::with_capacity(bytes), alignments: Vec::with_capacity(bytes) }
    }

    fn push(&mut self, char: char, origin: (usize, usize)) {
        self.text.push(char);
        self.alignments.extend(repeat_n(origin, char.len_utf8()));
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The range of the source that the bytes in `range` came from; `None` if
    /// `range` is empty.
    pub(super) fn source_range(&self, range: Range<usize>) -> Option<Range<usize>> {
        let alignments = self.alignments.get(range)?;
        Some(alignments.first()?.0..alignments.last()?.1)
    }

    /// The number of characters at the beginning of `range` that came from the source's first one.
    pub(super) fn opening(&self, range: Range<usize>) -> usize {
        let starts =
            self.text[range.clone()].char_indices().map(|(at, _)| self.alignments[range.start + at].0);
        starts.take_while(|start| *start == 0).count()
    }

    fn in_form(&self, form: NormalizationForm) -> NormalizedText {
        match form {
            NormalizationForm::Nfc => self.rewritten(self.text.nfc()),
            NormalizationForm::Nfd => self.rewritten(self.text.nfd()),
            NormalizationForm::Nfkc => self.rewritten(self.text.nfkc()),
            NormalizationForm::Nfkd => self.rewritten(self.text.nfkd()),
        }
    }

    /// Collects `chars`. The number beside a character is 1 if it was inserted,
    /// and −n if it replaces the next 1 + n characters of the old text.
    fn rewritten(&self, chars: impl Iterator<Item = (char, isize)>) -> NormalizedText {
        let mut new = NormalizedText::with_capacity(self.text.len());
        let mut old = self.text.chars();
        let mut at = 0;
        for (char, change) in chars {
            // The numbers account for all characters of the old text, and the
            // first character is not inserted.
            let origin = self.alignments[if change > 0 { at - 1 } else { at }];
            let passed = usize::try_from(1 - change).unwrap_or(0);
            at += old.by_ref().take(passed).map(char::len_utf8).sum::<usize>();
            new.push(char, origin);
        }
        new
    }

    /// Prepends `prefix` unless the text is empty.
    fn prepended(mut self, prefix: &str) -> NormalizedText {
        if let Some(&origin) = self.alignments.first() {
            self.text.insert_str(0, prefix);
            self.alignments.splice(0..0, repeat_n(origin, prefix.len()));
        }
        self
    }

    /// Replaces ranges; `content` gets the alignment of the last replaced character.
    fn replaced(self, found: Vec<Range<usize>>, content: &str) -> NormalizedText {
        let mut new = NormalizedText::with_capacity(self.text.len());
        let mut copied = 0;
        for Range { start, end } in found {
            new.copy(&self, copied..start);
            new.text.push_str(content);
            new.alignments.extend(repeat_n(self.alignments[end - 1], content.len()));
            copied = end;
        }
        new.copy(&self, copied..self.text.len());
        new
    }

    /// Appends a part of another text.
    fn copy(&mut self, other: &NormalizedText, range: Range<usize>) {
        self.text.push_str(&other.text[range.clone()]);
        self.alignments.extend_from_slice(&other.alignments[range]);
    }

    /// Removes white space at the sides.
    fn stripped(self, left: bool, right: bool) -> NormalizedText {
        let end = if right { self.text.trim_end().len() } else { self.text.len() };
        let start = if left { end - self.text[..end].trim_start().len() } else { 0 };
        let mut new = NormalizedText::with_capacity(end - start);
        new.copy(&self, start..end);
        new
    }

    /// Replaces parts by a character map. A new character gets the alignment of the old one in its
    /// place, or of the part's last.
    fn by_map(&self, map: &CharsMap) -> Result<NormalizedText> {
        let mut new = NormalizedText::with_capacity(self.text.len());
        let mut at = 0;
        map.each_part(&self.text, |part, replacement| {
            let starts: Vec<usize> = part.char_indices().map(|(start, _)| at + start).collect();
            let last = starts.last().copied().unwrap_or(at);
            let origins = starts.into_iter().chain(std::iter::repeat(last));
            // A text that grows too much is refused below.
            if new.text.len() <= self.text.len() * CHARS_MAP_EXPANSION {
                let chars = replacement.unwrap_or(part).chars();
                chars.zip(origins).for_each(|(char, origin)| new.push(char, self.alignments[origin]));
            }
            at += part.len();
        });
        if new.text.len() > self.text.len() * CHARS_MAP_EXPANSION {
            return Err(Error::new(format!(
                "precompiled_charsmap made a text more than {CHARS_MAP_EXPANSION} times as long"
            )));
        }
        Ok(new)
    }

    fn by_rules(&self, rules: BertRules) -> NormalizedText {
        let clean = self.each_replaced(|char| rules.of_source(char));
        let decomposed = if rules.strip_accents { clean.in_form(NormalizationForm::Nfd) } else { clean };
        decomposed.each_replaced(|char| rules.of_decomposed(char))
    }

    /// Replaces each character; the new ones get its alignment.
    fn each_replaced(&self, rewrite: impl Fn(char) -> Replacement) -> NormalizedText {
        let mut new = NormalizedText::with_capacity(self.text.len());
        for (at, char) in self.text.char_indices() {
            rewrite(char).into_iter().flatten().for_each(|char| new.push(char, self.alignments[at]));
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMS: [NormalizationForm; 4] =
        [NormalizationForm::Nfc, NormalizationForm::Nfd, NormalizationForm::Nfkc, NormalizationForm::Nfkd];

    /// All sixteen rules of BERT's normalizer.
    fn bert_rules() -> impl Iterator<Item = BertRules> {
        (0..16).map(|bits| BertRules {
            clean_text: bits & 1 > 0,
            handle_chinese_chars: bits & 2 > 0,
            strip_accents: bits & 4 > 0,
            lowercase: bits & 8 > 0,
        })
    }

    #[test]
    fn berts_rules_lengthen_no_character_more_than_stated() {
        for rules in bert_rules().step_by(3) {
            let mut bert = Normalization::none();
            bert.add_bert(rules).expect("the text grows little");
            for char in (0..=0x10_FFFF).filter_map(char::from_u32) {
                let new = bert.apply(&char.to_string()).expect("one character");
                assert!(new.text().len() <= BertRules::EXPANSION * char.len_utf8(), "{char:?} {rules:?}");
            }
        }
    }

    #[test]
    fn long_runs_of_marks_take_linear_time() {
        let marks: String = ['\u{301}', '\u{323}', '\u{344}'].into_iter().cycle().take(500_000).collect();
        for form in FORMS {
            let mut steps = Normalization::none();
            steps.add_form(form).expect("the text grows little");
            let text = format!("a{marks}");
            let started = std::time::Instant::now();
            let normal = steps.apply(&text).expect("the text is short enough");
            assert!(started.elapsed().as_secs() < 10, "{form:?}: {:?}", started.elapsed());
            assert_eq!(normal.alignments.len(), normal.text.len());
        }
    }

    #[test]
    fn invalid_steps_are_refused() {
        let mut steps = Normalization::none();
        assert!(steps.add_prepend(String::new()).unwrap_err().to_string().contains("empty text"));
        assert!(steps.add_prepend("▁".repeat(6)).unwrap_err().to_string().contains("the maximum is 16"));
        steps.add_form(NormalizationForm::Nfkd).unwrap();
        steps.add_form(NormalizationForm::Nfkc).unwrap();
        assert!(steps.add_form(NormalizationForm::Nfkc).unwrap_err().to_string().contains("1331 times"));
        assert!(
            steps
                .apply(&"a".repeat(MAX_NORMALIZED_BYTES / 1331 + 1))
                .unwrap_err()
                .to_string()
                .contains("split it")
        );
    }
}
