//! The accuracy gate of image towers: what a tower makes of a golden's images is within the derived bound.
//!
//! The golden casts pixels to its precision, so each patch has the error of one store. The errors of the first program's
//! rows go on in the second one.

use girih_engine::{Tower, TowerInputs};
use girih_graph::{InputSpec, Watch};
use girih_model::arch::schema::CellRule;
use girih_model::{ImageInputs, TOWER_HIDDEN, TOWER_ROWS, TowerFiles, layer_output};

use crate::bound::rms;
use crate::golden_image::GoldenImage;
use crate::layers::{LayerRow, RunWatch, compare_within, indexes};
use crate::rounding::mean_square;
use crate::row_sizes::RowSizes;
use crate::{BoundUse, ErrorBound, HiddenStates, Result};

/// The name of the comparison of an image's rows.
pub const IMAGE_ROWS: &str = "tower.rows";

/// The bounds of a tower's programs.
#[derive(Debug)]
pub struct TowerBound {
    patches: ErrorBound,
    /// Those of the programs that read hidden states of the first one, with the name of the value that they read, and that
    /// of the comparison.
    projectors: Vec<(String, String, ErrorBound)>,
}

impl TowerBound {
    /// Those of the programs' bounds, each for itself, in their order; layers are tapped in this order.
    pub fn new(patches: ErrorBound, projectors: Vec<ErrorBound>, taps: &[usize]) -> TowerBound {
        let of_taps = taps.iter().map(|layer| (layer_output(*layer), format!("tower.tap.{layer}")));
        let read = [(TOWER_HIDDEN.to_owned(), IMAGE_ROWS.to_owned())].into_iter().chain(of_taps);
        let projectors = read.zip(projectors).map(|((read, name), bound)| {
            let bound = bound.after(&patches, &read);
            (read, name, bound)
        });
        TowerBound { projectors: projectors.collect(), patches }
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
    files: &TowerFiles,
    bound: &TowerBound,
    used: &mut BoundUse,
) -> Result<Vec<LayerRow>> {
    let facts = &files.tower;
    let (patches, rows) = (image.grid.patches(), facts.rows(image.grid));
    let layers = image.hidden.len().saturating_sub(1);
    let hidden = match image.hidden.is_empty() {
        true => HiddenStates::named(std::iter::empty()),
        false => HiddenStates::of_encoder(layers),
    };
    let ImageInputs { order, positions, position_rows, axes } = files.inputs(image.grid)?;
    let values = order.as_read(&image.patches);
    let squares = |values: &[f32], width: usize| {
        values.chunks_exact(width).map(|row| mean_square(row.iter().copied())).collect()
    };
    let sizes = bound.patches.row_sizes([patches]).with_given(vec![bound.patches.one_store(); patches]);
    let sizes = sizes.with_squares(InputSpec::PATCHES, squares(&values, facts.patch_values()));
    let sizes =
        sizes.with_squares(InputSpec::POSITION_ROWS, squares(&position_rows, files.facts.sizes.width));
    let sizes = sizes.with_squares(InputSpec::AXES, squares(&axes, 2));
    let sizes = sizes.with_spans(indexes(&order.windows));
    let mut of_patches = RunWatch { hidden, sizes };
    let mut of_rows: Vec<RowSizes<'_>> = bound
        .projectors
        .iter()
        .map(|(_, _, bound)| match facts.projector.cells {
            CellRule::Mean => bound.row_sizes(vec![patches / rows; rows]),
            CellRule::Joined | CellRule::Concat => bound.row_sizes([rows]),
        })
        .collect();
    let mut watches: Vec<&mut dyn Watch> = vec![&mut of_patches];
    watches.extend(of_rows.iter_mut().map(|sizes| sizes as &mut dyn Watch));
    let inputs = TowerInputs {
        patches: &values,
        positions: &positions,
        position_rows: &position_rows,
        axes: &axes,
        windows: &order.windows,
    };
    let made = tower.rows_of(inputs, [patches, rows], watches)?;
    let errors = bound.patches.follow(&of_patches.sizes);
    used.add(&errors);
    let mut compared = Vec::with_capacity(layers + 2);
    let states = &of_patches.hidden;
    for (index, (got, want)) in states.states.iter().zip(&image.hidden).enumerate() {
        let (name, width) = (states.name(index), want.len() / patches);
        compared.push(compare_within(&format!("tower.{name}"), got, want, width, |row, want| {
            bound.patches.at(name, rms(want), errors.of(name, row))
        }));
    }
    let width = tower.width();
    let made = std::iter::once(&made.rows).chain(&made.added);
    let wanted = std::iter::once(&image.features).chain(&image.added);
    let programs = bound.projectors.iter().zip(of_rows);
    for (((read, name, bound), sizes), (got, want)) in programs.zip(made.zip(wanted)) {
        let given: Vec<f64> = (0..patches).map(|row| errors.of(read, row).unwrap_or(1.0)).collect();
        let squares = of_patches.sizes.squares_of(read);
        let (given, squares) = match facts.projector.cells {
            CellRule::Mean => (given, squares),
            CellRule::Joined | CellRule::Concat => joined(&given, &squares, patches / rows),
        };
        let sizes = sizes.with_squares(InputSpec::PATCHES, squares).with_given(given);
        let errors = bound.follow(&sizes);
        used.add(&errors);
        let want = order.as_read(want);
        compared.push(compare_within(name, got, &want, width, |row, want| {
            bound.at(TOWER_ROWS, rms(want), errors.of(TOWER_ROWS, row))
        }));
    }
    Ok(compared)
}

/// The errors and the mean squares of rows that each have `count` rows one after the other.
fn joined(errors: &[f64], squares: &[f64], count: usize) -> (Vec<f64>, Vec<f64>) {
    if squares.len() != errors.len() {
        let largest = |errors: &[f64]| errors.iter().copied().fold(0.0, f64::max);
        return (errors.chunks(count).map(largest).collect(), Vec::new());
    }
    let parts = errors.chunks_exact(count).zip(squares.chunks_exact(count));
    let joined = parts.map(|(errors, squares)| {
        let square: f64 = squares.iter().sum();
        let noise: f64 = errors.iter().zip(squares).map(|(error, square)| error * square).sum();
        (if square > 0.0 { noise / square } else { 0.0 }, square / count as f64)
    });
    joined.unzip()
}
