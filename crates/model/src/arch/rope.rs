//! RoPE frequencies: a base, and a divisor per frequency (llama.cpp: frequency factors).
//!
//! All scaling schemes of the supported models are one divisor per frequency:
//! the same for all with linear scaling, a function of the wavelength with
//! Llama 3's and YaRN's, the file's values with GGUF's `rope_freqs`. Some multiply the rotated components, too.

use girih_file::{Metadata, quote};
use girih_tensor::{Error, Result};
use serde_json::Value as Json;

use super::config::ModelConfig;
use super::rope_scaling::{Llama3, LongRope, Scaled, Unscaled, Yarn, proportional, unless_one};
use super::schema::Scaling;
use super::value::brief;

/// The keys of a scaling object that all schemes read.
pub(super) const SCHEME_KEYS: [&str; 2] = ["rope_type", "type"];

/// The name of no scaling.
const DEFAULT: &str = "default";

/// The keys that each scheme reads.
const SCHEMES: [(&str, &[&str]); 7] = [
    (DEFAULT, &SCHEME_KEYS),
    ("linear", &["rope_type", "type", "factor"]),
    ("dynamic", &["rope_type", "type", "factor", "alpha"]),
    (
        "llama3",
        &[
            "rope_type",
            "type",
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ],
    ),
    (
        "yarn",
        &[
            "rope_type",
            "type",
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
    ),
    ("longrope", &LONGROPE_KEYS),
    ("proportional", &["rope_type", "type", "factor", "partial_rotary_factor"]),
];

const LONGROPE_KEYS: [&str; 7] = [
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "attention_factor",
    "short_factor",
    "long_factor",
];

/// The keys of `longrope` in models that state the factors of the rotated components by the length of the text.
const LONGROPE_MSCALE_KEYS: [&str; 8] = [
    "rope_type",
    "type",
    "factor",
    "original_max_position_embeddings",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
];

/// The keys of GGUF, behind the prefix, that the schemes read.
pub const GGUF_SCALING: [&str; 8] = [
    "type",
    "factor",
    "attn_factor",
    "original_context_length",
    "yarn_log_multiplier",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
];

/// The turns of YaRN's ramp in models that do not state them.
const YARN_TURNS: [f64; 2] = [32.0, 1.0];

/// The keys that the scheme of a `rope_scaling` or `rope_parameters` object reads.
pub(super) fn scheme_keys(object: &Json, scaling: &Scaling) -> &'static [&'static str] {
    let kind = SCHEME_KEYS.iter().find_map(|key| object.get(key)).and_then(Json::as_str);
    if scaling.mscales && kind == Some("longrope") {
        return &LONGROPE_MSCALE_KEYS;
    }
    if kind.is_some_and(|kind| scaling.longrope_words.iter().any(|word| word == kind)) {
        return &LONGROPE_KEYS;
    }
    let known = SCHEMES.iter().find(|(known, _)| Some(*known) == kind);
    known.map_or(&SCHEME_KEYS, |(_, keys)| keys)
}

/// The `size / 2` frequencies, in radians per position:
/// `base^(−2i/size) / factors[i]`.
///
/// The powers are rounded to `f32` as in PyTorch, so that the angles at distant
/// positions equal those of training.
pub fn frequencies(base: f32, factors: &[f32], size: usize) -> Vec<f32> {
    let inverse = (0..size / 2).map(|i| {
        let exponent = (2 * i) as f32 / size as f32;
        1.0 / (f64::from(base).powf(f64::from(exponent)) as f32)
    });
    inverse
        .enumerate()
        .map(|(i, inverse)| factors.get(i).map_or(inverse, |factor| inverse / factor))
        .collect()
}

