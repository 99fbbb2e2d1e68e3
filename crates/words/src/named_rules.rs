//! The pre-tokenizers that GGUF names: one table, read from a name to its steps and from steps to
//! a name.
//!
//! The names are those of llama.cpp (`src/llama-vocab.cpp`, `tokenizer.ggml.pre`). The steps are
//! those of the families' `tokenizer.json` where they are known, because llama.cpp simplifies some
//! (it leaves out normalization, and the classes of upper-case and lower-case letters). Names whose
//! patterns need more look-ahead than `Pattern` has are refused: `chameleon`, `jais-2`, `kimi-k2`,
//! `superbpe`.

use girih_tensor::{Error, Result};

use super::normalize::NormalizationForm;
use super::pattern::Pattern;
use super::short::short;
use super::split::{DelimiterBehavior, GPT2, LLAMA3, MatchRole, PreTokenizerStep, QWEN2};

/// One step of a named pre-tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamedStep<'a> {
    /// Each match of the regular expression is a word.
    Isolate(&'a str),
    /// Each run of punctuation is a word.
    Punctuation,
    /// Each line is a word, with the line ends before it.
    Lines,
    /// Writes every byte in the byte-level alphabet.
    Bytes,
}

/// What a name stands for.
#[derive(Debug)]
pub(super) struct NamedRules {
    /// All names with these rules; the first is written.
    pub names: &'static [&'static str],
    pub steps: &'static [NamedStep<'static>],
    pub form: Option<NormalizationForm>,
    /// Whether a word that is a token becomes that token without merging.
    pub ignore_merges: bool,
    /// Whether BOS comes before a text, if the file does not say.
    pub add_bos: bool,
}

use NamedStep::{Bytes, Isolate, Lines, Punctuation};

const NUMERAL: NamedStep = Isolate(r"\p{N}");
const NUMERALS_1_3: NamedStep = Isolate(r"\p{N}{1,3}");
const CJK: NamedStep = Isolate("[一-龥぀-ゟ゠-ヿ]+");
/// Bloom's words: no white space, parenthesis, bar or punctuation of ten kinds.
const BLOOM: NamedStep = Isolate(r" ?[^(\s|[.,!?…。，、।۔،])]+");
/// The pattern of words in GPT-4o and gpt-oss (its `tokenizer.json`).
pub(super) const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of words in Mistral's Tekken: that of GPT-4o without contractions, and each digit alone.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
const AFMOE: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const SPARK: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\r\n]|\\s+(?!\\S)|\\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The letters with case of DeepSeek's first models.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

/// The line ends at which Laguna splits first.
pub(super) const LINE_ENDS: &str = r"(?:\r?\n)+(?!\r?\n)";

const NFC: Option<NormalizationForm> = Some(NormalizationForm::Nfc);

const fn row(names: &'static [&'static str], steps: &'static [NamedStep<'static>]) -> NamedRules {
    NamedRules { names, steps, form: None, ignore_merges: false, add_bos: false }
}

