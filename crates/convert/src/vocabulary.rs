//! The tokenizer of a model as keys of GGUF.

use std::borrow::Cow;

use girih_file::{ContainerKind, Metadata, MetadataArray, MetadataValue, Strings};
use girih_model::ModelFiles;
use girih_tensor::Result;
use girih_words::GgufVocab;
use girih_words::TextLimits;
use girih_words::template::ChatTemplate;

/// The prefix of the keys of tokenizers.
const TOKENIZER_PREFIX: &str = "tokenizer.";

/// Adds the tokenizer and the chat template of `model` to `metadata`; returns
/// warnings about what is lost.
///
/// # Errors
/// When GGUF has no name for the tokenizer's rules.
pub(super) fn put(model: &ModelFiles, metadata: &mut Metadata, limits: &TextLimits) -> Result<Vec<String>> {
    let container = model.weights.container();
    if container.kind() == ContainerKind::Gguf {
        let pairs = container.metadata().iter().filter(|(key, _)| key.starts_with(TOKENIZER_PREFIX));
        pairs.into_iter().try_for_each(|(key, value)| metadata.insert(key, value.clone()))?;
        return Ok(Vec::new());
    }
    let rows = model.facts.sizes.vocabulary;
    if let Some(files) = model.embedded() {
        let (vocab, warnings) = GgufVocab::from_json(files.tokenizer.as_bytes(), rows, limits)?;
        put_vocab(vocab, metadata)?;
        return Ok(warnings);
    }
    if !model.folder().join("tokenizer.json").exists() {
        metadata.insert("tokenizer.ggml.model", MetadataValue::String("none".to_owned()))?;
        return Ok(vec![
            "the folder has no tokenizer.json, so the file has no vocabulary and works with ids only"
                .to_owned(),
        ]);
    }
    let (vocab, mut warnings) = GgufVocab::from_folder(model.folder(), rows, limits)?;
    put_vocab(vocab, metadata)?;
    match ChatTemplate::read(model.folder(), limits)?.map(|template| template.source(None).map(str::to_owned))
    {
        Some(Ok(source)) => metadata.insert("tokenizer.chat_template", MetadataValue::String(source))?,
        Some(Err(error)) => warnings.push(format!("the file has no chat template: {error}")),
        None => {}
    }
    Ok(warnings)
}

fn put_vocab(vocab: GgufVocab<'_>, metadata: &mut Metadata) -> Result<()> {
    let strings = |list: Cow<'_, Strings>| MetadataValue::Array(MetadataArray::String(list.into_owned()));
    let values = [
        ("model", Some(MetadataValue::String(vocab.model))),
        ("pre", vocab.pre.map(MetadataValue::String)),
        ("tokens", Some(strings(vocab.tokens))),
        ("scores", vocab.scores.map(|list| MetadataValue::Array(MetadataArray::F32(list)))),
        ("token_type", vocab.types.map(|list| MetadataValue::Array(MetadataArray::I32(list)))),
        ("merges", vocab.merges.map(strings)),
        ("bos_token_id", vocab.bos.map(MetadataValue::U32)),
        ("eos_token_id", vocab.eos.map(MetadataValue::U32)),
        ("unknown_token_id", vocab.unk.map(MetadataValue::U32)),
        ("padding_token_id", vocab.pad.map(MetadataValue::U32)),
        ("add_bos_token", vocab.add_bos.map(MetadataValue::Bool)),
        ("add_eos_token", vocab.add_eos.map(MetadataValue::Bool)),
        ("cls_token_id", vocab.cls.map(MetadataValue::U32)),
        ("seperator_token_id", vocab.sep.map(MetadataValue::U32)),
        ("add_sep_token", vocab.add_sep.map(MetadataValue::Bool)),
        ("normalizer.lowercase", vocab.lowercase.map(MetadataValue::Bool)),
        ("normalizer.strip_accents", vocab.strip_accents.map(MetadataValue::Bool)),
        ("add_space_prefix", vocab.add_space_prefix.map(MetadataValue::Bool)),
    ];
    let held = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
    held.into_iter().try_for_each(|(name, value)| metadata.insert(format!("tokenizer.ggml.{name}"), value))
}
