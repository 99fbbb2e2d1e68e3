//! Projector files of llama.cpp: which tower one has, and what its converters wrote in several ways.

use girih_file::{Container, Metadata, MetadataArray, MetadataValue, quote};
use girih_tensor::{Error, ErrorKind, Result};

use crate::arch::{Arch, PROJECTOR_TYPES};

/// The first of these towers that a projector file has.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when the file has none of them, or does not say which one; when its images are prepared in
/// another way.
pub(crate) fn tower_of(towers: Vec<Arch>, metadata: &Metadata) -> Result<Arch> {
    let named = |names: fn(&Arch) -> &[String]| {
        let mut all: Vec<&str> = towers.iter().flat_map(names).map(String::as_str).collect();
        all.dedup();
        all.join(" or ")
    };
    let refused = |sentence: String| Err(Error::with_kind(ErrorKind::Refused, sentence));
    let architecture = metadata.require::<&str>("general.architecture")?;
    let needed = named(|tower| &tower.matches.gguf);
    if needed.is_empty() {
        let names: Vec<&str> = towers.iter().map(|tower| tower.name.as_str()).collect();
        let names = names.join(" and ");
        return refused(format!(
            "girih reads {names} from safetensors only; open the folder of the whole model"
        ));
    }
    if !towers.iter().any(|tower| tower.matches.gguf.iter().any(|known| known == architecture)) {
        let architecture = quote(architecture);
        return refused(format!(
            "has the architecture {architecture}; a projector file, 'mmproj-….gguf', has {needed}"
        ));
    }
    let stated = PROJECTOR_TYPES.iter().find_map(|key| Some((key, metadata.value(key)?)));
    let needed = named(|tower| &tower.matches.projector);
    let Some((key, _)) = stated else {
        let [key, other] = PROJECTOR_TYPES;
        return refused(format!(
            "has neither '{key}' nor '{other}'; {needed} is needed; convert the model again"
        ));
    };
    let stated = metadata.require::<&str>(key)?;
    let found = towers.iter().position(|tower| tower.matches.projector.iter().any(|known| known == stated));
    let Some(found) = found else {
        let stated = quote(stated);
        return refused(format!(
            "has the projector {stated}, but this model needs {needed}; use the projector file of this model"
        ));
    };
    let tower = towers.into_iter().nth(found).expect("it is the position of one");
    if let Some(key) = tower.matches.gguf_if.iter().find(|key| metadata.value(key).is_none()) {
        return Err(Error::new(format!(
            "has no '{key}', which a projector {} needs; convert the model again",
            quote(stated)
        )));
    }
    check_pixels(&tower, metadata)?;
    Ok(tower)
}

/// Checks that images are prepared as girih does it for this tower.
fn check_pixels(tower: &Arch, metadata: &Metadata) -> Result<()> {
    let Some(schema) = &tower.tower else { return Ok(()) };
    let norm = schema.gguf_pixel_norm.unwrap_or(schema.pixel_norm);
    for (key, usual) in
        ["clip.vision.image_mean", "clip.vision.image_std"].into_iter().zip(norm.mean_and_std())
    {
        let value = metadata.value(key);
        let value = value.ok_or_else(|| {
            Error::new(format!("has no '{key}', which a projector file needs; convert the model again"))
        })?;
        let is_usual = matches!(value, MetadataValue::Array(MetadataArray::F32(list))
            if list.len() == usual.len() && list.iter().eq(&usual));
        if !is_usual {
            let [red, green, blue] = usual;
            let sentence = format!(
                "sets '{key}' to {value}; girih prepares images of this tower with {red}, {green} and {blue}"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
    }
    Ok(())
}

/// Exchanges the names of the two matrices of the feed-forward part if a projector file has them the other way round, as
/// llama.cpp's first converters wrote them (`is_ffn_swapped` in its `clip.cpp`): the one whose rows are read first is then
/// called `down`.
pub(crate) fn name_as_before(own: &mut Arch, container: &Container) {
    let width = container.tensors().get("v.post_ln.weight").map(|info| info.shape.elements());
    let down = container.tensors().get("v.blk.0.ffn_down.weight").map(|info| info.shape.columns());
    let up = container.tensors().get("v.blk.0.ffn_up.weight").map(|info| info.shape.columns());
    if down.is_none() || down != width || up == width {
        return;
    }
    for part in ["weight", "bias"] {
        let [up, down] = ["up", "down"].map(|name| format!("layers.{{i}}.ffn.{name}.{part}"));
        let names = [&up, &down].map(|name| own.weights.get(name).and_then(|weight| weight.gguf.clone()));
        let [of_up, of_down] = names;
        for (name, gguf) in [(up, of_down), (down, of_up)] {
            if let Some(weight) = own.weights.get_mut(&name) {
                weight.gguf = gguf;
            }
        }
    }
}