/// All rules. Of rows that differ only in what a file states itself, the first is written.
static RULES: &[NamedRules] = &[
    NamedRules {
        ignore_merges: true,
        add_bos: true,
        ..row(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[Isolate(LLAMA3), Bytes],
        )
    },
    NamedRules { ignore_merges: true, ..row(&["glm4", "glm5"], &[Isolate(LLAMA3), Bytes]) },
    row(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[Isolate(LLAMA3), Bytes]),
    row(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[Isolate(GPT2), Bytes],
    ),
    // The tokenizer of GPT-NeoX, from which both come, normalizes.
    NamedRules { form: NFC, ..row(&["olmo", "mpt"], &[Isolate(GPT2), Bytes]) },
    row(
        &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[NUMERAL, Isolate(GPT2), Bytes],
    ),
    NamedRules { form: NFC, ..row(&["command-r"], &[NUMERAL, Isolate(GPT2), Bytes]) },
    NamedRules {
        form: NFC,
        ..row(&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"], &[Isolate(QWEN2), Bytes])
    },
    row(&["stablelm2", "hunyuan", "solar-open", "grok-2"], &[Isolate(QWEN2), Bytes]),
    NamedRules { form: NFC, ..row(&["qwen35"], &[Isolate(QWEN35), Bytes]) },
    NamedRules { ignore_merges: true, ..row(&["gpt-4o"], &[Isolate(GPT4O), Bytes]) },
    row(&["llama4", "kanana2", "talkie", "minimax-m2"], &[Isolate(GPT4O), Bytes]),
    NamedRules { ignore_merges: true, add_bos: true, ..row(&["tekken"], &[Isolate(TEKKEN), Bytes]) },
    row(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[NUMERALS_1_3, CJK, Isolate(DEEPSEEK3), Bytes],
    ),
    row(
        &["deepseek-llm"],
        &[
            Isolate("[\r\n]"),
            Isolate(DEEPSEEK_LETTERS),
            Isolate(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Isolate(r"\s+$"),
            Isolate("[一-龥ࠀ-一가-퟿]+"),
            NUMERAL,
            Bytes,
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            Isolate("[\r\n]"),
            Isolate(r"\s?\p{L}+"),
            Isolate(r"\s?\p{P}+"),
            Isolate("[一-龥ࠀ-一가-퟿]+"),
            NUMERAL,
            Bytes,
        ],
    ),
    row(&["spark2_5"], &[NUMERALS_1_3, CJK, Isolate(SPARK), NUMERAL, Bytes]),
    NamedRules {
        ignore_merges: true,
        ..row(
            &["youtu"],
            &[
                Isolate("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
                Isolate(YOUTU),
                Bytes,
            ],
        )
    },
    // The later steps see the byte-level alphabet.
    row(&["falcon"], &[Punctuation, Isolate(GPT2), Bytes, Isolate(r"\p{N}+"), Isolate("[0-9][0-9][0-9]")]),
    row(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM, Bytes]),
    row(&["viking"], &[BLOOM, NUMERAL, Bytes]),
    row(&["bailingmoe", "bailingmoe2", "llada-moe"], &[Isolate(BAILING), Bytes]),
    row(&["seed-coder"], &[Isolate(SEED_CODER), Bytes]),
    row(&["ufakzeka"], &[Isolate(UFAKZEKA), Bytes]),
    row(&["exaone-moe"], &[Isolate(EXAONE_MOE), Bytes]),
    NamedRules { ignore_merges: true, ..row(&["minicpm5"], &[NUMERALS_1_3, Isolate(MINICPM5), Bytes]) },
    row(&["laguna"], &[Lines, Isolate(QWEN2), Bytes]),
    row(
        &["afmoe"],
        &[
            Isolate(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
            Isolate("[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"),
            Isolate(AFMOE),
            Bytes,
        ],
    ),
    row(&["tiny_aya", "cohere2moe"], &[Isolate(r"\d{1,3}(?=(?:\d{3})*\b)"), Isolate(GPT4O), Bytes]),
];

/// The rules of a name.
///
/// # Errors
/// When the name is not in the table.
pub(super) fn named(name: &str) -> Result<&'static NamedRules> {
    RULES.iter().find(|rules| rules.names.contains(&name)).ok_or_else(|| {
        Error::new(format!(
            "pre-tokenizer `{}` is none of the {} known ones; use a folder with the model's tokenizer.json",
            short(name),
            names().count()
        ))
    })
}

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rules| rules.names).copied()
}

/// The rows with these steps and this normalization.
pub(super) fn of_steps<'a>(
    steps: &'a [NamedStep<'a>],
    form: Option<NormalizationForm>,
) -> impl Iterator<Item = &'static NamedRules> + 'a {
    let is_same = move |rules: &&NamedRules| {
        let pairs = || rules.steps.iter().zip(steps);
        rules.form == form
            && rules.steps.len() == steps.len()
            && pairs().all(|(one, other)| one.is_same(other))
    };
    RULES.iter().filter(is_same)
}

