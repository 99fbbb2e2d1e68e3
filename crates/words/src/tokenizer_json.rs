//! Reads and checks `tokenizer.json`.
//!
//! Only the components of decoder models and of BERT are supported. A file with
//! another component, or with an unknown field, is refused with its name.
//! `truncation` and `padding` are ignored, as in transformers: they configure
//! training batches, not the encoding of a text.

use girih_file::shorten_parse;
use girih_tensor::{Error, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::added::AddedToken;
use super::bert::BertRules;
use super::charsmap::CharsMap;
use super::decoding::Decoding;
use super::model_json::{ModelJson, UniqueKeys};
use super::normalize::{Normalization, NormalizationForm};
use super::parts::{BosEosIds, NamedTokens, TokenizerParts};
use super::pattern::Pattern;
use super::short::short;
use super::split::{self, DelimiterBehavior, MatchRole, PreTokenizerStep, PrependScheme};
use crate::limits::TextLimits;

/// The maximum length of a decoded text relative to its tokens.
const MAX_DECODER_EXPANSION: usize = 64;
/// The maximum number of steps of one normalizer, pre-tokenizer or decoder.
const MAX_STEPS: usize = 64;

/// Parses the bytes of a `tokenizer.json`.
pub(super) fn parse(bytes: &[u8], limits: &TextLimits) -> Result<TokenizerParts> {
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if len > limits.tokenizer_bytes {
        return Err(Error::new(format!("{len} bytes; the maximum is {}", limits.tokenizer_bytes)));
    }
    let file: TokenizerFile = serde_json::from_slice(bytes)
        .map_err(|error| Error::new(format!("not a supported tokenizer.json: {}", shorten_parse(&error))))?;
    if file.version != "1.0" {
        return Err(Error::new(format!(
            "version `{}` is not supported; it must be 1.0",
            short(&file.version)
        )));
    }
    file.parts()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct TokenizerFile {
    version: String,
    #[serde(default, rename = "truncation")]
    _truncation: Option<IgnoredAny>,
    #[serde(default, rename = "padding")]
    _padding: Option<IgnoredAny>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    post_processor: Option<PostProcessor>,
    decoder: Option<Decoder>,
    model: ModelJson,
}

#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: PatternJson,
        content: String,
    },
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    StripAccents {},
    Lowercase {},
    Nmt {},
    Precompiled {
        /// `null` for no map.
        precompiled_charsmap: Option<String>,
    },
    #[serde(rename = "BertNormalizer")]
    Bert {
        clean_text: bool,
        handle_chinese_chars: bool,
        /// `null` for the value of `lowercase`.
        strip_accents: Option<bool>,
        lowercase: bool,
    },
}

#[derive(Deserialize)]
enum PatternJson {
    String(String),
    Regex(String),
}

