//! The image tower of a model, as a model of its own.

use girih_file::Container;
use girih_graph::{Graph, Span};
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::Value as Json;

use crate::arch::schema::{Names, PatchPositions, parse};
use crate::arch::{self, Arch, Facts, ImageGrid, ModelConfig, PLACE_AXES, TowerFacts, shipped_text};
use crate::assemble;
use crate::image_order::ImageOrder;
use crate::limits::ModelLimits;
use crate::projector_file::{name_as_before, tower_of};
use crate::tower_part::TowerPart;
use crate::weights::ModelWeights;

/// The object of `config.json` that describes the tower.
const VISION_OBJECT: &str = "vision_config";

/// The table of learned positions.
const TABLE: &str = "embed.positions";

/// How the paths of its keys begin.
const VISION_PART: &str = "vision_config.";

/// The image tower of a model.
#[derive(Debug)]
pub struct TowerFiles {
    /// Its parameters: those of an encoder of patches.
    pub facts: Facts,
    /// Its weights, read on demand.
    pub weights: ModelWeights,
    /// What it reads and makes.
    pub tower: TowerFacts,
}

impl TowerFiles {
    /// Opens the tower of this text model: one with a shipped description of these names, of which a folder has the first.
    ///
    /// # Errors
    /// When its tensors are not those of the description, a key that girih does not read may change the tower, or its rows
    /// are not of that size.
    pub(crate) fn open(
        container: Container,
        config: Option<&Json>,
        (names, text): (&Names, &Facts),
        allow_keys: &[String],
        limits: &ModelLimits,
    ) -> Result<TowerFiles> {
        let own = described(names, config.is_none().then_some(&container))?;
        let allowed: Vec<String> =
            allow_keys.iter().filter(|key| key.starts_with(VISION_PART)).cloned().collect();
        let source = config.map_or(ModelConfig::Gguf(container.metadata()), ModelConfig::Hf);
        arch::check_refused(&own, &source, &allowed)?;
        let layers = source.layers(&own, limits)?;
        let kinds = arch::layer_kinds(&own, &source, layers)?;
        let blocks = arch::block_places(&own, &source, &kinds)?;
        let mut weights = ModelWeights::resolve(&own, container, &kinds, &blocks)?;
        let source = config.map_or(ModelConfig::Gguf(weights.container().metadata()), ModelConfig::Hf);
        let mut facts = arch::fill(&own, &source, &kinds, &weights, limits)?;
        if let Some(tower) = &mut facts.tower {
            if config.is_none() && own.tower.as_ref().is_some_and(|own| own.prompt.mutual.is_conditional()) {
                tower.image_tokens.mutual = !text.layers.iter().any(|layer| layer.input.is_some());
            }
            tower.most_rows = most_rows(tower, text);
        }
        // The text model's description has checked the other keys.
        let part = config.map(|config| serde_json::json!({ VISION_OBJECT: config.get(VISION_OBJECT) }));
        arch::check_keys(&own, &part.as_ref().map_or(source, ModelConfig::Hf), &facts, &allowed)?;
        weights.complete(&own, &facts)?;
        check_table(&facts, &weights)?;
        let tower =
            facts.tower.clone().ok_or_else(|| Error::new(format!("'{}' is no image tower", own.name)))?;
        let (taps, layers) = (tower.taps.len(), text.image_layers);
        if taps != layers {
            let sentence = format!(
                "the image tower makes rows for {taps} layers of the text model, which has {layers} that take them; use the \
                 tower of this model"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let width = text.sizes.width;
        if tower.projector.width != width {
            let sentence = format!(
                "the image tower makes rows of {}, but the model's hidden size is {width}; use the tower of this model",
                tower.projector.width
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        Ok(TowerFiles { facts, weights, tower })
    }

    /// What the tower reads of an image with these patches, beside their values.
    ///
    /// # Errors
    /// When the table of learned positions cannot be read.
    pub fn inputs(&self, grid: ImageGrid) -> Result<ImageInputs> {
        let order = ImageOrder::of(&self.tower, grid);
        Ok(ImageInputs {
            positions: order.as_read(&grid.positions(self.tower.projector.cell)).into_owned(),
            position_rows: order.as_read(&self.position_rows(grid)?).into_owned(),
            axes: order.as_read(&self.tower.places(grid)).into_owned(),
            order,
        })
    }

    /// The rows of learned positions of an image with these patches, cell after cell; none if the tower reads positions by
    /// number. The points of the table lie on the edges of the image, too, and the sum of four
    /// rows has its order from transformers' `get_vision_interpolation_indices_and_weights`.
    ///
    /// # Errors
    /// When the table cannot be read.
    fn position_rows(&self, grid: ImageGrid) -> Result<Vec<f32>> {
        match self.tower.positions {
            PatchPositions::Learned => return Ok(Vec::new()),
            PatchPositions::ByAxis | PatchPositions::ByPoint => return self.rows_by_axis(grid),
            PatchPositions::Interpolated => {}
        }
        let table = self.weights.numbers(TABLE)?;
        let width = self.facts.sizes.width;
        let side = (table.len() / width).isqrt();
        let axis = |count: usize| -> Vec<([usize; 2], [f32; 2])> {
            let (last, of_image) = (side.saturating_sub(1) as f32, count.saturating_sub(1).max(1) as f32);
            let tap = |at: usize| {
                let point = at as f32 * last / of_image;
                let (low, part) = (point.floor(), point - point.floor());
                let low = (low as usize).min(side - 1);
                ([low, (low + 1).min(side - 1)], [1.0 - part, part])
            };
            (0..count).map(tap).collect()
        };
        let (lines, columns) = (axis(grid.down), axis(grid.across));
        let positions = grid.positions(self.tower.projector.cell);
        let mut rows = vec![0.0; positions.len() * width];
        for (row, position) in rows.chunks_exact_mut(width).zip(positions) {
            let (line, column) =
                (lines[position as usize / grid.across], columns[position as usize % grid.across]);
            for (y, of_line) in line.0.iter().zip(line.1) {
                for (x, of_column) in column.0.iter().zip(column.1) {
                    let (weight, first) = (of_line * of_column, (y * side + x) * width);
                    for (sum, value) in row.iter_mut().zip(&table[first..first + width]) {
                        *sum += weight * value;
                    }
                }
            }
        }
        Ok(rows)
    }

    /// The sum of the rows of each patch's column and of its line.
    fn rows_by_axis(&self, grid: ImageGrid) -> Result<Vec<f32>> {
        let width = self.facts.sizes.width;
        let all = self.weights.info(TABLE).map_or(0, |(_, shape)| shape.elements());
        let points = all / width / PLACE_AXES;
        let ImageGrid { down, across } = grid;
        if down.max(across) > points {
            let sentence = format!(
                "an image of {down} x {across} patches is longer than the {points} positions of the tower's table; crop it"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        // The row of a point and an axis.
        let by_point = self.tower.positions == PatchPositions::ByPoint;
        let row_of = |point: usize, axis: usize| {
            if by_point { PLACE_AXES * point + axis } else { points * axis + point }
        };
        let axis_rows = |axis: usize, count: usize| {
            let firsts = (0..count).map(|point| row_of(point, axis) * width);
            firsts
                .map(|first| self.weights.numbers_within(TABLE, first..first + width))
                .collect::<Result<Vec<_>>>()
        };
        let (columns, lines) = (axis_rows(0, across)?, axis_rows(1, down)?);
        let sum = |position: u32| {
            let (line, column) = (position as usize / across, position as usize % across);
            columns[column].iter().zip(&lines[line]).map(|(column, line)| column + line).collect::<Vec<f32>>()
        };
        Ok(grid.positions(self.tower.projector.cell).into_iter().flat_map(sum).collect())
    }

    /// The graph of a part, for one image.
    ///
    /// # Errors
    /// As [`ModelFiles::graph`](crate::ModelFiles::graph).
    pub fn graph(&self, part: TowerPart) -> Result<Graph> {
        assemble::tower_graph(&self.facts, &self.weights, part)
    }
}

/// The first shipped description of these names; of a projector file, that of its tower.
fn described(names: &Names, projector: Option<&Container>) -> Result<Arch> {
    let described = |name: &str| {
        let missing = || Error::new(format!("girih has no description of the image tower '{name}'"));
        parse(shipped_text(name).ok_or_else(missing)?)
    };
    let mut towers = names.iter().map(described).collect::<Result<Vec<Arch>>>()?;
    let Some(container) = projector else {
        return if towers.is_empty() {
            Err(Error::new("an image tower has no name"))
        } else {
            Ok(towers.swap_remove(0))
        };
    };
    let mut own = tower_of(towers, container.metadata())?;
    name_as_before(&mut own, container);
    Ok(own)
}

/// Checks that a table of positions by axis has rows for both of them.
fn check_table(facts: &Facts, weights: &ModelWeights) -> Result<()> {
    let (Some(tower), Some((_, shape))) = (&facts.tower, weights.info(TABLE)) else { return Ok(()) };
    let width = facts.sizes.width;
    let fits = match (tower.positions, shape.extents()) {
        (PatchPositions::Learned | PatchPositions::Interpolated, _) => true,
        (PatchPositions::ByAxis, [axes, _, columns]) | (PatchPositions::ByPoint, [_, axes, columns]) => {
            (*axes, *columns) == (PLACE_AXES, width)
        }
        (PatchPositions::ByAxis | PatchPositions::ByPoint, _) => false,
    };
    if fits {
        return Ok(());
    }
    Err(Error::new(format!(
        "'{TABLE}' has the shape {shape}; rows of {width} for {PLACE_AXES} axes are needed"
    )))
}

/// The largest number of rows of an image whose rows attend to each other both ways within windows only. Rows at both ends
/// of a longer image would not see each other, which [`Sequence::sees`](girih_graph::Sequence::sees) does not describe.
fn most_rows(tower: &TowerFacts, text: &Facts) -> Option<usize> {
    let spans = || text.layers.iter().filter_map(|layer| Some(layer.mixer.attention()?.span));
    let windows =
        spans().filter_map(|span| if let Span::Window(window) = span { Some(window) } else { None });
    let in_windows = tower.image_tokens.mutual && spans().any(|span| span == Span::Past);
    windows.min().filter(|_| in_windows).map(|window| window as usize)
}

/// What a tower reads of an image beside its patches, in the order in which it reads them.
#[derive(Clone, Debug)]
pub struct ImageInputs {
    /// This order.
    pub order: ImageOrder,
    /// The position of each patch among those of the image, row by row.
    pub positions: Vec<u32>,
    /// The rows of learned positions, if the tower does not read them by number.
    pub position_rows: Vec<f32>,
    /// The line and the column of each patch.
    pub axes: Vec<f32>,
}