impl NamedRules {
    /// The steps, compiled.
    pub(super) fn compiled(&self) -> Result<Vec<PreTokenizerStep>> {
        self.steps.iter().map(NamedStep::compiled).collect()
    }
}

impl NamedStep<'_> {
    /// Whether two steps are equal. Files write line ends in a class as they are, or escaped.
    fn is_same(&self, other: &NamedStep<'_>) -> bool {
        let plain = |regex: &str| regex.replace(r"\r", "\r").replace(r"\n", "\n");
        match (self, other) {
            (Isolate(one), Isolate(other)) => plain(one) == plain(other),
            _ => self == other,
        }
    }

    fn compiled(&self) -> Result<PreTokenizerStep> {
        let split = |regex: &str, behavior| {
            let pattern = Pattern::regex(regex)?;
            Ok(PreTokenizerStep::Split { pattern, role: MatchRole::Delimiter, behavior })
        };
        Ok(match self {
            Isolate(regex) => split(regex, DelimiterBehavior::Isolated)?,
            Lines => split(LINE_ENDS, DelimiterBehavior::MergedWithNext)?,
            Punctuation => PreTokenizerStep::Punctuation { behavior: DelimiterBehavior::Contiguous },
            Bytes => PreTokenizerStep::ByteLevel,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::split::pre_tokenize;

    #[test]
    fn every_name_occurs_once_and_its_steps_compile() {
        let mut seen = HashSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name}");
            let steps = named(name).unwrap().compiled().expect("a supported pattern");
            let words = pre_tokenize(&steps, "I've 1234  dogs\n\n".to_owned(), 1);
            assert_eq!(words.concat(), "I've\u{120}1234\u{120}\u{120}dogs\u{10a}\u{10a}", "{name}");
        }
        assert_eq!(seen.len(), 78);
        assert!(named("kimi-k2").unwrap_err().to_string().contains("`kimi-k2` is none of the 78 known ones"));
    }

    #[test]
    fn steps_lead_back_to_a_name_with_the_same_rules() {
        for rules in RULES {
            let found: Vec<_> = of_steps(rules.steps, rules.form).collect();
            let same = found.iter().find(|row| row.ignore_merges == rules.ignore_merges);
            let same = same.expect("the row itself");
            assert_eq!((same.steps, same.form), (rules.steps, rules.form));
        }
        let escaped = DEEPSEEK3.replace('\r', r"\r").replace('\n', r"\n");
        let escaped = [NUMERALS_1_3, CJK, Isolate(&escaped), Bytes];
        assert_eq!(of_steps(&escaped, None).next().map(|rules| rules.names[0]), Some("deepseek-v3"));
        let other = [Isolate("a"), Bytes];
        assert!(of_steps(&other, None).next().is_none());
    }

    #[test]
    fn digits_are_grouped_as_the_families_do() {
        let words = |name: &str, text: &str| {
            let steps = named(name).unwrap().compiled().unwrap();
            pre_tokenize(&steps, text.to_owned(), 1)
        };
        assert_eq!(words("llama-bpe", "1234567"), ["123", "456", "7"]);
        assert_eq!(words("qwen2", "1234"), ["1", "2", "3", "4"]);
        assert_eq!(words("afmoe", "1234567a"), ["1", "234", "567", "a"]);
        assert_eq!(words("cohere2moe", "1234567"), ["1", "234", "567"]);
        // Digits before a letter are not grouped from the right, as there is no boundary.
        assert_eq!(words("cohere2moe", "1234567a"), ["123", "456", "7", "a"]);
        assert_eq!(
            words("laguna", "a\r\nb \n c"),
            ["a", "\u{10d}\u{10a}", "b", "\u{120}", "\u{10a}", "\u{120}c"]
        );
        assert_eq!(words("falcon", "a 12345!!"), ["a", "\u{120}", "123", "45", "!!"]);
    }
}
