//! The images of a golden's prompt, and what the tower of transformers made of them.

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;
use girih_model::arch::{ImageGrid, TowerFacts};
use sha2::{Digest as _, Sha256};

use crate::golden_file::{GoldenFile, ImageSizes};
use crate::{Error, Result};

/// An image of a prompt.
#[derive(Debug)]
pub struct GoldenImage {
    /// Its patches.
    pub grid: ImageGrid,
    /// Their values, cell after cell.
    pub patches: Vec<f32>,
    /// Its rows, as the text model read them.
    pub features: Vec<f32>,
    /// What it adds to the outputs of the text model's first layers.
    pub added: Vec<Vec<f32>>,
    /// The positions of these rows in the prompt.
    pub rows: Range32,
    /// The rows side by side, if their positions follow from their places.
    pub columns: Option<u32>,
    /// How far the image lies behind the first group of frames of its video along the axis of time, if it is a later one.
    pub time: Option<u32>,
    /// The token that the text model reads in these positions, if it is another one than the prompt's.
    pub token: Option<u32>,
    /// Whether these rows attend to each other both ways.
    pub mutual: bool,
    /// The hidden states of the tower, each row after row of patches in the order in which it reads them; empty if the golden has none.
    pub hidden: Vec<Vec<f32>>,
}

impl GoldenImage {
    /// Its rows in place of tokens.
    pub(crate) fn given(&self) -> EmbeddedRows {
        let Range32 { start, end } = self.rows;
        let mut content = Sha256::new();
        self.features.iter().for_each(|value| content.update(value.to_bits().to_le_bytes()));
        content.update(self.time.map_or(0, |time| time + 1).to_le_bytes());
        EmbeddedRows {
            first: start,
            rows: end - start,
            values: self.features.as_slice().into(),
            content: content.finalize().into(),
            columns: self.columns,
            time: self.time,
            token: self.token,
            added: self.added.iter().map(|rows| rows.as_slice().into()).collect(),
        }
    }
}

/// The images of a prompt of `tokens` tokens.
///
/// # Errors
/// When their tensors have other sizes than the model, or their rows are not those that the token types mark.
pub(crate) fn images(file: &GoldenFile<'_>, prompt: usize, tokens: usize) -> Result<Vec<GoldenImage>> {
    let name = format!("p{prompt}.pixel_values");
    let Some(sizes) = file.sizes().image.as_ref().filter(|_| file.has(&name)) else { return Ok(Vec::new()) };
    let facts = &sizes.tower;
    let (grids, patches) = patches(file, prompt, facts)?;
    let all_rows: usize = grids.iter().map(|grid| facts.rows(*grid)).sum();
    let features = parts(file, (prompt, "image_features"), &grids, facts)?;
    let added = match facts.taps.len() {
        0 => Vec::new(),
        taps => {
            let shape = [taps, all_rows, file.sizes().width];
            let added = file.numbers(&file.name(prompt, "image_added"), &shape)?;
            added.chunks_exact(all_rows * file.sizes().width).map(<[f32]>::to_vec).collect()
        }
    };
    let hidden = hidden(file, prompt, sizes, &grids)?;
    let types = file.ids(&format!("p{prompt}.token_type_ids"), 2)?;
    let marked: Vec<u32> = (0..).zip(&types).filter(|(_, kind)| **kind == 1).map(|(at, _)| at).collect();
    let is_run = |rows: &[u32]| rows.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let mut first = 0;
    let runs: Vec<&[u32]> = grids
        .iter()
        .map(|grid| {
            let rows = facts.rows(*grid);
            first += rows;
            marked.get(first - rows..first).unwrap_or_default()
        })
        .collect();
    let are_runs = runs.iter().zip(&grids).all(|(run, grid)| is_run(run) && run.len() == facts.rows(*grid));
    if types.len() != tokens || marked.len() != all_rows || !are_runs {
        return Err(Error::new(format!(
            "prompt {prompt}: 'token_type_ids' marks {} of {} positions, but {} images have {all_rows} rows, one after the \
             other; make the golden again",
            marked.len(),
            types.len(),
            grids.len()
        )));
    }
    let mut row = 0;
    let width = file.sizes().width;
    let times = times(file, prompt, grids.len())?;
    let images = grids.iter().zip(patches).zip(features).zip(hidden).zip(runs).zip(times);
    let images = images.map(|(((((grid, patches), features), hidden), run), time)| {
        let rows = facts.rows(*grid);
        row += rows;
        GoldenImage {
            grid: *grid,
            patches,
            features,
            added: added.iter().map(|all| all[(row - rows) * width..row * width].to_vec()).collect(),
            rows: Range32 { start: run[0], end: run[0] + rows as u32 },
            columns: facts.only_grid().is_none().then(|| facts.rows_across(*grid) as u32),
            time,
            token: facts.image_tokens.layer_input,
            mutual: facts.image_tokens.mutual,
            hidden,
        }
    });
    Ok(images.collect())
}

