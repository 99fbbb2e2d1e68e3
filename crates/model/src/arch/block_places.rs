//! Which layers share the weights of which block.

use girih_tensor::Result;

use super::config::ModelConfig;
use super::schema::Arch;

/// The place of a layer among those that have blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    /// The first layer with the same block.
    pub layer: usize,
    /// The number of layers with a block before it.
    pub index: usize,
}

impl BlockPlace {
    /// The name of a tensor, with the block's first layer in place of `{b}` and the index in place of `{n}`.
    pub fn name(self, pattern: &str) -> String {
        pattern.replace("{b}", &self.layer.to_string()).replace("{n}", &self.index.to_string())
    }
}

/// The place of each layer; `None` for layers without a block.
///
/// # Errors
/// When the number of blocks is none.
pub(crate) fn block_places(
    arch: &Arch,
    config: &ModelConfig<'_>,
    kinds: &[&str],
) -> Result<Vec<Option<BlockPlace>>> {
    let Some(blocks) = &arch.layers.blocks else { return Ok(vec![None; kinds.len()]) };
    let count = config.size(&blocks.count)?.unwrap_or(1);
    let mut with_block: Vec<usize> = Vec::new();
    let place = |(layer, kind): (usize, &&str)| {
        if **kind != blocks.kind {
            return None;
        }
        let index = with_block.len();
        with_block.push(layer);
        Some(BlockPlace { layer: with_block[index % count], index })
    };
    Ok(kinds.iter().enumerate().map(place).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::schema::parse;
    use super::super::shipped::text_of;
    use super::*;

    #[test]
    fn layers_with_blocks_have_them_in_turn() {
        let arch = parse(text_of("zamba2").unwrap()).unwrap();
        let kinds = ["ssm", "hybrid", "hybrid", "ssm", "hybrid", "hybrid", "hybrid"];
        let places = |count: u64| {
            let keys = json!({ "num_mem_blocks": count });
            block_places(&arch, &ModelConfig::Hf(&keys), &kinds)
        };
        let firsts = |count| -> Vec<usize> {
            places(count).unwrap().into_iter().flatten().map(|place| place.layer).collect()
        };
        assert_eq!(firsts(1), [1, 1, 1, 1, 1]);
        assert_eq!(firsts(2), [1, 2, 1, 2, 1]);
        assert_eq!(firsts(9), [1, 2, 4, 5, 6]);
        let last = places(2).unwrap()[6].unwrap();
        assert_eq!(last.name("layers.{b}.adapters.{n}"), "layers.1.adapters.4");
        assert!(places(0).is_err());
    }
}