/// What a model's scaling makes of its frequencies.
///
/// `tensor` returns the values of a GGUF tensor of divisors, if it exists.
pub(super) fn scaled(
    config: &ModelConfig<'_>,
    scaling: Option<&Scaling>,
    from: &Unscaled,
    tensor: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<Scaled> {
    let Some(scaling) = scaling else { return Ok(Scaled::default()) };
    check_only(config, scaling, &tensor)?;
    let scaled = match config {
        ModelConfig::Hf(_) => match object(config, scaling)? {
            Some((path, object)) => ScalingObject { path, object, scaling, from }.scaled()?,
            None if scaling.stated => {
                let keys = scaling.hf.iter().map(quote).collect::<Vec<_>>().join(" or ");
                return Err(Error::new(format!(
                    "config.json states no rotary scaling, where transformers assumes one; {keys} is needed"
                )));
            }
            None => Scaled::default(),
        },
        ModelConfig::Gguf(metadata) => of_gguf(metadata, scaling, from, tensor)?,
    };
    let wrong = scaled.factors.iter().any(|factor| !factor.is_finite() || *factor <= 0.0);
    let rotated = scaled.rotated.unwrap_or(from.rotated);
    if wrong || !(scaled.factors.is_empty() || scaled.factors.len() == rotated / 2) {
        let (have, need) = (scaled.factors.len(), rotated / 2);
        return Err(Error::new(format!(
            "the rotary embedding has {have} factors; {need} positive ones are needed"
        )));
    }
    if let Some(factor) = scaled.factor.filter(|factor| !factor.is_finite() || *factor <= 0.0) {
        return Err(Error::new(format!(
            "the rotated components are multiplied by {factor}; a positive number is needed"
        )));
    }
    Ok(scaled)
}

/// Checks that a model has the only scheme that its description allows, if there is one.
fn check_only(
    config: &ModelConfig<'_>,
    scaling: &Scaling,
    tensor: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<()> {
    let Some(only) = &scaling.only else { return Ok(()) };
    match config {
        ModelConfig::Hf(_) => {
            let path = scaling.hf.iter().next().unwrap_or_default();
            let stated = config.json(&format!("{path}.{}", SCHEME_KEYS[0]));
            if stated.and_then(Json::as_str) == Some(only) {
                return Ok(());
            }
            let stated = stated.map_or("missing".to_owned(), |stated| brief(stated).to_string());
            Err(Error::new(format!("config.json's '{path}.rope_type' is {stated}; '{only}' is needed")))
        }
        ModelConfig::Gguf(_) => match &scaling.factors {
            Some(name) if tensor(name)?.is_none() => Err(Error::new(format!(
                "GGUF lacks the tensor '{name}', which the rotary scaling '{only}' needs"
            ))),
            _ => Ok(()),
        },
    }
}

/// YaRN of a GGUF, with the multiplier of its logarithm and the attention factor that the file may state.
fn yarn_of_gguf(
    scaling: &Scaling,
    from: &Unscaled,
    factor: f64,
    original: usize,
    [fast, slow]: [f64; 2],
    [multiplier, attention]: [Option<f64>; 2],
) -> Scaled {
    // llama.cpp's converter writes a tenth of it for these models, and takes both scales as equal.
    let of_all = multiplier.filter(|_| scaling.scales_scores).map(|tenth| (1e7 * tenth).round() / 1e6);
    let implied = match scaling.scales_scores {
        true => Yarn::attention(factor, of_all, of_all),
        false => Yarn::attention(factor, Some(1.0), multiplier),
    };
    let yarn = Yarn {
        factor,
        original: original as f64,
        fast,
        slow,
        is_truncated: !scaling.gguf_open_ramp,
        attention: attention.unwrap_or(implied),
    };
    Scaled { score: Yarn::score(factor, of_all), ..yarn.scaled(from) }
}

/// The scaling of a GGUF, as llama.cpp's `load_hparams` and `llama_context` read it.
fn of_gguf(
    metadata: &Metadata,
    scaling: &Scaling,
    from: &Unscaled,
    tensor: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<Scaled> {
    let named = |name: &Option<String>| name.as_deref().map_or(Ok(None), &tensor);
    let prefix = scaling.gguf.as_deref().unwrap_or_default();
    let key = |name: &str| format!("{prefix}.{name}");
    let number = |name: &str| Ok(metadata.get::<f32>(&key(name))?.map(f64::from));
    let stored = named(&scaling.factors)?;
    let stated = metadata.get::<&str>(&key("type"))?;
    let factor = metadata.get::<f32>(&key("factor"))?;
    // llama.cpp takes a factor without a type as linear, and 0 as 1.
    let factor = if stated.is_none() { factor.filter(|factor| ![0.0, 1.0].contains(factor)) } else { factor };
    let lists = [named(&scaling.short)?, named(&scaling.long)?];
    let kind = stated.unwrap_or(match (factor, &lists) {
        (Some(_), _) => "linear",
        (None, [Some(_), Some(_)]) => "longrope",
        (None, _) => "none",
    });
    let needed = || {
        factor.ok_or_else(|| {
            Error::new(format!("GGUF's '{prefix}.factor' is missing; {kind} scaling needs it"))
        })
    };
    // llama.cpp takes 0 as the model's own context.
    let original = metadata.get::<u32>(&key("original_context_length"))?.filter(|length| *length != 0);
    let original = original.map_or(from.context, |length| length as usize);
    let turns = |name: &str, default: f64| match number(name)? {
        None => Ok(default),
        Some(turns) if turns > 0.0 => Ok(turns),
        Some(turns) => {
            let key = key(name);
            Err(Error::new(format!("GGUF's '{key}' is {turns}; a positive number is needed")))
        }
    };
    let mut scaled = match (stored, kind) {
        (Some(stored), "none") => Scaled::by(stored),
        // A converter wrote the type of a model without lists.
        (None, "none" | "longrope") if lists == [None, None] => Scaled::default(),
        (None, "linear") => Scaled::by(vec![needed()?; from.rotated / 2]),
        (None, "yarn") => {
            let turns = [turns("yarn_beta_fast", YARN_TURNS[0])?, turns("yarn_beta_slow", YARN_TURNS[1])?];
            let stated = [number("yarn_log_multiplier")?, number("yarn_attn_factor")?];
            yarn_of_gguf(scaling, from, f64::from(needed()?), original, turns, stated)
        }
        (None, "longrope") => {
            let [Some(short), Some(long)] = lists else {
                return Err(Error::new(
                    "GGUF has one tensor of rotary factors; a short and a long one are needed",
                ));
            };
            LongRope { short, long, original, attention: [1.0; 2] }.scaled(from)
        }
        (Some(_), kind) => {
            let kind = quote(kind);
            return Err(Error::new(format!(
                "GGUF's '{prefix}.type' is {kind} beside a tensor of rotary factors; 'none' is needed with it"
            )));
        }
        (None, kind) => return Err(unknown(kind, &format!("GGUF's '{prefix}.type'"))),
    };
    // llama.cpp multiplies by it with each type.
    if let Some(factor) = number("attn_factor")? {
        scaled.factor = unless_one(factor * f64::from(scaled.factor.unwrap_or(1.0)));
    }
    Ok(scaled)
}

/// The scaling object of `config.json` that is not empty, and its path. Several must be equal,
/// as transformers merges them by rules of each model.
fn object<'a>(config: &ModelConfig<'a>, scaling: &'a Scaling) -> Result<Option<(&'a str, &'a Json)>> {
    let stated = scaling.hf.iter().filter_map(|path| Some((path, config.json(path)?)));
    let mut stated = stated.filter(|(_, value)| value.as_object().is_none_or(|object| !object.is_empty()));
    let Some((path, first)) = stated.next() else { return Ok(None) };
    if !first.is_object() {
        let value = brief(first);
        return Err(Error::new(format!("config.json's '{path}' is {value}; an object is needed")));
    }
    if let Some((other, _)) = stated.find(|(_, value)| *value != first) {
        return Err(Error::new(format!(
            "config.json sets '{path}' and '{other}' differently; remove one of them"
        )));
    }
    Ok(Some((path, first)))
}

/// A `rope_scaling` or `rope_parameters` object, or the part of one for a kind of layers.
struct ScalingObject<'a> {
    path: &'a str,
    object: &'a Json,
    scaling: &'a Scaling,
    from: &'a Unscaled,
}

impl ScalingObject<'_> {
    fn scaled(&self) -> Result<Scaled> {
        let is_default = |word: &&str| self.scaling.default_words.iter().any(|known| known == word);
        let mut kinds = SCHEME_KEYS.iter().filter_map(|key| {
            let kind = self.object.get(key)?.as_str();
            Some(kind.map(|word| if is_default(&word) { DEFAULT } else { word }))
        });
        let kind =
            kinds.next().unwrap_or(Some(DEFAULT)).filter(|kind| kinds.all(|other| other == Some(*kind)));
        let Some(kind) = kind else {
            let key = self.key();
            return Err(Error::new(format!("{key} has no 'rope_type', or several; one string is needed")));
        };
        // Old configurations of Phi-3 have two other names for its scheme.
        let is_longrope = kind == "longrope" || self.scaling.longrope_words.iter().any(|word| word == kind);
        match kind {
            _ if is_longrope => self.longrope(kind),
            DEFAULT => Ok(Scaled::default()),
            "linear" => Ok(Scaled::by(vec![self.positive("factor", kind)? as f32; self.from.rotated / 2])),
            "dynamic" if self.number("alpha")?.is_some() => self.raised(kind),
            // It changes the base of longer texts than the model's context.
            "dynamic" => self.positive("factor", kind).map(|_| Scaled::default()),
            "llama3" => {
                let scheme = Llama3 {
                    factor: self.positive("factor", kind)?,
                    low: self.positive("low_freq_factor", kind)?,
                    high: self.positive("high_freq_factor", kind)?,
                    original: self.original(kind)?,
                };
                Ok(scheme.scaled(self.from))
            }
            "yarn" => self.yarn(kind),
            "proportional" => {
                let share = self.number("partial_rotary_factor")?.unwrap_or(self.from.share);
                proportional(self.number("factor")?.unwrap_or(1.0), &Unscaled { share, ..*self.from })
            }
            _ => Err(unknown(kind, &self.key())),
        }
    }

    /// A base that is raised for all texts, as divisors (transformers' `compute_ntk_alpha_rope_parameters`).
    fn raised(&self, kind: &str) -> Result<Scaled> {
        if !self.scaling.alpha {
            let key = self.key();
            return Err(Error::new(format!(
                "{key} has an 'alpha', which this architecture does not read; remove it"
            )));
        }
        let (alpha, size) = (self.positive("alpha", kind)?, self.from.rotated as f64);
        let divisor = |i: usize| alpha.powf((2 * i) as f64 / (size - 2.0).max(1.0)) as f32;
        Ok(Scaled::by((0..self.from.rotated / 2).map(divisor).collect()))
    }

    fn key(&self) -> String {
        format!("config.json's '{}'", self.path)
    }

    /// Whether the object is for one kind of layers.
    fn is_of_layers(&self) -> bool {
        !["rope_scaling", "rope_parameters"].contains(&self.path.rsplit('.').next().unwrap_or_default())
    }

    /// A number; null is none.
    fn number(&self, name: &str) -> Result<Option<f64>> {
        match self.object.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| {
                let (key, value) = (self.key(), brief(value));
                Error::new(format!("{key} has the '{name}' {value}; a number is needed"))
            }),
        }
    }

    /// A number that the scheme needs.
    fn positive(&self, name: &str, kind: &str) -> Result<f64> {
        let value = self.object.get(name).and_then(Json::as_f64).filter(|value| *value > 0.0);
        value.ok_or_else(|| {
            let (key, kind) = (self.key(), quote(kind));
            Error::new(format!("{key} has no positive '{name}', which rope_type {kind} needs"))
        })
    }

    /// The number of positions before the scaling: what the model states apart, else the object's, else those
    /// of the model (`standardize_rope_params`).
    fn original(&self, kind: &str) -> Result<f64> {
        const NAME: &str = "original_max_position_embeddings";
        match self.from.original.filter(|_| !self.is_of_layers()) {
            Some(original) => Ok(original as f64),
            None if self.object.get(NAME).is_none() => Ok(self.from.context as f64),
            None => self.positive(NAME, kind),
        }
    }

    fn yarn(&self, kind: &str) -> Result<Scaled> {
        let original = self.original(kind)?;
        let factor = match self.object.get("factor") {
            Some(Json::Null) => self.from.context as f64 / original,
            _ => self.positive("factor", kind)?,
        };
        let turns = |name: &str, default: f64| match self.number(name)? {
            None | Some(0.0) => Ok(default),
            Some(_) => self.positive(name, kind),
        };
        let attention = match self.number("attention_factor")? {
            Some(factor) => factor,
            None => Yarn::attention(factor, self.number("mscale")?, self.number("mscale_all_dim")?),
        };
        let yarn = Yarn {
            factor,
            original,
            fast: turns("beta_fast", YARN_TURNS[0])?,
            slow: turns("beta_slow", YARN_TURNS[1])?,
            is_truncated: self.is_truncated()?,
            attention,
        };
        let of_all = self.number("mscale_all_dim")?.filter(|_| self.scaling.scales_scores);
        Ok(Scaled { score: Yarn::score(factor, of_all), ..yarn.scaled(self.from) })
    }

    /// Whether the ends of YaRN's ramp are whole pairs. transformers reads it of the object of all layers only.
    fn is_truncated(&self) -> Result<bool> {
        match self.object.get("truncate") {
            None | Some(Json::Bool(true)) => Ok(true),
            Some(Json::Bool(false)) if !self.is_of_layers() => Ok(false),
            Some(value) => {
                let (key, value) = (self.key(), brief(value));
                let need = if self.is_of_layers() { "true" } else { "true or false" };
                Err(Error::new(format!("{key} has the 'truncate' {value}; {need} is needed")))
            }
        }
    }

    fn longrope(&self, kind: &str) -> Result<Scaled> {
        let original = self.original(kind)?;
        if original.fract() != 0.0 || original > f64::from(i32::MAX) {
            let key = self.key();
            return Err(Error::new(format!(
                "{key} has the original context {original}; an integer is needed"
            )));
        }
        let factor = self.number("factor")?.unwrap_or(self.from.context as f64 / original);
        let original = original as usize;
        let attention = if self.scaling.mscales {
            [self.positive("short_mscale", kind)?, self.positive("long_mscale", kind)?]
        } else {
            let stated = self.number("attention_factor")?;
            [stated.unwrap_or_else(|| LongRope::attention(factor, original)); 2]
        };
        let (short, long) = (self.list("short_factor")?, self.list("long_factor")?);
        if short.len() != long.len() {
            let (key, short, long) = (self.key(), short.len(), long.len());
            return Err(Error::new(format!(
                "{key} has {short} short factors and {long} long ones; equal numbers are needed"
            )));
        }
        Ok(LongRope { short, long, original, attention }.scaled(self.from))
    }

    fn list(&self, name: &str) -> Result<Vec<f32>> {
        let number = |value: &Json| value.as_f64().map(|number| number as f32);
        let list = self.object.get(name).and_then(Json::as_array);
        list.and_then(|list| list.iter().map(number).collect()).ok_or_else(|| {
            let key = self.key();
            Error::new(format!("{key} has no list of numbers '{name}', which longrope needs"))
        })
    }
}

