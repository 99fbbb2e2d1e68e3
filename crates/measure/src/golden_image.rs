//! The images of a golden's prompt, and what the tower of transformers made of them.

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;
use sha2::{Digest as _, Sha256};

use crate::golden_file::{GoldenFile, ImageSizes};
use crate::{Error, Result};

/// An image of a prompt.
#[derive(Debug)]
pub struct GoldenImage {
    /// Its values, channel after channel, row of pixels after row.
    pub pixels: Vec<f32>,
    /// Its rows, as the text model read them.
    pub features: Vec<f32>,
    /// The positions of these rows in the prompt.
    pub rows: Range32,
    /// Whether these rows attend to each other both ways.
    pub is_mutual: bool,
    /// The hidden states of the tower, each row after row of patches; empty if the golden has none.
    pub hidden: Vec<Vec<f32>>,
}

impl GoldenImage {
    /// Its rows in place of tokens.
    pub(crate) fn given(&self) -> EmbeddedRows {
        let Range32 { start, end } = self.rows;
        let mut content = Sha256::new();
        self.features.iter().for_each(|value| content.update(value.to_bits().to_le_bytes()));
        let values = self.features.as_slice().into();
        EmbeddedRows { first: start, rows: end - start, values, content: content.finalize().into() }
    }
}

/// The images of a prompt of `tokens` tokens.
///
/// # Errors
/// When their tensors have other sizes than the model, or their rows are not those that the token types mark.
pub(crate) fn images(file: &GoldenFile<'_>, prompt: usize, tokens: usize) -> Result<Vec<GoldenImage>> {
    let name = format!("p{prompt}.pixel_values");
    let Some(sizes) = file.sizes().image.filter(|_| file.has(&name)) else { return Ok(Vec::new()) };
    let ImageSizes { channels, side, rows, layers, width, patches, is_mutual } = sizes;
    let count = file.outermost(&name)?;
    let pixels = file.numbers(&name, &[count, channels, side, side])?;
    let of_text = file.sizes().width;
    let features = file.numbers(&file.name(prompt, "image_features"), &[count, rows, of_text])?;
    let hidden = file.name(prompt, "tower");
    let hidden = match file.has(&hidden) {
        true => file.numbers(&hidden, &[count, layers + 1, patches, width])?,
        false => Vec::new(),
    };
    let types = file.ids(&format!("p{prompt}.token_type_ids"), 2)?;
    let marked: Vec<u32> = (0..).zip(&types).filter(|(_, kind)| **kind == 1).map(|(at, _)| at).collect();
    let is_run = |rows: &[u32]| rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let runs = marked.chunks_exact(rows);
    if types.len() != tokens || marked.len() != count * rows || !runs.clone().all(is_run) {
        return Err(Error::new(format!(
            "prompt {prompt}: 'token_type_ids' marks {} of {} positions, but {count} images have {rows} rows each, one after \
             the other; make the golden again",
            marked.len(),
            types.len()
        )));
    }
    let images = runs.enumerate().map(|(index, run)| {
        let of = |values: &[f32], size: usize| values[index * size..(index + 1) * size].to_vec();
        let hidden = hidden.chunks_exact(patches * width).skip(index * (layers + 1));
        GoldenImage {
            pixels: of(&pixels, channels * side * side),
            features: of(&features, rows * of_text),
            rows: Range32 { start: run[0], end: run[0] + rows as u32 },
            is_mutual,
            hidden: hidden.take(layers + 1).map(<[f32]>::to_vec).collect(),
        }
    });
    Ok(images.collect())
}
