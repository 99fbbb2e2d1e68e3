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

/// The maximum length of a normalized text relative to its source. `▁` for a space
/// needs 3.
const MAX_NORMALIZER_EXPANSION: usize = 64;
/// The maximum bytes of a normalized text; each needs 16 more for its alignment.
const MAX_NORMALIZED_BYTES: usize = 64 << 20;
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
    Replace { pattern: String, content: String },
    Bert(BertRules),
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
        Ok(self.rewrites.iter().fold(source, |text, rewrite| match rewrite {
            Rewrite::NormalizationForm(form) => text.in_form(*form),
            Rewrite::Prepend(prefix) => text.prepended(prefix),
            Rewrite::Replace { pattern, content } => text.replaced(pattern, content),
            Rewrite::Bert(rules) => text.by_rules(*rules),
        }))
    }
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

    /// Replaces matches; `content` gets the alignment of the last replaced character.
    fn replaced(self, pattern: &str, content: &str) -> NormalizedText {
        let mut new = NormalizedText::with_capacity(self.text.len());
        let mut copied = 0;
        for (start, found) in self.text.match_indices(pattern) {
            let end = start + found.len();
            new.text.push_str(&self.text[copied..start]);
            new.alignments.extend_from_slice(&self.alignments[copied..start]);
            new.text.push_str(content);
            new.alignments.extend(repeat_n(self.alignments[end - 1], content.len()));
            copied = end;
        }
        new.text.push_str(&self.text[copied..]);
        new.alignments.extend_from_slice(&self.alignments[copied..]);
        new
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
    use std::path::PathBuf;

    use girih_tensor::Random;
    use tokenizers::normalizer::Range as Within;
    use tokenizers::normalizers::{
        BertNormalizer, NFC, NFD, NFKC, NFKD, NormalizerWrapper, Prepend, Replace,
    };
    use tokenizers::{NormalizedString, Normalizer as _};

    use super::*;

    /// Our rewrites and the library's.
    struct Twins {
        ours: Normalization,
        theirs: Vec<NormalizerWrapper>,
    }

    impl Twins {
        fn new() -> Twins {
            Twins { ours: Normalization::none(), theirs: Vec::new() }
        }

        fn form(mut self, form: NormalizationForm) -> Twins {
            self.ours.add_form(form).expect("the text grows little");
            self.theirs.push(match form {
                NormalizationForm::Nfc => NFC.into(),
                NormalizationForm::Nfd => NFD.into(),
                NormalizationForm::Nfkc => NFKC.into(),
                NormalizationForm::Nfkd => NFKD.into(),
            });
            self
        }

        fn bert(mut self, rules: BertRules) -> Twins {
            self.ours.add_bert(rules).expect("the text grows little");
            let BertRules { clean_text, handle_chinese_chars, strip_accents, lowercase } = rules;
            let theirs =
                BertNormalizer::new(clean_text, handle_chinese_chars, Some(strip_accents), lowercase);
            self.theirs.push(theirs.into());
            self
        }

        fn prepend(mut self, prefix: &str) -> Twins {
            self.ours.add_prepend(prefix.to_owned()).expect("the prefix is short");
            self.theirs.push(Prepend::new(prefix.to_owned()).into());
            self
        }

        fn replace(mut self, pattern: &str, content: &str) -> Twins {
            self.ours.add_replace(pattern.to_owned(), content.to_owned()).expect("the text grows little");
            self.theirs.push(Replace::new(pattern, content).expect("the pattern is short").into());
            self
        }

        /// Compares the texts, and the source ranges of all characters and of some
        /// longer ranges.
        fn check(&self, text: &str) {
            let ours = self.ours.apply(text).expect("the text is short");
            let mut theirs = NormalizedString::from(text);
            for step in &self.theirs {
                step.normalize(&mut theirs).expect("the library normalizes");
            }
            assert_eq!(ours.text(), theirs.get(), "{text:?}");
            let bounds = || ours.text().char_indices().map(|(at, _)| at).chain([ours.text().len()]);
            let singles = bounds().zip(bounds().skip(1));
            let wide = bounds().zip(bounds().skip(7));
            for (start, end) in singles.chain(wide) {
                let origin = theirs.convert_offsets(Within::Normalized(start..end));
                assert_eq!(ours.source_range(start..end), origin, "{start}..{end} of {text:?}");
            }
        }
    }

    const FORMS: [NormalizationForm; 4] =
        [NormalizationForm::Nfc, NormalizationForm::Nfd, NormalizationForm::Nfkc, NormalizationForm::Nfkd];

    #[test]
    fn each_form_of_every_character_equals_the_librarys() {
        let all: Vec<char> = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        for form in FORMS {
            let twins = Twins::new().form(form);
            for chars in all.chunks(256) {
                twins.check(&chars.iter().collect::<String>());
                // After a letter, before marks of a low and a high class, and last in the text.
                let apart: String = chars.iter().flat_map(|c| ['a', *c, '\u{323}', *c, '\u{301}']).collect();
                twins.check(&apart);
            }
        }
    }

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
    fn berts_rules_of_every_character_equal_the_librarys() {
        let all: Vec<char> = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        // Six of the sixteen, so that each rule is on and off beside each other one.
        for rules in bert_rules().step_by(3) {
            let twins = Twins::new().bert(rules);
            for chars in all.chunks(256) {
                twins.check(&chars.iter().flat_map(|c| ['a', *c]).collect::<String>());
            }
        }
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

    /// Ranges of characters; some form changes most of them.
    const RANGES: [(u32, u32); 16] = [
        (0x20, 0x7E),
        (0x00, 0xFF),
        (0x100, 0x24F),
        (0x300, 0x36F),
        (0x370, 0x3FF),
        (0x591, 0x6FF),
        (0x900, 0xDFF),
        (0xF40, 0xFC6),
        (0x1100, 0x11FF),
        (0x1E00, 0x2BFF),
        (0x3040, 0x33FF),
        (0xAC00, 0xD7A3),
        (0xF900, 0xFFFD),
        (0x1_1000, 0x1_14FF),
        (0x1_D15E, 0x1_D7FF),
        (0x0, 0x10_FFFF),
    ];

    fn random_char(random: &mut Random) -> char {
        let (first, last) = random.of(&RANGES);
        let number = first + u32::try_from(random.below((last - first) as usize + 1)).expect("a short range");
        char::from_u32(number).unwrap_or('▁')
    }

    #[test]
    fn random_rewrites_of_random_texts_equal_the_librarys() {
        for seed in 0..4000_u64 {
            let mut random = Random(seed);
            // Few distinct characters, so that patterns occur in the text.
            let letters: Vec<char> = (0..2 + random.below(12)).map(|_| random_char(&mut random)).collect();
            let mut text = |length: usize| -> String { (0..length).map(|_| random.of(&letters)).collect() };
            let mut twins = Twins::new();
            let source = text(seed as usize % 61);
            for step in 0..seed % 4 {
                twins = match (seed / 4 + step * 5) % 8 {
                    kind @ 0..4 if twins.ours.expansion * 11 <= MAX_NORMALIZER_EXPANSION => {
                        twins.form(FORMS[kind as usize])
                    }
                    4 => twins.prepend(&text(1 + seed as usize % 4)),
                    5 => twins.replace(&text(1), ""),
                    6 if twins.ours.expansion * BertRules::EXPANSION <= MAX_NORMALIZER_EXPANSION => {
                        twins.bert(bert_rules().nth(seed as usize % 16).expect("one of sixteen"))
                    }
                    _ => {
                        let pattern = text(1 + seed as usize % 3);
                        let content: String = text(2).chars().take(pattern.chars().count()).collect();
                        if content.len() > pattern.len() { twins } else { twins.replace(&pattern, &content) }
                    }
                };
            }
            println!("seed {seed}");
            twins.check(&source);
        }
    }

    #[test]
    fn the_rewrites_of_real_tokenizers_equal_the_librarys() {
        let texts =
            ["", " ", "e\u{301}", "  Ünïcödé ﬃ ½ 叫\u{3099} \u{1100}\u{1161}\u{11A8} ", ".*.* \\d+ (a|b)"];
        let gemma = Twins::new().replace(" ", "▁");
        let llama = Twins::new().prepend("▁").replace(" ", "▁");
        let odd = Twins::new()
            .replace(".*", "x")
            .replace("\\d+", "")
            .replace("(a|b)", "[")
            .form(NormalizationForm::Nfkc);
        for twins in [gemma, llama, odd].into_iter().chain(FORMS.map(|form| Twins::new().form(form))) {
            texts.iter().for_each(|text| twins.check(text));
        }
    }

    #[test]
    fn real_texts_are_normalized_as_the_library_does() {
        let Some(data) = std::env::var_os("GIRIH_TEST_DATA") else {
            return eprintln!("skipped: GIRIH_TEST_DATA is not set");
        };
        let folder = PathBuf::from(data).join("text");
        let mut files: Vec<PathBuf> = Vec::new();
        for folder in [folder.join("blns"), folder] {
            let entries = folder.read_dir().expect("a folder of texts");
            files.extend(entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()));
        }
        assert!(files.len() > 3, "{files:?}");
        for path in files {
            let text = String::from_utf8_lossy(&std::fs::read(path).expect("a file")).into_owned();
            for form in FORMS {
                Twins::new().form(form).replace(" ", "▁").prepend("▁").check(&text);
            }
            bert_rules().for_each(|rules| Twins::new().bert(rules).check(&text));
        }
    }

    #[test]
    fn long_runs_of_marks_take_linear_time() {
        let marks: String = ['\u{301}', '\u{323}', '\u{344}'].into_iter().cycle().take(500_000).collect();
        for form in FORMS {
            let twins = Twins::new().form(form);
            let text = format!("a{marks}");
            let started = std::time::Instant::now();
            let normal = twins.ours.apply(&text).expect("the text is short enough");
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
        assert!(steps.add_form(NormalizationForm::Nfkc).unwrap_err().to_string().contains("121 times"));
        assert!(
            steps
                .apply(&"a".repeat(MAX_NORMALIZED_BYTES / 11 + 1))
                .unwrap_err()
                .to_string()
                .contains("split it")
        );
    }
}
