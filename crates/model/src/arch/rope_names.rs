//! Names of rotary frequencies, which several layers may share.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{AttentionFacts, LayerFacts, Rope};

/// Names the weight of each layer's rotary frequencies, which depend on the table, on how much of a head is
/// rotated, and on the base: by the table, and by the others if layers that share the table differ in them.
pub(super) fn name_rotations(layers: &mut [LayerFacts]) {
    let mut sizes: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let mut bases: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for layer in layers.iter() {
        if let Some(AttentionFacts { rope: Some(rope), .. }) = layer.mixer.attention() {
            sizes.entry(rope.table.clone()).or_default().insert(rope.rotated);
            bases.entry(rope.table.clone()).or_default().insert(rope.base.to_bits());
        }
    }
    for layer in layers {
        if let Some(AttentionFacts { rope: Some(rope), .. }) = layer.mixer.attention_mut() {
            let Rope { table, weight, rotated, base, .. } = rope;
            if sizes[table].len() > 1 {
                *weight += &format!(".{rotated}");
            }
            if bases[table].len() > 1 {
                *weight += &format!(".base{base}");
            }
        }
    }
}