fn unknown(kind: &str, key: &str) -> Error {
    Error::new(format!(
        "{key} sets the rotary scaling {}; 'default', 'linear', 'dynamic', 'llama3', 'yarn', 'longrope' and \
         'proportional' are supported",
        quote(kind)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FROM: Unscaled =
        Unscaled { base: 10_000.0, head: 64, share: 1.0, rotated: 64, context: 8192, original: None };

    /// What an object of all layers, or of one kind, makes of frequencies.
    fn described(path: &str, object: &Json, from: &Unscaled) -> Result<Scaled> {
        ScalingObject { path, object, scaling: &Scaling::default(), from }.scaled()
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_divides_long_ones() {
        let object = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let from = Unscaled { base: 500_000.0, ..FROM };
        let factors = described("rope_scaling", &object, &from).unwrap().factors;
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn an_unknown_scaling_is_refused_by_name() {
        let object = json!({"rope_type": "su", "factor": 4.0});
        let error = described("rope_scaling", &object, &FROM).unwrap_err().to_string();
        assert!(error.contains("'su'"), "{error}");
    }

    #[test]
    fn yarn_reads_what_transformers_reads() {
        let yarn = |path: &str, more: &[(&str, Json)], from: &Unscaled| {
            let mut object = json!({"rope_type": "yarn", "factor": 4.0});
            object
                .as_object_mut()
                .unwrap()
                .extend(more.iter().map(|(key, value)| (key.to_string(), value.clone())));
            described(path, &object, from)
        };
        let plain = yarn("rope_scaling", &[], &FROM).unwrap();
        assert_eq!(plain.factor, Some((0.1 * 4f64.ln() + 1.0) as f32));
        // A model's own key wins over the object's, but not in an object of one kind of layers.
        let apart = Unscaled { original: Some(1024), ..FROM };
        let stated = [("original_max_position_embeddings", json!(8192))];
        assert_eq!(yarn("rope_scaling", &stated, &FROM).unwrap(), plain);
        assert_ne!(yarn("rope_scaling", &stated, &apart).unwrap(), plain);
        assert_eq!(yarn("rope_parameters.full_attention", &stated, &apart).unwrap(), plain);
        let open = [("truncate", json!(false))];
        assert_ne!(yarn("rope_parameters", &open, &FROM).unwrap(), plain);
        let refused = [
            yarn("rope_parameters.full_attention", &open, &FROM),
            yarn("rope_scaling", &[("truncate", Json::Null)], &FROM),
            yarn("rope_scaling", &[("beta_fast", json!(-1.0))], &FROM),
            yarn("rope_scaling", &[("mscale", json!("1"))], &FROM),
            yarn("rope_scaling", &[("factor", json!(0.0))], &FROM),
        ];
        for (index, result) in refused.into_iter().enumerate() {
            assert!(result.is_err(), "case {index}");
        }
        assert_eq!(yarn("rope_scaling", &[("attention_factor", json!(1.0))], &FROM).unwrap().factor, None);
        let scales = [("mscale", json!(1.0)), ("mscale_all_dim", json!(1.0)), ("beta_slow", json!(0))];
        assert_eq!(yarn("rope_scaling", &scales, &FROM).unwrap(), Scaled { factor: None, ..plain });
    }

    #[test]
    fn longrope_needs_two_lists_of_equal_length() {
        let lists = |short: usize, long: usize| {
            let object = json!({"rope_type": "longrope", "original_max_position_embeddings": 4096,
                "short_factor": vec![1.0; short], "long_factor": vec![2.0; long]});
            described("rope_scaling", &object, &FROM)
        };
        let scaled = lists(32, 32).unwrap();
        assert_eq!((scaled.context, scaled.factors.len()), (Some(4096), 32));
        assert!(lists(32, 31).is_err());
        let object = json!({"rope_type": "longrope", "short_factor": [1.0]});
        assert!(described("rope_scaling", &object, &FROM).is_err());
    }

    #[test]
    fn frequencies_decrease_by_a_constant_ratio() {
        assert_eq!(frequencies(10_000.0, &[], 4), [1.0, 0.01]);
        assert_eq!(frequencies(10_000.0, &[1.0, 8.0], 4), [1.0, 0.01 / 8.0]);
    }
}
