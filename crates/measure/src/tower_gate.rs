//! The accuracy gate of image towers: what a tower makes of a golden's images is within the derived bound.
//!
//! The golden casts pixels to its precision, so each patch has the error of one store. The errors of the first program's
//! rows go on in the second one.

use girih_engine::Tower;
use girih_graph::InputSpec;
use girih_model::arch::TowerFacts;
use girih_model::{TOWER_HIDDEN, TOWER_ROWS};

use crate::bound::rms;
use crate::golden_image::GoldenImage;
use crate::layers::{LayerRow, RunWatch, compare_within};
use crate::rounding::mean_square;
use crate::{BoundUse, ErrorBound, HiddenStates, Result};

/// The name of the comparison of an image's rows.
pub const IMAGE_ROWS: &str = "tower.rows";

/// The bounds of a tower's programs.
#[derive(Debug)]
pub struct TowerBound {
    patches: ErrorBound,
    cells: ErrorBound,
}

impl TowerBound {
    /// Those of the programs' bounds, each for itself.
    pub fn new(patches: ErrorBound, cells: ErrorBound) -> TowerBound {
        let cells = cells.after(&patches, TOWER_HIDDEN);
        TowerBound { patches, cells }
    }

    /// How the bounds are found if every node can be followed.
    pub fn all_followed(&self) -> BoundUse {
        self.patches.all_followed()
    }
}

/// Runs an image of a golden, and compares its rows; before them, the hidden states of each layer if the golden has them.
/// Adds to `used` how the bound was found.
///
/// # Errors
/// When a step fails.
pub fn diagnose_image(
    tower: &mut Tower,
    image: &GoldenImage,
    facts: &TowerFacts,
    bound: &TowerBound,
    used: &mut BoundUse,
) -> Result<Vec<LayerRow>> {
    let positions = facts.positions();
    let (patches, rows) = (facts.patches(), facts.rows());
    let layers = image.hidden.len().saturating_sub(1);
    let hidden = match image.hidden.is_empty() {
        true => HiddenStates::named(std::iter::empty()),
        false => HiddenStates::of_encoder(layers),
    };
    let given = vec![bound.patches.one_store(); patches];
    let values = patch_values(&image.pixels, facts, &positions);
    let squares = values.chunks_exact(facts.patch_values()).map(|row| mean_square(row.iter().copied()));
    let sizes = bound.patches.row_sizes([patches]).with_given(given);
    let sizes = sizes.with_squares(InputSpec::PATCHES, squares.collect());
    let mut of_patches = RunWatch { hidden, sizes };
    let joined = facts.projector.cell_rows();
    let mut of_cells = match joined {
        1 => bound.cells.row_sizes(vec![patches / rows; rows]),
        _ => bound.cells.row_sizes([rows]),
    };
    let made = tower.rows_of(&values, &positions, [&mut of_patches, &mut of_cells])?;
    let errors = bound.patches.follow(&of_patches.sizes);
    let given: Vec<f64> = (0..patches).map(|row| errors.of(TOWER_HIDDEN, row).unwrap_or(1.0)).collect();
    let (given, squares) = joined_rows(&given, &of_patches.sizes.squares_of(TOWER_HIDDEN), joined);
    let of_cells = of_cells.with_squares(InputSpec::PATCHES, squares).with_given(given);
    let of_cells = bound.cells.follow(&of_cells);
    used.add(&errors);
    used.add(&of_cells);
    let mut compared = Vec::with_capacity(layers + 2);
    let states = of_patches.hidden;
    for (index, (got, want)) in states.states.iter().zip(&image.hidden).enumerate() {
        let (name, width) = (states.name(index), want.len() / patches);
        let want: Vec<f32> = positions
            .iter()
            .flat_map(|position| want[*position as usize * width..][..width].iter().copied())
            .collect();
        compared.push(compare_within(&format!("tower.{name}"), got, &want, width, |row, want| {
            bound.patches.at(name, rms(want), errors.of(name, row))
        }));
    }
    let width = tower.width();
    compared.push(compare_within(IMAGE_ROWS, &made, &image.features, width, |row, want| {
        bound.cells.at(TOWER_ROWS, rms(want), of_cells.of(TOWER_ROWS, row))
    }));
    Ok(compared)
}

/// The errors and the mean squares of rows that each hold `count` rows with these, one after another. An error is the mean
/// square of the differences, as a share of that of the row: those of larger rows weigh more.
fn joined_rows(errors: &[f64], squares: &[f64], count: usize) -> (Vec<f64>, Vec<f64>) {
    if squares.len() != errors.len() {
        let largest = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
        return (errors.chunks(count).map(largest).collect(), Vec::new());
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let joined = errors.chunks(count).zip(squares.chunks(count)).map(|(errors, squares)| {
        let differences: Vec<f64> =
            errors.iter().zip(squares).map(|(error, square)| error * square).collect();
        let square = mean(squares);
        (if square > 0.0 { mean(&differences) / square } else { mean(errors) }, square)
    });
    joined.unzip()
}

/// The patches of an image at these positions, each channel after channel, row of pixels after row.
fn patch_values(pixels: &[f32], facts: &TowerFacts, positions: &[u32]) -> Vec<f32> {
    let (image, patch, side) = (facts.image, facts.patch, facts.side());
    let mut values = Vec::with_capacity(pixels.len());
    for position in positions {
        let (top, left) = (*position as usize / side * patch, *position as usize % side * patch);
        for channel in 0..facts.channels {
            for y in 0..patch {
                let start = (channel * image + top + y) * image + left;
                values.extend_from_slice(&pixels[start..start + patch]);
            }
        }
    }
    values
}
