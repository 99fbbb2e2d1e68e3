//! Reads the model of `tokenizer.json`: BPE, Unigram or WordPiece.

use std::collections::HashSet;
use std::fmt;

use girih_tensor::{Error, Result};
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::bpe::{BpeParts, Merges};
use super::parts::TokenizerModelParts;
use super::short::short;
use super::table::Vocabulary;
use super::unigram::UnigramParts;
use super::wordpiece::WordPieceParts;

/// A model with the fields of all types. Old files have no `type`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(super) struct ModelJson {
    #[serde(rename = "type")]
    model_type: Option<ModelType>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    max_input_chars_per_word: Option<usize>,
    unk_id: Option<u32>,
    vocab: VocabJson,
    #[serde(default, deserialize_with = "merges")]
    merges: Option<Merges>,
}

#[derive(Clone, Copy, Deserialize)]
enum ModelType {
    #[serde(rename = "BPE")]
    Bpe,
    Unigram,
    WordPiece,
}

/// A vocabulary: ids by token, or tokens with scores in the order of their ids.
enum VocabJson {
    Ids(UniqueKeys<u32>),
    Scores(Vec<(String, f64)>),
}

impl<'de> Deserialize<'de> for VocabJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = VocabJson;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of ids, or a list of tokens with scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VocabJson, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                UniqueKeys::deserialize(map).map(VocabJson::Ids)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<VocabJson, A::Error> {
                let mut scores = Vec::new();
                while let Some(entry) = list.next_element()? {
                    scores.push(entry);
                }
                Ok(VocabJson::Scores(scores))
            }
        }
        deserializer.deserialize_any(VocabVisitor)
    }
}

/// An object as a list of entries with distinct keys.
pub(super) struct UniqueKeys<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueKeys<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = UniqueKeys<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueKeys<V>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, V>()? {
                    entries.push(entry);
                }
                let mut keys = HashSet::with_capacity(entries.len());
                match entries.iter().find(|(key, _)| !keys.insert(key.as_str())) {
                    Some((key, _)) => Err(A::Error::custom(format!("key `{}` occurs twice", short(key)))),
                    None => Ok(UniqueKeys(entries)),
                }
            }
        }
        deserializer.deserialize_map(EntriesVisitor(std::marker::PhantomData))
    }
}

