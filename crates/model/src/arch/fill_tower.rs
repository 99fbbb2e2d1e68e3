//! Facts of image towers.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};

use super::config::ModelConfig;
use super::facts::NormFacts;
use super::field::Field;
use super::fill::Fill;
use super::norm_kind::NormKind;
use super::tower_facts::{GroupTimes, ImageTokens, LinearBounds, MAX_PATCHES, ProjectorFacts, TowerFacts};
use super::tower_schema::{
    BoundsSchema, CellRule, ImagePromptSchema, MutualRule, PatchPositions, ProjectorSchema, TilesSchema,
    VideoSchema,
};
use super::value::brief;

/// The largest number of patches of an image of a fixed size: known towers have 4,096.
const MAX_FIXED_PATCHES: usize = 1 << 16;

/// The largest number of values of a patch: known towers have 1,536.
const MAX_PATCH_VALUES: usize = 1 << 16;

/// The largest number of patches of a side of a cell: known towers have 4.
const MAX_CELL: usize = 16;

/// The kind of layers after which a further projector makes rows.
const TAPPED: &str = "tapped";

impl Fill<'_> {
    /// What the model reads and makes, if it is an image tower.
    pub(super) fn tower(&self) -> Result<Option<TowerFacts>> {
        let Some(schema) = &self.arch.tower else { return Ok(None) };
        let image = schema.image.as_ref().map(|field| self.size("tower.image", field)).transpose()?;
        let merged = schema.merged.as_ref().map_or(Ok(1), |field| self.size("tower.merged", field))?;
        let patch = self.size("tower.patch", &schema.patch)?.saturating_mul(merged);
        let channels = self.size("tower.channels", &schema.channels)?;
        let frames = schema.frames.as_ref().map_or(Ok(1), |field| self.size("tower.frames", field))?;
        let side = image.map(|image| image / patch);
        if let (Some(image), Some(side)) = (image, side)
            && (side == 0 || side.saturating_mul(side) > MAX_FIXED_PATCHES)
        {
            return Err(Error::new(format!(
                "an image of {image} pixels a side has patches of {patch}; from 1 to {MAX_FIXED_PATCHES} patches are needed"
            )));
        }
        if let Some(side) = side.filter(|side| !schema.sides.is_empty() && !schema.sides.contains(side)) {
            return Err(Error::new(format!(
                "an image has {side} patches of {patch} pixels a side, whose positions architecture {} does not describe",
                self.arch.name
            )));
        }
        let values = [patch, channels, frames].into_iter().fold(patch, usize::saturating_mul);
        if values > MAX_PATCH_VALUES {
            return Err(Error::new(format!("a patch has {values} values; the cap is {MAX_PATCH_VALUES}")));
        }
        if schema.positions == PatchPositions::Interpolated {
            self.check_square("embed.positions")?;
        }
        let norm = || self.norm(&self.arch.norms, "tower.norm.weight", "tower.norm.bias");
        let projector = self.projector(&schema.projector, side)?;
        let cell = patch.saturating_mul(projector.cell);
        Ok(Some(TowerFacts {
            image,
            patch,
            merged,
            channels,
            frames,
            window: schema.window.as_ref().map(|window| self.window_cells(window, cell)).transpose()?,
            filter: schema.filter,
            pixels: schema.pixels,
            sized: schema.sized,
            tiled_edge: match (&schema.tiles, image) {
                (Some(tiles), Some(image)) => Some(self.tiled_edge(tiles, image)?),
                _ => None,
            },
            crops: schema.crops,
            patch_bias: self.stored.has("patches.bias"),
            patch_norms: schema
                .patch_norms
                .then(|| self.norm(&self.arch.norms, "patches.norm.weight", "patches.norm.bias"))
                .transpose()?,
            most_rows: None,
            order: schema.values,
            pixel_norm: schema.pixel_norm,
            positions: schema.positions,
            frame_size: schema.video.sized,
            group_times: self.group_times(&schema.video)?,
            bounds: schema.bounds.as_ref().map_or(Ok(BTreeMap::new()), |bounds| self.bounds(bounds))?,
            norm: schema.norm.then(norm).transpose()?,
            projector,
            taps: self.taps_of_layers()?,
            image_tokens: self.image_tokens(&schema.prompt)?,
        }))
    }

    /// The positions in time of the groups of frames of a video.
    fn group_times(&self, schema: &VideoSchema) -> Result<GroupTimes> {
        Ok(match &schema.positions_per_second {
            Some(field) => GroupTimes::PerSecond(self.size("tower.video.positions_per_second", field)?),
            None if schema.in_one => GroupTimes::Counted,
            None => GroupTimes::Apart,
        })
    }

    /// The cells of a side of a window, of cells with `cell` pixels a side: as many as are whole.
    fn window_cells(&self, window: &Field, cell: usize) -> Result<usize> {
        let pixels = self.size("tower.window", window)?;
        if pixels < cell {
            let key = self.config.key(window);
            return Err(Error::new(format!(
                "{key} is {pixels}, but a cell of patches has {cell} pixels a side; a window of at least one cell is needed"
            )));
        }
        Ok(pixels / cell)
    }

    /// The layers after which a further projector makes rows.
    fn taps_of_layers(&self) -> Result<Vec<usize>> {
        let taps: Vec<usize> = (0..self.layers).filter(|layer| self.kinds[*layer] == TAPPED).collect();
        // The list of a config.json also says which projector is whose.
        if let Some(indexed) = self.arch.layers.indexed.as_ref().filter(|indexed| indexed.kind == TAPPED)
            && let Some(list) = self.config.json(&indexed.hf)
            && list != &serde_json::json!(taps)
        {
            return Err(Error::new(format!(
                "config.json's '{}' is {}; an ascending list is needed",
                indexed.hf,
                brief(list)
            )));
        }
        Ok(taps)
    }

    /// The bounds of linear parts, if the model has them.
    fn bounds(&self, schema: &BoundsSchema) -> Result<BTreeMap<String, LinearBounds>> {
        let names = (0..self.layers)
            .flat_map(|layer| schema.parts.iter().map(move |part| format!("layers.{layer}.{part}")));
        let are_there = match self.config {
            ModelConfig::Hf(_) => self.config.flag(&schema.are_there)? == Some(true),
            // A projector file has them, or not.
            ModelConfig::Gguf(_) => names.clone().any(|name| self.has_bounds(&name)),
        };
        if !are_there {
            return Ok(BTreeMap::new());
        }
        let bounds = |name: String| {
            let [input, output] = ["input", "output"].map(|side| self.bound(&format!("{name}.{side}")));
            Ok((name, LinearBounds { input: input?, output: output? }))
        };
        names.map(bounds).collect()
    }

    /// Whether the files have a bound of this linear part.
    fn has_bounds(&self, name: &str) -> bool {
        let bounds = ["input_min", "input_max", "output_min", "output_max"];
        bounds.iter().any(|bound| self.stored.has(&format!("{name}.{bound}")))
    }

    /// The bounds of one side of a linear part; `None` if all numbers are within. An infinite one is the largest number.
    fn bound(&self, name: &str) -> Result<Option<[f32; 2]>> {
        let read = |name: String| match self.stored.values(&name)?[..] {
            [bound] if !bound.is_nan() => Ok(bound),
            _ => Err(Error::new(format!("weight '{name}' is not one number, which a linear part needs"))),
        };
        let [low, high] = [read(format!("{name}_min"))?, read(format!("{name}_max"))?];
        if low > high || low == f32::INFINITY || high == f32::NEG_INFINITY {
            return Err(Error::new(format!(
                "'{name}' is bounded by {low} and {high}; the first must not be larger"
            )));
        }
        let is_bounded = low.is_finite() || high.is_finite();
        Ok(is_bounded.then(|| [low.max(f32::MIN), high.min(f32::MAX)]))
    }

    /// Checks that a table has as many rows as a square has points.
    fn check_square(&self, name: &str) -> Result<()> {
        let rows = self.stored.rows(name)?;
        if rows > 0 && rows.isqrt().pow(2) == rows {
            return Ok(());
        }
        Err(Error::new(format!("'{name}' has {rows} rows; a square number is needed")))
    }

    /// How the cells of an image, of `side` patches a side if it has one size, become rows.
    fn projector(&self, schema: &ProjectorSchema, side: Option<usize>) -> Result<ProjectorFacts> {
        let tokens = schema.tokens.as_ref().map_or(Ok(None), |field| self.config.size(field))?;
        let cell = match (tokens, side) {
            (Some(tokens), Some(side)) => {
                let rows = tokens.isqrt();
                if rows * rows != tokens || !side.is_multiple_of(rows) {
                    let key = schema.tokens.as_ref().map(|field| self.config.key(field)).unwrap_or_default();
                    return Err(Error::new(format!(
                        "{key} is {tokens}; the {side} patches a side of an image need a square of one of their divisors"
                    )));
                }
                side / rows
            }
            _ => self.size("tower.projector.cell", &schema.cell)?,
        };
        if cell > MAX_CELL && schema.cells != CellRule::Mean
            || cell.saturating_mul(cell) > MAX_PATCHES && side.is_none()
        {
            return Err(Error::new(format!(
                "cells have {cell} patches a side; at most {MAX_CELL} are allowed"
            )));
        }
        if let Some(side) = side.filter(|side| !side.is_multiple_of(cell)) {
            return Err(Error::new(format!(
                "cells have {cell} patches a side, but the image has {side}; a multiple is needed"
            )));
        }
        let norm = schema.epsilon.as_ref().map(|epsilon| {
            let (kind, epsilon) = (schema.norm, self.epsilon(epsilon)?);
            Ok::<_, Error>(NormFacts {
                kind,
                epsilon,
                weight: schema.norm_weight,
                bias: kind == NormKind::Layer,
            })
        });
        let norm = norm.transpose()?;
        let width = self.size("tower.projector.width", &schema.width)?;
        let own = self.size("sizes.width", &self.arch.sizes.width)?;
        let scale = schema.scaled.then(|| (own as f32).sqrt());
        let standardized = match (self.config, &schema.standardized_if) {
            (_, None) => false,
            (ModelConfig::Hf(_), Some(field)) => self.config.flag(field)? == Some(true),
            (ModelConfig::Gguf(_), Some(_)) => {
                ["projector.shift", "projector.scale"].into_iter().any(|name| self.stored.has(name))
            }
        };
        Ok(ProjectorFacts { cells: schema.cells, cell, scale, standardized, norm, width })
    }

    /// The tokens that stand for an image. Without ids in the files, the tokenizer has them.
    fn image_tokens(&self, schema: &ImagePromptSchema) -> Result<ImageTokens> {
        let id = |field: &Field| {
            let id = self.config.count(field)?;
            Ok::<_, Error>(id.and_then(|id| u32::try_from(id).ok()))
        };
        let optional = |field: &Option<Field>| field.as_ref().map_or(Ok(None), id);
        Ok(ImageTokens {
            begin: optional(&schema.begin)?,
            row: id(&schema.row)?,
            end: optional(&schema.end)?,
            layer_input: optional(&schema.layer_input)?,
            video: optional(&schema.video)?,
            mutual: match &schema.mutual {
                MutualRule::Always(mutual) => *mutual,
                MutualRule::If { of, is } => self.config.word(of)?.as_ref() == Some(is),
            },
            texts: schema.texts.clone(),
        })
    }

    /// The pixels of the longer side of a picture that is cut into tiles of `image` pixels a side.
    fn tiled_edge(&self, schema: &TilesSchema, image: usize) -> Result<usize> {
        let edge = self.config.size(&schema.edge)?;
        Ok(edge.unwrap_or(image.saturating_mul(4)))
    }

    /// The number of first layers of a text model to whose outputs further rows of images are added.
    pub(super) fn image_layers(&self) -> Result<usize> {
        let Some(schema) = &self.arch.image_layers else { return Ok(0) };
        let count = match self.config {
            ModelConfig::Hf(_) => match self.config.json(&schema.listed) {
                None => 0,
                Some(list) => list.as_array().map(Vec::len).ok_or_else(|| {
                    let (key, list) = (&schema.listed, brief(list));
                    Error::new(format!("config.json's '{key}' is {list}; a list of layers is needed"))
                })?,
            },
            ModelConfig::Gguf(_) => self.config.count(&schema.count)?.unwrap_or(0),
        };
        if count > self.layers {
            let layers = self.layers;
            return Err(Error::new(format!(
                "rows of images are added to the outputs of {count} layers, but the model has {layers}"
            )));
        }
        Ok(count)
    }
}