/// The patches of each image of a prompt, and their number.
fn patches(
    file: &GoldenFile<'_>,
    prompt: usize,
    facts: &TowerFacts,
) -> Result<(Vec<ImageGrid>, Vec<Vec<f32>>)> {
    let name = format!("p{prompt}.pixel_values");
    if let Some(grid) = facts.only_grid() {
        let side = facts.image.unwrap_or_default();
        let count = file.outermost(&name)?;
        let pixels = file.numbers(&name, &[count, facts.channels, side, side])?;
        let of_image = |pixels: &[f32]| cut(pixels, facts, grid);
        let images = pixels.chunks_exact(facts.channels * side * side).map(of_image);
        return Ok((vec![grid; count], images.collect()));
    }
    let grids = format!("p{prompt}.image_grid_thw");
    let stated = file.ids(&grids, 2)?;
    let grid = |row: &[u32]| match *row {
        [1, down, across] => Some(ImageGrid { down: down as usize, across: across as usize }),
        _ => None,
    };
    let wrong = || Error::new(format!("tensor '{grids}' has an image that is not one of this model"));
    let found: Option<Vec<ImageGrid>> = stated.chunks(3).map(grid).collect();
    let found = found.filter(|grids| grids.iter().all(|grid| facts.allows(*grid))).ok_or_else(wrong)?;
    let all: usize = found.iter().map(|grid| grid.patches()).sum();
    let values = file.numbers(&name, &[all, facts.patch_values()])?;
    let patches = found.iter().map(|grid| grid.patches());
    Ok((found.clone(), divided(&values, patches, facts.patch_values())))
}

/// How far each image lies behind the first group of frames of its video, if it is a later one.
fn times(file: &GoldenFile<'_>, prompt: usize, count: usize) -> Result<Vec<Option<u32>>> {
    let name = format!("p{prompt}.image_times");
    if !file.has(&name) {
        return Ok(vec![None; count]);
    }
    let stated = file.ids(&name, 1)?;
    if stated.len() != count {
        let have = stated.len();
        return Err(Error::new(format!("tensor '{name}' has {have} times, but there are {count} images")));
    }
    // Counted from 1, so that 0 is left for images and for the first group of frames.
    Ok(stated.into_iter().map(|time| time.checked_sub(1)).collect())
}

/// Rows of `width` values, divided into runs of these lengths.
fn divided(values: &[f32], lengths: impl Iterator<Item = usize>, width: usize) -> Vec<Vec<f32>> {
    let mut end = 0;
    let mut part = |length: usize| {
        end += length * width;
        values[end - length * width..end].to_vec()
    };
    lengths.map(&mut part).collect()
}

/// The rows of the text model of each image.
fn parts(
    file: &GoldenFile<'_>,
    (prompt, part): (usize, &str),
    grids: &[ImageGrid],
    facts: &TowerFacts,
) -> Result<Vec<Vec<f32>>> {
    let (name, width) = (file.name(prompt, part), file.sizes().width);
    let rows = || grids.iter().map(|grid| facts.rows(*grid));
    let shape = match facts.only_grid() {
        Some(grid) => vec![grids.len(), facts.rows(grid), width],
        None => vec![rows().sum(), width],
    };
    let values = file.numbers(&name, &shape)?;
    Ok(divided(&values, rows(), width))
}

/// The hidden states of the tower for each image.
fn hidden(
    file: &GoldenFile<'_>,
    prompt: usize,
    sizes: &ImageSizes,
    grids: &[ImageGrid],
) -> Result<Vec<Vec<Vec<f32>>>> {
    let ImageSizes { tower, layers, width } = sizes;
    let (name, states, width) = (file.name(prompt, "tower"), layers + 1, *width);
    if !file.has(&name) {
        return Ok(vec![Vec::new(); grids.len()]);
    }
    let Some(grid) = tower.only_grid() else {
        let all: usize = grids.iter().map(|grid| grid.patches()).sum();
        let values = file.numbers(&name, &[states, all, width])?;
        let by_state = values.chunks_exact(all * width);
        let by_state: Vec<_> =
            by_state.map(|state| divided(state, grids.iter().map(|grid| grid.patches()), width)).collect();
        let of_image = |image: usize| by_state.iter().map(|images| images[image].clone()).collect();
        return Ok((0..grids.len()).map(of_image).collect());
    };
    let patches = grid.patches();
    let values = file.numbers(&name, &[grids.len(), states, patches, width])?;
    let positions = grid.positions(tower.projector.cell);
    let in_order = |state: &[f32]| -> Vec<f32> {
        positions.iter().flat_map(|at| state[*at as usize * width..][..width].iter().copied()).collect()
    };
    let images = values.chunks_exact(states * patches * width);
    Ok(images.map(|image| image.chunks_exact(patches * width).map(in_order).collect()).collect())
}

/// The patches of an image of one size, each channel after channel, row of pixels after row.
fn cut(pixels: &[f32], facts: &TowerFacts, grid: ImageGrid) -> Vec<f32> {
    let (image, patch) = (facts.image.unwrap_or(grid.across * facts.patch), facts.patch);
    let mut values = Vec::with_capacity(pixels.len());
    for position in grid.positions(facts.projector.cell) {
        let (top, left) = (position as usize / grid.across * patch, position as usize % grid.across * patch);
        for channel in 0..facts.channels {
            for y in 0..patch {
                let start = (channel * image + top + y) * image + left;
                values.extend_from_slice(&pixels[start..start + patch]);
            }
        }
    }
    values
}