/// Two tokens to merge: `["a", "b"]`, or in older files `"a b"`.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge of two tokens")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match merge(text) {
                    Some((left, right)) => Ok(Merge(left.to_owned(), right.to_owned())),
                    None => Err(E::custom(format!("merge `{}` is not two tokens", short(text)))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                let missing = || A::Error::custom("a merge has fewer than two tokens");
                let left = pair.next_element()?.ok_or_else(missing)?;
                let right = pair.next_element()?.ok_or_else(missing)?;
                match pair.next_element::<IgnoredAny>()? {
                    Some(_) => Err(A::Error::custom("a merge has more than two tokens")),
                    None => Ok(Merge(left, right)),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

/// Deserializes merges in order, without an allocation per merge.
fn merges<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Merges>, D::Error> {
    struct MergesVisitor;
    impl<'de> Visitor<'de> for MergesVisitor {
        type Value = Merges;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a sequence")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
            let mut merges = Merges::default();
            while let Some(Merge(left, right)) = list.next_element()? {
                merges.push(&left, &right);
            }
            Ok(merges)
        }
    }
    deserializer.deserialize_seq(MergesVisitor).map(Some)
}

/// The two tokens of a merge written as one string.
pub(super) fn merge(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
}

impl ModelJson {
    /// Checks the fields of the model's type.
    pub(super) fn parts(self) -> Result<TokenizerModelParts> {
        let by_fields = match (&self.vocab, &self.merges) {
            (VocabJson::Scores(_), _) => ModelType::Unigram,
            (VocabJson::Ids(_), Some(_)) => ModelType::Bpe,
            (VocabJson::Ids(_), None) => ModelType::WordPiece,
        };
        match self.model_type.unwrap_or(by_fields) {
            ModelType::Bpe => self.bpe().map(TokenizerModelParts::Bpe),
            ModelType::Unigram => self.unigram().map(TokenizerModelParts::Unigram),
            ModelType::WordPiece => self.wordpiece().map(TokenizerModelParts::WordPiece),
        }
    }

    fn bpe(self) -> Result<BpeParts> {
        if self.dropout.is_some_and(|dropout| dropout != 0.0) {
            return Err(Error::new("dropout makes ids random; it must be null"));
        }
        for (name, affix) in [
            ("continuing_subword_prefix", &self.continuing_subword_prefix),
            ("end_of_word_suffix", &self.end_of_word_suffix),
        ] {
            if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
                return Err(Error::new(format!("{name} `{}` is not supported", short(affix))));
            }
        }
        if self.max_input_chars_per_word.is_some() {
            return Err(foreign("max_input_chars_per_word", "BPE"));
        }
        if self.unk_id.is_some() {
            return Err(foreign("unk_id", "BPE"));
        }
        Ok(BpeParts {
            vocabulary: vocabulary(&self.vocab, "BPE")?,
            merges: self.merges.ok_or_else(|| missing("merges", "BPE"))?,
            unknown: self.unk_token,
            fuse_unknown: self.fuse_unk.unwrap_or(false),
            byte_fallback: self.byte_fallback.unwrap_or(false),
            ignore_merges: self.ignore_merges.unwrap_or(false),
        })
    }

    fn unigram(self) -> Result<UnigramParts> {
        let of_others = [
            ("dropout", self.dropout.is_some()),
            ("unk_token", self.unk_token.is_some()),
            ("continuing_subword_prefix", self.continuing_subword_prefix.is_some()),
            ("end_of_word_suffix", self.end_of_word_suffix.is_some()),
            ("fuse_unk", self.fuse_unk.is_some()),
            ("ignore_merges", self.ignore_merges.is_some()),
            ("max_input_chars_per_word", self.max_input_chars_per_word.is_some()),
            ("merges", self.merges.is_some()),
        ];
        if let Some((name, _)) = of_others.into_iter().find(|(_, is_set)| *is_set) {
            return Err(foreign(name, "Unigram"));
        }
        let VocabJson::Scores(entries) = self.vocab else {
            return Err(Error::new("vocab is an object; Unigram needs a list of tokens with scores"));
        };
        Ok(UnigramParts {
            vocabulary: Vocabulary {
                tokens: entries.iter().map(|(token, _)| token).collect(),
                ids: (0..).take(entries.len()).collect(),
            },
            scores: entries.iter().map(|(_, score)| *score).collect(),
            unknown: self.unk_id,
            byte_fallback: self.byte_fallback.unwrap_or(false),
        })
    }

    fn wordpiece(self) -> Result<WordPieceParts> {
        let of_bpe = [
            ("dropout", self.dropout.is_some()),
            ("end_of_word_suffix", self.end_of_word_suffix.is_some()),
            ("fuse_unk", self.fuse_unk.is_some()),
            ("byte_fallback", self.byte_fallback.is_some()),
            ("ignore_merges", self.ignore_merges.is_some()),
            ("merges", self.merges.is_some()),
            ("unk_id", self.unk_id.is_some()),
        ];
        if let Some((name, _)) = of_bpe.into_iter().find(|(_, is_set)| *is_set) {
            return Err(foreign(name, "WordPiece"));
        }
        let needed = |name| missing(name, "WordPiece");
        Ok(WordPieceParts {
            vocabulary: vocabulary(&self.vocab, "WordPiece")?,
            unknown: self.unk_token.ok_or_else(|| needed("unk_token"))?,
            prefix: self.continuing_subword_prefix.ok_or_else(|| needed("continuing_subword_prefix"))?,
            max_chars: self.max_input_chars_per_word.ok_or_else(|| needed("max_input_chars_per_word"))?,
        })
    }
}

fn vocabulary(vocab: &VocabJson, model: &str) -> Result<Vocabulary> {
    let VocabJson::Ids(entries) = vocab else {
        return Err(Error::new(format!("vocab is a list; {model} needs an object of ids")));
    };
    Ok(Vocabulary {
        tokens: entries.0.iter().map(|(token, _)| token).collect(),
        ids: entries.0.iter().map(|(_, id)| *id).collect(),
    })
}

fn foreign(field: &str, model: &str) -> Error {
    Error::new(format!("{model} has no field {field}; remove it"))
}

fn missing(field: &str, model: &str) -> Error {
    Error::new(format!("field {field} is missing; {model} needs it"))
}
