//! RoPE frequencies: a base, and a divisor per frequency (llama.cpp: frequency factors).
//!
//! All scaling schemes of the supported models are one divisor per frequency:
//! the same for all with linear scaling, a function of the wavelength with
//! Llama 3's, the file's values with GGUF's `rope_freqs`.

use std::f64::consts::TAU;

use girih_file::quote;
use girih_tensor::{Error, Result};
use serde_json::Value as Json;

use super::config::ModelConfig;
use super::schema::Scaling;
use super::value::brief;

/// The keys of a scaling object that all schemes read.
pub(super) const SCHEME_KEYS: [&str; 2] = ["rope_type", "type"];

/// The keys that each scheme reads.
const SCHEMES: [(&str, &[&str]); 3] = [
    ("default", &SCHEME_KEYS),
    ("linear", &["rope_type", "type", "factor"]),
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
];

/// The keys that the scheme of a `rope_scaling` or `rope_parameters` object reads.
pub(super) fn scheme_keys(object: &Json) -> &'static [&'static str] {
    let kind = SCHEME_KEYS.iter().find_map(|key| object.get(key)).and_then(Json::as_str);
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

/// The divisors of a model's frequencies; empty without scaling.
///
/// `tensor` returns the values of a GGUF tensor of divisors, if it exists.
pub(super) fn factors(
    config: &ModelConfig<'_>,
    scaling: Option<&Scaling>,
    base: f32,
    size: usize,
    tensor: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<Vec<f32>> {
    let Some(scaling) = scaling else { return Ok(Vec::new()) };
    let factors = match config {
        ModelConfig::Hf(_) => object(config, scaling)?
            .map_or(Ok(Vec::new()), |(path, object)| described(path, object, base, size))?,
        ModelConfig::Gguf(metadata) => {
            let stored = scaling.factors.as_deref().map_or(Ok(None), tensor)?;
            let prefix = scaling.gguf.as_deref().unwrap_or_default();
            let stated = metadata.get::<&str>(&format!("{prefix}.type"))?;
            let factor = metadata.get::<f32>(&format!("{prefix}.factor"))?;
            // llama.cpp's `load_hparams` takes a factor without a type as linear, and 0 as 1.
            let factor =
                if stated.is_none() { factor.filter(|factor| ![0.0, 1.0].contains(factor)) } else { factor };
            let kind = stated.unwrap_or(if factor.is_some() { "linear" } else { "none" });
            match (stored, kind) {
                (Some(stored), "none") => stored,
                (None, "none") => Vec::new(),
                (None, "linear") => {
                    let factor = factor.ok_or_else(|| {
                        Error::new(format!("GGUF's '{prefix}.factor' is missing; linear scaling needs it"))
                    })?;
                    vec![factor; size / 2]
                }
                (_, kind) => return Err(unknown(kind, &format!("GGUF's '{prefix}.type'"))),
            }
        }
    };
    let wrong = factors.iter().any(|factor| !factor.is_finite() || *factor <= 0.0);
    if wrong || !(factors.is_empty() || factors.len() == size / 2) {
        let (have, need) = (factors.len(), size / 2);
        return Err(Error::new(format!(
            "the rotary embedding has {have} factors; {need} positive ones are needed"
        )));
    }
    Ok(factors)
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

/// The divisors of a `rope_scaling` or `rope_parameters` object.
fn described(path: &str, object: &Json, base: f32, size: usize) -> Result<Vec<f32>> {
    let key = format!("config.json's '{path}'");
    let kinds = || SCHEME_KEYS.iter().filter_map(|key| object.get(key));
    let kind = kinds()
        .next()
        .map_or(Some("default"), Json::as_str)
        .filter(|kind| kinds().all(|other| other == kind));
    let Some(kind) = kind else {
        return Err(Error::new(format!("{key} has no 'rope_type', or several; one string is needed")));
    };
    let number = |name: &str| {
        let value = object.get(name).and_then(Json::as_f64).filter(|value| *value > 0.0);
        value.ok_or_else(|| {
            Error::new(format!("{key} has no positive '{name}', which rope_type {} needs", quote(kind)))
        })
    };
    match kind {
        "default" => Ok(Vec::new()),
        "linear" => Ok(vec![number("factor")? as f32; size / 2]),
        "llama3" => {
            let scheme = Llama3 {
                factor: number("factor")?,
                low: number("low_freq_factor")?,
                high: number("high_freq_factor")?,
                original: number("original_max_position_embeddings")?,
            };
            Ok((0..size / 2).map(|i| scheme.divisor(f64::from(base), i, size)).collect())
        }
        _ => Err(unknown(kind, &key)),
    }
}

fn unknown(kind: &str, key: &str) -> Error {
    Error::new(format!(
        "{key} sets the rotary scaling {}; 'default', 'linear' and 'llama3' are supported",
        quote(kind)
    ))
}

/// Llama 3's scaling: frequencies of long wavelengths are divided by `factor`,
/// short ones are kept, those between are interpolated (`rope_type: llama3` of transformers'
/// `modeling_rope_utils`, `_compute_llama3_parameters`).
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    fn divisor(&self, base: f64, i: usize, size: usize) -> f32 {
        let wavelength = TAU * base.powf((2 * i) as f64 / size as f64);
        if wavelength > self.original / self.low {
            return self.factor as f32;
        }
        if wavelength < self.original / self.high {
            return 1.0;
        }
        let smooth = (self.original / wavelength - self.low) / (self.high - self.low);
        (1.0 / ((1.0 - smooth) / self.factor + smooth)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_wavelengths_and_divides_long_ones() {
        let object = serde_json::json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let factors = described("rope_scaling", &object, 500_000.0, 64).unwrap();
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn an_unknown_scaling_is_refused_by_name() {
        let object = serde_json::json!({"rope_type": "yarn", "factor": 4.0});
        let error = described("rope_scaling", &object, 1e4, 64).unwrap_err().to_string();
        assert!(error.contains("'yarn'"), "{error}");
    }

    #[test]
    fn frequencies_decrease_by_a_constant_ratio() {
        assert_eq!(frequencies(10_000.0, &[], 4), [1.0, 0.01]);
        assert_eq!(frequencies(10_000.0, &[1.0, 8.0], 4), [1.0, 0.01 / 8.0]);
    }
}