#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    Split {
        pattern: PatternJson,
        behavior: DelimiterBehavior,
        invert: bool,
    },
    ByteLevel {
        add_prefix_space: bool,
        #[serde(rename = "trim_offsets")]
        _trim_offsets: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Metaspace {
        replacement: char,
        #[serde(default = "always")]
        prepend_scheme: PrependScheme,
        #[serde(default = "yes")]
        split: bool,
        add_prefix_space: Option<bool>,
        #[serde(rename = "str_rep")]
        _str_rep: Option<String>,
    },
    Digits {
        individual_digits: bool,
    },
    #[serde(rename = "BertPreTokenizer")]
    Bert {},
    Whitespace {},
    WhitespaceSplit {},
    Punctuation {
        #[serde(default = "isolated")]
        behavior: DelimiterBehavior,
    },
    CharDelimiterSplit {
        delimiter: char,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum PostProcessor {
    Sequence {
        processors: Vec<PostProcessor>,
    },
    ByteLevel(#[expect(dead_code, reason = "it adjusts offsets, which are not used")] ByteLevelFields),
    TemplateProcessing {
        single: Vec<TemplatePiece>,
        pair: Vec<TemplatePiece>,
        special_tokens: UniqueKeys<SpecialIds>,
    },
    BertProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    RobertaProcessing {
        sep: (String, u32),
        cls: (String, u32),
        #[serde(rename = "trim_offsets")]
        _trim_offsets: bool,
        #[serde(rename = "add_prefix_space")]
        _add_prefix_space: bool,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ByteLevelFields {
    #[serde(default, rename = "add_prefix_space")]
    _add_prefix_space: bool,
    #[serde(default, rename = "trim_offsets")]
    _trim_offsets: bool,
    #[serde(default, rename = "use_regex")]
    _use_regex: bool,
}

#[derive(Deserialize)]
enum TemplatePiece {
    Sequence { id: PieceSequence, type_id: u32 },
    SpecialToken { id: String, type_id: u32 },
}

#[derive(Deserialize, PartialEq)]
enum PieceSequence {
    A,
    B,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecialIds {
    #[serde(rename = "id")]
    _id: String,
    ids: Vec<u32>,
    #[serde(rename = "tokens")]
    _tokens: Vec<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum Decoder {
    Sequence {
        decoders: Vec<Decoder>,
    },
    ByteLevel(#[expect(dead_code, reason = "the fields matter for encoding only")] ByteLevelFields),
    Replace {
        pattern: PatternJson,
        content: String,
    },
    ByteFallback,
    Fuse,
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    Metaspace {
        replacement: char,
        #[serde(default = "always")]
        prepend_scheme: PrependScheme,
        #[serde(default = "yes", rename = "split")]
        _split: bool,
        add_prefix_space: Option<bool>,
        #[serde(rename = "str_rep")]
        _str_rep: Option<String>,
    },
}

fn yes() -> bool {
    true
}

fn always() -> PrependScheme {
    PrependScheme::Always
}

fn isolated() -> DelimiterBehavior {
    DelimiterBehavior::Isolated
}

/// The scheme of a metaspace; `add_prefix_space` is of older files.
fn scheme(prepend_scheme: PrependScheme, add_prefix_space: Option<bool>) -> PrependScheme {
    if add_prefix_space == Some(false) { PrependScheme::Never } else { prepend_scheme }
}

impl TokenizerFile {
    fn parts(self) -> Result<TokenizerParts> {
        let model = self.model.parts().map_err(|error| error.of("model"))?;
        let unk = model.unknown_id();
        Ok(TokenizerParts {
            added: self.added_tokens,
            normalization: normalization(self.normalizer).map_err(|error| error.of("normalizer"))?,
            steps: steps(self.pre_tokenizer).map_err(|error| error.of("pre_tokenizer"))?,
            model,
            bos_eos: bos_eos(self.post_processor).map_err(|error| error.of("post_processor"))?,
            decoding: decoding(self.decoder).map_err(|error| error.of("decoder"))?,
            named: NamedTokens { unk, ..NamedTokens::default() },
        })
    }
}

/// The items of nested sequences, in order. serde_json bounds their depth.
fn flat<T>(item: Option<T>, inner: fn(T) -> Result<Vec<T>, T>) -> Result<Vec<T>> {
    let mut open: Vec<T> = item.into_iter().collect();
    let mut items = Vec::new();
    while let Some(item) = open.pop() {
        match inner(item) {
            Ok(sequence) => open.extend(sequence.into_iter().rev()),
            Err(item) => items.push(item),
        }
        if open.len() + items.len() > MAX_STEPS {
            return Err(Error::new(format!("more than {MAX_STEPS} steps")));
        }
    }
    Ok(items)
}

fn normalization(normalizer: Option<Normalizer>) -> Result<Normalization> {
    let flat = flat(normalizer, |item| match item {
        Normalizer::Sequence { normalizers } => Ok(normalizers),
        item => Err(item),
    })?;
    let mut steps = Normalization::none();
    for item in flat {
        match item {
            Normalizer::Nfc => steps.add_form(NormalizationForm::Nfc)?,
            Normalizer::Nfd => steps.add_form(NormalizationForm::Nfd)?,
            Normalizer::Nfkc => steps.add_form(NormalizationForm::Nfkc)?,
            Normalizer::Nfkd => steps.add_form(NormalizationForm::Nfkd)?,
            Normalizer::Prepend { prepend } => steps.add_prepend(prepend)?,
            Normalizer::Replace { pattern: PatternJson::Regex(regex), content } => {
                steps.add_replace_matches(Pattern::of_text(&regex)?, content)?;
            }
            Normalizer::Replace { pattern, content } => steps.add_replace(literal(pattern)?, content)?,
            Normalizer::Strip { strip_left, strip_right } => steps.add_strip(strip_left, strip_right)?,
            Normalizer::StripAccents {} => steps.add_strip_accents()?,
            Normalizer::Lowercase {} => steps.add_lowercase()?,
            Normalizer::Nmt {} => steps.add_nmt()?,
            Normalizer::Precompiled { precompiled_charsmap: Some(map) } if !map.is_empty() => {
                steps.add_chars_map(CharsMap::parse(&map)?)?;
            }
            Normalizer::Precompiled { .. } => {}
            Normalizer::Bert { clean_text, handle_chinese_chars, strip_accents, lowercase } => {
                let strip_accents = strip_accents.unwrap_or(lowercase);
                steps.add_bert(BertRules { clean_text, handle_chinese_chars, strip_accents, lowercase })?;
            }
            Normalizer::Sequence { .. } => unreachable!("sequences were flattened"),
        }
    }
    Ok(steps)
}

/// The text of a literal pattern; a regular expression is refused.
fn literal(pattern: PatternJson) -> Result<String> {
    match pattern {
        PatternJson::String(text) if text.is_empty() => Err(Error::new("Replace has an empty pattern")),
        PatternJson::String(text) => Ok(text),
        PatternJson::Regex(regex) => {
            Err(Error::new(format!("Replace by the regular expression `{}` is not supported", short(&regex))))
        }
    }
}

fn steps(pre_tokenizer: Option<PreTokenizer>) -> Result<Vec<PreTokenizerStep>> {
    let flat = flat(pre_tokenizer, |item| match item {
        PreTokenizer::Sequence { pretokenizers } => Ok(pretokenizers),
        item => Err(item),
    })?;
    let mut steps = Vec::new();
    for item in flat {
        item.add_steps(&mut steps)?;
    }
    Ok(steps)
}

impl PreTokenizer {
    fn add_steps(self, steps: &mut Vec<PreTokenizerStep>) -> Result<()> {
        let delimiter = MatchRole::Delimiter;
        match self {
            PreTokenizer::Split { pattern, behavior, invert } => {
                let pattern = match pattern {
                    PatternJson::String(text) => Pattern::literal(&text)?,
                    PatternJson::Regex(regex) => Pattern::regex(&regex)?,
                };
                let role = if invert { MatchRole::Word } else { delimiter };
                steps.push(PreTokenizerStep::Split { pattern, role, behavior });
            }
            PreTokenizer::ByteLevel { add_prefix_space, use_regex, .. } => {
                if add_prefix_space {
                    steps.push(PreTokenizerStep::PrefixSpace);
                }
                if use_regex {
                    steps.extend(split::byte_level_steps(split::GPT2)?);
                } else {
                    steps.push(PreTokenizerStep::ByteLevel);
                }
            }
            PreTokenizer::Metaspace { replacement, prepend_scheme, split, add_prefix_space, .. } => {
                let scheme = scheme(prepend_scheme, add_prefix_space);
                steps.push(PreTokenizerStep::Metaspace { mark: replacement, scheme });
                if split {
                    let pattern = Pattern::literal(&replacement.to_string())?;
                    steps.push(PreTokenizerStep::Split {
                        pattern,
                        role: delimiter,
                        behavior: DelimiterBehavior::MergedWithNext,
                    });
                }
            }
            PreTokenizer::Digits { individual_digits } => {
                let pattern = Pattern::regex(if individual_digits { r"\p{N}" } else { r"\p{N}+" })?;
                steps.push(PreTokenizerStep::Split {
                    pattern,
                    role: delimiter,
                    behavior: DelimiterBehavior::Isolated,
                });
            }
            PreTokenizer::Bert {} => steps.push(PreTokenizerStep::Bert),
            PreTokenizer::WhitespaceSplit {} => steps.push(PreTokenizerStep::WhiteSpace),
            PreTokenizer::Whitespace {} => steps.push(PreTokenizerStep::Split {
                pattern: Pattern::regex(r"\w+|[^\w\s]+")?,
                role: MatchRole::Word,
                behavior: DelimiterBehavior::Removed,
            }),
            PreTokenizer::Punctuation { behavior } => steps.push(PreTokenizerStep::Punctuation { behavior }),
            PreTokenizer::CharDelimiterSplit { delimiter: mark } => steps.push(PreTokenizerStep::Split {
                pattern: Pattern::literal(&mark.to_string())?,
                role: delimiter,
                behavior: DelimiterBehavior::Removed,
            }),
            PreTokenizer::Sequence { .. } => unreachable!("sequences were flattened"),
        }
        Ok(())
    }
}

fn bos_eos(post_processor: Option<PostProcessor>) -> Result<BosEosIds> {
    let flat = flat(post_processor, |item| match item {
        PostProcessor::Sequence { processors } => Ok(processors),
        item => Err(item),
    })?;
    let mut ids = BosEosIds::default();
    for item in flat {
        let BosEosIds { before, after } = match item {
            PostProcessor::TemplateProcessing { single, pair, special_tokens } => {
                template(&pair, &special_tokens)?;
                check_token_types(&single)?;
                template(&single, &special_tokens)?
            }
            PostProcessor::BertProcessing { sep, cls }
            | PostProcessor::RobertaProcessing { sep, cls, .. } => {
                BosEosIds { before: vec![cls.1], after: vec![sep.1] }
            }
            PostProcessor::ByteLevel(_) => continue,
            PostProcessor::Sequence { .. } => unreachable!("sequences were flattened"),
        };
        ids.before.splice(0..0, before);
        ids.after.extend(after);
    }
    Ok(ids)
}

/// Checks that the template of a single text has only token type 0, which models
/// give to all tokens.
fn check_token_types(single: &[TemplatePiece]) -> Result<()> {
    for piece in single {
        let (TemplatePiece::Sequence { type_id, .. } | TemplatePiece::SpecialToken { type_id, .. }) = piece;
        if *type_id != 0 {
            return Err(Error::new(format!(
                "the template of a single text has token type {type_id}; only type 0 is supported"
            )));
        }
    }
    Ok(())
}

/// The ids before and after sequence A of a template.
fn template(pieces: &[TemplatePiece], special: &UniqueKeys<SpecialIds>) -> Result<BosEosIds> {
    let mut ids = BosEosIds::default();
    let mut sequences = 0;
    for piece in pieces {
        match piece {
            TemplatePiece::Sequence { id: PieceSequence::A, .. } => sequences += 1,
            TemplatePiece::Sequence { id: PieceSequence::B, .. } => {}
            TemplatePiece::SpecialToken { id, .. } => {
                let found = special.0.iter().find(|(name, _)| name == id);
                let (_, special) = found.ok_or_else(|| {
                    Error::new(format!("the template has `{}`, which is not in special_tokens", short(id)))
                })?;
                let side = if sequences == 0 { &mut ids.before } else { &mut ids.after };
                side.extend(&special.ids);
            }
        }
    }
    if sequences != 1 {
        return Err(Error::new(format!(
            "the template contains sequence A {sequences} times; it must contain it once"
        )));
    }
    Ok(ids)
}

fn decoding(decoder: Option<Decoder>) -> Result<Decoding> {
    let flat = flat(decoder, |item| match item {
        Decoder::Sequence { decoders } => Ok(decoders),
        item => Err(item),
    })?;
    match flat.as_slice() {
        [Decoder::ByteLevel(_)] => return Ok(Decoding::ByteLevel),
        [Decoder::Metaspace { replacement, prepend_scheme, add_prefix_space, .. }] => {
            let opens = scheme(*prepend_scheme, *add_prefix_space) != PrependScheme::Never;
            return Ok(Decoding::Metaspace { mark: *replacement, opens });
        }
        [Decoder::WordPiece { prefix, cleanup }] => {
            return Ok(Decoding::WordPiece { prefix: prefix.clone(), cleanup: *cleanup });
        }
        _ => {}
    }
    let order = "Replace, ByteFallback, Fuse, Strip";
    let wrong = || {
        Error::new(format!("it must be ByteLevel, Metaspace, WordPiece, or a sequence in the order {order}"))
    };
    let (mut replacements, mut byte_fallback, mut fused, mut strip) = (Vec::new(), false, false, None);
    let mut expansion = 1_usize;
    for item in flat {
        match item {
            Decoder::Replace { pattern, content } if !byte_fallback && !fused => {
                let pattern = literal(pattern)?;
                expansion = expansion.saturating_mul(content.len().div_ceil(pattern.len()).max(1));
                replacements.push((pattern, content));
            }
            Decoder::ByteFallback if !byte_fallback && !fused => byte_fallback = true,
            Decoder::Fuse if !fused => fused = true,
            Decoder::Strip { content, start, stop: 0 } if fused && strip.is_none() => {
                strip = Some((content, start));
            }
            _ => return Err(wrong()),
        }
    }
    if !fused {
        return Err(wrong());
    }
    if expansion > MAX_DECODER_EXPANSION {
        return Err(Error::new(format!(
            "its steps could make a text {expansion} times as long; the maximum is {MAX_DECODER_EXPANSION} times"
        )));
    }
    Ok(Decoding::Pieces { replace: replacements, byte_fallback, strip })
}
