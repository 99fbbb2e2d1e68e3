//! The description of a layer that predicts the token after the next one, as a model of its own.

use girih_tensor::{Error, Result};

use super::draft_schema::named;
use super::schema::{Arch, DraftSchema, MixerSchema};

/// The description of the drafting layer of a model with `layers` layers, as a model of its own.
///
/// # Errors
/// When the model's layers have names without `{i}.`.
pub(crate) fn as_model(arch: &Arch, draft: &DraftSchema, layers: usize) -> Result<Arch> {
    let (start, gguf) = (named(&draft.hf_start, layers), draft.gguf_start(layers));
    let moved = |name: &str| {
        let rest = name.split_once("{i}.").map(|(_, rest)| rest);
        rest.map(|rest| format!("{start}{rest}")).ok_or_else(|| {
            let arch = &arch.name;
            Error::new(format!("architecture {arch}: the name '{name}' of a layer's tensor lacks '{{i}}.'"))
        })
    };
    let mut model = arch.clone();
    let of_layers = model.weights.iter_mut().filter(|(pattern, _)| pattern.contains("{i}"));
    for weight in of_layers.map(|(_, weight)| weight) {
        let of_gguf = |name: &str| match (name.split_once("{i}."), &gguf) {
            (Some((_, rest)), Some(start)) => format!("{start}{rest}"),
            _ => name.to_owned(),
        };
        weight.gguf = weight.gguf.as_deref().map(of_gguf);
        weight.gguf_or = weight.gguf_or.as_deref().map(of_gguf);
        weight.hf = weight.hf.as_deref().map(moved).transpose()?;
        for other in &mut weight.hf_or {
            other.hf = moved(&other.hf)?;
        }
    }
    for (name, weight) in &draft.weights {
        let mut weight = weight.clone();
        weight.hf = weight.hf.as_deref().map(|name| named(name, layers));
        weight.hf_or.iter_mut().for_each(|other| other.hf = named(&other.hf, layers));
        weight.gguf = weight.gguf.as_deref().map(|name| named(name, layers));
        weight.gguf_or = weight.gguf_or.as_deref().map(|name| named(name, layers));
        model.weights.insert(name.clone(), weight);
    }
    for layer in model.layer.values_mut() {
        // Lists of the model's layers do not list this one, which chooses for itself.
        if let MixerSchema::Attend(attend) = &mut layer.mixer
            && let Some(indexer) = attend.latent.as_mut().and_then(|latent| latent.indexer.as_mut())
        {
            indexer.listed = None;
        }
    }
    model.draft = None;
    Ok(model)
}
