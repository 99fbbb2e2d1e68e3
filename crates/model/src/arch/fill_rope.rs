//! Facts of rotary position embedding: which layers rotate, by which table and base, and how much of a head.

use girih_file::{MetadataArray, MetadataValue};
use girih_graph::Pairing;
use girih_tensor::{Error, Result};

use super::config::{ModelConfig, shown};
use super::facts::Rope;
use super::field::Field;
use super::fill::Fill;
use super::rope;
use super::rope_axes::RopeAxes;
use super::rope_scaling::Unscaled;
use super::schema::{AttendSchema, AxesSchema, AxisPairs, DefaultValue, LayerBases, RopeSchema, StatedValue};
use super::value::brief;

impl Fill<'_> {
    /// The rotation of queries and keys of a layer with heads of `size`; `None` if they are not rotated.
    pub(super) fn rotation(&self, schema: &AttendSchema, layer: usize, size: usize) -> Result<Option<Rope>> {
        let Some(table) = self.rope_of(schema) else { return Ok(None) };
        if !self.rotates(schema)? {
            return Ok(None);
        }
        let listed = schema.rope_bases.as_ref().map_or(Ok(None), |bases| self.listed_base(bases, layer))?;
        if listed == Some(0.0) {
            return Ok(None);
        }
        if let (Some(bases), Some(listed)) = (&schema.rope_bases, listed)
            && bases.only_zeros
        {
            let base = self.base(table, self.table(table)?)?;
            if listed != base {
                let key = self.config.key(&bases.field);
                return Err(Error::new(format!(
                    "{key} lists {listed} for layer {layer}; 0 or the base {base} of the model is needed"
                )));
            }
        }
        self.rope(table, size, listed).map(Some)
    }

    /// The base that the model lists for a layer.
    fn listed_base(&self, bases: &LayerBases, layer: usize) -> Result<Option<f32>> {
        let stated = bases.field.hf.iter().find_map(|key| Some((key, self.config.json(key)?)));
        let Some((key, value)) = stated else {
            return match self.config.default(&bases.field) {
                Some(DefaultValue::Word(word)) if word == "base" => Ok(None),
                _ => Err(self.missing("mixer.rope_bases", &bases.field)),
            };
        };
        let value = &self.config.listed(key, value, self.layers)?[layer];
        let base = value.as_f64().map(|base| base as f32).filter(|base| *base == 0.0 || *base > 1.0);
        base.filter(|base| base.is_finite()).map(Some).ok_or_else(|| {
            let value = brief(value);
            Error::new(format!("config.json's '{key}' lists {value}; 0 or a number above 1 is needed"))
        })
    }

    /// The name of the table by which queries and keys of a layer are rotated.
    fn rope_of<'a>(&self, schema: &'a AttendSchema) -> Option<&'a String> {
        let condition = schema.rope_if_null.as_ref().filter(|_| !self.config.is_gguf());
        let is_null = |field: &Field| self.config.is_null(field);
        let unless = schema.rope_unless_null.as_ref().filter(|_| !self.config.is_gguf());
        let rotates = condition.is_none_or(is_null) && !unless.is_some_and(is_null);
        schema.rope.as_ref().filter(|_| rotates)
    }

    /// Whether the model says that queries and keys are rotated, if it is asked.
    fn rotates(&self, schema: &AttendSchema) -> Result<bool> {
        let Some(field) = &schema.rope_if else { return Ok(true) };
        if self.config.is_null(field) {
            return Ok(false);
        }
        let stated = match (self.config.stated(field)?, self.config.default(field)) {
            (Some(stated), _) => stated,
            (None, Some(DefaultValue::Word(word))) => StatedValue::Word(word.clone()),
            (None, Some(DefaultValue::Flag(flag))) => StatedValue::Flag(*flag),
            (None, _) => return Err(self.missing("mixer.rope_if", field)),
        };
        match &stated {
            StatedValue::Flag(rotates) => Ok(*rotates),
            StatedValue::Word(word) if word == "rope" => Ok(true),
            StatedValue::Word(word) if word == "nope" => Ok(false),
            other => {
                let (key, other) = (self.config.key(field), shown(other));
                Err(Error::new(format!("{key} is {other}; 'rope', 'nope', or null is needed")))
            }
        }
    }

    fn table(&self, name: &str) -> Result<&RopeSchema> {
        self.arch
            .rope
            .get(name)
            .ok_or_else(|| Error::new(format!("architecture {}: [rope.{name}] is missing", self.arch.name)))
    }

    /// The base of a table.
    fn base(&self, name: &str, table: &RopeSchema) -> Result<f32> {
        let base = self.required(&format!("rope.{name}.base"), &table.base)?;
        if !(base > 1.0 && base.is_finite()) {
            return Err(Error::new(format!(
                "the base of the rotary frequencies is {base}; a finite number above 1 is needed"
            )));
        }
        Ok(base)
    }

    /// The rotation by a table of heads of `size`, with a base of the layer's own if it has one.
    fn rope(&self, name: &str, size: usize, own: Option<f32>) -> Result<Rope> {
        let stated = self.table(name)?;
        let base = own.map_or_else(|| self.base(name, stated), Ok)?;
        let scaling = stated.scaling.as_ref();
        let share = stated.share.as_ref().map_or(Ok(None), |field| self.config.number(field))?;
        let original = scaling.and_then(|scaling| scaling.original.as_ref());
        let from = Unscaled {
            base,
            head: size,
            share: share.unwrap_or(1.0),
            rotated: self.rotated(stated, share, size)?,
            // That of a tower follows from its image.
            context: match &self.arch.tower {
                None => self.size("sizes.context", &self.arch.sizes.context)?,
                Some(_) => 0,
            },
            original: original.map_or(Ok(None), |field| self.config.size(field))?,
        };
        let scaled = rope::scaled(self.config, scaling, &from, |tensor| self.stored.numbers(tensor))?;
        let factors = match scaled.factors {
            factors if !stated.is_reversed => factors,
            factors if factors.is_empty() => vec![-1.0; scaled.rotated.unwrap_or(from.rotated) / 2],
            factors => factors.into_iter().map(|factor| -factor).collect(),
        };
        let pairing = stated.pairing.into();
        let are_neighbours =
            stated.neighbours_if.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        let pairing = if are_neighbours == Some(false) { Pairing::Halves } else { pairing };
        let rotated = scaled.rotated.unwrap_or(from.rotated);
        Ok(Rope {
            table: name.to_owned(),
            weight: format!("rope.{name}"),
            pairing,
            axes: stated.axes.as_ref().map_or(Ok(None), |axes| self.axes(axes, rotated))?,
            rotated,
            base,
            factors,
            factor: scaled.factor,
            score: scaled.score,
            context: scaled.context,
        })
    }

    /// The axes of positions by which `rotated` components of a head turn. `None` if a `config.json` states none and the
    /// description has axes for GGUFs only.
    fn axes(&self, schema: &AxesSchema, rotated: usize) -> Result<Option<RopeAxes>> {
        let AxesSchema { hf, gguf, default, gguf_default, pairs } = schema;
        if *pairs == AxisPairs::Halves {
            if !rotated.is_multiple_of(4) {
                return Err(Error::new(format!(
                    "{rotated} components of a head turn by two positions; a multiple of 4 is needed"
                )));
            }
            return Ok(Some(RopeAxes { pairs: *pairs, sections: [0; 3] }));
        }
        let (key, stated) = match self.config {
            ModelConfig::Hf(_) => {
                let stated = hf.iter().find_map(|key| Some((key, self.config.json(key)?)));
                let list = stated.and_then(|(_, value)| value.as_array());
                let numbers =
                    list.map(|list| list.iter().map(|one| one.as_u64()).collect::<Option<Vec<u64>>>());
                match stated {
                    None => ("", None),
                    Some((key, _)) => (key, Some(numbers.flatten().unwrap_or_default())),
                }
            }
            ModelConfig::Gguf(metadata) => {
                let key = gguf.as_deref().unwrap_or_default();
                let stated = metadata.value(key).map(|value| metadata_numbers(value).unwrap_or_default());
                (key, stated.map(|list| list.into_iter().take(3).collect()))
            }
        };
        let default = default.or(gguf_default.filter(|_| self.config.is_gguf()));
        if stated.is_none() && default.is_none() && gguf_default.is_some() {
            return Ok(None);
        }
        let sections = match (stated, default) {
            (Some(stated), _) => stated.iter().map(|count| *count as usize).collect(),
            (None, Some(default)) => default.to_vec(),
            (None, None) => Vec::new(),
        };
        // In turn, time has whatever pairs the others leave.
        let sections: Option<[usize; 3]> = sections.try_into().ok();
        let sum =
            |sections: &[usize; 3]| sections.iter().try_fold(0, |sum: usize, one| sum.checked_add(*one));
        let is_whole =
            |sections: &[usize; 3]| *pairs == AxisPairs::InTurn || sum(sections) == Some(rotated / 2);
        let sections =
            sections.filter(|sections| is_whole(sections) && sections.iter().all(|count| *count <= rotated));
        sections.map(|sections| Some(RopeAxes { pairs: *pairs, sections })).ok_or_else(|| {
            let need = rotated / 2;
            Error::new(format!(
                "the sections of the rotary positions ('{key}') must be three numbers of pairs, {need} together"
            ))
        })
    }

    /// The number of components of a head of `size` that are rotated.
    fn rotated(&self, schema: &RopeSchema, share: Option<f64>, size: usize) -> Result<usize> {
        let stated = schema.rotated.as_ref().map_or(Ok(None), |field| self.config.size(field))?;
        let of_share = share.map(|share| (share * size as f64) as usize);
        if let (Some(stated), Some(of_share)) = (stated, of_share)
            && stated != of_share
        {
            return Err(Error::new(format!(
                "the model states {stated} rotated components of a head, and a share that makes {of_share}; equal \
                 numbers are needed"
            )));
        }
        let rotated = stated.or(of_share).unwrap_or(size);
        if rotated == 0 || rotated > size || !rotated.is_multiple_of(2) {
            return Err(Error::new(format!(
                "{rotated} components of heads of {size} are rotated; an even number from 2 to {size} is needed"
            )));
        }
        Ok(rotated)
    }
}

/// The numbers of a list of a GGUF.
fn metadata_numbers(value: &MetadataValue) -> Option<Vec<u64>> {
    match value {
        MetadataValue::Array(MetadataArray::I32(list)) => {
            list.iter().map(|number| u64::try_from(*number).ok()).collect()
        }
        MetadataValue::Array(MetadataArray::U32(list)) => {
            Some(list.iter().map(|number| u64::from(*number)).collect())
        }
        _ => None,
    }
}
