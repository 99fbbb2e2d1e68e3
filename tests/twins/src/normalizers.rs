//! Normalizers: texts, and where each of their characters comes from.

use std::path::PathBuf;

use girih_tensor::Random;
use girih_words::twins::{NormalizerSample, NormalizerStep};
use tokenizers::normalizer::Range as Within;
use tokenizers::normalizers::{BertNormalizer, NFC, NFD, NFKC, NFKD, NormalizerWrapper, Prepend, Replace};
use tokenizers::{NormalizedString, Normalizer as _};

/// Steps for our normalizer and the library's.
#[derive(Clone, Default)]
struct Twins(Vec<NormalizerStep>);

impl Twins {
    fn with(mut self, step: NormalizerStep) -> Twins {
        self.0.push(step);
        self
    }

    fn prepend(self, prefix: &str) -> Twins {
        self.with(NormalizerStep::Prepend(prefix.to_owned()))
    }

    fn replace(self, pattern: &str, content: &str) -> Twins {
        self.with(NormalizerStep::Replace(pattern.to_owned(), content.to_owned()))
    }

    fn ours(&self) -> girih_tensor::Result<NormalizerSample> {
        NormalizerSample::new(&self.0)
    }

    fn theirs(&self) -> Vec<NormalizerWrapper> {
        let step = |step: &NormalizerStep| match step {
            NormalizerStep::Nfc => NFC.into(),
            NormalizerStep::Nfd => NFD.into(),
            NormalizerStep::Nfkc => NFKC.into(),
            NormalizerStep::Nfkd => NFKD.into(),
            NormalizerStep::Prepend(text) => Prepend::new(text.clone()).into(),
            NormalizerStep::Replace(text, content) => {
                Replace::new(text.as_str(), content.as_str()).expect("the pattern is short").into()
            }
            NormalizerStep::Bert([clean_text, handle_chinese_chars, strip_accents, lowercase]) => {
                BertNormalizer::new(*clean_text, *handle_chinese_chars, Some(*strip_accents), *lowercase)
                    .into()
            }
        };
        self.0.iter().map(step).collect()
    }

    /// Compares the results for each of the texts.
    fn check(&self, texts: impl IntoIterator<Item = impl AsRef<str>>) {
        let (ours, theirs) = (self.ours().expect("the text grows little"), self.theirs());
        texts.into_iter().for_each(|text| compare(&ours, &theirs, text.as_ref()));
    }
}

/// Compares the texts, and the source ranges of all characters and of some longer ranges.
fn compare(ours: &NormalizerSample, steps: &[NormalizerWrapper], text: &str) {
    let ours = ours.apply(text).expect("the text is short");
    let mut theirs = NormalizedString::from(text);
    for step in steps {
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

const FORMS: [NormalizerStep; 4] =
    [NormalizerStep::Nfc, NormalizerStep::Nfd, NormalizerStep::Nfkc, NormalizerStep::Nfkd];

fn all_chars() -> Vec<char> {
    (0..=0x10_FFFF).filter_map(char::from_u32).collect()
}

#[test]
fn each_form_of_every_character_equals_the_librarys() {
    for form in FORMS {
        let twins = Twins::default().with(form);
        twins.check(all_chars().chunks(256).map(|chars| chars.iter().collect::<String>()));
        // After a letter, before marks of a low and a high class, and last in the text.
        let apart = |chars: &[char]| -> String {
            chars.iter().flat_map(|c| ['a', *c, '\u{323}', *c, '\u{301}']).collect()
        };
        twins.check(all_chars().chunks(256).map(apart));
    }
}

/// All sixteen rules of BERT's normalizer.
fn bert_rules() -> impl Iterator<Item = NormalizerStep> {
    (0..16).map(|bits: u32| NormalizerStep::Bert([1, 2, 4, 8].map(|bit| bits & bit > 0)))
}

#[test]
fn berts_rules_of_every_character_equal_the_librarys() {
    // Six of the sixteen, so that each rule is on and off beside each other one.
    for rules in bert_rules().step_by(3) {
        let texts = |chars: &[char]| chars.iter().flat_map(|c| ['a', *c]).collect::<String>();
        Twins::default().with(rules).check(all_chars().chunks(256).map(texts));
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
        let mut twins = Twins::default();
        let source = text(seed as usize % 61);
        let grows_little =
            |twins: &Twins, step: &NormalizerStep| twins.clone().with(step.clone()).ours().is_ok();
        for step in 0..seed % 4 {
            let kind = (seed / 4 + step * 5) % 8;
            let form = FORMS[kind as usize % 4].clone();
            let rules = bert_rules().nth(seed as usize % 16).expect("one of sixteen");
            twins = match kind {
                0..4 if grows_little(&twins, &form) => twins.with(form),
                4 => twins.prepend(&text(1 + seed as usize % 4)),
                5 => twins.replace(&text(1), ""),
                6 if grows_little(&twins, &rules) => twins.with(rules),
                _ => {
                    let pattern = text(1 + seed as usize % 3);
                    let content: String = text(2).chars().take(pattern.chars().count()).collect();
                    if content.len() > pattern.len() { twins } else { twins.replace(&pattern, &content) }
                }
            };
        }
        println!("seed {seed}");
        twins.check([source]);
    }
}

#[test]
fn the_rewrites_of_real_tokenizers_equal_the_librarys() {
    let texts =
        ["", " ", "e\u{301}", "  Ünïcödé ﬃ ½ 叫\u{3099} \u{1100}\u{1161}\u{11A8} ", ".*.* \\d+ (a|b)"];
    let gemma = Twins::default().replace(" ", "▁");
    let llama = Twins::default().prepend("▁").replace(" ", "▁");
    let odd = Twins::default().replace(".*", "x").replace("\\d+", "").replace("(a|b)", "[");
    let odd = odd.with(NormalizerStep::Nfkc);
    let forms = FORMS.map(|form| Twins::default().with(form));
    for twins in [gemma, llama, odd].into_iter().chain(forms) {
        twins.check(texts);
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
            Twins::default().with(form).replace(" ", "▁").prepend("▁").check([&text]);
        }
        bert_rules().for_each(|rules| Twins::default().with(rules).check([&text]));
    }
}
